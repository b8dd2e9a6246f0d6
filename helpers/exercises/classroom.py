"""A class at a glance: learners export what their course has kept; who teaches reads a folder of such files.

    python -m helpers.exercises export anna.json --name Anna    first bets, and the ways to the solutions
    python -m helpers.exercises summary FOLDER                  tables of all exports in it, and class.html to project

FOLDER may hold folders, as a download from Moodle does. What was left out is said, and why.

An export holds no code, and no name but the one that was typed. Anyone can edit it: it proves nothing.
"""

import json
import textwrap
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import median

from helpers import notebooks
from helpers.exercises import catalogue, journal, projected, quiz

FORMAT = "parallel-pytorch-course, progress, 1"
PAGE = "class.html"
#: What an entry of an export may hold, and of what kind it is.
KINDS = {"status": str, "first": str, "date": str, "began": str, "solved": str, "tries": int, "solution": bool,
         "causes": dict}


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


def summary(folder, lesson=None):
    """Print who is where, how each exercise went, how the room split; write a page of the last two into the folder.

    lesson: the number with which the page begins, such as "05"; None is the one where most learners are.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder.")
    learners = _learners(folder)
    if not learners:
        raise SystemExit(f"No file in {folder} is an export of this course.")
    lessons = _lessons()
    exercises = _by_key(learners, "exercises", lessons)
    predictions = _by_key(learners, "predictions", lessons)
    _print_learners(learners, lessons)
    _print_exercises(exercises)
    _print_predictions(predictions)
    lessons_seen = _by_lesson(exercises, predictions)
    if not lessons_seen:
        print("\nNobody has tried or bet anything yet: there is no page to project.")
        return
    file = folder / PAGE
    lesson = _chosen(lesson, lessons_seen, [_last_seen(learner, lessons) for learner in learners])
    file.write_text(projected.page(len(learners), lessons_seen, lesson), encoding="utf-8")
    print(f"\nTo project: {file}, which begins with lesson {lesson}, and names nobody. Tries and minutes\n"
          "are medians of those who solved it. Minutes count from the first look at the task, breaks\n"
          "included. Anyone can edit such a file: do not grade.")


def _chosen(lesson, lessons_seen, last_seen):
    """The number of the lesson that is asked for, or else of the one where most learners are."""
    numbers = [number for number, _ in lessons_seen]
    if lesson is None:
        return max(numbers, key=[name[:2] for name in last_seen].count)
    lesson = lesson.zfill(2)
    if lesson not in numbers:
        raise SystemExit(f"There is nothing of lesson {lesson}, but of {', '.join(numbers)}.")
    return lesson


def _learners(folder):
    """What each export in the folder, or in folders in it, holds; where two have the same name, with their files."""
    learners = {}  # by file
    for path in sorted(folder.rglob("*")):
        file = path.relative_to(folder).as_posix()
        if path.is_dir() or file in (PAGE, "class.png"):  # written by an earlier summary, or an older course's
            continue
        learner = _read(path)
        same = [other for other in learners if learners[other] == learner]
        if learner is None:
            print(f"Left out: {file} is no export of this course, breaks off, or was edited. "
                  "(python -m helpers.exercises export FILE makes one. Unpack what is packed.)")
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
    """An export, without the exercises that were only looked at; None if it is none, or was edited into none."""
    try:
        content = json.loads(path.read_bytes())  # from bytes: whatever an editor has made of it
        if content["format"] != FORMAT or not isinstance(content["name"], str):
            return None
        exercises, predictions = content["exercises"], content["predictions"]
        tried = {key: entry for key, entry in exercises.items() if entry["status"] != "not attempted"}
        whole = (all(_is_whole(entry) for entry in exercises.values())
                 and all(_is_whole(entry) and "first" in entry for entry in predictions.values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return {**content, "exercises": tried} if whole else None


def _is_whole(entry):
    """Whether the tables can show it."""
    _minutes(entry)  # which raises an error where a time is none
    return "status" in entry and all(isinstance(value, KINDS.get(name, object)) for name, value in entry.items())


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
        for cause, times in _causes(entries)[:1]:
            print(textwrap.indent(textwrap.fill(f"{cause} ({times} of {len(entries)})", 96), "  "))


def _causes(entries):
    """[(cause of a "not yet", how many learners met it), …], the commonest first."""
    causes = Counter()
    for entry in entries:
        causes.update(entry.get("causes", {}).keys())  # so learners are counted, not their tries
    return causes.most_common()


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
    for key, entries in predictions.items():
        question = key  # of another version of the course
        if key in questions:
            question = questions[key].question
        print(f"\n{question}")
        for (option, holds), times in _split(entries):
            print(f"{times:5} {'✔' if holds else ' '} {option}")


def _by_lesson(exercises, predictions):
    """{(number, title): (`Solving`s, `Split`s)} of the lessons of which something is there.

    What only another version of the course has is left out: the tables have it.
    """
    shown = {}
    questions = catalogue.questions()
    for lesson, module in catalogue.modules().items():
        solvings = []
        for exercise in catalogue.exercises_of(module):
            if exercise.key in exercises:
                solvings.append(_solving(exercise.title, exercises[exercise.key]))
        splits = []
        for question in questions.get(lesson, {}).values():
            if question.key in predictions:
                splits.append(_shown_split(question, predictions[question.key]))
        if solvings or splits:
            shown[lesson[:2], notebooks.title(lesson)] = solvings, splits
    return shown


def _solving(title, entries):
    solved = _correct(entries)
    effort = ""
    tries = _median([entry.get("tries") for entry in solved], "g")
    minutes = _median([_minutes(entry) for entry in solved], ".0f")
    if tries and minutes:
        effort = f"Those who solved it took {tries} tries and {minutes} minutes (medians)."
    return projected.Solving(title, len(entries), len(solved), effort, _causes(entries))


def _shown_split(question, entries):
    """Options in the order in which learners see them; then those of another version of the course."""
    times = Counter(entry["first"] for entry in entries)
    options = [(letter, option, times.pop(option, 0), option == question.answer)
               for letter, option in question.shuffled()]
    options += [("–", option, bets, False) for option, bets in times.items()]
    return projected.Split(question.question, options, question.options[question.answer])
