"""The trace viewer: a timeline of real traces to zoom and pan, and the profiler's table, as pictures.

Events too short to be seen share a bar, so that a picture stays small, however many events there are.
"""

import html
import re
from bisect import bisect_left
from collections import defaultdict

import ipywidgets as widgets

from helpers import traces as tracing
from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import ACTIVITIES, svg, ticks

COLOURS = {**ACTIVITIES, tracing.OTHER: "#b9c4cc"}
_INK = {tracing.COMPUTE: "#fff", tracing.COMMUNICATION: "#fff", tracing.WAITING: "#111", tracing.OTHER: "#111"}

#: Rows for each thread: events that lie deeper are left out.
DEEPEST = 6
_WIDTH, _LEFT, _ROW = 960, 120, 22
#: Pixels: neighbours that are narrower share a bar.
_GRAIN = 3


class View:
    """Traces, sorted into rows once, so that a part of them can be drawn quickly."""

    def __init__(self, traces):
        """
        Args:
            traces: A `helpers.traces.Trace`, or one per rank as `together` returns them.

        Raises:
            helpers.traces.TraceError: there is no trace, or none has an event.
        """
        traces = [traces] if isinstance(traces, tracing.Trace) else list(traces)
        if not any(trace.events for trace in traces):
            raise tracing.TraceError("there are no events to show: record at least one active step")
        self.traces = traces
        self.begin = min(trace.span_us[0] for trace in traces if trace.events)
        self.end = max(trace.span_us[1] for trace in traces if trace.events)
        self.count = sum(not event.mark for trace in traces for event in trace.events)
        self.rows = []  # (name shown at the left, or "", its events in the order of time, their beginnings)
        for number, trace in enumerate(traces):
            threads = defaultdict(lambda: defaultdict(list))
            for event in trace.events:
                if not event.mark and event.depth < DEEPEST:
                    threads[event.thread][event.depth].append(event)
            if trace.steps:
                self.rows.append((self._name(number, "steps"), [event for event in trace.events if event.mark]))
            gloo = {thread for thread, rows in threads.items() if "gloo:" in rows[min(rows)][0].name}
            size = {thread: sum(map(len, rows.values())) for thread, rows in threads.items()}
            order = sorted(threads, key=lambda thread, size=size, gloo=gloo: (thread in gloo, -size[thread]))
            for place, thread in enumerate(order):
                what = thread if thread.startswith("GPU") else "gloo" if thread in gloo else f"thread {place}"
                name = self._name(number, "main thread" if what == "thread 0" else what)
                for depth, events in sorted(threads[thread].items()):
                    self.rows.append((name if depth == 0 else "", events))
        self.rows = [(name, events, [event.begin_us for event in events]) for name, events in self.rows]
        self.said = "; ".join(self._counted(number) for number in range(len(traces)))

    def _name(self, number, what):
        if len(self.traces) == 1:
            return what
        rank = self.traces[number].rank
        return f"{number if rank is None else rank}: {what}"

    def draw(self, zoom=1.0, centre=0.5):
        """A part of the time, as SVG.

        Args:
            zoom: How many times shorter than the whole the part is; 1 or more.
            centre: Where its middle lies in the whole, 0 to 1; moved inwards where the part would stick out.
        """
        whole = max(self.end - self.begin, 1e-3)
        span = whole / max(zoom, 1.0)
        begin = self.begin + min(max(centre * whole - span / 2, 0), whole - span)
        scale = (_WIDTH - _LEFT - 10) / span
        parts, top = [], 44
        for name, events, begins in self.rows:
            if name:
                top += 4
                parts.append(f'<text x="6" y="{top + 16}" font-size="14">{html.escape(name)}</text>')
            parts += self._bars(events, begins, begin, begin + span, scale, top)
            top += _ROW
        parts += _axis(begin - self.begin, span, top + 4)
        words = f"{span / 1000:,.2f} ms of {whole / 1000:,.2f} ms"
        parts.append(f'<text x="6" y="24" font-size="17" font-weight="bold">{words}, {self.count:,} events in all'
                     "</text>")
        for number, (kind, colour) in enumerate(COLOURS.items()):
            parts.append(f'<rect x="{500 + 116 * number}" y="10" width="16" height="16" fill="{colour}"/>'
                         f'<text x="{520 + 116 * number}" y="24" font-size="14">{_LEGEND[kind]}</text>')
        return svg(_WIDTH, top + 34, parts, f"Timeline of {len(self.traces)} trace(s): {words}. {self.said}")

    def _bars(self, events, begins, begin, until, scale, top):
        """The bars of one row. Neighbours that are narrower than a grain share one, in the colour of the longest."""
        number = max(0, bisect_left(begins, begin) - 1)
        last = bisect_left(begins, until)
        while number < last:
            event = events[number]
            x, end = max(event.begin_us, begin), min(event.end_us, until)
            number += 1
            if end < begin:
                continue
            joined, longest = 1, event
            if (end - x) * scale < _GRAIN:
                edge = x + _GRAIN / scale
                while number < last and begins[number] < edge and events[number].end_us < edge + _GRAIN / scale:
                    end = max(end, min(events[number].end_us, until))
                    longest = max(longest, events[number], key=_duration)
                    joined, number = joined + 1, number + 1
            yield _bar(longest, joined, _LEFT + (x - begin) * scale, (end - x) * scale, top)

    def _counted(self, number):
        seconds = self.traces[number].seconds()
        return f"{self._name(number, 'in all')}: " + ", ".join(
            f"{kind} {1000 * seconds[kind]:.1f} ms" for kind in tracing.KINDS)


_LEGEND = {tracing.COMPUTE: "compute", tracing.COMMUNICATION: "communicate", tracing.WAITING: "wait",
           tracing.OTHER: "other"}


def _duration(event):
    return event.duration_us


def _bar(event, joined, x, wide, top):
    name = html.escape(event.name)
    many = f"{joined} short events, the longest: " if joined > 1 else ""
    colour = "#fff" if event.mark else COLOURS[event.kind]
    title = f"<title>{many}{name}, {_time(event.duration_us)}</title>"
    bar = (f'<rect x="{x:.1f}" y="{top}" width="{max(wide, 1):.1f}" height="{_ROW - 2}" fill="{colour}"'
           f'{" stroke=" + chr(34) + "#555" + chr(34) if event.mark else ""}')
    room = int((wide - 6) / 8)
    if room < 4:
        return f"{bar}>{title}</rect>"
    label = event.name if len(event.name) <= room else event.name[:room - 1] + "…"
    ink = "#111" if event.mark else _INK[event.kind]
    text = f'<text x="{x + 4:.1f}" y="{top + 15}" font-size="14" fill="{ink}">{html.escape(label)}</text>'
    return f"<g>{title}{bar}/>{text}</g>"


def _axis(begin, span, top):
    return [f'<path d="M{_LEFT} {top}H{_WIDTH - 10}" stroke="#333"/>',
            *ticks(_LEFT, _WIDTH - 10, top + 18, lambda share: _time(begin + span * share))]


def _time(us):
    return f"{us:.1f} µs" if us < 100 else f"{us / 1000:,.2f} ms"


class TraceViewer(Explorer):
    """The explorer of `trace_viewer`. Its static picture is an image, where nobody can hover: it has no titles."""

    def static(self):
        return re.sub("<title>[^<]*</title>", "", super().static()).replace("></rect>", "/>")


def trace_viewer(traces, zoom=1.0, centre=0.5):
    """Zoom into a trace, or into those of all ranks, and move along it; hovering over a bar names its event.

    Args:
        traces: A `helpers.traces.Trace`, or one per rank as `helpers.traces.together` returns them.
        zoom, centre: The part that is shown at first, as `View.draw` takes them.

    Raises:
        helpers.traces.TraceError: there are no events.
    """
    view = View(traces)
    wide = {"style": {"description_width": "80px"}, "layout": {"width": "720px"}}
    controls = {
        "zoom": widgets.FloatLogSlider(zoom, base=2, min=0, max=12, step=0.25, description="zoom",
                                       readout_format=".0f", **wide),
        "centre": widgets.FloatSlider(centre, min=0, max=1, step=0.002, description="move", readout_format=".2f",
                                      **wide),
    }
    return TraceViewer(controls, view.draw,
                       "Trace viewer: zoom, and move along the time; each row is a thread of a rank, or what lies "
                       "inside the events above it, coloured by what it is: compute, communication, waiting, or other.")


# ------------------------------------------------------------------------------------------------------------ the table


def draw_table(averages, rows=8, sort_by="self_cpu_time_total", memory=False):
    """The columns of `key_averages().table()` that matter, for the first rows, as SVG.

    Args:
        averages: What `prof.key_averages()` returned.
        rows: How many rows.
        sort_by: The attribute to sort by, the largest first.
        memory: Show what was allocated in place of the shares of time.
    """
    shown = sorted(averages, key=lambda row: -getattr(row, sort_by))[:rows]
    whole = sum(row.self_cpu_time_total for row in averages) or 1
    on_device = any(row.device_time_total for row in averages)
    columns = [("Name", 10, "start", lambda row: row.key if len(row.key) <= 40 else row.key[:39] + "…"),
               ("# of Calls", 430, "end", lambda row: f"{row.count:,}"),
               ("Self CPU", 540, "end", lambda row: _time(row.self_cpu_time_total)),
               ("CPU total", 650, "end", lambda row: _time(row.cpu_time_total))]
    if memory:
        columns += [("Self CPU Mem", 800, "end", lambda row: _bytes(row.self_cpu_memory_usage)),
                    ("CPU Mem", 940, "end", lambda row: _bytes(row.cpu_memory_usage))]
    else:
        columns += [("Self CPU %", 770, "end", lambda row: f"{row.self_cpu_time_total / whole:.1%}"),
                    ("CPU time avg", 900, "end", lambda row: _time(row.cpu_time_total / max(row.count, 1)))]
    if on_device and not memory:
        columns[-1] = ("Device total", 920, "end", lambda row: _time(row.device_time_total))
    parts = ['<path d="M10 36H950" stroke="#333"/>']
    for name, x, anchor, value in columns:
        parts.append(f'<text x="{x}" y="26" text-anchor="{anchor}" font-weight="bold">{name}</text>')
        parts += [f'<text x="{x}" y="{60 + 26 * number}" text-anchor="{anchor}" font-size="15">'
                  f"{html.escape(value(row))}</text>" for number, row in enumerate(shown)]
    return svg(960, 56 + 26 * len(shown), parts, "The profiler's table: the name, the number of calls and the times of "
                                                 "the operators with the most " + sort_by.replace("_", " "))


def draw_memory(trace):
    """The memory that a trace recorded, over time, as SVG; its peak is marked.

    Raises:
        helpers.traces.TraceError: the trace holds no memory, as `profile_memory` was not set.
    """
    if not trace.memory:
        raise tracing.TraceError("this trace holds no memory: record it with `profile(profile_memory=True)`")
    begin, end = trace.span_us
    peak_at, peak = max(trace.memory, key=lambda row: row[1])
    low = min(0, *(size for _, size in trace.memory))

    def x(us):
        return 20 + 900 * (us - begin) / max(end - begin, 1)

    def y(size):
        return 230 - 170 * (size - low) / max(peak - low, 1)

    points, before = [], trace.memory[0][1]
    for us, size in trace.memory:
        points += [f"{x(us):.1f},{y(before):.1f}", f"{x(us):.1f},{y(size):.1f}"]
        before = size
    words = f"peak {_bytes(peak)} at {_time(peak_at - begin)}"
    anchor = "start" if x(peak_at) < 480 else "end"
    return svg(960, 270, [
        f'<polygon points="{x(trace.memory[0][0]):.1f},{y(low):.1f} {" ".join(points)} {x(trace.memory[-1][0]):.1f},'
        f'{y(low):.1f}" fill="#9ecae1"/>',
        f'<circle cx="{x(peak_at):.1f}" cy="{y(peak):.1f}" r="6" fill="#d55e00"/>',
        f'<text x="{x(peak_at):.1f}" y="{y(peak) - 14:.1f}" text-anchor="{anchor}" font-weight="bold">{words}</text>',
        '<text x="10" y="24" font-size="17" font-weight="bold">Memory on the CPU that torch allocated meanwhile</text>',
        '<path d="M20 230H920" stroke="#333"/>', f'<text x="20" y="252" font-size="14">{_time(0)}</text>',
        f'<text x="920" y="252" font-size="14" text-anchor="end">{_time(end - begin)}</text>',
    ], f"Memory that torch allocated on the CPU, over time; peak {peak / 2**20:.0f} MiB.")


def _bytes(size):
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,} B"
