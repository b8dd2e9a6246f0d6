"""The stage as a still picture: what stage.js draws at rest, as SVG, for those who read without it.

It is black on white in every theme. In lanes, it shows no words that have no room, and leaves out what is shorter than
two units: there may be hundreds of such bars, which take more place in a notebook than in the picture.
"""

import html

from helpers.widgets.shapes import SIZE, ticks

_HATCHES = {"///": "M0 8 8 0", "...": "M2 2h2M6 6h2", "xx": "M0 0 8 8M0 8 8 0"}
TITLE = 30  #: units above the scene, for the frame's title


def as_svg(scene, number, part=None):
    """A frame of a packed scene (see `stage.py`), as text; and only a `part` of its axis, [from, to]."""
    frame, shapes, axis = scene["frames"][number], shapes_of(scene, number).values(), scene.get("axis")
    if part:
        shapes = _zoomed(shapes, axis, part)
        axis = {**axis, "from": part[0], "to": part[1]}
    width, height = scene["size"]
    height += TITLE
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="system-ui, sans-serif" font-size="{SIZE}">',
             f"<title>{html.escape(frame.get('alt', frame['title']))}</title>", *definitions(),
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="10" y="20" font-weight="600">{html.escape(frame["title"])}</text>',
             f'<g transform="translate(0 {TITLE})">']
    if axis:
        parts += _axis(axis)
    for shape in sorted(shapes, key=lambda shape: shape.get("layer", 0)):
        too_short = "lane" in shape and shape["w"] < 2
        if "passes" not in shape and not too_short:
            parts += drawn(shape)
    return "".join([*parts, "</g></svg>"])


def shapes_of(scene, number):
    """{name: shape} of a frame, which holds only what differs from the frame before."""
    shapes = {}
    for frame in scene["frames"][:number % len(scene["frames"]) + 1]:
        for name in frame.get("gone", ()):
            del shapes[name]
        for name, change in frame["set"].items():
            changed = {**shapes.get(name, {}), **change}
            shapes[name] = {key: value for key, value in changed.items() if value is not None}
    return shapes


def _zoomed(shapes, axis, part):
    """The shapes with those of the axis where they are while only a part of it is shown, and cut at its ends."""
    left, right = axis["x"], axis["x"] + axis["w"]
    larger = (axis["to"] - axis["from"]) / (part[1] - part[0])
    begin = left + axis["w"] * (part[0] - axis["from"]) / (axis["to"] - axis["from"])
    for shape in shapes:
        if "lane" not in shape:
            yield shape
            continue
        x = left + (shape["x"] - begin) * larger
        cut, end = max(left, x), min(right, x + shape["w"] * larger)
        if cut <= end:
            yield {**shape, "x": round(cut, 2), "w": round(end - cut, 2)}


def definitions():
    """Hatches and the head of an arrow, to which shapes refer: they stand first in a picture."""
    yield "<defs>"
    for number, lines in enumerate(_HATCHES.values()):
        yield (f'<pattern id="h{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
               f'<path d="{lines}" stroke="white" stroke-width="1.5" stroke-opacity="0.7"/></pattern>')
    yield ('<marker id="head" markerWidth="4" markerHeight="4" refX="2" refY="2" orient="auto">'
           '<path d="M0 0 4 2 0 4z" fill="context-stroke"/></marker></defs>')


def drawn(shape):
    """A shape as SVG, in parts; nothing of one that is not to be seen."""
    if shape.get("opacity") == 0:
        return
    look = f' stroke-width="{shape["width"]}"' if "width" in shape else ""
    if "opacity" in shape:
        look += f' opacity="{shape["opacity"]}"'
    if "dash" in shape:
        look += ' stroke-dasharray="5 4"'
    if "points" in shape:
        yield _line(shape, look)
    if "w" in shape:
        yield from _box(shape, look)
    if "text" in shape:
        yield from _words(shape)


def _line(shape, look):
    points = " ".join(f"{x + shape['x']},{y + shape['y']}" for x, y in shape["points"])
    head = ' marker-end="url(#head)"' if "arrow" in shape else ""
    return (f'<polyline points="{points}" fill="{shape.get("fill", "none")}" '
            f'stroke="{shape.get("line", "#555555")}"{look}{head}/>')


def _box(shape, look):
    x, wide, corner = shape["x"], shape["w"], shape.get("round", 3)
    if "lane" in shape:
        x, wide = round(x, 1), round(wide, 1)
    place = f'x="{x:g}" y="{shape["y"]:g}" width="{wide:g}" height="{shape["h"]:g}"'
    if corner and wide > 4 * corner:  # a short bar has no room for round corners
        place += f' rx="{corner}"'
    edge = shape.get("line", "" if "fill" in shape else "#777777")
    edge = edge and f' stroke="{edge}"'
    yield f'<rect {place} fill="{shape.get("fill", "none")}"{edge}{look}/>'
    if "hatch" in shape:
        yield f'<rect {place} fill="url(#h{list(_HATCHES).index(shape["hatch"])})"{look}/>'


def _words(shape):
    size = shape.get("size", 13 if "lane" in shape else SIZE)
    wide, align = shape.get("w", 0), shape.get("align", "middle")
    inside = 5 if wide else 0
    edge = ""
    if "hatch" in shape:  # it does not run through the letters
        edge = f' stroke="{shape["fill"]}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
    x = shape["x"] + {"start": inside, "middle": wide / 2, "end": wide - inside}[align]
    middle = shape["y"] + shape.get("h", 0) / 2
    look = f'text-anchor="{align}" font-size="{size}" fill="{shape.get("ink", "#111111")}"{edge}'
    if "opacity" in shape:
        look += f' opacity="{shape["opacity"]}"'
    if "bold" in shape:
        look += ' font-weight="700"'
    lines = shape["text"].split("\n")
    for number, text in enumerate(lines):
        y = middle + 0.35 * size + 1.25 * size * (number - (len(lines) - 1) / 2)
        has_room = "lane" not in shape or 0.58 * size * len(text) <= wide - 4
        if has_room:
            yield f'<text x="{x:g}" y="{y:g}" {look}>{html.escape(text)}</text>'


def _axis(axis):
    x, wide, begin, end, bottom = axis["x"], axis["w"], axis["from"], axis["to"], axis["bottom"]
    look = 'text-anchor="middle" font-size="13"'
    for tick in ticks(begin, end):
        at = x + wide * (tick - begin) / (end - begin)
        yield f'<path d="M{at:g} {axis["top"]}V{bottom}" stroke="#dddddd"/>'
        yield f'<text x="{at:g}" y="{bottom + 17}" {look}>{tick:g}</text>'
    yield f'<text x="{x + wide}" y="{bottom + 35}" text-anchor="end" font-size="13">{html.escape(axis["unit"])}</text>'
