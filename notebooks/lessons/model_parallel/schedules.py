"""The logical clock of a pipeline's schedule: when each instruction would start, if sending cost nothing."""

from dataclasses import dataclass
from itertools import accumulate

COST = {"F": 1, "B": 2}
"""Of a forward and of a backward of one micro-batch in one stage, in units of a forward of this stage."""


@dataclass(frozen=True)
class Timeline:
    """When each rank does what, and what follows from it."""

    starts: list
    """By rank: {("F" or "B", micro-batch[, stage]): when it starts}, in the rank's order."""

    @property
    def end(self):
        """When the last instruction ends."""
        return max((at + COST[what] for rank in self.starts for (what, *_), at in rank.items()), default=0)

    @property
    def bubble(self):
        """The share of the time, from 0 to 1, for which the ranks stand idle, on average."""
        busy = sum(COST[what] for rank in self.starts for what, *_ in rank)
        return 1 - busy / (len(self.starts) * self.end)

    @property
    def held(self):
        """By rank: how many micro-batches have gone forward through a stage and not yet backward, at most."""
        return [max(accumulate((1 if what == "F" else -1 for what, *_ in rank), initial=0))
                for rank in self.starts]


def simulate(orders):
    """Run the ranks' lists of ("F" or "B", micro-batch[, stage]) by a logical clock; return a `Timeline`.

    Stage s lies on rank s % p. Without a stage, a step is one of the rank's only stage.
    A forward needs that of the stage before, a backward that of the stage behind and its own stage's forward.

    Raises:
        ValueError: ranks wait for each other for ever (it says who for what), or an instruction stands twice.
    """
    left, starts, clocks = [list(order) for order in orders], [{} for _ in orders], [0 for _ in orders]
    p = len(orders)
    stages = max((step[2] + 1 for order in orders for step in order if step[2:]), default=p)

    def needs(rank):
        what, i, *own = left[rank][0]
        stage = own[0] if own else rank
        wanted = [("F", stage - 1)] if what == "F" else [("F", stage), ("B", stage + 1)]
        return [(at % p, (kind, i, at) if own else (kind, i)) for kind, at in wanted if 0 <= at < stages]

    while any(left):
        missing = {rank: [(other, step) for other, step in needs(rank) if step not in starts[other]]
                   for rank, todo in enumerate(left) if todo}
        if all(missing.values()):
            rank, ((other, step), *_) = next(iter(missing.items()))
            raise ValueError(f"rank {rank} is at {left[rank][0]} and waits for ever "
                             f"for rank {other}'s {step}")
        for rank in [rank for rank, steps in missing.items() if not steps]:
            ready = [starts[other][step] + COST[step[0]] for other, step in needs(rank)]
            step = left[rank].pop(0)
            if step in starts[rank]:
                raise ValueError(f"rank {rank} does {step} twice")
            starts[rank][step] = max([clocks[rank], *ready])
            clocks[rank] = starts[rank][step] + COST[step[0]]
    return Timeline(starts)


def gpipe(rank, ranks, micro_batches):
    """All forwards, then all backwards. Source: Huang et al., 2018, https://arxiv.org/abs/1811.06965."""
    return [(what, i) for what in "FB" for i in range(micro_batches)]


def one_f_one_b(rank, ranks, micro_batches):
    """As many forwards as there are ranks behind, then one backward after each forward.

    Source: Narayanan et al., 2021, https://arxiv.org/abs/2104.04473, figure 4.
    """
    warm = min(micro_batches, ranks - 1 - rank)
    steady = [step for i in range(micro_batches - warm) for step in (("F", warm + i), ("B", i))]
    rest = [("B", i) for i in range(micro_batches - warm, micro_batches)]
    return [("F", i) for i in range(warm)] + steady + rest


def interleaved(rank, ranks, micro_batches, per_rank):
    """1F1B with 2 or more stages on each rank; the steps name their stage.

    As many micro-batches as ranks go through the rank's first stage, then through its second, and so on.
    p ranks take a multiple of p micro-batches. Source: https://arxiv.org/abs/2104.04473, section 2.2.
    """
    steps = [(start + i, part * ranks + rank) for start in range(0, micro_batches, ranks)
             for part in range(per_rank) for i in range(ranks)]
    forwards = [("F", *step) for step in steps]
    backwards = [("B", i, (per_rank - 1) * ranks + 2 * rank - stage) for i, stage in steps]
    warm = min(len(steps), 2 * (ranks - 1 - rank) + (per_rank - 1) * ranks)
    turns = [step for pair in zip(forwards[warm:], backwards, strict=False) for step in pair]
    return forwards[:warm] + turns + backwards[len(steps) - warm:]


def messages(orders):
    """How often a stage sends to another: at each border each micro-batch's output, and its gradient back."""
    steps = [step for order in orders for step in order]
    stages = len({(rank, *step[2:]) for rank, order in enumerate(orders) for step in order})
    return len(steps) - len(steps) // stages
