"""The float explorer: the bits that six formats keep of a number, what it becomes in each, and how wrong that is.

From frame to frame the number doubles. The exponents' bits count up, and a mark glides along the powers of two. Where
it passes the end of a format's reach, an alarm says so.
"""

import math

from helpers.widgets.shapes import box, key, words
from helpers.widgets.stage import Stage, clicks, field, preset
from lessons.mixed_precision.formats import FORMATS, decode, encode, parse

#: Of a 0 and of a 1, by the part that the bit belongs to.
COLOURS = {
    "sign": ("#eeeeee", "#b5b5b5"),
    "exponent": ("#fdebd8", "#f2a65a"),
    "fraction": ("#e3f0fa", "#7cb9e8"),
}
#: Where what a colour means is said, and how.
KEY = {
    "sign": (10, "sign"),
    "exponent": (100, "exponent: how far"),
    "fraction": (290, "fraction: how fine"),
}
#: What becomes of a number, by the kind of what it has become; what needs no alarm.
FATES = {
    "normal": "rounded",
    "subnormal": "subnormal",
    "zero": "underflow",
    "infinite": "overflow",
}
GOOD = ("exact", "rounded")
ALARM = "#a83c00"
MARK = "#264bfb"
SIZE = [560, 450]
LEFT = 10
RIGHT = 550
#: The left of the number that it becomes, and of the box that says how wrong that is.
BECOMES = 130
ERROR = 370
#: The first format, how far it is to the next, and how far it is from a name to its bits.
TOP = 48
BLOCK = 47
BELOW = 20
BIT = 16.5
BIT_HIGH = 21
#: The ruler of powers of two: a lane for each reach, the mark's handle above them.
RULER_TOP = 354
RULER_BOTTOM = 426
RULER_LEFT = 140
RULER_WIDE = 400
LANE = 18
HANDLE_TOP = 332
HANDLE_WIDE = 40
#: The powers on the ruler; how often a number is halved and doubled at least, as long as it lies there.
POWERS = range(-27, 19)
OFTEN = 10
#: Powers of two: of the least number (of bf16, where three reach equally far), the least normal, and the largest one.
REACHES = {
    "fp32, tf32, bf16": (-133, -126, 128),
    "fp16": (-24, -14, 16),
    "fp8 e5m2": (-16, -14, 15.8),
    "fp8 e4m3": (-9, -6, 8.8),
}


def scene(number, flip=None):
    """A number, which is twice as large in each frame as in the one before; it begins with the one that is typed.

    number: The text that somebody types.
    flip: The name of a bit, and the number of a frame: what this bit makes of the number in that frame takes the
        number's place.
    """
    try:
        value = parse(number)
    except ValueError as error:
        return {"size": SIZE, "frames": [{"title": "No number", "note": str(error), "shapes": []}], "frame": 0}
    if not flip:
        return _doubling(number, value)
    bit, frame = flip
    value = _flipped(_doubled(value)[frame], bit)
    number = f"{value:.17g}"  # enough digits to be read as the same number again
    return {**_doubling(number, value), "means": {"number": number, "flip": None}}


def _flipped(value, bit):
    row, place = map(int, bit.split("/"))
    form = list(FORMATS.values())[row]
    bits = list("".join(encode(value, form)[:3]))
    bits[place] = "1" if bits[place] == "0" else "0"
    return decode("".join(bits), form)


def _doubled(value):
    """The number as large as it is in each frame. What lies beyond the ruler is not doubled."""
    if not _on_ruler(value):
        return [value]
    power = math.frexp(value)[1] - 1
    # A number in the middle reaches both ends. One near an end is moved less: all frames are stored in the notebook.
    to_nearer_end = min(power - POWERS[0], POWERS[-1] - power)
    often = max(OFTEN, to_nearer_end)
    values = [math.ldexp(value, times) for times in range(-often, often + 1)]
    return list(filter(_on_ruler, values))


def _on_ruler(value):
    return 2.0 ** POWERS.start <= abs(value) < 2.0 ** POWERS.stop


def _doubling(number, value):
    values = _doubled(value)
    begin = values.index(value)
    frames = []
    for place, one in enumerate(values):
        frame = _frame(number, one, place - begin)
        frame["shapes"] += _ruler()
        if _on_ruler(value):
            frame["shapes"] += _mark(one, values)
        frames.append(frame)
    return {"size": SIZE, "pace": 700, "frames": frames, "frame": begin}


def _frame(typed, value, times):
    """The number, doubled some times, in all formats."""
    shapes = list(_key())
    alarms = []
    for row, form in enumerate(FORMATS.values()):
        encoded = encode(value, form)
        fate = _fate(encoded, value, form)
        shapes += _bits(row, form, encoded)
        shapes += _words(row, form.name, encoded.value, value, fate)
        if fate not in GOOD:
            alarms.append(f"{form.name}: {fate}")
    said = ", ".join(alarms) or "All formats have room for it."
    if times:
        return {"title": f"{typed} × 2^{times} = {value:.7g}", "note": said, "shapes": shapes}
    # Here questions are asked, which the note would answer.
    note = "Click a bit to flip it. Step doubles the number, and Back halves it."
    return {"title": typed, "note": note, "alt": f"{typed} in six formats. {said}", "shapes": shapes}


def _fate(encoded, number, form):
    """What has become of a number, in a word."""
    if form.name == "fp8 e4m3" and abs(number) > 464:  # it has no infinity: 448 in torch 2.14.1, NaN in 2.11.0
        return "overflow"
    # A subnormal number may be exact, too. That it has fewer bits matters more.
    if encoded.kind != "subnormal" and (encoded.value == number or math.isnan(number)):
        return "exact"
    return FATES[encoded.kind]


def _bits(row, form, encoded):
    """A cell for each bit, which a click flips; what a format stores and does not use is one cell."""
    place = 0
    x = LEFT
    y = TOP + BLOCK * row + BELOW
    for part, colours in COLOURS.items():
        for bit in getattr(encoded, part):
            name = f"{row}/{place}"
            fill = colours[int(bit)]
            yield box(name, x, y, BIT - 1, BIT_HIGH, text=bit, fill=fill, click={"flip": name}, size=14, round=2)
            place += 1
            x += BIT
        x += 3  # a gap between the parts
    if form.name == "tf32":
        wide = BIT * (form.stored - form.bits)
        yield box("tf32 unused", x, y, wide, BIT_HIGH, text="stored, not used", dash=True, size=14)


def _words(row, name, becomes, number, fate):
    """The format's name, what the number becomes in it, and how wrong that is."""
    y = TOP + BLOCK * row + 8
    yield words(name, LEFT, y, name, bold=True)
    yield words(f"{name} becomes", BECOMES, y, f"{becomes:.9g}")
    fill = None if fate in GOOD else ALARM
    yield box(f"{name} error", ERROR, y - 10, RIGHT - ERROR, 20, text=_error(becomes, number, fate), fill=fill,
              line="none")


def _error(becomes, number, fate):
    """How wrong it is: relative to the number, or what has become of it."""
    if fate not in ("rounded", "subnormal"):
        return fate
    relative = abs(becomes - number) / abs(number)
    error = f"{relative:.1e}" if relative else "exact"
    return f"{error}, subnormal" if fate == "subnormal" else error


def _key():
    """What the colours mean, and headings."""
    for part, (x, text) in KEY.items():
        yield from key(text, x, 9, fill=COLOURS[part][1])
    yield words("becomes", BECOMES, 34, "becomes", size=14)
    yield words("relative error", (ERROR + RIGHT) / 2, 34, "relative error", "middle", size=14)


def _ruler():
    """Powers of two, and how far the formats reach among them."""
    for lane, (names, (least, normal, largest)) in enumerate(REACHES.items()):
        y = RULER_TOP + LANE * lane
        yield words(f"reach {names}", RULER_LEFT - 8, y + 8, names, "end", size=14)
        # Normal numbers lie over the others: what is left in pale is subnormal.
        yield _reach(f"subnormal {names}", y, least, largest, 0)
        yield _reach(f"normal {names}", y, normal, largest, 1)
    for power in range(-20, 20, 10):
        yield words(f"2^{power}", _along(power), RULER_BOTTOM + 10, f"2^{power}", "middle", size=14)


def _reach(name, y, begin, end, colour):
    left = _along(begin)
    wide = _along(end) - left
    return box(name, left, y, wide, LANE - 2, fill=COLOURS["exponent"][colour], tip=f"{name}: from 2^{begin}")


def _along(power):
    """The x of a power of two; what is not on the ruler is at its end."""
    share = (power - POWERS.start) / len(POWERS)
    return RULER_LEFT + RULER_WIDE * min(max(share, 0), 1)


def _mark(value, values):
    """Where the number lies on the ruler: a handle that one may drag to each frame's place, and a line below it."""
    x, y = _handle(value)
    middle = x + HANDLE_WIDE / 2
    yield box("line", middle - 1, RULER_TOP - 4, 2, RULER_BOTTOM - RULER_TOP + 4, fill=MARK, layer=1)
    places = list(map(_handle, values))
    yield box("mark", x, y, HANDLE_WIDE, 18, text="◂ ▸", fill=MARK, round=9, layer=1, drag=("moment", places),
              tip="drag it: the number is halved and doubled")


def _handle(value):
    return [_along(math.log2(abs(value))) - HANDLE_WIDE / 2, HANDLE_TOP]


def float_explorer(number="0.1"):
    """Float explorer: type a number, flip a bit, or double and halve it; the picture shows which bits fp32, tf32,
    bf16, fp16 and two fp8 formats keep, what it becomes, and how wrong that is."""
    controls = {"number": field("number", number), "flip": clicks()}
    look = "Exponent bits say how large a number may be; fraction bits, how exact it is. Click a bit to flip it."
    presets = {
        "2049": preset("Which formats have too few fraction bits for it?", number="2049"),
        "65520": preset("Compare fp16 with bf16. Which one has no room for it, and why?", number="65520"),
        "1e-8": preset("Which formats keep it? Count their exponent bits.", number="1e-8"),
    }
    return Stage("float_explorer", float_explorer.__doc__, scene, controls, look, presets)
