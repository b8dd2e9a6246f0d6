"""The float explorer: a number, the bits that each format keeps of it, and what it has become."""

import html
import math

import ipywidgets as widgets

from helpers.formats import FORMATS, encode, parse
from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import svg

_SIGN, _EXPONENT, _FRACTION = "#e3e3e3", "#f7cfa8", "#bcdcf2"
_LEFT, _BIT, _VALUE, _ERROR, _WIDTH = 100, 15, 612, 780, 960
_WORDS = {"subnormal": "subnormal", "zero": "underflow: 0", "infinite": "overflow: inf", "not a number": "NaN"}


def draw(number):
    """The picture, as SVG.

    Args:
        number: Text, as `helpers.formats.parse` reads it. If it says no number, the picture says so.
    """
    try:
        value = parse(number)
    except ValueError as error:
        words = html.escape(str(error))
        return svg(_WIDTH, 80, [f'<text x="10" y="46" fill="#a83c00" font-weight="bold">✘ {words}</text>'], str(error))
    parts = [f'<text x="10" y="30" font-size="18" font-weight="bold">{html.escape(number.strip()[:40])}</text>',
             *_head()]
    for row, form in enumerate(FORMATS.values()):
        parts += _row(72 + 38 * row, form, value)
    top = 72 + 38 * len(FORMATS) + 14
    for x, colour, words in ((_LEFT, _SIGN, "sign"), (190, _EXPONENT, "exponent: how far"),
                             (380, _FRACTION, "fraction: how fine")):
        parts.append(f'<rect x="{x}" y="{top}" width="18" height="18" fill="{colour}" stroke="#555"/>'
                     f'<text x="{x + 26}" y="{top + 15}">{words}</text>')
    parts.append(f'<rect x="570" y="{top}" width="18" height="18" fill="#fff" stroke="#aaa" stroke-dasharray="3 2"/>'
                 f'<text x="596" y="{top + 15}">stored, not used</text>')
    said = "; ".join(f"{form.name} {_said(encode(value, form), value, form)}" for form in FORMATS.values())
    return svg(_WIDTH, top + 30, parts, f"The bits of {number.strip()[:40]} by format: {said}.")


def _head():
    style = 'font-size="14" fill="#444"'
    return [f'<text x="10" y="58" {style}>format</text>', f'<text x="{_LEFT}" y="58" {style}>bits</text>',
            f'<text x="{_VALUE}" y="58" {style}>becomes</text>', f'<text x="{_ERROR}" y="58" {style}>wrong by</text>']


def _row(y, form, number):
    encoded = encode(number, form)
    yield f'<text x="10" y="{y + 19}">{form.name}</text>'
    x = _LEFT
    for bits, colour in ((encoded.sign, _SIGN), (encoded.exponent, _EXPONENT), (encoded.fraction, _FRACTION)):
        for bit in bits:
            yield (f'<rect x="{x}" y="{y}" width="{_BIT}" height="26" fill="{colour}" stroke="#555"/>'
                   f'<text x="{x + _BIT / 2}" y="{y + 18}" font-size="14" text-anchor="middle">{bit}</text>')
            x += _BIT
        x += 4
    for _ in range(form.stored - form.bits):
        yield (f'<rect x="{x - 4}" y="{y}" width="{_BIT}" height="26" fill="#fff" stroke="#aaa" '
               'stroke-dasharray="3 2"/>')
        x += _BIT
    said = _said(encoded, number, form)
    colour = "#a83c00" if any(word in said for word in ("flow", "subnormal", "NaN")) else "#111"
    yield f'<text x="{_VALUE}" y="{y + 19}" fill="{colour}" font-weight="bold">{encoded.value:.9g}</text>'
    yield f'<text x="{_ERROR}" y="{y + 19}" fill="{colour}">{said}</text>'


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
    wide = {"style": {"description_width": "150px"}, "layout": {"width": "600px"}, "continuous_update": True}
    controls = {
        "number": widgets.Text(number, description="number", **wide),
        "power": widgets.IntSlider(0, -30, 20, description="or 2 to the power of", **wide),
    }

    def write_power(change):
        controls["number"].value = f"2**{change['new']}"

    controls["power"].observe(write_power, names="value")
    return Explorer(controls, lambda number, power: draw(number),
                    "Float explorer: type a number or choose a power of two; the picture shows which bits fp32, tf32, "
                    "bf16, fp16 and two fp8 formats keep, what it becomes, and how wrong that is.")
