"""The launch panel: choose a script and a number of ranks, run it, watch its ranks live, stop it; compare its runs.

Boxes show the last lines of each rank. The picture grows with each report of a run: its loss falls beside those of the
runs before, and its bar of seconds gets longer.
"""

import html
import math
import shlex
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count

import ipywidgets as widgets

from helpers.figures import ACTIVITIES
from helpers.launcher import RankError, launch
from helpers.launcher.output import clip
from helpers.widgets import line_when_gone, view
from helpers.widgets.shapes import RANKS, Chart, box, words
from helpers.widgets.stage import Stage

SHOWN_LINES = 6  #: of each rank, the last ones
MOST_RANKS = 4
TIMEOUT = 120  #: the most seconds that the panel lets a run have
INTERVAL = 0.2  #: seconds between two updates while ranks run
GONE = ("The kernel was restarted or shut down. Run this cell again to use the panel. If a name is missing, the error "
        "says which cell to run first.")
STORED = "Run this cell: it brings the buttons with which you choose a script and launch it."
#: The picture has less room than an explorer's: the ranks' lines stand above it.
SHEET = "<style>.panel {--stage-above: 500px}</style>"
SHOWN_RUNS = 4  #: side by side
MOST_POINTS = 100  #: of one curve
MOST_TICKS = 6  #: of the scale, or their words would touch
#: The picture: the first curve's left, how wide each is, how far it is to the next; their top and height.
SIZE = (560, 258)
LEFT = 54
WIDE = 108
STEP = 128
TOP = 48
HIGH = 140
BAR = 218  #: the top of the bars of seconds
#: The rows' names, and the middles of their words.
ROWS = {"loss": 31, "report": 201, "time": 225}


@dataclass
class Shown:
    """A run that the panel shows."""

    number: int
    called: str  # its script and arguments
    reports: list  # by rank: the rows that it has reported, as dicts
    seconds: float = 0.0

    @property
    def ranks(self):
        return "1 rank" if len(self.reports) == 1 else f"{len(self.reports)} ranks"

    def losses(self):
        """By report: the mean over the ranks. That is the loss of whole batches, of which each rank has a part."""
        by_rank = []
        for rows in self.reports:
            numbers = [row["loss"] for row in rows if isinstance(row.get("loss"), int | float)]
            if numbers:
                by_rank.append(numbers)
        # While they run, some ranks have reported more than others.
        return [sum(together) / len(together) for together in zip(*by_rank, strict=False)]

    def points(self):
        """The curve: (number of the report, power of ten of the loss). What has no logarithm is left out."""
        numbered = list(enumerate(self.losses(), start=1))
        every = math.ceil(len(numbered) / MOST_POINTS) or 1
        return [(number, math.log10(loss)) for number, loss in numbered[::every] if 0 < loss < math.inf]


def scene(runs):
    """The loss of each of `runs` beside those of the others, on one scale, and the seconds that they took."""
    shared = _shared_scale(runs)
    shapes = shared.axes()
    for name, y in ROWS.items():
        shapes.append(words(f"row {name}", LEFT - 6, y, name, "end", size=13))
    longest = max([2, *(len(run.losses()) for run in runs)])
    slowest = max([0.1, *(run.seconds for run in runs)])
    # Each run has a chart of its own, so that equal losses lie equally high and one sees where each begins.
    for place, run in enumerate(runs):
        left = LEFT + STEP * place
        xticks = {longest: str(longest)}
        chart = Chart(f"run {run.number}", left, TOP, WIDE, HIGH, (1, longest), shared.ys, xticks, {})
        shapes += chart.axes()
        shapes += _curves(chart, run, runs)
        shapes += _described(run, left, run.seconds / slowest)
    if len(runs) < SHOWN_RUNS:
        shapes.append(box("next", LEFT + STEP * len(runs), TOP, WIDE, HIGH, dash=True, text="your next\nrun"))
    return {"size": SIZE, "frames": [{
        "title": "The last runs, on one scale",
        "note": "Blue: the run's loss, a mean over its ranks. Grey, behind it: the other runs.",
        "alt": " ".join(map(_in_words, runs)) or "No run yet.",
        "shapes": shapes,
    }]}


def _shared_scale(runs):
    """A chart as wide as all runs together, on which a tenth is always a step down."""
    powers = [power for run in runs for _, power in run.points()]
    lowest = math.floor(min(powers, default=-1))
    highest = max([lowest + 0.1, *powers])
    apart = 1 + int(highest - lowest) // MOST_TICKS
    ticks = {power: f"{10.0 ** power:g}" for power in range(lowest, math.floor(highest) + 1, apart)}
    wide = WIDE + STEP * (SHOWN_RUNS - 1)
    return Chart("loss", LEFT, TOP, wide, HIGH, (0, 1), (lowest, highest), {}, ticks)


def _curves(chart, run, runs):
    for other in runs:
        look = {"line": "#999999", "width": 4, "layer": -1}
        if other is run:
            look = {"line": ACTIVITIES["compute"]}
        yield chart.curve(f"curve {other.number} at {run.number}", other.points(), **look)


def _described(run, left, share):
    """The run's ranks, its last loss, and its seconds as a share of the slowest run's."""
    name = f"run {run.number}"
    losses = run.losses()
    last = f"ends at {losses[-1]:.2g}" if losses else "none yet"
    yield words(f"{name} ranks", left, 12, run.ranks, bold=True)
    yield words(f"{name} loss", left, 31, last, size=14, tip=run.called)
    yield box(f"{name} bar", left, BAR, max(1, WIDE * share), 14, fill=ACTIVITIES["compute"], round=0)
    yield words(f"{name} seconds", left, BAR + 27, f"{run.seconds:.1f} s", size=14)


def _in_words(run):
    losses = run.losses()
    told = "no loss yet"
    if losses:
        told = f"{len(losses)} reports, loss from {losses[0]:.3g} to {losses[-1]:.3g}"
    return f"{run.ranks}: {told}, {run.seconds:.1f} s."


def draw_ranks(lines, unfinished, status):
    """`status`, a sentence on the run, above a box for each rank: its last lines, as HTML."""
    boxes = []
    for rank, printed in enumerate(lines):
        shown = list(printed)
        if unfinished.get(rank):
            shown.append(unfinished[rank])
        clipped = [clip(line, 120) for line in shown[-SHOWN_LINES:]]
        text = html.escape("\n".join(clipped)) or " "
        boxes.append(
            f'<div style="flex: 1 1 260px; min-width: 0; padding: 4px 8px; border: 1px solid #888; '
            f'border-top: 5px solid {RANKS[rank % len(RANKS)]}"><strong>rank {rank}</strong>'
            f'<pre style="margin: 0; white-space: pre-wrap; word-break: normal; font-size: 14px; '
            f'min-height: {1.3 * SHOWN_LINES:.1f}em">{text}</pre></div>')
    return (f'{SHEET}<div role="status" style="font-size: 15px; margin: 4px 0">{html.escape(status)}</div>'
            f'<div style="display: flex; flex-wrap: wrap; gap: 8px">{"".join(boxes)}</div>')


def _button(text, action, **look):
    button = widgets.Button(description=text, **look)
    button.on_click(lambda _: action())
    return button


class LaunchPanel(widgets.VBox):
    """Launch panel: runs a script in a number of ranks, shows what each prints, and the loss of the last runs side by
    side."""

    _ipython_display_ = None  # as for `Stage`

    def __init__(self, *scripts, args=(), nprocs=2, shown=None):
        """
        scripts: names of the lessons' scripts, or paths; args: their command line, at first.
        shown: a `Run` that the panel shows until it has one of its own, and beside those.
        """
        self.stop_event = threading.Event()
        self.thread = None
        self.numbers = count()
        self.runs = []
        self.clear(nprocs)
        if shown is not None:
            self.runs.append(Shown(next(self.numbers), "the run from above", shown.reports, shown.seconds))
            self.finish(shown.logs)
        self.output = widgets.HTML()
        look = ("Run it with 1, 2 and 4 ranks. Is the loss as low after the same number of epochs? How long does each "
                "take?")
        self.stage = Stage("launch_panel", LaunchPanel.__doc__, lambda: scene(self.runs), {}, look)
        self._draw("Choose a script and press Run.")
        controls = widgets.HBox(self._controls(scripts, args, nprocs), layout={"flex_flow": "row wrap"})
        super().__init__([line_when_gone(GONE), controls, self.output, self.stage])
        self.add_class("panel")

    def _controls(self, scripts, args, nprocs):
        self.script = widgets.Dropdown(options=scripts, description="Script")
        self.args = widgets.Text(shlex.join(args), description="Arguments")
        self.nprocs = widgets.BoundedIntText(nprocs, 1, MOST_RANKS, description="Ranks", layout={"width": "150px"})
        return [
            self.script,
            self.args,
            self.nprocs,
            _button("Run", self.run, icon="play", button_style="primary"),
            _button("Stop", self.stop, icon="stop"),
            _button("Run on 1", partial(self.run, 1)),
            _button(f"Run on {MOST_RANKS}", partial(self.run, MOST_RANKS)),
        ]

    def clear(self, nprocs):
        """Forget what the ranks have printed."""
        self.lines = [deque(maxlen=SHOWN_LINES) for _ in range(nprocs)]
        self.unfinished = {}

    def run(self, ranks=None):
        """Start the chosen script in the background, on `ranks` or as many as chosen, unless one is running.

        No button is disabled meanwhile: it would lose the keyboard's focus.
        """
        if self.thread is not None and self.thread.is_alive():
            return
        self.nprocs.value = ranks or self.nprocs.value
        script = self.script.value
        nprocs = self.nprocs.value
        args = self.args.value
        self.clear(nprocs)
        # A run that told no loss has nothing to be compared with.
        to_compare = [run for run in self.runs if run.losses()]
        new = Shown(next(self.numbers), f"{script} {args}", [[] for _ in range(nprocs)])
        self.runs = [*to_compare, new][-SHOWN_RUNS:]
        self.stop_event.clear()
        # What is chosen while it runs is for the next run: the thread does not look at the controls.
        self.thread = threading.Thread(target=self._launch, args=(script, nprocs, args), daemon=True)
        self.thread.start()

    def stop(self):
        """End the ranks that are running."""
        self.stop_event.set()

    def _launch(self, script, nprocs, args):
        shown = self.runs[-1]
        self.running = f"{script} is running on {shown.ranks} …"
        self.began = time.monotonic()
        self.show_now()
        try:
            run = launch(script, nprocs, shlex.split(args), timeout=TIMEOUT, show=self, stop=self.stop_event,
                         on_report=lambda rank, row: shown.reports[rank].append(row))
            shown.seconds = run.seconds
            status = f"{shown.ranks} finished after {run.seconds:.1f} s."
        except KeyboardInterrupt:
            status = "stopped."
        except RankError as error:
            status = str(error)
        except Exception as error:  # refused before it started: say why where the button was pressed
            status = f"{type(error).__name__}: {error}"
        self._draw(f"{script}: {status}")

    # What `launch` calls while the ranks run (see helpers.launcher.output.Display).

    def update(self, lines, unfinished):
        for rank, text in lines:
            self.lines[rank].append(text)
        self.unfinished = unfinished
        if time.monotonic() - self.drawn > INTERVAL:
            self.show_now()

    def show_now(self):
        self.runs[-1].seconds = time.monotonic() - self.began
        self._draw(self.running)

    def finish(self, logs):
        self.lines = [log.splitlines() for log in logs]
        self.unfinished = {}

    def _draw(self, status):
        self.drawn = time.monotonic()
        self.stage.put(scene(self.runs))
        # Last, for who reads that a run has finished may press Run at once.
        self.output.value = draw_ranks(self.lines, self.unfinished, status)

    def _repr_mimebundle_(self, **kwargs):
        """As the stage's; a page without a kernel shows what the ranks printed, too."""
        stored = self.stage._repr_mimebundle_()
        boxes = draw_ranks(self.lines, self.unfinished, "")
        return {**stored, **view(self), "text/plain": f"Launch panel for {', '.join(self.script.options)}",
                "text/html": f'<p class="course-run">{STORED}</p>{boxes}{stored["text/html"]}'}


launch_panel = LaunchPanel  # called as explorers are
