"""The ring against its own law; the bucket model against its limits and torch's own bucketing; what their frames show;
overlap."""

import itertools
import random

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HELD, alt
from helpers.instruments.calls import counted_calls
from helpers.instruments.traces import Event, Trace
from helpers.widgets.overlap import draw_overlap
from lessons.distributed_data_parallel import bucket_explorer as buckets
from lessons.distributed_data_parallel import ring_explorer as ring
from lessons.distributed_data_parallel.bucket_explorer import bucket_explorer, fill_buckets, simulate
from lessons.distributed_data_parallel.ring_explorer import (
    ALL_GATHER,
    BEFORE,
    REDUCE_SCATTER,
    ring_explorer,
    ring_states,
)
from tests.conftest import shapes_of


@pytest.fixture
def style():
    with plt.style.context("helpers.course"):
        yield


def shown(figure):
    """The texts in a figure, once none of them is cut off or too small."""
    with counted_calls(plt.Text, "draw") as calls:  # ticks beyond the axes' ends are there, and not drawn
        figure.draw_without_rendering()
    texts = [text for (text, *_), _ in calls["draw"] if text.get_text().strip() and text.get_visible()]
    room = figure.bbox.padded(1)
    for text in texts:
        box = text.get_window_extent()
        assert room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1, text
        assert text.get_fontsize() >= 8.5, text
    return [text.get_text() for text in texts]


def bars(ax):
    """By `broken_barh`: [(begin, end), …]."""
    return [[(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in bar.get_paths()]
            for bar in ax.collections]


# The ring


def numbers(ranks, length):
    draw = random.Random(ranks * 100 + length)
    return [[draw.randrange(-50, 50) for _ in range(length)] for _ in range(ranks)]


def whole(state):
    """By rank: its chunks put together."""
    return [[number for chunk in row for number in chunk] for row in state.chunks]


@pytest.mark.parametrize("ranks, length", [(2, 5), (3, 1), (4, 12), (6, 17)])
def test_every_partial_sum_is_the_sum_of_the_ranks_that_it_names(ranks, length):
    values = numbers(ranks, length)
    places, states = np.array_split(range(length), ranks), ring_states(values)
    for state in states:
        for rank, chunk in itertools.product(range(ranks), repeat=2):
            named = [values[other] for other in state.summed[rank][chunk]]
            assert state.chunks[rank][chunk] == [sum(row[place] for row in named) for place in places[chunk]]
    assert whole(states[0]) == values, "before: as they were given"
    sums = [sum(column) for column in zip(*values, strict=True)]
    assert whole(states[-1]) == [sums] * ranks, "the sum everywhere"
    steps = ranks - 1
    assert [state.phase for state in states] == [BEFORE] + [REDUCE_SCATTER] * steps + [ALL_GATHER] * steps


@pytest.mark.parametrize("ranks", [2, 6])
def test_every_rank_sends_and_receives_once_a_step_and_no_more_than_the_least(ranks):
    states = ring_states(numbers(ranks, 12 * ranks))
    for state in states[1:]:
        assert sorted(sender for sender, _, _ in state.sends) == list(range(ranks))
        assert all(receiver == (sender + 1) % ranks for sender, receiver, _ in state.sends)
    assert states[-1].sent == [2 * (ranks - 1) * 12] * ranks, "2(N-1)/N of the tensor"
    finished = [sum(len(chunk) == ranks for chunk in row) for row in states[ranks - 1].summed]
    assert finished == [1] * ranks, "after reduce-scatter each rank holds one finished chunk"


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_a_ring_shows_every_chunk_of_every_rank_and_what_travels(ranks):
    states, frames = ring_states(ring.example(ranks)), ring.scene(ranks)["frames"]
    for state, frame in zip(states, frames, strict=True):
        shapes = shapes_of(frame)
        for rank, chunk in itertools.product(range(ranks), repeat=2):
            done = len(state.summed[rank][chunk]) == ranks
            cell = shapes[f"{rank}/{chunk}"]
            assert cell["text"] == f"{state.chunks[rank][chunk][0]}{' ✔' * done}"
            arrived = any(send[1:] == (rank, chunk) for send in state.sends)
            assert (cell["line"] == ACTIVITIES["communication"]) == bool(cell["late"]) == arrived
        messages = [shapes[name] for name in shapes if name.startswith("message")]
        assert len(messages) == len(state.sends) and all(message["passes"] for message in messages)
        for message, (_, receiver, chunk) in zip(messages, state.sends, strict=True):
            cell = shapes[f"{receiver}/{chunk}"]
            assert (message["x"], message["y"]) == (cell["x"], cell["y"])
        assert f"{state.sent[0] / ranks:.2f} tensors" in shapes["sent"]["text"]
    whole_sum = [sum((chunk + 1) * 10**rank for rank in range(ranks)) for chunk in range(ranks)]
    ended = shapes_of(frames[-1])
    assert [ended[f"0/{chunk}"]["text"] for chunk in range(ranks)] == [f"{number} ✔" for number in whole_sum]
    assert f"{2 * (ranks - 1) / ranks:.2f} tensors; to send its own to all others would be" in frames[-1]["note"]


def test_half_way_each_rank_of_a_ring_holds_one_finished_chunk():
    half_way = {preset["words"]: preset for preset in ring_explorer().story["presets"]}["half-way"]
    shapes = shapes_of(ring.scene(4)["frames"][half_way["frame"]])
    ticks = [sum("✔" in shapes[f"{rank}/{chunk}"]["text"] for chunk in range(4)) for rank in range(4)]
    assert ticks == [1] * 4


# The buckets


def test_limits_of_the_bucket_model():
    model = {"backward_ms": 5, "layer_mb": 4, "layers": 10, "latency_ms": 0.5, "mb_per_s": 2000}
    one = simulate(1000, **model)
    assert one.overlap == 0 and one.total == pytest.approx(50 + 0.5 + 20), "one bucket: nothing overlaps"
    each = simulate(1, **model)
    assert len(each.buckets) == 10
    assert each.total == pytest.approx(50 + 2.5), "only the last bucket sticks out"
    slow = simulate(1, **model | {"latency_ms": 30})
    assert slow.total == pytest.approx(5 + 10 * 32), "tiny buckets on a slow network: bound by latency"
    assert slow.total > simulate(1000, **model | {"latency_ms": 30}).total
    free = simulate(25, **model | {"latency_ms": 0, "mb_per_s": 1e9})
    assert free.total == pytest.approx(free.computed)


def test_bucket_model_keeps_its_rules():
    for bucket, latency, speed in itertools.product((0.5, 4, 10, 25, 500), (0, 0.2, 8), (50, 1000)):
        step = simulate(bucket, 2.5, 3, latency, speed, layers=4)
        assert [layer for layer, _, _ in step.backward] == [3, 2, 1, 0] and step.computed == 10
        assert sum(len(layers) for layers, *_ in step.buckets) == 4
        assert all(ready <= begin < end for _, ready, begin, end in step.buckets)
        for (*_, end), (_, _, begin, _) in itertools.pairwise(step.buckets):
            assert end <= begin
        assert step.total >= step.computed and 0 <= step.overlap <= 1


def test_buckets_are_filled_as_torch_fills_them():
    import torch
    import torch.distributed as dist

    draw = random.Random(0)
    for limit in (0.5, 1, 3, 4, 25):
        sizes = [draw.choice((1, 2**10, 2**16, 2**18, 2**20)) for _ in range(30)]
        tensors = [torch.empty(size) for size in sizes]
        real, _ = dist._compute_bucket_assignment_by_size(tensors, [int(limit * 2**20)], [False] * 30)
        assert fill_buckets([4 * size / 2**20 for size in sizes], limit) == [list(bucket) for bucket in real]


def times_of(scene, shape):
    """From when to when a bar on the scene's axis lasts."""
    axis = scene["axis"]
    begin = axis["to"] * (shape["x"] - axis["x"]) / axis["w"]
    return begin, begin + axis["to"] * shape["w"] / axis["w"]


def bucket_scene(bucket_mb, latency_ms, mb_per_s, layers):
    model = {"latency_ms": latency_ms, "mb_per_s": mb_per_s, "layers": layers}
    return simulate(bucket_mb, **model), buckets.scene(bucket_mb, [bucket_mb, 1000], {}, **model)


SETTINGS = [(25, 0.5, 1000, 20), (4, 20, 100, 20), (0.25, 0.01, 1e5, 60), (1000, 30, 10, 1)]


@pytest.mark.parametrize("bucket_mb, latency_ms, mb_per_s, layers", SETTINGS)
def test_at_the_end_the_lanes_show_all_of_the_model(bucket_mb, latency_ms, mb_per_s, layers):
    step, scene = bucket_scene(bucket_mb, latency_ms, mb_per_s, layers)
    shapes = shapes_of(scene["frames"][-1])
    computes = 0
    for bucket, (_, ready, begin, end) in enumerate(step.buckets):
        assert times_of(scene, shapes[f"backward {bucket}"]) == pytest.approx((computes, ready))
        assert times_of(scene, shapes[f"latency {bucket}"]) == pytest.approx((begin, begin + latency_ms))
        assert times_of(scene, shapes[f"bytes {bucket}"]) == pytest.approx((begin + latency_ms, end))
        for rank in (0, 1):
            assert shapes[f"sent {bucket} of {rank}"]["fill"] == HELD["gradients"]
        computes = ready
    note = scene["frames"][-1]["note"]
    assert f"taken {step.total:.1f} ms: backward {step.computed:.1f} ms" in note
    assert f"communication {step.communicated:.1f} ms, of which {step.overlap:.0%}" in note


@pytest.mark.parametrize("bucket_mb, latency_ms, mb_per_s, layers", SETTINGS)
def test_buckets_fill_wait_travel_and_come_back_as_the_model_says(bucket_mb, latency_ms, mb_per_s, layers):
    step, scene = bucket_scene(bucket_mb, latency_ms, mb_per_s, layers)
    frames = scene["frames"]
    for number, frame in enumerate(frames):
        now, shapes = step.total * number / (len(frames) - 1), shapes_of(frame)
        blue = sum(shapes[f"layer {layer} of 0"]["fill"] == ACTIVITIES["compute"] for layer in range(layers))
        assert blue == sum(begin < now for _, begin, _ in step.backward)
        for rank, (bucket, (_, ready, begin, end)) in itertools.product((0, 1), enumerate(step.buckets)):
            home = (buckets.BUCKETS, 2 * buckets.NETWORK - buckets.HIGH - buckets.BUCKETS)[rank]
            sent = shapes.get(f"sent {bucket} of {rank}")
            assert (sent is not None) == (ready <= now)
            if ready <= now:
                assert (sent["y"] != home) == (begin < now < end)
                activity = "waiting" if now < begin else "communication"
                assert sent["fill"] == (HELD["gradients"] if end <= now else ACTIVITIES[activity])
        held = sum(name.startswith("gradient") and "of 0" in name and not shape["passes"]
                   for name, shape in shapes.items())
        full = sum(len(members) for members, ready, *_ in step.buckets if ready <= now)
        assert held + full == sum(end <= now for _, _, end in step.backward)


def test_the_chart_shows_every_size_that_the_slider_has_and_what_was_measured():
    explorer = bucket_explorer(42 / 8, 1.0, 1, 50, 8, 2, {1: 193.0, 2: 188.0, 1000: 210.0})
    size, *_ = explorer.story["controls"]
    assert size["labels"] == ["1", "2", "3", "4", "6", "all"]
    shapes = shapes_of(explorer.scene(bucket_mb=2, latency_ms=1, mb_per_s=50)["frames"][0])
    alone, nothing = (shapes[name]["points"][-1][1] for name in ("alone", "chart axis"))
    for size in (1, 2, 3, 4, 6, 1000):
        total = simulate(size, 42 / 8, 1.0, 1, 50, 8).total
        circle = shapes[f"size {size}"]
        assert (circle["y"] + 5 - nothing) / (alone - nothing) == pytest.approx(total / 42)
        assert circle["click"] == {"bucket_mb": size}
    for size, ms in {1: 193, 2: 188, 1000: 210}.items():
        square = shapes[f"measured {size}"]
        assert (square["y"] + 5 - nothing) / (alone - nothing) == pytest.approx(ms / 42)
        assert square["click"] == {"bucket_mb": size}
    control, places = shapes["chosen"]["drag"]
    assert control == "bucket_mb" and places[1] == [shapes["chosen"]["x"], shapes["chosen"]["y"]]
    _, unmeasured = bucket_scene(25, 0.5, 1000, 20)
    assert not any("measured" in f"{shape}" for shape in unmeasured["frames"][0]["shapes"])


def test_the_presets_of_the_buckets_show_what_they_ask_for():
    explorer = bucket_explorer()
    slow = explorer.scene(bucket_mb=25, latency_ms=0.5, mb_per_s=500)["frames"]
    assert slow[-2]["title"] == "Backward is done, bucket 2 is under way"
    late = explorer.scene(bucket_mb=4, latency_ms=20, mb_per_s=1000)["frames"][-1]
    widths = {name: sum(shape["w"] for shape in late["shapes"] if shape["id"].startswith(name))
              for name in ("latency", "bytes", "backward ")}
    assert widths["latency"] > 3 * widths["bytes"] and widths["latency"] > 3 * widths["backward "]
    for frame in explorer.scene(bucket_mb=1000, latency_ms=0.5, mb_per_s=1000)["frames"]:
        has_sent = "latency 0" in shapes_of(frame)
        assert not has_sent or "Backward is done" in frame["title"]


# Real traces


def trace(rank, *rows):
    """A trace of (kind, begin, duration); times in ms."""
    return Trace([Event(kind, 1000 * begin, 1000 * took, f"a thread for {kind}", kind, group=("0", (0, 1)))
                  for kind, begin, took in rows], rank)


TWO = [trace(0, ("compute", 0, 60), ("communication", 40, 40)),
       trace(1, ("compute", 0, 50), ("communication", 50, 30))]


@pytest.mark.usefixtures("style")
def test_overlap_is_drawn_to_one_scale_with_what_took_how_long():
    upper, lower = Figure(figsize=(9, 6), layout="constrained").subplots(2, sharex=True)
    draw_overlap(upper, TWO, "Two <ranks>")
    draw_overlap(lower, [trace(0, ("compute", 0, 100))])
    texts = shown(upper.figure)
    drawn = [[(0, 60)], [(50, 80)], [], [(0, 50)], [(50, 80)], []]
    assert bars(upper) == drawn, "rank 0 waits while it computes"
    assert upper.get_xlim() == lower.get_xlim() == (0, 100)
    assert [row.get_text() for row in upper.get_yticklabels()] == [
        "rank 0: compute", "communication", "waiting", "rank 1: compute", "communication", "waiting"]
    assert {"Two <ranks>", "60 ms", "50 ms", "30 ms, 33% hidden", "30 ms, 0% hidden", "0 ms"} <= set(texts)
    assert alt(upper.figure).startswith(
        "Two <ranks> rank 0: compute 60 ms; rank 0: communication 30 ms, 33% hidden;")
    assert "When each rank computed, communicated and waited rank 0: compute 100 ms" in alt(lower.figure)
