"""Flight recorders' dumps: who waits for whom, since when?"""

from typing import NamedTuple

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same

# Groups are named by numbers, as in PyTorch. The mesh has two rows: ranks 0 and 1, and ranks 2 and 3.
EVERYBODY = "0"
FIRST_ROW = "1"
SECOND_ROW = "2"
FIRST_COLUMN = "3"
SECOND_COLUMN = "4"


class Entry(NamedTuple):
    """A collective that a rank came to."""

    group: str
    number: int
    """In its group."""
    name: str
    over: bool
    ago: float
    """How many seconds, when the dump was written."""


class Job(NamedTuple):
    """A case: which groups there are, and what each of four ranks wrote down, the oldest entry first."""

    groups: dict
    """{name: its ranks, in no certain order}"""
    entries: dict
    """{rank: its entries}"""

    def dumps(self):
        """What the learner's function is given."""
        hours_ahead = [0, 0, 2, -1]  # the clocks of the machines differ
        dumps = {}
        for rank, entries in self.entries.items():
            now = 1_795_000_000_000_000_000 + hours_ahead[rank] * 3600 * 10**9
            listed = []
            for place, entry in enumerate(entries):
                listed.append({
                    "record_id": 40 + place,
                    "process_group": [entry.group, "a group"],
                    "profiling_name": f"gloo:{entry.name}",
                    "collective_seq_id": entry.number,
                    "retired": entry.over,
                    "time_created_ns": now - round(entry.ago * 1e9),
                })
            dumps[rank] = {"now": now, "entries": listed[2:] + listed[:2]}  # in no certain order
        return dumps


class WhoWaits(Alone):
    title = "Who waits for whom, since when?"
    task = ("`dumps[rank]` is what a rank wrote down, a dict. `\"now\"` is the moment, in nanoseconds, by "
            "that rank's clock. `\"entries\"` is a list, in no certain order, of collectives to which the "
            "rank came. (The oldest ones may be gone.) An entry is a dict, too:\n\n"
            "- `\"record_id\"` counts up in this rank, and `\"time_created_ns\"` says when the rank came;\n"
            "- `\"process_group\"` is a list that begins with the group's name, and `\"collective_seq_id\"` "
            "is the collective's number in that group;\n"
            "- `\"retired\"` says whether the collective is over for this rank, and `\"profiling_name\"` is "
            "its name.\n\n"
            "A rank **waits** in its first collective that is not over. `groups[name]` lists the ranks of a "
            "group. Return a dict with an item for each rank that waits, `rank: (profiling_name, seconds, "
            "missing)`: the name as it is, how long the rank has waited, and the sorted list of those ranks "
            "of the group that have not come to this collective.")
    hints = (
        "Not `retired` is not over. The smallest `record_id` among those is where the rank stands.",
        "A rank has come to number 7 of a group if it has that number in that group, or a later one: an "
        "old entry may have fallen out.",
        "The clocks of machines differ: take times of one dump only.",
    )
    explanation = ("Numbers count within a group, and times within a machine. So compare numbers of the same "
                   "group, and times of the same dump.")
    why = ("in a job with hundreds of groups one rank that does not come stops all, through chains of groups "
           "that wait for groups. Following `missing` from rank to rank leads to the one that waits for "
           "nobody.")

    mesh = {EVERYBODY: [0, 2, 1, 3], FIRST_ROW: [0, 1], SECOND_ROW: [2, 3], FIRST_COLUMN: [0, 2], SECOND_COLUMN: [1, 3]}

    # Collectives that several ranks came to. Those named `in_…` are not over.
    begun = Entry(EVERYBODY, 1, "broadcast", over=True, ago=60)
    in_second = Entry(EVERYBODY, 2, "all_reduce", over=False, ago=5)
    in_scatter = Entry(EVERYBODY, 2, "reduce_scatter", over=False, ago=6)
    in_gather = Entry(EVERYBODY, 3, "all_gather", over=False, ago=5.5)
    seventh_done = Entry(EVERYBODY, 7, "broadcast", over=True, ago=3)
    tenth_done = Entry(EVERYBODY, 10, "broadcast", over=True, ago=1)
    row_gathered = Entry(FIRST_ROW, 1, "all_gather", over=True, ago=9)
    row_sent = Entry(FIRST_ROW, 2, "broadcast", over=True, ago=4)
    column_reduced = Entry(SECOND_COLUMN, 2, "all_reduce", over=True, ago=8)

    cases = {
        # Rank 2 is missing.
        "one group": Job({EVERYBODY: [0, 2, 1, 3]}, {
            0: [begun, in_second],
            1: [begun, in_second],
            2: [begun],
            3: [begun, Entry(EVERYBODY, 2, "all_reduce", over=False, ago=3.5)],
        }),
        # Rank 0 waits for rank 1, which has come to a number 2, but to that of its column.
        "two groups that count alike": Job(mesh, {
            0: [begun, row_gathered, Entry(FIRST_ROW, 2, "all_reduce", over=False, ago=4)],
            1: [begun, row_gathered, column_reduced],
            2: [begun],
            3: [begun, column_reduced],
        }),
        # Ranks 0, 1 and 2 wait in number 2, for rank 3. What they have asked for after it tells nothing.
        "asked for more before it waits": Job(mesh, {
            0: [begun, in_scatter, in_gather, Entry(EVERYBODY, 4, "barrier", over=False, ago=5)],
            1: [begun, row_gathered, in_scatter, in_gather],
            2: [begun, in_scatter],
            3: [begun],
        }),
        # Rank 1 waits in number 8, for rank 2 alone: ranks 0 and 3 list no number 8 any more, but have come to 10.
        "old entries have fallen out": Job(mesh, {
            0: [tenth_done],
            1: [seventh_done, Entry(EVERYBODY, 8, "all_reduce", over=False, ago=2)],
            2: [seventh_done],
            3: [tenth_done],
        }),
        "nobody waits": Job(mesh, {
            0: [begun],
            1: [begun],
            2: [],
            3: [begun],
        }),
        # Rank 0 waits in number 9. Its last entry is over: the sender of a broadcast waits for nobody.
        "a later one is over": Job(mesh, {
            0: [Entry(EVERYBODY, 9, "all_reduce", over=False, ago=6),
                Entry(FIRST_ROW, 1, "all_gather", over=False, ago=5),
                row_sent],
            1: [row_sent],
            2: [begun],
            3: [begun],
        }),
        # A cable was pulled while they sent.
        "all have come": Job(mesh, {
            0: [begun, in_second],
            1: [begun, in_second],
            2: [begun, in_second],
            3: [begun, in_second],
        }),
    }

    def answer(dumps, groups):
        def came(rank, name, number):
            return any(entry["process_group"][0] == name and entry["collective_seq_id"] >= number       #: came
                       for entry in dumps[rank]["entries"])

        waiting = {}
        for rank, dump in dumps.items():
            waits = [entry for entry in dump["entries"] if not entry["retired"]]                        #: waits
            if waits:
                first = min(waits, key=lambda entry: entry["record_id"])                                #: first
                name, number = first["process_group"][0], first["collective_seq_id"]
                seconds = (dump["now"] - first["time_created_ns"]) / 1e9                                #: seconds
                missing = sorted(other for other in groups[name] if not came(other, name, number))      #: missing
                waiting[rank] = first["profiling_name"], seconds, missing
        return waiting

    def observe(who_waits, job):
        returned = who_waits(job.dumps(), job.groups)
        rows = sorted((int(rank), *row) for rank, row in returned.items())
        waits = {rank: rank in returned for rank in job.entries}
        names = {}
        seconds_waited = {}
        missing_ranks = {}
        for rank, name, seconds, missing in rows:
            names[rank] = str(name)
            seconds_waited[rank] = float(seconds)
            if isinstance(missing, list | tuple):
                missing = [int(other) for other in missing]
            missing_ranks[rank] = str(missing)
        return {"waits": waits, "profiling_name": names, "seconds": seconds_waited, "missing": missing_ranks}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("waits", "a rank waits if any of its entries is not `retired`: look at all of them. Keys are numbers"),
        same("profiling_name", "the first by `record_id` that is not `retired`; its name, as it is"),
        same("seconds", "take both times from the same dump; a second has 10⁹ nanoseconds", within=1e-3),
        same("missing", "whose group is it, and who has come to that number *of that group*, or to a later "
                        "one? The list is sorted"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("entries come in no certain order: sort them by `record_id`", first="first = waits[0]"),
        mistake("it waits in the first; it has only asked for the later ones",
                first='first = max(waits, key=lambda entry: entry["record_id"])'),
        mistake("each group counts for itself",
                first='first = min(waits, key=lambda entry: entry["collective_seq_id"])'),
        mistake("number 2 of another group is another collective",
                came='return any(entry["collective_seq_id"] >= number for entry in dumps[rank]["entries"])'),
        mistake("a rank that has come to a later number has come to this",
                came='return any(entry["process_group"][0] == name and entry["collective_seq_id"] == number\n'
                     '           for entry in dumps[rank]["entries"])'),
        mistake("an entry says that its rank has come, over or not",
                came='return any(entry["process_group"][0] == name and entry["collective_seq_id"] >= number\n'
                     '           and entry["retired"] for entry in dumps[rank]["entries"])'),
        mistake("the clocks of machines differ: take both times from one dump",
                seconds='seconds = (dumps[0]["now"] - first["time_created_ns"]) / 1e9'),
        mistake("only the ranks of that group are missed there",
                missing="missing = sorted(other for other in dumps if not came(other, name, number))"),
        mistake("a `retired` entry is over: nobody waits in it any more",
                waits='waits = [entry for entry in dump["entries"]]'),
    )


who_waits = WhoWaits()
