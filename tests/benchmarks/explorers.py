"""How long an explorer takes from a key to its next picture, in JupyterLab in a real browser: see README.md.

Run it as a program; it uses the fixtures of tests/test_browser.py.
"""

import statistics
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.test_browser import EXPLORERS, LOOK, lab, open_and_run_all, page, scroll_to  # noqa: F401

PRESSES = 20

# Counts from the key's own event to the moment at which the new picture has been decoded.
WATCH = """(picture) => {
    window.answers = [];
    let pressed = 0;
    document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(() => {
        const image = picture.querySelector('img'), began = pressed;
        if (image && began) image.decode().then(() => window.answers.push(performance.now() - began));
    }).observe(picture, {childList: true, subtree: true});
}"""


@pytest.mark.parametrize("name", EXPLORERS)
def test_measure(page, lab, name):  # noqa: F811
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LOOK + EXPLORERS[name])],
                                    metadata={"kernelspec": kernel})
    nbformat.write(book, lab[2] / "measured.ipynb")
    open_and_run_all(page, lab, "measured.ipynb")
    cell = scroll_to(page, ".jp-CodeCell")
    picture = cell.locator(".widget-html-content:has(img)").first
    picture.wait_for(timeout=30_000)
    picture.evaluate(WATCH)
    controls = cell.locator("[role=slider], input[type=checkbox]")
    controls.first.focus()
    slider = controls.first.get_attribute("role") == "slider"
    for press in range(PRESSES):
        page.keyboard.press(("ArrowRight", "ArrowLeft")[press % 2] if slider else "Space")
        page.wait_for_timeout(300)
    answers = sorted(page.evaluate("window.answers"))
    assert answers, "the picture never changed"
    print(f"{name:14} {len(answers):3} answers   p50 {statistics.median(answers):5.0f} ms   "
          f"p95 {answers[int(0.95 * (len(answers) - 1))]:5.0f} ms")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-s", "-o", "addopts=", "-p", "no:cacheprovider"]))
