"""The start-method explorer: what crosses the border to a new process, whether that is enough, what it costs here.

First the child comes out of the place where it is made. Then one thing of the parent's after the other meets the
border, where a stamp says what becomes of it. In the end the child says how `train()` fares.
"""

from functools import partial
from typing import NamedTuple

from helpers.widgets.shapes import RANKS, box, circle, doing, path, words
from helpers.widgets.stage import Stage, buttons, checkbox, preset

METHODS = ("fork", "spawn", "forkserver", "launch")

# The real errors: the first one in our words, because Python's differ between its versions; tests ask for both.
NOT_FOUND = "AttributeError: the child's '__main__' has no 'train'"
BAD_FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …"

COMES = "taken over"
ANEW = "made anew"
LOST = "lost"

#: The rows of the picture.
THINGS = ("train()", "variables, changed", "modules, torch too", "open files", "threads that compute", "CUDA, in use")
FUNCTION = 0
THREADS = 4
CUDA = 5
MISSING = {THREADS: "no threads yet", CUDA: "CUDA not used yet"}
#: What becomes of the last three in a child that is no copy of the parent.
NOT_COPIED = [(LOST, "closed"), (ANEW, "starts its own"), (ANEW, "can start its own")]
#: What becomes of the modules and what follows them, by method. What comes before them: see `_of_the_program`.
BECOMES = {
    "fork": [
        (COMES, "already there"),
        (COMES, "open, too"),
        (LOST, "locks, but no threads"),
        (LOST, "handles that do not work"),
    ],
    "spawn": [
        (ANEW, "imports what it needs"),
        *NOT_COPIED,
    ],
    "forkserver": [
        (ANEW, "those of the fork server"),
        *NOT_COPIED,
    ],
    "launch": [
        (ANEW, "those of the fork server"),
        *NOT_COPIED,
    ],
}
MADE = {
    "fork": "The system copies the parent: its memory, and the one thread that forks.",
    "spawn": "A new, empty Python starts. It imports the file that the parent runs, if there is one.",
    "forkserver": "A fork server, which has only imported modules, is copied.",
    "launch": "A fork server, which has only imported torch, is copied.",
}
WORKS = {
    "fork": "The child is a copy of the parent. The parent has not computed yet, so nothing is missing.",
    "spawn": "A new Python imports the file again. It is slow, and does not inherit what the parent did.",
    "forkserver": "The server only imports, so its copies are clean. They find the function in its file.",
    "launch": "The child is a clean copy of a fork server that holds torch. A cell's code is sent to it.",
}

#: A stamp on the border says what becomes of a thing: its sign, its colour, the left of its legend.
STAMPS = {COMES: ("✔", "#00694d", 100), ANEW: ("○", "#555555", 240), LOST: ("✘", "#a83c00", 380)}
ALARM = "#a83c00"
#: By how it ends: what stands over the child, and the look of that.
ENDS = {
    "works": ("Child: computes", doing("compute")),
    "can hang": ("Child: may hang", doing("waiting")),
    "is refused": ("Child: fails", {"fill": ALARM}),
}
#: The rooms: x, y, width, height.
PARENT = (4, 4, 184, 248)
CHILD = (334, 4, 222, 248)
SERVER = (212, 4, 98, 42)
NOWHERE = (445, 128, 0, 0)
#: Things in them: their left and width, the first row, how far it is to the next one.
PARENTS_LEFT = 12
PARENTS_WIDE = 168
CHILDS_LEFT = 342
CHILDS_WIDE = 206
TOP = 50
ROW = 34
BORDER = 261
#: Things that are the parent's; things that the child makes for itself.
PARENTS = "#cfe3f5"
CHILDS = "#fbe3d0"


class Received(NamedTuple):
    """What the child gets of a thing."""

    thing: str
    how: str  # COMES, ANEW or LOST
    childs: str  # what the child then has


class Outcome(NamedTuple):
    """How train() fares in the child."""

    verdict: str  # a key of ENDS
    explained: str
    lacks: int | None = None  # the row of the thing that is missing


def received(method, in_cell, threads_used, cuda_used):
    """What the child gets of each thing that the parent has: {row: Received}."""
    place = "cell" if in_cell else "file"
    things = (f"train(), in a {place}", *THINGS[1:])
    becomes = (*_of_the_program(method, in_cell), *BECOMES[method])
    rows = {row: Received(thing, *becomes[row]) for row, thing in enumerate(things)}
    if not threads_used:
        del rows[THREADS]
    if not cuda_used:
        del rows[CUDA]
    return rows


def _of_the_program(method, in_cell):
    """What becomes of the function, and of the variables."""
    if method == "fork":
        return (COMES, "the same function"), (COMES, "a copy of all of them")
    if not in_cell:
        return (ANEW, "by name, from the file"), (ANEW, "as the file sets them")
    if method == "launch":
        return (COMES, "its code, sent by value"), (COMES, "those that train() uses")
    return (LOST, "only its name: not found"), (LOST, "no file that sets them")


def outcome(method, in_cell, threads_used, cuda_used):
    """How train() fares in the child."""
    if method == "fork" and cuda_used:
        return Outcome("is refused", BAD_FORK, CUDA)
    if method == "fork" and threads_used:
        waits = "The child's first large computation waits for threads that only the parent has."
        return Outcome("can hang", waits, THREADS)
    if method in ("spawn", "forkserver") and in_cell:
        return Outcome("is refused", NOT_FOUND, FUNCTION)
    return Outcome("works", WORKS[method])


def scene(method, in_cell, threads_used, cuda_used, measured=None):
    """The parent alone; its child is made; one thing after the other comes to the border; how train() ends."""
    situation = (method, in_cell, threads_used, cuda_used)
    rows = received(*situation)
    # A click on a thing turns the control that says whether the parent has it.
    clicks = {
        FUNCTION: {"in_cell": not in_cell},
        THREADS: {"threads_used": not threads_used},
        CUDA: {"cuda_used": not cuda_used},
    }
    there = _named(*_rooms(method), *_things(rows, clicks), *_costs(method, measured or {}))
    frames = [_frame("Before", "What will its child find?", there)]
    there |= _named(*_child(method))
    frames.append(_frame(f"{method}: a child is made", MADE[method], there))
    for row, (thing, how, childs) in rows.items():
        there |= _named(*_arrived(row, how, childs))
        frame = _frame(f"{thing}: {how}", f"Child: {childs}.", there)
        # A thing that is lost still sets out, so that one sees where it is stopped.
        if how == LOST or childs.startswith("by name"):
            frame["shapes"].append(_moving(row, thing))
        frames.append(frame)
    ended = outcome(*situation)
    there |= _named(*_ended(ended, there))
    frames.append(_frame(f"train() {ended.verdict}", ended.explained, there))
    return {"size": (560, 386 if measured else 282), "pace": 1500, "frames": frames}


def _named(*shapes):
    return {shape["id"]: shape for shape in shapes}


def _frame(title, note, there):
    return {"title": title, "note": note, "shapes": list(there.values())}


def _rooms(method):
    """What is there before the child: the parent's room, the border, what its stamps mean, and a fork server."""
    yield box("parent room", *PARENT, line=RANKS[0], width=2)
    yield words("parent", 14, 27, "Parent: notebook", bold=True)
    yield path("border", [[BORDER, TOP], [BORDER, 252]], dash=True, width=2, layer=-1)
    for how, (sign, colour, x) in STAMPS.items():
        yield circle(f"sign {how}", x, 266, 9, text=sign, size=13, fill=colour)
        yield words(f"legend {how}", x + 15, 266, how, size=14)
    if method in ("forkserver", "launch"):
        yield box("server", *SERVER, text="fork server", size=14, line="#777777", width=2)


def _things(rows, clicks):
    """The parent's things, each with a question at the border. A click says whether some of them are there."""
    for row in range(len(THINGS)):
        look = {"text": MISSING.get(row), "dash": True}
        if row in rows:
            look = {"text": rows[row].thing, "fill": PARENTS}
            yield _stamp(row, "?", "#555555")
        yield _tile(f"parent {row}", PARENTS_LEFT, row, PARENTS_WIDE, click=clicks.get(row), **look)


def _tile(id, x, row, wide, **more):
    return box(id, x, TOP + ROW * row, wide, 28, size=14, **more)


def _stamp(row, sign, colour):
    return circle(f"stamp {row}", BORDER, TOP + ROW * row + 14, 11, text=sign, size=14, fill=colour, late=True)


def _child(method):
    """An empty room, which comes from where the child is made."""
    origin = {"fork": PARENT, "spawn": NOWHERE}.get(method, SERVER)
    begin = dict(zip("xywh", origin, strict=True))
    yield box("child room", *CHILD, line=RANKS[1], width=2, **{"from": begin})
    yield box("child", CHILDS_LEFT, 12, CHILDS_WIDE, 30, text="Child: a new process", bold=True, line="none")


def _arrived(row, how, childs):
    """A thing that has come to the border: its stamp, and what the child has."""
    sign, colour, _ = STAMPS[how]
    yield _stamp(row, sign, colour)
    # Only what is taken over comes from the parent: the rest appears where it is.
    looks = {
        COMES: {"fill": PARENTS, "from": {"x": PARENTS_LEFT}},
        ANEW: {"fill": CHILDS},
        LOST: {"dash": True},
    }
    yield _tile(f"child {row}", CHILDS_LEFT, row, CHILDS_WIDE, text=childs, **looks[how])


def _moving(row, thing):
    """What leaves the parent, and is not kept where it arrives. Of a function only the name gets to the child."""
    to = BORDER - PARENTS_WIDE / 2
    if row == FUNCTION:
        to = CHILDS_LEFT
        thing = 'the name "train"'
    return _tile(f"moving {row}", to, row, PARENTS_WIDE, text=thing, fill=PARENTS, passes=True,
                 **{"from": {"x": PARENTS_LEFT}})


def _ended(ended, there):
    """The shapes that the end changes: what stands over the child, and a thick frame around what it lacks."""
    over_child, look = ENDS[ended.verdict]
    yield {**there["child"], "text": over_child, **look}
    if ended.lacks is not None:
        yield {**there[f"child {ended.lacks}"], "line": ALARM, "width": 4}


def _costs(method, measured):
    """How long a child of each method took to answer, as bars; a click chooses the method."""
    if measured:
        most = max(row["ms"] for row in measured.values())
        yield words("costs", 4, 300, "Measured here: until a child answers", size=14)
    for number, (name, row) in enumerate(measured.items()):
        y = 312 + 18 * number
        wide = 330 * row["ms"] / most
        yield box(f"method {name}", 4, y, 90, 17, text=name, size=14, click={"method": name})
        yield box(f"cost {name}", 100, y + 2, wide, 13, fill=RANKS[0], round=0)
        yield words(f"time {name}", 106 + wide, y + 8.5, f"{row['ms']:,.0f} ms", size=14)
        if name == method:
            yield box("chosen", 4, y, 90, 17, line=RANKS[0], width=5, layer=-1)


def start_method_explorer(measured=None):
    """Start-method explorer: choose fork, spawn, forkserver or launch and what the parent has done; thing by thing the
    picture shows what crosses the border to the child, how train() fares there, and what it costs.

    `measured`: how long a child of each method took to answer, {method: {"ms": …}}.
    """
    controls = {
        "method": buttons("Start by", "fork", METHODS),
        "in_cell": checkbox("train() is defined in a cell", True),
        "threads_used": checkbox("the parent has computed with threads"),
        "cuda_used": checkbox("the parent has used CUDA"),
    }
    presets = {
        "fork after CUDA": preset("What does the child hold of the GPU?", cuda_used=True),
        "fork with threads": preset("Who would open the locks that the child has copied?", threads_used=True),
        "spawn from a cell": preset("The child gets a name. In which file can it look that up?", method="spawn"),
        "launch after both": preset("What is sent, and what is imported?", method="launch", threads_used=True,
                                    cuda_used=True),
    }
    return Stage("start_method_explorer", start_method_explorer.__doc__, partial(scene, measured=measured), controls,
                 "Press Play. What crosses the border, and has train() all that it needs?", presets,
                 everything=True)
