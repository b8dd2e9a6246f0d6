"""Traces of all ranks, side by side: a rank that waits is not to blame, but the one that it waits for."""

import operator
import random
from itertools import product

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each
from helpers.instruments.traces import COMMUNICATION, OTHER, Event, Trace, together

LABELS = ("read files", "augment", "forward", "write log")


def traces_of(size, culprit, label, long):
    """Three steps of `size` ranks, made up: a rank held up while it records would be a second culprit."""
    draw = random.Random(7)
    now = [0.0] * size
    events = [[] for _ in range(size)]
    for _ in range(3):
        for rank, part in product(range(size), LABELS):
            microseconds = 30_000 * draw.uniform(0.95, 1.05) if part == long else 1_000 * draw.uniform(0.3, 2.5)
            if rank == culprit and part == label:
                microseconds += 18_000
            events[rank].append(Event(part, now[rank], microseconds, "thread 1", OTHER))
            now[rank] += microseconds
        end = max(now) + 500
        for rank, begin in enumerate(now):
            events[rank].append(Event("gloo:all_reduce", begin, end - begin, "thread 2", COMMUNICATION,
                                      group=("0", tuple(range(size)))))
        now = [end] * size
    return together([Trace(of_rank, rank) for rank, of_rank in enumerate(events)])


def as_pair(returned):
    """`(rank, label)`, whatever the types of its numbers; None if it is something else."""
    try:
        rank, label = returned
        return operator.index(rank), str(label)
    except (TypeError, ValueError):
        return None


class FindTheCulprit(Exercise):
    title = "Who holds everybody up, and with what?"
    task = ("`traces` are the traces of all ranks, by rank, on one clock. One rank takes many milliseconds longer "
            "with one part of its work, so the other ranks wait for it in the all-reduce. Return `(rank, label)`: "
            "that rank and the label of that part. The parts are labelled with `record_function`: "
            f"{', '.join(LABELS)}. "
            "You are given many traces of two, three and four ranks. They are made up, so "
            "that only one rank and one part are to blame.")
    hints = (
        "A rank that waits is not to blame. `waited_for(traces)` is a dict {(rank that waits, rank it waits "
        "for): seconds}.",
        "The label with the most time may take as long in every rank. Compare the ranks.",
        "`traces[rank].self_seconds()` is a dict {name: seconds}. Which name differs most from another "
        "rank's?",
    )
    explanation = ("The rank that others wait for most is the late one. The part on which it spends more "
                   "time than a waiting rank is the reason. A part that takes long in all ranks makes nobody "
                   "wait.")
    why = ("A slow disk, a hot GPU or a longer log can make a rank late. Its own trace looks "
           "innocent, because it never waits. You see it only beside the other ranks' traces.")

    cases = {"2 ranks": 2, "3 ranks": 3, "4 ranks": 4}

    def answer(traces):
        from helpers.instruments.traces import waited_for

        lost = waited_for(traces)
        rank = max(lost, key=lost.get)[1]                                                   #: rank
        late, other = traces[rank].self_seconds(), traces[rank - 1].self_seconds()          #: compared
        return rank, max(late, key=lambda name: late[name] - other.get(name, 0))            #: label

    def observe(find_the_culprit, size):
        named, no_pairs = {}, []
        # The rank that is to blame, the label of its part, and the one that takes long in every rank.
        for truth in product(range(size), LABELS, LABELS):
            returned = find_the_culprit(traces_of(size, *truth))
            pair = as_pair(returned)
            if pair is None:
                no_pairs.append(f"{returned!r:.60}")
            else:
                named[truth] = pair
        return {"no pairs": no_pairs, "named": named}

    # ---------------------------------------------------------------------------------------- what must hold

    def no_pair(mine, wanted, case):
        if mine["no pairs"]:
            return f"your function returned `{mine['no pairs'][0]}`", "`(rank, label)`, a whole number and a text"

    def another_rank(mine, wanted, case):
        for (culprit, part, _), (rank, _) in mine["named"].items():
            if rank != culprit:
                return f"you named rank {rank}", f"rank {culprit} keeps the others waiting, with {part!r}"

    def another_label(mine, wanted, case):
        for (_, part, _), (rank, label) in mine["named"].items():
            if label != part:
                return f"rank {rank} is right, but you named {label!r}", f"it keeps the others waiting with {part!r}"

    rules = (
        each(no_pair, "the `return`"),
        each(another_rank, "who waits, and for whom? `waited_for(traces)`"),
        each(another_label, "compare the rank with one that waits, name by name: which of the four parts takes "
                            "most seconds longer? (In the all-reduce, the waiting shows.)"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("that rank waits, so it is not to blame: which rank does it wait for?",
                rank="rank = max(lost, key=lost.get)[0]"),
        mistake("that part takes about as long in the others",
                label="return rank, max(late, key=lambda name: late[name])"),
        mistake("the others wait for seconds: the part with the largest factor may be a short one",
                label="return rank, max(late, key=lambda name: late[name] / other.get(name, 1))"),
        mistake("where does the late rank take longer? What is subtracted from what?",
                label="return rank, max(late, key=lambda name: other.get(name, 0) - late[name])"),
        mistake("rank 0 may be the late one itself: compare with one that waits",
                compared="late, other = traces[rank].self_seconds(), traces[0].self_seconds()"),
        mistake("the all-reduce only shows the waiting: which part before it took longer?",
                label="return rank, max(other, key=lambda name: other[name] - late.get(name, 0))"),
    )


find_the_culprit = FindTheCulprit()
