"""A cut of the sequence by which all ranks compute equally much of its causal attention."""

from collections import Counter
from typing import NamedTuple

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each
from lessons.context_and_experts.cuts import pairs


class Sequence(NamedTuple):
    tokens: int
    ranks: int

    def __str__(self):
        return f"{self.tokens} tokens, {self.ranks} ranks"


class FairCut(Alone):
    title = "A fair cut, with its positions"
    task = ("`tokens` is a tensor whose first dimension is the sequence. Its length is a multiple of 2n. "
            "Return for rank `rank` of `n` ranks a pair `(mine, positions)`: the rank's tokens, and a tensor "
            "that says where each of them stands in the sequence. Each token belongs to one rank. All ranks "
            "have equally many tokens, and compute **equally many pairs**: a token looks at itself and at "
            "all before it.")
    hints = (
        "Cut the positions, not the tokens: `torch.arange(len(tokens))`. `tokens[positions]` follows.",
        "Cut into 2n pieces. A rank that has the first piece should also have the last one.",
    )
    explanation = ("Rank r has the pieces r and 2n − 1 − r. What the early piece spares it, the late one "
                   "costs.")
    why = ("with a contiguous cut the last rank computes almost twice the mean, and in each step all others "
           "wait for it. The mask and the rotary angles need the true positions, and no error tells you if "
           "you count from 0 in each rank.")

    cases = {str(sequence): sequence for sequence in (
        Sequence(8, 2), Sequence(24, 3), Sequence(16, 1), Sequence(64, 4))}

    def answer(tokens, rank, n):
        import torch

        pieces = torch.arange(len(tokens)).chunk(2 * n)
        positions = torch.cat([pieces[rank], pieces[-1 - rank]])                #: positions
        return tokens[positions], positions                                     #: pair

    def observe(fair_cut, sequence):
        numbers = torch.arange(sequence.tokens)
        tokens = torch.stack([numbers, -numbers], 1)  # of which each begins with its number
        by_rank = [fair_cut(tokens, rank, sequence.ranks) for rank in range(sequence.ranks)]
        observed = {"tokens": [], "positions": [], "tokens by rank": [], "pairs by rank": []}
        for mine, positions in by_rank:
            first_column = mine[:, 0]
            observed["tokens"].append(first_column.tolist())
            observed["positions"].append(torch.as_tensor(positions).tolist())
            observed["tokens by rank"].append(len(first_column))
            observed["pairs by rank"].append(pairs(first_column, numbers))
        return observed

    # ---------------------------------------------------------------------------------------- what must hold

    def not_once(mine, wanted, sequence):
        ranks_with = Counter()
        for tokens in mine["tokens"]:
            ranks_with.update(tokens)
        for token in range(sequence.tokens):
            if ranks_with[token] != 1:
                return f"token {token} is in {ranks_with[token]} ranks", "each token is in one rank"

    def other_positions(mine, wanted, sequence):
        for rank, (tokens, positions) in enumerate(zip(mine["tokens"], mine["positions"], strict=True)):
            if tokens != positions:
                return f"rank {rank} has the tokens {tokens}, and says {positions}", "the positions of its tokens"

    def unequal(name):
        def broken(mine, wanted, sequence):
            if len(set(mine[name])) > 1:
                return f"{name}: {mine[name]}", "equally many"

        return broken

    late_and_early = ("a late token looks at many others, an early one at few: what must a rank with late tokens "
                      "also have?")

    rules = (
        each(not_once, "which ranks have which tokens?"),
        each(unequal("tokens by rank"), "all ranks have equally many tokens"),
        each(other_positions, "where does each token of this rank stand in the whole sequence?"),
        each(unequal("pairs by rank"), late_and_early),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(late_and_early, positions="positions = torch.arange(len(tokens)).chunk(n)[rank]"),
        mistake("almost: each token of rank 1 looks at one more than its neighbour in rank 0",
                positions="positions = torch.arange(rank, len(tokens), n)"),
        mistake("which pieces go together? The first, and the last",
                positions="positions = torch.cat([pieces[rank], pieces[rank + n]])"),
        mistake("these are the positions within the rank",
                pair="return tokens[positions], torch.arange(len(positions))"),
        mistake("a rank's tokens are two pieces: after the first there is a gap",
                pair="return tokens[positions], positions[0] + torch.arange(len(positions))"),
        mistake("the last piece is `pieces[-1]`: whose is it?",
                positions="positions = torch.cat([pieces[rank], pieces[-rank]])"),
    )


fair_cut = FairCut()
