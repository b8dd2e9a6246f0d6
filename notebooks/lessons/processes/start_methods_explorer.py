"""The start-method explorer: what a new process receives, whether that is enough, and what it costs on this machine."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from helpers.widgets.explorer import Explorer, widgets

METHODS = ("fork", "spawn", "forkserver", "launch")

# The first words of the real errors; the lesson shows them, and tests compare them with what Python and torch say.
NOT_FOUND = "AttributeError: Can't get attribute 'train' on <module '__main__' (built-in)>"
BAD_FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …"

COMES, ANEW, LOST = "comes", "anew", "lost"
_SIGN = {COMES: ("✔", "#00694d"), ANEW: ("○", "#444444"), LOST: ("✘", "#a83c00")}
_BANNER = {"works": ("✔ works", "#00694d"), "can hang": ("… can hang", "#8a5a00"),
           "is refused": ("✘ is refused", "#a83c00")}
_CHOSEN, _OTHER = "C0", "#9aa5b1"


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


def draw(ax, method, in_cell=True, threads_used=False, cuda_used=False):
    """Draw the parent, the child, what crosses from one to the other, and how that ends.

    Args:
        ax: The axes; what they showed is removed.
        method: One of METHODS.
        in_cell: The function is defined in a notebook's cell, not in a file.
        threads_used: The parent has computed with several threads.
        cuda_used: The parent has used CUDA.
    """
    situation = in_cell, threads_used, cuda_used
    (verdict, words), rows = outcome(method, *situation), received(method, *situation)
    for artist in (*ax.lines, *ax.texts, *ax.patches):
        artist.remove()
    ax.set(xlim=(0, 960), ylim=(410, 0))
    ax.set_title(f"Started by {method}: what the child receives", y=1)  # a place of its own: not looked for each time
    ax.set_axis_off()
    for x, name in ((2, "Parent: your notebook"), (612, "Child: a new process")):
        ax.add_patch(Rectangle((x, 2), 346, 270, facecolor="#f3f7fb", edgecolor="C0", linewidth=2))
        ax.text(x + 14, 28, name, weight="bold", size=14)
    if method in ("forkserver", "launch"):
        ax.add_patch(Rectangle((375, 286), 215, 34, facecolor="white", edgecolor="#444444", linewidth=2))
        ax.text(482, 310, "fork server, forks the child", ha="center", size=11)
        ax.plot([590, 785, 785], [303, 303, 290], color="#444444")
        ax.plot(785, 284, "^", color="#444444", markersize=9)
    for number, (parents, how, childs) in enumerate(rows):
        y, (sign, colour) = 66 + 39 * number, _SIGN[how]
        ax.text(16, y, parents)
        ax.text(626, y, f"{sign} {childs}", color=colour, weight="bold")
        if how == COMES:
            ax.plot([356, 598], [y - 5, y - 5], color=colour, linewidth=3)
            ax.plot(600, y - 5, ">", color=colour, markersize=11)
        else:
            ax.plot([356, 470], [y - 5, y - 5], "--|", color="#777777", markevery=[1], markersize=11)  # stays at home
    sign, colour = _BANNER[verdict]
    ax.add_patch(Rectangle((2, 338), 956, 68, facecolor="white", edgecolor=colour, linewidth=2))
    ax.text(16, 364, sign, weight="bold", size=14, color=colour)
    ax.text(16, 392, words)


def draw_costs(ax, measured):
    """Draw how long a child of each method took to answer; what was not measured is said to be so.

    Args:
        ax: The axes.
        measured: {method: {"ms": median milliseconds until a child answers, "first_ms": of the first child}}.

    Returns:
        The bars, by method.
    """
    bars = ax.barh(METHODS, [measured.get(method, {}).get("ms", 0) for method in METHODS], color=_OTHER)
    longest = max(row["ms"] for row in measured.values())
    for bar, method in zip(bars, METHODS, strict=True):
        row = measured.get(method, {})
        words = _time(row["ms"]) if row else "not measured here"
        ax.text(bar.get_width() + longest / 80, bar.get_y() + 0.4, words, va="center")
    ax.set(xlim=(0, 1.35 * longest), xlabel="milliseconds until a child answers")
    ax.set_title("What it costs here", y=1)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    ax.tick_params(length=0)
    ax.invert_yaxis()
    return dict(zip(METHODS, bars, strict=True))


def _time(milliseconds):
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def start_method_explorer(measured=None):
    """Choose a start method and a situation; see what the child receives.

    Args:
        measured: As `draw_costs` takes it.
    """
    measured = measured or {}
    wide = {"style": {"description_width": "initial"}, "layout": {"width": "auto"}, "indent": False}
    controls = {
        "method": widgets.ToggleButtons(options=METHODS, value="fork", description="Start by",
                                        style={"button_width": "110px"}),
        "in_cell": widgets.Checkbox(True, description="train() is defined in a cell", **wide),
        "threads_used": widgets.Checkbox(False, description="the parent has computed with threads", **wide),
        "cuda_used": widgets.Checkbox(False, description="the parent has used CUDA", **wide),
    }
    figure = Figure(figsize=(9.6, 6.2 if measured else 4.1), layout="none")  # places that never change
    upper = figure.add_axes((0.01, 0.34, 0.98, 0.615) if measured else (0.01, 0.01, 0.98, 0.93))
    bars = draw_costs(figure.add_axes((0.11, 0.095, 0.87, 0.185)), measured) if measured else {}

    def redraw(method, **situation):
        draw(upper, method, **situation)
        for name, bar in bars.items():
            bar.set_facecolor(_CHOSEN if name == method else _OTHER)
        crosses = "; ".join(f"{parents}: {childs}" for parents, _, childs in received(method, **situation))
        costs = ", ".join(f"{name} {_time(row['ms'])}" for name, row in measured.items())
        figure.set_label(f"{method}: train() {': '.join(outcome(method, **situation))} The child receives: {crosses}. "
                         f"Until a later child answers: {costs or 'not measured here'}.")
        return figure

    return Explorer(controls, redraw,
                    "Start-method explorer: choose fork, spawn, forkserver or launch and what the parent has done; the "
                    "picture shows what the child receives, how it fares, and what it costs.")
