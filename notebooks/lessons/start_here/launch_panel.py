"""The launch panel: choose a script and a number of ranks, run it, watch its ranks live, stop it; compare its runs."""

import html
import shlex
import threading
import time
from dataclasses import dataclass
from itertools import groupby
from math import floor, isfinite, log10

import ipywidgets as widgets

from helpers.figures import ACTIVITIES
from helpers.launcher import RankError, launch
from helpers.launcher.output import clip
from helpers.widgets import view
from helpers.widgets.shapes import RANKS, Chart, box, words
from helpers.widgets.stage import Stage

#: Lines of each rank that the panel shows, the last ones; the most ranks and seconds that it lets a run have.
SHOWN_LINES, MOST_RANKS, TIMEOUT = 6, 4, 120
INTERVAL = 0.2  #: seconds between two updates while ranks run
#: The picture has less room than an explorer's: the ranks' lines stand above it.
SHEET = "<style>.panel {--stage-above: 500px}</style>"
SHOWN_RUNS = 4  #: side by side
MOST_POINTS = 100  #: of one curve
#: The picture: the first curve's left, how wide each is, how far it is to the next; their top and height.
SIZE = (560, 258)
LEFT, WIDE, STEP, TOP, HIGH = 54, 108, 128, 48, 140
BAR = TOP + HIGH + 30  #: the top of the bars of seconds


@dataclass
class Shown:
    """A run that the panel shows."""

    number: int
    called: str  # its script and arguments
    reports: list  # by rank: the rows that it has reported, as dicts
    seconds: float = 0.0

    @property
    def ranks(self):
        return f"{len(self.reports)} rank{'s' * (len(self.reports) != 1)}"

    def losses(self):
        """By report: the mean over the ranks. That is the loss of whole batches, of which each rank has a part."""
        by_rank = []
        for rows in self.reports:
            numbers = [row["loss"] for row in rows if isinstance(row.get("loss"), int | float)]
            if numbers:
                by_rank.append(numbers)
        # While they run, some ranks have reported more than others.
        return [sum(together) / len(together) for together in zip(*by_rank, strict=False)]


def scene(runs):
    """The loss of each of `runs` beside those of the others, on one scale, and the seconds that they took."""
    losses = [run.losses() for run in runs]
    longest = max([2, *map(len, losses)])
    scale, ticks, most = _scale([loss for curve in losses for loss in curve if isfinite(loss)])
    chart = Chart("loss", LEFT, TOP, WIDE + STEP * (SHOWN_RUNS - 1), HIGH, (0, 1), (min(ticks), most), {}, ticks)
    rows = {"loss": 31, _unit(runs): TOP + HIGH + 13, "time": BAR + 7}
    shapes = [*chart.axes(), *(words(f"row {name}", LEFT - 6, y, name, "end", size=13) for name, y in rows.items())]
    curves = [_points(curve, scale) for curve in losses]
    slowest = max([0.1, *(run.seconds for run in runs)])
    for place, run in enumerate(runs):
        small = Chart(f"run {run.number}", LEFT + STEP * place, TOP, WIDE, HIGH, (1, longest), chart.ys,
                      {longest: str(longest)}, {})
        shapes += small.axes()
        for other, curve in zip(runs, curves, strict=True):
            own = {"line": ACTIVITIES["compute"]} if other is run else {"line": "#999999", "width": 4, "layer": -1}
            shapes.append(small.curve(f"curve {other.number} at {run.number}", curve, **own))
        shapes += _described(run, losses[place], small.left, run.seconds / slowest)
    if len(runs) < SHOWN_RUNS:
        shapes.append(box("next", LEFT + STEP * len(runs), TOP, WIDE, HIGH, dash=True, text="your next\nrun"))
    return {"size": SIZE, "frames": [{
        "title": f"{len(runs)} run{'s' * (len(runs) != 1)}, on one scale",
        "note": "Blue: the run's loss, a mean over its ranks. Grey, behind it: the other runs.",
        "alt": " ".join(map(_in_words, runs, losses)) or "No run yet.", "shapes": shapes}]}


def _scale(losses):
    """How losses become heights; {height: words at it}; the greatest height. A tenth is a step, where that can be."""
    if losses and min(losses) > 0:
        lowest, highest = floor(log10(min(losses))), log10(max(losses))
        apart = 1 + (floor(highest) - lowest) // 6  # or the words would touch
        ticks = {power: f"{10.0 ** power:g}" for power in range(lowest, floor(highest) + 1, apart)}
        return log10, ticks, max(highest, lowest + 0.1)
    lowest, highest = min(losses, default=0), max(losses, default=1)
    if lowest == highest:
        highest += 1
    return float, {lowest: f"{lowest:.3g}", highest: f"{highest:.3g}"}, highest


def _points(losses, scale):
    every = 1 + len(losses) // MOST_POINTS
    numbered = list(enumerate(losses, start=1))
    return [(number, scale(loss)) for number, loss in numbered[:-1:every] + numbered[-1:] if isfinite(loss)]


def _unit(runs):
    """What a report is about."""
    rows = [row for run in runs for row in run.reports[0]]
    return "epoch" if rows and all("epoch" in row for row in rows) else "report"


def _described(run, losses, left, share):
    name = f"run {run.number}"
    last = f"ends at {losses[-1]:.2g}" if losses else "none yet"
    return [words(f"{name} ranks", left, 12, run.ranks, bold=True),
            words(f"{name} loss", left, 31, last, size=14, tip=run.called),
            box(f"{name} bar", left, BAR, max(1, WIDE * share), 14, fill=ACTIVITIES["compute"], round=0),
            words(f"{name} seconds", left, BAR + 27, f"{run.seconds:.1f} s", size=14)]


def _in_words(run, losses):
    told = f"{len(losses)} reports, loss from {losses[0]:.3g} to {losses[-1]:.3g}" if losses else "no loss yet"
    return f"{run.ranks}: {told}, {run.seconds:.1f} s."


def draw_ranks(lines, unfinished, status):
    """`status`, a sentence on the run, above a box for each rank: its last lines, as HTML."""
    boxes = []
    for rank, printed in enumerate(lines):
        shown = [*printed, *filter(None, [unfinished.get(rank)])][-SHOWN_LINES:]
        text = html.escape("\n".join(clip(line, 120) for line in shown)) or " "
        boxes.append(
            f'<div style="flex: 1 1 260px; min-width: 0; padding: 4px 8px; border: 1px solid #888; '
            f'border-top: 5px solid {RANKS[rank % len(RANKS)]}"><strong>rank {rank}</strong>'
            f'<pre style="margin: 0; white-space: pre-wrap; word-break: normal; font-size: 14px; '
            f'min-height: {1.3 * SHOWN_LINES:.1f}em">{text}</pre></div>')
    return (f'{SHEET}<div role="status" style="font-size: 15px; margin: 4px 0">{html.escape(status)}</div>'
            f'<div style="display: flex; flex-wrap: wrap; gap: 8px">{"".join(boxes)}</div>')


class LaunchPanel(widgets.VBox):
    """Launch panel: runs a script in a number of ranks, shows what each prints, and the loss of the last runs side by
    side."""

    _ipython_display_ = None  # as for `Stage`

    def __init__(self, *scripts, args=(), nprocs=2, shown=None):
        """
        scripts: names of the lessons' scripts, or paths; args: their command line, at first.
        shown: a `Run` that the panel shows until it has one of its own, and beside those.
        """
        self.stop_event, self.thread = threading.Event(), None
        self.script = widgets.Dropdown(options=scripts, description="Script")
        self.args = widgets.Text(shlex.join(args), description="Arguments")
        self.nprocs = widgets.BoundedIntText(nprocs, 1, MOST_RANKS, description="Ranks",
                                             layout={"width": "150px"})
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop")
        self.output = widgets.HTML()
        presets = [widgets.Button(description=words) for words in ("Run on 1", f"Run on {MOST_RANKS}")]
        for button, ranks in zip(presets, (1, MOST_RANKS), strict=True):
            button.on_click(lambda _, ranks=ranks: self.run(ranks))
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self.runs, self.lines, self.unfinished = [], [[] for _ in range(nprocs)], {}
        if shown is not None:
            self.runs = [Shown(0, "the run from above", shown.reports, shown.seconds)]
            self.finish(shown.logs)
        self.stage = Stage("launch_panel", LaunchPanel.__doc__, lambda: scene(self.runs), {},
                           "Run it with 1, 2 and 4 ranks. Does the loss fall as fast? How long does each take?")
        self._draw("Choose a script and press Run.")
        controls = [self.script, self.args, self.nprocs, self.run_button, self.stop_button, *presets]
        super().__init__([widgets.HBox(controls, layout={"flex_flow": "row wrap"}), self.output, self.stage])
        self.add_class("panel")

    def run(self, ranks=None):
        """Start the chosen script in the background, on `ranks` or as many as chosen, unless one is running.

        No button is disabled meanwhile: it would lose the keyboard's focus.
        """
        if self.thread is not None and self.thread.is_alive():
            return
        self.nprocs.value = ranks or self.nprocs.value
        script, nprocs, args = self.script.value, self.nprocs.value, self.args.value
        number = self.runs[-1].number + 1 if self.runs else 0
        self.lines, self.unfinished = [[] for _ in range(nprocs)], {}
        to_compare = [run for run in self.runs if run.losses()]
        new = Shown(number, f"{script} {args}", [[] for _ in range(nprocs)])
        self.runs = [*to_compare[1 - SHOWN_RUNS:], new]
        self.stop_event.clear()
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
            run = launch(script, nprocs, shlex.split(args), timeout=TIMEOUT, show=self,
                         on_report=lambda rank, row: shown.reports[rank].append(row), stop=self.stop_event)
            shown.seconds = run.seconds
            self._draw(f"{script}: {shown.ranks} finished after {run.seconds:.1f} s.")
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
        self.runs[-1].seconds = time.monotonic() - self.began
        self._draw(self.running)

    def finish(self, logs):
        self.lines, self.unfinished = [log.splitlines() for log in logs], {}

    def _draw(self, status):
        self.drawn = time.monotonic()
        self.stage.put(scene(self.runs))
        # Last, for who reads that a run has finished may press Run at once.
        self.output.value = draw_ranks(self.lines, self.unfinished, status)

    def _repr_mimebundle_(self, **kwargs):
        """As the stage's; a page without a kernel shows what the ranks printed, too."""
        stored = self.stage._repr_mimebundle_()
        return {**stored, **view(self), "text/plain": f"Launch panel for {', '.join(self.script.options)}",
                "text/html": self.output.value + stored["text/html"]}


launch_panel = LaunchPanel  # called as explorers are
