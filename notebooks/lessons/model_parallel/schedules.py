"""The logical clock of a pipeline's schedule: when each instruction would start, if sending cost nothing."""

from dataclasses import dataclass

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
        ends = [0]
        for rank in self.starts:
            for step, start in rank.items():
                ends.append(start + cost(step))
        return max(ends)

    @property
    def bubble(self):
        """The share of the time, from 0 to 1, for which the ranks stand idle, on average."""
        busy = 0
        for rank in self.starts:
            busy += sum(cost(step) for step in rank)
        return 1 - busy / (len(self.starts) * self.end)

    @property
    def held(self):
        """By rank: how many micro-batches have gone forward through a stage and not yet backward, at most."""
        return [most_held(rank) for rank in self.starts]


def cost(step):
    return COST[step[0]]


def most_held(order):
    """The most micro-batches whose activations a rank holds at once: a forward adds one, its backward frees it."""
    held = 0
    most = 0
    for kind, *_ in order:
        held += 1 if kind == "F" else -1
        most = max(most, held)
    return most


def simulate(orders):
    """Run the ranks' lists of ("F" or "B", micro-batch[, stage]) by a logical clock; return a `Timeline`.

    Stage s lies on rank s % p. Without a stage, a step is one of the rank's only stage.
    A forward needs that of the stage before, a backward that of the stage behind and its own stage's forward.

    Raises:
        ValueError: ranks wait for each other for ever (it says who for what), or an instruction stands twice.
    """
    stages = number_of_stages(orders)
    todo = [list(order) for order in orders]
    starts = [{} for _ in orders]
    clocks = [0 for _ in orders]
    while any(todo):
        needs = {}
        for rank, steps in enumerate(todo):
            if steps:
                needs[rank] = needed_by(rank, steps[0], len(orders), stages)
        ready = [rank for rank in needs if first_missing(needs[rank], starts) is None]
        if not ready:
            rank = min(needs)
            other, step = first_missing(needs[rank], starts)
            raise ValueError(f"rank {rank} is at {todo[rank][0]} and waits for ever for rank {other}'s {step}")
        for rank in ready:
            step = todo[rank].pop(0)
            if step in starts[rank]:
                raise ValueError(f"rank {rank} does {step} twice")
            start = clocks[rank]
            for other, needed in needs[rank]:
                start = max(start, starts[other][needed] + cost(needed))
            starts[rank][step] = start
            clocks[rank] = start + cost(step)
    return Timeline(starts)


def number_of_stages(orders):
    """One for each rank, unless the steps name their stages."""
    stages = len(orders)
    for order in orders:
        for _, _, *named in order:
            if named:
                stages = max(stages, named[0] + 1)
    return stages


def needed_by(rank, step, ranks, stages):
    """The steps that must end before this one starts, as (rank that does it, step)."""
    kind, micro_batch, *named = step
    stage = named[0] if named else rank
    if kind == "F":
        needed = [("F", stage - 1)]
    else:
        needed = [("F", stage), ("B", stage + 1)]
    steps = []
    for needed_kind, needed_stage in needed:
        if 0 <= needed_stage < stages:  # before the first stage comes the data, behind the last one the loss
            names_stage = (needed_stage,) if named else ()
            steps.append((needed_stage % ranks, (needed_kind, micro_batch, *names_stage)))
    return steps


def first_missing(needed, starts):
    """The first of the needed steps that has not started yet; None if all have."""
    for rank, step in needed:
        if step not in starts[rank]:
            return rank, step
    return None


def gpipe(rank, ranks, micro_batches):
    """All forwards, then all backwards. Source: Huang et al., 2018, https://arxiv.org/abs/1811.06965."""
    forwards = [("F", i) for i in range(micro_batches)]
    backwards = [("B", i) for i in range(micro_batches)]
    return forwards + backwards


def one_f_one_b(rank, ranks, micro_batches):
    """As many forwards as there are ranks behind, then one backward after each forward.

    Source: Narayanan et al., 2021, https://arxiv.org/abs/2104.04473, figure 4.
    """
    forwards = [("F", i) for i in range(micro_batches)]
    backwards = [("B", i) for i in range(micro_batches)]
    warm_up = ranks - 1 - rank
    return in_turns(forwards, backwards, warm_up)


def interleaved(rank, ranks, micro_batches, per_rank):
    """1F1B with 2 or more stages on each rank; the steps name their stage.

    As many micro-batches as ranks go through the rank's first stage, then through its second, and so on.
    p ranks take a multiple of p micro-batches. Source: https://arxiv.org/abs/2104.04473, section 2.2.
    """
    forwards = []
    backwards = []
    for start in range(0, micro_batches, ranks):
        for part in range(per_rank):
            for i in range(start, start + ranks):
                forwards.append(("F", i, part * ranks + rank))
                # Backward comes to the rank's stages in the opposite order.
                backwards.append(("B", i, (per_rank - 1 - part) * ranks + rank))
    # The last rank starts its backwards once all of its stages but the last have done as many micro-batches as there
    # are ranks. Each rank before it does two forwards more: its first forward comes one step earlier, and its first
    # backward one step later.
    warm_up = (per_rank - 1) * ranks + 2 * (ranks - 1 - rank)
    return in_turns(forwards, backwards, warm_up)


def in_turns(forwards, backwards, warm_up):
    """The first `warm_up` forwards, then forward and backward in turn, then the backwards that are left."""
    order = forwards[:warm_up]
    turns = len(forwards) - len(order)
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[turns:]


def messages(orders):
    """How often a stage sends to another: at each border each micro-batch's output, and its gradient back."""
    steps = sum(len(order) for order in orders)
    return steps - steps // number_of_stages(orders)
