"""The trace viewer: a timeline of real traces, whose bars grow, move and divide while one zooms and drags.

Neighbours too short to be seen share a bar, so that there are few bars however many events there are. Where one zooms
in, such bars are divided again.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple

from helpers.figures import ACTIVITIES
from helpers.instruments import traces as tracing
from helpers.widgets.shapes import Lanes, box, doing, words
from helpers.widgets.stage import Stage, preset, window

GREY = "#b9c4cc"  #: what is "other"
#: Rows for each thread: events that lie deeper are left out.
DEEPEST = 6
#: Bars at most in the whole; and as many again in the part that one has zoomed in on.
MOST = 300
LONGEST = 70  #: letters of an event's name: those of a GPU's kernels have hundreds
LEFT, TOP, WIDE, ROW = 20, 26, 520, 17


class Row(NamedTuple):
    """Events that do not overlap, in the order of time."""

    name: str  # of the thread, above its first row; otherwise ""
    events: list
    place: int  # counted in rows from above, names included


class Bar(NamedTuple):
    """Neighbours in a row: its events from `first` to before `last`."""

    row: int
    first: int
    last: int


class Timeline:
    """A `helpers.instruments.traces.Trace`, or one per rank, sorted into rows once.

    Raises helpers.instruments.traces.TraceError where there is no event.
    """

    def __init__(self, traces):
        self.traces = [traces] if isinstance(traces, tracing.Trace) else list(traces)
        recorded = [trace for trace in self.traces if trace.events]
        if not recorded:
            raise tracing.TraceError("there are no events to show: record at least one active step")
        self.begin = min(trace.span_us[0] for trace in recorded)
        end = max(trace.span_us[1] for trace in recorded)
        self.whole = max(1e-3, end - self.begin)
        self.rows, place = [], 0
        for number in range(len(self.traces)):
            for name, events in self._rows_of(number):
                place += bool(name)
                self.rows.append(Row(name, events, place))
                place += 1
        self.lanes = Lanes([""] * place, end=self.whole / 1000, x=LEFT, y=TOP, w=WIDE, row=ROW, zoom=True, gap=2)
        rows = [Bar(number, 0, len(row.events)) for number, row in enumerate(self.rows)]
        self.bars = {bar: self._shape(bar) for bar in self._divided(rows, self.whole)}

    def _rows_of(self, number):
        """(name, or "", and the events in the order of time) of each row of a trace."""
        trace = self.traces[number]
        if trace.steps:
            yield self._name(number, "steps"), [event for event in trace.events if event.mark]
        threads = defaultdict(lambda: defaultdict(list))
        for event in _seen(trace):
            if not event.mark and event.depth < DEEPEST:
                threads[event.thread][event.depth].append(event)
        for what, rows in _named(threads):
            for depth, events in sorted(rows.items()):
                yield self._name(number, what) if depth == 0 else "", events

    def _name(self, number, what):
        if len(self.traces) == 1:
            return what
        rank = self.traces[number].rank
        return f"rank {number if rank is None else rank}: {what}"

    def scene(self, window=None):
        """All bars; and more of them in and around `window`, [from, to] in ms, because one may drag it."""
        shapes = self.bars.values()
        if window is not None:
            begin, end = window
            beside = (end - begin) / 4
            left, right = self.lanes.at(begin - beside), self.lanes.at(end + beside)
            near = [bar for bar, shape in self.bars.items() if left < shape["x"] + shape["w"] and shape["x"] < right]
            parts = self._divided(near, 1000 * (end - begin))
            # A bar's first part has its name, and takes its place.
            shapes = {shape["id"]: shape for shape in [*shapes, *map(self._shape, parts)]}.values()
        count = sum(not event.mark for trace in self.traces for event in trace.events)
        frame = {
            "title": f"Timeline: {count:,} events in {self.whole / 1000:,.1f} ms",
            "note": " ".join(map(self._counted, range(len(self.traces)))),
            "shapes": [*_key(), *self._names(), *shapes],
        }
        return {"size": [LEFT + WIDE + LEFT, self.lanes.bottom + 40], "axis": self.lanes.axis, "frames": [frame]}

    def _names(self):
        for row in self.rows:
            if row.name:
                yield words(f"name {row.place}", LEFT, TOP + ROW * (row.place - 0.5), row.name, size=14)

    def _divided(self, bars, span):
        """These bars, in as many as may be: neighbours share one if together they are shorter than a grain."""
        most = max(MOST, len(bars))
        grain = 0
        while True:
            parts = chain.from_iterable(self._parts(bar, grain) for bar in bars)
            found = list(islice(parts, most + 1))
            if len(found) <= most:
                return found
            grain = max(1.4 * grain, span / 4000)

    def _parts(self, bar, grain):
        events, first = self.rows[bar.row].events, bar.first
        while first < bar.last:
            end = events[first].begin_us + grain
            last = bisect_left(events, end, first + 1, bar.last, key=attrgetter("end_us"))
            yield Bar(bar.row, first, last)
            first = last

    def _shape(self, bar):
        row = self.rows[bar.row]
        events = row.events[bar.first:bar.last]
        begin = (events[0].begin_us - self.begin) / 1000
        end = (events[-1].end_us - self.begin) / 1000
        longest = max(events, key=lambda event: event.duration_us)
        text = longest.name[:LONGEST]
        tip = _time(longest.duration_us)
        if not longest.mark:
            tip = f"{longest.kind}, {tip}"
        if len(events) > 1:
            tip = f"{_time(1000 * (end - begin))}; longest: {text}, {tip}"
            text = f"{len(events)} events"
        # The first event names a bar, so that it is the same one when it is divided.
        name = f"{bar.row}/{bar.first}"
        return self.lanes.bar(name, row.place, begin, end, text=text, tip=tip, **_look(longest))

    def _counted(self, number):
        """How long a trace did what, in words."""
        trace = self.traces[number]
        took = {kind: f"{kind} {1000 * seconds:,.1f} ms" for kind, seconds in trace.seconds().items()}
        if trace.unpaired:
            took[tracing.WAITING] += f" or more ({trace.unpaired})"
        whose = self._name(number, "in all").removesuffix(": in all").capitalize()
        return f"{whose}: {', '.join(took.values())}."


def _seen(trace):
    """The events; waiting beside compute or communication is "other", as `Trace.busy` counts it."""
    waits = trace.busy(tracing.WAITING)
    for event in trace.events:
        if event.kind != tracing.WAITING:
            yield event
            continue
        at = event.begin_us
        for begin, end in waits:
            begin, end = max(begin, at), min(end, event.end_us)
            if begin < end:
                yield from _other(event, at, begin)
                yield event._replace(begin_us=begin, duration_us=end - begin)
                at = end
        yield from _other(event, at, event.end_us)


def _other(event, begin, end):
    """The part of an event in which it is "other", if there is one."""
    if begin < end:
        yield event._replace(begin_us=begin, duration_us=end - begin, kind=tracing.OTHER)


def _named(threads):
    """(name, {depth: events}) of each thread: the busiest first, because it is the main one, and gloo's last."""
    def place(thread):
        rows = threads[thread]
        return is_gloo(thread), -sum(map(len, rows.values()))

    def is_gloo(thread):
        rows = threads[thread]
        return "gloo:" in rows[min(rows)][0].name

    for number, thread in enumerate(sorted(threads, key=place)):
        name = f"thread {number}" if number else "main thread"
        if thread.startswith("GPU"):
            name = thread
        elif is_gloo(thread):
            name = "gloo"
        yield name, threads[thread]


def _look(event):
    if event.mark:
        return {"fill": "#ffffff", "line": "#555555"}
    return _colour(event.kind)


def _colour(kind):
    return doing(kind) if kind in ACTIVITIES else {"fill": GREY}


def _key():
    """What the colours mean."""
    for place, kind in enumerate(tracing.KINDS):
        yield box(f"kind {kind}", LEFT + 130 * place, 0, 122, ROW, text=kind, size=14, **_colour(kind))


def _time(us):
    return f"{us:,.1f} µs" if us < 1000 else f"{us / 1000:,.2f} ms"


def trace_viewer(traces, zoom=1.0, centre=0.5):
    """Trace viewer: zoom, and move along the time; each row is a thread of a rank, or what lies inside the
    events above it, coloured by what it is: compute, communication, waiting, or other."""
    timeline = Timeline(traces)
    presets = {
        "all of it": preset("Where is every row grey or empty? Zoom in there.", window=None),
        "the middle, closer": preset("Move along: what repeats, and what does not?",
                                     window=_part(timeline, 8, 0.5)),
    }
    return Stage(
        "trace_viewer", trace_viewer.__doc__, timeline.scene,
        {"window": window(_part(timeline, zoom, centre))},
        look="Zoom in until bars have names. Below a bar stands what happens inside it.",
        presets=presets,
    )


def _part(timeline, zoom, centre):
    """The part [from, to] in ms, 1/`zoom` of the whole, around `centre`, from 0 to 1; None for all of it."""
    if zoom <= 1:
        return None
    whole = timeline.whole / 1000
    span = whole / zoom
    begin = min(max(centre * whole - span / 2, 0), whole - span)
    return [begin, begin + span]
