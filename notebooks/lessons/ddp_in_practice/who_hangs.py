"""Who hangs? Programs of a few ranks: where they end by gloo's rules, and where real ranks end.

A program is a list of operations for each rank:

    program = read("save, barrier, all_reduce | barrier, all_reduce")    # of rank 0 | of rank 1
    outcome(program)                                                    # by gloo's rules, without a process
    in_real_ranks(program)[0]                                           # the same program, by `launch`
    differences(program, in_real_ranks(program)[0])                     # [] if they agree

gloo matches collectives by their number in the group, and compares what they are, but not how large their tensors
are. A `send` ends when its `recv` has come, however small it is. These rules were measured, and read in the source of
gloo (github.com/facebookincubator/gloo: barrier.cc, broadcast.cc, allreduce.cc, types.h, transport/tcp/pair.cc).
"""

import json
import os
import re
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from helpers import RankError, launch, report
from helpers.reporting import RUN_FOLDER

#: What a rank may do, and the line that does it. `send` and `recv` have the other rank's number behind them.
OPERATIONS = {
    "compute": "compute()",
    "save": "torch.save(net, path)",
    "all_reduce": "dist.all_reduce(loss)",
    "bucket 0": "dist.all_reduce(bucket_0)",
    "bucket 1": "dist.all_reduce(bucket_1)",
    "broadcast": "dist.broadcast(weights, 0)",
    "barrier": "dist.barrier()",
    "send": "dist.send(x, {})",
    "recv": "dist.recv(x, {})",
}
LOCAL = {"compute", "save"}
PAIRWISE = {"send", "recv"}
#: All-reduces, and how many numbers each of them adds up: a loss, and the buckets of a backward pass.
NUMBERS = {"all_reduce": 1, "bucket 0": 50, "bucket 1": 30}
MOST_RANKS = 4
MOST_OPERATIONS = 6
#: Ranks in one launch.
MOST_AT_ONCE = 60

FINISHED, WAITS, UNDEFINED, ERROR = "finished", "waits", "undefined", "error"


class End(NamedTuple):
    """Where a rank is in the end."""

    state: str  # FINISHED; WAITS, for ever; UNDEFINED, by gloo; of a real rank also ERROR
    operation: str = ""  # in which it is
    waits_for: tuple = ()  # the ranks that never come to it
    error: str = ""  # what a real rank has raised, or how it died


class Stay(NamedTuple):
    """An operation of a rank in logical time: each takes a unit of it. None is never."""

    operation: str
    number: int | None  # of the collective in the group, from 1
    comes: int | None  # when the rank comes to it
    begins: int | None  # when all have come that it needs
    partners: tuple  # the operations that it needs, (rank, place); place is behind the last one if there is none
    waits_for: tuple  # the ranks that it needs and that never come to it
    is_undefined: bool  # a rank came to this collective with a tensor of another size

    @property
    def ends(self):
        return None if self.begins is None else self.begins + 1


# ------------------------------------------------------------------------------------------------ a program as text


def read(text):
    """The program of a text such as "save, barrier | barrier".

    Raises:
        ValueError: says what cannot be read.
    """
    program = [[_operation(words, rank) for words in lane.split(",") if words.strip()]
               for rank, lane in enumerate(text.split("|"))]
    if not 2 <= len(program) <= MOST_RANKS:
        raise ValueError(f"Number of ranks: {len(program)}. Write 2 to {MOST_RANKS} ranks, with | between them.")
    for rank, lane in enumerate(program):
        if len(lane) > MOST_OPERATIONS:
            raise ValueError(f"Rank {rank} has {len(lane)} operations. There is room for {MOST_OPERATIONS}.")
        for operation in lane:
            peer = peer_of(operation)
            if peer is not None and (peer == rank or peer >= len(program)):
                raise ValueError(f"Rank {rank} cannot {operation}: that is no other rank of this program.")
    return program


def _operation(words, rank):
    words = " ".join(words.split())
    if (words in OPERATIONS and words not in PAIRWISE) or re.fullmatch(r"(send|recv) \d", words):
        return words
    raise ValueError(f"Rank {rank}: “{words}” is no operation. These are: {', '.join(OPERATIONS)} "
                     "(send and recv with a rank, such as send 1).")


def written(program):
    """The text of a program, for `read`."""
    return " | ".join(", ".join(lane) for lane in program)


def peer_of(operation):
    """The other rank of a `send` or a `recv`; None for other operations."""
    name, _, peer = operation.partition(" ")
    return int(peer) if name in PAIRWISE else None


def as_rows(program):
    """The program as one script has it: (operation, the set of the ranks that call it), in an order for all ranks."""
    left = [list(lane) for lane in program]
    rows = []
    while any(left):
        firsts = [lane[0] for lane in left if lane]
        # What some rank calls only later waits, so that its callers meet in one row.
        later = Counter(operation for lane in left for operation in set(lane[1:]) if operation != lane[0])
        chosen = min(firsts, key=lambda operation: (later[operation], -firsts.count(operation)))
        ranks = {rank for rank, lane in enumerate(left) if lane and lane[0] == chosen}
        for rank in ranks:
            del left[rank][0]
        rows.append((chosen, ranks))
    return rows


def from_rows(rows, ranks):
    """The program of so many ranks whose script has these rows."""
    return [[operation for operation, callers in rows if rank in callers] for rank in range(ranks)]


def as_python(program):
    """The lines of a script that is this program."""
    everybody = set(range(len(program)))
    lines = []
    before = everybody
    for operation, ranks in as_rows(program):
        if ranks != before and ranks != everybody:
            lines.append(f"if {_condition(ranks, everybody)}:")
        indentation = "" if ranks == everybody else "    "
        lines.append(indentation + line_of(operation))
        before = ranks
    return lines


def _condition(ranks, everybody):
    if len(ranks) == 1:
        return f"rank == {min(ranks)}"
    if len(everybody - ranks) == 1:
        return f"rank != {min(everybody - ranks)}"
    return f"rank in {tuple(sorted(ranks))}"


def line_of(operation):
    """The line of Python that an operation is."""
    if peer_of(operation) is None:
        return OPERATIONS[operation]
    name, _, peer = operation.partition(" ")
    return OPERATIONS[name].format(peer)


# ---------------------------------------------------------------------------------------------------- gloo's rules


def stays(program):
    """By rank, a `Stay` for each of its operations."""
    # When a rank comes to an operation, and when that begins, by (rank, place). Who waits for ever gets no entry.
    comes = {(rank, 0): 0 for rank, lane in enumerate(program) if lane}
    begins = {}
    partners = {place: _partners(program, *place) for place in _places(program)}
    moved = True
    while moved:
        moved = False
        for rank, place in list(comes):
            here = rank, place
            needs = [here, *partners[here]]
            if here in begins or any(other not in comes or not _matches(program, here, other) for other in needs):
                continue
            begins[here] = max(comes[other] for other in needs)
            if place + 1 < len(program[rank]):
                comes[rank, place + 1] = begins[here] + 1
            moved = True

    def stay(rank, place):
        here = rank, place
        absent, is_undefined = [], False
        if here in comes and here not in begins:
            for other in partners[here]:
                if other not in comes or not _matches(program, here, other):
                    absent.append(other[0])
            is_undefined = any(_clashes(program, here, other) for other in _same_number(program, here)
                               if other in comes)
        number = _number(program, rank, place)
        return Stay(program[rank][place], number, comes.get(here), begins.get(here), tuple(partners[here]),
                    tuple(absent), is_undefined)

    return [[stay(rank, place) for place in range(len(lane))] for rank, lane in enumerate(program)]


def outcome(program):
    """By rank, its `End` by gloo's rules. A rank that has finished stays: its connections are open."""
    return [_end_of(lane) for lane in stays(program)]


def _end_of(lane):
    state = state_of(lane)
    if state == FINISHED:
        return End(FINISHED)
    stuck = next(stay for stay in lane if stay.begins is None)
    return End(state, stuck.operation, stuck.waits_for)


def state_of(lane):
    """FINISHED, WAITS or UNDEFINED, of the stays of one rank."""
    if any(stay.is_undefined for stay in lane):
        return UNDEFINED
    return WAITS if any(stay.begins is None for stay in lane) else FINISHED


def is_undefined(program):
    """Whether gloo does not define how a rank of the program ends."""
    return any(end.state == UNDEFINED for end in outcome(program))


def recorder(program):
    """By rank, what torch's flight recorder holds for gloo: [(number, name, whether it is retired)].

    It numbers collectives, barriers among them. A `send` or a `recv` over gloo is no entry.
    """
    entries = []
    for lane in stays(program):
        called = [stay for stay in lane if stay.number is not None and stay.comes is not None]
        entries.append([(stay.number, kind_of(stay.operation), stay.begins is not None) for stay in called])
    return entries


def kind_of(operation):
    return "all_reduce" if operation in NUMBERS else operation


def _places(program):
    return [(rank, place) for rank, lane in enumerate(program) for place in range(len(lane))]


def _is_collective(operation):
    return operation not in LOCAL and peer_of(operation) is None


def _number(program, rank, place):
    """The number of a collective among those of its rank, from 1; None for other operations."""
    lane = program[rank]
    if not _is_collective(lane[place]):
        return None
    return sum(map(_is_collective, lane[:place + 1]))


def _collective(program, rank, number):
    """The place of a rank's collective of that number; a place behind its last one if it has none."""
    places = [place for place, operation in enumerate(program[rank]) if _is_collective(operation)]
    return rank, places[number - 1] if number <= len(places) else len(program[rank])


def _same_number(program, here):
    """What other ranks call as their collective of that number."""
    rank, place = here
    number = _number(program, rank, place)
    others = [other for other in range(len(program)) if other != rank]
    return [_collective(program, other, number) for other in others] if number else []


def _partners(program, rank, place):
    """The operations of other ranks, (rank, place), without which this one does not end."""
    operation = program[rank][place]
    if operation in LOCAL:
        return []
    peer = peer_of(operation)
    if peer is not None:
        return [_other_side(program, rank, place)]
    everybody = _same_number(program, (rank, place))
    if operation != "broadcast":
        return everybody
    return [other for other in everybody if other[0] in tree(rank, len(program))]


def tree(rank, ranks):
    """For gloo's broadcast from rank 0: those from whom the numbers come to a rank, and to whom it sends them.

    Rank 0 sends to 1; then 0 and 1 send to 2 and 3; and so on.
    """
    passes = set()
    ahead = rank
    while ahead:
        ahead -= 1 << (ahead.bit_length() - 1)  # who has sent to this one: the number without its first bit
        passes.add(ahead)
    step = 1 << rank.bit_length()
    while rank + step < ranks:
        passes.add(rank + step)
        step *= 2
    return passes


def _other_side(program, rank, place):
    """The `recv` of a `send`, or its `send`: between two ranks, the first belongs to the first, and so on."""
    operation = program[rank][place]
    name, _, peer = operation.partition(" ")
    earlier = program[rank][:place].count(operation)
    other = f"{'recv' if name == 'send' else 'send'} {rank}"
    lane = program[int(peer)]
    places = [number for number, one in enumerate(lane) if one == other]
    return int(peer), places[earlier] if earlier < len(places) else len(lane)


def _matches(program, here, other):
    """Whether the operations at two places end together, once both ranks have come."""
    one, two = program[here[0]][here[1]], program[other[0]][other[1]]
    return one == two or peer_of(one) is not None


def _clashes(program, here, other):
    """Whether two ranks call the same all-reduce with tensors of different sizes."""
    one, two = program[here[0]][here[1]], program[other[0]][other[1]]
    return one in NUMBERS and two in NUMBERS and NUMBERS[one] != NUMBERS[two]


# ------------------------------------------------------------------------------------------------------ real ranks


class Tried(NamedTuple):
    """What real ranks did."""

    ends: list  # by rank, its `End`, without `waits_for`
    recorder: list  # by rank, as `recorder` returns it
    words: str  # what `launch` has said in the end, without lines of this file; empty if it has raised nothing


def in_real_ranks(*programs, seconds=2):
    """What the ranks of each program really do, many programs at once in one launch: a `Tried` for each.

    A rank that has finished stays until all have, as in a long computation. After `seconds` the launch is ended, and
    who has not finished by then hangs. If a rank moved in the last half of that time, it is given more.
    """
    together = MOST_AT_ONCE // MOST_RANKS
    if len(programs) > together:
        first = in_real_ranks(*programs[:together], seconds=seconds)
        return first + in_real_ranks(*programs[together:], seconds=seconds)
    while True:
        tried, quiet = _launched(programs, seconds)
        if quiet >= seconds / 2 or seconds > 30 or not any(one.words for one in tried):
            return tried
        seconds *= 2


def differences(program, tried):
    """In words, where real ranks ended in another way than by gloo's rules."""
    may_differ = is_undefined(program)
    found = []
    for rank, (end, real) in enumerate(zip(outcome(program), tried.ends, strict=True)):
        may_be = {end.state}
        if end.state == UNDEFINED:
            may_be = {WAITS, ERROR}
        elif end.state == WAITS and may_differ:  # a connection to a rank that has aborted is closed
            may_be = {WAITS, ERROR}
        if real.state not in may_be or real.operation != end.operation:
            found.append(f"rank {rank}: {end.state} {end.operation}, but really {real.state} {real.operation}")
    if not may_differ and recorder(program) != tried.recorder:
        found.append(f"the flight recorder holds {tried.recorder}")
    return found


def _launched(programs, seconds):
    """What `launch` has left of the programs, and for how many seconds no rank had moved in the end."""
    owners = [(number, rank) for number, program in enumerate(programs) for rank in range(len(program))]
    at = dict.fromkeys(owners)
    errors, entries = {}, {}
    last_news = time.monotonic()

    def hear(launched_rank, row):
        nonlocal last_news
        owner = owners[launched_rank]
        if "entries" in row:
            entries[owner] = [tuple(entry) for entry in json.loads(row["entries"])]
            return
        last_news = time.monotonic()
        at[owner] = row["place"]
        if "error" in row:
            errors[owner] = row["error"]

    said = ""
    try:
        launch(run_program, len(owners), args=(programs,), show=False, timeout=seconds, grace=seconds,
               env={"TORCH_FR_BUFFER_SIZE": "100"}, on_report=hear)
    except RankError as error:
        said = _in_words_of_the_program(str(error), at, owners, programs)
        for failure in error.failures:
            if not failure.is_hang:
                errors[owners[failure.rank]] = failure.message
    quiet = time.monotonic() - last_news
    if None in at.values() and not errors:
        quiet = 0  # a slow rank has not even begun

    def end(owner):
        number, rank = owner
        lane, place = programs[number][rank], at[owner]
        if place is None:
            return End("not begun", error=errors.get(owner, ""))
        if owner in errors:
            return End(ERROR, lane[place], error=errors[owner])
        return End(FINISHED) if place == len(lane) else End(WAITS, lane[place])

    tried = []
    for number, program in enumerate(programs):
        ranks = [(number, rank) for rank in range(len(program))]
        tried.append(Tried([end(owner) for owner in ranks], [entries.get(owner, []) for owner in ranks], said))
    return tried, quiet


def _in_words_of_the_program(said, at, owners, programs):
    """What `launch` says of a hang, with the program's lines in place of this file's."""
    said = re.sub(r" \(who_hangs.py[^)]*\)", "", said)
    said = said.replace("at `time.sleep(0.01)`", "behind its last line")  # in `_meet`

    def line(match):
        owner = number, rank = owners[int(match[1])]
        return f"rank {match[1]} was at `{line_of(programs[number][rank][at[owner]])}`"

    said = re.sub(r"rank (\d+) was at `[^`]*int\(peer\)[^`]*`", line, said)
    return re.sub(r"\n(?=[A-Z])", ". ", said).replace("\n", " ")


def run_program(programs):
    """Runs in each rank of the launch: the lane of one rank of one program. Each program has a group of its own."""
    rank = int(os.environ["RANK"])
    number = 0
    while rank >= len(programs[number]):
        rank -= len(programs[number])
        number += 1
    program = programs[number]
    store = dist.FileStore(f"{os.environ[RUN_FOLDER]}/program {number}", len(program))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(program), timeout=timedelta(hours=1))
    _meet(store, "formed", len(program))  # who aborts before a slower rank has formed the group would spoil that
    threading.Thread(target=_report_entries, daemon=True).start()
    for place, operation in enumerate(program[rank]):
        report(place=place)
        try:
            run(operation)
        except RuntimeError as error:  # its connection to a rank that has died is closed
            report(place=place, error=f"{type(error).__name__}: {error}"[:300])
            time.sleep(3600)
    report(place=len(program[rank]))
    _meet(store, "finished", len(program))
    time.sleep(0.5)  # what has ended is retired, and reported, a moment later


def _meet(store, name, ranks):
    """Wait until so many ranks are here."""
    store.add(name, 1)
    while store.add(name, 0) < ranks:
        time.sleep(0.01)


def run(operation):
    """One operation of a rank, in the line that the explorer shows: `launch` quotes the line in which a rank waits."""
    loss, bucket_0, bucket_1 = (torch.ones(numbers) for numbers in NUMBERS.values())
    weights, x = torch.ones(1), torch.ones(1)
    name, _, peer = operation.partition(" ")
    if operation == "all_reduce":
        dist.all_reduce(loss)
    elif operation == "bucket 0":
        dist.all_reduce(bucket_0)
    elif operation == "bucket 1":
        dist.all_reduce(bucket_1)
    elif operation == "broadcast":
        dist.broadcast(weights, 0)
    elif operation == "barrier":
        dist.barrier()
    elif name == "send":
        dist.send(x, int(peer))
    elif name == "recv":
        dist.recv(x, int(peer))


def _report_entries():
    """Report what the flight recorder holds, from a thread, again and again: the rank itself may wait for ever."""
    from torch._C import _distributed_c10d as c10d  # underscores: private, it may move in a later torch

    before = None
    while True:
        entries = []
        for entry in json.loads(c10d._dump_fr_trace_json()).get("entries", []):
            name = entry["profiling_name"].removeprefix("gloo:")
            entries.append((entry["collective_seq_id"], name, entry["retired"]))
        if entries != before:
            report(entries=json.dumps(entries))
            before = entries
        time.sleep(0.1)
