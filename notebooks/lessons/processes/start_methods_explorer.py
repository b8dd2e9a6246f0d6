"""The start-method explorer: what crosses the border to a new process, whether that is enough, what it costs here."""

from functools import partial
from textwrap import fill

from helpers.widgets.shapes import RANKS, box, circle, doing, path, words
from helpers.widgets.stage import Stage, buttons, checkbox, preset

METHODS = ("fork", "spawn", "forkserver", "launch")

# The real errors: the first one in our words, because Python's differ between its versions; tests ask for both.
NOT_FOUND = "AttributeError: the child's '__main__' has no 'train'"
BAD_FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …"

COMES, ANEW, LOST = "taken over", "made anew", "lost"
#: What stands at the border when a thing has come there, and in which colour.
_STAMPS = {COMES: ("✔", "#00694d"), ANEW: ("○", "#555555"), LOST: ("✘", "#a83c00")}
#: By how it ends: a colour; what then stands over the child, and the look of that.
_ENDS = {"works": ("#00694d", "Child: computes", doing("compute")),
         "can hang": ("#8a5a00", "Child: may hang", doing("waiting")),
         "is refused": ("#a83c00", "Child: fails", {"fill": "#a83c00"})}

#: What becomes of what the parent has, by method, in the order of `_THINGS`.
_THINGS = ("variables, changed", "modules, torch too", "open files", "threads that compute", "CUDA, in use")
_BECOMES = {
    "fork": ((COMES, "a copy of all of them"), (COMES, "already there"), (COMES, "open, too"),
             (LOST, "locks, but no threads"), (LOST, "handles that do not work")),
    "spawn": ((ANEW, "as the file sets them"), (ANEW, "imports them again"), (LOST, "closed"),
              (ANEW, "starts its own"), (ANEW, "can start its own")),
    "forkserver": ((ANEW, "as the file sets them"), (ANEW, "those of the fork server"), (LOST, "closed"),
                   (ANEW, "starts its own"), (ANEW, "can start its own")),
    "launch": ((COMES, "those that train() uses"), (ANEW, "those of the fork server"), (LOST, "closed"),
               (ANEW, "starts its own"), (ANEW, "can start its own")),
}
_WORKS = {
    "fork": "The child is a copy of the parent. The parent has not computed yet, so nothing is missing.",
    "spawn": "A new Python imports the file again. It is slow, and does not inherit what the parent did.",
    "forkserver": "The server only imports, so its copies are clean. They find the function in its file.",
    "launch": "The child is a clean copy of a fork server that holds torch. It is sent the function's code.",
}


_MADE = {
    "fork": "The system copies the parent: its memory, and the one thread that forks.",
    "spawn": "A new, empty Python starts. It imports the file that the parent runs, if there is one.",
    "forkserver": "The parent asks a fork server, which has only imported modules. The child is a copy of the server.",
    "launch": "The kernel asks a fork server, which has only imported torch. The child is a copy of the server.",
}

#: The rooms: their left edges, the border between them, the server at the border; their rows.
_PARENT, _BORDER, _CHILD, _SERVER = 4, 261, 334, (212, 4, 98, 42)
_PARENT_WIDE, _CHILD_WIDE, _HIGH, _TOP, _ROW = 184, 222, 248, 50, 34
_FUNCTION, _FILES, _THREADS, _CUDA = 0, 3, 4, 5  #: the numbers of some rows
#: Things that are the parent's; things that the child makes for itself.
_PARENTS, _CHILDS = "#cfe3f5", "#fbe3d0"


def received(method, in_cell, threads_used, cuda_used):
    """What the child gets of what the parent has: [(the parent's, COMES, ANEW or LOST, the child's)]."""
    if method == "fork":
        function = COMES, "the same function"
    elif method == "launch":
        function = COMES, "its code, sent by value"
    elif in_cell:
        function = LOST, "only its name: not found"
    else:
        function = ANEW, "by name, from the file"
    there = (True, True, True, threads_used, cuda_used)
    things = zip(_THINGS, _BECOMES[method], there, strict=True)
    rows = [(thing, *becomes) for thing, becomes, has in things if has]
    return [(f"train(), in a {'cell' if in_cell else 'file'}", *function), *rows]


def outcome(method, in_cell, threads_used, cuda_used):
    """How train() then fares in the child: ("works", "can hang" or "is refused", in words)."""
    if method == "fork" and cuda_used:
        return "is refused", BAD_FORK
    if method == "fork" and threads_used:
        return "can hang", "The child's first large computation waits for threads that only the parent has."
    if method in ("spawn", "forkserver") and in_cell:
        return "is refused", NOT_FOUND
    return "works", _WORKS[method]


def scene(method, in_cell, threads_used, cuda_used, measured=None):
    """The parent alone; its child is made; one thing after the other comes to the border; how train() ends."""
    situation = method, in_cell, threads_used, cuda_used
    parent = [*_parent_room(in_cell, threads_used, cuda_used), *_border(method), *_costs(method, measured)]
    frames = [{"title": "Before", "shapes": parent,
               "note": f"The parent is about to start train() by {method}. What will its child find?"}]
    there = {shape["id"]: shape for shape in parent + _child_room(method)}
    frames.append({"title": f"{method}: a child is made", "note": _MADE[method], "shapes": list(there.values())})
    rows = received(*situation)
    for thing, how, childs in rows:
        row = 1 + _THINGS.index(thing) if thing in _THINGS else _FUNCTION
        there |= {shape["id"]: shape for shape in _arrived(row, how, childs)}
        moving = _stopped(row, thing) if how == LOST or childs.startswith("by name") else []
        frames.append({"title": f"{thing}: {how}", "note": f"In the child: {childs}.",
                       "shapes": [*there.values(), *moving]})
        if how == LOST and row != _FILES:
            deciding = row  # the last one of these is what train() lacks
    verdict, explained = outcome(*situation)
    colour, over_child, look = _ENDS[verdict]
    there["child"] = {**there["child"], "text": over_child, **look}
    there["verdict"] = box("verdict", 4, 282, 552, 50, text=fill(explained, 62), size=14, line=colour, width=3)
    note = "Nothing that train() needs is missing."
    if verdict != "works":
        there[f"child {deciding}"] = {**there[f"child {deciding}"], "line": colour, "width": 4}
        note = "The thick frame is around what the child lacks."
    frames.append({"title": f"How it ends: train() {verdict}", "note": note, "shapes": list(there.values()),
                   "alt": f"{method}: train() {verdict}. {explained}"})
    return {"size": (560, 436 if measured else 340), "pace": 1500, "frames": frames}


def _y(row):
    return _TOP + _ROW * row


def _tile(id, x, row, wide, **more):
    return box(id, x, _y(row), wide, _ROW - 6, size=14, **more)


def _stamp(row, sign, colour):
    return circle(f"stamp {row}", _BORDER, _y(row) + 14, 11, text=sign, size=14, fill=colour, late=True)


def _parent_room(in_cell, threads_used, cuda_used):
    """The parent and its things, each with a question at the border. Some are there, or not, by a click."""
    shapes = [box("parent room", _PARENT, 4, _PARENT_WIDE, _HIGH, line=RANKS[0], width=2),
              words("parent", _PARENT + 10, 27, "Parent: notebook", bold=True)]
    function = "train(), in a cell" if in_cell else "train(), in a file"
    tips = {_FUNCTION: ({"in_cell": not in_cell}, "Click to move it from a cell to a file, or back."),
            _THREADS: ({"threads_used": not threads_used}, "Click: has the parent computed with several threads?"),
            _CUDA: ({"cuda_used": not cuda_used}, "Click: has the parent used CUDA?")}
    missing = {_THREADS: "no threads yet", _CUDA: "CUDA not used yet"}
    has = (True, True, True, True, threads_used, cuda_used)
    for row, thing in enumerate((function, *_THINGS)):
        look = {"text": thing, "fill": _PARENTS} if has[row] else {"text": missing[row], "dash": True}
        if row in tips:
            look["click"], look["tip"] = tips[row]
        shapes.append(_tile(f"parent {row}", _PARENT + 8, row, _PARENT_WIDE - 16, **look))
        if has[row]:
            shapes.append(_stamp(row, "?", "#555555"))
    return shapes


def _border(method):
    """The border, what its stamps mean, and the fork server."""
    shapes = [path("border", [[_BORDER, 50], [_BORDER, 252]], dash=True, width=2, layer=-1)]
    for number, (how, (sign, colour)) in enumerate(_STAMPS.items()):
        x = 100 + 140 * number
        shapes.append(circle(f"sign {how}", x, 266, 9, text=sign, size=13, fill=colour))
        shapes.append(words(f"legend {how}", x + 15, 266, how, size=14))
    if method in ("forkserver", "launch"):
        shapes.append(box("server", *_SERVER, text="fork server", size=14, line="#777777", width=2,
                          tip="A process in the background that imports, computes nothing, and forks each child."))
    return shapes


def _child_room(method):
    """An empty room. It comes from where the child is made."""
    x, y, w, h = _SERVER if method in ("forkserver", "launch") else (_CHILD + _CHILD_WIDE / 2, _HIGH / 2, 0, 0)
    if method == "fork":
        x, y, w, h = _PARENT, 4, _PARENT_WIDE, _HIGH
    return [box("child room", _CHILD, 4, _CHILD_WIDE, _HIGH, line=RANKS[1], width=2,
                **{"from": {"x": x, "y": y, "w": w, "h": h}}),
            box("child", _CHILD + 8, 12, _CHILD_WIDE - 16, 30, text="Child: a new process", bold=True, line="none")]


def _arrived(row, how, childs):
    """A thing that has come to the border: its stamp, its way there, and what the child has, which comes from afar."""
    y, right = _y(row) + 14, _PARENT + _PARENT_WIDE - 7
    if how == COMES:
        yield path(f"way {row}", [[right, y], [_CHILD + 6, y]], width=2, arrow=True, layer=-1)
        look, begin = {"fill": _PARENTS}, {"x": _PARENT + 8, "w": _PARENT_WIDE - 16}
    elif how == ANEW:
        look, begin = {"fill": _CHILDS}, {"w": 0, "text": None}
        if childs.endswith("server"):
            begin = {"x": _SERVER[0], "y": _SERVER[1]}
    else:
        yield path(f"way {row}", [[right, y], [_BORDER, y]], width=2, dash=True, layer=-1)
        look, begin = {"dash": True}, {"opacity": 0}
    sign, colour = _STAMPS[how]
    yield _stamp(row, sign, colour)
    yield _tile(f"child {row}", _CHILD + 8, row, _CHILD_WIDE - 16, text=childs, **look, **{"from": begin})


def _stopped(row, thing):
    """A thing that comes to the border and no further; of the function, the name goes on to the child."""
    wide = _PARENT_WIDE - 16
    end, text = _BORDER - wide / 2, thing
    if row == _FUNCTION:
        end, text = _CHILD + 8, 'the name "train"'
    yield _tile(f"moving {row}", end, row, wide, text=text, passes=True, layer=1, fill=_PARENTS,
                **{"from": {"x": _PARENT + 8}})


def _costs(method, measured):
    """How long a child of each method took to answer, {method: {"ms": …}}, as bars; a click chooses the method."""
    if not measured:
        return []
    most = max(row["ms"] for row in measured.values())
    shapes = [words("costs", 4, 350, "Measured here: until a child answers", size=14)]
    for number, name in enumerate(METHODS):
        y, chosen = 362 + 18 * number, name == method
        wide, told = 0, "not measured here"
        if name in measured:
            wide, told = 330 * measured[name]["ms"] / most, _time(measured[name]["ms"])
        shapes.append(box(f"method {name}", 4, y, 90, 17, text=name, size=14, click={"method": name},
                          **({"fill": RANKS[0]} if chosen else {})))
        shapes.append(box(f"cost {name}", 100, y + 2, wide, 13, fill=RANKS[0] if chosen else "#9aa5b1", round=0))
        shapes.append(words(f"time {name}", 106 + wide, y + 8.5, told, size=14))
    return shapes


def _time(milliseconds):
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


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
                 "Press Play. Find the thing that decides how it ends: what does the child lack?", presets,
                 everything=True)
