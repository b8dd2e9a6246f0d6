"""The pictures of README and docs: the ring explorer, which moves by itself; a lesson and its panel in JupyterLab.

    python tools/pictures.py            all of them, into docs/; those in JupyterLab need chromium, and a minute
    python tools/pictures.py ring       docs/ring.svg alone
"""

import contextlib
import html
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]

from helpers.widgets.shapes import SIZE  # noqa: E402 - the path comes first
from helpers.widgets.still import TITLE, definitions, drawn, shapes_of  # noqa: E402
from lessons.distributed_data_parallel.ring_explorer import ring_explorer  # noqa: E402

GLIDE = 0.65  #: seconds for what moves; as long as in stage.js
PAUSE = 2  #: frames' time that the last one stays longer
#: The lesson's cells that the picture shows, by their ids, and the answer that it gives to the exercise.
SHOWN = "predict-unfairly", "run-unfairly"
HIDDEN = "9e2378ca", "c5736c4e", "train-unfairly", "f5c6d5aa"
BET = "0 to 4"
ANSWER = '''def mean_of_ranks(value):
    total = torch.tensor(float(value))
    if dist.get_rank() == 0:
        dist.all_reduce(total)
    return total.item() / dist.get_world_size()

ex.mean_of_ranks.check(mean_of_ranks)'''


def moving(stage):
    """An explorer's first scene as one SVG, which shows its frames in turn; where less motion is wanted, the last one.

    What a message changes, it changes on arrival, as on the stage.
    """
    scene = stage.story["scenes"][stage.stored]
    (width, height), pace, frames = scene["size"], scene["pace"] / 1000, scene["frames"]
    seconds = pace * (len(frames) + PAUSE)
    rules, groups = [], []
    before = {}
    for number, frame in enumerate(frames):
        begin = pace * number
        end = seconds if frame is frames[-1] else begin + pace
        shapes = shapes_of(scene, number)
        arriving = {name: before.get(name, shape) if shape.get("late") else shape for name, shape in shapes.items()}
        for state, since, until in (arriving, begin, begin + GLIDE), (shapes, begin + GLIDE, end):
            style = _turn(rules, since, until, seconds)
            last = " last" if state is shapes and frame is frames[-1] else ""
            groups.append(f'<g class="turn{last}" {style}>{_title(frame)}{_all(state)}</g>')
        for shape in shapes.values():
            if shape.get("passes"):
                style = _turn(rules, begin, begin + GLIDE, seconds, _away(shape))
                groups.append(f'<g class="turn" {style}><g transform="translate(0 {TITLE})">'
                              f'{"".join(drawn(shape))}</g></g>')
        before = shapes
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + TITLE}" width="{width}" '
            f'font-family="system-ui, sans-serif" font-size="{SIZE}" role="img">\n'
            f"<title>{html.escape(stage.description)}</title>\n"
            f"<style>.turn {{visibility: hidden; animation: {seconds:g}s infinite}}\n{chr(10).join(rules)}\n"
            "@media (prefers-reduced-motion: reduce) {.turn {animation: none !important} "
            ".last {visibility: visible}}</style>\n"
            f'{"".join(definitions())}<rect width="100%" height="100%" rx="6" fill="white"/>\n'
            f'{chr(10).join(groups)}\n</svg>\n')


def _turn(rules, begin, end, seconds, away="none"):
    """Add the rule that shows something from `begin` to `end`, in seconds, gliding; return what asks for it.

    away: Where it glides from, as a CSS transform.
    """
    name, since, until = f"turn{len(rules)}", 100 * begin / seconds, 100 * end / seconds
    hidden, seen = "visibility: hidden", "visibility: visible"
    rules.append(f"@keyframes {name} {{0%, {since:.2f}% {{{hidden}}} "
                 f"{since + 0.01:.2f}% {{{seen}; transform: {away}; animation-timing-function: ease-in-out}} "
                 f"{until:.2f}% {{{seen}; transform: none}} {until + 0.01:.2f}%, 100% {{{hidden}}}}}")
    return f'style="animation-name: {name}"'


def _away(shape):
    """From where a message comes, seen from where it arrives."""
    come = shape["from"]
    by = [come.get(axis, shape[axis]) - shape[axis] for axis in "xy"]
    return f"translate({by[0]:g}px, {by[1]:g}px)"


def _title(frame):
    return f'<text x="10" y="20" font-size="14" font-weight="600">{html.escape(frame["title"])}</text>'


def _all(shapes):
    """The shapes that do not pass, as SVG, below the title."""
    still = [shape for shape in sorted(shapes.values(), key=lambda shape: shape.get("layer", 0))
             if not shape.get("passes")]
    parts = [part for shape in still for part in drawn(shape)]
    return f'<g transform="translate(0 {TITLE})">{"".join(parts)}</g>'


@contextlib.contextmanager
def in_jupyterlab(size, *sources):
    """A page of this size, (width, height), with a notebook of these cells; none has run."""
    from tests.browser import chromium, jupyterlab, open_notebook, write_notebook

    with tempfile.TemporaryDirectory() as folder, jupyterlab(Path(folder), windowingMode="none") as lab, \
            chromium() as small:
        viewport = dict(zip(("width", "height"), size, strict=True))
        page = small.context.browser.new_page(viewport=viewport, device_scale_factor=1.6)
        write_notebook(lab, "shown.ipynb", *sources)
        open_notebook(page, lab, "shown.ipynb")
        page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
        yield page


def sources_of_lesson():
    """{cell's id: its source} of lesson 00."""
    (path,) = (ROOT / "notebooks").glob("00_*.ipynb")
    return {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}


def lesson(file):
    """Lesson 00's cells: a wrong bet, the result and the verdict; a wrong answer and its feedback."""
    from tests.browser import run_cell

    sources = sources_of_lesson()
    preparing = "\n".join(sources[name] for name in HIDDEN)
    with in_jupyterlab((960, 2200), preparing, *(sources[name] for name in SHOWN), ANSWER) as page:
        run_cell(page, 0)
        run_cell(page, 1)
        page.get_by_role("button", name=BET).click()
        run_cell(page, 2)
        run_cell(page, 3)
        page.get_by_text("where to look").wait_for(timeout=60_000)
        page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 0")  # which is not in the picture
        cells = page.locator(".jp-Cell").all()
        first, last = cells[1].bounding_box(), cells[3].bounding_box()
        clip = {**first, "height": last["y"] + last["height"] - first["y"]}
        page.screenshot(path=file, clip=clip)


def panel(file):
    """Lesson 00's launch panel, after a run of three ranks."""
    from tests.browser import run_cell

    made, = (source for source in sources_of_lesson().values() if "\nlaunch_panel(" in f"\n{source}")
    with in_jupyterlab((1280, 900), f"together = None\n{made}") as page:
        run_cell(page, 0)
        page.get_by_label("Arguments").fill("--epochs 20")
        page.get_by_label("Ranks").press("ArrowUp")  # from 2 ranks to 3
        page.locator("button:has(i.fa-play)").click()
        page.get_by_text("3 ranks finished").wait_for(timeout=240_000)
        page.wait_for_timeout(1000)  # what glides has arrived
        page.screenshot(path=file)


def main(wanted):
    if not wanted or "ring" in wanted:
        (ROOT / "docs" / "ring.svg").write_text(moving(ring_explorer()), encoding="utf-8")
    if not wanted or "lesson" in wanted:
        lesson(ROOT / "docs" / "lesson.png")
    if not wanted or "panel" in wanted:
        panel(ROOT / "docs" / "launch_panel.png")


if __name__ == "__main__":
    main(sys.argv[1:])
