"""What a run did, counted: each instrument against what is known beforehand."""

import pytest
import torch

from helpers import launch
from helpers.instruments.calls import counted_calls
from helpers.instruments.memory import held_bytes

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_collectives_are_counted_whoever_asks_for_them():
    def work():
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        from helpers.instruments.collectives import counted_traffic
        from helpers.instruments.waits import form_group

        form_group()
        other = 1 - dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
        with counted_traffic() as traffic:
            dist.all_reduce(torch.ones(10))
            functional.all_reduce(torch.ones(7, dtype=torch.bfloat16), "sum", dist.group.WORLD) + 0
            model(torch.ones(2, 5)).sum().backward()
            dist.barrier()
            dist.all_gather_object([None, None], {"a": 1})
            messages = [dist.isend(torch.ones(4), other), dist.irecv(torch.ones(4), other)]
            for message in messages:
                message.wait()
            pair = [dist.P2POp(way, torch.ones(2), other) for way in (dist.isend, dist.irecv)]
            for message in dist.batch_isend_irecv(pair):
                message.wait()
            dist.all_reduce(torch.ones(1), async_op=True)
        dist.all_reduce(torch.ones(99))  # outside
        return traffic

    for traffic in launch(work, nprocs=2, show=False).results:
        assert [one.bytes for one in traffic.collectives if one.name == "all_reduce"] == [40, 14, 120, 4]
        assert traffic.count("barrier") == 1 and traffic.count("all_gather", "all_gather_into_tensor") == 2
        assert traffic.count() == 6 and traffic.bytes("all_reduce") == 178
        assert {one.group for one in traffic.collectives} == {"default_pg"}
        assert traffic.sent == [16, 8] and traffic.received == 2 and traffic.unwaited == 1


def test_held_bytes_follow_what_is_alive():
    before = torch.ones(1000)
    with held_bytes() as held:
        first = torch.ones(1000)
        second = first + 1
        assert (held.now, held.peak) == (8000, 8000)
        view = second.view(10, 100)
        del second
        assert held.now == 8000, "a view keeps its memory"
        del view
        before += first
        assert (held.now, held.peak) == (4000, 8000), "what was there before is not counted"
    del first
    assert held.now == 0


def test_held_bytes_see_the_activations_of_a_step():
    pairs = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(4)]
    layers = torch.nn.Sequential(*pairs)
    batch = torch.ones(32, 64)
    with held_bytes() as held:
        output = layers(batch).sum()
    assert held.now == 4 * batch.nbytes + 4, "the outputs of Tanh, which its backward needs, and the sum"
    del output
    assert held.now == 0


def test_calls_are_counted_and_still_made():
    class Box:
        def put(self, what):
            return what

    with counted_calls(Box, "put") as calls, counted_calls(torch, "stack", "cat") as torch_calls:
        box = Box()
        assert box.put(3) == 3 and torch.stack([torch.ones(1)]).shape == (1, 1)
    assert box.put(4) == 4
    assert calls == {"put": [((box, 3), {})]}
    assert len(torch_calls["stack"]) == 1 and torch_calls["cat"] == []
    with pytest.raises(AttributeError), counted_calls(Box, "take"):
        pass


def test_what_is_wrong_with_a_gradient_is_named():
    world_size = 3

    def work():
        import torch.distributed as dist

        from helpers.instruments.gradients import compare_gradients
        from helpers.instruments.waits import form_group

        form_group()
        rank = dist.get_rank()
        parts = torch.randn(world_size, 3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        mine, whole = parts[rank], parts.sum(0)
        gradients = {"right": whole, "summed": whole * world_size, "averaged": whole / world_size,
                     "scaled": whole * 0.3, "left": mine, "batch": mine * world_size,
                     "clipped": whole * (rank + 2), "other": whole + mine,
                     "cut": whole.chunk(world_size)[rank]}
        return compare_gradients(gradients, dict.fromkeys(gradients, whole), shards={"cut": 0})

    first, *others = launch(work, nprocs=world_size, show=False).results
    assert all(rows == first for rows in others)
    meaning = {row.name: row.looks_like for row in first}
    assert meaning["right"] == meaning["cut"] == "right"
    assert "too large" in meaning["summed"] and "too small" in meaning["averaged"]
    assert meaning["scaled"] == "scaled"
    assert "added up" in meaning["left"] and "not averaged" in meaning["batch"]
    assert "another length" in meaning["clipped"] and meaning["other"] == "another gradient"
