"""The float explorer: a number, the bits that each format keeps of it, and what it has become."""

import math

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from helpers.formats import FORMATS, encode, parse
from helpers.widgets.explorer import Explorer, widgets

_SIGN, _EXPONENT, _FRACTION, _UNUSED = "#e3e3e3", "#f7cfa8", "#bcdcf2", "white"
_KEY = {"sign": _SIGN, "exponent: how far": _EXPONENT, "fraction: how fine": _FRACTION, "stored, not used": _UNUSED}
_ALARM = "#a83c00"
#: Where the columns of text begin, in bits from the first one; half of a box's height, in rows.
_NAME, _VALUE, _ERROR, _END, _HALF = -6.2, 34, 45.3, 57.5, 0.36
_WORDS = {"subnormal": "subnormal", "zero": "underflow: 0", "infinite": "overflow: inf", "not a number": "NaN"}


def draw(ax, number):
    """Draw the bits that each format keeps of a number, what it becomes there, and how wrong that is.

    Args:
        ax: The axes.
        number: Text, as `helpers.formats.parse` reads it. If it says no number, the picture says so.
    """
    ax.set_axis_off()
    try:
        value = parse(number)
    except ValueError as error:
        ax.text(0, 0.9, f"✘ {error}", color=_ALARM, fontweight="bold", parse_math=False, transform=ax.transAxes)
        ax.figure.set_label(str(error))
        return
    shown = number.strip()[:40]
    boxes, colours, bits, said = [], [], {"0": [], "1": []}, []
    for row, form in enumerate(FORMATS.values()):
        encoded, unused, left = encode(value, form), " " * (form.stored - form.bits), 0
        top, bottom = row - _HALF, row + _HALF
        for part, colour in ((encoded.sign, _SIGN), (encoded.exponent, _EXPONENT), (encoded.fraction, _FRACTION),
                             (unused, _UNUSED)):
            for bit in part:
                boxes.append([(left, top), (left + 1, top), (left + 1, bottom), (left, bottom)])
                colours.append(colour)
                bits.get(bit, []).append((left + 0.5, row))
                left += 1
            left += 0.3 * (part is not encoded.fraction)
        wrong = _said(encoded, value, form)
        colour = _ALARM if any(word in wrong for word in ("flow", "subnormal", "NaN")) else "black"
        ax.text(_NAME, row, form.name, va="center")
        ax.text(_VALUE, row, f"{encoded.value:.9g}", va="center", color=colour, fontweight="bold")
        ax.text(_ERROR, row, wrong, va="center", color=colour)
        said.append(f"{form.name} {encoded.value:.9g}, {wrong}")
    ax.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="#666666", linewidths=0.8))
    for bit, places in bits.items():  # as markers: a text for each would take ten times as long
        ax.plot(*zip(*places, strict=True), ls="", marker=f"${bit}$", ms=8, mew=0, color="black", label=f"_{bit}")
    for x, head in ((_NAME, "format"), (0, "bits"), (_VALUE, "becomes"), (_ERROR, "relative error")):
        ax.text(x, -0.85, head, va="center", color="#444444")
    ax.set(xlim=(_NAME, _END), ylim=(len(FORMATS) - 0.5, -1.2))
    ax.set_title(shown, parse_math=False)
    ax.legend(handles=[Patch(facecolor=colour, edgecolor="#666666", label=words) for words, colour in _KEY.items()],
              loc="upper left", bbox_to_anchor=(0, 0.02), ncols=4, borderaxespad=0)
    ax.figure.set_label(f"The bits of {shown} by format: {'; '.join(said)}.")


def _said(encoded, number, form):
    """How wrong it is: in words, or relative to the number."""
    if math.isnan(number) or encoded.value == number:
        return "exact, subnormal" if encoded.kind == "subnormal" else "exact"
    if encoded.kind in _WORDS and encoded.kind != "subnormal":
        return _WORDS[encoded.kind]
    if abs(number) > form.largest * (1 + form.eps / 2):
        return "overflow: its largest"  # fp8 e4m3 has no infinity
    error = abs(encoded.value - number) / abs(number)
    return f"{error:.1e}{', subnormal' if encoded.kind == 'subnormal' else ''}"


def float_explorer(number="0.1"):
    """Type a number, or move the slider through the powers of two; see what each format makes of it."""
    wide = {"style": {"description_width": "150px"}, "layout": {"width": "600px"}}
    controls = {
        "number": widgets.Text(number, description="number", **wide),
        "power": widgets.IntSlider(0, -30, 20, description="or 2 to the power of", **wide),
    }
    figure = Figure(figsize=(10, 3.6), layout="none")
    ax = figure.add_axes((0.01, 0.1, 0.98, 0.79))

    def redraw(number, power):
        ax.clear()
        draw(ax, number)
        return figure

    def write_power(change):
        controls["number"].value = f"2**{change['new']}"

    explorer = Explorer(controls, redraw,
                        "Float explorer: type a number or choose a power of two; the picture shows which bits fp32, "
                        "tf32, bf16, fp16 and two fp8 formats keep, what it becomes, and how wrong that is.")
    controls["power"].unobserve(explorer._redraw, names="value")  # the number's change draws it already
    controls["power"].observe(write_power, names="value")
    return explorer
