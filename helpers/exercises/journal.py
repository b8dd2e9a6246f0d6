"""What the learner has solved and predicted: a file, $COURSE_PROGRESS, or ~/.parallel-pytorch-course.json.

It holds, for each "lesson.exercise", the best status so far and the day it was reached; for each "predict:question",
the first answer, its status ("correct" or "not yet") and when it was given. An older course reads both, and keeps them.
"""

import contextlib
import datetime
import json
import os
import tempfile

STATUSES = ("not attempted", "not yet", "correct")  # from worst to best

_PREDICTION = "predict:"
_warned = False


def best_status():
    """{exercise: the best status so far}, whichever lesson it stood in at that time."""
    best = {}
    for key, entry in (_read(path()) or {}).items():
        if not key.startswith(_PREDICTION):
            name = key.rpartition(".")[2]
            best[name] = max(best.get(name, STATUSES[0]), entry["status"], key=STATUSES.index)
    return best


def first_answers():
    """{question: {"first": the option, "status": "correct" or "not yet", "date": when}}."""
    return {key.removeprefix(_PREDICTION): entry for key, entry in (_read(path()) or {}).items()
            if key.startswith(_PREDICTION) and "first" in entry}


def record(exercise, status):
    """Keep `status` for "lesson.exercise" if it is the best so far. Never raises: a check matters more than this."""
    if status == STATUSES[0]:
        return
    file = path()
    # Read again each time: another notebook may have written since. (Two writes within the same millisecond can lose
    # one; the next check brings it back.)
    best = _read(file)
    if best is None or STATUSES.index(status) <= STATUSES.index(best.get(exercise, {}).get("status", STATUSES[0])):
        return
    best[exercise] = {"status": status, "date": datetime.date.today().isoformat()}
    _save(file, best)


def keep_first(question, option, holds):
    """Keep `option` as the answer to `question` if there is none yet; return the entry that counts. Never raises."""
    file = path()
    kept = _read(file)
    now = datetime.datetime.now().isoformat(timespec="seconds")
    entry = {"status": STATUSES[2] if holds else STATUSES[1], "date": now, "first": option}
    if kept is None:
        return entry
    if "first" not in kept.get(_PREDICTION + question, {}):
        kept[_PREDICTION + question] = entry
        _save(file, kept)
    return kept[_PREDICTION + question]


def files():
    """What there is of the progress: the file, one that was damaged, and the best times of lesson 14 beside them."""
    file = path()
    return [name for name in (file, f"{file}.damaged", f"{file.removesuffix('.json')}.ladders.json")
            if os.path.exists(name)]


def path():
    named = os.environ.get("COURSE_PROGRESS") or "~/.parallel-pytorch-course.json"
    return os.path.realpath(os.path.expanduser(named))  # a link stays a link: what it points to is replaced


def _read(path):
    """{"lesson.exercise" or "predict:question": {"status": …, "date": …}}; empty if damaged, None if unreadable."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        best = json.loads(text or "{}")
        if all(entry["status"] in STATUSES and isinstance(entry.get("date", ""), str)
               and isinstance(entry.get("first", ""), str) for entry in best.values()):
            return best
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


def _save(file, kept):
    try:
        write(file, json.dumps(kept, indent=1, sort_keys=True))
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
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _warn(error):
    global _warned
    if not _warned:
        print(f"Your progress cannot be kept ({error}). Set COURSE_PROGRESS to a file that you can write.")
    _warned = True
