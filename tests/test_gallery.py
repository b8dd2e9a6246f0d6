"""The gallery: every explorer, its code hidden, a question and its lesson; large type, by keyboard."""

import re

import nbformat
import pytest

from tests.browser import (
    NEEDS_CHROMIUM,
    SHOWS,
    chromium,
    jupyterlab,
    made_here,
    open_notebook,
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
    store(book, tmp_path / "gallery.ipynb")
    assert (tmp_path / "gallery.ipynb").read_bytes() == GALLERY.read_bytes(), "run tools/execute.py --normalise"


@pytest.mark.long
@NEEDS_CHROMIUM
def test_a_page_of_the_screen_for_each_explorer_before_they_have_run(book, tmp_path):
    """At 1280 × 720, by keys: the first cells have run; the explorers play what is stored."""
    numbers = [number for number, cell in enumerate(book.cells) if SHOWS.search(cell.source)]
    with jupyterlab(tmp_path) as lab, chromium() as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        open_notebook(page, lab, "gallery.ipynb")
        page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
        for _ in range(3):  # the title, and the two cells at the beginning
            page.evaluate("jupyterapp.commands.execute('notebook:run-cell-and-select-next')")
        page.get_by_text("PageDown and PageUp turn the pages, Escape ends.").wait_for(timeout=120_000)
        page.locator(".jp-Notebook").focus()
        page.keyboard.press("PageDown")
        for number in numbers:
            page.keyboard.press("PageDown")
            assert eventually(lambda: seen(page) == [number - 1, number], 10)  # noqa: B023 - used at once
            looks_large(page, page.locator(f".jp-CodeCell[data-windowed-list-index='{number}']"))
        page.keyboard.press("PageUp")
        assert seen(page) == [numbers[-2] - 1, numbers[-2]]
        page.keyboard.press("Escape")
        page.locator(".presented").wait_for(state="detached")
        assert not page.errors


def seen(page):
    cells = page.locator(".jp-Cell:visible").all()
    return [int(cell.get_attribute("data-windowed-list-index")) for cell in cells]


def looks_large(page, cell):
    """The picture fills the height, all of it is on the screen, words of 16 units have 17 pixels, and Step steps."""
    stage, picture = cell.locator(".stage").first, cell.locator(".stage svg").first
    picture.wait_for(timeout=60_000)
    page.wait_for_function("document.querySelector('.jp-WindowedPanel-outer').scrollTop == 0")
    name = stage.locator(".title").inner_text()
    box, side = picture.bounding_box(), stage.locator(".said").bounding_box()
    assert box["y"] + box["height"] <= 720 and side["y"] + side["height"] <= 720, name
    assert box["width"] >= 790 or box["height"] >= 540, f"{name}: {box}"
    scale = box["width"] / float(picture.get_attribute("viewBox").split()[2])
    assert 16 * scale >= 17, f"{name}: {16 * scale:.1f} px"
    for label in stage.locator(":is(button, label):visible").all():
        assert label.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 18, label.inner_text()
    step = stage.get_by_role("button", name="Step", exact=True)
    if step.is_visible():
        before = stage.locator(".time").input_value()
        step.click() if before == "0" else stage.get_by_role("button", name="Back", exact=True).click()
        assert stage.locator(".time").input_value() != before, name
