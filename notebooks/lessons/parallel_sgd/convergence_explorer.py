"""The convergence explorer: curves of test accuracy that move with the workers, the sync interval and the label skew.

Below the curves, each worker's digits and steps move with them. All curves are from trainings that were really run:
`python -m lessons.parallel_sgd.convergence_explorer` runs them again, and stores them.
"""

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from helpers import launch
from helpers.figures import ACTIVITIES
from helpers.places import RECORDS
from helpers.records import store, stored
from helpers.widgets.shapes import RANKS, Chart, box, doing, path, words
from helpers.widgets.stage import Stage, preset, slider

WORKERS = (1, 2, 4, 8)
#: {steps between two averagings: how often that is}; 0 stands for once per epoch.
EVERY = {1: "at every step", 4: "every 4 steps", 16: "every 16 steps", 0: "once per epoch"}
SKEWS = (0.0, 0.5, 1.0)
SETTINGS = tuple(product(WORKERS, EVERY, SKEWS))
#: One worker averages with nobody, so that all its settings are this one.
ALONE = (1, 0, 0.0)
EPOCHS = range(1, 6)
PATH = RECORDS / "convergence.json"
#: By workers: the steps of each in an epoch.
STEPS = {1: 180, 2: 90, 4: 45, 8: 23}
CHART = Chart(
    "chart", 50, 26, 340, 190,
    xs=(0.75, len(EPOCHS)),
    ys=(0, 1),
    xticks={epoch: str(epoch) for epoch in EPOCHS},
    yticks={0: "0 %", 0.5: "50 %", 1: "100 %"},
    xlabel="epochs (passes over all images, together)",
    ylabel="test accuracy",
)
AVERAGED, OWN = RANKS[0], RANKS[2]
HEADS, ROWS = 282, 310  #: where the words above the workers' rows are, and where the first row begins
ROW, HIGH = 15, 12  #: how far it is from a row to the next one, and how high each is
DIGITS, DIGIT = 80, 19  #: where the ten digits begin, and how wide each is
EPOCH, STEP = 300, 1.4  #: where an epoch's steps begin, and how wide each is


class Curve(NamedTuple):
    """One training: what the test says after each epoch."""

    accuracy: list  # of the averaged model
    own: list  # the mean of the workers' own models, just before the last averaging of the epoch
    loss: list
    averagings: int  # in one epoch


def train(workers, every, skew):
    """A `Curve` of the digits, as real ranks of sgd_every_k.py report it."""
    args = ["--every", str(every or 10_000), "--skew", str(skew), "--epochs", str(len(EPOCHS))]
    reports = launch("sgd_every_k.py", workers, args=args, show=False, timeout=600).reports
    steps = STEPS[workers]
    curve = Curve([], [], [], averagings=math.ceil(steps / (every or steps)))
    for epoch in range(len(EPOCHS)):
        ranks = [rows[epoch] for rows in reports]
        curve.own.append(sum(rank["own"] for rank in ranks) / workers)
        # After the averaging, all ranks hold one model.
        curve.accuracy.append(ranks[0]["accuracy"])
        curve.loss.append(ranks[0]["loss"])
    return curve


def record():
    """Train every setting once, and store the curves."""
    curves = {}
    for setting in (ALONE, *SETTINGS):
        name = _name(setting)
        if name not in curves:
            curves[name] = train(*setting)._asdict()
    store(PATH, curves)


def _name(setting):
    """What its curve is called in the file."""
    workers, _, _ = setting
    return " ".join(map(str, ALONE if workers == 1 else setting))


@lru_cache
def stored_grid():
    """{(workers, every, skew): Curve}."""
    curves = stored(PATH)
    return {setting: Curve(**curves[_name(setting)]) for setting in SETTINGS}


def scene(workers, every, skew):
    """The curves of a setting; below them, for each worker, the digits that it has and the steps that it makes."""
    curve, alone = stored_grid()[workers, every, skew], stored_grid()[ALONE]
    frame = {
        "title": in_words(workers, every, skew),
        "note": "“Average every” and “Label skew” do nothing here.",
        "alt": f"Test accuracy by epoch: {_listed(curve.accuracy)}.",
        "shapes": [*CHART.axes(), _curve("alone", alone.accuracy, width=2), *_heads(workers), *_rows(workers, skew)],
    }
    ends = {"one worker": alone.accuracy[-1]}
    off = ["every", "skew"]
    if workers > 1:
        frame["note"] = (f"Averagings in an epoch: {curve.averagings}. The last model reads "
                         f"{curve.accuracy[-1]:.0%} of the test's digits. Just before, the workers' own read "
                         f"{curve.own[-1]:.0%}.")
        frame["alt"] += f" Of the workers' own: {_listed(curve.own)}."
        frame["shapes"] += [*_averaged(curve), *_averagings(workers, curve.averagings)]
        ends |= {"averaged": curve.accuracy[-1], "before averaging": curve.own[-1]}
        off = []
    frame["shapes"] += _named(ends)
    return {"size": (560, 436), "off": off, "frames": [frame]}


def _curve(id, shares, **look):
    return CHART.curve(id, zip(EPOCHS, shares, strict=True), **look)


def _heads(workers):
    yield words("has", DIGITS, HEADS, "the digits that it has", size=14)
    for digit in range(10):
        middle = DIGITS + DIGIT * (digit + 0.5)
        yield words(f"digit {digit}", middle, ROWS - 9, str(digit), "middle", size=13)
    yield words("makes", EPOCH, HEADS, f"its {STEPS[workers]} steps in an epoch", size=14)


def _rows(workers, skew):
    """A row for each worker; a click on an empty one brings in more workers.

    Images that are sorted by label are cut into equal parts: each worker has the part of its own digits. The others
    are mixed. How high both parts of its row are says how many of its images they are.
    """
    for worker in range(max(WORKERS)):
        y = ROWS + ROW * worker
        wanted = min(count for count in WORKERS if count > worker)
        high, wide, steps = HIGH, 10 * DIGIT / workers, STEP * STEPS[workers]
        if worker >= workers:
            # The boxes of a worker that is not there have no size, and grow once it is.
            high = wide = steps = 0
        own = high * skew
        yield words(f"name {worker}", DIGITS - 8, y + 6, f"worker {worker}", "end", size=13)
        yield box(f"row {worker}", DIGITS, y, 10 * DIGIT, HIGH, fill="#88888822", layer=-1,
                  click={"workers": wanted}, tip=f"workers: {wanted}")
        yield box(f"mixed {worker}", DIGITS, y + own, 10 * DIGIT, high - own, fill=OWN, opacity=0.6)
        yield box(f"sorted {worker}", DIGITS + wide * worker, y, wide, own, fill=OWN)
        yield box(f"steps {worker}", EPOCH, y, steps, high, **doing("compute"))


def _averaged(curve):
    """Both curves; and an arrow for what the last averaging of each epoch changes."""
    yield _curve("own", curve.own, line=OWN, dash=True, width=3)
    yield _curve("averaged", curve.accuracy, line=AVERAGED, width=4)
    for epoch, own, averaged in zip(EPOCHS, curve.own, curve.accuracy, strict=True):
        ends = [(epoch, own), (epoch, averaged)]
        yield CHART.curve(f"lift {epoch}", ends, line=ACTIVITIES["communication"], width=2, arrow=True)


def _averagings(workers, averagings):
    """A line across all workers' steps wherever they average; and what it means."""
    points, ends = [], [0, ROW * workers]
    for number in range(1, averagings + 1):
        x = round(STEP * STEPS[workers] * number / averagings)
        points += [[x, y] for y in ends]
        # The next line goes the other way, so that all of them are one.
        ends.reverse()
    yield path("averagings", points, x=EPOCH, y=ROWS, line=ACTIVITIES["communication"], width=1.5, layer=1)
    yield words("averages", EPOCH, ROWS - 9, "red line: all are averaged", size=13)


def _listed(shares):
    return ", ".join(f"{share:.0%}" for share in shares)


def _named(ends):
    """Names at the ends of the curves, far enough from each other to be read."""
    y = 0
    for name, share in sorted(ends.items(), key=lambda end: -end[1]):
        y = max(CHART.y(share), y + 18)
        yield words(f"end {name}", CHART.left + CHART.width + 8, y, f"{share:.0%} {name}", size=14)


def in_words(workers, every, skew):
    """What the setting is."""
    if workers == 1:
        return "1 worker: it averages with nobody, and has all the digits"
    return f"{workers} workers, averaged {EVERY[every]}, {skew:.0%} of images sorted by label"


def convergence_explorer():
    """Convergence explorer: choose the number of workers, how often they average, and how much of the data is
    sorted by label; the picture shows test accuracy over epochs, from real trainings, and what each worker has."""
    controls = {
        "workers": slider("Workers", 4, WORKERS),
        "every": slider("Average every", 0, [(str(every or "epoch"), every) for every in EVERY]),
        "skew": slider("Label skew", 1.0, [(f"{skew:.0%}", skew) for skew in SKEWS]),
    }
    presets = {
        "at every step": preset("Compare it with one worker. Does the skew still matter?", workers=8, every=1),
        "once per epoch": preset("Compare both lines: what do the workers know before they average?", workers=8),
        "no skew": preset("Now move “Average every”. How much does it matter?", workers=8, skew=0.0),
    }
    return Stage(
        "convergence_explorer", convergence_explorer.__doc__, scene, controls,
        look="Compare the averaged model with the workers' own models, just before they average.",
        presets=presets,
        everything=True,
    )


if __name__ == "__main__":
    record()
