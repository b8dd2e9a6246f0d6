"""Talks: each lesson's slides stand on its own cells and questions, and all that is on one is to be seen."""

import re

import pytest

from tests.browser import NEEDS_CHROMIUM, chromium
from tests.conftest import LESSONS
from tools.talk import exporter, talk

every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


@every_lesson
def test_a_talk_has_few_titled_slides_from_its_lesson(path):
    cells = talk(path).cells  # a cell or question that is gone raises
    kinds = {kind: [cell.source for cell in cells if cell.metadata["slideshow"]["slide_type"] == kind]
             for kind in ("slide", "fragment", "notes")}
    titles = kinds["slide"]
    assert 5 <= len(titles) <= 16
    assert all(re.fullmatch(r"# .{4,70}|## .{4,52}", title) for title in titles), "a title fits into one line"
    assert kinds["fragment"], "it asks"
    assert any("*They say*" in notes for notes in kinds["notes"])
    for cell in cells:
        if cell.cell_type == "code" and cell.metadata.get("jupyter"):
            assert cell.outputs, "a result that is not there"


OUTSIDE = """() => {
    const slide = document.querySelector('.present .present');
    const {left, top, width} = slide.getBoundingClientRect();
    const zoom = width / 1280, wrong = [];
    for (const tag of slide.querySelectorAll('*')) {
        const box = tag.getBoundingClientRect(), size = parseFloat(getComputedStyle(tag).fontSize);
        const right = (box.right - left) / zoom, bottom = (box.bottom - top) / zoom;
        if (box.width && (bottom > 690 || right > 1220)) wrong.push('outside');
        if (tag.innerText && size < (tag.closest('pre, code') ? 18 : 20)) wrong.push('too small');
        if (tag.tagName == 'IMG' && box.height / zoom < 150) wrong.push('a flat picture');
    }
    return wrong.slice(0, 1).map(what => slide.querySelector('h1, h2').innerText + ': ' + what);
}"""


@pytest.mark.long
@NEEDS_CHROMIUM
def test_all_of_every_slide_is_seen(tmp_path):
    pytest.importorskip("sphinx_revealjs", reason="not installed: pip install -r docs/requirements.txt")
    made = exporter()
    with chromium() as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        for path in LESSONS:
            body, _ = made.from_notebook_node(talk(path), {"metadata": {"name": path.stem}})
            (tmp_path / path.name).with_suffix(".html").write_text(body, encoding="utf-8")
            page.goto((tmp_path / path.name).with_suffix(".html").as_uri())
            page.wait_for_function("Reveal.isReady()")
            wrong = []
            for number in range(page.evaluate("Reveal.getTotalSlides()")):
                page.evaluate(f"Reveal.slide({number}, 0, 9)")  # with its fragments
                wrong += page.evaluate(OUTSIDE)
            assert not wrong, path.stem
        page.keyboard.press("d")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 17, 17)"
        assert all(url.startswith(("file:", "data:")) for url in requests), "talks need no network"
        assert not page.errors
