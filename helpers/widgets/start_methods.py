"""The start-method explorer: what a new process receives, whether that is enough, and what it costs on this machine."""

import html

import ipywidgets as widgets

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import COLOURS, svg

METHODS = ("fork", "spawn", "forkserver", "launch")

# The first words of the real errors; lesson 01 shows them, and tests compare them with what Python and torch say.
NOT_FOUND = "AttributeError: Can't get attribute 'train' on <module '__main__' (built-in)>"
BAD_FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …"

COMES, ANEW, LOST = "comes", "anew", "lost"
_SIGN = {COMES: ("✔", "#00694d"), ANEW: ("○", "#444"), LOST: ("✘", "#a83c00")}
_BANNER = {"works": ("✔ works", "#00694d"), "can hang": ("… can hang", "#8a5a00"),
           "is refused": ("✘ is refused", "#a83c00")}


def received(method, in_cell, threads_used, cuda_used):
    """What the child gets of each thing that the parent has: [(the parent's, COMES, ANEW or LOST, the child's)]."""
    fork, launch = method == "fork", method == "launch"
    if fork:
        function = COMES, "the same function"
    elif launch:
        function = COMES, "its code, sent by value"
    elif in_cell:
        function = LOST, "only its name: not found"
    else:
        function = ANEW, "its name; imports the file"
    rows = [
        (f"function train(), {'in a cell' if in_cell else 'in a file'}", *function),
        ("variables, as changed by now", *((COMES, "a copy of all of them") if fork else
                                           (COMES, "those that train() uses") if launch else
                                           (ANEW, "as the file sets them"))),
        ("imported modules, torch too", *((COMES, "there already") if fork else
                                          (ANEW, "imports them again") if method == "spawn" else
                                          (ANEW, "those of the fork server"))),
        ("open files", *((COMES, "open as well") if fork else (LOST, "closed"))),
    ]
    if threads_used:
        rows.append(("threads that compute", *((LOST, "none, but their locks") if fork else (ANEW, "starts its own"))))
    if cuda_used:
        rows.append(("CUDA, in use", *((LOST, "dead handles") if fork else (ANEW, "can start its own"))))
    return rows


def outcome(method, in_cell, threads_used, cuda_used):
    """How train() then fares in the child: ("works", "can hang" or "is refused", in words)."""
    if method == "fork" and cuda_used:
        return "is refused", BAD_FORK
    if method == "fork" and threads_used:
        return "can hang", "The child's first large computation waits for threads that only the parent has."
    if method in ("spawn", "forkserver") and in_cell:
        return "is refused", NOT_FOUND
    return "works", {
        "fork": "The child is a copy of the parent. Nothing had computed in the parent yet, so nothing is missing.",
        "spawn": "A new Python imports the file anew: slow, and free of all that the parent did before.",
        "forkserver": "The server only imported, so its copies are clean; they find the function in its file.",
        "launch": "A clean copy of a fork server that holds torch; the function's own code is sent to it.",
    }[method]


def draw(method, in_cell=True, threads_used=False, cuda_used=False, measured=None):
    """The picture, as SVG.

    Args:
        method: One of METHODS.
        in_cell: The function is defined in a notebook's cell, not in a file.
        threads_used: The parent has computed with several threads.
        cuda_used: The parent has used CUDA.
        measured: {method: {"ms": median milliseconds until a child answers, "first_ms": of the first child}}; what is
            missing is said to be not measured.
    """
    situation = in_cell, threads_used, cuda_used
    verdict, words = outcome(method, *situation)
    title = f"{method}: train() in a {'cell' if in_cell else 'file'} {verdict}. {words}"
    rows = received(method, *situation)
    parts = [*_boxes(method), *(part for number, row in enumerate(rows) for part in _row(number, *row)),
             *_banner(verdict, words), *_bars(method, measured or {})]
    return svg(960, 590, parts, title)


def _text(x, y, text, more=""):
    return f'<text x="{x}" y="{y}" {more}>{html.escape(text)}</text>'


def _boxes(method):
    parts = ['<rect x="10" y="10" width="330" height="300" rx="8" fill="#f3f7fb" stroke="#0072b2" stroke-width="2"/>',
             '<rect x="620" y="10" width="330" height="300" rx="8" fill="#f3f7fb" stroke="#0072b2" stroke-width="2"/>',
             _text(26, 38, "Parent: your notebook", 'font-size="19" font-weight="bold"'),
             _text(636, 38, "Child: a new process", 'font-size="19" font-weight="bold"'),
             _text(480, 38, method, 'font-size="19" font-weight="bold" text-anchor="middle"')]
    if method in ("forkserver", "launch"):
        parts += ['<rect x="375" y="322" width="210" height="34" rx="8" fill="#fff" stroke="#444" stroke-width="2"/>',
                  _text(480, 344, "fork server: only imports", 'text-anchor="middle" font-size="15"'),
                  '<path d="M585 339H785V312" fill="none" stroke="#444" stroke-width="2"/>',
                  '<path d="M780 320L785 310L790 320z" fill="#444"/>', _text(640, 358, "forks the child", "")]
    return parts


def _row(number, parents, how, childs):
    y, (sign, colour) = 74 + 42 * number, _SIGN[how]
    yield _text(26, y, parents)
    yield _text(636, y, f"{sign} {childs}", f'fill="{colour}" font-weight="bold"')
    if how == COMES:
        yield f'<path d="M350 {y - 5}H600" stroke="{colour}" stroke-width="3"/>'
        yield f'<path d="M598 {y - 12}L612 {y - 5}L598 {y + 2}z" fill="{colour}"/>'
    else:
        yield f'<path d="M350 {y - 5}H470" stroke="#777" stroke-width="2" stroke-dasharray="6 5"/>'
        yield _text(480, y, "only its name" if "its name" in childs else "stays here", 'fill="#444" font-size="15"')


def _banner(verdict, words):
    sign, colour = _BANNER[verdict]
    return [f'<rect x="10" y="370" width="940" height="66" fill="#fff" stroke="{colour}" stroke-width="2"/>',
            f'<rect x="10" y="370" width="8" height="66" fill="{colour}"/>',
            _text(30, 396, sign, f'font-size="19" font-weight="bold" fill="{colour}"'), _text(30, 422, words)]


def _bars(chosen, measured):
    parts = [_text(10, 466, "Until a later child answers (in brackets: the first), measured in this notebook")]
    longest = max((row["ms"] for row in measured.values()), default=0)
    for number, method in enumerate(METHODS):
        y, row = 478 + 28 * number, measured.get(method)
        weight = "bold" if method == chosen else "normal"
        parts.append(_text(10, y + 17, method, f'font-weight="{weight}"'))
        if row is None:
            parts.append(_text(110, y + 17, "not measured here", 'fill="#444"'))
            continue
        width = max(2, 500 * row["ms"] / longest)
        colour = COLOURS[0] if method == chosen else "#9aa5b1"
        first = f" (the first {_time(row['first_ms'])})" if "first_ms" in row else ""
        parts.append(f'<rect x="110" y="{y}" width="{width:.1f}" height="22" fill="{colour}"/>'
                     + _text(f"{118 + width:.1f}", y + 17, _time(row["ms"]) + first, f'font-weight="{weight}"'))
    return parts


def _time(milliseconds):
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def start_method_explorer(measured=None):
    """Choose a start method and a situation; see what the child receives.

    Args:
        measured: As `draw` takes it.
    """
    wide = {"style": {"description_width": "initial"}, "layout": {"width": "auto"}, "indent": False}
    controls = {
        "method": widgets.ToggleButtons(options=METHODS, value="fork", description="Start by",
                                        style={"button_width": "110px"}),
        "in_cell": widgets.Checkbox(True, description="train() is defined in a cell", **wide),
        "threads_used": widgets.Checkbox(False, description="the parent has computed with threads", **wide),
        "cuda_used": widgets.Checkbox(False, description="the parent has used CUDA", **wide),
    }
    return Explorer(controls, lambda **values: draw(**values, measured=measured),
                    "Start-method explorer: choose fork, spawn, forkserver or launch and what the parent has done; the "
                    "picture shows what the child receives, how it fares, and what it costs.")
