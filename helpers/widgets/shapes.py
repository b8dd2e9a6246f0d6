"""What stands on a stage: boxes, circles, words, lines, lanes of time, charts.

A shape is a dict. Sizes are in units of the scene: on a telephone it is about 360 pixels wide, so a scene of at most
560 units has words of 16 units that can be read there. y grows downwards.
"""

import math
from functools import lru_cache

from helpers.figures import ACTIVITIES, HATCHES

#: What a shape may hold. `box` says what each means.
SHAPE = {"id", "x", "y", "w", "h", "round", "points", "arrow", "fill", "line", "width", "dash", "hatch", "opacity",
         "text", "size", "bold", "align", "ink", "tip", "click", "drag", "from", "passes", "late", "lane", "layer"}
SIZE = 16
#: Colours of ranks: those of the figures' lines, which colour-blind readers tell apart.
RANKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#5b3fa8")
PALE = "#e8edf2"


def box(id, x, y, w, h, **more):
    """A rectangle with its upper left corner at x, y. All else is a keyword:

        text, size, bold, align     words in it ("start", "middle" or "end"); "\\n" begins a new line
        fill, line, width, dash     a colour; of its edge, how wide that is, whether it is dashed
        hatch                       "///", "..." or "xx" over the fill
        round, opacity              of its corners; from 0 to 1
        tip                         said where one points at it
        click                       {control: value}: what a click sets
        drag                        (control, [[x, y] for each option]): where it is for each value of the control;
                                    or ("moment", [[x, y] for each frame]): where it is in each frame;
                                    or (field, [[x, y], …], [text, …]): the text that each place stands for
        from                        {"x", "y", …}: what it is like before it first appears, and glides from
        passes                      it is gone once it has arrived: a message
        late                        it changes when what glides has arrived
        lane                        it lies on the scene's axis, and is zoomed with it; its words have a size of 13
        layer                       -1 lies behind all, 1 above all
    """
    return {"id": id, "x": x, "y": y, "w": w, "h": h, **more}


def circle(id, x, y, radius, **more):
    """A circle around x, y; keywords as for `box`."""
    return box(id, x - radius, y - radius, 2 * radius, 2 * radius, round=radius, **more)


def words(id, x, y, text, align="start", **more):
    """Words at x, the middle of their height at y; keywords as for `box`."""
    return {"id": id, "x": x, "y": y, "text": text, "align": align, **more}


def path(id, points, **more):
    """A line through `points`, [[x, y], …]; `arrow=True` gives its end a head. Keywords as for `box`."""
    return {"id": id, "x": 0, "y": 0, "points": [list(point) for point in points], **more}


def doing(activity, **more):
    """Keywords for a shape that stands for "compute", "communication" or "waiting": colour and hatch."""
    return {"fill": ACTIVITIES[activity], **({"hatch": HATCHES[activity]} if HATCHES[activity] else {}), **more}


def key(text, x, y, **look):
    """A line of a legend: a small box that looks so, its left edge at x, and what that means; y is its middle."""
    return [box(f"colour {text}", x, y - 7, 14, 14, **look), words(f"key {text}", x + 20, y, text, size=14)]


class Lanes:
    """A time axis with a row for each name: `shapes()` are names and lines, `bar` a box from one time to another."""

    def __init__(self, names, end, x=90, y=30, w=450, row=34, begin=0, unit="ms", zoom=False, gap=4):
        """
        Args:
            names: Of the rows, from above.
            end, begin: The times at both ends, in `unit`.
            x, y, w, row: Where the first row begins, how wide it is, and how far it is to the next one.
            zoom: Whether one may zoom, by the control "window".
            gap: Between the bars of one row and those of the next.
        """
        self.names, self.begin, self.end, self.x, self.y, self.w, self.row = names, begin, end, x, y, w, row
        self.gap = gap
        self.bottom = y + row * len(names)
        #: For the scene: `"axis": lanes.axis`. The browser draws its ticks.
        self.axis = {"x": x, "w": w, "top": y, "bottom": self.bottom, "from": begin, "to": end, "unit": unit,
                     "zoom": zoom}

    def at(self, time):
        """The x of a time."""
        return self.x + self.w * (time - self.begin) / (self.end - self.begin)

    def bar(self, id, row, begin, end, share=1, **more):
        """A box in the row of that number, from `begin` to `end`; keywords as for `box`.

        share: Of the row's height, which it fills from below.
        """
        left = self.at(begin)
        high = share * (self.row - self.gap)
        bottom = self.y + self.row * (row + 1) - self.gap / 2
        return box(id, left, bottom - high, self.at(end) - left, high, lane=True, **more)

    def bars(self, spans, now):
        """What has happened until the time `now` of `spans`, [(id, row, begin, end, {keyword: …})]: the boxes grow.

        What has not begun is not there. For a scene that flows, with a frame for each of some times.
        """
        for id, row, begin, end, more in spans:
            if begin < now:
                grows = {"from": {"w": 0}}
                yield {**self.bar(id, row, begin, min(end, now), **more), **grows}

    def moments(self, frames):
        """So many moments at equal distances, to the axis's end: (the one before, this one), the first one twice."""
        before = self.begin
        for number in range(frames):
            now = self.begin + (self.end - self.begin) * (number / (frames - 1))  # the last one is exactly the end
            yield before, now
            before = now

    def shapes(self, now=None):
        """The rows' names; and, where `now` is a time, a line that stands there."""
        shapes = [words(f"lane {name}", self.x - 6, self.y + self.row * (number + 0.5), name, "end", size=14)
                  for number, name in enumerate(self.names)]
        if now is not None:
            high = self.bottom - self.y + 6
            shapes.append(box("now", self.at(now) - 1, self.y - 6, 2, high, fill="#888888", layer=1))
        return shapes


class Chart:
    """A chart: where data lie, and its axes. `x` and `y` are functions from data to units of the scene."""

    def __init__(self, id, left, top, width, height, xs, ys, xticks, yticks, xlabel="", ylabel=""):
        """
        Args:
            xs, ys: (least, most) of the data.
            xticks, yticks: {number: its label}.
        """
        self.id, self.left, self.top, self.width, self.height = id, left, top, width, height
        self.xs, self.ys, self.xticks, self.yticks, self.xlabel, self.ylabel = xs, ys, xticks, yticks, xlabel, ylabel

    def x(self, value):
        least, most = self.xs
        return self.left + self.width * (value - least) / (most - least)

    def y(self, value):
        least, most = self.ys
        return self.top + self.height - self.height * (value - least) / (most - least)

    def axes(self):
        """Its axes, with faint lines at the ticks."""
        bottom, right = self.top + self.height, self.left + self.width
        shapes = [path(f"{self.id} axis", [[self.left, self.top], [self.left, bottom], [right, bottom]], width=1.5)]
        for value, label in self.xticks.items():
            shapes.append(words(f"{self.id} x {label}", self.x(value), bottom + 13, label, "middle", size=13))
        for value, label in self.yticks.items():
            y = self.y(value)
            shapes.append(words(f"{self.id} y {label}", self.left - 6, y, label, "end", size=13))
            shapes.append(path(f"{self.id} grid {label}", [[self.left, y], [right, y]], opacity=0.25, layer=-1))
        if self.xlabel:
            shapes.append(words(f"{self.id} xlabel", right, bottom + 32, self.xlabel, "end", size=14))
        if self.ylabel:
            shapes.append(words(f"{self.id} ylabel", self.left, self.top - 14, self.ylabel, size=14))
        return shapes

    def curve(self, id, data, **more):
        """A line through `data`, [(x, y), …]; keywords as for `box`."""
        return path(id, [[self.x(x), self.y(y)] for x, y in data], **{"width": 2.5, **more})


def ticks(begin, end, most=6):
    """Round numbers from `begin` to `end`, at most `most` steps apart, as stage.js finds them."""
    step = 1e-9
    for factor in (2, 2.5, 2) * 20:  # 1, 2, 5, 10, 20 …
        if (end - begin) / step <= most:
            break
        step *= factor
    first, last = math.ceil(begin / step), math.floor(end / step + 1e-9)
    return [round(step * number, 9) for number in range(first, last + 1)]


def finished(shape, positions, decimals=1):
    """A shape as the browser gets it: numbers short, words in a colour that shows on the fill.

    positions: A function from {control: value} to positions of all controls (see `Stage`).
    decimals: Of all numbers.
    """
    done = {key: _short(value, decimals) for key, value in shape.items()
            if key not in ("id", "drag") and value is not None}
    if "fill" in done and "text" in done:
        done.setdefault("ink", ink(done["fill"]))
    if "click" in done:
        done["click"] = positions(shape["click"])
    if shape.get("drag"):
        control, places, *texts = shape["drag"]
        done["drag"] = {"control": control, "places": _short(places, decimals)}
        if texts:
            done["drag"]["texts"] = texts[0]
    return done


def _short(value, decimals):
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, decimals)
    if isinstance(value, (list, tuple)):
        return [_short(one, decimals) for one in value]
    if isinstance(value, dict):
        return {key: _short(one, decimals) for key, one in value.items()}
    return value


@lru_cache
def ink(fill):
    """Black or white, whichever shows better on a colour such as "#264bfb" (WCAG 2's relative luminance)."""
    tones = [int(fill[place:place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [tone / 12.92 if tone <= 0.04045 else ((tone + 0.055) / 1.055) ** 2.4 for tone in tones]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#111111" if luminance > 0.18 else "#ffffff"
