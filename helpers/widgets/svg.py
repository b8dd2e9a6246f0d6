"""The few things that all SVG pictures share."""

import base64
import html
import re

#: Ranks' colours: the palette of Okabe and Ito (https://jfly.uni-koeln.de/color/), told apart by colour-blind readers.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#000000"]

#: What a rank does, in every picture of a trace or of a model of one; the names are those of `helpers.traces`.
ACTIVITIES = {"compute": "#0072b2", "communication": "#d55e00", "waiting": "#f0c419"}


def svg(width, height, parts, title):
    """An SVG picture of `width` by `height` pixels, dark on white in every theme, `title` for screen readers."""
    title = html.escape(title, quote=True)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="0 0 {width} {height}" '
            f'width="{width}" style="max-width: 100%; background: #fff" font-family="sans-serif" font-size="16" '
            f'fill="#111"><title>{title}</title><rect width="{width}" height="{height}" fill="#fff"/>'
            f'{"".join(parts)}</svg>')


def ticks(left, right, y, label):
    """Five texts along an axis from x `left` to `right`: `label(share)` at each quarter, its share from 0 to 1."""
    anchors = ("start", "middle", "middle", "middle", "end")
    return [f'<text x="{left + tick / 4 * (right - left):.0f}" y="{y}" font-size="14" text-anchor="{anchor}">'
            f"{label(tick / 4)}</text>" for tick, anchor in enumerate(anchors)]


def picture_of(drawing):
    """HTML in which an SVG is an `<img>`: notebooks that are not trusted yet, such as a fresh clone's, show no SVG."""

    def image(match):
        label = re.search(r'aria-label="([^"]*)"', match[0])
        data = base64.b64encode(match[0].encode()).decode()
        return f'<img alt="{label[1] if label else ""}" src="data:image/svg+xml;base64,{data}">'

    return re.sub(r"<svg.*?</svg>", image, drawing, flags=re.DOTALL)
