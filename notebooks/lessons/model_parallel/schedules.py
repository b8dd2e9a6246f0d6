"""The logical clock of a pipeline's schedule: when each instruction would start, if sending cost nothing."""

from dataclasses import dataclass

COST = {"F": 1, "B": 2, "I": 1, "W": 1}
"""Of a forward and of a backward of one micro-batch in one stage, in units of a forward of this stage.

A backward can be done in two parts: "I", the gradient of the stage's input, for which the stage before waits, and "W",
those of its weights, for which nobody waits.
"""


@dataclass(frozen=True)
class Timeline:
    """When each rank does what, and what follows from it."""

    starts: list
    """By rank: {step: when it starts}, in the rank's order. What a step is, `simulate` says."""

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
        """By rank: how many micro-batches have gone forward through a stage and not yet all backward, at most."""
        return [most_held(rank) for rank in self.starts]


def cost(step):
    return sum(COST[kind] for kind, *_ in parts(step))


def parts(step):
    """The two steps of a pair, or the step alone."""
    return step if isinstance(step[0], tuple) else (step,)


def parts_of(order):
    return [part for step in order for part in parts(step)]


def most_held(order):
    """The most micro-batches whose activations a rank holds at once.

    A forward adds one. Its backward frees it: a "B", or the "W", which needs the activations, too.
    """
    held = 0
    most = 0
    for kind, *_ in parts_of(order):
        held += {"F": 1, "I": 0}.get(kind, -1)
        most = max(most, held)
    return most


def simulate(orders):
    """Run the ranks' lists of steps by a logical clock; return a `Timeline`.

    A step is (kind of `COST`, micro-batch[, stage]); without a stage, it is one of the rank's only stage. A forward
    needs the output of the stage before. A backward needs its own stage's output, and the gradient of the stage behind;
    its "W" needs its own "I". Two steps may be a pair, (step, step): it starts when both can, takes as long as both
    together, and sends both results at its end.

    Raises:
        ValueError: ranks wait for each other for ever (it says who for what), or an instruction stands twice.
    """
    homes = ranks_of_stages(orders)
    todo = [list(order) for order in orders]
    starts = [{} for _ in orders]
    clocks = [0 for _ in orders]
    there = {}  # what a step has made, ("output" or "gradient", micro-batch, stage): since when
    while any(todo):
        needs = {}
        for rank, steps in enumerate(todo):
            if steps:
                needs[rank] = [one for part in parts(steps[0]) for one in needed_by(rank, part, homes)]
        ready = [rank for rank, needed in needs.items() if there.keys() >= set(needed)]
        if not ready:
            rank = min(needs)
            what, micro_batch, stage = next(one for one in needs[rank] if one not in there)
            raise ValueError(f"rank {rank} is at {todo[rank][0]} and waits for ever for the {what} of micro-batch "
                             f"{micro_batch} by rank {homes[stage]}")
        for rank in ready:
            step = todo[rank].pop(0)
            if step in starts[rank]:
                raise ValueError(f"rank {rank} does {step} twice")
            starts[rank][step] = max([clocks[rank], *(there[one] for one in needs[rank])])
            clocks[rank] = starts[rank][step] + cost(step)
            for part in parts(step):
                if part[0] != "W":
                    what = "output" if part[0] == "F" else "gradient"
                    there[what, part[1], stage_of(rank, part)] = clocks[rank]
    return Timeline(starts)


def stage_of(rank, step):
    """The stage that a step names, or the rank's only one."""
    _, _, *named = step
    return named[0] if named else rank


def ranks_of_stages(orders):
    """{stage: the rank on which it lies}, as the steps say."""
    return {stage_of(rank, step): rank for rank, order in enumerate(orders) for step in parts_of(order)}


def needed_by(rank, step, homes):
    """What must be there before this step starts, as ("output" or "gradient", micro-batch, stage)."""
    kind, micro_batch, *_ = step
    stage = stage_of(rank, step)
    needed = {
        "F": [("output", stage - 1)],
        "B": [("output", stage), ("gradient", stage + 1)],
        "I": [("output", stage), ("gradient", stage + 1)],
        "W": [("gradient", stage)],
    }
    # Before the first stage comes the data, behind the last one the loss.
    return [(what, micro_batch, its_stage) for what, its_stage in needed[kind] if its_stage in homes]


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
    forwards, backwards = rounds(rank, ranks, micro_batches, per_rank)
    # The last rank starts its backwards once all of its stages but the last have done as many micro-batches as there
    # are ranks. Each rank before it does two forwards more: its first forward comes one step earlier, and its first
    # backward one step later.
    warm_up = (per_rank - 1) * ranks + 2 * (ranks - 1 - rank)
    return in_turns(forwards, backwards, warm_up)


def rounds(rank, ranks, micro_batches, per_rank):
    """Forwards and backwards of a rank whose stages take turns: as many micro-batches as ranks, then the next stage."""
    forwards = []
    backwards = []
    for start in range(0, micro_batches, ranks):
        for part in range(per_rank):
            for i in range(start, min(start + ranks, micro_batches)):
                forwards.append(("F", i, part * ranks + rank))
                # Backward comes to the rank's stages in the opposite order.
                backwards.append(("B", i, (per_rank - 1 - part) * ranks + rank))
    return forwards, backwards


def in_turns(forwards, backwards, warm_up):
    """The first `warm_up` forwards, then forward and backward in turn, then the backwards that are left."""
    order = forwards[:warm_up]
    turns = len(forwards) - len(order)
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[turns:]


def zero_bubble_1p(rank, ranks, micro_batches, per_rank=1):
    """ZB-1P: 1F1B whose backwards are halved. On rank r, the weights' gradients come r backwards late.

    So the rank before gets its gradient sooner, and a rank that would wait at the end has something to do. With 2 or
    more stages on each rank, p ranks take a multiple of p micro-batches.
    Source: Qi et al., 2023, https://arxiv.org/abs/2401.10241, section 2, figure 3 (there ZB-H1).
    """
    forwards, backwards = rounds(rank, ranks, micro_batches, per_rank)
    warm_up = (per_rank - 1) * ranks + ranks - 1 - rank
    order = []
    late = []
    for kind, i, stage in in_turns(forwards, backwards, warm_up):
        if kind == "F":
            order.append(("F", i, stage))
        else:
            order.append(("I", i, stage))
            late.append(("W", i, stage))
        if len(late) > rank:
            order.append(late.pop(0))
    return order + late


def zero_bubble_v(rank, ranks, micro_batches):
    """ZB-V: two stages on each rank, laid out like a V, and weights' gradients where a rank would wait.

    The first stage and the last lie on rank 0. Source: Qi et al., 2023, https://arxiv.org/abs/2401.10241, section 6.
    """
    first, last = rank, 2 * ranks - 1 - rank
    behind = ranks - rank  # ranks from here to the bottom of the V
    forward_1, input_1, weights_1 = ("F", first), ("I", first), ("W", first)
    forward_2, input_2, weights_2 = ("F", last), ("I", last), ("W", last)
    # With fewer micro-batches it is the same schedule, and those that are too many are left out.
    enough = max(2 * ranks - 1, micro_batches)
    turn = [input_1, weights_1, forward_2, input_2, weights_2]
    steps = [
        *[forward_1] * (2 * behind - 1),
        *[forward_2, forward_1] * rank,
        *[forward_2, input_2, weights_2] * behind,
        *[forward_1, *turn] * (enough - ranks - behind + 1),
        *turn * (behind - 1),
        *[input_1, input_2] * rank,
        *[input_1, weights_1] * behind,
        *[weights_2] * rank,
        *[weights_1] * rank,
    ]
    return [step for step in numbered(steps) if step[1] < micro_batches]


def dual_pipe_v(rank, ranks, micro_batches):
    """DualPipeV: the stages like a V; in the middle a forward of one end and a backward of the other go together.

    It takes at least twice as many micro-batches as there are ranks. The forward and the backward are a pair, so that
    each hides the other's messages. Here a pair takes as long as both together. So each of p ranks is idle for
    2 * (p - 1). For these costs, DeepSeek's formula says the same: (PP/2 - 1) * (F&B + B - 3W), with PP = 2p stages.
    Source: https://github.com/deepseek-ai/DualPipe; DualPipe itself: https://arxiv.org/abs/2412.19437, section 3.2.1.
    """
    first, last = rank, 2 * ranks - 1 - rank
    behind = ranks - 1 - rank
    forward_1, backward_1, input_1 = ("F", first), ("B", first), ("I", first)
    forward_2, backward_2, input_2 = ("F", last), ("B", last), ("I", last)
    weights = ("W", None)  # of the stage that waits longest
    turns = micro_batches - ranks - behind
    pair_1, pair_2 = (forward_1, backward_2), (forward_2, backward_1)
    first_turn = [pair_1, pair_2] if behind else [*pair_1, pair_2]  # as in torch
    # At the end only inputs' gradients are hurried on, for which the ranks before wait.
    last_backwards = [(backward_2, input_2), (backward_1, input_1)] * (rank + 1)
    steps = [
        *[forward_1] * (2 * behind),
        *[forward_1, forward_2] * (rank + 1),
        *[input_2, weights, forward_2] * behind,
        *first_turn,
        *[pair_1, pair_2] * (turns - 1),
        *[backward_2, pair_2] * behind,
        *[whole for whole, _ in last_backwards[:rank + 1]],
        *[part for _, part in last_backwards[rank + 1:]],
        *[weights, input_1] * behind,
        *[weights] * (rank + 1),
    ]
    return numbered(steps)


def numbered(steps):
    """Steps (kind, stage) as (kind, micro-batch, stage): each stage takes its micro-batches one after the other.

    A "W" without a stage is that of the oldest "I" that has none yet. Pairs stay pairs.
    """
    counts = {}
    without_weights = []  # (micro-batch, stage)

    def number(kind, stage):
        if kind == "W":
            micro_batch, stage = next(one for one in without_weights if stage in (None, one[1]))
            without_weights.remove((micro_batch, stage))
        else:
            counted = kind == "F", stage  # a "B" and an "I" count as the same
            micro_batch = counts.get(counted, 0)
            counts[counted] = micro_batch + 1
            if kind == "I":
                without_weights.append((micro_batch, stage))
        return kind, micro_batch, stage

    order = []
    for step in steps:
        numbers = tuple(number(*part) for part in parts(step))
        order.append(numbers if len(numbers) > 1 else numbers[0])
    return order


def receiver(rank, step, homes):
    """The rank that gets a step's result, or None if no other one does."""
    kind, *_ = step
    toward = {"F": 1, "B": -1, "I": -1}
    if kind == "W":
        return None
    other = homes.get(stage_of(rank, step) + toward[kind])
    return None if other == rank else other


def messages(orders):
    """How often a rank sends to another: at each border each micro-batch's output, and its gradient back."""
    homes = ranks_of_stages(orders)
    return sum(receiver(rank, step, homes) is not None for rank, order in enumerate(orders) for step in parts_of(order))
