"""The launch panel: choose a script and a number of ranks, run it, watch its ranks live, stop it."""

import html
import threading
import time
from itertools import groupby

import ipywidgets as widgets

from helpers.launcher import RankError, launch
from helpers.launcher.arguments import WORKERS
from helpers.launcher.output import clip
from helpers.widgets.explorer import with_static
from helpers.widgets.svg import COLOURS, picture_of, svg

#: Lines of each rank that the panel shows: the last ones.
SHOWN_LINES = 6
#: Seconds between two drawings while ranks run.
INTERVAL = 0.1


def draw_ranks(lines, unfinished, status):
    """One box per rank with the last lines it printed, as HTML.

    Args:
        lines: By rank, the lines printed so far.
        unfinished: {rank: the line it is writing}.
        status: One sentence on the run.
    """
    boxes = []
    for rank, printed in enumerate(lines):
        shown = [*printed, *filter(None, [unfinished.get(rank)])][-SHOWN_LINES:]
        text = html.escape("\n".join(clip(line, 120) for line in shown)) or " "
        boxes.append(
            f'<div style="flex: 1 1 260px; min-width: 0; padding: 4px 8px; border: 1px solid #888; '
            f'border-top: 5px solid {COLOURS[rank % len(COLOURS)]}"><strong>rank {rank}</strong>'
            f'<pre style="margin: 0; white-space: pre-wrap; font-size: 14px">{text}</pre></div>')
    return (f'<div role="status" style="font-size: 15px; margin: 4px 0">{html.escape(status)}</div>'
            f'<div style="display: flex; flex-wrap: wrap; gap: 8px">{"".join(boxes)}</div>')


def draw_curves(reports, value="loss"):
    """Every rank's reported `value`, one point a report, as SVG; empty while there are fewer than two points.

    Args:
        reports: By rank, the rows that it reported, as dicts.
    """
    series = [[row[value] for row in rows if isinstance(row.get(value), int | float)] for rows in reports]
    series = [[y for y in ys if y == y and abs(y) != float("inf")] for ys in series]
    longest = max(map(len, series), default=0)
    if longest < 2:
        return ""
    low, high = min(min(ys) for ys in series if ys), max(max(ys) for ys in series if ys)
    span = (high - low) or 1
    parts = [f'<text x="10" y="24">{html.escape(value)}: {high:.2f} at the top, {low:.2f} at the bottom</text>',
             '<path d="M60 40V220H680" fill="none" stroke="#333"/>', '<text x="560" y="244">reports →</text>']
    for rank, ys in enumerate(series):
        points = " ".join(f"{60 + 620 * i / (longest - 1):.0f},{220 - 180 * (y - low) / span:.0f}"
                          for i, y in enumerate(ys))
        colour = COLOURS[rank % len(COLOURS)]
        x, y = 100 + 110 * (rank % 4), 244 + 20 * (rank // 4)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="3"/>'
                     f'<text x="{x}" y="{y}" fill="{colour}">— rank {rank}</text>')
    return svg(720, 252 + 20 * ((len(series) - 1) // 4), parts, f"{value} of {len(series)} ranks over their reports")


class LaunchPanel(widgets.VBox):
    """Controls for a script and its ranks above one box of live output per rank and, if it reports, a curve."""

    def __init__(self, scripts, nprocs=2, most=4, timeout=120, shown=None):
        """
        Args:
            scripts: Names of scripts in helpers/workers/, or paths.
            nprocs: Ranks at first.
            most: Ranks at most.
            timeout: Seconds after which a run is ended.
            shown: A `Run` that the panel shows until its first own.
        """
        self.timeout, self.stop_event, self.thread = timeout, threading.Event(), None
        self.script = widgets.Dropdown(options=list(scripts), description="Script")
        self.nprocs = widgets.IntSlider(nprocs, 1, most, description="Ranks")
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.output, self.curve = widgets.HTML(), widgets.HTML()
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self._clear(nprocs)
        if shown is not None:
            self.reports = shown.reports
            self.finish(shown.logs)
        self._draw("Choose a script and press Run.")
        super().__init__([widgets.HBox([self.script, self.nprocs, self.run_button, self.stop_button]),
                          self.output, self.curve])

    def run(self):
        """Start the chosen script in the background; a second run waits until the first is over."""
        if self.thread is not None and self.thread.is_alive():
            return
        self.stop_event.clear()
        self.run_button.disabled, self.stop_button.disabled = True, False
        self._clear(self.nprocs.value)
        self.thread = threading.Thread(target=self._launch, args=(self.script.value, self.nprocs.value), daemon=True)
        self.thread.start()

    def stop(self):
        """End the ranks that are running."""
        self.stop_event.set()

    def _launch(self, script, nprocs):
        ranks = f"{nprocs} rank{'s' * (nprocs != 1)}"
        self.running = f"{script} is running on {ranks} …"
        self._draw(self.running)
        try:
            run = launch(script, nprocs, timeout=self.timeout, show=self, on_report=self._report, stop=self.stop_event)
            self._draw(f"{script}: {ranks} finished after {run.seconds:.1f} s.")
        except KeyboardInterrupt:
            self._draw(f"{script}: stopped.")
        except RankError as error:
            self._draw(f"{script}: {error}")
        except Exception as error:  # refused before it started: say why in the panel, where the button was pressed
            self._draw(f"{script}: {type(error).__name__}: {error}")
        finally:
            self.run_button.disabled, self.stop_button.disabled = False, True

    # What `launch` calls while the ranks run (see helpers.launcher.output.Quiet).

    def update(self, lines, unfinished):
        for rank, new in groupby(lines, key=lambda line: line[0]):
            self.lines[rank] = [*self.lines[rank], *(text for _, text in new)][-SHOWN_LINES:]
        self.unfinished = unfinished
        if time.monotonic() - self.drawn > INTERVAL:
            self._draw(self.running)

    def finish(self, logs):
        self.lines, self.unfinished = [log.splitlines() for log in logs], {}

    def _report(self, rank, row):
        self.reports[rank].append(row)

    def _clear(self, nprocs):
        self.lines, self.reports, self.unfinished = [[] for _ in range(nprocs)], [[] for _ in range(nprocs)], {}

    def _draw(self, status):
        self.drawn = time.monotonic()
        self.output.value = draw_ranks(self.lines, self.unfinished, status)
        self.curve.value = draw_curves(self.reports)

    def _repr_mimebundle_(self, **kwargs):
        return with_static(super()._repr_mimebundle_(**kwargs), f"Launch panel for {', '.join(self.script.options)}",
                           self.output.value + picture_of(self.curve.value))


def launch_panel(*scripts, **options):
    """A `LaunchPanel` for these scripts; for all of the course's workers if none is named."""
    workers = sorted(path.name for path in WORKERS.glob("*.py") if not path.name.startswith("_"))
    return LaunchPanel(scripts or workers, **options)
