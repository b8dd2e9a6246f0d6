"""The ring against real ranks and its own law; the bucket model against its limits and torch's own bucketing."""

import itertools
import random
import statistics
import time
import xml.etree.ElementTree as ElementTree

import pytest

from helpers import launch
from helpers.widgets import buckets, ring
from helpers.widgets.buckets import bucket_explorer, fill_buckets, simulate
from helpers.widgets.ring import ALL_GATHER, BEFORE, REDUCE_SCATTER, ring_explorer, ring_states

RINGS = list(itertools.product((1, 2, 3, 4, 6), (0, 1, 5, 12)))


def legible(picture):
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img" and root.get("aria-label")
    assert min(float(element.get("font-size", 16)) for element in root.iter()) >= 14
    width = float(root.get("viewBox").split()[2])
    for element in root.iter():
        if element.tag.endswith("rect"):
            assert float(element.get("x", 0)) + float(element.get("width")) <= width + 1
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


# ------------------------------------------------------------------------------------------------------------- the ring


def numbers(ranks, length):
    draw = random.Random(ranks * 100 + length)
    return [[draw.randrange(-50, 50) for _ in range(length)] for _ in range(ranks)]


def whole(state):
    """By rank: its chunks put together."""
    return [[number for chunk in row for number in chunk] for row in state.chunks]


@pytest.mark.parametrize("ranks, length", RINGS)
def test_ring_ends_with_the_sum_everywhere(ranks, length):
    values = numbers(ranks, length)
    states = ring_states(values)
    total = [sum(column) for column in zip(*values, strict=True)]
    assert len(states) == 1 + 2 * (ranks - 1)
    assert whole(states[0]) == values, "before: as they were given"
    assert whole(states[-1]) == [total] * ranks
    assert [state.phase for state in states] == [BEFORE] + [REDUCE_SCATTER] * (ranks - 1) + [ALL_GATHER] * (ranks - 1)


@pytest.mark.parametrize("ranks, length", RINGS)
def test_every_partial_sum_is_the_sum_of_the_ranks_that_it_names(ranks, length):
    values = numbers(ranks, length)
    places = ring.split(length, ranks)
    for state in ring_states(values):
        for rank, chunk in itertools.product(range(ranks), repeat=2):
            expected = [sum(values[other][place] for other in state.summed[rank][chunk]) for place in places[chunk]]
            assert state.chunks[rank][chunk] == expected


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_every_rank_sends_and_receives_once_a_step_and_no_more_than_the_least(ranks):
    states = ring_states(numbers(ranks, 12 * ranks))
    for state in states[1:]:
        assert sorted(sender for sender, _, _ in state.sends) == list(range(ranks))
        assert all(receiver == (sender + 1) % ranks for sender, receiver, _ in state.sends)
    assert states[-1].sent == [2 * (ranks - 1) * 12] * ranks, "2(N-1)/N of the tensor"
    owners = [[chunk for chunk in range(ranks) if len(row[chunk]) == ranks] for row in states[ranks - 1].summed]
    assert all(len(owned) == 1 for owned in owners), "after reduce-scatter each rank holds one finished chunk"


@pytest.mark.parametrize("values", [[], [[1], [1, 2]]])
def test_ring_refuses(values):
    with pytest.raises(ValueError, match="a list of numbers for each rank"):
        ring_states(values)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_step_is_what_real_ranks_hold_after_sending_and_receiving(ranks):
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


@pytest.mark.parametrize("ranks", range(2, 7))
def test_ring_pictures(ranks):
    for step in range(2 * (ranks - 1) + 1):
        shown = legible(ring.draw(ranks, step))
        assert sum(text.endswith("✔") for text in shown) == sum(
            len(whose) == ranks for row in ring_states(ring.example(ranks))[step].summed for whose in row)
    assert f"{2 * (ranks - 1) / ranks:.2f} tensors, {200 * (ranks - 1) / ranks:.0f} MB" in shown
    assert ring.draw(ranks, 99) == ring.draw(ranks, 2 * (ranks - 1))


def test_ring_explorer_redraws_quickly_and_keeps_its_step_in_range():
    explorer, seen = ring_explorer(), set()
    began = time.perf_counter()
    for step in range(7):
        explorer.controls["step"].value = step
        seen.add(explorer.picture.value)
    assert (time.perf_counter() - began) / 7 < 0.1 and len(seen) == 7
    explorer.controls["ranks"].value = 2
    assert explorer.controls["step"].value == 2 and "of 2 ranks, step 2 of 2" in explorer.picture.value
    explorer.controls["ranks"].value = 6
    explorer.controls["step"].value = 10
    assert "step 10 of 10" in explorer.picture.value
    bundle = ring_explorer()._repr_mimebundle_()
    assert "data:image/svg" in bundle["text/html"] and bundle["text/plain"].startswith("Ring all-reduce")


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
    lonely = simulate(25, backward_ms=[3], layer_mb=[0])
    assert lonely.total == pytest.approx(3.2) and lonely.computed == 3


def test_bucket_model_keeps_its_rules():
    for bucket, latency, speed in itertools.product((0.5, 4, 10, 25, 500), (0, 0.2, 8), (50, 1000)):
        step = simulate(bucket, [1, 2, 3, 4], [8, 4, 1, 0.5], latency, speed)
        assert [layer for layer, _, _ in step.backward] == [3, 2, 1, 0] and step.computed == 10
        assert sum(megabytes for megabytes, *_ in step.buckets) == 13.5
        for (_, ready, begin, end), (_, _, following, _) in itertools.pairwise([*step.buckets, (0, 0, 1e9, 0)]):
            assert ready <= begin < end <= following
        assert step.total >= step.computed and 0 <= step.overlap <= 1


def test_buckets_are_filled_as_torch_fills_them():
    import torch
    import torch.distributed as dist

    draw = random.Random(0)
    for limit, first in ((1, None), (3, None), (25, 1), (4, 0.5)):
        sizes = [draw.choice((1, 2**10, 2**16, 2**18, 2**20)) for _ in range(30)]
        tensors = [torch.empty(size) for size in sizes]
        limits = [int(mb * 2**20) for mb in ([limit] if first is None else [first, limit])]
        real, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * 30)
        assert fill_buckets([4 * size / 2**20 for size in sizes], limit, first) == [list(bucket) for bucket in real]


@pytest.mark.parametrize("arguments, error, said", [
    ({"bucket_mb": 0}, ValueError, "bucket_mb must be a positive number, not 0"),
    ({"bucket_mb": "25"}, TypeError, "bucket_mb must be a number, not '25'"),
    ({"latency_ms": -1}, ValueError, "latency_ms must be a positive number, not -1"),
    ({"mb_per_s": 0}, ValueError, "mb_per_s"),
    ({"mb_per_s": float("nan")}, ValueError, "mb_per_s"),
    ({"backward_ms": [1, 2], "layer_mb": [1]}, ValueError, "lists 2 layers, but layer_mb lists 1"),
    ({"backward_ms": []}, ValueError, "at least one layer"),
    ({"layers": 0}, ValueError, "at least one layer"),
    ({"layers": 2.0}, TypeError, "layers must be a whole number"),
    ({"backward_ms": 0, "layer_mb": 0}, ValueError, "nothing to see"),
    ({"first_mb": True}, TypeError, "first_mb must be a number"),
])
def test_bucket_model_refuses(arguments, error, said):
    with pytest.raises(error, match=said):
        simulate(**{"bucket_mb": 25, **arguments})


def test_bucket_pictures():
    for size, layers in itertools.product((0.25, 4, 1000), (1, 20, 60)):
        shown = legible(buckets.draw(size, layers=layers, measured_ms={4: 80.0}))
        assert any("hidden behind backward" in text for text in shown)
    assert "● measured" not in buckets.draw(25)


def test_bucket_explorer_redraws_quickly():
    explorer, times = bucket_explorer(bucket_mb=12), []
    seen = {explorer.picture.value}
    for name, value in (("bucket_mb", 1), ("bucket_mb", 1000), ("latency_ms", 10.0), ("mb_per_s", 100.0)):
        began = time.perf_counter()
        explorer.controls[name].value = value
        times.append(time.perf_counter() - began)
        seen.add(explorer.picture.value)
    assert len(seen) == 5 and statistics.median(times) < 0.1
    bundle = explorer._repr_mimebundle_()
    assert "data:image/svg" in bundle["text/html"] and bundle["text/plain"].startswith("Bucket explorer")
