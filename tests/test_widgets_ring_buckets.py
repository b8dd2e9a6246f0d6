"""The ring against its own law; the bucket model against its limits and torch's own bucketing; overlap."""

import itertools
import random

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, alt
from helpers.instruments.calls import counted_calls
from helpers.instruments.traces import Event, Trace
from helpers.widgets.overlap import draw_overlap
from lessons.distributed_data_parallel import ring_explorer as ring
from lessons.distributed_data_parallel.bucket_explorer import bucket_explorer, fill_buckets, simulate
from lessons.distributed_data_parallel.ring_explorer import (
    ALL_GATHER,
    BEFORE,
    REDUCE_SCATTER,
    ring_explorer,
    ring_states,
)
from tests.conftest import cost


@pytest.fixture
def style():
    with plt.style.context("helpers.course"):
        yield


def axes(figsize=(9, 3)):
    return Figure(figsize=figsize, layout="constrained").subplots()


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


@pytest.mark.usefixtures("style")
def test_ring_pictures(ranks=6):
    draw, states = ring_explorer().draw, ring_states(ring.example(ranks))
    for step in (0, 1, ranks, 2 * (ranks - 1)):
        figure, state = draw(ranks, step), states[step]
        texts, diagram, amounts = shown(figure), *figure.axes
        edges = diagram.collections[0].get_edgecolors()
        for place, (rank, chunk) in enumerate(itertools.product(range(ranks), repeat=2)):
            done = len(state.summed[rank][chunk]) == ranks
            assert f"{state.chunks[rank][chunk][0]}{' ✔' * done}" in texts
            arrived = any(send[1:] == (rank, chunk) for send in state.sends)
            assert same_color(edges[place], ACTIVITIES["communication"]) == arrived
        assert texts.count("  to rank 0  ") == bool(step)
        assert amounts.patches[0].get_width() == pytest.approx(state.sent[0] / ranks)
    assert f"{2 * (ranks - 1) / ranks:.2f} tensors, {200 * (ranks - 1) / ranks:.0f} MB" in texts


def test_ring_explorer_redraws_quickly_and_keeps_its_step_in_range():
    explorer, seen = ring_explorer(), set()
    for step in range(3):
        explorer.controls["step"].value = step
        seen.add(explorer.picture.value)
    assert len(seen) == 3
    assert cost(explorer, "step", range(3)) < 5
    explorer.controls["step"].value = 6
    explorer.controls["ranks"].value = 2
    assert explorer.controls["step"].value == 2 and "of 2 ranks, step 2 of 2" in explorer.picture.value
    explorer.controls["ranks"].value = 6
    explorer.controls["step"].value = 10
    assert "step 10 of 10" in explorer.picture.value


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
        assert sum(megabytes for megabytes, *_ in step.buckets) == 12
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


@pytest.mark.usefixtures("style")
@pytest.mark.parametrize("size, layers", [(0.25, 60), (1000, 1)])
def test_bucket_pictures_show_the_model_and_the_measurement(size, layers):
    explorer = bucket_explorer(layers=layers, measured_ms={4: 80.0, 100: 90.0})
    figure = explorer.draw(bucket_mb=size, latency_ms=0.2, mb_per_s=1000.0)
    step = simulate(size, layers=layers)
    texts, (timeline, curve) = shown(figure), figure.axes
    backward, all_reduces = bars(timeline)
    assert np.allclose(backward, [span for _, *span in step.backward])
    assert np.allclose(all_reduces, [span for _, _, *span in step.buckets])
    full = timeline.lines[0].get_xdata()
    assert list(full) == [ready for _, ready, _, _ in step.buckets]
    assert any(f"{step.overlap:.0%} hidden" in text for text in texts)
    assert f"backward takes {step.computed:.1f} ms, the step {step.total:.1f} ms" in alt(figure)
    lines = {line.get_label(): line for line in curve.lines}
    assert set(lines["backward alone"].get_ydata()) == {step.computed}
    assert dict(zip(*lines["model"].get_data(), strict=True))[size] == step.total
    assert dict(zip(*lines["measured"].get_data(), strict=True)) == {4: 80, 100: 90}
    assert curve.get_ylim()[0] == 0 and curve.get_ylim()[1] > max(step.total, 90)


@pytest.mark.usefixtures("style")
def test_where_nothing_is_measured_nothing_is_drawn_as_measured():
    assert "measured" not in "".join(shown(bucket_explorer().figure()))


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
