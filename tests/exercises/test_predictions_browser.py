"""Predictions in JupyterLab: answered by keyboard, kept, shown to another kernel; progress leads to the question."""

import json

import nbformat
import pytest

from helpers.exercises.catalogue import questions
from tests.browser import CHROMIUM, chromium, jupyterlab, open_and_start, write_notebook
from tests.conftest import ROOT, eventually

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")]
LESSON = "03_data_loading"
IN_VIEW = """([path, id]) => {
    const {context, content} = jupyterapp.shell.currentWidget;
    const cell = content.widgets.find(cell => cell.model.id === id);
    const top = cell?.isAttached ? cell.node.getBoundingClientRect().top : -1;
    return context.path === path && 0 <= top && top < innerHeight;
}"""


def test_a_click_is_kept_and_the_progress_leads_back_to_the_question(tmp_path):
    cell, quiz = list(questions()[LESSON].items())[-1]
    book = nbformat.read(ROOT / "notebooks" / f"{LESSON}.ipynb", as_version=4)
    source = next(one.source for one in book.cells if one.id == cell)
    cells = ["from helpers.exercises import predict, progress", source, "progress()"]
    wrong = next(number for number, (option, _) in enumerate(quiz.options) if option != quiz.answer)
    with jupyterlab(tmp_path) as lab, chromium() as page:
        for name in ("first.ipynb", "second.ipynb"):
            write_notebook(lab, name, *cells)
        open_and_start(page, lab, "first.ipynb")
        page.get_by_text("You have predicted nothing yet.").wait_for(timeout=120_000)
        options = page.locator("button.course-option")
        assert options.count() == len(quiz.options)
        options.first.focus()
        for _ in range(wrong):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_text("Your first answer:").wait_for(timeout=60_000)
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
        assert page.locator("[role=status]").all_inner_texts()[0].startswith("✘ No.")
        page.keyboard.press("Tab" if wrong < len(quiz.options) - 1 else "Shift+Tab")
        page.keyboard.press("Space")
        assert eventually(lambda: page.locator("[role=status]").count() == 3, 60), "the others can be opened, too"
        kept, = json.loads((tmp_path / "progress.json").read_text()).values()
        assert kept["first"] == quiz.options[wrong][0]

        open_and_start(page, lab, "second.ipynb")
        page.get_by_text("You predicted 0 of 1. Your surprise:").wait_for(timeout=120_000)
        assert page.get_by_text("Your first answer:").count() == 1
        page.locator(f"a[href*='cell-id={cell}']").click()
        assert eventually(lambda: page.evaluate(IN_VIEW, [f"{LESSON}.ipynb", cell]), 120), "the link leads to the cell"
        assert not page.errors
