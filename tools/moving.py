"""Draw explorers for where no kernel runs: one SVG each, with a group for every step.

    python tools/moving.py

writes docs/moving/*.svg, through which docs/static/steps.js goes on the site, and docs/ring_loop.svg for the
README, which moves by itself, but not for a reader who wants no motion.
"""

import html
import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]

from helpers.figures import alt  # noqa: E402
from lessons.context_and_experts.explorer import pairs_explorer  # noqa: E402
from lessons.data_loading.pipeline_explorer import pipeline_explorer  # noqa: E402
from lessons.distributed_data_parallel.bucket_explorer import bucket_explorer  # noqa: E402
from lessons.distributed_data_parallel.ring_explorer import ring_explorer  # noqa: E402
from lessons.model_parallel.schedule_explorer import schedule_explorer  # noqa: E402
from lessons.sharding.memory_explorer import memory_explorer  # noqa: E402

EXPLORERS = (ring_explorer, bucket_explorer, pipeline_explorer, memory_explorer, schedule_explorer,
             pairs_explorer)
SVG = "http://www.w3.org/2000/svg"
FONT = "text {font-family: 'DejaVu Sans', Verdana, sans-serif; white-space: pre}"
WORDY = rf' xmlns="{SVG}"| transform="rotate\(-0 [^"]*"|font-family: [^;]*; '  # that, or nothing
#: Of the loop: how long a step is seen; and how they take turns, but for a reader who wants no motion.
SECONDS = 1.6
LOOP = """
@keyframes turn {{0%, {share:.2f}% {{visibility: visible}} {share:.2f}1%, 100% {{visibility: hidden}}}}
.step {{visibility: hidden; animation: turn {seconds:.1f}s step-end infinite}}
@media (prefers-reduced-motion: reduce) {{.step {{animation: none}} .opens {{visibility: visible}}}}
"""
LOOK = {"svg.fonttype": "none", "svg.hashsalt": "course", "figure.constrained_layout.use": False}
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def parts(figure):
    """The pieces of SVG that a figure consists of, in the order in which they are drawn; and its view box."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    found = []
    for one in [*root.find(f"{{{SVG}}}g"), *root.findall(f"{{{SVG}}}defs")]:
        found += list(one) if one.get("id", "").startswith("axes") else [one]
    for group in (group for one in found for group in one.iter(f"{{{SVG}}}g")):
        group.attrib.pop("id", None)  # they count, and so differ between steps
    said = (re.sub(r"\s*\n\s*", " ", ElementTree.tostring(one, encoding="unicode")) for one in found)
    return [re.sub(r"(\.\d\d)\d+", r"\1", re.sub(WORDY, "", one)) for one in said], root.get("viewBox")


def moving(explorer, loop=False):
    """An explorer as SVG: the step it opens with is seen, or all in turn; what all share is drawn once."""
    slider, steps = explorer.playing, []
    opening = (slider.value - slider.min) // slider.step
    for value in range(slider.min, slider.max + 1, slider.step):
        slider.value = value
        drawn, box = parts(explorer.figure())
        steps.append((drawn, alt(explorer.figure())))
    shared, groups = [one for one in steps[0][0] if all(one in drawn for drawn, _ in steps)], []
    for number, (drawn, words) in enumerate(steps):
        opens, own = number == opening, "".join(one for one in drawn if one not in shared)
        style = f"animation-delay: {SECONDS * number:.1f}s" if loop else "" if opens else "display: none"
        groups.append(f'<g class="step{" opens" * opens}" style="{style}">'
                      f'<desc>{html.escape(words)}</desc>{own}</g>')
    look = FONT + LOOP.format(share=100 / len(steps), seconds=SECONDS * len(steps)) * loop
    return (f'<svg xmlns="{SVG}" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" role="img" '
            f'aria-label="{html.escape(explorer.description)}">'
            f'<style>{look}</style>{"".join(shared + groups)}</svg>\n')


def main():
    with plt.style.context(["helpers.course", LOOK]):
        for make in EXPLORERS:
            (ROOT / "docs" / "moving" / f"{make.__name__}.svg").write_text(moving(make()), encoding="utf-8")
        (ROOT / "docs" / "ring_loop.svg").write_text(moving(ring_explorer(), loop=True), encoding="utf-8")


if __name__ == "__main__":
    main()
