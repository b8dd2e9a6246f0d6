"""What the learner has solved, kept in a file of their own: $COURSE_PROGRESS, or ~/.parallel-pytorch-course.json.

It holds, for each "lesson.exercise", the best status so far and the day it was reached.
"""

import contextlib
import datetime
import importlib
import json
import os
import pkgutil
import tempfile
from dataclasses import dataclass

STATUSES = ("not attempted", "not yet", "correct")  # from worst to best

_warned = False


def progress():
    """How many exercises of each lesson are solved; a notebook shows it as a table."""
    from helpers.exercises.engine import exercises_of

    best = _read(_path())
    return Progress(tuple(
        (module.LESSON, tuple(best.get(f"{ex.lesson}.{ex.name}", {}).get("status") == "correct"
                              for ex in exercises_of(module)))
        for module in lessons()))


def lessons():
    """The modules that hold exercises, in the order of their lessons."""
    import helpers.exercises

    modules = [importlib.import_module(f"helpers.exercises.{found.name}")
               for found in pkgutil.iter_modules(helpers.exercises.__path__)]
    return sorted((module for module in modules if hasattr(module, "LESSON")), key=lambda module: module.LESSON)


def record(exercise, status):
    """Keep `status` for "lesson.exercise" if it is the best so far. Never raises: a check matters more than this."""
    if status == STATUSES[0]:
        return
    path = _path()
    # Read again each time: another notebook may have written since. (Two writes within the same millisecond can lose
    # one; the next check brings it back.)
    best = _read(path)
    if STATUSES.index(status) <= STATUSES.index(best.get(exercise, {}).get("status", STATUSES[0])):
        return
    best[exercise] = {"status": status, "date": datetime.date.today().isoformat()}
    try:
        _write(path, json.dumps(best, indent=1, sort_keys=True))
    except OSError as error:
        _warn(error)


@dataclass(frozen=True, repr=False)
class Progress:
    """By lesson: which exercises are solved."""

    lessons: tuple
    """(lesson, (solved or not, by exercise))"""

    def _rows(self):
        for lesson, solved in self.lessons:
            dots = "".join("●" if done else "○" for done in solved)
            yield lesson, dots, f"{sum(solved)} of {len(solved)} solved"

    def __repr__(self):
        width = max((len(lesson) for lesson, _ in self.lessons), default=0)
        return "\n".join(f"{lesson:{width}}  {words}  {dots}" for lesson, dots, words in self._rows())

    def _repr_html_(self):
        rows = "".join(f'<tr><td style="text-align: left"><a href="{lesson}.ipynb">{lesson}</a></td>'
                       f'<td style="text-align: left">{words}</td><td style="text-align: left">{dots}</td></tr>'
                       for lesson, dots, words in self._rows())
        return f"<table><thead><tr><th>lesson</th><th>exercises</th><th></th></tr></thead><tbody>{rows}</tbody></table>"


def _path():
    named = os.environ.get("COURSE_PROGRESS") or "~/.parallel-pytorch-course.json"
    return os.path.realpath(os.path.expanduser(named))  # a link stays a link: what it points to is replaced


def _read(path):
    """{"lesson.exercise": {"status": …, "date": …}}; empty if there is no file, or none that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        best = json.loads(text or "{}")
        if all(entry["status"] in STATUSES for entry in best.values()):
            return best
    except FileNotFoundError:
        return {}
    except OSError as error:
        _warn(error)
        return {}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        pass  # no JSON, or JSON of another form
    try:
        os.replace(path, f"{path}.damaged")
        print(f"The file with your progress is damaged; it is kept as {path}.damaged, and a new one begins.")
    except OSError as error:
        _warn(error)
    return {}


def _write(path, text):
    """Replace the file at once, so that nobody ever reads half of one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=".progress-", dir=os.path.dirname(path))
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _warn(error):
    global _warned
    if not _warned:
        print(f"Your progress cannot be kept ({error}). Set COURSE_PROGRESS to a file that you can write.")
    _warned = True
