"""The gallery: every explorer, its code hidden, a question and its lesson; large type, light and dark, by keyboard."""

import base64
import io
import re

import matplotlib.pyplot as plt
import nbformat
import pytest
from PIL import Image

from tests.browser import (
    CHROMIUM,
    SHOWS,
    choose_theme,
    chromium,
    jupyterlab,
    key_presses,
    made_here,
    open_and_start,
    scroll_to,
)
from tests.conftest import ROOT, eventually
from tests.test_notebooks import (  # noqa: F401 - what holds of a lesson's file holds of this one
    test_every_cell_was_executed_in_order_and_only_marked_ones_raised,
    test_links_between_lessons_lead_somewhere_or_to_a_lesson_to_come,
    test_outputs_and_metadata_name_no_machine,
    test_pictures_show_where_a_notebook_is_only_read,
)
from tools.execute import store

GALLERY = ROOT / "notebooks" / "gallery.ipynb"


@pytest.fixture
def book():
    return nbformat.read(GALLERY, as_version=4)


def test_every_explorer_is_there_with_a_question_and_its_lesson(book):
    shown = {}
    for text, code in zip(book.cells, book.cells[1:], strict=False):
        if code.cell_type == "code" and (names := SHOWS.findall(code.source)):
            assert re.match(r"## .+\n\n\*\*Ask:\*\* \*.+\?\*\n\n\*\*Move:\*\* ", text.source)
            shown[names[-1]] = re.search(r"\[(\d\d)\]\((\1_\w+\.ipynb)\)", text.source)[2]
    assert set(shown) == {"launch_panel", *made_here()}
    for name, lesson in shown.items():
        assert f"{name}(" in (ROOT / "notebooks" / lesson).read_text(encoding="utf-8"), f"{name} is not in {lesson}"


def test_code_is_hidden_and_stays_so(book, tmp_path):
    for cell in book.cells:
        assert cell.cell_type == "markdown" or cell.metadata["jupyter"]["source_hidden"], cell.source
    store(book, tmp_path / "book.ipynb")
    assert (tmp_path / "book.ipynb").read_bytes() == GALLERY.read_bytes(), "run tools/execute.py --normalise"


def test_type_is_large_and_stored_pictures_are_sharp(book):
    with plt.style.context(["helpers.course", "helpers.projector"]):
        assert plt.rcParams["font.size"] / 72 * plt.rcParams["figure.dpi"] >= 20  # pixels
    pictures = [output.data["image/png"] for cell in book.cells for output in cell.get("outputs", ())
                if "image/png" in output.get("data", {})]
    assert len(pictures) == len(book.cells) // 2 - 1
    for picture in pictures:
        assert Image.open(io.BytesIO(base64.b64decode(picture))).width >= 960


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt-get install chromium)")
def test_it_is_legible_from_the_back_row_and_answers_the_keyboard(book, tmp_path):
    """At 1280 × 720, light and dark: sizes in pixels, nothing clipped; a key changes each picture that has a slider."""
    numbers = [number for number, cell in enumerate(book.cells) if SHOWS.search(cell.source)]
    with jupyterlab(tmp_path) as lab, chromium() as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        open_and_start(page, lab, "gallery.ipynb")
        last = scroll_to(page, f".jp-CodeCell[data-windowed-list-index='{numbers[-1]}']")
        last.locator(".widget-html img").first.wait_for(timeout=300_000)  # all have run
        for theme in "Light", "Dark":
            choose_theme(page, theme)
            for number in numbers:
                cell = scroll_to(page, f".jp-CodeCell[data-windowed-list-index='{number}']")
                looks_large(cell, theme)
                answers_a_key(cell)
        assert not page.errors


def looks_large(cell, theme):
    picture = cell.locator(".widget-html img").first
    picture.wait_for(timeout=60_000)
    assert 890 <= picture.bounding_box()["width"] <= 1200 and not cell.locator(".jp-Placeholder:visible").count()
    for label in cell.locator(".widget-label:visible, .widget-toggle-button:visible").all():
        size, clipped = label.evaluate(
            "e => [parseFloat(getComputedStyle(e).fontSize) * e.currentCSSZoom, e.scrollWidth > e.clientWidth + 1]")
        assert size >= 18 and not clipped, label.inner_text()
    assert eventually(lambda: ("invert" in picture.evaluate("image => getComputedStyle(image).filter")) ==
                      (theme == "Dark"), 30)


def answers_a_key(cell):
    picture, sliders = cell.locator(".widget-html img").first, cell.locator("[role=slider]")
    before = picture.get_attribute("src")
    if sliders.count():
        key_presses(cell)[0]()
        assert eventually(lambda: picture.get_attribute("src") != before, 30), picture.get_attribute("alt")
