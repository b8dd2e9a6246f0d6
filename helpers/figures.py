"""The course's figures: one look, one colour for each activity, and a text alternative for every picture.

    import matplotlib.pyplot as plt
    from helpers.figures import use_course_style
    use_course_style()                    # in a lesson's first cell

From then on a figure at the end of a cell is stored as a picture whose text alternative is `alt(figure)`:
what the drawing function has said with `figure.set_label("…")`, or else what the axes themselves hold.
"""

import io
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

#: What a rank or a device does, in every picture (`helpers.instruments.traces`). These colours and those of
#: `HELD` have a contrast of 3:1 and more on white and on #111111. Colour-blind readers tell them apart.
ACTIVITIES = {"compute": "#264bfb", "communication": "#bb281a", "waiting": "#626c62"}
#: What is drawn over an activity's colour, so that it can be told in grey, too.
HATCHES = {"compute": "", "communication": "///", "waiting": "..."}
#: What a device's memory holds, in every picture.
HELD = {"weights": "#6294e2", "gradients": "#f85312", "optimizer": "#6f9f6b", "activations": "#874d8a",
        "gathered": "#94919f"}

#: What `use_course_style(projector=True)` gives a notebook: large type, and pages to present.
PROJECTOR = Path(__file__).with_name("projector.html")


def use_course_style(projector=False):
    """Give matplotlib the look of the course, and pictures in this notebook their text alternatives.

    projector: explorers and text of the whole notebook are large enough for the back row.
    """
    from IPython import get_ipython

    plt.style.use("helpers.course")
    shell = get_ipython()
    if hasattr(shell, "kernel"):
        plt.switch_backend(plt.get_backend())  # now: at the first figure, it would undo what follows
        formatters = shell.display_formatter.formatters
        formatters["image/png"].for_type(Figure, small_png)
        formatters["text/plain"].for_type(Figure, lambda figure, printer, _cycle: printer.text(title(figure)))
        if projector:
            page = PROJECTOR.read_text(encoding="utf-8")
            shell.display_pub.publish({"text/html": page, "text/plain": "Large type for a projector"})


def small_png(figure):
    """The figure for a notebook: a PNG with twice the pixels that it takes on the page, in 64 colours.

    Returns: its bytes, and what a notebook notes beside them: {"alt", "width", "height"}.
    """
    width, height = figure.get_size_inches() * 100
    pixels = io.BytesIO()
    # Otherwise `savefig` gives this layout to figures that have none.
    with plt.rc_context({"figure.constrained_layout.use": False, "savefig.bbox": "standard"}):
        figure.savefig(pixels, format="raw", dpi=200)
    picture = Image.frombytes("RGBA", (int(2 * width), int(2 * height)), pixels.getvalue())
    file = io.BytesIO()
    picture.convert("RGB").quantize(64).save(file, format="png", compress_level=8)  # 9 takes thrice as long
    return file.getvalue(), {"alt": alt(figure), "width": int(width), "height": int(height)}


def title(figure):
    """What the figure is called, in words that do not change between two executions."""
    titles = [figure.get_suptitle(), *map(_title_of, figure.axes), figure.get_label(), "without a title"]
    first = next(filter(None, titles))
    return f"Figure: {first}"


def _title_of(ax):
    return ax.get_title("left") or ax.get_title("center")


def alt(figure):
    """The figure in words: its label, or else the titles, axes and values that it shows."""
    return figure.get_label() or " ".join(map(_in_words, figure.axes))


def _in_words(ax):
    sentences = [f"Axes: {ax.get_xlabel() or 'x'}, {ax.get_ylabel() or 'y'}."]
    if _title_of(ax):
        sentences.insert(0, f"{_title_of(ax)}.")
    for line in ax.lines:
        ys = line.get_ydata(orig=False)
        has_a_name = not line.get_label().startswith("_")  # matplotlib's own labels begin so
        if len(ys) and has_a_name:
            sentences.append(f"{line.get_label()}: from {ys[0]:.3g} to {ys[-1]:.3g}.")
    for container in ax.containers:
        if getattr(container, "patches", None):  # error bars and stems have none
            sentences.append(_bars_in_words(container, ax))
    return " ".join(sentences)


def _bars_in_words(bars, ax):
    """How long each bar is, by the name at its axis; where there is not a name for each, only from what to what."""
    if getattr(bars, "orientation", "") == "horizontal":
        ticks = ax.get_yticklabels()
        sizes = [bar.get_width() for bar in bars.patches]
    else:
        ticks = ax.get_xticklabels()
        sizes = [bar.get_height() for bar in bars.patches]
    label = "" if bars.get_label().startswith("_") else f"{bars.get_label()}: "
    if len(ticks) != len(sizes):
        return f"{label}{len(sizes)} bars, {min(sizes):.3g} to {max(sizes):.3g}."
    named = [f"{tick.get_text()} {size:.3g}" for tick, size in zip(ticks, sizes, strict=True)]
    return f"{label}{', '.join(named)}."
