"""Context and experts: what GPUs are recorded with, and what the explorers draw."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers import launch
from helpers.models import attention_by_hand
from lessons.context_and_experts import explorer, recorded
from lessons.context_and_experts.cuts import CUTS
from lessons.context_and_experts.trial import trial

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_what_gpus_are_recorded_with_is_attention():
    def recorded_way(q, k, v, where):
        return recorded.cut(q, k, v, is_causal=True)

    args = recorded_way, "contiguous", 6, 192, 8
    for found in launch(trial, 2, args=args, show=False, timeout=60).results:
        assert found["output"] and found["gradients"]
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    right = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(attention_by_hand(q, k, v, is_causal=True), right, atol=1e-5)


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
    assert "after 4 of 4 steps" in pairs.figure().get_label()
    assert "[136, 392, 648, 904]" in pairs.figure().get_label()
    pairs.controls["cut"].value = "zigzag"
    assert "wait for 0%" in pairs.figure().get_label()
    tokens.controls["room"].value, tokens.controls["liking"].value = 1.0, 4.0
    sent, kept = explorer.tokens_at(4, 4.0, 1.0)
    assert f"{1 - kept.sum().item() / sent.sum().item():.0%} are dropped" in tokens.figure().get_label()
    assert sent.sum() == 4 * explorer.TOKENS and kept.max() == explorer.TOKENS // 4
