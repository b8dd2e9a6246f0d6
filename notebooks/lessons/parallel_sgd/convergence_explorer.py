"""The convergence explorer: workers, sync interval and label skew, from trainings that were really run.

`python -m lessons.parallel_sgd.convergence_explorer` runs them again, and stores their curves.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from helpers import launch
from helpers.figures import ACTIVITIES
from helpers.places import RECORDS
from helpers.records import store, stored
from helpers.widgets.shapes import RANKS, Chart, box, doing, path, words
from helpers.widgets.stage import Stage, preset, slider
from lessons.parallel_sgd.shards import labels_of, skewed_split
from lessons.parallel_sgd.task import TASKS

WORKERS = (1, 2, 4, 8)
#: Steps between two averagings; 0 stands for once per epoch.
EVERY = (1, 4, 16, 0)
SKEWS = (0.0, 0.5, 1.0)
EPOCHS = range(1, 6)
PATH = RECORDS / "convergence.json"
#: By workers: the steps of each in an epoch.
STEPS = {1: 180, 2: 90, 4: 45, 8: 23}
CHART = Chart("chart", 50, 26, 340, 190, (0.75, len(EPOCHS)), (0, 1), {epoch: str(epoch) for epoch in EPOCHS},
              {0: "0 %", 0.5: "50 %", 1: "100 %"}, "epochs (passes over all images, together)", "test accuracy")
AVERAGED, OWN = RANKS[0], RANKS[2]
ROWS, ROW = 310, 15  #: where the first worker's row begins, and how far it is to the next one
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
    epochs = [[rank[epoch] for rank in reports] for epoch in range(len(EPOCHS))]
    shortest = min(map(len, skewed_split(labels_of(TASKS["Digits"]), workers, skew)))
    steps = math.ceil(shortest / TASKS["Digits"].batch)
    return Curve(accuracy=[round(ranks[0]["accuracy"], 5) for ranks in epochs],
                 own=[round(sum(rank["own"] for rank in ranks) / workers, 5) for ranks in epochs],
                 loss=[round(ranks[0]["loss"], 5) for ranks in epochs],
                 averagings=math.ceil(steps / (every or steps)))


def record():
    """Train every setting once, and store the curves."""
    store(PATH, {f"{workers} {every} {skew}": train(workers, every, skew)._asdict()
                 for workers in WORKERS for every in EVERY for skew in SKEWS
                 if workers > 1 or (every, skew) == (0, 0.0)})


@lru_cache
def stored_grid():
    """{(workers, every, skew): Curve}. One worker averages with nobody: all its settings are one training."""
    curves = {setting: Curve(**curve) for setting, curve in stored(PATH).items()}
    return {(workers, every, skew): curves[f"{workers} {every} {skew}" if workers > 1 else "1 0 0.0"]
            for workers in WORKERS for every in EVERY for skew in SKEWS}


def scene(workers, every, skew):
    """The curves of a setting; below them, for each worker, the digits that it has and the steps that it makes."""
    curve, alone = stored_grid()[workers, every, skew], stored_grid()[1, 0, 0.0]
    title = in_words(workers, every, skew)
    shapes = [*CHART.axes(), _all_settings(), _curve("alone", alone.accuracy, width=2)]
    shapes += [*_heads(workers), *_workers(workers, skew)]
    ends = {"one worker": alone.accuracy[-1]}
    frame = {"title": title, "shapes": shapes, "alt": f"{title}. Test accuracy by epoch: {_listed(curve.accuracy)}.",
             "note": "“Average every” and “Label skew” do nothing here."}
    if workers > 1:
        shapes.append(_curve("own", curve.own, line=OWN, dash=True, width=3))
        shapes.append(_curve("averaged", curve.accuracy, line=AVERAGED, width=4))
        shapes += [*_lifts(curve), _averagings(workers, curve.averagings)]
        ends |= {"averaged": curve.accuracy[-1], "before averaging": curve.own[-1]}
        rounds = "one averaging" if curve.averagings == 1 else f"{curve.averagings} averagings"
        frame["note"] = (f"An epoch has {rounds}. At the end, the averaged model reads {curve.accuracy[-1]:.0%} of the "
                         f"test's digits. Just before the last averaging, the workers' own read {curve.own[-1]:.0%}.")
        frame["alt"] += f" Of the workers' own models: {_listed(curve.own)}."
    shapes += _named(ends)
    off = ["every", "skew"] if workers == 1 else []  # they would change nothing
    return {"size": (560, 436), "off": off, "frames": [frame]}


def _curve(id, shares, **look):
    return CHART.curve(id, zip(EPOCHS, shares, strict=True), **look)


def in_words(workers, every, skew):
    """What the setting is."""
    if workers == 1:
        return "1 worker: it averages with nobody, and has all the digits"
    how = {0: "once per epoch", 1: "at every step"}.get(every, f"every {every} steps")
    return f"{workers} workers, averaged {how}, {skew:.0%} of the images sorted by label"


def _listed(shares):
    return ", ".join(f"{share:.0%}" for share in shares)


@lru_cache
def _all_settings():
    """All curves as one faint line, which goes along each and back again."""
    points = []
    for curve in sorted({tuple(curve.accuracy) for curve in stored_grid().values()}):
        there = list(zip(EPOCHS, curve, strict=True))
        points += there + there[-2::-1]
    return CHART.curve("all settings", points, width=1, opacity=0.18, layer=-1)


def _lifts(curve):
    """What the last averaging of each epoch changes."""
    for epoch, own, averaged in zip(EPOCHS, curve.own, curve.accuracy, strict=True):
        ends = [(epoch, own), (epoch, averaged)]
        yield CHART.curve(f"lift {epoch}", ends, line=ACTIVITIES["communication"], width=2, arrow=True)


def _named(ends):
    """Names at the ends of the curves, far enough from each other to be read."""
    y = 0
    for name, share in sorted(ends.items(), key=lambda end: -end[1]):
        y = max(CHART.y(share), y + 18)
        yield words(f"end {name}", CHART.left + CHART.width + 8, y, f"{share:.0%} {name}", size=14)


def _heads(workers):
    yield words("has", DIGITS, ROWS - 28, "the digits that it has", size=14)
    for digit in range(10):
        middle = DIGITS + DIGIT * (digit + 0.5)
        yield words(f"digit {digit}", middle, ROWS - 9, str(digit), "middle", size=13)
    yield words("makes", EPOCH, ROWS - 28, f"its {STEPS[workers]} steps in an epoch", size=14)
    if workers > 1:
        yield words("averages", EPOCH, ROWS - 9, "red line: all are averaged", size=13)


def _workers(workers, skew):
    """A row for each worker; a click on an empty one brings in more workers.

    Images that are sorted by label are cut into equal parts: each worker has the part of its own digits. The others
    are mixed. How high both parts of its row are says how many of its images they are.
    """
    high, wide = (ROW - 3) * skew, 10 * DIGIT / workers
    for worker in range(max(WORKERS)):
        y, wanted = ROWS + ROW * worker, min(count for count in WORKERS if count > worker)
        yield box(f"row {worker}", DIGITS, y, 10 * DIGIT, ROW - 3, line="#888888", dash=True, fill="#88888822",
                  layer=-1, click={"workers": wanted}, tip="1 worker" if wanted == 1 else f"{wanted} workers")
        if worker < workers:
            yield words(f"name {worker}", DIGITS - 8, y + 6, f"worker {worker}", "end", size=13)
            yield box(f"mixed {worker}", DIGITS, y + high, 10 * DIGIT, ROW - 3 - high, fill=OWN, opacity=0.6)
            yield box(f"sorted {worker}", DIGITS + wide * worker, y, wide, high, fill=OWN)
            yield box(f"steps {worker}", EPOCH, y, STEP * STEPS[workers], ROW - 3, **doing("compute"))


def _averagings(workers, averagings):
    """One comb of lines over the workers' steps."""
    points, top, bottom = [], ROWS - 2, ROWS + ROW * workers
    for number in range(1, averagings + 1):
        x = round(EPOCH + STEP * STEPS[workers] * number / averagings)
        points += [[x, top], [x, bottom], [x, top]]
    return path("averagings", points, line=ACTIVITIES["communication"], width=1.5, layer=1)


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
    return Stage("convergence_explorer", convergence_explorer.__doc__, scene, controls,
                 "Compare the averaged model with the workers' own models, just before they average.", presets,
                 everything=True)


if __name__ == "__main__":
    record()
