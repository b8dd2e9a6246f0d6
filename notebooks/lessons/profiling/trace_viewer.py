"""The trace viewer: a timeline of real traces to zoom and to move along; and the profiler's table.

Events too short to be seen share a bar, so that a picture is drawn quickly, however many events there are.
"""

import html
from bisect import bisect_left
from collections import defaultdict

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from helpers.figures import ACTIVITIES
from helpers.instruments import traces as tracing
from helpers.widgets.explorer import Explorer, widgets

COLOURS = {tracing.OTHER: "#b9c4cc"} | ACTIVITIES
_MARK = "a step"

#: Rows for each thread: events that lie deeper are left out.
DEEPEST = 6
#: Pixels: the picture, the time's axis in it, a row, what a letter takes; neighbours narrower than a grain share a bar.
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM, _ROW, _LETTER, _GRAIN = 960, 130, 12, 64, 52, 22, 8.4, 3


class View:
    """Traces, sorted into rows once, so that a part of them can be drawn quickly."""

    def __init__(self, traces):
        """
        Args:
            traces: A `helpers.instruments.traces.Trace`, or one per rank as `together` returns them.

        Raises:
            helpers.instruments.traces.TraceError: there is no trace, or none has an event.
        """
        traces = [traces] if isinstance(traces, tracing.Trace) else list(traces)
        if not any(trace.events for trace in traces):
            raise tracing.TraceError("there are no events to show: record at least one active step")
        self.traces = traces
        self.begin = min(trace.span_us[0] for trace in traces if trace.events)
        self.end = max(trace.span_us[1] for trace in traces if trace.events)
        self.count = sum(not event.mark for trace in traces for event in trace.events)
        rows = []  # (name shown at the left, or "", its events in the order of time)
        for number, trace in enumerate(traces):
            threads = defaultdict(lambda: defaultdict(list))
            for event in _seen(trace):
                if not event.mark and event.depth < DEEPEST:
                    threads[event.thread][event.depth].append(event)
            if trace.steps:
                rows.append((self._name(number, "steps"), [event for event in trace.events if event.mark]))
            gloo = {thread for thread, rows_of in threads.items() if "gloo:" in rows_of[min(rows_of)][0].name}
            size = {thread: sum(map(len, rows_of.values())) for thread, rows_of in threads.items()}
            order = sorted(threads, key=lambda thread, size=size, gloo=gloo: (thread in gloo, -size[thread]))
            for place, thread in enumerate(order):
                what = thread if thread.startswith("GPU") else "gloo" if thread in gloo else f"thread {place}"
                name = self._name(number, "main thread" if what == "thread 0" else what)
                for depth, events in sorted(threads[thread].items()):
                    rows.append((name if depth == 0 else "", events))
        self.rows = [(name, events, [event.begin_us for event in events], [event.end_us for event in events])
                     for name, events in rows]
        self.said = "; ".join(self._counted(number) for number in range(len(traces)))
        self._lay_out()

    def _name(self, number, what):
        if len(self.traces) == 1:
            return what
        rank = self.traces[number].rank
        return f"{number if rank is None else rank}: {what}"

    def _lay_out(self):
        """Make the figure, whose bars and names `draw` exchanges."""
        places = [number + 0.25 * sum(bool(name) for name, *_ in self.rows[:number + 1])
                  for number in range(len(self.rows))]
        high = _TOP + _BOTTOM + _ROW * (places[-1] + 1)
        # Without a layout engine, which is slow, and would move the axes while one zooms.
        self.figure = Figure(figsize=(_WIDTH / 100, high / 100), dpi=100, layout="none")
        self.ax = self.figure.add_axes((_LEFT / _WIDTH, _BOTTOM / high, 1 - (_LEFT + _RIGHT) / _WIDTH,
                                        1 - (_BOTTOM + _TOP) / high))
        self.ax.set_title("Timeline", pad=30)
        self.ax.grid(False)
        self.ax.spines["left"].set_visible(False)
        self.ax.set_ylim(places[-1] + 0.6, places[0] - 0.6)
        self.ax.set_yticks([place for place, (name, *_) in zip(places, self.rows, strict=True) if name],
                           [name for name, *_ in self.rows if name], fontsize=11)
        self.ax.tick_params(axis="y", length=0)
        self.ax.tick_params(axis="x", labelsize=11)
        self.ax.xaxis.set_major_locator(MaxNLocator(7))
        self.ax.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))  # as many digits as the ticks need
        self.bars = {kind: self.ax.add_collection(PolyCollection([], facecolors=colour, label=kind))
                     for kind, colour in COLOURS.items()}
        if any(trace.steps for trace in self.traces):
            steps = PolyCollection([], facecolors="white", edgecolors="#555555", label=_MARK)
            self.bars[_MARK] = self.ax.add_collection(steps)
        self.ax.legend(handles=list(self.bars.values()), loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2,
                       ncols=len(self.bars), fontsize=11, columnspacing=1.2, handlelength=1.2, frameon=False)
        self.places, self.names = places, []

    def draw(self, zoom=1.0, centre=0.5):
        """A part of the time, drawn into this view's figure.

        Args:
            zoom: How many times shorter than the whole the part is; 1 or more.
            centre: Where its middle lies in the whole, 0 to 1; moved inwards where the part would stick out.
        """
        whole = max(self.end - self.begin, 1e-3)
        span = whole / max(zoom, 1.0)
        begin = self.begin + min(max(centre * whole - span / 2, 0), whole - span)
        scale = (_WIDTH - _LEFT - _RIGHT) / span
        boxes, self.shown = {kind: [] for kind in self.bars}, []  # shown: (event, how many share its bar)
        named = 0
        for place, (_, *row) in zip(self.places, self.rows, strict=True):
            for event, joined, x, end in _bars(*row, begin, begin + span, scale):
                pixels = max((end - x) * scale, 1)
                left, top, low = (x - self.begin) / 1000, place - 0.45, place + 0.45
                right = left + (pixels - (pixels > 2 * _GRAIN)) / scale / 1000  # a gap tells it from its neighbour
                corners = (left, low), (left, top), (right, top), (right, low)
                boxes[_MARK if event.mark else event.kind].append(corners)
                self.shown.append((event, joined))
                room = int((pixels - 6) / _LETTER)
                if room >= 4:
                    self._write(named, event, left + 4 / scale / 1000, place, room)
                    named += 1
        for unused in self.names[named:]:
            unused.set_visible(False)
        for kind, bars in self.bars.items():
            bars.set_verts(boxes[kind])
        self.ax.set_xlim((begin - self.begin) / 1000, (begin - self.begin + span) / 1000)
        words = f"{span / 1000:,.2f} ms of {whole / 1000:,.2f} ms"
        self.ax.set_xlabel(f"ms; shown are {words}, {self.count:,} events in all")
        self.figure.set_label(f"Timeline of {len(self.traces)} trace(s): {words}. {self.said}")
        return self.figure

    def _write(self, number, event, left, place, room):
        """Write an event's name on its bar."""
        if number == len(self.names):
            self.names.append(self.ax.text(0, 0, "", fontsize=10, va="center_baseline", clip_on=True, parse_math=False))
        name = event.name
        if _letters(name) > room:
            name = next(cut for end in reversed(range(len(name))) if _letters(cut := name[:end] + "…") <= room)
        ink = "#ffffff" if event.kind == tracing.COMPUTE and not event.mark else "#111111"
        self.names[number].set(text=name, position=(left, place), color=ink, visible=True)

    def _counted(self, number):
        seconds = self.traces[number].seconds()
        return f"{self._name(number, 'in all')}: " + ", ".join(
            f"{kind} {1000 * seconds[kind]:.1f} ms" for kind in tracing.KINDS)


def _letters(text):
    """How wide a text is, in letters of the mean width."""
    return len(text) + 0.65 * sum(map(text.count, "mwMW…"))


def _seen(trace):
    """The events; of waiting, what lies beside compute or communication is "other", as `Trace.busy` counts it."""
    for event in trace.events:
        at = event.begin_us
        if event.kind == tracing.WAITING:
            for begin, end in trace.busy(tracing.WAITING):
                begin, end = max(begin, at), min(end, event.end_us)
                if begin < end:
                    if at < begin:
                        yield event._replace(begin_us=at, duration_us=begin - at, kind=tracing.OTHER)
                    yield event._replace(begin_us=begin, duration_us=end - begin)
                    at = end
            event = event._replace(kind=tracing.OTHER)
        if at < event.end_us or at == event.begin_us:
            yield event._replace(begin_us=at, duration_us=event.end_us - at)


def _bars(events, begins, ends, begin, until, scale):
    """(event, how many, begin, end) of each bar of a row. Neighbours narrower than a grain share the longest one's."""
    number = max(0, bisect_left(begins, begin) - 1)
    last = bisect_left(begins, until)
    grain = _GRAIN / scale
    while number < last:
        first, longest, x, end = number, number, max(begins[number], begin), min(ends[number], until)
        number += 1
        if end < begin:
            continue
        if end - x < grain:
            edge, took = x + grain, ends[first] - begins[first]
            while number < last and begins[number] < edge and ends[number] < edge + grain:
                end = max(end, ends[number])
                if ends[number] - begins[number] > took:
                    longest, took = number, ends[number] - begins[number]
                number += 1
        yield events[longest], number - first, x, min(end, until)


def trace_viewer(traces, zoom=1.0, centre=0.5):
    """Zoom into a trace, or into those of all ranks, and move along it; bars wide enough bear the event's name.

    Args:
        traces: A `helpers.instruments.traces.Trace`, or one per rank as `together` returns them.
        zoom, centre: The part that is shown at first, as `View.draw` takes them.

    Raises:
        helpers.instruments.traces.TraceError: there are no events.
    """
    view = View(traces)
    wide = {"style": {"description_width": "80px"}, "layout": {"width": "720px"}}
    controls = {
        "zoom": widgets.FloatLogSlider(zoom, base=2, min=0, max=12, step=0.25, description="zoom",
                                       readout_format=".0f", **wide),
        "centre": widgets.FloatSlider(centre, min=0, max=1, step=0.002, description="move", readout_format=".2f",
                                      **wide),
    }
    return Explorer(controls, view.draw,
                    "Trace viewer: zoom, and move along the time; each row is a thread of a rank, or what lies "
                    "inside the events above it, coloured by what it is: compute, communication, waiting, or other.")


class AveragesTable:
    """The columns of `key_averages().table()` that matter, for the first rows; alone in a cell it shows itself."""

    def __init__(self, averages, rows=8, sort_by="self_cpu_time_total", memory=False):
        """
        Args:
            averages: What `prof.key_averages()` returned.
            rows: How many rows.
            sort_by: The attribute to sort by, the largest first.
            memory: Show what was allocated in place of the shares of time.
        """
        averages = list(averages)
        whole = sum(row.self_cpu_time_total for row in averages) or 1
        columns = {"Name": lambda row: row.key, "# of Calls": lambda row: f"{row.count:,}",
                   "Self CPU": lambda row: _time(row.self_cpu_time_total),
                   "CPU total": lambda row: _time(row.cpu_time_total)}
        if memory:
            columns |= {"Self CPU Mem": lambda row: _bytes(row.self_cpu_memory_usage),
                        "CPU Mem": lambda row: _bytes(row.cpu_memory_usage)}
        else:
            columns |= {"Self CPU %": lambda row: f"{row.self_cpu_time_total / whole:.1%}",
                        "CPU time avg": lambda row: _time(row.cpu_time_total / max(row.count, 1))}
        if any(row.device_time_total for row in averages) and not memory:
            columns["Device total"] = lambda row: _time(row.device_time_total)
        self.columns = list(columns)
        shown = sorted(averages, key=lambda row: -getattr(row, sort_by))[:rows]
        self.rows = [[value(row) for value in columns.values()] for row in shown]

    def __repr__(self):
        table = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table)

    def _repr_html_(self):
        def cell(tag, text, side):
            return f'<{tag} style="text-align: {side}">{html.escape(text)}</{tag[:2]}>'

        sides = ["left"] + ["right"] * (len(self.columns) - 1)
        heads = "".join(cell('th scope="col"', name, side) for name, side in zip(self.columns, sides, strict=True))
        rows = "".join(
            "<tr>" + cell('th scope="row"', row[0], "left") + "".join(cell("td", text, "right") for text in row[1:])
            + "</tr>" for row in self.rows)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _time(us):
    return f"{us:.1f} µs" if us < 100 else f"{us / 1000:,.2f} ms"


def _bytes(size):
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,} B"
