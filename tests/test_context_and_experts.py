"""Context and experts: the lesson's own code in other sizes, worlds and seeds; what the explorers draw."""

import re

import nbformat
import pytest
import torch
import torch.distributed as dist

from helpers import launch
from helpers.instruments.waits import form_group
from lessons.context_and_experts import exercises as ex
from lessons.context_and_experts import explorer, recorded
from lessons.context_and_experts.cuts import CUTS
from lessons.context_and_experts.trial import trial
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(scope="module")
def page():
    """What the lesson's cells define, up to the experts."""
    book = nbformat.read(ROOT / "notebooks" / "11_context_and_experts.ipynb", as_version=4)
    names = {"__name__": "a_notebook", "torch": torch, "dist": dist, "compare": lambda way: None}
    for cell in book.cells:
        if re.match(r"def (scores_of|pass_on|ring_|route|on_ranks)|class ", cell.source):
            exec(cell.source, names)
    return names


@pytest.mark.parametrize(("cut", "ranks"), [("zigzag", 3), ("contiguous", 2)])
@pytest.mark.parametrize("way, forward, backward", [
    ("gathered", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1)),
    ("ring", lambda n: 2 * (n - 1), lambda n: 4 * (n - 1) + 2),
    ("ulysses", lambda n: 4 * (n - 1) / n, lambda n: 4 * (n - 1) / n)])
def test_each_way_is_attention_and_sends_what_its_formula_says(page, way, cut, ranks, forward, backward):
    for found in launch(trial, ranks, args=(page[way], cut, 6, 192, 8), show=False, timeout=60).results:
        assert found["output"] and found["gradients"]
        assert found["forward"] == pytest.approx(forward(ranks), rel=0.1)
        assert found["backward"] == pytest.approx(backward(ranks), rel=0.1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_recorded_on_two_gpus_is_attention(ranks):
    def recorded_way(q, k, v, where):
        return recorded.cut(q, k, v, is_causal=True)

    for found in launch(trial, ranks, args=(recorded_way, "contiguous", 6, 192, 8), show=False, timeout=60).results:
        assert found["output"] and found["gradients"]


def of_six_experts(route, on_ranks, dense, rows_of_two, seed):
    form_group(60)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    xs, logits = torch.randn(n * 10, 5, dtype=torch.float64), torch.randn(n * 10, 6).double()
    nets = [torch.nn.Linear(5, 5).double() for _ in range(6)]
    xs.requires_grad_()
    weight, expert = route(logits)[1:]
    right = dense(xs, expert, weight, nets)
    right.square().sum().backward()
    x, own = xs.detach().chunk(n)[rank].requires_grad_(), nets[rank * 6 // n:(rank + 1) * 6 // n]
    whole = [net.bias.grad.clone() for net in own]
    for net in own:
        net.bias.grad = None
    weight, expert = route(logits.chunk(n)[rank])[1:]
    out, _ = on_ranks(x, expert, weight, lambda rows, receive: rows_of_two(rows, receive, own), 6)
    out.square().sum().backward()
    pairs = [(out, right.chunk(n)[rank]), (x.grad, xs.grad.chunk(n)[rank]),
             *((net.bias.grad, one) for net, one in zip(own, whole, strict=True))]
    return max((one - other).abs().max().item() for one, other in pairs)


@pytest.mark.parametrize(("ranks", "seed"), [(2, 1), (3, 7)])
def test_experts_on_ranks_are_the_dense_layer(page, ranks, seed):
    """A loss that is a sum over all tokens: then an expert's gradient needs no division."""
    args = page["route"], page["on_ranks"], page["dense"], ex.rows_of_two.answer, seed
    assert max(launch(of_six_experts, ranks, args=args, show=False, timeout=60).results) < 1e-12


@pytest.mark.parametrize("ranks", [2, 5])
def test_the_ring_computes_every_pair_once_and_zigzag_is_fair(ranks):
    length = explorer.length_for(ranks)
    for cut in CUTS:
        work, slowest = explorer.pairs_at(cut, ranks, ranks)
        assert sum(map(sum, work)) == length * (length + 1) // 2
    assert all(row == slowest for row in work), "zigzag, the last one: nobody waits in any step"


def test_explorers_answer_their_controls():
    pairs, tokens = explorer.pairs_explorer(), explorer.tokens_explorer()
    pairs.controls["step"].value = 4
    assert "after 4 of 4 steps" in pairs.figure().get_label() and "[136, 392, 648, 904]" in pairs.figure().get_label()
    pairs.controls["cut"].value = "zigzag"
    assert "wait for 0%" in pairs.figure().get_label()
    tokens.controls["room"].value, tokens.controls["liking"].value = 1.0, 4.0
    sent, kept = explorer.tokens_at(4, 4.0, 1.0)
    assert f"{1 - kept.sum().item() / sent.sum().item():.0%} are dropped" in tokens.figure().get_label()
    assert sent.sum() == 4 * explorer.TOKENS and kept.max() == explorer.TOKENS // 4
