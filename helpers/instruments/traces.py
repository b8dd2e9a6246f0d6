"""Read the traces that torch.profiler writes, and count where the time went.

    trace = read("trace.json")             # what `prof.export_chrome_trace("trace.json")` wrote; or .json.gz
    trace.seconds()                        # {"compute": …, "communication": …, "waiting": …, "other": …}
    trace.overlap()                        # the share of the communication that is hidden behind compute
    trace.steps                            # {2: (begin, end), …}, from the profiler's own marks
    ranks = together([read(path) for path in paths])    # one clock for all ranks; who waited for whom?

The format is Chrome's ("Trace Event Format"), with the categories of Kineto, torch's tracer. Times are in µs.
"""

import gzip
import json
import math
import re
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

COMPUTE, COMMUNICATION, WAITING, OTHER = KINDS = ("compute", "communication", "waiting", "other")

# What a backend itself does: "gloo:all_reduce" on the CPU, "ncclDevKernel_AllReduce_Sum_f32(…)" on a GPU.
_TRANSFER = re.compile(r"gloo:|nccl(Dev)?Kernel")
_WAITS = re.compile(r"cuda(Device|Stream|Event)Synchronize|enumerate\(DataLoader\)")
#: On the CPU, what asks for communication or runs Python is no computing, though it is recorded as an operator.
_ASKS = re.compile(r"_?c10d|Python")
#: Messages between two ranks, which no event names. Over NCCL, `all_to_all` is made of them.
_MESSAGE = re.compile(r"send|recv", re.IGNORECASE)
#: Collectives that end in no rank before all ranks have joined. A broadcast may: only its root is waited for.
_MEETING = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_to_all|barrier", re.IGNORECASE)
#: The threads in which a group of gloo's communicates.
_GLOO_THREADS = 2
#: By so many µs the clocks of two traces may differ, on one machine.
_CLOCKS = 100
_MARKS = re.compile(r"ProfilerStep[#*]|PyTorch Profiler")
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_ON_CPU = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
#: The rest is Python's own functions, the GPU's copies of labels, and the tracer's span.
_COUNTED = _ON_CPU | _ON_GPU


class TraceError(ValueError):
    """A file is no trace that can be read. The message says why, and what to do about it."""


class Event(NamedTuple):
    """Something that took time."""

    name: str
    begin_us: float
    duration_us: float
    thread: str
    """Where it ran: a thread of the CPU (gloo communicates in threads of its own) or a stream of a GPU."""
    kind: str
    """One of KINDS. OTHER is the rest: labels, copies, and launching work that runs elsewhere."""
    depth: int = 0
    """How many events on the same thread it lies in."""
    mark: bool = False
    """A mark around other work, such as ProfilerStep#3, and not work of its own."""
    group: tuple = ()
    """The name and the ranks of a collective's group: ("0", (0, 1)). Empty where the trace does not tell."""

    @property
    def end_us(self):
        return self.begin_us + self.duration_us


@dataclass(frozen=True)
class Trace:
    """What one rank did. `begin_us` counts from the first event, in `together` from the first of all ranks.

    Events may be nested. Whatever counts seconds gives each moment of a thread to the innermost event.
    """

    events: list
    """Of `Event`, by the time at which they began; marks included."""
    rank: int | None = None
    """The rank that wrote it; None where no process group was there."""
    start_us: float = 0.0
    """The wall clock at `begin_us` 0: microseconds since a moment that all traces of a machine share."""
    memory: list = field(default_factory=list, repr=False)
    """[(us, bytes allocated on the CPU then)], where the profiler was told to `profile_memory`."""
    unpaired: str = ""
    """Why some of its communication could not be told from waiting for other ranks; empty where all could."""

    @cached_property
    def steps(self):
        """{number: (begin_us, end_us)} of the profiler's steps, in order; empty if there was no schedule."""
        steps = {}
        for event in self.events:
            if match := _STEP.match(event.name):
                steps[int(match[1])] = (event.begin_us, event.end_us)
        return dict(sorted(steps.items()))

    @property
    def span_us(self):
        """(begin, end) of all that was recorded."""
        return (min(event.begin_us for event in self.events), max(event.end_us for event in self.events))

    def step(self, number):
        """The part of the trace that lies in a step of the profiler; what reaches over its ends is cut.

        Raises TraceError: the trace has no such step.
        """
        if number not in self.steps:
            steps = ", ".join(map(str, self.steps)) or "none: was the profiler given a schedule?"
            raise TraceError(f"there is no step {number} in this trace; its steps are: {steps}")
        return self.between(*self.steps[number])

    def between(self, begin_us, end_us):
        """The part of the trace between two moments; what reaches over them is cut."""
        events = []
        for event in self.events:
            begin, end = max(event.begin_us, begin_us), min(event.end_us, end_us)
            took_no_time = begin == end == event.begin_us
            if begin < end or took_no_time:
                events.append(event._replace(begin_us=begin, duration_us=end - begin))
        memory = [(us, size) for us, size in self.memory if begin_us <= us <= end_us]
        return replace(self, events=events, memory=memory)

    @cached_property
    def _own(self):
        """{thread: [(begin, end, event)]}: each moment belongs to the innermost event of the thread."""
        threads = defaultdict(list)
        for event in self.events:
            if not event.mark:
                threads[event.thread].append(event)
        return {thread: _innermost(events) for thread, events in threads.items()}

    def self_seconds(self):
        """{name: seconds spent in events of this name, without what ran inside them}, the largest first."""
        total = Counter()
        for pieces in self._own.values():
            for begin, end, event in pieces:
                total[event.name] += end - begin
        return {name: us / 1e6 for name, us in total.most_common()}

    @cached_property
    def _busy(self):
        intervals = {kind: [] for kind in KINDS}
        for pieces in self._own.values():
            for begin, end, event in pieces:
                intervals[event.kind].append((begin, end))
        busy = {kind: union(of_kind) for kind, of_kind in intervals.items()}
        busy[WAITING] = _without(busy[WAITING], union(busy[COMPUTE] + busy[COMMUNICATION]))
        return busy

    def busy(self, kind):
        """[(begin_us, end_us)]: when something of this kind ran, on any thread; in order, without overlaps.

        A rank waits only while it does nothing else: waiting beside compute or communication is left out.
        """
        return self._busy[kind]

    def seconds(self):
        """{kind: seconds in which something of this kind ran}.

        No moment counts twice within a kind. Two kinds may run at the same moment, so the sum can be more
        than the span. "other" is the rest of the span: Python between the operators, mostly.
        """
        seconds = {}
        intervals = []
        for kind in (COMPUTE, COMMUNICATION, WAITING):
            seconds[kind] = _length(self.busy(kind)) / 1e6
            intervals += self.busy(kind)
        begin, end = self.span_us
        seconds[OTHER] = (end - begin - _length(union(intervals))) / 1e6
        return seconds

    def overlap(self):
        """The share, 0 to 1, of the communication during which something computed; None without any."""
        communication, compute = self.busy(COMMUNICATION), self.busy(COMPUTE)
        if not communication:
            return None
        return _length(_both(communication, compute)) / _length(communication)


def read(path):
    """Read a trace that `torch.profiler.profile.export_chrome_trace` or `tensorboard_trace_handler` wrote.

    Raises TraceError: there is no such file, or it is cut off, damaged, no trace, or without events.
    """
    path = Path(path)
    content = _content(path)
    if not (isinstance(content, dict) and "schemaVersion" in content and "traceEvents" in content):
        raise TraceError(f"{path.name} is JSON, but no trace of torch.profiler's: that is what "
                         "`prof.export_chrome_trace(path)` writes")
    try:
        trace = _trace(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path.name} is damaged ({error!r}). Record it again") from None
    if all(event.mark for event in trace.events):
        raise TraceError(f"{path.name} holds no events: nothing was recorded. Is `prof.step()` called at the "
                         "end of every step, inside the loop, and is at least one active step reached?")
    return _shifted(trace, -trace.events[0].begin_us)


def _content(path):
    """What the JSON in the file says."""
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):  # whatever the file is called
            data = gzip.decompress(data)
        return json.loads(data.decode(), strict=False)  # a name may hold a line break
    except FileNotFoundError:
        raise TraceError(f"there is no file {path.name}: a profiler with a schedule writes one when its "
                         "active steps are over. Is `prof.step()` called at the end of every step, "
                         "inside the loop?") from None
    except (OSError, EOFError, zlib.error, ValueError):
        raise TraceError(f"{path.name} breaks off, or is damaged: was the program ended while it wrote, "
                         "or is the copy not whole? Record or copy it again") from None


def _trace(content):
    """A `Trace` from what the file says, by the file's clock."""
    info = content.get("distributedInfo", {})
    groups = {}
    for group in info.get("pg_config", ()):
        groups[group["pg_name"]] = (group["pg_name"], tuple(group["ranks"]))

    # Of phase "X" is what has a duration.
    entries = [entry for entry in content["traceEvents"] if entry.get("ph") == "X"]
    on_gpu = any(entry.get("cat") in _ON_GPU for entry in entries)
    events = [_event(entry, on_gpu, groups) for entry in entries if entry.get("cat") in _COUNTED]
    events = _of_the_only_group(_nested(events), groups)

    memory = []
    for entry in content["traceEvents"]:
        if entry.get("name") == "[memory]" and entry["args"].get("Device Type") == 0:
            memory.append((float(entry["ts"]), int(entry["args"]["Total Allocated"])))

    unpaired = ""
    if any(map(_is_transfer, events)):
        unpaired = "the traces of all ranks have not been put together"
    return Trace(events, info.get("rank"), content.get("baseTimeNanoseconds", 0) / 1000, memory, unpaired)


def _event(entry, on_gpu, groups):
    """An `Event` from what the file says of it; `on_gpu`: whether anything in the trace ran there."""
    name, category = str(entry["name"]), entry["cat"]
    is_cpu_operator = category == "cpu_op" and not on_gpu  # on a GPU, operators only launch kernels
    if category in _ON_GPU:
        thread = f"GPU {entry['pid']} stream {entry['tid']}"
    else:
        thread = f"thread {entry['tid']}"
    group = ()
    if _TRANSFER.match(name):
        kind = COMMUNICATION
        group = groups.get(entry.get("args", {}).get("Process Group Name"), ())  # NCCL's name theirs
        if _MESSAGE.search(name) and category not in _ON_GPU:
            thread += ", messages"  # from the call until somebody waits: what runs meanwhile is not inside it
    elif _WAITS.match(name):
        kind = WAITING
    elif is_cpu_operator and _ASKS.match(name):
        kind = WAITING if name.endswith("wait_tensor") else OTHER
    elif is_cpu_operator or category == "kernel":
        kind = COMPUTE
    else:
        kind = OTHER
    return Event(name, float(entry["ts"]), float(entry.get("dur", 0)), thread, kind,
                 mark=bool(_MARKS.match(name)), group=group)


def _is_transfer(event):
    return event.kind == COMMUNICATION


def _is_collective(event):
    return event.kind == COMMUNICATION and not _MESSAGE.search(event.name)


def _is_on_gpu(event):
    return event.thread.startswith("GPU")


def _of_the_only_group(events, groups):
    """The events, gloo's collectives among them with their group, where the rank was in a single one.

    gloo's events do not name it, and the trace lists the groups that there were when the profiler began. A
    group that was formed later communicates in threads of its own.
    """
    def is_gloos(event):
        return _is_collective(event) and not _is_on_gpu(event)

    threads = {event.thread for event in events if is_gloos(event)}
    if len(groups) != 1 or len(threads) > _GLOO_THREADS:
        return events
    (group,) = groups.values()
    with_group = []
    for event in events:
        if is_gloos(event):
            event = event._replace(group=group)
        with_group.append(event)
    return with_group


def _nested(events):
    """The events in the order of their beginnings, each with its depth in its thread."""
    open_ends = defaultdict(list)  # by thread: when the events end that the next one may lie in
    placed = []
    for event in sorted(events, key=_order):
        depth = 0
        if not event.mark:  # a mark is around all: it would put every event one deeper
            ends = open_ends[event.thread]
            while ends and ends[-1] <= event.begin_us:
                ends.pop()
            depth = len(ends)
            ends.append(event.end_us)
        placed.append(event._replace(depth=depth))
    return placed


def _order(event):
    return event.begin_us, -event.duration_us


def together(traces):
    """Put the traces of all ranks of one machine on one clock, and find the waiting in their communication.

    An all-reduce ends in no rank before all ranks of its group have joined it. So the part of a rank's n-th
    collective in a group before the last rank begins its own n-th is waiting: that part becomes an event of
    the kind "waiting" whose name says which rank was waited for. Where the traces do not tell which events
    belong together, none is parted, and `unpaired` says why: NCCL's events name their group, gloo's do not, so
    gloo's are paired where a rank is in one group only; messages (send, recv) name no peer, and broadcasts and
    the like no root. Traces that are together already stay as they are.

    Returns new traces, in the order of the ranks.
    Raises TraceError: a rank is there twice.
    """
    ranks = sorted({trace.rank for trace in traces})
    if len(ranks) < len(traces):
        raise TraceError("one trace of each rank is needed, and a rank is there twice")
    traces = sorted(traces, key=lambda trace: trace.rank)
    start = min(trace.start_us for trace in traces)
    traces = [_shifted(trace, trace.start_us - start) for trace in traces]

    reasons = {}  # a dict, for each reason once, in order
    in_unnamed_groups = set()  # ranks
    by_group = defaultdict(lambda: {rank: [] for rank in ranks})
    for trace in traces:
        for event in filter(_is_transfer, trace.events):
            if not _is_collective(event):
                reasons[f"{event.name} does not name the other rank"] = None
            elif not event.group:
                in_unnamed_groups.add(trace.rank)
                reasons[f"{event.name} does not name its group, and there may have been several"] = None
            else:
                by_group[event.group, _is_on_gpu(event)][trace.rank].append(event)

    joins = {}
    for ((_, members), _), collectives in by_group.items():
        # A collective without a name may have been of this group as well: then the n-th is not the n-th.
        if in_unnamed_groups.isdisjoint(members):
            joins_of_group, reasons_of_group = _joins(members, collectives)
            joins |= joins_of_group
            reasons |= dict.fromkeys(reasons_of_group)

    unpaired = "; ".join(reasons)
    paired = []
    for trace in traces:
        events = sorted(_parted(trace.events, joins), key=_order)
        paired.append(replace(trace, events=events, unpaired=unpaired))
    return paired


def _joins(members, collectives):
    """When the last rank joined each collective of a group, and which one it was; and what is not known.

    collectives: {rank: its events in this group}. Returns {id of an event: (moment, rank)}, [reasons].
    """
    missing = [str(rank) for rank in members if rank not in collectives]
    if missing:
        return {}, [f"the trace of rank {', '.join(missing)} is missing"]
    counts = {rank: len(collectives[rank]) for rank in members}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"rank {rank}: {count}" for rank, count in counts.items())
        return {}, [f"the ranks recorded different numbers of collectives ({counted}): "
                    "do all of them profile the same steps?"]

    joins = {}
    reasons = {}
    for number, events in enumerate(zip(*(collectives[rank] for rank in members), strict=True), 1):
        meeting = dict(zip(members, events, strict=True))
        name = events[0].name
        all_meet = _MEETING.search(name)
        last = max(members, key=lambda rank: meeting[rank].begin_us)
        joined = meeting[last].begin_us
        first_left = min(event.end_us for event in events)
        left_before_the_last_came = all_meet and first_left < joined - _CLOCKS
        if left_before_the_last_came or any(event.name != name for event in events):
            return {}, [f"the ranks' collectives number {number} are not one and the same: "
                        "do all of them profile the same steps, on one machine?"]
        if all_meet or len(members) == 2:
            joins |= {id(event): (joined, last) for event in events}
        else:
            reasons[f"{name} does not name its root, for which the others wait"] = None
    return joins, list(reasons)


def _parted(events, joins):
    """The events, each collective that had to wait in two: what it waited for, and the rest."""
    for event in events:
        joined, whom = joins.get(id(event), (event.begin_us, None))
        joined = min(joined, event.end_us)  # the root of a broadcast may have left before
        if joined > event.begin_us:
            yield event._replace(name=f"waits for rank {whom} ({event.name})", kind=WAITING,
                                 duration_us=joined - event.begin_us)
            yield event._replace(begin_us=joined, duration_us=event.end_us - joined)
        else:
            yield event


def _shifted(trace, by):
    """The same trace on a clock that shows `by` microseconds more."""
    events = [event._replace(begin_us=event.begin_us + by) for event in trace.events]
    memory = [(us + by, size) for us, size in trace.memory]
    return replace(trace, events=events, start_us=trace.start_us - by, memory=memory)


def waited_for(traces):
    """{(who, whom): seconds} in which one rank only waited for another, in traces from `together`.

    Raises TraceError: the traces do not tell it of all their communication.
    """
    reasons = [trace.unpaired for trace in traces if trace.unpaired]
    if reasons:
        raise TraceError(f"who waited for whom is not known: {reasons[0]}")
    total = {}
    for trace in traces:
        by_rank = defaultdict(list)
        for event in trace.events:
            if match := re.match(r"waits for rank (\d+)", event.name):
                by_rank[int(match[1])].append((event.begin_us, event.end_us))
        for whom, pieces in by_rank.items():
            # Without the moments in which it computed as well.
            only_waiting = _both(union(pieces), trace.busy(WAITING))
            total[trace.rank, whom] = _length(only_waiting) / 1e6
    return total


def _innermost(events):
    """[(begin, end, event)], in order, without overlaps: of the running events, the one that began last."""
    pieces = []
    running = []
    at = 0.0  # all before this moment is in `pieces`

    def until(moment):
        """Share out the time up to this moment, from the innermost event outwards."""
        nonlocal at
        while running and at < moment:
            end = min(running[-1].end_us, moment)
            if end > at:
                pieces.append((at, end, running[-1]))
                at = end
            if running[-1].end_us <= at:
                running.pop()

    for event in events:  # sorted by their beginnings, the longer first
        until(event.begin_us)
        at = max(at, event.begin_us)
        running.append(event)
    until(math.inf)
    return pieces


def union(pieces, gap=0):
    """Intervals that cover the same moments, and gaps up to `gap`; in order, without overlaps."""
    joined = []
    for begin, end in sorted(pieces):
        if joined and begin <= joined[-1][1] + gap:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        elif end > begin:
            joined.append((begin, end))
    return joined


def _both(first, second):
    """The moments that two unions share, as intervals."""
    shared = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            shared.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def _without(first, second):
    """The moments of one union that the other does not hold: those that lie in its gaps."""
    gaps = []
    gap_begin = -math.inf
    for begin, end in second:
        gaps.append((gap_begin, begin))
        gap_begin = end
    gaps.append((gap_begin, math.inf))
    return _both(first, gaps)


def _length(pieces):
    return sum(end - begin for begin, end in pieces)
