"""JupyterLab in a real browser, in little: live lines, a panel that launches ranks, explorers by keyboard.

One notebook holds it all, for browsers and kernels take long to start. test_browser_lessons.py runs the
lessons, and test_widgets_browser.py all explorers.
"""

import platform
import re

import nbformat
import pytest

from tests.browser import (
    EXPLORERS,
    NEEDS_CHROMIUM,
    busy,
    chromium,
    jupyterlab,
    open_and_start,
    open_notebook,
    raised,
    run_cell,
    write_notebook,
)
from tests.conftest import ROOT, eventually
from tools.execute import KERNEL

pytestmark = NEEDS_CHROMIUM
LIVE = """import time
from pathlib import Path

from helpers import launch

def work():
    print("I have begun", flush=True)
    while not Path("seen").exists():
        time.sleep(0.05)
    print("I have ended")

launch(work, nprocs=2, timeout=240)"""
FEW = [EXPLORERS[name] for name in ("ring", "start methods")]
#: An explorer that stores one number of 500, and asks for the others.
ASKS = """import helpers.widgets.stage as s
from helpers.widgets.shapes import words

s.Stage("asks", "Asks.", lambda n: {"size": [90, 90], "frames": [
    {"title": f"{n} now", "shapes": [words("n", 9, 9, str(n))]}]}, {"n": s.slider("n", 0, range(500))}, "?", room=0)"""
#: The kernel of the notebook in front, in JavaScript.
KERNEL_THERE = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
QUESTION = """from helpers.exercises import predict
predict("hello_lines")"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with jupyterlab(tmp_path_factory.mktemp("lab"), windowingMode="none") as lab:
        yield lab


@pytest.fixture(scope="module")
def page():
    with chromium() as page:
        yield page


@pytest.fixture(scope="module")
def started(page, lab):
    """The page with a notebook whose cells run: lesson 00's panel, the explorers, live lines, a question."""
    lesson = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    panel, = (cell.source for cell in lesson.cells if "\nlaunch_panel(" in f"\n{cell.source}")
    write_notebook(lab, "all.ipynb", f"together = None\n{panel}", *FEW, ASKS, LIVE, QUESTION)
    open_and_start(page, lab, "all.ipynb")
    return page


@pytest.fixture
def ran(started, lab):
    """When its cells have run: a function from a cell's number to its locator."""
    (lab.folder / "seen").touch()
    assert eventually(lambda: not busy(started), 300), f"still running: {busy(started)}"
    yield lambda number: started.locator(f".jp-CodeCell[data-windowed-list-index='{number}']")
    assert not started.errors


def test_opening_and_saving_a_lesson_leaves_its_file_as_it_is(page, lab):
    """Under the Python of the stored `language_info`; another one writes its version there."""
    lesson = lab.folder / "00_start_here.ipynb"
    stored = lesson.read_text(encoding="utf-8")
    stored = stored.replace(KERNEL["language_info"]["version"], platform.python_version())
    lesson.write_text(stored, encoding="utf-8")
    open_notebook(page, lab, lesson.name)
    page.evaluate("""async () => {
        const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
        await Promise.all([kernel.info, kernel.spec]);  // what JupyterLab writes into the notebook
        await jupyterapp.commands.execute('docmanager:save');
    }""")
    assert lesson.read_text(encoding="utf-8") == stored


def test_lines_appear_while_ranks_run(started, lab):
    started.wait_for_selector(".jp-OutputArea-output:has-text('[1] I have begun')", timeout=240_000)
    (lab.folder / "seen").touch()

    def final():
        """The live lines, as they came, have given way to those of each rank in turn."""
        text = "".join(started.locator(".jp-OutputArea-output").all_inner_texts())
        lines = [rf"\[{rank}] I have {done}" for rank in (0, 1) for done in ("begun", "ended")]
        return re.search(r"\s+".join(lines), text) and text.count("[0] I have begun") == 1

    assert eventually(final, 120)
    assert not raised(started)


def test_the_panel_of_lesson_00_launches_ranks(page, ran):
    panel = ran(0)
    button = panel.locator("button:has(i.fa-play)")
    panel.get_by_label("Arguments").fill("--epochs 2")
    panel.get_by_label("Ranks").press("ArrowUp")  # from 2 ranks to 3
    button.click()
    panel.get_by_text("3 ranks finished").wait_for(timeout=240_000)
    boxes = panel.locator("[role=status] + div pre").all_inner_texts()
    assert [re.search(r"rank (\d) trained on 479", box)[1] for box in boxes] == ["0", "1", "2"]
    assert "3 ranks" in panel.locator(".stage svg").get_attribute("aria-label")
    assert page.evaluate("document.activeElement.innerText").strip() == "Run", "the focus stays"


@pytest.mark.parametrize("number", range(1, 1 + len(FEW)))
def test_an_explorer_answers_the_keyboard(ran, number):
    """JupyterLab has keys of its own; an explorer's slider keeps its arrow keys."""
    stage = ran(number).locator(".stage")
    before, time = stage.locator(".title").inner_text(), stage.locator(".time")
    time.press("ArrowRight")
    assert time.input_value() == "1" and stage.locator(".title").inner_text() != before


def test_an_explorer_plays_while_a_cell_runs_and_when_its_kernel_is_new(page, ran):
    """What is not stored needs the cell's own kernel: the explorer says so."""
    ring, asks = ran(1).locator(".stage"), ran(1 + len(FEW)).locator(".stage")
    number = asks.locator(".controls input")
    number.press("ArrowRight")
    asks.get_by_text("1 now").wait_for(timeout=60_000)
    page.evaluate(f"() => {{ {KERNEL_THERE}.requestExecute({{code: 'import time; time.sleep(3)'}}); }}")
    ring.get_by_role("button", name="Reset", exact=True).click()
    ring.get_by_role("button", name="Step", exact=True).click()
    assert ring.locator(".title").inner_text().startswith("Step 1")

    page.evaluate(f"{KERNEL_THERE}.restart()")
    ring.get_by_role("button", name="Step", exact=True).click()
    assert ring.locator(".title").inner_text().startswith("Step 2")
    number.press("ArrowRight")
    asks.get_by_text("If nothing runs, run this cell to change it.").wait_for(timeout=20_000)
    number.press("ArrowLeft")
    assert asks.locator(".title").inner_text() == "1 now", "it has been there"
    assert not asks.locator(".hint").is_visible()


def dies(page):
    """Have the kernel kill itself."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    page.evaluate(f"() => {{ {KERNEL_THERE}.requestExecute({{code: {code!r}}}); }}")
    page.locator(".jp-Dialog .jp-mod-accept").click()  # JupyterLab says that it died


@pytest.mark.parametrize("ends", [
    lambda page: page.evaluate(f"{KERNEL_THERE}.restart()"),
    pytest.param(dies, marks=pytest.mark.long),
], ids=["restarted", "died"])
def test_with_a_new_kernel_bets_and_panels_say_which_cell_to_run_and_a_bet_is_there_again(page, ran, ends):
    panel, ring, question = ran(0), ran(1).locator(".stage"), ran(len(FEW) + 3)
    run_cell(page, len(FEW) + 3)
    question.get_by_role("button", name="B) eight").click()
    question.get_by_text("Your bet: eight").wait_for()
    line = question.get_by_text("run the lesson's first cells, then this one")
    assert not line.is_visible()

    ends(page)
    line.wait_for()
    panel.get_by_text("Run this cell again to use the panel").wait_for()
    ring.get_by_role("button", name="Reset", exact=True).click()
    ring.get_by_role("button", name="Step", exact=True).click()
    assert ring.locator(".title").inner_text().startswith("Step 1")

    run_cell(page, len(FEW) + 3)
    line.wait_for(state="hidden")
    question.get_by_text("Your bet: eight").wait_for()
    question.get_by_role("button", name="A) two").click()
    assert question.get_by_text("Your bet: eight").is_visible(), "the first bet counts"


@pytest.mark.long
def test_a_notebook_that_was_saved_shows_its_pictures_and_questions_on_another_day(page, ran, lab):
    """Its kernel is gone, and so are the widgets: ipywidgets would show an error in their places."""
    page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    assert eventually(lambda: "widget-view" in (lab.folder / "all.ipynb").read_text(), 30)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    open_notebook(page, lab, "all.ipynb")
    for number in range(1, 1 + len(FEW)):
        stage = ran(number).locator(".stage")
        stage.get_by_role("button", name="Step", exact=True).click()
        assert stage.locator(".time").input_value() == "1", "it plays what is stored"
    question = ran(len(FEW) + 3)
    question.get_by_text("eight").wait_for()
    question.get_by_text("Run this cell to bet, or to see your bet again.").wait_for()
    ran(0).get_by_text("Run this cell: it brings the buttons").wait_for()
    assert ran(0).locator(".stage svg").count() == 1
    assert not page.get_by_text("Error displaying widget").count()
    page.errors[:] = [error for error in page.errors if "model not found" not in error]
