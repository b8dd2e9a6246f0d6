"""The float explorer: a number, the bits that each format keeps of it, and what it becomes; halved and doubled, too."""

import math
from functools import lru_cache
from itertools import pairwise

from helpers.widgets.shapes import box, words
from helpers.widgets.stage import Stage, clicks, field, preset
from lessons.mixed_precision.formats import FORMATS, decode, encode, parse

#: Of a 0 and of a 1, by the part that the bit belongs to.
COLOURS = {"sign": ("#eeeeee", "#b5b5b5"), "exponent": ("#fdebd8", "#f2a65a"), "fraction": ("#e3f0fa", "#7cb9e8")}
KEY = {"sign": "sign", "exponent": "exponent: how far", "fraction": "fraction: how fine"}
ALARM, MARK = "#a83c00", "#264bfb"
#: Units: the left edge, and all that lies right of it; a bit; a format, and where the first one begins.
LEFT, WIDE, BIT, HIGH, BLOCK, TOP = 10, 540, 16.5, 21, 47, 48
VALUES = 130  #: where it says what the number becomes
#: Below them, the ruler of powers of two, with a lane for each reach.
RULER, RULER_LEFT, RULER_WIDE, LANE = TOP + 6 * BLOCK + 24, 140, 410, 18
#: The powers on the ruler; and how often a number is doubled, and halved, as long as it lies on the ruler.
POWERS, OFTEN = range(-27, 18), 22
#: Powers of two: of the least number (of bf16, where three reach equally far), the least normal, and the largest one.
REACHES = {"fp32, tf32, bf16": (-133, -126, 128), "fp16": (-24, -14, 16), "fp8 e5m2": (-16, -14, 15.8),
           "fp8 e4m3": (-9, -6, 8.8)}
SIZE = [LEFT + WIDE + LEFT, RULER + LANE * len(REACHES) + 24]
#: What may become of a number in a format, in words.
FATES = {"exact": "Exact", "rounded": "Rounded", "subnormal": "Subnormal, with fewer bits", "overflow": "Too large",
         "underflow": "Too small"}


def scene(number, flip=None):
    """A number, which is twice as large in each frame as in the one before; it begins with the one that is typed.

    number: The text that somebody types.
    flip: The name of a bit (see `_bits`), and the number of a frame: what this bit makes of the number in that frame
        takes the number's place.
    """
    try:
        value = parse(number)
    except ValueError as error:
        return {"size": SIZE, "frames": [{"title": "No number", "note": str(error), "shapes": []}], "frame": 0}
    means = {}
    if flip:
        bit, frame = flip
        value = _flipped(_doubled(value)[-1][frame], bit)
        number = f"{value:g}" if float(f"{value:g}") == value else str(value)
        means = {"means": {"number": number, "flip": None}}
    ruler, powers, values = _doubled(value)
    begin = values.index(value) if powers else 0
    frames = [_frame(number, one, place - begin, ruler, powers) for place, one in enumerate(values)]
    return {"size": SIZE, "pace": 700, "frames": frames, "frame": begin, **means}


def _doubled(value):
    """(powers of two on the ruler, powers of two of the frames, the number as large as each of these).

    There are no powers, if the number does not lie between two of them.
    """
    if value == 0 or not math.isfinite(value):
        return (), (), [value]
    power = math.frexp(value)[1] - 1
    limits = POWERS if power in POWERS else range(-1074, 1024)
    powers = range(max(power - OFTEN, limits[0]), min(power + OFTEN, limits[-1]) + 1)
    values = [math.ldexp(value, one - power) for one in powers]
    return limits if power in POWERS else powers, powers, values


def _flipped(value, bit):
    row, place = map(int, bit.split("/"))
    form = list(FORMATS.values())[row]
    bits = "".join(encode(value, form)[:3])
    other = "10"[int(bits[place])]
    return decode(bits[:place] + other + bits[place + 1:], form)


def _frame(number, value, times, ruler, powers):
    shapes, fates = [*_key()], {}
    for row, form in enumerate(FORMATS.values()):
        encoded = encode(value, form)
        fate = _fate(encoded, value, form)
        fates.setdefault(fate, []).append(form.name)
        shapes += [*_bits(row, form, encoded), *_words(row, form.name, encoded.value, value, fate)]
    if powers:
        shapes += [*_ruler(ruler), *_mark(value, ruler, powers)]
    said = " ".join(f"{FATES[fate]}: {', '.join(names)}." for fate, names in fates.items())
    if len(fates) == 1:
        said = f"{FATES[fate]}: all formats."
    typed = number.strip()[:30]
    if times:
        return {"title": f"{typed} × 2^{times} = {value:.7g}", "note": said, "shapes": shapes}
    # Here questions are asked, which what is said would answer.
    note = f"Click a bit to flip it.{' Step doubles the number, and Back halves it.' * bool(powers)}"
    return {"title": typed, "note": note, "alt": f"{typed} in six formats. {said}", "shapes": shapes}


def _fate(encoded, number, form):
    """What has become of a number: one of `FATES`."""
    if form.name == "fp8 e4m3" and abs(number) > 464:  # it has no infinity: 448 in torch 2.14.1, NaN in 2.11.0
        return "overflow"
    if encoded.kind == "subnormal":
        return "subnormal"
    if encoded.value == number or math.isnan(number):
        return "exact"
    return {"zero": "underflow", "infinite": "overflow"}.get(encoded.kind, "rounded")


def _words(row, name, becomes, number, fate):
    """The format's name, what the number becomes in it, and how wrong that is."""
    y, right = TOP + BLOCK * row + 8, LEFT + WIDE
    yield words(name, LEFT, y, name, bold=True)
    yield words(f"{name} becomes", VALUES, y, f"{becomes:.9g}")
    text = _error(becomes, number, fate)
    if fate in ("exact", "rounded"):
        yield words(f"{name} error", right, y, text, "end")
    else:
        wide = 8.5 * len(text) + 12
        yield box(f"{name} error", right - wide, y - 10, wide, 20, text=text, fill=ALARM)


def _error(becomes, number, fate):
    """How wrong it is: in words, or relative to the number."""
    if fate == "underflow":
        return "underflow: 0"
    if fate == "overflow":
        return "overflow: inf" if math.isinf(becomes) else "overflow"
    error = "exact" if fate == "exact" or becomes == number else f"{abs(becomes - number) / abs(number):.1e}"
    return f"{error}, subnormal" if fate == "subnormal" else error


def _bits(row, form, encoded):
    """A cell for each bit; what a format stores and does not use is one cell."""
    place, x = 0, LEFT
    for part in COLOURS:
        for bit in getattr(encoded, part):
            yield _bit(row, part, place, bit, x)
            place, x = place + 1, x + BIT
        x += 3
    unused = form.stored - form.bits
    if unused:
        yield box(f"{form.name} unused", x, TOP + BLOCK * row + 20, BIT * unused, HIGH, dash=True, size=14,
                  text="stored, not used")


@lru_cache(2000)  # for nearly all bits stay as they are from frame to frame
def _bit(row, part, place, bit, x):
    return box(f"{row}/{place}", x, TOP + BLOCK * row + 20, BIT - 1, HIGH, size=14, round=2, text=bit,
               fill=COLOURS[part][int(bit)], click={"flip": f"{row}/{place}"})


@lru_cache(1)
def _key():
    """What the colours mean, and headings."""
    x, shapes = LEFT, []
    for part, text in KEY.items():
        shapes.append(box(f"key {part}", x, 2, 14, 14, fill=COLOURS[part][1]))
        shapes.append(words(f"key {part} words", x + 20, 9, text, size=14))
        x += 8 * len(text) + 40
    headings = (("format", LEFT, "start"), ("becomes", VALUES, "start"), ("relative error", LEFT + WIDE, "end"))
    for text, x, align in headings:
        shapes.append(words(text, x, 34, text, align, size=14))
    return shapes


@lru_cache(2)
def _ruler(powers):
    """Powers of two, and how far the formats reach among them."""
    shapes, bottom = [], RULER + LANE * len(REACHES)
    for lane, (names, ends) in enumerate(REACHES.items()):
        y = RULER + LANE * lane
        shapes.append(words(f"reach {names}", RULER_LEFT - 8, y + LANE / 2 - 1, names, "end", size=14))
        for part, (begin, end) in enumerate(pairwise(ends)):
            left, right = _along(begin, powers), _along(end, powers)
            if left < right:
                kind = ("subnormal numbers", "normal numbers")[part]
                shapes.append(box(f"reach {names} {part}", left, y, right - left, LANE - 2, round=1,
                                  fill=COLOURS["exponent"][part], tip=f"{kind}: from 2^{begin} to 2^{end}"))
    for power in powers:
        if power % 10 == 0:
            shapes.append(words(f"2^{power}", _along(power, powers), bottom + 10, f"2^{power}", "middle", size=14))
    return shapes


def _along(power, powers):
    """The x of a power of two; what is not on the ruler is at its end."""
    share = (power - powers[0]) / len(powers)
    return RULER_LEFT + RULER_WIDE * min(max(share, 0), 1)


def _mark(value, ruler, powers):
    """Where the number lies on the ruler: a handle, and a line through all lanes."""
    exact = math.log2(abs(value))
    x = _along(exact, ruler)
    yield box("line", x - 1, RULER - 4, 2, LANE * len(REACHES) + 4, fill=MARK, layer=1)
    yield box("mark", x - 20, RULER - 22, 40, 18, round=9, fill=MARK, text="◂ ▸", layer=1,
              drag=("moment", _places(exact % 1, ruler, powers)), tip="drag it: the number is halved and doubled")


@lru_cache(2)
def _places(more, ruler, powers):
    """Where the handle is in each frame, `more` than a power of two."""
    return [[_along(power + more, ruler) - 20, RULER - 22] for power in powers]


def float_explorer(number="0.1"):
    """Float explorer: type a number, flip a bit, or double and halve it; the picture shows which bits fp32, tf32,
    bf16, fp16 and two fp8 formats keep, what it becomes, and how wrong that is."""
    return Stage("float_explorer", float_explorer.__doc__, scene, {"number": field("number", number), "flip": clicks()},
                 look="Exponent bits say how large a number may be; fraction bits, how exact it is. Click a bit to "
                      "flip it.",
                 presets={
                     "2049": preset("Which formats have too few fraction bits for it?", number="2049"),
                     "65520": preset("Compare fp16 with bf16. Which one has no room for it, and why?", number="65520"),
                     "1e-8": preset("Which formats keep it? Count their exponent bits.", number="1e-8"),
                 })
