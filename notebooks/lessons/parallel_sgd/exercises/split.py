"""A shard of the samples for every worker, none empty, and none two samples longer than another."""

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each

IN_ORDER = "ranges in order, without gaps, from 0 to the last sample, whose lengths differ by one at most"


class Split(Alone):
    title = "A shard for every worker"
    task = ("Share out the samples `0 … n_samples - 1`: return a list of `n_workers` ranges, in order and "
            "without gaps. Their lengths differ by one at most. Raise `ValueError` if `n_workers` is less "
            "than 1, or greater than `n_samples`, because a shard would then be empty.")
    hints = (
        "Where does the range of worker `rank` begin? Each range ends where the next one begins.",
        "`rank * n_samples // n_workers` spreads the remainder over the workers. Check the bad cases "
        "first, and `raise`.",
    )
    explanation = ("`rank * n_samples // n_workers` is where a worker's fair share begins, rounded down. "
                   "Each range ends where the next one begins, so no sample is lost.")
    why = ("an empty shard trains nothing, and its untrained model counts in the average as much as any "
           "other. A worker with a longer shard makes the others wait. The article gives the whole "
           "remainder to the last worker; your ranges are fairer.")

    cases = {
        "10 samples among 3 workers": (10, 3),
        "11 samples among 3 workers": (11, 3),
        "17 samples among 5 workers": (17, 5),
        "1437 samples among 4 workers": (1437, 4),
        "8 samples among 4 workers": (8, 4),
        "5 samples among 1 worker": (5, 1),
        "4 samples among 4 workers": (4, 4),
        # Those that are to be refused.
        "5 samples among 0 workers": (5, 0),
        "5 samples among -1 workers": (5, -1),
        "3 samples among 4 workers": (3, 4),
        "0 samples among 2 workers": (0, 2),
        "0 samples among 0 workers": (0, 0),
    }

    def answer(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:                                                     #: check
            raise ValueError(f"cannot split {n_samples} samples among {n_workers} workers")     #: refuse
        starts = [rank * n_samples // n_workers for rank in range(n_workers)]                   #: starts
        ends = [*starts[1:], n_samples]                                                         #: ends
        return [range(starts[rank], ends[rank]) for rank in range(n_workers)]

    def observe(split, case):
        n_samples, n_workers = case
        try:
            shards = split(n_samples, n_workers)
        except Exception as error:
            if 1 <= n_workers <= n_samples:
                raise  # so that the learner sees the line
            if isinstance(error, ValueError):
                return {"raised": "ValueError"}
            return {"raised": repr(error)}
        if isinstance(shards, list) and all(isinstance(shard, range) for shard in shards):
            return {"raised": "", "no ranges": "", "shards": shards}
        return {"raised": "", "no ranges": f"{shards!r:.60}"}

    # ---------------------------------------------------------------------------------------- what must hold

    def not_refused(mine, wanted, case):
        if mine["raised"] == wanted["raised"]:
            return None
        expected = "`ValueError`: there is no worker, or not a sample for each"
        if mine["raised"]:
            return f"it raised {mine['raised']}", expected
        returned = mine["no ranges"] or mine["shards"]
        return f"it returned {returned}", expected

    def not_all_once(mine, wanted, case):
        if mine["raised"]:
            return None
        n_samples, n_workers = case
        if mine["no ranges"]:
            return f"it returned {mine['no ranges']}", f"a list of {n_workers} ranges"
        shards = mine["shards"]
        if len(shards) != n_workers:
            return f"it returned {shards}", f"a list of {n_workers} ranges"
        samples = []
        for shard in shards:
            samples.extend(shard)
        if samples != list(range(n_samples)):
            return f"it returned {shards}, which is not every sample once, in order", IN_ORDER

    def uneven(mine, wanted, case):
        if mine["raised"]:
            return None
        sizes = [len(shard) for shard in mine["shards"]]
        if max(sizes) - min(sizes) > 1:
            return f"the ranges are {', '.join(map(str, sizes))} long", IN_ORDER

    raise_it = "`raise ValueError(…)` before you compute. `assert` raises another error"

    rules = (
        each(not_refused, raise_it),
        each(not_all_once, "where does each range begin and end? Return a list of ranges"),
        each(uneven, "which workers get what is left over?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    rounded_down = "size = n_samples // n_workers\nstarts = [rank * size for rank in range(n_workers)]"

    mistakes = (
        mistake("the last worker gets the whole remainder. Spread it over the workers", starts=rounded_down),
        mistake("who takes what is left over?", starts=rounded_down, ends="ends = [start + size for start in starts]"),
        mistake("lengths that are rounded up leave too little for the last worker",
                starts="starts = [min(rank * -(-n_samples // n_workers), n_samples) for rank in range(n_workers)]"),
        mistake("a rounded size, times the number of workers, leaves too much or too little for the last one",
                starts="starts = [rank * round(n_samples / n_workers) for rank in range(n_workers)]"),
        mistake("a range ends just before its second number", ends="ends = [*starts[1:], n_samples + 1]"),
        mistake("ask for more workers than samples, too, because a shard would be empty", check="if n_workers < 1:"),
        mistake("ask for fewer than one worker, too, before you divide", check="if n_workers > n_samples:"),
        mistake(raise_it,
                refuse='raise IndexError(f"cannot split {n_samples} samples among {n_workers} workers")'),
    )


split = Split()
