"""A class at a glance: learners export what their course has kept, and who teaches reads a folder of such files.

    python -m helpers.exercises export anna.json --name Anna    a learner's first bets, and how the exercises went
    python -m helpers.exercises summary FOLDER                  tables of all files in it, and FOLDER/class.png

An export holds no code, and no name but the one that was typed. Anyone can edit it: it helps to teach, and proves
nothing.
"""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import median

from helpers.exercises import catalogue, journal, quiz

FORMAT = "parallel-pytorch-course, progress, 1"
SOLVED, TRIED = "#2e9e4f", "#c77700"  # as a check's feedback has them


def export(file, name):
    """Write what the journal holds into `file`."""
    kept = {"format": FORMAT, "name": name, "exercises": journal.exercises(), "predictions": journal.first_answers()}
    Path(file).write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
    print(f"{file}: {len(kept['exercises'])} exercises and {len(kept['predictions'])} predictions of {name}. It is "
          "text: read it before you send it.")


def summary(folder):
    """Print who is where, how each exercise went, and how the room split; draw the last two into the folder."""
    learners = list(_read(Path(folder)))
    lessons = _lessons()
    print(f"{len(learners)} learners\n\n{'learner':30}  solved  tries  predicted  was last seen in")
    for one in sorted(learners, key=lambda one: one["name"]):
        print(_where(one, lessons))
    exercises, bets = list(_exercises(learners, lessons)), list(_bets(learners, lessons))
    print(f'\n{"exercise":44}  tried  solved  tries  minutes  solution seen  commonest cause of "not yet"')
    for name, tried, solved, tries, minutes, looked, cause in exercises:
        print(f"{name:44}  {tried:5}  {solved:6}  {tries:>5}  {minutes:>7}  {looked:13}  {cause}")
    for question, split in bets:
        print(f"\n{question}")
        for option, holds, times in split:
            print(f"{times:5} {'✔' if holds else ' '} {option}")
    if learners:
        picture = Path(folder, "class.png")
        _draw(len(learners), exercises, bets).savefig(picture, dpi=100)
        print(f"\nTries and minutes are medians of those who solved it; minutes count from the first look at the task, "
              f"breaks included.\nAnyone can edit such a file: teach by it, and do not grade. Drawn in {picture}.")


def _read(folder):
    """What the learners' files hold; a file that cannot be used is named, and left out."""
    for path in sorted(folder.glob("*.json")):
        try:
            one = json.loads(path.read_text(encoding="utf-8"))
            entries = {**one["exercises"], **one["predictions"]}
            if one["format"] != FORMAT or not all(map(journal.is_sound, entries.values())):
                raise ValueError
            for entry in entries.values():
                _minutes(entry)
            yield {"name": f"{one['name']:.30}", "exercises": one["exercises"], "entries": entries,
                   "bets": {key: (entry["first"], entry["status"]) for key, entry in one["predictions"].items()}}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            print(f"Left out: {path.name} is no export of this course.")


def _lessons():
    """{exercise or question: its lesson}, in the order of the lessons."""
    asked = catalogue.questions()
    return {key: lesson for lesson, module in catalogue.modules().items()
            for key in [*(exercise.key for exercise in catalogue.exercises_of(module)),
                        *(one.key for one in asked.get(lesson, {}).values())]}


def _minutes(entry):
    """From the first look at a task until it was solved; None if one of them was not seen."""
    if "began" in entry and "solved" in entry:
        return (datetime.fromisoformat(entry["solved"]) - datetime.fromisoformat(entry["began"])).total_seconds() / 60


def _where(one, lessons):
    """A learner's line."""
    latest = max(one["entries"], default="", key=lambda key: max(
        one["entries"][key].get(name, "") for name in ("date", "began", "solved")))
    solved = sum(entry["status"] == "correct" for entry in one["exercises"].values())
    tries = sum(entry.get("tries", 0) for entry in one["exercises"].values())
    right = [status for _, status in one["bets"].values()].count("correct")
    predicted = f"{right} of {len(one['bets'])}"
    return f"{one['name']:30}  {solved:6}  {tries:5}  {predicted:>9}  {lessons.get(latest, latest)}"


def _in_order(keys, lessons):
    """Those of this course in its order, then those of another version."""
    return [key for key in lessons if key in keys] + sorted(keys - set(lessons))


def _exercises(learners, lessons):
    """A row for each exercise: name, who tried and solved it, tries, minutes, who saw the solution, commonest cause."""
    for name in _in_order({name for one in learners for name in one["exercises"]}, lessons):
        entries = [one["exercises"][name] for one in learners if name in one["exercises"]]
        entries = [entry for entry in entries if entry["status"] != "not attempted"]
        solved = [entry for entry in entries if entry["status"] == "correct"]
        tries = [entry["tries"] for entry in solved if "tries" in entry]
        minutes = [_minutes(entry) for entry in solved if _minutes(entry) is not None]
        causes = Counter(cause for entry in entries for cause in entry.get("causes", ()))  # learners, not tries
        cause = "; ".join(f"{text} ({times} of {len(entries)})" for text, times in causes.most_common(1))
        if entries:
            yield (name, len(entries), len(solved), f"{median(tries):g}" if tries else "",
                   f"{median(minutes):.0f}" if minutes else "", sum(entry.get("solution", False) for entry in entries),
                   cause)


def _bets(learners, lessons):
    """For each question, its text and [(option, whether it holds, how many bet on it), …]."""
    for key in _in_order({key for one in learners for key in one["bets"]}, lessons):
        split = Counter(one["bets"][key] for one in learners if key in one["bets"])
        rows = [(option, status == "correct", times) for (option, status), times in split.most_common()]
        question = quiz.asked()[key].question if key in quiz.asked() else key
        yield question, sorted(rows, key=lambda row: not row[1])


def _draw(learners, exercises, bets):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2 + 0.32 * (len(exercises) + len(bets))), layout="constrained")
    top, bottom = figure.subplots(2, height_ratios=[1 + len(exercises), 1 + len(bets)])
    names = [row[0] for row in exercises]
    top.barh(names, [row[1] for row in exercises], color=TRIED, hatch="///", label="tried")
    top.barh(names, [row[2] for row in exercises], color=SOLVED, label="solved")
    top.set(xlim=(0, learners), title=f"Exercises, of {learners} learners")
    top.legend(loc="lower right")
    for y, (_, split) in enumerate(bets):
        left = 0
        for option, holds, times in split:
            bottom.barh(y, times, left=left, color=SOLVED if holds else TRIED, edgecolor="white")
            bottom.text(left + 0.1, y, option[:round(80 * times / learners)], va="center", fontsize=8)
            left += times
    bottom.set_yticks(range(len(bets)), [f"{question[:50]}…" for question, _ in bets], fontsize=8)
    bottom.set(xlim=(0, learners), title="First bets: green holds")
    for axes in (top, bottom):
        axes.invert_yaxis()
    return figure
