"""The float explorer: a number, the bits that each format keeps of it, and what it has become."""

import math

import ipywidgets as widgets
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from helpers.widgets.explorer import LOOK, Explorer, slider
from lessons.mixed_precision.formats import FORMATS, encode, parse

_SIGN, _EXPONENT, _FRACTION, _UNUSED = "#e3e3e3", "#f7cfa8", "#bcdcf2", "white"
_KEY = {"sign": _SIGN, "exponent: how far": _EXPONENT, "fraction: how fine": _FRACTION,
        "stored, not used": _UNUSED}
_ALARM = "#a83c00"
#: Where the columns of text begin, in bits from the first one.
_NAME, _VALUE, _ERROR, _END = -6.2, 34, 45.3, 57.5
_WORDS = {"zero": "underflow: 0", "infinite": "overflow: inf", "not a number": "NaN"}


def draw(ax, number):
    """Draw the bits that each format keeps of a number, what it becomes there, and how wrong that is.

    The number is the text that somebody types. If `parse` cannot read it, the picture says so.
    """
    ax.set_axis_off()
    try:
        value = parse(number)
    except ValueError as error:
        ax.text(0, 0.9, f"✘ {error}", color=_ALARM, weight="bold", parse_math=False, transform=ax.transAxes)
        ax.figure.set_label(str(error))
        return
    boxes, colours, bits, said = [], [], {"0": [], "1": [], " ": []}, []
    for row, form in enumerate(FORMATS.values()):
        encoded, left = encode(value, form), 0
        unused = " " * (form.stored - form.bits)
        for part, colour, gap in ((encoded.sign, _SIGN, 0.3), (encoded.exponent, _EXPONENT, 0.3),
                                  (encoded.fraction, _FRACTION, 0), (unused, _UNUSED, 0)):
            for bit in part:
                boxes.append(Rectangle((left, row - 0.36), 1, 0.72))
                colours.append(colour)
                bits[bit].append((left + 0.5, row))
                left += 1
            left += gap
        wrong = _said(encoded, value, form)
        colour = _ALARM if any(word in wrong for word in ("flow", "subnormal", "NaN")) else "black"
        ax.text(_NAME, row, form.name, va="center")
        ax.text(_VALUE, row, f"{encoded.value:.9g}", va="center", color=colour, fontweight="bold")
        ax.text(_ERROR, row, wrong, va="center", color=colour)
        said.append(f"{form.name} {encoded.value:.9g}, {wrong}")
    ax.add_collection(PatchCollection(boxes, facecolors=colours, edgecolors="#666666", linewidths=0.8))
    for bit in "01":  # as markers: a text for each bit would take ten times as long
        xs, ys = [x for x, _ in bits[bit]], [y for _, y in bits[bit]]
        ax.plot(xs, ys, ls="", marker=f"${bit}$", ms=8, mew=0, color="black", label=f"_{bit}")
    for x, head in ((_NAME, "format"), (0, "bits"), (_VALUE, "becomes"), (_ERROR, "relative error")):
        ax.text(x, -0.85, head, va="center", color="#444444")
    ax.set(xlim=(_NAME, _END), ylim=(len(FORMATS) - 0.5, -1.2))
    shown = number.strip()[:40]
    ax.set_title(shown, parse_math=False)
    patches = [Patch(facecolor=colour, edgecolor="#666666", label=words) for words, colour in _KEY.items()]
    ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, 0.02), ncols=4, borderaxespad=0)
    ax.figure.set_label(f"The bits of {shown} by format: {'; '.join(said)}.")


def _said(encoded, number, form):
    """How wrong it is: in words, or relative to the number."""
    if math.isnan(number) or encoded.value == number:
        return "exact, subnormal" if encoded.kind == "subnormal" else "exact"
    if form.name == "fp8 e4m3" and abs(number) > 464:  # it has no infinity: 448 in torch 2.14.1, NaN in 2.11.0
        return "overflow"
    if encoded.kind in _WORDS:
        return _WORDS[encoded.kind]
    error = abs(encoded.value - number) / abs(number)
    return f"{error:.1e}, subnormal" if encoded.kind == "subnormal" else f"{error:.1e}"


def float_explorer(number="0.1"):
    """Float explorer: type a number or choose a power of two; the picture shows which bits fp32, tf32, bf16,
    fp16 and two fp8 formats keep, what it becomes, and how wrong that is."""
    text = widgets.Text(number, description="or any number", **LOOK)
    power = slider("2 to the power of", 0, -30, 20)
    presets = {
        "2049": ({"number": "2049"}, "Which formats have too few fraction bits for it?"),
        "65520": ({"number": "65520"}, "Compare fp16 with bf16. Which one has no room for it, and why?"),
        "1e-8": ({"number": "1e-8"}, "Which formats keep it? Count their exponent bits."),
    }
    figure = Figure(figsize=(10, 3.6), layout="none")
    ax = figure.add_axes((0.01, 0.1, 0.98, 0.79))

    def redraw(number, power):
        ax.clear()
        draw(ax, number)
        return figure

    explorer = Explorer({"power": power, "number": text}, redraw, float_explorer.__doc__,
                        "Exponent bits say how large a number may be; fraction bits, how exact it is.",
                        presets)
    power.unobserve(explorer._redraw, names="value")  # the number's change draws it
    power.observe(lambda change: setattr(text, "value", f"2**{change['new']}"), names="value")
    return explorer
