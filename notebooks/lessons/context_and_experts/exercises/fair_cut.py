"""A cut of packed documents by which all ranks compute equally much of their causal attention."""

from collections import Counter
from typing import NamedTuple

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each
from lessons.context_and_experts.cuts import pairs


class Row(NamedTuple):
    """Documents of so many tokens, one after the other."""

    lengths: tuple
    ranks: int

    def __str__(self):
        return f"documents of {', '.join(map(str, self.lengths))} tokens, {self.ranks} ranks"


class FairCut(Alone):
    title = "A fair cut, with its positions"
    task = ("`tokens` is a row of packed documents, one after the other. `lengths` is a list: how many tokens each "
            "document has, always a multiple of 2n. A token looks at itself and at all before it **in its own "
            "document**. Return for rank `rank` of `n` ranks a pair `(mine, positions)`: the rank's tokens, and a "
            "tensor that says where each of them stands in the row. Each token belongs to one rank. All ranks "
            "have equally many tokens, and compute **equally many pairs**.")
    hints = (
        "Cut the positions, not the tokens: `torch.arange(len(tokens))`. `tokens[positions]` follows.",
        "`.split(lengths)` gives each document's positions. What cuts one document fairly?",
    )
    explanation = ("Rank r has the pieces r and 2n − 1 − r of each document. What the early piece spares it, the late "
                   "one costs. `_PerDocumentHeadTailLoadBalancer` of torch 2.14 cuts in the same way.")
    why = ("with a contiguous cut of one text the last rank computes almost twice the mean, and the others wait for "
           "it. The mask and the rotary angles need the true positions, and no error tells you if you count from 0 in "
           "each rank.")

    cases = {str(row): row for row in (
        Row((8,), 2), Row((8, 16, 4), 2), Row((6, 24, 12), 3), Row((4, 2), 1), Row((8, 40, 16), 4))}

    def answer(tokens, lengths, rank, n):
        import torch

        mine = []
        for document in torch.arange(len(tokens)).split(lengths):               #: documents
            pieces = document.chunk(2 * n)
            mine += [pieces[rank], pieces[-1 - rank]]                           #: pieces
        positions = torch.cat(mine)                                             #: positions
        return tokens[positions], positions                                     #: pair

    def observe(fair_cut, row):
        numbers = torch.arange(sum(row.lengths))
        documents = numbers.split(row.lengths)
        tokens = torch.stack([numbers, -numbers], 1)  # of which each begins with its number
        by_rank = [fair_cut(tokens, list(row.lengths), rank, row.ranks) for rank in range(row.ranks)]
        observed = {"tokens": [], "positions": [], "tokens by rank": [], "pairs by rank": []}
        for mine, positions in by_rank:
            first_column = mine[:, 0]
            observed["tokens"].append(first_column.tolist())
            observed["positions"].append(torch.as_tensor(positions).tolist())
            observed["tokens by rank"].append(len(first_column))
            observed["pairs by rank"].append(sum(
                pairs(first_column[torch.isin(first_column, document)], document) for document in documents))
        return observed

    # ---------------------------------------------------------------------------------------- what must hold

    def not_once(mine, wanted, row):
        ranks_with = Counter()
        for tokens in mine["tokens"]:
            ranks_with.update(tokens)
        for token in range(sum(row.lengths)):
            if ranks_with[token] != 1:
                return f"token {token} is in {ranks_with[token]} ranks", "each token is in one rank"

    def other_positions(mine, wanted, row):
        for rank, (tokens, positions) in enumerate(zip(mine["tokens"], mine["positions"], strict=True)):
            if tokens != positions:
                return f"rank {rank} has the tokens {tokens}, and says {positions}", "the positions of its tokens"

    def unequal(name):
        def broken(mine, wanted, row):
            if len(set(mine[name])) > 1:
                return f"{name}: {mine[name]}", "equally many"

        return broken

    late_and_early = ("a late token looks at many others, an early one at few: what must a rank with late tokens of a "
                      "document also have?")

    rules = (
        each(not_once, "which ranks have which tokens?"),
        each(unequal("tokens by rank"), "all ranks have equally many tokens"),
        each(other_positions, "where does each token of this rank stand in the whole row?"),
        each(unequal("pairs by rank"), late_and_early),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(late_and_early, positions="positions = torch.arange(len(tokens)).chunk(n)[rank]"),
        mistake("a token looks at its own document only: cut each document, not the row",
                documents="for document in [torch.arange(len(tokens))]:"),
        mistake("almost: each token of rank 1 looks at one more than its neighbour in rank 0",
                positions="positions = torch.arange(rank, len(tokens), n)"),
        mistake("which pieces go together? The first, and the last",
                pieces="mine += [pieces[rank], pieces[rank + n]]"),
        mistake("these are the positions within the rank",
                pair="return tokens[positions], torch.arange(len(positions))"),
        mistake("these are the positions within each document: where does it begin in the row?",
                pair="places = torch.cat([torch.arange(length) for length in lengths])\n"
                     "return tokens[positions], places[positions]"),
        mistake("every document after the first begins where the one before it ends",
                documents="for document in [torch.arange(length) for length in lengths]:"),
        mistake("a rank's tokens are pieces: after each there is a gap",
                pair="return tokens[positions], positions[0] + torch.arange(len(positions))"),
        mistake("the last piece is `pieces[-1]`: whose is it?",
                pieces="mine += [pieces[rank], pieces[-rank]]"),
    )


fair_cut = FairCut()
