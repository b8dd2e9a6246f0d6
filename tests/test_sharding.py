"""Sharding: the calculator against what real ranks hold, the explorer, the script that trains with FSDP2."""

import re
import subprocess
import sys
import time
from itertools import pairwise, product

import psutil
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from helpers import RankError, launch
from helpers.instruments import costs
from helpers.instruments.memory import held_bytes, memory_by_kind
from helpers.instruments.wire import wire_bytes
from helpers.models import GPT
from lessons.sharding import fsdp_step as step
from lessons.sharding import gather_explorer as gather
from lessons.sharding import memory_explorer as memory
from lessons.sharding import train_fsdp
from tests.conftest import eventually

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


# ------------------------------------------------------------------------------------------- a step of FSDP2


class Watch:
    """Notes what a rank holds at the moments of `fsdp_step`, by their names.

    expected: what it waits for at most a second, for gloo's threads let go late of what they have sent; or nothing.
    """

    def __init__(self, held, expected=None):
        self.held, self.expected = held, expected
        self.part = self.embeddings = 0
        self.moments = {}

    def note(self, phase, unit, act):
        moment = self.part, phase, unit, act
        assert moment not in self.moments, moment
        if self.expected:
            time.sleep(0.002)
            eventually(lambda: self.held.now <= self.expected[moment], 1)
        self.moments[moment] = self.held.now

    def notes(self, *moment):
        """A hook that notes it."""
        return lambda *_: self.note(*moment)

    def later(self, *moment):
        """A hook of a module that notes it when the gradient of its output is there."""
        def hook(_module, _inputs, output):
            output.register_hook(self.notes(*moment))

        return hook

    def before_sharding(self, net):
        """Hooks that run before those of FSDP2: a unit has computed, and is not yet dropped."""
        after = [("backward", unit, "drop") for unit in step.UNITS[2:]] + [("backward", step.HEAD, "use")]
        for unit, block, moment in zip(step.UNITS[1:], net.blocks, after, strict=True):
            block.register_forward_hook(self.notes("forward", unit, "use"))
            block.register_forward_hook(self.later(*moment))
        net.register_forward_hook(self.notes("forward", step.HEAD, "use"))

    def after_sharding(self, net):
        """Hooks that run after those of FSDP2: a unit is gathered, or dropped."""
        net.register_forward_pre_hook(self.notes("forward", step.REST, "gather"))
        net.register_forward_hook(self.later("backward", step.REST, "gather"))
        net.blocks[0].register_forward_pre_hook(self.embedded, prepend=True)
        for unit, block in zip(step.UNITS[1:], net.blocks, strict=True):
            block.register_forward_pre_hook(self.gathered(unit))
            block.register_forward_hook(self.notes("forward", unit, "drop"))
            block.register_forward_hook(self.later("backward", unit, "gather"))

    def embedded(self, _block, inputs):
        self.note("forward", step.EMBEDDINGS, "use")
        inputs[0].register_hook(self.notes("backward", step.UNITS[1], "drop"))

    def gathered(self, unit):
        def hook(_block, inputs):
            self.note("forward", unit, "gather")
            inputs[0].register_hook(self.notes("backward", unit, "use"))

        return hook

    def has_gradient(self, _embedding):
        self.embeddings += 1
        if self.embeddings % 2 == 0:  # that of the tokens and that of the positions
            self.note("backward", step.EMBEDDINGS, "use")


def sharded_as(settings, mesh):
    from torch.distributed.fsdp import fully_shard

    def shard(net):
        for block in net.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=settings.reshard)
        fully_shard(net, mesh=mesh)
        units = [net, *net.blocks]
        if settings.prefetch == "none":
            for unit in units:
                unit.set_modules_to_backward_prefetch([net])  # which is whole: there is nothing to gather
        if settings.prefetch == "both":
            for unit, following in pairwise(units):
                unit.set_modules_to_forward_prefetch([following])

    return shard


def as_without_fsdp(net):
    """The same hooks find the same moments; and all weights and gradients are always there."""
    for block in net.blocks:  # FSDP2, too, puts a function between a block and the one before
        block.register_forward_pre_hook(lambda _block, inputs: inputs[0].view_as(inputs[0]))
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)


def watched_step(settings, prepare, expected=None):
    """Bytes that this rank holds in a step of the lesson's GPT, by moment."""
    with held_bytes() as held:
        net, watch = GPT(step.WIDTH, step.BLOCKS, 4, step.VOCABULARY, step.LENGTH), Watch(held, expected)
        watch.before_sharding(net)
        prepare(net)
        watch.after_sharding(net)
        watch.note("before", step.REST, "drop")
        for watch.part in range(1 if settings.batch == "one part" else 2):
            if expected and settings.batch == "no sync in part 1":
                net.set_requires_gradient_sync(watch.part == 1)
            scores = net(torch.arange(8).view(2, 4))
            if watch.part == 0:
                for embedding in net.tokens, net.positions:  # their weights are whole now
                    embedding.weight.register_post_accumulate_grad_hook(watch.has_gradient)
            scores.square().mean().backward()
            watch.note("backward", step.REST, "drop")
    return watch.moments


def steps_of_fsdp(several):
    """By setting: the bytes that this rank holds, without activations, by moment; the bytes that it sends."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = []
    for settings in several:
        activations = {moment: held - 2 * step.MODEL
                       for moment, held in watched_step(settings, as_without_fsdp).items()}
        expected = {moment[:4]: sum(moment.held(settings.ranks).values()) + activations[moment[:4]]
                    for moment in step.moments(settings)}
        dist.barrier()
        before = wire_bytes()
        held = watched_step(settings, sharded_as(settings, mesh), expected)
        dist.barrier()
        sent = wire_bytes() - before
        assert list(held) == list(activations), "the same moments in the same order"
        found.append(({moment: held[moment] - activations[moment] for moment in held}, sent))
    return found


def hold_and_send_as_real_ranks_do(ranks, ways):
    several = [step.Settings(ranks, *way) for way in ways]
    for rank in launch(steps_of_fsdp, ranks, args=(several,), show=False, timeout=300).results:
        for settings, (held, sent) in zip(several, rank, strict=True):
            moments = step.moments(settings)
            assert held == {moment[:4]: sum(moment.held(ranks).values()) for moment in moments}, settings
            # Gloo's reduce-scatter sends twice what it must.
            expected = sum(step.sent(moment.travels, ranks) * (2 if moment.act == "drop" else 1) for moment in moments)
            assert sent == pytest.approx(expected, rel=0.02), settings


def test_step_of_fsdp_is_that_of_real_ranks():
    ways = [(True, "both", "no sync in part 1"), (False, "backward", "one part")]
    hold_and_send_as_real_ranks_do(2, ways)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_step_of_fsdp_is_that_of_real_ranks_in_all_settings(ranks):
    ways = product((True, False), ("none", "backward", "both"), ("one part", "two parts", "no sync in part 1"))
    hold_and_send_as_real_ranks_do(ranks, ways)


def collectives_of_fsdp(several):
    """By setting: the collectives in the order in which FSDP2 begins them, as the profiler names them."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = []
    for settings in several:
        net = GPT(layers=step.BLOCKS)
        sharded_as(settings, mesh)(net)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            net(torch.arange(8).view(2, 4)).square().mean().backward()
        events = sorted(profiled.events(), key=lambda event: event.time_range.start)
        names = [re.fullmatch(r"FSDP::(all_gather|post_backward_reduce)(?: \(blocks\.(\d)\))?", event.name)
                 for event in events]
        found.append([(name[1], f"block {name[2]}" if name[2] else step.REST) for name in names if name])
    return found


@pytest.mark.long
def test_order_of_collectives_is_that_of_real_ranks():
    several = [step.Settings(2, *way, "one part") for way in product((True, False), ("none", "backward", "both"))]
    for rank in launch(collectives_of_fsdp, 2, args=(several,), show=False, timeout=60).results:
        for settings, found in zip(several, rank, strict=True):
            expected = [("post_backward_reduce" if moment.act == "drop" else "all_gather", unit)
                        for moment in step.moments(settings) for unit in moment.travels]
            assert found == expected, settings


# ------------------------------------------------------------------------------------------ and how it is drawn


@pytest.mark.parametrize("settings", [step.Settings(), step.Settings(2, False, "both", "no sync in part 1")])
def test_bars_and_layers_are_what_a_rank_holds(settings):
    frames, ranks = gather.scene(*settings)["frames"], settings.ranks
    chart = gather._chart(settings.batch)
    assert len(frames) == len(gather.shown(settings))
    for number, (frame, (moment, _)) in enumerate(zip(frames, gather.shown(settings), strict=True)):
        shapes = {shape["id"]: shape for shape in frame["shapes"]}
        held = moment.held(ranks)
        seen = dict.fromkeys(step.KINDS, 0)
        areas = dict.fromkeys(step.KINDS, 0)
        for name, shape in shapes.items():
            for kind in step.KINDS:
                if re.fullmatch(rf"{kind[:2]} \d+", name) and shape["x"] + shape["w"] > chart.x(number) + 0.1:
                    seen[kind] += shape["h"] / chart.height * chart.ys[1]
                if re.fullmatch(rf"{kind[:2]}\d0\w", name) and "opacity" not in shape:
                    areas[kind] += shape["w"]
            if re.fullmatch(r"own\d0", name):
                areas["shards"] += shape["w"]
            if re.fullmatch(r"mean\d0", name) and "opacity" not in shape:
                areas["gradients"] += shape["w"]
        assert seen == pytest.approx(held), frame["title"]
        # The same above, as far as whole units of the picture go.
        in_bytes = {kind: wide / gather.BLOCK * step.BYTES["block 0"] for kind, wide in areas.items()}
        assert in_bytes == pytest.approx(held, abs=3000), frame["title"]
        assert f"holds {sum(held.values()) / 1000:,.0f} kB" in frame["alt"]


def test_messages_glide_from_the_rank_that_sends_to_the_one_that_receives():
    frames = gather.scene(*step.Settings())["frames"]
    for frame, (moment, travels) in zip(frames, gather.shown(step.Settings()), strict=True):
        ways = set()
        for shape in frame["shapes"]:
            if shape.get("passes"):
                sender, receiver = (int((y - gather.TOP) // 40) for y in (shape["from"]["y"], shape["y"]))
                assert shape["id"][1:] == f"{sender}{receiver}"
                left, wide = gather.PLACES[step.UNITS[int(shape["id"][0])]]
                piece = round((shape["x"] - left) / wide * 4)
                assert piece == (receiver if moment.act == "drop" else sender), "whose piece it is"
                ways.add((sender, receiver))
        assert len(ways) == (12 if travels else 0), "from each to each other"
