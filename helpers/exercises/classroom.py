"""A class at a glance: learners export what their course has kept; who teaches reads a folder of such files.

    python -m helpers.exercises export anna.json --name Anna    first bets, and the ways to the solutions
    python -m helpers.exercises summary FOLDER                  tables of all files in it, FOLDER/class.png

An export holds no code, and no name but the one that was typed. Anyone can edit it: it proves nothing.
"""

import json
import textwrap
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import median

from helpers.exercises import catalogue, journal, quiz
from helpers.exercises.engine import RIGHT, WRONG

FORMAT = "parallel-pytorch-course, progress, 1"


def export(file, name):
    """Write what the journal holds into `file`."""
    if Path(file).expanduser().resolve() == Path(journal.path()):
        raise SystemExit(f"{file} is your progress itself: name another file.")
    exercises, bets = journal.exercises(), journal.first_answers()
    kept = {"format": FORMAT, "name": name, "exercises": exercises, "predictions": bets}
    Path(file).write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
    print(f"{file} is text, with {len(exercises)} exercises and {len(bets)} predictions of {name}: "
          "read it first.")


def summary(folder):
    """Print who is where, how each exercise went, how the room split; draw the last two into the folder."""
    if not Path(folder).is_dir():
        raise SystemExit(f"{folder} is no folder.")
    learners, lessons = list(_read(Path(folder))), _lessons()
    print(f"{len(learners)} learners\n\n{'learner':30}  solved  tries  predicted  was last seen in")
    for one in sorted(learners, key=lambda one: one["name"]):
        print(_where(one, lessons))
    print(f'\n{"exercise":44}  tried  solved  tries  minutes  solution seen\n  commonest cause of "not yet"')
    exercises = {name: [one["exercises"][name] for one in learners if name in one["exercises"]]
                 for name in _in_order(learners, "exercises", lessons)}
    for name, entries in exercises.items():
        print(_how_it_went(name, entries))
    bets = {key: _split(learners, key) for key in _in_order(learners, "predictions", lessons)}
    for key, split in bets.items():
        print(f"\n{quiz.asked()[key].question if key in quiz.asked() else key}")
        for (option, holds), times in split:
            print(f"{times:5} {'✔' if holds else ' '} {option}")
    if learners:
        _draw(len(learners), exercises, bets).savefig(Path(folder, "class.png"), dpi=100)
        print(f"\nDrawn in {Path(folder, 'class.png')}. Tries and minutes are medians of those who solved "
              "it. Minutes count from the first look\nat the task, breaks included. "
              "Anyone can edit such a file: do not grade.")


def _read(folder):
    """What the learners' files hold; a file that cannot be used is named, and left out."""
    for path in sorted(folder.glob("*.json")):
        try:
            one = json.loads(path.read_text(encoding="utf-8"))
            entries = [*one["exercises"].values(), *one["predictions"].values()]
            is_export = one["format"] == FORMAT and isinstance(one["name"], str)
            has_bets = all("first" in entry for entry in one["predictions"].values())
            usable = is_export and has_bets and all(map(journal.is_sound, entries))
            for entry in entries:  # dates that are none, and numbers of 400 digits, raise
                float(entry.get("tries", 0))
                _minutes(entry)
            json.dumps(one, ensure_ascii=False).encode()  # and so does half a character, which nothing prints
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            usable = False
        if usable:
            tried = {key: entry for key, entry in one["exercises"].items()
                     if entry["status"] != "not attempted"}
            yield {**one, "exercises": tried}
        else:
            print(f"Left out: {path.name} is no export of this course "
                  "(python -m helpers.exercises export FILE).")


def _lessons():
    """{exercise or question: its lesson}, in the order of the lessons."""
    asked = catalogue.questions()
    return {one.key: lesson for lesson, module in catalogue.modules().items()
            for one in (*catalogue.exercises_of(module), *asked.get(lesson, {}).values())}


def _in_order(learners, kind, lessons):
    """All exercises, or predictions, of the learners; those of another version of the course last."""
    places = {key: place for place, key in enumerate(lessons)}
    keys = {key for one in learners for key in one[kind]}
    return sorted(keys, key=lambda key: places.get(key, len(places)))


def _minutes(entry):
    """From the first look at a task until it was solved; None if one of them was not seen."""
    if "began" in entry and "solved" in entry:
        began, solved = map(datetime.fromisoformat, (entry["began"], entry["solved"]))
        return (solved - began).total_seconds() / 60


def _where(one, lessons):
    """A learner's line."""
    entries = {**one["exercises"], **one["predictions"]}
    latest = max(entries, default="", key=lambda key: max(entries[key].get(when, "")
                                                          for when in ("date", "began", "solved")))
    right = {kind: [entry["status"] for entry in one[kind].values()].count("correct")
             for kind in ("exercises", "predictions")}
    tries = sum(entry.get("tries", 0) for entry in entries.values())
    bets = f"{right['predictions']} of {len(one['predictions'])}"
    name = "".join(filter(str.isprintable, one["name"]))
    return f"{name:30.30}  {right['exercises']:6}  {tries:5}  {bets:>9}  {lessons.get(latest, latest)}"


def _how_it_went(name, entries):
    """An exercise's line, and a second one for the commonest cause."""
    solved = [entry for entry in entries if entry["status"] == "correct"]
    tries = [entry["tries"] for entry in solved if "tries" in entry]
    minutes = [_minutes(entry) for entry in solved if _minutes(entry) is not None]
    causes = Counter(cause for entry in entries for cause in entry.get("causes", ()))  # learners, not tries
    commonest = [f"{text} ({times} of {len(entries)})" for text, times in causes.most_common(1)]
    cause = "".join(f"\n{textwrap.indent(textwrap.fill(one, 96), '  ')}" for one in commonest)
    return (f"{name:44}  {len(entries):5}  {len(solved):6}  {f'{median(tries):g}' if tries else '':>5}  "
            f"{f'{median(minutes):.0f}' if minutes else '':>7}  "
            f"{sum(entry.get('solution', False) for entry in entries):13}{cause}")


def _split(learners, key):
    """[((option, whether it holds), how many bet on it), …], the one that holds first."""
    entries = [one["predictions"][key] for one in learners if key in one["predictions"]]
    times = Counter((entry["first"], entry["status"] == "correct") for entry in entries)
    return sorted(times.most_common(), key=lambda row: not row[0][1])


def _draw(learners, exercises, bets):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2 + 0.32 * (len(exercises) + len(bets))), layout="constrained")
    top, bottom = figure.subplots(2, height_ratios=[1 + len(exercises), 1 + len(bets)])
    solved = [sum(entry["status"] == "correct" for entry in entries) for entries in exercises.values()]
    tried = [*map(len, exercises.values())]
    top.barh(list(exercises), tried, color=WRONG, hatch="///", label="not yet solved")
    top.barh(list(exercises), solved, color=RIGHT, label="solved")
    top.legend(loc="lower right")
    for row, split in enumerate(bets.values()):
        left = 0
        for (option, holds), times in split:
            bottom.barh(row, times, left=left, color=RIGHT if holds else WRONG, edgecolor="white")
            words = textwrap.shorten(option, max(3, 100 * times // learners), placeholder="…")
            bottom.text(left + 0.1, row, words, va="center", fontsize=8, parse_math=False)
            left += times
    bottom.set_yticks(range(len(bets)), list(bets), parse_math=False)
    top.set_title(f"Exercises, of {learners} learners")
    bottom.set_title("First bets (green: it holds)")
    for axes in (top, bottom):
        axes.margins(y=0.01)
        axes.set_xlim(0, learners)
        axes.invert_yaxis()
    return figure
