"""The trace viewer: a timeline of real traces, to zoom and to move along. And the profiler's table.

Events too short to be seen share a bar, so that a picture is drawn quickly, however many events there are.
"""

from bisect import bisect_left
from collections import defaultdict

import ipywidgets as widgets
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from helpers.figures import ACTIVITIES, HATCHES
from helpers.instruments import traces as tracing
from helpers.widgets.explorer import LOOK, Explorer

COLOURS = {tracing.OTHER: "#b9c4cc"} | ACTIVITIES
_MARK = "a step"

#: Rows for each thread: events that lie deeper are left out.
DEEPEST = 6
#: Pixels: the picture, its margins, a row, what a letter takes; neighbours narrower than a grain share a bar.
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM, _ROW, _LETTER, _GRAIN = 960, 130, 12, 64, 52, 22, 8.4, 3


class View:
    """A `helpers.instruments.traces.Trace`, or one per rank, sorted into rows once, to be drawn quickly.

    Raises helpers.instruments.traces.TraceError where there is no event.
    """

    def __init__(self, traces):
        self.traces = [traces] if isinstance(traces, tracing.Trace) else list(traces)
        events = [event for trace in self.traces for event in trace.events]
        if not events:
            raise tracing.TraceError("there are no events to show: record at least one active step")
        self.begin = min(trace.span_us[0] for trace in self.traces if trace.events)
        self.end = max(trace.span_us[1] for trace in self.traces if trace.events)
        self.count = sum(not event.mark for event in events)
        self.rows = [(name, events, [event.begin_us for event in events], [event.end_us for event in events])
                     for number in range(len(self.traces)) for name, events in self._rows_of(number)]
        self.said = "; ".join(self._counted(number) for number in range(len(self.traces)))
        self._lay_out()

    def _rows_of(self, number):
        """(name shown at the left, or "", events in the order of time) of each row of a trace."""
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
        return f"{number if rank is None else rank}: {what}"

    def _lay_out(self):
        """Make the figure, whose bars and names `draw` exchanges."""
        place, self.places = -1, []
        for name, *_ in self.rows:
            place += 1.25 if name else 1
            self.places.append(place)
        named = {place: name for place, (name, *_) in zip(self.places, self.rows, strict=True) if name}
        high = _TOP + _BOTTOM + _ROW * (place + 1)
        # Without a layout engine, which is slow, and would move the axes while one zooms.
        self.figure = Figure(figsize=(_WIDTH / 100, high / 100), dpi=100, layout="none")
        self.ax = self.figure.add_axes((_LEFT / _WIDTH, _BOTTOM / high, 1 - (_LEFT + _RIGHT) / _WIDTH,
                                        1 - (_BOTTOM + _TOP) / high))
        self.ax.set_title("Timeline", pad=30)
        self.ax.grid(False)
        self.ax.spines["left"].set_visible(False)
        self.ax.set_ylim(place + 0.6, self.places[0] - 0.6)
        self.ax.set_yticks(list(named), list(named.values()))
        self.ax.tick_params(labelsize=11)
        self.ax.tick_params(axis="y", length=0)
        self.ax.xaxis.set_major_locator(MaxNLocator(7))
        self.ax.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
        # The hatch has its edges' colour, and is faint, because names stand on it.
        self.bars = {kind: PolyCollection([], facecolors=colour, hatch=HATCHES.get(kind), label=kind,
                                          edgecolors="#ffffff50", linewidths=0)
                     for kind, colour in COLOURS.items()}
        if any(trace.steps for trace in self.traces):
            self.bars[_MARK] = PolyCollection([], facecolors="white", edgecolors="#555555", label=_MARK)
        for bars in self.bars.values():
            self.ax.add_collection(bars)
        self.ax.legend(handles=list(self.bars.values()), ncols=len(self.bars), fontsize=11, columnspacing=1.2,
                       handlelength=1.2, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)

    def draw(self, zoom=1.0, centre=0.5):
        """The figure with a part of the time, 1/`zoom` of the whole, around `centre`, from 0 to 1."""
        whole = self.end - self.begin
        span = whole / zoom
        begin = self.begin + min(max(centre * whole - span / 2, 0), whole - span)
        pixel = span / (_WIDTH - _LEFT - _RIGHT)  # in µs
        boxes, self.shown = {kind: [] for kind in self.bars}, []
        for text in list(self.ax.texts):
            text.remove()
        for place, (_, *row) in zip(self.places, self.rows, strict=True):
            for event, x, end in _bars(*row, begin, begin + span, _GRAIN * pixel):
                pixels = max((end - x) / pixel, 1)
                drawn = pixels - 1 if pixels > 2 * _GRAIN else pixels  # a gap tells it from its neighbour
                left, right = (x - self.begin) / 1000, (x - self.begin + drawn * pixel) / 1000
                top, low = place - 0.45, place + 0.45
                corners = (left, low), (left, top), (right, top), (right, low)
                boxes[_MARK if event.mark else event.kind].append(corners)
                self.shown.append(event)
                room = int((pixels - 6) / _LETTER)
                if room >= 4:
                    ink = "#111111" if event.mark or event.kind == tracing.OTHER else "#ffffff"
                    self.ax.text(left + 4 * pixel / 1000, place, _cut(event.name, room), color=ink, size=10,
                                 va="center_baseline", clip_on=True, parse_math=False)
        for kind, bars in self.bars.items():
            bars.set_verts(boxes[kind])
        self.ax.set_xlim((begin - self.begin) / 1000, (begin - self.begin + span) / 1000)
        words = f"{span / 1000:,.2f} ms of {whole / 1000:,.2f} ms"
        self.ax.set_xlabel(f"ms; shown are {words}, {self.count:,} events in all")
        self.figure.set_label(f"Timeline of {len(self.traces)} trace(s): {words}. {self.said}")
        return self.figure

    def _counted(self, number):
        trace = self.traces[number]
        took = {kind: f"{kind} {1000 * seconds:.1f} ms" for kind, seconds in trace.seconds().items()}
        if trace.unpaired:
            took[tracing.WAITING] += f" or more ({trace.unpaired})"
        return f"{self._name(number, 'in all')}: {', '.join(took.values())}"


def _cut(name, room):
    """As much of a name as there is room for, in letters of the mean width."""
    if _letters(name) <= room:
        return name
    while _letters(name + "…") > room:
        name = name[:-1]
    return name + "…"


def _letters(text):
    """How wide a text is, in letters of the mean width."""
    return len(text) + 0.65 * sum(map(text.count, "mwMW…"))


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


def _bars(events, begins, ends, begin, until, grain):
    """(event, begin, end) of each bar of a row. Neighbours narrower than a grain share the longest one's."""
    number, last = max(0, bisect_left(begins, begin) - 1), bisect_left(begins, until)
    while number < last:
        longest, x, end = number, max(begins[number], begin), min(ends[number], until)
        number += 1
        if end < begin:
            continue
        if end - x < grain:
            edge, took = x + grain, ends[longest] - begins[longest]
            while number < last and begins[number] < edge and ends[number] < edge + grain:
                end = max(end, ends[number])
                if ends[number] - begins[number] > took:
                    longest, took = number, ends[number] - begins[number]
                number += 1
        yield events[longest], x, min(end, until)


def trace_viewer(traces, zoom=1.0, centre=0.5):
    """Trace viewer: zoom, and move along the time; each row is a thread of a rank, or what lies inside the
    events above it, coloured by what it is: compute, communication, waiting, or other."""
    controls = {
        "zoom": widgets.FloatLogSlider(zoom, base=2, min=0, max=12, step=0.25, readout_format=".0f",
                                       description="zoom", **LOOK),
        "centre": widgets.FloatSlider(centre, min=0, max=1, step=0.002, readout_format=".2f",
                                      description="move", **LOOK),
    }
    presets = {"all of it": ({"zoom": 1.0}, "Where is every row grey or empty? Zoom in there."),
               "the middle, closer": ({"zoom": 8.0, "centre": 0.5},
                                      "Move along: what repeats, and what does not?")}
    return Explorer(controls, View(traces).draw, trace_viewer.__doc__,
                    "Zoom in until bars have names. Below a bar stands what happens inside it.", presets)


class AveragesTable:
    """The columns of `key_averages().table()` that matter, for the rows that are largest by `sort_by`.

    With `memory` it shows what was allocated in place of the shares of time.
    """

    def __init__(self, averages, rows=8, sort_by="self_cpu_time_total", memory=False):
        averages = list(averages)
        whole = sum(row.self_cpu_time_total for row in averages)
        columns = {"Name": lambda row: row.key, "# of Calls": lambda row: f"{row.count:,}",
                   "Self CPU": lambda row: _time(row.self_cpu_time_total),
                   "CPU total": lambda row: _time(row.cpu_time_total)}
        if memory:
            columns |= {"Self CPU Mem": lambda row: _bytes(row.self_cpu_memory_usage),
                        "CPU Mem": lambda row: _bytes(row.cpu_memory_usage)}
        else:
            columns |= {"Self CPU %": lambda row: f"{row.self_cpu_time_total / whole:.1%}",
                        "CPU time avg": lambda row: _time(row.cpu_time_total / row.count)}
            if any(row.device_time_total for row in averages):
                columns["Device total"] = lambda row: _time(row.device_time_total)
        shown = sorted(averages, key=lambda row: -getattr(row, sort_by))[:rows]
        self.table = [list(columns), *([value(row) for value in columns.values()] for row in shown)]

    def __repr__(self):
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                         for row in self.table)


def _time(us):
    return f"{us:.1f} µs" if us < 100 else f"{us / 1000:,.2f} ms"


def _bytes(size):
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,} B"
