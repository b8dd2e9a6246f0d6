"""Context and experts: what GPUs are recorded with, and what the explorers draw."""

import inspect

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers import launch
from helpers.instruments.waits import form_group
from helpers.models import attention_by_hand
from lessons.context_and_experts import pairs_explorer, recorded, tokens_explorer
from lessons.context_and_experts.cuts import CUTS, pairs
from lessons.context_and_experts.exercises import fair_cut
from lessons.context_and_experts.trial import trial
from tests.conftest import shapes_of

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_what_gpus_are_recorded_with_is_attention():
    def recorded_way(q, k, v, where):
        return recorded.cut(q, k, v, is_causal=True)

    args = recorded_way, "contiguous", 6, 192, 8
    for found in launch(trial, 2, args=args, show=False, timeout=60).results:
        assert max(found["output"], found["gradients"]) < 1e-12
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    right = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(attention_by_hand(q, k, v, is_causal=True), right, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 5])
def test_the_ring_computes_every_pair_once_and_zigzag_is_fair(ranks):
    length = 2 * ranks * pairs_explorer.piece_for(ranks)
    for cut in CUTS:
        steps, where = pairs_explorer.ring(cut, ranks), CUTS[cut](length, ranks)
        for number, step in enumerate(steps):
            for rank, ready in enumerate(step.ready):
                assert ready - step.begin == pairs(where[rank], where[(rank - number) % ranks])
        blocks = [block for step in steps for block in step.blocks]
        assert sum(block.end - block.begin for block in blocks) == length * (length + 1) // 2
        assert len({(block.row, block.column) for block in blocks}) == len(blocks) == ranks * (2 * ranks + 1)
    assert all(set(step.ready) == {step.end} for step in steps), "zigzag, the last one: nobody waits in any step"


def test_keys_travel_round_the_ring_and_the_square_fills():
    scene = pairs_explorer.scene("contiguous", 4)
    before, *_, last = [shapes_of(frame) for frame in scene["frames"]]
    assert not any(name.startswith(("pairs", "work")) for name in before)
    assert sum(name.startswith("pairs") for name in last) == 4 * 9
    assert "[136, 392, 648, 904]" in scene["frames"][-1]["alt"]
    assert last["wait 0/3"]["x"] > last["wait 0/1"]["x"] and "work 0/1" not in last, "rank 0 computes in step 1 only"
    for owner in range(4):  # after three steps the keys are with the rank before their own one
        at, home = last[f"keys {owner}"], before[f"keys {(owner + 3) % 4}"]
        assert (at["x"], at["y"]) == pytest.approx((home["x"], home["y"]))
    zigzag = pairs_explorer.scene("zigzag", 4)
    assert "waited for 0%" in zigzag["frames"][-1]["alt"] and zigzag["axis"] == scene["axis"]


def test_tokens_find_room_or_are_dropped():
    sent, kept = tokens_explorer.tokens_at(4, 4.0, 1.0)
    assert sent.sum() == 4 * tokens_explorer.TOKENS and kept.max() == tokens_explorer.TOKENS // 4
    before, *_, computed, home = tokens_explorer.scene(4, 4.0, 1.0)["frames"]
    dropped = (sent.sum() - kept.sum()).item()
    assert home["title"].endswith(f"{dropped / sent.sum().item():.0%} of the tokens are dropped")
    tokens = {name: shape for name, shape in shapes_of(computed).items() if "." in name}
    # Filled dots lie in the experts' room; the hollow ones are at home, where they were before.
    assert sum("fill" not in token for token in tokens.values()) == dropped
    for name, token in tokens.items():
        at_home = token["y"] == shapes_of(before)[name]["y"]
        assert at_home == ("fill" not in token)
        assert at_home or token["y"] > shapes_of(computed)["room 0"]["y"]
    for expert, (all_, some) in enumerate(zip(sent.sum(0).tolist(), kept.sum(0).tolist(), strict=True)):
        assert shapes_of(computed)[f"got {expert}"]["text"] == f"● {some}"
        assert (f"lost {expert}" in shapes_of(computed)) == (all_ > some)


@pytest.mark.parametrize("module", [pairs_explorer, tokens_explorer])
def test_explorers_store_their_presets_small(module):
    stage = getattr(module, module.__name__.rpartition(".")[2])()
    assert all(str(one["setting"]).replace(" ", "") in stage.story["scenes"] for one in stage.story["presets"])
    assert len(str(stage.story)) < 95_000


@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_tokens_have_a_place_of_their_own(ranks):
    for room in tokens_explorer.ROOMS:
        for frame in tokens_explorer.scene(ranks, 4.0, room)["frames"]:
            tokens = [shape for shape in frame["shapes"] if "." in shape["id"]]
            places = {(round(token["x"], 1), round(token["y"], 1)) for token in tokens}
            assert len(places) == ranks * tokens_explorer.TOKENS
            assert all(0 <= token["x"] <= tokens_explorer.WIDE for token in tokens)
            assert all(100 < token["y"] < tokens_explorer.FLOOR or token["y"] < 90 for token in tokens)


def test_torchs_own_source_says_what_lesson_11_tells_of_it():
    from torch.distributed.tensor import experimental
    from torch.distributed.tensor.experimental import _attention
    from torch.distributed.tensor.experimental._context_parallel._attention import _cp_options

    assert "legacy" in inspect.getsource(experimental.context_parallel)
    assert "context_parallel" in experimental.__all__ and callable(_attention.set_rotate_method)
    assert _cp_options.rotate_method.name == "ALL_GATHER"
    by_rank = launch(cut_by_torch, 2, args=(16,), show=False, timeout=60).results
    assert by_rank == [positions.tolist() for positions in CUTS["zigzag"](16, 2)]


def test_torch_cuts_documents_as_the_exercise_does():
    from torch.distributed.tensor.experimental._attention import _PerDocumentHeadTailLoadBalancer

    lengths = [8, 16, 4]
    cut = _PerDocumentHeadTailLoadBalancer([lengths], 2, "cpu")._generate_indices()
    by_rank = [fair_cut.answer(torch.arange(28), lengths, rank, 2)[1] for rank in range(2)]
    as_ours = cut[0].tolist() == torch.cat(by_rank).tolist()
    assert as_ours != torch.__version__.startswith("2.11."), "which puts both ranks' pieces side by side"


def cut_by_torch(tokens):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental._attention import _context_parallel_shard, _HeadTailLoadBalancer

    form_group(60)
    balancer = _HeadTailLoadBalancer(tokens, 2, torch.device("cpu"))
    mine, = _context_parallel_shard(init_device_mesh("cpu", (2,)), [torch.arange(tokens)[None]], [1], balancer)
    return mine[0].tolist()
