"""The launch panel: choose a script and a number of ranks, run it, watch its ranks live, stop it."""

import html
import shlex
import threading
import time
from itertools import groupby
from math import isfinite, nan

import ipywidgets as widgets
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.figures import as_html
from helpers.launcher import RankError, launch
from helpers.launcher.output import clip
from helpers.widgets.explorer import with_static

#: Lines of each rank that the panel shows, the last ones; the most ranks and seconds that it lets a run have.
SHOWN_LINES, MOST_RANKS, TIMEOUT = 6, 4, 120
#: Seconds between two updates while ranks run: of their lines; and of the curve, which takes a core 50 ms.
INTERVAL, CURVE_INTERVAL = 0.1, 0.5


def draw_ranks(lines, unfinished, status):
    """`status`, a sentence on the run, above a box for each rank: its last lines, as HTML."""
    boxes = []
    for rank, printed in enumerate(lines):
        shown = [*printed, *filter(None, [unfinished.get(rank)])][-SHOWN_LINES:]
        text = html.escape("\n".join(clip(line, 120) for line in shown)) or " "
        boxes.append(
            f'<div style="flex: 1 1 260px; min-width: 0; padding: 4px 8px; border: 1px solid #888; '
            f'border-top: 5px solid {to_hex(f"C{rank}")}"><strong>rank {rank}</strong>'
            f'<pre style="margin: 0; white-space: pre-wrap; word-break: normal; font-size: 14px; '
            f'min-height: {1.3 * SHOWN_LINES:.1f}em">{text}</pre></div>')
    return (f'<div role="status" style="font-size: 15px; margin: 4px 0">{html.escape(status)}</div>'
            f'<div style="display: flex; flex-wrap: wrap; gap: 8px">{"".join(boxes)}</div>')


def draw_curves(ax, reports):
    """Draw every rank's loss, one point a report; `reports`: by rank, the rows that it reported, as dicts."""
    ax.clear()
    said = []
    for rank, rows in enumerate(reports):
        losses = [row["loss"] for row in rows if isinstance(row.get("loss"), int | float)]
        ys = [loss if isfinite(loss) else nan for loss in losses]
        if ys:
            ax.plot(ys, ".-", label=f"rank {rank}: {ys[-1]:.2f}")
            said.append(f"rank {rank}: {len(ys)} reports, from {ys[0]:.2f} to {ys[-1]:.2f}.")
    title = f"loss of {len(reports)} rank{'s' * (len(reports) != 1)}"
    ax.set(title=title, xlabel="report", ylabel="loss")
    ax.grid(visible=True, axis="both")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if said:
        ax.legend(loc="upper right", title="at last")
    else:
        ax.set(xlim=(0, 9), ylim=(0, 2.5))
        ax.text(4.5, 1.25, "no loss has been reported yet", ha="center")
    ax.figure.set_label(f"{title} over their reports. {' '.join(said) or 'None has come yet.'}")


class LaunchPanel(widgets.VBox):
    """Controls for a script and its ranks, a box of live output for each rank, the curve of their losses."""

    _ipython_display_ = None  # as for `Explorer`

    def __init__(self, *scripts, args=(), nprocs=2, shown=None):
        """
        scripts: names of the lessons' scripts, or paths; args: their command line, at first.
        shown: a `Run` that the panel shows until it has one of its own.
        """
        self.stop_event, self.thread = threading.Event(), None
        self.script = widgets.Dropdown(options=scripts, description="Script")
        self.args = widgets.Text(shlex.join(args), description="Arguments")
        self.nprocs = widgets.BoundedIntText(nprocs, 1, MOST_RANKS, description="Ranks",
                                             layout={"width": "150px"})
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop")
        self.output = widgets.HTML()
        self.curve = widgets.HTML(layout={"min_height": "310px"})  # also while it changes
        self.drawing = threading.Lock()  # one thread at a time can draw a figure
        self.figure = Figure(figsize=(9, 3), layout="none")
        self.axes = self.figure.add_axes((0.08, 0.2, 0.9, 0.68))
        presets = [widgets.Button(description=words) for words in ("Run on 1", f"Run on {MOST_RANKS}")]
        for button, ranks in zip(presets, (1, MOST_RANKS), strict=True):
            button.on_click(lambda _, ranks=ranks: self.run(ranks))
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self._clear(nprocs)
        if shown is not None:
            self.reports = shown.reports
            self.finish(shown.logs)
        self._draw("Choose a script and press Run. "
                   "Compare what the ranks print, and how fast their losses fall.")
        controls = [self.script, self.args, self.nprocs, self.run_button, self.stop_button, *presets]
        super().__init__([widgets.HBox(controls, layout={"flex_flow": "row wrap"}), self.output, self.curve])
        self.add_class("panel")

    def run(self, ranks=None):
        """Start the chosen script in the background, on `ranks` or as many as chosen, unless one is running.

        No button is disabled meanwhile: it would lose the keyboard's focus.
        """
        if self.thread is not None and self.thread.is_alive():
            return
        self.nprocs.value = ranks or self.nprocs.value
        self.stop_event.clear()
        self._clear(self.nprocs.value)
        chosen = self.script.value, self.nprocs.value, self.args.value
        self.thread = threading.Thread(target=self._launch, args=chosen, daemon=True)
        self.thread.start()

    def stop(self):
        """End the ranks that are running."""
        self.stop_event.set()

    def _launch(self, script, nprocs, args):
        ranks = f"{nprocs} rank{'s' * (nprocs != 1)}"
        self.running = f"{script} is running on {ranks} …"
        self._draw(self.running, CURVE_INTERVAL)
        try:
            run = launch(script, nprocs, shlex.split(args), timeout=TIMEOUT, show=self,
                         on_report=lambda rank, row: self.reports[rank].append(row), stop=self.stop_event)
            self._draw(f"{script}: {ranks} finished after {run.seconds:.1f} s.")
        except KeyboardInterrupt:
            self._draw(f"{script}: stopped.")
        except RankError as error:
            self._draw(f"{script}: {error}")
        except Exception as error:  # refused before it started: say why where the button was pressed
            self._draw(f"{script}: {type(error).__name__}: {error}")

    # What `launch` calls while the ranks run (see helpers.launcher.output.Display).

    def update(self, lines, unfinished):
        for rank, new in groupby(lines, key=lambda line: line[0]):
            self.lines[rank] = [*self.lines[rank], *(text for _, text in new)][-SHOWN_LINES:]
        self.unfinished = unfinished
        if time.monotonic() - self.drawn > INTERVAL:
            self.show_now()

    def show_now(self):
        self._draw(self.running, CURVE_INTERVAL)

    def finish(self, logs):
        self.lines, self.unfinished = [log.splitlines() for log in logs], {}

    def _clear(self, nprocs):
        self.lines, self.unfinished = [[] for _ in range(nprocs)], {}
        self.reports = [[] for _ in range(nprocs)]
        self.in_curve, self.curve_drawn = None, time.monotonic()

    def _draw(self, status, curve_interval=0):
        self.drawn = time.monotonic()
        counts = [len(rows) for rows in self.reports]
        if counts != self.in_curve and self.drawn - self.curve_drawn >= curve_interval:
            with self.drawing:
                draw_curves(self.axes, self.reports)
                self.curve.value = as_html(self.figure)
            self.in_curve, self.curve_drawn = counts, time.monotonic()
        # Last, for who reads that a run has finished may press Run at once.
        self.output.value = draw_ranks(self.lines, self.unfinished, status)

    def _repr_mimebundle_(self, **kwargs):
        with self.drawing:
            return with_static(self, f"Launch panel for {', '.join(self.script.options)}", self.figure)


launch_panel = LaunchPanel  # called as explorers are
