"""JupyterLab in a real browser: open a lesson, run all, use its widget by keyboard and mouse, see no error.

COURSE_PICTURES=1 in the environment takes the README's pictures anew on the way.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time

import nbformat
import pytest

from tests.conftest import ROOT, eventually, running

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt-get install chromium)")

# A browser that is cut off from its update servers must not fill the log with that.
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
           "--disable-sync", "--no-first-run"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab, started as the README says, on a copy of the lessons; yields (address, token, folder)."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, mark = secrets.token_hex(16), f"lab-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "jupyter", "lab", "notebooks/00_start_here.ipynb", "--no-browser",
               f"--port={port}", f"--IdentityProvider.token={token}"]
    news = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')  # or a box asks for it, in front of everything
    log = open(folder / "log", "w")
    environment = {**os.environ, "COURSE_TEST_MARK": mark, "JUPYTER_CONFIG_DIR": str(folder / "config"),
                   "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
                   "COURSE_PROGRESS": str(folder / "progress.json")}
    server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)

    def answers():
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        assert eventually(answers, 60), (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}", token, folder / "notebooks"
    finally:
        server.terminate()
        server.wait(30)
        log.close()
        assert eventually(lambda: not running(mark)), "JupyterLab's end leaves nothing behind"


@pytest.fixture
def page(lab):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER)
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        yield page
        browser.close()


def write_notebook(lab, name, source):
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)], metadata={"kernelspec": kernel})
    nbformat.write(book, lab[2] / name)


def open_and_start(page, lab, name):
    address, token, _ = lab
    page.goto(f"{address}/lab/tree/{name}?token={token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)  # before, it would ask for a kernel
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).click()


def open_and_run_all(page, lab, name):
    open_and_start(page, lab, name)

    def finished():
        time.sleep(0.5)  # each look costs the browser, and so the lesson, some of the two cores
        scroll_to_end(page)
        prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        busy = page.evaluate("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status")
        return busy == "idle" and not any("*" in prompt for prompt in prompts)

    assert eventually(finished, 120), "all cells ran"


def scroll_to_end(page):
    """JupyterLab draws only the cells that are in view."""
    page.evaluate("(document.querySelector('.jp-WindowedPanel-outer') || document.body).scrollTop = 1e9")


def scroll_to(page, selector):
    """Scroll through the notebook until `selector` is there, and return its locator."""
    for top in range(0, 60_000, 500):
        page.evaluate(f"document.querySelector('.jp-WindowedPanel-outer').scrollTop = {top}")
        found = page.locator(selector)
        if found.count() and found.first.is_visible():
            found.first.scroll_into_view_if_needed()
            return found.first
        time.sleep(0.05)
    raise AssertionError(f"{selector} is nowhere in the notebook")


def test_lesson_00_runs_and_its_panel_launches_ranks(page, lab):
    open_and_run_all(page, lab, "00_start_here.ipynb")
    unexpected = [text for text in page.locator("[data-mime-type='application/vnd.jupyter.error']").all_inner_texts()
                  if "RankError" not in text]
    assert not unexpected

    button = scroll_to(page, "button:has-text('Run'):has(i.fa-play)")
    page.get_by_label("Arguments").fill("--epochs 20")
    page.get_by_label("Ranks").press("ArrowUp")  # from 2 ranks to 3
    button.click()
    page.wait_for_selector("text=3 ranks finished", timeout=60_000)
    boxes = page.locator("[role=status] + div pre").all_inner_texts()
    assert [re.search(r"rank (\d) trained on 479", box)[1] for box in boxes] == ["0", "1", "2"]
    assert page.locator(".jp-OutputArea img[alt*='loss of 3 ranks']").count() == 1
    assert page.evaluate("document.activeElement.innerText").strip() == "Run", "the focus stays"
    assert not page.errors
    if "COURSE_PICTURES" in os.environ:
        page.set_viewport_size({"width": 1280, "height": 900})
        button.evaluate("button => button.closest('.jp-Cell').scrollIntoView()")
        time.sleep(1)
        page.screenshot(path=ROOT / "docs" / "launch_panel.png")


def test_a_running_panel_can_be_stopped(page, lab):
    """A script that never ends, in a notebook of the test's own."""
    script = 'import time; print("I wait"); time.sleep(1000)'
    source = (f"from pathlib import Path\nPath('endless.py').write_text({script!r})\n"
              "from helpers.widgets.launch_panel import launch_panel\nlaunch_panel('endless.py')")
    write_notebook(lab, "panel.ipynb", source)
    open_and_run_all(page, lab, "panel.ipynb")
    page.click("button:has(i.fa-play)")
    page.wait_for_selector("pre:has-text('I wait')", timeout=30_000)
    page.click("button:has(i.fa-stop)")
    page.wait_for_selector("text=endless.py: stopped.", timeout=30_000)
    assert not page.errors


def test_lines_appear_while_ranks_run(page, lab):
    source = ("from helpers import launch\nfrom pathlib import Path\nimport time\n\ndef work():\n"
              "    print('I have begun', flush=True)\n    while not Path('seen').exists():\n        time.sleep(0.05)\n"
              "    print('I have ended')\n\nlaunch(work, nprocs=2, timeout=60)")
    write_notebook(lab, "live.ipynb", source)
    open_and_start(page, lab, "live.ipynb")
    page.wait_for_selector(".jp-OutputArea-output:has-text('[1] I have begun')", timeout=60_000)
    (lab[2] / "seen").touch()
    page.wait_for_selector(".jp-OutputArea-output:has-text('[1] I have ended')", timeout=30_000)
    outputs = page.locator(".jp-OutputArea-output").all_inner_texts()
    assert "".join(outputs).count("[0] I have begun") == 1, "the live lines have given way to the final ones"
    assert not page.errors


EXPLORERS = {
    "start methods": "from helpers.widgets.start_methods import start_method_explorer\nstart_method_explorer()",
    "convergence": ("from helpers.widgets.convergence import convergence_explorer, train_grid\n"
                    "convergence_explorer(train_grid(workers=(1, 2), every=(1, 0), skews=(0.0, 1.0), epochs=2))"),
    "pipeline": "from helpers.widgets.pipeline import pipeline_explorer\npipeline_explorer(2)",
    "DataParallel": "from helpers.widgets.data_parallel import data_parallel_explorer\ndata_parallel_explorer()",
    "ring": "from helpers.widgets.ring import ring_explorer\nring_explorer()",
    "buckets": "from helpers.widgets.buckets import bucket_explorer\nbucket_explorer()",
    "float": "from helpers.widgets.float_explorer import float_explorer\nfloat_explorer('0.1')",
    "loss scale": ("import torch\nfrom helpers.widgets.loss_scale import loss_scale_explorer\n"
                   "loss_scale_explorer(1e-6 * torch.randn(1000), 8)"),
    "memory": "from helpers.widgets.memory import memory_explorer\nmemory_explorer()",
    "schedule": "from helpers.widgets.schedule import schedule_explorer\nschedule_explorer()",
    "scaling": "from helpers.widgets.scaling import scaling_explorer\nscaling_explorer()",
    "trace": ("import torch\nfrom torch.profiler import profile\nfrom helpers.instruments.traces import read\n"
              "from helpers.widgets.trace_viewer import trace_viewer\nwith profile() as prof:\n"
              "    for _ in range(50):\n        torch.randn(64, 64) @ torch.randn(64, 64)\n"
              "prof.export_chrome_trace('trace.json')\ntrace_viewer(read('trace.json'))"),
}


LOOK = "from helpers.figures import use_course_style\nuse_course_style()\n"  # as each lesson's first cell does


def test_explorers_answer_the_keyboard(page, lab):
    """Every explorer on one page: its first slider (or box) gets the focus and a key, and the picture changes."""
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(LOOK + source) for source in EXPLORERS.values()],
        metadata={"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}})
    nbformat.write(book, lab[2] / "explorers.ipynb")
    open_and_run_all(page, lab, "explorers.ipynb")
    for number, name in enumerate(EXPLORERS):
        cell = scroll_to(page, f".jp-CodeCell[data-windowed-list-index='{number}']")
        picture = cell.locator(".widget-html-content img").first
        picture.wait_for(timeout=30_000)
        assert len(picture.get_attribute("alt")) > 20, name
        sliders, boxes = cell.locator("[role=slider]"), cell.locator("input[type=checkbox]")
        keys = ["ArrowRight", "ArrowLeft"] if sliders.count() else ["Space"]  # a slider may stand at its right end
        before = picture.get_attribute("src")
        (sliders if sliders.count() else boxes).first.focus()
        for key in keys:
            page.keyboard.press(key)
            changed = eventually(lambda: picture.get_attribute("src") != before, 3)  # noqa: B023 - used at once
            if changed:
                break
        assert changed, name
    assert not page.errors
