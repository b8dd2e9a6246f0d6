"""Sharding: the calculator against what real ranks hold, the instruments against what is known, the explorer."""

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers import launch
from helpers.instruments import costs
from helpers.instruments.memory import memory_by_kind
from helpers.models import GPT
from lessons.sharding import memory_explorer as memory

pytestmark = pytest.mark.usefixtures("nothing_left")
SHAPE = {"width": 96, "layers": 2, "heads": 6, "vocabulary": 300, "length": 16}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_calculator_says_what_is_counted(checkpointing):
    model, batch = GPT(**SHAPE, checkpointing=checkpointing), 3
    total = sum(parameter.numel() for parameter in model.parameters())
    assert costs.parameters(SHAPE["width"], SHAPE["layers"], SHAPE["vocabulary"], SHAPE["length"]) == total
    tokens = torch.randint(SHAPE["vocabulary"], (batch, SHAPE["length"] + 1))
    with memory_by_kind(model, torch.optim.SGD(model.parameters())) as moments:
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        forward = len(moments)  # the next moment is the first of backward
        loss.backward()
    kept = costs.activations(**SHAPE, batch=batch, checkpointing=checkpointing)
    block = 4 * batch * SHAPE["length"] * (16 * SHAPE["width"] + 4 + SHAPE["heads"])  # whole only in backward
    assert moments[forward].activations == pytest.approx(kept - block * checkpointing, rel=0.1)
    if not checkpointing:
        scores = 4 * batch * SHAPE["length"] * SHAPE["vocabulary"]
        assert max(one.activations for one in moments) == pytest.approx(kept + 2 * scores, rel=0.05)


def shares(stage):
    """What a rank holds after a step of FSDP2, or of DDP."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = GPT(**SHAPE)
    total = sum(parameter.numel() for parameter in model.parameters())
    if stage == "ZeRO-3":
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(2, SHAPE["length"], dtype=torch.long)).square().mean().backward()
    with memory_by_kind(model, optimizer) as moments:
        optimizer.step()
    dist.barrier()
    return moments[-1], total


@pytest.mark.parametrize("stage", ["DDP", "ZeRO-3"])
def test_calculator_says_what_a_rank_holds(stage):
    for held, total in launch(shares, 2, args=(stage,), show=False, timeout=60).results:
        for kind, size in costs.states(total, 2, stage).items():
            assert getattr(held, kind) == pytest.approx(size, rel=0.01), kind


def test_states_of_zero_are_cut_in_order_and_rounded_up():
    held = {stage: tuple(costs.states(1003, 4, stage).values()) for stage in costs.STAGES}
    assert held == {"DDP": (4012, 4012, 8024), "ZeRO-1": (4012, 4012, 2008), "ZeRO-2": (4012, 1004, 2008),
                    "ZeRO-3": (1004, 1004, 2008)}


def sent():
    import torch.distributed as dist

    from helpers.instruments.wire import wire_bytes

    dist.init_process_group("gloo")
    x, found = torch.ones(2**18), []
    for call in (lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0), lambda: None):
        dist.barrier()
        before = wire_bytes()
        call()
        dist.barrier()
        found.append(round((wire_bytes() - before) / x.nbytes, 2))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of each connection")
def test_wire_bytes_are_those_of_the_algorithm():
    reduced, broadcast, nothing = zip(*launch(sent, 4, show=False, timeout=60).results, strict=True)
    assert set(reduced) == {1.5}, "2(N - 1)/N of the tensor, in every rank"
    assert sum(broadcast) == 3 and set(nothing) == {0}, "three ranks have received it, whoever sent it on"


def test_explorer_shows_the_models_numbers():
    explorer = memory.memory_explorer()
    explorer.controls["ranks"].value = 64
    controls = {name: control.value for name, control in explorer.controls.items() if name != "moment"}
    figure, wanted = explorer.figure(), memory.held(**controls)
    for row, stage in enumerate(costs.STAGES):
        widths = [bars.patches[row].get_width() for bars in figure.axes[0].containers]
        assert sum(widths) == pytest.approx(sum(wanted[stage].values()) / 2**30)
    assert memory.sent(controls["model"], 64)["ZeRO-3"] == 1.5 * memory.sent(controls["model"], 64)["DDP"]
    assert f"ZeRO-3 {sum(wanted['ZeRO-3'].values()) / 2**30:,.1f} (sends 18.0)" in figure.get_label()
