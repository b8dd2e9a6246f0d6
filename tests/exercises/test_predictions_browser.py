"""Predictions in JupyterLab: answered by keyboard, kept, shown to another kernel; progress leads back."""

import json

import pytest

from helpers.exercises.catalogue import questions
from tests.browser import NEEDS_CHROMIUM, chromium, jupyterlab, open_and_start, write_notebook
from tests.conftest import eventually

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]
LESSON = "03_data_loading"
IN_VIEW = """([path, id]) => {
    const {context, content} = jupyterapp.shell.currentWidget;
    const cell = content.widgets.find(cell => cell.model.id === id);
    const top = cell?.isAttached ? cell.node.getBoundingClientRect().top : -1;
    return context.path === path && 0 <= top && top < innerHeight;
}"""


def test_a_bet_is_kept_and_the_progress_leads_back_to_the_question(tmp_path):
    cell, quiz = list(questions()[LESSON].items())[-1]
    cells = ["from helpers.exercises import bet, predict, progress", f"predict({quiz.key!r})",
             f"bet({quiz.key!r})\nprint('the result')", "progress()"]
    wrong = next(number for number, (_, option) in enumerate(quiz.shuffled()) if option != quiz.answer)
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
        page.get_by_text("Your bet:").wait_for(timeout=60_000)
        assert page.get_by_text("Your bet was:").count() == 0, "no verdict yet"
        focused = options.nth(wrong).evaluate("e => e === document.activeElement")
        assert focused, "Shift+Enter goes on from here"
        kept, = json.loads((tmp_path / "progress.json").read_text()).values()
        assert kept["first"] == quiz.shuffled()[wrong][1]

        open_and_start(page, lab, "second.ipynb")
        page.get_by_text("You predicted 0 of 1. Your latest surprises:").wait_for(timeout=120_000)
        assert page.get_by_text("Your bet was:").count() == 1, "the verdict stands below the result"
        page.locator(f"a[href*='cell-id={cell}']").click()
        assert eventually(lambda: page.evaluate(IN_VIEW, [f"{LESSON}.ipynb", cell]), 120), "the link's cell"
        assert not page.errors
