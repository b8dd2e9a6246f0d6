"""What the learner has solved and predicted: a file, $COURSE_PROGRESS, or ~/.parallel-pytorch-course.json.

Where the system knows of no home folder, as in some containers, the file lies in the current folder: the notebook's.
For each "predict:question" it holds the first answer, its status ("correct" or "not yet") and its date. For
each "lesson.exercise" it holds the best status so far, the day of the last check, and the way there: when the
task was first shown ("began"), how many checks it took ("tries") until one was correct ("solved"), how often
each cause was given for "not yet" ("causes"), the hints, and whether the solution was shown ("solution").
Older and newer versions of the course read each other's files.
"""

import contextlib
import copy
import datetime
import json
import os
import tempfile

#: From worst to best.
NOT_ATTEMPTED, NOT_YET, CORRECT = STATUSES = ("not attempted", "not yet", "correct")

_PREDICTION = "predict:"
_warned = False  # whether this process has said that progress cannot be kept


def best_status():
    """{exercise: the best status so far}, whichever lesson it stood in at that time."""
    best = {}
    for key, entry in exercises().items():
        name = key.rpartition(".")[2]
        best[name] = max(best.get(name, NOT_ATTEMPTED), entry["status"], key=STATUSES.index)
    return best


def exercises():
    """{"lesson.exercise": what is kept of it}."""
    return {key: entry for key, entry in (_read(path()) or {}).items() if not key.startswith(_PREDICTION)}


def first_answers():
    """{question: {"first": the option, "status": "correct" or "not yet", "date": when}}."""
    answers = {}
    for key, entry in (_read(path()) or {}).items():
        if key.startswith(_PREDICTION) and "first" in entry:
            answers[key.removeprefix(_PREDICTION)] = entry
    return answers


def record(exercise, status, cause=""):
    """Count a check of "lesson.exercise" and the cause of a "not yet". Never raises."""
    if status == NOT_ATTEMPTED:
        return
    with _unsolved(exercise) as entry:
        entry["status"] = status
        entry["date"] = datetime.date.today().isoformat()
        entry["tries"] = entry.get("tries", 0) + 1
        if status == CORRECT:
            entry["solved"] = _now()
        else:
            causes = entry.setdefault("causes", {})
            causes[cause] = causes.get(cause, 0) + 1


def begin(exercise):
    """The task of "lesson.exercise" is shown."""
    with _unsolved(exercise) as entry:
        entry.setdefault("began", _now())


def helped(exercise, hints=0, solution=False):
    """So many hints for "lesson.exercise" have been given, or its solution."""
    with _unsolved(exercise) as entry:
        entry["hints"] = max(hints, entry.get("hints", 0))
        entry["solution"] = solution or entry.get("solution", False)


@contextlib.contextmanager
def _unsolved(exercise):
    """What is kept of an exercise, to be changed; once it is solved, changes are forgotten."""
    file = path()
    entries = _read(file)  # again each time: another notebook may have written since
    before = (entries or {}).get(exercise, {"status": NOT_ATTEMPTED})
    entry = copy.deepcopy(before)
    yield entry
    is_solved = before["status"] == CORRECT
    if entries is not None and not is_solved and entry != before:
        entries[exercise] = entry
        _save(file, entries)


def keep_first(question, option, holds):
    """Keep `option` as the answer to `question` if it is the first; return what counts. Never raises."""
    file = path()
    entries = _read(file)
    entry = {"status": CORRECT if holds else NOT_YET, "date": _now(), "first": option}
    if entries is None:  # it counts until this notebook is closed
        return entry
    key = _PREDICTION + question
    if "first" not in entries.get(key, {}):
        entries[key] = entry
        _save(file, entries)
    return entries[key]


def files():
    """The files of the progress: the file itself, one that was damaged, and lesson 14's best times."""
    file = path()
    names = file, f"{file}.damaged", f"{file.removesuffix('.json')}.ladders.json"
    return [name for name in names if os.path.exists(name)]


def path():
    """The file's whole path, whether it is there or not."""
    file = os.path.expanduser(os.environ.get("COURSE_PROGRESS") or "~/.parallel-pytorch-course.json")
    if file.startswith("~"):  # Python has no folder to put in its place
        file = os.path.basename(file)
    return os.path.realpath(file)  # a link stays a link: what it points to is replaced


def _read(path):
    """{"lesson.exercise" or "predict:question": {"status": …, …}}; empty if damaged, None if unreadable."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        entries = json.loads(text or "{}")
        if all(entry["status"] in STATUSES for entry in entries.values()):
            return entries
    except FileNotFoundError:
        return {}
    except OSError as error:
        _warn(error)
        return None  # and not empty: what is in it must not be written over
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        pass  # no JSON, or JSON of another form
    try:
        os.replace(path, f"{path}.damaged")
        print(f"The file with your progress is damaged; it is kept as {path}.damaged, and a new one begins.")
        return {}
    except OSError as error:
        _warn(error)
        return None


def _now():
    return datetime.datetime.now().isoformat(timespec="seconds")


def _save(file, entries):
    try:
        write(file, json.dumps(entries, indent=1, sort_keys=True))
    except OSError as error:
        _warn(error)


def write(path, text):
    """Replace the file at once, so that nobody ever reads half of one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=".progress-", dir=os.path.dirname(path))
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except BaseException:  # an interrupted cell, too, leaves no such file
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _warn(error):
    global _warned
    if not _warned:
        print(f"Your progress cannot be kept ({error}). Set COURSE_PROGRESS to a file that you can write.")
    _warned = True
