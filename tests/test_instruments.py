"""What a run did, counted: each instrument against what is known beforehand."""

import contextlib
import os
import socket

import numpy
import pytest
import torch

from helpers import launch
from helpers.instruments.calls import counted_calls
from helpers.instruments.memory import held_bytes, memory_by_kind
from helpers.instruments.waits import IN_VAIN
from helpers.instruments.wire import wire_bytes

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
        with counted_traffic() as coalesced, dist._coalescing_manager(async_ops=True):
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the second: before torch 2.13
            gather(torch.zeros(2), torch.ones(1))
        return traffic, coalesced.unwaited

    for traffic, unwaited_coalesced in launch(work, nprocs=2, show=False).results:
        assert [one.bytes for one in traffic.collectives if one.name == "all_reduce"] == [40, 14, 120, 4]
        assert traffic.count("barrier") == 1 and traffic.count("all_gather", "all_gather_into_tensor") == 2
        assert traffic.count() == 6 and traffic.bytes("all_reduce") == 178
        assert {one.group for one in traffic.collectives} == {"default_pg"}
        assert traffic.sent == [16, 8] and traffic.received == 2
        assert traffic.unwaited == unwaited_coalesced == 1


def test_more_collectives_than_the_recorder_keeps_are_counted_or_missed_in_words():
    def work(size):
        import os

        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        from helpers.instruments.collectives import counted_traffic

        os.environ["TORCH_FR_BUFFER_SIZE"] = size
        dist.init_process_group("gloo")
        counts, said = [], []
        for times in (0, 7, 25):
            with contextlib.suppress(RuntimeError), counted_traffic() as traffic:
                for _ in range(times):
                    dist.all_reduce(torch.ones(1))
            counts.append((traffic.count(), traffic.bytes()))
        try:
            with counted_traffic():
                dist.all_reduce(torch.ones(1))
                for _ in range(12):  # which Python does not see
                    functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD) + 0
        except RuntimeError as error:
            said.append(str(error))
        return counts, said

    for counts, (said,) in launch(work, nprocs=2, args=("10",), show=False).results:
        assert counts == [(0, 0), (7, 28), (25, 100)]
        assert said.startswith("3 collectives after number 0 were not counted") and "to more than 13" in said
    for _, (said,) in launch(work, nprocs=2, args=("0",), show=False).results:
        assert "torch's flight recorder is off" in said


def test_traffic_of_groups_of_sparse_and_of_meta_tensors():
    def work():
        import math

        import torch.distributed as dist

        from helpers.instruments.collectives import counted_traffic
        from helpers.instruments.waits import form_group

        form_group()
        group = [dist.new_group([0, 1]), dist.new_group([0, 1])][1]
        with counted_traffic() as traffic:
            dist.all_reduce(torch.ones(3), group=group)
            dist.monitored_barrier(group)
            dist.all_reduce(torch.ones(5, device="meta"))
            dist.all_reduce(torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (100,)))
        return [(one.name, one.group, math.isnan(one.bytes)) for one in traffic.collectives], traffic.unwaited

    for collectives, unwaited in launch(work, nprocs=2, show=False).results:
        assert unwaited == 0
        assert collectives == [("all_reduce", "2", False), ("sparse_all_reduce", "default_pg", True),
                               ("barrier", "2", False)]


def test_waiting_in_vain_is_told_by_gloos_words_alone():
    for words in ("[…/unbound_buffer.cc:78] Timed out waiting 1500ms for recv operation to complete",
                  "Application timeout caused pair closure", "[…/pair.cc:561] Connection closed by peer [127.0.0.1]:1",
                  "Rank 1 successfully reached monitoredBarrier, but received errors while waiting"):
        assert IN_VAIN.search(words)
    assert not IN_VAIN.search("the reader's timeout of 3 s is over") and not IN_VAIN.search("Timeout")


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


def test_held_bytes_of_tensors_of_all_kinds():
    embedding, array = torch.nn.Embedding(100, 4, sparse=True), numpy.ones(1000)
    made = {"listed": lambda: torch.tensor([1.0, 2.0]), "numpy's": lambda: torch.from_numpy(array),
            "meta": lambda: torch.ones(1000, device="meta"), "shrunk": lambda: resized(torch.ones(1000), 0),
            "grown": lambda: resized(torch.ones(1), 400),
            "sparse": lambda: torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (1000,), check_invariants=False)}

    def resized(tensor, size):
        tensor.untyped_storage().resize_(size)
        return tensor

    counted = {}
    for name, make in made.items():
        with held_bytes() as held:
            kept = make()
        counted[name] = held.now, held.peak
        del kept
    assert counted == {"listed": (8, 8), "numpy's": (0, 0), "meta": (0, 0), "shrunk": (0, 4000), "grown": (400, 400),
                       "sparse": (24, 24)}
    with memory_by_kind(embedding, torch.optim.SGD(embedding.parameters())) as moments:
        embedding(torch.arange(5)).sum().backward()
    assert moments[-1].gradients == 5 * 8 + 5 * 16, "five indices, and five rows"


def test_memory_by_kind_finds_states_in_lists_and_no_bytes_on_meta():
    layer, on_meta = torch.nn.Linear(10, 10), torch.nn.Linear(10, 10, device="meta")
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(2, 10)).square().sum()
        loss.backward()
        return loss

    with memory_by_kind(layer, optimizer) as moments:
        optimizer.step(closure)
    assert moments[-1].optimizer > 440 and moments[-1].activations < 440
    with memory_by_kind(on_meta, torch.optim.SGD(on_meta.parameters())) as moments:
        on_meta(torch.ones(2, 10, device="meta"))
    assert not any(moments[-1])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux alone counts the bytes of each connection")
def test_wire_bytes_are_those_of_tcp_each_connection_once():
    before = wire_bytes()
    with (contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server,
          contextlib.closing(socket.create_connection(server.getsockname())) as one,
          contextlib.closing(one.dup()), contextlib.closing(server.accept()[0]) as other):
        left, right = socket.socketpair()
        left.send(bytes(100))
        one.send(bytes(1000))
        other.recv(1000)
        assert wire_bytes() - before == 1000
        left.close(), right.close()


def test_calls_are_counted_and_still_made():
    class Box:
        def put(self, what):
            return what

        @staticmethod
        def lid(what):
            return what

        @classmethod
        def named(cls, what):
            return cls, what

    with (counted_calls(Box, "put", "lid", "named") as calls, counted_calls(torch, "stack", "cat") as torch_calls):
        box = Box()
        assert box.put(3) == 3 and torch.stack([torch.ones(1)]).shape == (1, 1)
        assert box.lid(5) == Box.lid(5) == 5 and box.named(6) == Box.named(6) == (Box, 6)
    assert box.put(4) == box.lid(4) == 4
    assert calls == {"put": [((box, 3), {})], "lid": 2 * [((5,), {})], "named": 2 * [((Box, 6), {})]}
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


def test_right_gradients_are_right_however_small_and_whatever_wraps_the_model():
    def work():
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from helpers.instruments.gradients import compare_gradients
        from helpers.instruments.waits import form_group

        class Adapted(torch.nn.Module):
            """Attention, whose bias of the keys has the gradient 0, and LoRA at its start: that of `a` is 0."""

            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.q, self.k, self.v = (torch.nn.Linear(8, 8).double() for _ in range(3))
                self.a, self.b = torch.nn.Linear(8, 2).double(), torch.nn.Linear(2, 8).double()
                torch.nn.init.zeros_(self.b.weight)
                self.v.requires_grad_(False)

            def forward(self, x):
                x = x + self.b(self.a(x))
                return torch.nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))

        def gradients(wrap, x):
            model = wrap(Adapted())
            model(x).square().mean().backward()
            return {name: parameter.grad for name, parameter in model.named_parameters()}

        form_group()
        torch.manual_seed(1)
        x = torch.randn(4, 5, 8, dtype=torch.float64)
        reference = gradients(lambda model: model, x)

        ddp = gradients(DistributedDataParallel, x.chunk(2)[dist.get_rank()])
        compiled = {f"_orig_mod.{name}": gradient for name, gradient in ddp.items()}  # as `torch.compile` names
        tables = [compare_gradients(mine, reference) for mine in (ddp, compiled)]
        tenth = compare_gradients({"large": x, "small": 1e-10 * x}, {"large": x, "small": 2e-10 * x})
        return tables, [row.looks_like for row in tenth]

    for tables, (large, small) in launch(work, nprocs=2, show=False).results:
        for table in tables:
            rows = {row.name: row for row in table}
            assert list(rows)[:3] == ["q.weight", "q.bias", "k.weight"], "by the names of the model"
            frozen = [rows.pop(name).looks_like for name in ("v.weight", "v.bias")]
            assert frozen == ["no gradient, as in one process"] * 2
            assert {row.looks_like for row in rows.values()} == {"right"}
            zero = [name for name, row in rows.items() if not row.factors]
            assert zero == ["k.bias", "a.weight", "a.bias"] and rows["k.bias"].rest == 0
        assert large == "right" and "too small" in small, "small is not zero"


def test_gradients_that_cannot_be_compared_are_listed():
    def work():
        import torch.distributed as dist

        from helpers.instruments.gradients import compare_gradients
        from helpers.instruments.waits import form_group

        form_group()
        rank, x = dist.get_rank(), torch.arange(8.0, dtype=torch.float64).view(4, 2)
        rows, expert = torch.tensor([[0, 2]]), torch.stack([x, 0 * x])
        mine = {"mine": x, "shape": x[:2], "nan": x / 0, "none": x if rank else None,
                "zero": x, "sparse": torch.sparse_coo_tensor(rows, torch.ones(2, 2).double(), (4, 2)),
                "unused expert": expert[rank:rank + 1], "three pieces": x[:3].chunk(2)[rank],
                f"stage {rank}": x}
        whole = {"his": x, "shape": x, "nan": x, "none": x, "zero": 0 * x,
                 "sparse": torch.ones(4, 2).double() * torch.tensor([[1], [0], [1], [0]]),
                 "unused expert": expert, "three pieces": x[:3], "stage 0": x, "stage 1": x}
        return compare_gradients(mine, whole, shards={"unused expert": 0, "three pieces": 0})

    first, second = launch(work, nprocs=2, show=False).results
    assert list(map(str, first)) == list(map(str, second))
    meaning = {row.name: row.looks_like for row in first}
    assert [name for name, words in meaning.items() if words == "right"] == [
        "sparse", "unused expert", "three pieces", "stage 0", "stage 1"]
    for name, words in {"mine": "one process has no such name", "his": "no rank has such a name",
                        "shape": "of shape (2, 2) in rank 0, not (4, 2)",
                        "nan": "inf or nan in rank 0", "none": "no gradient in rank 0, and one process has one",
                        "zero": "not zero, as it is in one process"}.items():
        assert words in meaning[name]
    assert "nan" not in " ".join(str(row) for row in first if row.name != "nan")


def test_frozen_weights_are_parameters_that_nobody_has_gathered():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 4, bias=False))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with memory_by_kind(model, optimizer) as moments:
        model(torch.ones(2, 64))
    assert (moments[-1].parameters, moments[-1].gathered) == (4 * (64 * 64 + 64 * 4), 0)
