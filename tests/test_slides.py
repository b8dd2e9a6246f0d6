"""Slides: which cells share one, and in a real browser that all that is on a slide of any lesson is to be seen."""

import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tests.browser import CHROMIUM, chromium
from tests.conftest import LESSONS, ROOT
from tools.slides import mark

BODY, CODE = 18, 16  # pixels of 720 that letters must have to be read in the last row


def kinds(*cells):
    mark(cells)
    return [cell.metadata["slideshow"]["slide_type"] for cell in cells]


def printed(lines):
    return [new_output("stream", text="line\n" * lines)]


def test_headings_begin_slides_and_text_keeps_its_code():
    assert kinds(new_markdown_cell("# Why?"), new_markdown_cell("You can"), new_code_cell("1 + 1", outputs=printed(1)),
                 new_markdown_cell("## Then"), new_markdown_cell("### And"), new_code_cell("# no heading\n2"),
                 ) == ["slide", "-", "-", "slide", "subslide", "-"]


def test_what_does_not_fit_goes_down_and_takes_its_text_along():
    first, second, third = (new_code_cell("\n".join(["line"] * 15)) for _ in range(3))
    assert kinds(new_markdown_cell("## Long"), first, new_markdown_cell("Text"), second, third) == [
        "slide", "-", "subslide", "-", "subslide"]


def test_output_that_fits_on_no_slide_with_its_code_begins_one():
    cell = new_code_cell("\n".join(["line"] * 15), outputs=printed(20))
    assert kinds(new_markdown_cell("## Long"), cell, new_code_cell("1")) == ["slide", "-", "-"]
    assert cell.metadata["slideshow"]["output"] == "subslide"


def test_imports_are_skipped_and_a_question_ends_its_slide():
    question = new_code_cell("predict(…)", metadata={"jupyter": {"source_hidden": True}}, outputs=[
        new_output("display_data", {"text/html": "<p>Predict", "text/plain": "Predict"})])
    assert kinds(new_markdown_cell("# Title"), new_code_cell("import torch\nfrom torch import nn\n\nuse()"), question,
                 new_code_cell("from helpers import launch\n\nlaunch(main)")) == ["slide", "skip", "-", "subslide"]


OVERFLOWING = """([body, code]) => Reveal.getSlides().flatMap(slide => {
    for (const box of [slide.parentElement, slide]) { box.hidden = false; box.style.display = 'block'; }
    for (const details of slide.querySelectorAll('details')) details.open = true;
    const wrong = [], {left, top} = slide.getBoundingClientRect();
    for (const tag of slide.querySelectorAll('*')) {
        const box = tag.getBoundingClientRect(), size = parseFloat(getComputedStyle(tag).fontSize);
        if (box.width && (box.bottom - top > 720 || box.right - left > 1280 || tag.scrollWidth > tag.clientWidth + 1
            && tag.clientWidth)) wrong.push(`${tag.tagName} ends at ${box.right - left}, ${box.bottom - top}`);
        if (tag.innerText && size < (tag.closest('pre, code') ? code : body)) wrong.push(`letters of ${size} pixels`);
    }
    slide.style.display = 'none';
    return wrong.slice(0, 1).map(what => what + ': ' + slide.innerText.slice(0, 80));
})"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt-get install chromium)")
def test_no_slide_of_any_lesson_overflows(tmp_path):
    pytest.importorskip("sphinx_revealjs", reason="not installed: pip install -r docs/requirements.txt")
    subprocess.run([sys.executable, "-m", "nbconvert", "--to", "slides", "--config", ROOT / "docs/slides/config.py",
                    "--output-dir", tmp_path, *LESSONS], check=True, timeout=600, cwd=ROOT)
    with chromium() as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        for path in LESSONS:
            page.goto((tmp_path / f"{path.stem}.slides.html").as_uri())
            page.wait_for_function("Reveal.isReady()")
            title = page.locator("section.present h1").bounding_box()
            assert title["height"] > 30 and 0 <= title["y"] < 720, "it is seen, and not scaled away"
            assert not page.evaluate(OVERFLOWING, [BODY, CODE]), path.name
            seen = [cell for cell in nbformat.read(path, as_version=4).cells
                    if cell.metadata["slideshow"]["slide_type"] != "skip"]
            pictures = sum("image/png" in output.get("data", {}) for cell in seen for output in cell.get("outputs", ()))
            assert page.locator(".slides img").count() == pictures > 0
            page.keyboard.press("ArrowRight")
            assert page.evaluate("Reveal.getIndices().h") == 1
        assert all(url.startswith(("file:", "data:")) for url in requests), "slides need no network"
        assert not page.errors
