"""The start-method explorer: what a new process receives, whether that is enough, and what it costs here."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.widgets.explorer import Explorer, buttons, checkbox, wipe

METHODS = ("fork", "spawn", "forkserver", "launch")

# The real errors: the first one in our words, because Python's differ between its versions; tests ask for both.
NOT_FOUND = "AttributeError: the child's '__main__' has no 'train'"
BAD_FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …"

COMES, ANEW, LOST = "comes", "anew", "lost"
_SIGN = {COMES: ("✔", "#00694d"), ANEW: ("○", "#444444"), LOST: ("✘", "#a83c00")}
_BANNER = {"works": ("✔ works", "#00694d"), "can hang": ("… can hang", "#8a5a00"),
           "is refused": ("✘ is refused", "#a83c00")}
_CHOSEN, _OTHER = "C0", "#9aa5b1"

#: What becomes of what the parent has, by method, in the order of `_THINGS`.
_THINGS = ("variables, as changed by now", "imported modules, torch too", "open files",
           "threads that compute", "CUDA, in use")
_BECOMES = {
    "fork": ((COMES, "a copy of all of them"), (COMES, "already there"), (COMES, "open, too"),
             (LOST, "no threads, but their locks"), (LOST, "handles that do not work")),
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


def received(method, in_cell, threads_used, cuda_used):
    """What the child gets of what the parent has: [(the parent's, COMES, ANEW or LOST, the child's)]."""
    if method == "fork":
        function = COMES, "the same function"
    elif method == "launch":
        function = COMES, "its code, sent by value"
    elif in_cell:
        function = LOST, "only its name: not found"
    else:
        function = ANEW, "its name; imports the file"
    there = (True, True, True, threads_used, cuda_used)
    things = zip(_THINGS, _BECOMES[method], there, strict=True)
    rows = [(thing, *becomes) for thing, becomes, has in things if has]
    return [(f"function train(), {'in a cell' if in_cell else 'in a file'}", *function), *rows]


def outcome(method, in_cell, threads_used, cuda_used):
    """How train() then fares in the child: ("works", "can hang" or "is refused", in words)."""
    if method == "fork" and cuda_used:
        return "is refused", BAD_FORK
    if method == "fork" and threads_used:
        return "can hang", "The child's first large computation waits for threads that only the parent has."
    if method in ("spawn", "forkserver") and in_cell:
        return "is refused", NOT_FOUND
    return "works", _WORKS[method]


def draw(ax, method, in_cell, threads_used, cuda_used):
    """Draw the parent, the child, what crosses from one to the other, and how that ends."""
    situation = method, in_cell, threads_used, cuda_used

    def box(x, y, width, height, colour, face="white"):
        ax.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor=colour, linewidth=2))

    wipe(ax)
    ax.set_title(f"Started by {method}: what the child receives", y=1)
    for x, name in ((2, "Parent: your notebook"), (612, "Child: a new process")):
        box(x, 2, 346, 270, "C0", "#f3f7fb")
        ax.text(x + 14, 28, name, weight="bold", size=14)
    if method in ("forkserver", "launch"):
        box(375, 286, 215, 34, "#444444")
        ax.text(482, 310, "fork server, forks the child", ha="center", size=11)
        ax.plot([590, 785, 785], [303, 303, 290], color="#444444")
        ax.plot(785, 284, "^", color="#444444", markersize=9)
    for y, (parents, how, childs) in zip(range(66, 400, 39), received(*situation), strict=False):
        sign, colour = _SIGN[how]
        ax.text(16, y, parents)
        ax.text(626, y, f"{sign} {childs}", color=colour, weight="bold")
        if how == COMES:
            ax.plot([356, 600], [y - 5, y - 5], "->", color=colour, linewidth=3, markevery=[1], markersize=11)
        else:  # it stays at home
            ax.plot([356, 470], [y - 5, y - 5], "--|", color="#777777", markevery=[1], markersize=11)
    verdict, words = outcome(*situation)
    sign, colour = _BANNER[verdict]
    box(2, 338, 956, 68, colour)
    ax.text(16, 364, sign, weight="bold", size=14, color=colour)
    ax.text(16, 392, words)


def draw_costs(ax, measured):
    """Draw how long a child of each method took to answer, {method: {"ms": …}}; return the bars."""
    costs = [measured[method]["ms"] if method in measured else 0 for method in METHODS]
    bars = ax.barh(METHODS, costs, color=_OTHER)
    ax.bar_label(bars, [_time(cost) if cost else "not measured here" for cost in costs], padding=6)
    ax.set(xlim=(0, 1.35 * max(costs)), xlabel="milliseconds until a child answers")
    ax.set_title("What it costs here", y=1)
    ax.locator_params(axis="x", nbins=3)
    ax.tick_params(length=0)
    ax.invert_yaxis()
    return bars


def _time(milliseconds):
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def start_method_explorer(measured=None):
    """Start-method explorer: choose fork, spawn, forkserver or launch and what the parent has done; the
    picture shows what the child receives, how it fares, and what it costs.

    `measured` is what `draw_costs` takes.
    """
    controls = {
        "method": buttons("Start by", METHODS),
        "in_cell": checkbox("train() is defined in a cell"),
        "threads_used": checkbox("the parent has computed with threads"),
        "cuda_used": checkbox("the parent has used CUDA"),
    }
    controls["in_cell"].value = True
    bars, costs = (), "not measured here"
    if measured:
        figure = Figure(figsize=(9.6, 6.2), layout="none")
        upper = figure.add_axes((0.01, 0.34, 0.98, 0.615))
        bars = draw_costs(figure.add_axes((0.11, 0.095, 0.87, 0.185)), measured)
        costs = ", ".join(f"{name} {_time(row['ms'])}" for name, row in measured.items())
    else:
        figure = Figure(figsize=(9.6, 4.1), layout="none")
        upper = figure.add_axes((0.01, 0.01, 0.98, 0.93))
    upper.set(xlim=(0, 960), ylim=(410, 0))
    upper.set_axis_off()

    def redraw(**situation):
        draw(upper, **situation)
        for name, bar in zip(METHODS, bars, strict=False):
            bar.set_facecolor(_CHOSEN if name == situation["method"] else _OTHER)
        crosses = "; ".join(f"{parents}: {childs}" for parents, _, childs in received(**situation))
        figure.set_label(f"{situation['method']}: train() {': '.join(outcome(**situation))} The child "
                         f"receives: {crosses}. Until a later child answers: {costs}.")
        return figure

    presets = {
        "fork after CUDA": ({"cuda_used": True}, "What does the child hold of the GPU?"),
        "fork with threads": ({"threads_used": True}, "Who would open the locks that the child has copied?"),
        "spawn from a cell": ({"method": "spawn"},
                              "The child gets a name. In which file can it look that up?"),
        "launch": ({"method": "launch", "threads_used": True, "cuda_used": True},
                   "What is sent, and what is imported?"),
    }
    return Explorer(controls, redraw, start_method_explorer.__doc__,
                    "Find the line that decides how it ends: what does the child lack?", presets)
