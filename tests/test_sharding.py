"""Sharding: the calculator against what real ranks hold, the explorer, the script that trains with FSDP2."""

import subprocess
import sys
import time
from itertools import pairwise

import psutil
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from helpers import RankError, launch
from helpers.instruments import costs
from helpers.instruments.memory import held_bytes, memory_by_kind
from helpers.models import GPT
from lessons.sharding import memory_explorer as memory
from lessons.sharding import train_fsdp

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
    # A block's are whole only in backward.
    block = 4 * batch * SHAPE["length"] * (16 * SHAPE["width"] + 4 + SHAPE["heads"])
    assert moments[forward].activations == pytest.approx(kept - block * checkpointing, rel=0.1)
    if not checkpointing:
        scores = 4 * batch * SHAPE["length"] * SHAPE["vocabulary"]
        assert max(one.activations for one in moments) == pytest.approx(kept + 2 * scores, rel=0.05)


def shares(ways):
    """What a rank holds right after backward, and between two steps: bytes of all that operators have made."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    found = {}
    for way in ways:
        with held_bytes() as held:
            model = GPT(**SHAPE)
            total = sum(parameter.numel() for parameter in model.parameters())
            if way == "ZeRO-3":
                fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
                trained = model
            else:
                trained = DDP(model, gradient_as_bucket_view=way == "views")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            for _ in range(2):
                trained(torch.ones(2, SHAPE["length"], dtype=torch.long)).square().mean().backward()
                after_backward = held.now
                optimizer.step()
                optimizer.zero_grad()
            found[way] = after_backward, held.now, total
        dist.barrier()
    return found


def test_calculator_says_what_a_rank_holds():
    ways = "ZeRO-3", "DDP", "views"
    for rank in launch(shares, 2, args=(ways,), show=False, timeout=60).results:
        for way, (after_backward, between, total) in rank.items():
            states = costs.states(total, 2, "ZeRO-3" if way == "ZeRO-3" else "DDP")
            stays = states["parameters"] + states["optimizer"]
            gradients = states["gradients"]
            bucket = {"ZeRO-3": 0, "DDP": gradients, "views": 0}[way]
            in_the_bucket = gradients if way == "views" else bucket
            assert after_backward == pytest.approx(stays + gradients + bucket, rel=0.01), way
            assert between == pytest.approx(stays + in_the_bucket, rel=0.01), way


def test_calculator_counts_ddps_bucket():
    held = memory.held(next(iter(memory.MODELS)), ranks=4, batch=1, checkpointing=False)
    assert held["DDP"]["bucket"] == held["DDP"]["gradients"] > 0 and "bucket" not in held["ZeRO-1"]


def test_states_of_zero_are_cut_in_order_and_rounded_up():
    held = {stage: tuple(costs.states(1003, 4, stage).values()) for stage in costs.STAGES}
    assert held == {"DDP": (4012, 4012, 8024), "ZeRO-1": (4012, 4012, 2008), "ZeRO-2": (4012, 1004, 2008),
                    "ZeRO-3": (1004, 1004, 2008)}


def bars(frame, row, kinds):
    """The widths of a row's boxes of these kinds, which must stand side by side, in GiB."""
    shapes = {shape["id"]: shape for shape in frame["shapes"]}
    boxes = [shapes[f"{kind} {row}"] for kind in kinds]
    for one, following in pairwise(boxes):
        assert one["x"] + one["w"] == pytest.approx(following["x"])
    gpu = shapes[f"gpu {row}"]
    return [memory.GPU_GIB * one["w"] / gpu["w"] for one in boxes]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("model", [list(memory.MODELS)[1], list(memory.MODELS)[3]])
def test_explorer_shows_the_models_numbers(model, checkpointing):
    values = {"model": model, "ranks": 64, "batch": 2, "checkpointing": checkpointing}
    frames, wanted = memory.scene(**values)["frames"], memory.held(**values)
    for row, stage in enumerate(costs.STAGES):
        kinds = [kind for kind in memory.KINDS if kind in wanted[stage]]
        most = [wanted[stage][kind] / 2**30 for kind in kinds]
        assert bars(frames[-1], row, kinds) == pytest.approx(most)
        stay = [size if kind in ("parameters", "optimizer", "bucket") else 0
                for kind, size in zip(kinds, most, strict=True)]
        assert bars(frames[0], row, kinds) == pytest.approx(stay), "between steps"
        half = wanted[stage]["gradients"] / 2 / 2**30
        assert bars(frames[3], row, ["gradients"]) == pytest.approx([half]), "half of the gradients are there"
        away = [bars(frame, row, ["sent"])[0] for frame in frames]
        assert away == sorted(away) and away[0] == 0
        assert away[-1] == pytest.approx(memory.sent(model, 64)[stage] / 2**30)
        texts = {shape["id"]: shape.get("text") for shape in frames[-1]["shapes"]}
        assert texts[f"total {row}"] == f"{sum(most):,.1f} GiB"
        assert (f"too much {row}" in texts) == (sum(most) > 80)
    assert memory.sent(model, 64)["ZeRO-3"] == 1.5 * memory.sent(model, 64)["DDP"]


def test_presets_of_the_explorer_show_what_they_ask_for():
    one, many, less = (memory.scene(**{"model": list(memory.MODELS)[1], "ranks": 8, "batch": 4, "checkpointing": False,
                                       **changed})["frames"][-1]
                       for changed in ({"ranks": 1}, {"ranks": 256}, {"checkpointing": True}))
    for kinds in ["parameters"], ["gradients", "optimizer"]:
        assert bars(one, 0, kinds) == pytest.approx(bars(one, 2, kinds)), "with one rank there is nothing to share"
    assert max(bars(many, 3, ["gathered", "gradients", "optimizer"])[1:]) < 0.1 < bars(many, 3, ["activations"])[0]
    assert bars(less, 0, ["activations"])[0] < 0.5 * bars(many, 0, ["activations"])[0]
    stage = memory.memory_explorer()
    assert [preset["frame"] for preset in stage.story["presets"]] == [0, -1, -1, -1]
    assert len(stage.story["scenes"]) == 16, "each model, number of ranks, batch; with and without checkpointing"


def states_of(checkpoint):
    """All that a checkpoint of `train_fsdp.py` holds, in one list."""
    dcp_to_torch_save(checkpoint, checkpoint / "whole.pt")
    return tree_leaves(torch.load(checkpoint / "whole.pt", weights_only=True))


def equal_bits(states, other):
    tensors = [leaf for leaf in states if isinstance(leaf, torch.Tensor)]
    assert len(tensors) == 4 * len(list(GPT().parameters()))  # weights, two means, counters of steps
    return all(torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
               for one, two in zip(states, other, strict=True))


def test_train_fsdp_killed_and_resumed_ends_with_the_same_bits(tmp_path):
    def trained(name, *args):
        args = tmp_path / name, "--steps", "3", *args
        return launch("train_fsdp.py", 2, args=args, show=False, timeout=60).results[0]

    whole = trained("whole")
    with pytest.raises(RankError, match="SIGKILL"):
        trained("killed", "--die-in-step", "2")
    resumed = trained("killed")
    assert whole[-1]["loss"] < whole[0]["loss"] - 0.3 and resumed == whole[2:]
    assert equal_bits(states_of(tmp_path / "whole" / "step-3"), states_of(tmp_path / "killed" / "step-3"))


#: When a run is killed from outside: what then lies in its folder. The second to fourth are moments of a save.
KILLED = {
    "before anything is saved": "",
    "a save has begun": "unfinished",
    "the first rank's file is there": "unfinished/__0_0.distcp",
    "all is written, and has no name": "unfinished/.metadata",
    "between two steps": "step-3",
}


def torchrun(folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               train_fsdp.__file__, str(folder), "--steps", "5", "--width", "128"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    torchrun(folder).communicate(timeout=100)
    return states_of(folder / "step-5")


@pytest.mark.long
@pytest.mark.parametrize("there", KILLED.values(), ids=KILLED)
def test_train_fsdp_may_be_killed_at_any_moment(tmp_path, there, undisturbed):
    killed = torchrun(tmp_path)
    assert "from step 0" in killed.stdout.readline()
    last = time.monotonic() + 100
    while not (tmp_path / there).exists():
        assert killed.poll() is None and time.monotonic() < last, "the moment did not come"
    for process in [*psutil.Process(killed.pid).children(recursive=True), killed]:
        process.kill()
    killed.wait()
    assert not (tmp_path / "step-5").exists()
    torchrun(tmp_path).communicate(timeout=100)
    assert equal_bits(states_of(tmp_path / "step-5"), undisturbed)
