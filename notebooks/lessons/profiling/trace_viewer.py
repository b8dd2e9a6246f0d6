"""The trace viewer: a timeline of real traces, to zoom and to move along.

Neighbours too short to be seen share a bar, so that there are few bars however many events there are. Where one zooms
in, such bars are divided again.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import chain, islice
from typing import NamedTuple

from helpers.figures import ACTIVITIES
from helpers.instruments import traces as tracing
from helpers.widgets.shapes import Lanes, box, doing, words
from helpers.widgets.stage import Stage, preset, window

GREY = "#b9c4cc"  #: what is "other"
#: Rows for each thread: events that lie deeper are left out.
DEEPEST = 6
#: Bars at most in the whole; and as many again in the part that one has zoomed in on.
MOST = 600
LEFT, TOP, WIDE, ROW = 20, 26, 520, 17


class Row(NamedTuple):
    """Events that do not overlap, in the order of time."""

    name: str  # of the thread, above its first row; otherwise ""
    events: list
    ends: list  # of the events, in µs
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
        self.whole = max(1e-3, max(trace.span_us[1] for trace in recorded) - self.begin)
        self.rows, place = [], 0
        for number in range(len(self.traces)):
            for name, events in self._rows_of(number):
                place += bool(name)
                self.rows.append(Row(name, events, [event.end_us for event in events], place))
                place += 1
        self.lanes = Lanes([""] * place, end=self.whole / 1000, x=LEFT, y=TOP, w=WIDE, row=ROW, zoom=True, gap=2)
        rows = [Bar(number, 0, len(row.events)) for number, row in enumerate(self.rows)]
        self.bars = {bar: self._shape(bar) for bar in self._divided(rows, self.whole)}
        count = sum(not event.mark for trace in recorded for event in trace.events)
        self.title = f"Timeline: {count:,} events in {self.whole / 1000:,.1f} ms"
        self.note = " ".join(map(self._counted, range(len(self.traces))))

    def _rows_of(self, number):
        """(name, or "", and the events in the order of time) of each row of a trace."""
        trace, threads = self.traces[number], defaultdict(lambda: defaultdict(list))
        if trace.steps:
            yield self._name(number, "steps"), [event for event in trace.events if event.mark]
        for event in _seen(trace):
            if not event.mark and event.depth < DEEPEST:
                threads[event.thread][event.depth].append(event)
        gloo = {thread for thread, rows in threads.items() if "gloo:" in rows[min(rows)][0].name}
        size = {thread: sum(map(len, rows.values())) for thread, rows in threads.items()}
        order = sorted(threads, key=lambda thread: (thread in gloo, -size[thread]))
        for place, thread in enumerate(order):
            what = "main thread" if place == 0 else f"thread {place}"
            if thread.startswith("GPU"):
                what = thread
            elif thread in gloo:
                what = "gloo"
            for depth, events in sorted(threads[thread].items()):
                yield self._name(number, what) if depth == 0 else "", events

    def _name(self, number, what):
        if len(self.traces) == 1:
            return what
        rank = self.traces[number].rank
        return f"rank {number if rank is None else rank}: {what}"

    def scene(self, window=None):
        """All bars; and more of them in and around `window`, [from, to] in ms, because one may drag it."""
        shapes = [*_key(), *self._names()]
        if window is None:
            shapes += self.bars.values()
        else:
            begin, end = (self.begin + 1000 * moment for moment in window)
            near = dict.fromkeys(bar for bar in self.bars if self._touches(bar, begin, end))
            shapes += [shape for bar, shape in self.bars.items() if bar not in near]
            shapes += map(self._shape, self._divided(near, end - begin))
        frame = {"title": self.title, "note": self.note, "shapes": shapes}
        return {"size": [LEFT + WIDE + LEFT, self.lanes.bottom + 40], "axis": self.lanes.axis, "frames": [frame]}

    def _touches(self, bar, begin, end):
        events, beside = self.rows[bar.row].events, (end - begin) / 4
        return events[bar.first].begin_us < end + beside and events[bar.last - 1].end_us > begin - beside

    def _divided(self, bars, span):
        """These bars, in as many as may be: neighbours share one if together they are shorter than a grain."""
        most, grain = max(MOST, len(bars)), 0
        while True:
            parts = chain.from_iterable(self._parts(bar, grain) for bar in bars)
            found = list(islice(parts, most + 1))
            if len(found) <= most:
                return found
            grain = max(1.4 * grain, span / 4000)

    def _parts(self, bar, grain):
        row, first = self.rows[bar.row], bar.first
        while first < bar.last:
            last = bisect_left(row.ends, row.events[first].begin_us + grain, first + 1, bar.last)
            yield Bar(bar.row, first, last)
            first = last

    def _shape(self, bar):
        row = self.rows[bar.row]
        events = row.events[bar.first:bar.last]
        longest = max(events, key=lambda event: event.duration_us)
        begin, end = ((moment - self.begin) / 1000 for moment in (events[0].begin_us, events[-1].end_us))
        text, tip = _cut(longest.name), f"{longest.kind}, {_time(longest.duration_us)}"
        if longest.mark:
            look, tip = {"fill": "#ffffff", "line": "#555555"}, _time(longest.duration_us)
        elif longest.kind == tracing.OTHER:
            look = {"fill": GREY}
        else:
            look = doing(longest.kind)
        if len(events) > 1:
            text, tip = f"{len(events)} events", f"{_time(1000 * (end - begin))}; longest: {text}, {tip}"
        # The first event names a bar, so that it is the same one when it is divided.
        return self.lanes.bar(f"{bar.row}/{bar.first}", row.place, begin, end, text=text, tip=tip, **look)

    def _names(self):
        for row in self.rows:
            if row.name:
                yield words(f"name {row.place}", LEFT, TOP + ROW * (row.place - 0.5), row.name, size=14)

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
    for event in trace.events:
        if event.kind != tracing.WAITING:
            yield event
            continue
        at = event.begin_us
        for begin, end in trace.busy(tracing.WAITING):
            begin, end = max(begin, at), min(end, event.end_us)
            if begin < end:
                if at < begin:
                    yield event._replace(begin_us=at, duration_us=begin - at, kind=tracing.OTHER)
                yield event._replace(begin_us=begin, duration_us=end - begin)
                at = end
        if at < event.end_us or at == event.begin_us:
            yield event._replace(begin_us=at, duration_us=event.end_us - at, kind=tracing.OTHER)


def _key():
    """What the colours mean."""
    for place, kind in enumerate(tracing.KINDS):
        look = doing(kind) if kind in ACTIVITIES else {"fill": GREY}
        yield box(f"kind {kind}", LEFT + 130 * place, 0, 122, ROW, text=kind, size=14, **look)


def _cut(name):
    """The names of a GPU's kernels have hundreds of letters."""
    return name if len(name) <= 70 else f"{name[:69]}…"


def _time(us):
    return f"{us:,.1f} µs" if us < 1000 else f"{us / 1000:,.2f} ms"


def trace_viewer(traces, zoom=1.0, centre=0.5):
    """Trace viewer: zoom, and move along the time; each row is a thread of a rank, or what lies inside the
    events above it, coloured by what it is: compute, communication, waiting, or other."""
    timeline = Timeline(traces)
    begin = window(_part(timeline, zoom, centre))
    return Stage("trace_viewer", trace_viewer.__doc__, timeline.scene, {"window": begin},
                 look="Zoom in until bars have names. Below a bar stands what happens inside it.",
                 presets={
                     "all of it": preset("Where is every row grey or empty? Zoom in there.", window=None),
                     "the middle, closer": preset("Move along: what repeats, and what does not?",
                                                  window=_part(timeline, 8, 0.5)),
                 })


def _part(timeline, zoom, centre):
    """The part [from, to] in ms, 1/`zoom` of the whole, around `centre`, from 0 to 1."""
    whole = timeline.whole / 1000
    span = whole / zoom
    begin = min(max(centre * whole - span / 2, 0), whole - span)
    return [begin, begin + span] if zoom > 1 else None
