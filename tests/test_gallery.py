"""The gallery: every explorer, its code hidden, a question and its lesson; large type, by keyboard."""

import re

import nbformat
import pytest

from tests.browser import (
    NEEDS_CHROMIUM,
    SHOWS,
    chromium,
    jupyterlab,
    key_presses,
    made_here,
    open_and_start,
)
from tests.conftest import ROOT, eventually
from tests.test_notebooks import (  # noqa: F401 - what holds of a lesson's file holds of this one
    test_every_cell_was_executed_in_order_and_only_marked_ones_raised,
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
        text = (ROOT / "notebooks" / lesson).read_text(encoding="utf-8")
        assert f"{name}(" in text, f"{name} is not in {lesson}"


def test_code_is_hidden_and_stays_so(book, tmp_path):
    for cell in book.cells:
        assert cell.cell_type == "markdown" or cell.metadata["jupyter"]["source_hidden"], cell.source
    store(book, tmp_path / "book.ipynb")
    assert (tmp_path / "book.ipynb").read_bytes() == GALLERY.read_bytes(), "run tools/execute.py --normalise"


@pytest.mark.long
@NEEDS_CHROMIUM
def test_it_is_presented_by_keys_a_question_and_then_its_explorer_in_large_type(book, tmp_path):
    """At 1280 × 720: each explorer fits the screen together with its question, and answers a key."""
    numbers = [number for number, cell in enumerate(book.cells) if SHOWS.search(cell.source)]
    with jupyterlab(tmp_path) as lab, chromium() as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        open_and_start(page, lab, "gallery.ipynb")
        page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
        cell = page.locator(f".jp-CodeCell[data-windowed-list-index='{numbers[-1]}']")
        cell.locator(".picture img").wait_for(timeout=300_000)  # all have run
        page.locator(".jp-Notebook").focus()
        page.keyboard.press("PageDown")
        page.keyboard.press("f")
        for number in numbers:
            page.keyboard.press("PageDown")
            assert seen(page) == [number - 1]
            page.keyboard.press("PageDown")
            assert eventually(lambda: seen(page) == [number - 1, number], 10)  # noqa: B023 - used at once
            looks_large(page, page.locator(f".jp-CodeCell[data-windowed-list-index='{number}']"))
        page.keyboard.press("PageUp")
        assert seen(page) == [numbers[-1] - 1]
        page.keyboard.press("Escape")
        page.locator(".on-stage").wait_for(state="detached")
        assert not page.errors


def seen(page):
    cells = page.locator(".jp-Cell:visible").all()
    return [int(cell.get_attribute("data-windowed-list-index")) for cell in cells]


def looks_large(page, cell):
    picture = cell.locator(".picture img, .panel img").first
    picture.wait_for(timeout=60_000)
    box = picture.bounding_box()
    page.wait_for_function("document.querySelector('.jp-WindowedPanel-outer').scrollTop == 0")
    assert box["y"] + box["height"] <= 720 and (box["width"] >= 790 or cell.locator(".panel").count())
    assert all(button.bounding_box()["y"] <= 700 for button in cell.get_by_role("slider").all())
    for label in cell.locator(".explorer :is(.widget-label, .widget-toggle-button):visible").all():
        assert label.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 18, label.inner_text()
    if cell.locator("[role=slider]").count():
        before = picture.get_attribute("src")
        key_presses(cell)[0]()
        assert eventually(lambda: picture.get_attribute("src") != before, 30), picture.get_attribute("alt")
