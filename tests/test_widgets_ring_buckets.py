"""The ring against real ranks and its own law; the bucket model against its limits and torch's own bucketing."""

import itertools
import random

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from helpers import launch
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

RINGS = list(itertools.product((2, 3, 4, 6), (1, 5, 12)))


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


# ------------------------------------------------------------------------------------------------------------- the ring


def numbers(ranks, length):
    draw = random.Random(ranks * 100 + length)
    return [[draw.randrange(-50, 50) for _ in range(length)] for _ in range(ranks)]


def whole(state):
    """By rank: its chunks put together."""
    return [[number for chunk in row for number in chunk] for row in state.chunks]


@pytest.mark.parametrize("ranks, length", RINGS)
def test_every_partial_sum_is_the_sum_of_the_ranks_that_it_names(ranks, length):
    values = numbers(ranks, length)
    places, states = np.array_split(range(length), ranks), ring_states(values)
    for state in states:
        for rank, chunk in itertools.product(range(ranks), repeat=2):
            expected = [sum(values[other][place] for other in state.summed[rank][chunk]) for place in places[chunk]]
            assert state.chunks[rank][chunk] == expected
    assert whole(states[0]) == values, "before: as they were given"
    assert whole(states[-1]) == [[sum(column) for column in zip(*values, strict=True)]] * ranks, "the sum everywhere"
    assert [state.phase for state in states] == [BEFORE] + [REDUCE_SCATTER] * (ranks - 1) + [ALL_GATHER] * (ranks - 1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_every_rank_sends_and_receives_once_a_step_and_no_more_than_the_least(ranks):
    states = ring_states(numbers(ranks, 12 * ranks))
    for state in states[1:]:
        assert sorted(sender for sender, _, _ in state.sends) == list(range(ranks))
        assert all(receiver == (sender + 1) % ranks for sender, receiver, _ in state.sends)
    assert states[-1].sent == [2 * (ranks - 1) * 12] * ranks, "2(N-1)/N of the tensor"
    owners = [[chunk for chunk in range(ranks) if len(row[chunk]) == ranks] for row in states[ranks - 1].summed]
    assert all(len(owned) == 1 for owned in owners), "after reduce-scatter each rank holds one finished chunk"


@pytest.mark.usefixtures("nothing_left")
def test_each_step_is_what_real_ranks_hold_after_sending_and_receiving(ranks=3):
    values = numbers(ranks, 7)

    def in_rank(values):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        chunks = list(torch.tensor(values[rank]).tensor_split(size))
        seen = [torch.cat(chunks).tolist()]
        for step in range(2 * (size - 1)):
            out, into = (rank - step) % size, (rank - step - 1) % size
            arriving = torch.empty_like(chunks[into])
            ops = [dist.P2POp(dist.isend, chunks[out].clone(), (rank + 1) % size),
                   dist.P2POp(dist.irecv, arriving, (rank - 1) % size)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            chunks[into] = chunks[into] + arriving if step < size - 1 else arriving
            seen.append(torch.cat(chunks).tolist())
        dist.destroy_process_group()
        return seen

    real = launch(in_rank, ranks, (values,), timeout=60, show=False).results
    for step, state in enumerate(ring_states(values)):
        assert whole(state) == [real[rank][step] for rank in range(ranks)], f"step {step}"


@pytest.mark.usefixtures("style")
@pytest.mark.parametrize("ranks", (2, 6))
def test_ring_pictures(ranks):
    draw = ring_explorer().draw
    for step, state in enumerate(ring_states(ring.example(ranks))):
        figure = draw(ranks, step)
        texts, diagram, amounts = shown(figure), *figure.axes
        boxes = diagram.collections[0]
        for place, (rank, chunk) in enumerate(itertools.product(range(ranks), repeat=2)):
            done = len(state.summed[rank][chunk]) == ranks
            assert f"{state.chunks[rank][chunk][0]}{' ✔' * done}" in texts
            arrived = any(send[1:] == (rank, chunk) for send in state.sends)
            assert same_color(boxes.get_edgecolors()[place], ACTIVITIES["communication"]) == arrived
        assert texts.count("  to rank 0  ") == bool(step)
        assert amounts.patches[0].get_width() == pytest.approx(state.sent[0] / ranks)
    assert f"{2 * (ranks - 1) / ranks:.2f} tensors, {200 * (ranks - 1) / ranks:.0f} MB" in texts


def test_ring_explorer_redraws_quickly_and_keeps_its_step_in_range():
    explorer, seen = ring_explorer(), set()
    for step in range(7):
        explorer.controls["step"].value = step
        seen.add(explorer.picture.value)
    assert len(seen) == 7
    assert cost(explorer, "step", range(3)) < 5
    explorer.controls["ranks"].value = 2
    assert explorer.controls["step"].value == 2 and "of 2 ranks, step 2 of 2" in explorer.picture.value
    explorer.controls["ranks"].value = 6
    explorer.controls["step"].value = 10
    assert "step 10 of 10" in explorer.picture.value


# ---------------------------------------------------------------------------------------------------------- the buckets


def test_limits_of_the_bucket_model():
    model = {"backward_ms": 5, "layer_mb": 4, "layers": 10, "latency_ms": 0.5, "mb_per_s": 2000}
    one = simulate(1000, **model)
    assert one.overlap == 0 and one.total == pytest.approx(50 + 0.5 + 20), "one bucket: nothing overlaps"
    each = simulate(1, **model)
    assert len(each.buckets) == 10 and each.total == pytest.approx(50 + 2.5), "only the last bucket sticks out"
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
        for (_, ready, begin, end), (_, _, following, _) in itertools.pairwise([*step.buckets, (0, 0, 1e9, 0)]):
            assert ready <= begin < end <= following
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
@pytest.mark.parametrize("size, layers", [(0.25, 60), (4, 20), (1000, 1)])
def test_bucket_pictures_show_the_model_and_the_measurement(size, layers):
    step, draw = simulate(size, layers=layers), bucket_explorer(layers=layers, measured_ms={4: 80.0, 100: 90.0}).draw
    figure = draw(bucket_mb=size, latency_ms=0.2, mb_per_s=1000.0)
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


def test_bucket_explorer_redraws_quickly():
    explorer = bucket_explorer(bucket_mb=12)
    seen = {explorer.picture.value}
    assert "measured" not in "".join(shown(explorer.figure())), "where nothing is measured"
    for name, value in (("bucket_mb", 1), ("bucket_mb", 1000), ("latency_ms", 10.0), ("mb_per_s", 100.0)):
        explorer.controls[name].value = value
        seen.add(explorer.picture.value)
    assert len(seen) == 5
    assert cost(explorer, "bucket_mb", (0.25, 4, 1000)) < 5
    assert "Buckets of 1000 MB" in explorer.picture.value


# ---------------------------------------------------------------------------------------------------------- real traces


def trace(rank, *rows):
    """A trace of (kind, begin, duration); times in ms."""
    return Trace([Event(kind, 1000 * begin, 1000 * took, f"a thread for {kind}", kind) for kind, begin, took in rows],
                 rank)


TWO = [trace(0, ("compute", 0, 60), ("communication", 40, 40)), trace(1, ("compute", 0, 50), ("communication", 50, 30))]


@pytest.mark.usefixtures("style")
def test_overlap_is_drawn_to_one_scale_with_what_took_how_long():
    upper, lower = Figure(figsize=(9, 6), layout="constrained").subplots(2, sharex=True)
    draw_overlap(upper, TWO, "Two <ranks>")
    draw_overlap(lower, [trace(0, ("compute", 0, 100))])
    texts = shown(upper.figure)
    assert bars(upper) == [[(0, 60)], [(50, 80)], [], [(0, 50)], [(50, 80)], []], "rank 0 waits while it computes"
    assert upper.get_xlim() == lower.get_xlim() == (0, 100)
    assert [row.get_text() for row in upper.get_yticklabels()] == [
        "rank 0: compute", "communication", "waiting", "rank 1: compute", "communication", "waiting"]
    assert {"Two <ranks>", "60 ms", "50 ms", "30 ms, 33% hidden", "30 ms, 0% hidden", "0 ms", "100 ms"} <= set(texts)
    assert alt(upper.figure).startswith("Two <ranks> rank 0: compute 60 ms; rank 0: communication 30 ms, 33% hidden;")
    assert "When each rank computed, communicated and waited rank 0: compute 100 ms" in alt(lower.figure)


def test_gaps_that_nobody_sees_are_closed_and_seconds_still_counted():
    ax = axes()
    draw_overlap(ax, [trace(0, *(("compute", 0.01 * number, 0.009) for number in range(10_000)))])
    assert len(bars(ax)[0]) == 1 and "90 ms" in shown(ax.figure)
