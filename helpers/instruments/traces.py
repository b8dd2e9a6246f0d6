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
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

COMPUTE, COMMUNICATION, WAITING, OTHER = KINDS = ("compute", "communication", "waiting", "other")

# What a backend itself does: "gloo:all_reduce" on the CPU, "ncclDevKernel_AllReduce_Sum_f32(…)" on a GPU.
_TRANSFER = re.compile(r"gloo:|mpi:|ucc:|nccl(Dev)?Kernel", re.IGNORECASE)
_WAITS = re.compile(r"cuda(Device|Stream|Event)Synchronize|enumerate\(DataLoader\)")
_MARKS = re.compile(r"ProfilerStep[#*]|PyTorch Profiler")
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_ON_CPU = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}


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

    @cached_property
    def steps(self):
        """{number: (begin_us, end_us)} of the profiler's steps, in order; empty if there was no schedule."""
        found = {}
        for event in self.events:
            if match := _STEP.match(event.name):
                found[int(match[1])] = (event.begin_us, event.end_us)
        return dict(sorted(found.items()))

    @property
    def span_us(self):
        """(begin, end) of all that was recorded."""
        return (min(event.begin_us for event in self.events), max(event.end_us for event in self.events))

    def step(self, number):
        """The part of the trace that lies in a step of the profiler; what reaches over its ends is cut.

        Raises TraceError: the trace has no such step.
        """
        if number not in self.steps:
            had = ", ".join(map(str, self.steps)) or "none: was the profiler given a schedule?"
            raise TraceError(f"there is no step {number} in this trace; its steps are: {had}")
        return self.between(*self.steps[number])

    def between(self, begin_us, end_us):
        """The part of the trace between two moments; what reaches over them is cut."""
        kept = []
        for event in self.events:
            begin, end = max(event.begin_us, begin_us), min(event.end_us, end_us)
            if begin < end or begin == end == event.begin_us:
                kept.append(event._replace(begin_us=begin, duration_us=end - begin))
        return replace(self, events=kept, memory=[row for row in self.memory if begin_us <= row[0] <= end_us])

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
        total = defaultdict(float)
        for pieces in self._own.values():
            for begin, end, event in pieces:
                total[event.name] += end - begin
        return {name: us / 1e6 for name, us in sorted(total.items(), key=lambda item: -item[1])}

    @cached_property
    def _busy(self):
        pieces = {kind: [] for kind in KINDS}
        for own in self._own.values():
            for begin, end, event in own:
                pieces[event.kind].append((begin, end))
        busy = {kind: union(found) for kind, found in pieces.items()}
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
        busy = {kind: self.busy(kind) for kind in (COMPUTE, COMMUNICATION, WAITING)}
        covered = _length(union(piece for pieces in busy.values() for piece in pieces))
        begin, end = self.span_us if self.events else (0, 0)
        measured = {kind: _length(pieces) for kind, pieces in busy.items()} | {OTHER: end - begin - covered}
        return {kind: us / 1e6 for kind, us in measured.items()}

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
        entries = content["traceEvents"]
        raw = [entry for entry in entries if entry.get("ph") == "X"]
        on_gpu = any(event.get("cat") in _ON_GPU for event in raw)
        events = _nested([made for event in raw if (made := _event(event, on_gpu))])
        memory = [(float(entry["ts"]), int(entry["args"]["Total Allocated"])) for entry in entries
                  if entry.get("name") == "[memory]" and entry["args"].get("Device Type") == 0]
        base = content.get("baseTimeNanoseconds", 0) / 1000
        rank = content.get("distributedInfo", {}).get("rank")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path.name} is damaged ({error!r}). Record it again") from None
    if all(event.mark for event in events):
        raise TraceError(f"{path.name} holds no events: nothing was recorded. Is `prof.step()` called at the "
                         "end of every step, inside the loop, and is at least one active step reached?")
    return _shifted(Trace(events, rank, base, memory), -events[0].begin_us)


def _content(path):
    """What the JSON in the file says."""
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return json.loads(text.decode(), strict=False)
    except FileNotFoundError:
        raise TraceError(f"there is no file {path.name}: a profiler with a schedule writes one when its "
                         "active steps are over. Is `prof.step()` called at the end of every step, "
                         "inside the loop?") from None
    except (OSError, EOFError, zlib.error, ValueError):
        raise TraceError(f"{path.name} breaks off, or is damaged: was the program ended while it wrote, "
                         "or is the copy not whole? Record or copy it again") from None


def _event(raw, on_gpu):
    """An `Event` from what the file says of it; None for what does not count."""
    name, category = str(raw["name"]), raw.get("cat")
    is_mark = bool(_MARKS.match(name))
    if category not in _ON_CPU and category not in _ON_GPU:
        return None  # Python's own functions, the GPU's copies of labels, and the tracer's span
    thread = f"GPU {raw['pid']} stream {raw['tid']}" if category in _ON_GPU else f"thread {raw['tid']}"
    if _TRANSFER.match(name) and (category in _ON_GPU or not on_gpu):
        kind = COMMUNICATION
    elif _WAITS.match(name):
        kind = WAITING
    elif category == "kernel" or (category == "cpu_op" and not on_gpu and not name.startswith("c10d::")):
        kind = COMPUTE
    else:
        kind = OTHER
    return Event(name, float(raw["ts"]), float(raw.get("dur", 0)), thread, kind, mark=is_mark)


def _nested(events):
    """The events in the order of their beginnings, each with its depth in its thread."""
    open_ends, placed = defaultdict(list), []
    for name, begin, duration, thread, kind, _, mark in sorted(events, key=_order):
        depth = 0
        if not mark:
            ends = open_ends[thread]
            while ends and ends[-1] <= begin:
                ends.pop()
            depth = len(ends)
            ends.append(begin + duration)
        placed.append(Event(name, begin, duration, thread, kind, depth, mark))
    return placed


def _order(event):
    return event.begin_us, -event.duration_us


def together(traces):
    """Put the traces of all ranks of one machine on one clock, and find the waiting in their communication.

    A collective can move data only once all ranks have joined it. So the part of each rank's n-th collective
    before the last rank begins its own n-th is waiting: that part becomes an event of the kind "waiting"
    whose name says which rank was waited for. Traces that are together already stay as they are.

    Returns new traces, in the order of the ranks (of the arguments, where they name no ranks).
    Raises TraceError: a rank is there twice, or the ranks did not record the same number of collectives.
    """
    if any(trace.rank is None for trace in traces):
        traces = [replace(trace, rank=rank) for rank, trace in enumerate(traces)]
    traces = sorted(traces, key=lambda trace: trace.rank)
    ranks = [trace.rank for trace in traces]
    if len(set(ranks)) < len(ranks):
        raise TraceError(f"these are traces of the ranks {', '.join(map(str, ranks))}: "
                         "one of each rank is needed")
    start = min(trace.start_us for trace in traces)
    traces = [_shifted(trace, trace.start_us - start) for trace in traces]
    transfers = [[event for event in trace.events if event.kind == COMMUNICATION] for trace in traces]
    counts = {len(events) for events in transfers}
    if len(counts) > 1:
        counted = ", ".join(f"rank {rank}: {len(events)}"
                            for rank, events in zip(ranks, transfers, strict=True))
        raise TraceError(f"the ranks recorded different numbers of collectives ({counted}): "
                         "do all of them profile the same steps?")
    joins = [max(zip((event.begin_us for event in events), ranks, strict=True), key=itemgetter(0))
             for events in zip(*transfers, strict=True)]
    return [replace(trace, events=sorted(_parted(trace.events, joins), key=_order)) for trace in traces]


def _parted(events, joins):
    """The events, each collective that had to wait in two: what it waited for, and the rest.

    `joins`: for each collective, the moment when the last rank joined, and which one it was.
    """
    joins = iter(joins)
    for event in events:
        joined, whom = next(joins) if event.kind == COMMUNICATION else (event.begin_us, None)
        joined = min(joined, event.end_us)
        if joined > event.begin_us:
            yield event._replace(name=f"waits for rank {whom} ({event.name})", kind=WAITING,
                                 duration_us=joined - event.begin_us)
            yield event._replace(begin_us=joined, duration_us=event.end_us - joined)
        else:
            yield event


def _shifted(trace, by):
    """The same trace on a clock that shows `by` microseconds more."""
    events = [Event(name, begin + by, *rest) for name, begin, *rest in trace.events]
    return replace(trace, events=events, start_us=trace.start_us - by,
                   memory=[(us + by, size) for us, size in trace.memory])


def waited_for(traces):
    """{(who, whom): seconds} in which one rank only waited for another, in traces from `together`."""
    total = {}
    for trace in traces:
        by_rank = defaultdict(list)
        for event in trace.events:
            if match := re.match(r"waits for rank (\d+)", event.name):
                by_rank[int(match[1])].append((event.begin_us, event.end_us))
        for whom, pieces in by_rank.items():
            total[trace.rank, whom] = _length(_both(union(pieces), trace.busy(WAITING))) / 1e6
    return total


def _innermost(events):
    """[(begin, end, event)], in order, without overlaps: of the running events, the one that began last."""
    pieces, running, at = [], [], 0.0

    def until(moment):
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
    until(float("inf"))
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
    shared, i, j = [], 0, 0
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
    begins, ends = [-math.inf, *(end for _, end in second)], [*(begin for begin, _ in second), math.inf]
    return _both(first, list(zip(begins, ends, strict=True)))


def _length(pieces):
    return sum(end - begin for begin, end in pieces)
