"""DistributedDataParallel: its laboratory of collectives, who gives what to whom; what its sentences say of torch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.run import get_args_parser
from torch.nn.parallel import DistributedDataParallel

from helpers.launcher import launch
from helpers.widgets.shapes import RANKS
from lessons.distributed_data_parallel.collectives_explorer import SUM, collectives_explorer, held_after, scene
from lessons.distributed_data_parallel.recorded import COLLECTIVES
from tests.conftest import cells_of, shapes_of

BEFORE = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
SUMS = [111, 222, 333]
AFTER = {
    "broadcast": [[[1, 2, 3]]] * 3,
    "all_reduce": [[SUMS]] * 3,
    "reduce": [[SUMS], [[110, 220, 330]], [[100, 200, 300]]],
    "gather": [BEFORE, None, None],
    "all_gather": [BEFORE] * 3,
    "scatter": [[[1]], [[2]], [[3]]],
    "reduce_scatter": [[[111]], [[222]], [[333]]],
    "all_to_all": [[[1], [10], [100]], [[2], [20], [200]], [[3], [30], [300]]],
    "send_recv": [[[100, 200, 300]], [[1, 2, 3]], [[10, 20, 30]]],
    "sum_in_pair": [[[11, 22, 33]], [[11, 22, 33]], [[100, 200, 300]]],
    "barrier": BEFORE,
}


def shapes(name, frame=-1):
    return shapes_of(scene(name, BEFORE, AFTER[name])["frames"][frame])


@pytest.mark.parametrize("name", AFTER)
def test_in_the_end_every_rank_holds_what_it_sent_home(name):
    last = shapes(name)
    for one in held_after(BEFORE, AFTER[name]):
        (cell,) = [shape for key, shape in last.items() if key.startswith(one.name) and "text" in shape]
        assert cell["text"] == str(one.number)
        assert cell["fill"] == (SUM if len(one.sources) > 1 else RANKS[one.sources[0][0]])
        panel = last[f"panel {one.rank}"]
        assert panel["x"] < cell["x"] and cell["x"] + cell["w"] < panel["x"] + panel["w"]
    assert sum("text" in shape and "/" in key for key, shape in last.items()) == len(held_after(BEFORE, AFTER[name]))
    assert [key for key in last if key.startswith("nothing")] == [
        f"nothing {rank}" for rank, held in enumerate(AFTER[name]) if held is None]


GIVES = {"broadcast": {"00", "01", "02"}, "scatter": {"00", "01", "02"}, "gather": {"00", "10", "20"},
         "reduce": {"00", "10", "20", "11", "21", "22"}, "send_recv": {"01", "12", "20"},
         "sum_in_pair": {"00", "01", "10", "11", "22"}, "barrier": {"00", "11", "22"}}


@pytest.mark.parametrize("name", AFTER)
def test_lines_say_who_gives_to_whom(name):
    lines = {key: shape for key, shape in shapes(name).items() if key.startswith("line")}
    everybody = {f"{sender}{receiver}" for sender in range(3) for receiver in range(3)}
    assert {key[5] + key[7] for key in lines} == GIVES.get(name, everybody)
    assert all(("dash" in shape) == (key[5] == key[7]) for key, shape in lines.items())


def test_numbers_set_out_from_the_rank_that_held_them_and_are_added_where_they_meet():
    arrived, summed = shapes("reduce_scatter", 1), shapes("reduce_scatter", 2)
    for rank, total in enumerate(SUMS):
        addends = [arrived[f"{rank}/0/0 of {sender}"] for sender in range(3)]
        assert sum(int(addend["text"]) for addend in addends) == total
        assert [addend["from"] for addend in addends] == [
            {key: arrived[f"{sender}:{rank}"][key] for key in "xy"} for sender in range(3)]
        assert len({addend["y"] for addend in addends}) == 3
        assert summed[f"{rank}/0/0 sum"]["text"] == str(total)
        assert all("text" not in summed[f"{rank}/0/0 of {sender}"] for sender in range(3))
    assert "1 + 10 + 100 = 111" in scene("reduce_scatter", BEFORE, AFTER["reduce_scatter"])["frames"][-1]["note"]


def test_at_a_barrier_those_that_have_come_wait():
    for come in range(3):
        tokens = [shape["text"] for key, shape in shapes("barrier", 1 + come).items() if key.startswith("token")]
        assert tokens.count("waits") == come and tokens.count("computes") == 3 - come


def test_numbers_of_unknown_origin_and_long_tensors_are_shown():
    before = [[0.1, 0.2], [0.3, 0.4]]
    held = held_after(before, [[0.1 + 0.3, 7], [0.1, 0.2, 0.3, 0.4]])
    assert [one.sources for one in held[:2]] == [[(1, 1)], []]  # 0.4 was there before; nobody knows 7
    assert [(one.row, one.column, one.sources) for one in held[2:]] == [
        (0, 0, [(0, 0)]), (0, 1, [(0, 1)]), (1, 0, [(1, 0)]), (1, 1, [(1, 1)])]
    last = scene("strange", before, [[7, 0.1], None])["frames"][-1]["shapes"]
    assert [shape["tip"] for shape in last if shape["id"] == "0/0/0 sum"] == ["nobody held this before"]


def test_presets_and_single_collectives():
    stage = collectives_explorer({name: (BEFORE, after) for name, after in AFTER.items()}, "reduce_scatter")
    assert len(stage.story["presets"]) == 4 and len(stage.story["controls"]) == 1
    for preset in stage.story["presets"]:
        name = list(AFTER)[preset["setting"][0]]
        frames = stage.packed(name=name)["frames"]
        assert frames[0]["title"] == f"{name}: before" and frames[-1]["title"] == f"{name}: after"
    one = collectives_explorer({"broadcast": (BEFORE, AFTER["broadcast"])}, "broadcast")
    assert one.story["presets"] == one.story["controls"] == []


def test_defaults_that_the_lesson_names():
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == 2**20 and "25 MiB" in DistributedDataParallel.__doc__
    assert "ddp(input).backward()  # no synchronization" in DistributedDataParallel.no_sync.__doc__
    fp16, bf16 = torch.finfo(torch.float16), torch.finfo(torch.bfloat16)
    assert (fp16.eps / 2, fp16.max, bf16.eps / 2) == (1 / 2048, 65504, 1 / 256) and 6e-5 < fp16.tiny < 6.2e-5
    assert set(AFTER) - set(COLLECTIVES) == {"send_recv", "sum_in_pair"}


class SecondLayerInRank0(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.second(self.first(x)) if dist.get_rank() == 0 else self.first(x)


def two_steps(find_unused):
    """The gradient's sum in this rank, or the name of what stops it, of the layer that only rank 0 uses."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(SecondLayerInRank0(), find_unused_parameters=find_unused)
    try:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
    except RuntimeError as error:
        return type(error).__name__
    return model.module.second.bias.grad.tolist()


def test_ddp_counts_a_missing_gradient_as_zeros_only_if_it_is_told_to_look_for_it():
    assert launch(two_steps, nprocs=2, args=(False,), show=False).results[1] == "RuntimeError"
    assert launch(two_steps, nprocs=2, args=(True,), show=False).results[1] == [1, 1]


@pytest.mark.parametrize(("version", "port"), [("2.11", 29500), ("2.14", None)])
def test_torchrun_takes_a_free_port_since_some_version(version, port):
    if not torch.__version__.startswith(f"{version}."):
        pytest.skip(f"the lesson speaks of torch {version}")
    assert get_args_parser().parse_args(["a_script.py"]).master_port == port


def addresses(as_view):
    """Of each of two steps, whose gradients are thrown away: where its only bucket lies, and the gradient."""
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False), gradient_as_bucket_view=as_view)
    buckets, gradients = [], []

    def hook(state, bucket):
        buckets.append(bucket.buffer().data_ptr())
        return default_hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    others = []
    for _ in range(3):
        model(torch.ones(1, 64)).sum().backward()
        gradients.append(model.module.weight.grad.data_ptr())
        model.zero_grad()
        others.append(torch.ones(64, 64))  # which would take the memory of a bucket that had been freed
    return buckets[1:], gradients[1:]  # after the first step, DDP makes the bucket anew


def addresses_in_a_rank():
    dist.init_process_group("gloo")
    by_way = addresses(False), addresses(True)
    dist.barrier()
    return by_way


def test_a_bucket_outlives_zero_grad_and_a_view_is_a_part_of_it():
    (own, gradients), (viewed, views) = launch(addresses_in_a_rank, nprocs=2, show=False).results[0]
    assert len(set(own)) == len(set(viewed)) == 1
    assert views == viewed and not set(own) & set(gradients)


def test_stored_differences_are_rounding_beside_what_training_moves():
    cells = cells_of("05_distributed_data_parallel").values()
    (cell,) = [cell for cell in cells if cell.source.startswith('bet("three_ways_apart")')]
    rows = "".join(output.get("text", "") for output in cell.outputs).splitlines()[1:]
    *same, untrained = [float(row.split()[-1]) for row in rows]
    assert len(same) == 3 and max(same) < 1e-12 and untrained > 1e-2


def averaged_gradients():
    """What every rank's gradient becomes, by (hook, gradient); without a hook, DDP's own average."""
    dist.init_process_group("gloo")
    averages = {}
    for hook, gradient in ((None, 3e38), ("allreduce_hook", 3e38), ("fp16_compress_hook", 1e5),
                           ("fp16_compress_hook", 1e-7), ("fp16_compress_hook", 0.37)):
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        if hook:
            model.register_comm_hook(None, getattr(default_hooks, hook))
        (gradient * model(torch.ones(1, 1))).sum().backward()
        averages[hook, gradient] = model.module.weight.grad.item()
    dist.barrier()
    return averages


def test_ddp_and_its_hooks_divide_before_they_add_up():
    averages = launch(averaged_gradients, nprocs=8, show=False).results[0]
    assert averages[None, 3e38] == pytest.approx(3e38) == averages["allreduce_hook", 3e38]  # the sum of two is inf
    assert averages["fp16_compress_hook", 1e5] == float("inf")  # rounded before it is divided
    assert averages["fp16_compress_hook", 1e-7] == 0
    assert averages["fp16_compress_hook", 0.37] == pytest.approx(0.37, rel=3 / 2048)
