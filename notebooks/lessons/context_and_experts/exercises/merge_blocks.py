"""Attention to two blocks of keys, of which each knows only its own sum of all exp(score)."""

from typing import NamedTuple

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each, same


class Scores(NamedTuple):
    around: tuple
    """Of the scores of each query, or of all."""
    masked: int | None = None
    """The block that the first query may not look at."""


class MergeBlocks(Alone):
    title = "Two blocks, one attention"
    task = ("The same queries have looked at two blocks of keys, one after the other. Of each block you get "
            "`out`, [queries, width], its attention as if there were no other keys, and `logsum`, [queries], "
            "the logarithm of the sum of all exp(score). Return `(out, logsum)` of both blocks **together**, in "
            "their dtype. Scores may be large, such as 1,000. If a query may not look at a block, its `logsum` is −inf "
            "and its `out` is 0 for that block. Each query may look at one of the two at least.")
    hints = (
        "`out` is a sum of values, each times exp(score), over `logsum.exp()`. Write the sum over both "
        "blocks.",
        "Each `out` counts by `(logsum_of_the_block − logsum_of_both).exp()`. `torch.logaddexp` knows "
        "−inf.",
    )
    explanation = ("`logaddexp` takes the larger one out first, so nothing overflows. The two weights add up "
                   "to 1.")
    why = ("FlashAttention and its relatives return exactly this pair. With it, ring attention is a kernel "
           "for each block and this merge.")

    cases = {
        "small scores": Scores(around=(1.0,)),
        "scores near 1,000": Scores(around=(1000.0,)),
        "one query's scores near 1,000, the others' near 0": Scores(around=(0.0, 1000.0, 0.0)),
        "the first block is masked": Scores(around=(1.0,), masked=0),
        "the second block is masked": Scores(around=(1.0,), masked=1),
    }

    def answer(out1, logsum1, out2, logsum2):
        import torch

        logsum = torch.logaddexp(logsum1, logsum2)                                      #: logsum
        weight1, weight2 = (logsum1 - logsum).exp(), (logsum2 - logsum).exp()           #: weights
        return weight1[:, None] * out1 + weight2[:, None] * out2, logsum                #: merged

    def observe(merge_blocks, case):
        torch.manual_seed(0)
        around = torch.tensor(case.around).double()
        scores = around[:, None] + torch.randn(2, 3, 4).double()  # [blocks, queries, keys]
        values = torch.randn(2, 4, 2).double()
        outs = scores.softmax(-1) @ values
        logsums = scores.logsumexp(-1)
        if case.masked is not None:
            outs[case.masked, 0] = 0
            logsums[case.masked, 0] = -torch.inf
        out, logsum = merge_blocks(outs[0], logsums[0], outs[1], logsums[1])
        return {"out": out.tolist(), "logsum": logsum.tolist(), "dtypes": [str(out.dtype), str(logsum.dtype)]}

    # ---------------------------------------------------------------------------------------- what must hold

    def not_finite(mine, wanted, case):
        for name in ("out", "logsum"):
            if not torch.tensor(mine[name]).isfinite().all():
                return f"`{name}` is {mine[name]}", "finite numbers"

    larger_first = ("`exp` of a large number is inf, and of a very negative one 0; inf / inf, inf - inf and 0 / 0 are "
                    "nan. Before `exp`, subtract the larger of *each query's* two `logsum`")
    minus_infinity = "`-inf - (-inf)` is nan: which lines compute that if the first or the second block is masked?"

    def look(case):
        if case.masked is None:
            return MergeBlocks.larger_first
        return MergeBlocks.minus_infinity

    share = "how much does each block count? Its share of the sum of all exp(score)"

    rules = (
        each(not_finite, look),
        same("dtypes", "return both in the dtype of the blocks"),
        same("out", share, within=1e-9),
        same("logsum", "the logarithm of which sum?", within=1e-9),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("a block with larger scores counts for more",
                weights="weight1, weight2 = 0.5 + 0 * logsum1, 0.5 + 0 * logsum2"),
        mistake("which weight belongs to which block?",
                weights="weight1, weight2 = (logsum2 - logsum).exp(), (logsum1 - logsum).exp()"),
        mistake("the weights must add up to 1", weights="weight1, weight2 = 1 + 0 * logsum1, 1 + 0 * logsum2"),
        mistake("exp(1,000) is infinite: take the larger one out first",
                logsum="logsum = (logsum1.exp() + logsum2.exp()).log()"),
        mistake(larger_first,
                logsum="top = max(logsum1.max(), logsum2.max())\n"
                       "logsum = top + ((logsum1 - top).exp() + (logsum2 - top).exp()).log()"),
        mistake(share, logsum="logsum = torch.maximum(logsum1, logsum2)"),
        mistake("a sum of logarithms is the logarithm of a product",
                merged="return weight1[:, None] * out1 + weight2[:, None] * out2, logsum1 + logsum2"),
    )


merge_blocks = MergeBlocks()
