"""A class at a glance: learners export what their course has kept; who teaches reads a folder of such files.

    python -m helpers.exercises export anna.json --name Anna    first bets, and the ways to the solutions
    python -m helpers.exercises summary FOLDER                  tables of all exports in it, FOLDER/class.png

FOLDER may hold folders, as a download from Moodle does. What was left out is said, and why.

An export holds no code, and no name but the one that was typed. Anyone can edit it: it proves nothing.
"""

import json
import os
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
    exercises, bets = journal.exercises(), journal.first_answers()
    kept = {"format": FORMAT, "name": name, "exercises": exercises, "predictions": bets}
    Path(file).write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
    print(f"{file} is text, with {len(exercises)} exercises and {len(bets)} predictions of {name}: "
          "read it first.")


def summary(folder):
    """Print who is where, how each exercise went, how the room split; draw the last two into the folder."""
    if not Path(folder).is_dir():
        raise SystemExit(f"{folder} is no folder.")
    learners, lessons = _told_apart(_once(_read(Path(folder)))), _lessons()
    width = max([30, *(len(one["name"]) for one in learners)])
    print(f"{len(learners)} learners\n\n{'learner':{width}}  solved  tries  predicted  was last seen in")
    for one in sorted(learners, key=lambda one: one["name"]):
        print(f"{one['name']:{width}}  {_where(one, lessons)}")
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
    """(path within the folder, what it holds) of each export; what else is there is named, and left out."""
    others = []
    for path in _files(folder):
        shown = path.relative_to(folder).as_posix()
        if path.suffix.lower() != ".json":
            others += [shown] * (shown != "class.png")
            continue
        try:
            yield shown, _checked(json.loads(path.read_bytes()))  # from bytes: whatever an editor has made of it
        except OSError as error:
            print(f"Left out: {shown} cannot be read ({error.strerror}).")
        except _NoExport as why:
            print(f"Left out: {shown} is no export of this course: {why} "
                  "(python -m helpers.exercises export FILE makes one).")
        except (ValueError, RecursionError):
            print(f"Left out: {shown} is no export of this course: it is no JSON, or breaks off.")
    if others:
        print(f"Left out, because they do not end in .json: {', '.join(others)}. Unpack what is packed.")


def _files(folder):
    """All files in it and in its folders, sorted; a folder that cannot be read is named."""
    def unreadable(error):
        print(f"Left out: the folder {error.filename} cannot be read ({error.strerror}).")

    return sorted(Path(place, name) for place, _, names in os.walk(folder, unreadable) for name in names)


class _NoExport(Exception):
    """Its words say why not."""


def _checked(one):
    """An export, without the exercises that were only looked at."""
    if not (isinstance(one, dict) and "format" in one):
        raise _NoExport("it is something else")
    if one["format"] != FORMAT:
        raise _NoExport(f"its format is {one['format']!r:.60}, not {FORMAT!r}")
    try:
        entries = [*one["exercises"].values(), *one["predictions"].values()]
        has_bets = all("first" in entry for entry in one["predictions"].values())
        usable = isinstance(one["name"], str) and has_bets and all(map(journal.is_sound, entries))
        for entry in entries:  # dates that are none, and numbers of 400 digits, raise
            float(entry.get("tries", 0))
            _minutes(entry)
        json.dumps(one, ensure_ascii=False).encode()  # and so does half a character, which nothing prints
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        usable = False
    if not usable:
        raise _NoExport("somebody has changed it, and it cannot be used any more")
    tried = {key: entry for key, entry in one["exercises"].items() if entry["status"] != "not attempted"}
    return {**one, "exercises": tried}


def _once(exports):
    """The exports, each once."""
    seen = {}
    for shown, one in exports:
        same = seen.setdefault(json.dumps(one, sort_keys=True), shown)
        if same == shown:
            yield shown, one
        else:
            print(f"Counted once: {shown} is the same export as {same}.")


def _told_apart(exports):
    """The learners, with names that can be printed; where two have the same, with their files as well."""
    learners = [{**one, "name": "".join(filter(str.isprintable, one["name"]))[:30], "file": shown}
                for shown, one in exports]
    times = Counter(one["name"] for one in learners)
    for name, count in times.items():
        if count > 1:
            print(f"{count} files bear the name {name}: are they of {count} people? Each counts as one.")
    return [{**one, "name": f"{one['name']} ({one['file']})" if times[one["name"]] > 1 else one["name"]}
            for one in learners]


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
    """The rest of a learner's line."""
    entries = {**one["exercises"], **one["predictions"]}
    latest = max(entries, default="", key=lambda key: max(entries[key].get(when, "")
                                                          for when in ("date", "began", "solved")))
    right = {kind: [entry["status"] for entry in one[kind].values()].count("correct")
             for kind in ("exercises", "predictions")}
    tries = sum(entry.get("tries", 0) for entry in entries.values())
    bets = f"{right['predictions']} of {len(one['predictions'])}"
    return f"{right['exercises']:6}  {tries:5}  {bets:>9}  {lessons.get(latest, latest)}"


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
