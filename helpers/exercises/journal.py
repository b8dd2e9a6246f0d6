"""What the learner has solved, kept in a file of their own: $COURSE_PROGRESS, or ~/.parallel-pytorch-course.json.

It holds, for each "lesson.exercise", the best status so far and the day it was reached.
"""

import contextlib
import datetime
import json
import os
import tempfile

STATUSES = ("not attempted", "not yet", "correct")  # from worst to best

_warned = False


def best_status():
    """{exercise: the best status so far}, whichever lesson it stood in at that time."""
    best = {}
    for key, entry in _read(path()).items():
        name = key.rpartition(".")[2]
        best[name] = max(best.get(name, STATUSES[0]), entry["status"], key=STATUSES.index)
    return best


def record(exercise, status):
    """Keep `status` for "lesson.exercise" if it is the best so far. Never raises: a check matters more than this."""
    if status == STATUSES[0]:
        return
    file = path()
    # Read again each time: another notebook may have written since. (Two writes within the same millisecond can lose
    # one; the next check brings it back.)
    best = _read(file)
    if STATUSES.index(status) <= STATUSES.index(best.get(exercise, {}).get("status", STATUSES[0])):
        return
    best[exercise] = {"status": status, "date": datetime.date.today().isoformat()}
    try:
        write(file, json.dumps(best, indent=1, sort_keys=True))
    except OSError as error:
        _warn(error)


def path():
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
