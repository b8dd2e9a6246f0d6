"""Each rung of the speed ladder beside the one below it, in turns: which ones help?

    .venv/bin/python tests/benchmarks/speed_ladder.py     # about six minutes

It replaces the record from which lesson 14 takes what is kept. Of each rung it stores one time for every
turn, in seconds for a whole training of ten epochs, and the accuracy of each training.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from helpers import launch
from helpers.data import Digits
from helpers.hardware import hardware
from helpers.places import RECORDS
from helpers.records import store
from lessons.speed_ladder.rungs import gains, helps, rungs
from tests.benchmarks.machine import this_machine

EPOCHS, TURNS = 10, 5
#: The least of so many trainings is one time. Only where both rungs decode all files in each epoch, one is long enough.
TRAININGS = 3
FILES = {"train": 512, "test": 360}


def write_photos(folder):
    for part, count in FILES.items():
        for number, (image, label) in zip(range(count), Digits(train=part == "train"), strict=False):
            (folder / part / str(label)).mkdir(parents=True, exist_ok=True)
            image.resize((256, 256)).save(folder / part / str(label) / f"{number:04}.jpg", quality=90)


def train(folder, rung, seed):
    """The seconds of a whole training, and the accuracy after it: None where only one epoch was run."""
    script = folder / "rung.py"
    script.write_text(rung.source)
    epochs = EPOCHS if decodes_once(rung) else 1
    args = [str(folder), "--epochs", str(epochs), "--seed", str(seed)]
    rows = launch(script, rung.nprocs, args, show=False, timeout=300).reports[0]
    first, *later = [row["seconds"] for row in rows]
    return first + (EPOCHS - 1) * min(later, default=first), rows[-1]["right"] if later else None


def decodes_once(rung):
    return "self.images" in rung.source


def side_by_side(folder, below, rung):
    """Both in turns: {"below" and "rung": [seconds], "right": [accuracy of each training of the rung]}."""
    turns = {"beside": below.title, "below": [], "rung": [], "right": []}
    trainings = TRAININGS if decodes_once(rung) else 1
    for turn in range(TURNS):
        times = {"below": [], "rung": []}
        for seed in range(turn * trainings, (turn + 1) * trainings):
            times["below"].append(train(folder, below, seed)[0])
            seconds, right = train(folder, rung, seed)
            times["rung"].append(seconds)
            turns["right"].append(right)
        for which, found in times.items():
            turns[which].append(round(min(found), 4))
    print(f"{rung.title:36} {' '.join(f'{gain:.3f}' for gain in gains(turns))}  "
          f"{'kept' if helps(turns) else 'lost'}", flush=True)
    return turns


def climb(folder):
    """Of every rung, and of the top beside the slow script, what was measured."""
    found = {}
    kept = []

    def keep(rung):
        if rung.title == "torch.compile":  # the lesson offers it, for it takes longer than the training
            return False
        below = kept[-1] if kept else slow
        found[rung.title] = side_by_side(folder, below, rung)
        if helps(found[rung.title]):
            kept.append(rung)
        return helps(found[rung.title])

    slow = rungs(True, keep=lambda rung: False)[0]
    ladder = rungs(True, keep)
    return {"rungs": found, "whole": side_by_side(folder, slow, kept[-1]), "compile": compiled(folder, ladder[-1])}


def compiled(folder, rung):
    """The seconds of each of three epochs; the first one compiles, into a folder of its own."""
    script = folder / "rung.py"
    script.write_text(rung.source)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    rows = launch(script, 1, [str(folder), "--epochs", "3"], env=cache, show=False, timeout=300).reports[0]
    return [round(row["seconds"], 3) for row in rows]


if __name__ == "__main__":
    machine = this_machine() | {"units for 16 bits": hardware.cpu_flags}
    content = {"machine": machine, "epochs": EPOCHS, "files": FILES}
    launch(int, 1, show=False)  # the fork server's import of torch is nobody's time
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder)
        store(RECORDS / "speed_ladder.json", content | climb(folder))
