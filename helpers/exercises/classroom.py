"""A class at a glance: learners export what their course has kept; who teaches reads a folder of such files.

    python -m helpers.exercises export anna.json --name Anna    first bets, and the ways to the solutions
    python -m helpers.exercises summary FOLDER                  tables of all exports in it, FOLDER/class.png

FOLDER may hold folders, as a download from Moodle does. What was left out is said, and why.

An export holds no code, and no name but the one that was typed. Anyone can edit it: it proves nothing.
"""

import json
import textwrap
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import median

from helpers.exercises import catalogue, journal, quiz
from helpers.exercises.feedback import RIGHT, WRONG

FORMAT = "parallel-pytorch-course, progress, 1"


def export(file, name):
    """Write what the journal holds into `file`."""
    if Path(file).expanduser().resolve() == Path(journal.path()):
        raise SystemExit(f"{file} is your progress itself: name another file.")
    exercises = journal.exercises()
    predictions = journal.first_answers()
    content = {"format": FORMAT, "name": name, "exercises": exercises, "predictions": predictions}
    Path(file).write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
    print(f"{file} is text, with {len(exercises)} exercises and {len(predictions)} predictions of {name}: "
          "read it first.")


def summary(folder):
    """Print who is where, how each exercise went, how the room split; draw the last two into the folder."""
    folder = Path(folder)
    learners = _learners(folder)
    lessons = _lessons()
    exercises = _by_key(learners, "exercises", lessons)
    predictions = {key: _split(entries) for key, entries in _by_key(learners, "predictions", lessons).items()}
    _print_learners(learners, lessons)
    _print_exercises(exercises)
    _print_predictions(predictions)
    if learners:
        picture = folder / "class.png"
        _draw(len(learners), exercises, predictions).savefig(picture, dpi=100)
        print(f"\nDrawn in {picture}. Tries and minutes are medians of those who solved "
              "it. Minutes count from the first look\nat the task, breaks included. "
              "Anyone can edit such a file: do not grade.")


def _learners(folder):
    """What each export in the folder, or in folders in it, holds; where two have the same name, with their files."""
    learners = {}  # by file
    for path in sorted(folder.rglob("*")):
        file = path.relative_to(folder).as_posix()
        if path.is_dir() or file == "class.png":  # drawn by an earlier summary
            continue
        learner = _read(path)
        same = [other for other in learners if learners[other] == learner]
        if learner is None:
            print(f"Left out: {file} is no export of this course, or breaks off. (python -m helpers.exercises export "
                  "FILE makes one. Unpack what is packed.)")
        elif same:
            print(f"Counted once: {file} is the same export as {same[0]}.")
        else:
            learners[file] = learner
    times = Counter(learner["name"] for learner in learners.values())
    for file, learner in learners.items():
        if times[learner["name"]] > 1:
            learner["name"] += f" ({file})"
    return list(learners.values())


def _read(path):
    """An export, without the exercises that were only looked at; None if it is none."""
    try:
        content = json.loads(path.read_bytes())  # from bytes: whatever an editor has made of it
        if content["format"] != FORMAT:
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    tried = {key: entry for key, entry in content["exercises"].items() if entry["status"] != "not attempted"}
    return {**content, "exercises": tried}


def _lessons():
    """{exercise or question: its lesson}, in the order of the lessons."""
    questions = catalogue.questions()
    lessons = {}
    for lesson, module in catalogue.modules().items():
        for exercise in catalogue.exercises_of(module):
            lessons[exercise.key] = lesson
        for question in questions.get(lesson, {}).values():
            lessons[question.key] = lesson
    return lessons


def _by_key(learners, kind, lessons):
    """{exercise: entries of the learners that have it}, or predictions; those of another course's version last."""
    entries = {}
    for learner in learners:
        for key, entry in learner[kind].items():
            entries.setdefault(key, []).append(entry)
    places = {key: place for place, key in enumerate(lessons)}
    in_order = sorted(entries, key=lambda key: places.get(key, len(places)))
    return {key: entries[key] for key in in_order}


def _minutes(entry):
    """From the first look at a task until it was solved; None if one of them was not seen."""
    if "began" not in entry or "solved" not in entry:
        return None
    began = datetime.fromisoformat(entry["began"])
    solved = datetime.fromisoformat(entry["solved"])
    return (solved - began).total_seconds() / 60


def _print_learners(learners, lessons):
    width = max([30, *(len(learner["name"]) for learner in learners)])
    print(f"{len(learners)} learners\n\n{'learner':{width}}  solved  tries  predicted  was last seen in")
    for learner in sorted(learners, key=lambda learner: learner["name"]):
        exercises = learner["exercises"].values()
        predictions = learner["predictions"].values()
        solved = len(_correct(exercises))
        tries = sum(entry.get("tries", 0) for entry in exercises)
        predicted = f"{len(_correct(predictions))} of {len(predictions)}"
        print(f"{learner['name']:{width}}  {solved:6}  {tries:5}  {predicted:>9}  {_last_seen(learner, lessons)}")


def _correct(entries):
    """Those of them that are."""
    return [entry for entry in entries if entry["status"] == "correct"]


def _last_seen(learner, lessons):
    """The lesson of the latest entry; its key, where this version of the course does not have it."""
    entries = {**learner["exercises"], **learner["predictions"]}

    def seen(key):  # as text: dates with and without a time are in order
        return max(entries[key].get(name, "") for name in ("date", "began", "solved"))

    latest = max(entries, key=seen, default="")
    return lessons.get(latest, latest)


def _print_exercises(exercises):
    print(f'\n{"exercise":44}  tried  solved  tries  minutes  solution seen\n  commonest cause of "not yet"')
    for name, entries in exercises.items():
        solved = _correct(entries)
        tries = _median([entry.get("tries") for entry in solved], "g")
        minutes = _median([_minutes(entry) for entry in solved], ".0f")
        seen = sum(entry.get("solution", False) for entry in entries)
        print(f"{name:44}  {len(entries):5}  {len(solved):6}  {tries:>5}  {minutes:>7}  {seen:13}")
        causes = Counter()
        for entry in entries:
            causes.update(entry.get("causes", {}).keys())  # so learners are counted, not their tries
        for cause, times in causes.most_common(1):
            print(textwrap.indent(textwrap.fill(f"{cause} ({times} of {len(entries)})", 96), "  "))


def _median(values, form):
    """The median of those that are not None, as text; empty if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return format(median(known), form)


def _split(entries):
    """[((option, whether it holds), how many bet on it), …], the one that holds first."""
    times = Counter((entry["first"], entry["status"] == "correct") for entry in entries)
    return sorted(times.most_common(), key=lambda row: not row[0][1])


def _print_predictions(predictions):
    questions = quiz.asked()
    for key, split in predictions.items():
        question = key  # of another version of the course
        if key in questions:
            question = questions[key].question
        print(f"\n{question}")
        for (option, holds), times in split:
            print(f"{times:5} {'✔' if holds else ' '} {option}")


def _draw(learners, exercises, predictions):
    """Bars as long as there are learners: of each exercise and, below, of each question."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2 + 0.32 * (len(exercises) + len(predictions))), layout="constrained")
    top, bottom = figure.subplots(2, height_ratios=[1 + len(exercises), 1 + len(predictions)])
    tried = [len(entries) for entries in exercises.values()]
    solved = [len(_correct(entries)) for entries in exercises.values()]
    top.barh(list(exercises), tried, color=WRONG, hatch="///", label="not yet solved")
    top.barh(list(exercises), solved, color=RIGHT, label="solved")
    top.legend(loc="lower right")
    for row, split in enumerate(predictions.values()):
        left = 0
        for (option, holds), times in split:
            bottom.barh(row, times, left=left, color=RIGHT if holds else WRONG, edgecolor="white")
            words = textwrap.shorten(option, max(3, 100 * times // learners), placeholder="…")
            bottom.text(left + 0.1, row, words, va="center", fontsize=8, parse_math=False)
            left += times
    bottom.set_yticks(range(len(predictions)), list(predictions), parse_math=False)
    top.set_title(f"Exercises, of {learners} learners")
    bottom.set_title("First bets (green: it holds)")
    for axes in (top, bottom):
        axes.margins(y=0.01)
        axes.set_xlim(0, learners)
        axes.invert_yaxis()
    return figure
