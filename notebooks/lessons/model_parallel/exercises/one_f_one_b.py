"""A pipeline's schedule: one forward and one backward in turns, after as many forwards as there is time for."""

from collections import Counter
from itertools import pairwise

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each, nothing
from lessons.model_parallel.schedules import simulate


class OneFOneB(Alone):
    title = "A schedule without waste"
    task = ("Return the list of what `rank` does in a pipeline of `ranks` stages with `micro_batches` "
            "micro-batches: pairs `(\"F\", i)` and `(\"B\", i)`, each micro-batch once forward and once "
            "backward. When the lesson's loop runs the lists of all p ranks with m micro-batches, the "
            "pipeline must end as early as it can, after 3(m + p − 1) units of time. Rank `r` may never hold "
            "more than p − r micro-batches between their forward and their backward. Messages have no "
            "names, so neighbours must go through the micro-batches in the same order.")
    hints = (
        "The last rank can do the backward of a micro-batch right after its forward. How long must the "
        "rank before it wait for the first gradient, and how many forwards fit into this time?",
        "First p − 1 − r forwards (or all, if there are fewer). Then one forward and one backward in "
        "turns. Then the backwards that are left.",
    )
    explanation = ("The first forwards fill the stages behind this one. From then on each backward makes "
                   "room for one forward, so a rank holds no more.")
    why = ("GPipe's order has the same bubble, and holds the activations of the whole batch. With 1F1B you "
           "can cut the batch into smaller micro-batches: then a rank holds less, and the bubble is smaller, "
           "too.")

    cases = {f"{stages} stages, {micro_batches} micro-batches": (stages, micro_batches)
             for stages, micro_batches in ((2, 2), (4, 8), (4, 2), (3, 7), (1, 3), (5, 5))}

    def answer(rank, ranks, micro_batches):
        warm = min(micro_batches, ranks - 1 - rank)                                         #: warm
        todo = [("F", i) for i in range(warm)]
        for i in range(micro_batches - warm):
            todo += [("F", warm + i), ("B", i)]                                             #: turns
        return todo + [("B", i) for i in range(micro_batches - warm, micro_batches)]        #: rest

    def observe(one_f_one_b, case):
        stages, micro_batches = case
        orders = []
        for rank in range(stages):
            steps = one_f_one_b(rank, stages, micro_batches)
            # A list for a pair is right, too.
            orders.append([tuple(step) if isinstance(step, list) else step for step in steps])
        try:
            timeline = simulate(orders)
        except (LookupError, TypeError, ValueError) as error:
            return {"orders": orders, "it cannot run": str(error)}
        return {"orders": orders, "it cannot run": "", "held": timeline.held, "units of time": timeline.end}

    # ---------------------------------------------------------------------------------------- what must hold

    take_turns = "when is the first backward possible? From then on forward and backward take turns"

    def other_steps(mine, wanted, case):
        _, micro_batches = case
        expected = f"F and B from 0 to {micro_batches - 1}, each once"
        for rank, (order, right) in enumerate(zip(mine["orders"], wanted["orders"], strict=True)):
            too_many = Counter(order) - Counter(right)
            missing = Counter(right) - Counter(order)
            if too_many:
                return f"rank {rank}'s list holds {min(too_many, key=str)}", expected
            if missing:
                return f"rank {rank}'s list lacks {min(missing, key=str)}", expected

    def in_another_order(mine, wanted, case):
        # Messages have no names: who receives in another order takes one micro-batch for another.
        for kind in "FB":
            orders = [[i for what, i in order if what == kind] for order in mine["orders"]]
            for rank, (here, behind) in enumerate(pairwise(orders)):
                if here != behind:
                    return f"rank {rank} does {kind} in the order {here}, rank {rank + 1} in {behind}", "the same order"

    def too_many_held(mine, wanted, case):
        stages, _ = case
        for rank, held in enumerate(mine["held"]):
            if held > stages - rank:
                return f"rank {rank} held {held} micro-batches", f"at most {stages - rank}"

    rules = (
        each(other_steps,
             "count the steps: pairs `(\"F\", i)` and `(\"B\", i)`, without the stage, once for each i from 0"),
        nothing("it cannot run",
                "a backward needs the rank's own forward, and the backward of the rank behind. Which rank gets its "
                "first gradient last, and can do most forwards before it?",
                "every instruction is done once, after those that it needs"),
        each(in_another_order, "messages between two ranks arrive in the order in which they were sent"),
        each(too_many_held, take_turns),
        between("units of time", lambda wanted, case: (0, wanted["units of time"]),
                "is a rank waiting for a gradient while it could do a forward? And do its backwards come in the "
                "order of its forwards?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(f"all forwards first is GPipe's order: {take_turns}", warm="warm = micro_batches"),
        mistake("there is one forward too many before the turns begin",
                warm="warm = min(micro_batches, ranks - rank)"),
        mistake("there is one forward too few before the turns begin",
                warm="warm = max(0, min(micro_batches, ranks - 2 - rank))"),
        mistake("the rank that gets its first gradient last does most forwards before it",
                warm="warm = min(micro_batches, rank)"),
        mistake("with fewer micro-batches than ranks behind, there are no more forwards",
                warm="warm = ranks - 1 - rank"),
        mistake("after the first forwards, what comes next? The last rank has had no forward yet",
                turns='todo += [("B", i), ("F", warm + i)]'),
        mistake("the first forwards need their backwards, too: at the end of the list", rest="return todo"),
    )


one_f_one_b = OneFOneB()
