"""JupyterLab in chromium, for tests: start it, open a notebook, run it, look at what it shows."""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from jupyter_core.paths import jupyter_runtime_dir

from tests.conftest import ROOT, eventually, running

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here (Debian: apt-get install chromium)")
# A browser that is cut off from its update servers must not fill the log with that.
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--no-first-run"]


class Lab(NamedTuple):
    """A running JupyterLab, and the folder of its notebooks."""

    address: str
    token: str
    folder: os.PathLike


@contextlib.contextmanager
def jupyterlab(folder, **tracker):
    """JupyterLab, started as the README says, on a copy of the lessons in `folder`.

    Args:
        folder: An empty folder.
        tracker: Settings of JupyterLab's notebooks; windowingMode="none" draws cells out of view, too.
    """
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    token, mark = secrets.token_hex(16), f"lab-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "jupyter", "lab", "notebooks/00_start_here.ipynb", "--no-browser",
               f"--port={20_000 + secrets.randbelow(10_000)}",  # outgoing connections have none of these
               f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"]
    settings = folder / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps(tracker))
    environment = {**os.environ, "COURSE_TEST_MARK": mark, "JUPYTER_CONFIG_DIR": str(folder / "config"),
                   "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
                   "COURSE_PROGRESS": str(folder / "progress.json")}

    def port():
        """The one that JupyterLab listens on, by its own word: a later one, where its own was taken."""
        with contextlib.suppress(OSError, ValueError):  # the file is not there yet, or not whole
            file = Path(jupyter_runtime_dir(), f"jpserver-{server.pid}.json")
            return json.loads(file.read_text())["port"]

    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
        try:
            assert eventually(port, 60), (folder / "log").read_text()
            yield Lab(f"http://127.0.0.1:{port()}", token, folder / "notebooks")
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                # Its kernels have ended; a thread of anyio's was not told to (jupyterlab/jupyterlab#10442).
                server.kill()
                server.wait(30)
            assert eventually(lambda: not running(mark), 30), "JupyterLab's end leaves nothing behind"


@contextlib.contextmanager
def chromium():
    """A page of a new browser; `page.errors` holds what the console and the page's scripts complain about."""
    from playwright.sync_api import sync_playwright

    def complains(said):
        # Who asks for the list of kernels while one is starting, is told 500 by the server, and JupyterLab
        # asks again (jupyter-server/enterprise_gateway#1395).
        known = "status of 500" in said.text and "/api/kernels?" in said.location["url"]
        if said.type == "error" and not known:
            page.errors.append(f"{said.text} {said.location}")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER)
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", complains)
        yield page
        browser.close()


def write_notebook(lab, name, *sources):
    """Write a notebook with these code cells beside the lessons of `lab`."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.folder / name)


def open_notebook(page, lab, name):
    """Open a notebook, and wait until its kernel is there; before, JupyterLab would ask for one."""
    page.goto(f"{lab.address}/lab/tree/{name}?token={lab.token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)


def open_and_start(page, lab, name):
    open_notebook(page, lab, name)
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).click()


def open_and_run_all(page, lab, name, seconds=300):
    """Open a notebook and run all cells.

    Raises:
        AssertionError: after `seconds`; it names the cells that have not ended.
    """
    open_and_start(page, lab, name)
    eventually(lambda: busy(page), 5)  # it may not have begun; or it was too quick to be seen
    assert eventually(lambda: not busy(page), seconds), f"{name}: not ended after {seconds} s: {busy(page)}"


def run_cell(page, number):
    """Run one cell of the open notebook, and wait until it has ended."""
    page.evaluate("""async (number) => {
        jupyterapp.shell.currentWidget.content.activeCellIndex = number;
        await jupyterapp.commands.execute('notebook:run-cell');
    }""", number)


def busy(page):
    """The first lines of the cells that run or wait."""
    time.sleep(0.5)  # a look costs something
    return page.evaluate("""() => [...document.querySelectorAll('.jp-CodeCell')].filter(
        cell => cell.querySelector('.jp-InputPrompt')?.innerText.includes('*')).map(
        cell => cell.querySelector('.jp-InputArea-editor').innerText.split('\\n')[0])""")


def raised(page):
    """The numbers of the cells that have raised an error, and what, in order. (On the page: like stderr.)"""
    return page.evaluate("""() => jupyterapp.shell.currentWidget.content.widgets.flatMap((cell, number) =>
        (cell.model.outputs?.toJSON() ?? []).filter(output => output.output_type === 'error')
            .map(output => [number, `${output.ename}: ${output.evalue}`]))""")


def choose_theme(page, theme):
    """Give JupyterLab its "Light" or "Dark" theme."""
    command = "name => jupyterapp.commands.execute('apputils:change-theme', {theme: name})"
    page.evaluate(command, f"JupyterLab {theme}")
    light = "true" if theme == "Light" else "false"
    page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached", timeout=60_000)
    page.wait_for_timeout(1000)  # the style sheet follows


#: Calls that show what can be moved.
SHOWS = re.compile(r"\b(\w+_explorer|trace_viewer|launch_panel)\(")


def made_here():
    """The names of the functions that make explorers."""
    modules = "".join(path.read_text(encoding="utf-8") for folder in ("helpers/widgets", "notebooks/lessons")
                      for path in (ROOT / folder).rglob("*.py"))
    return re.findall(r"^def (\w+_explorer|trace_viewer)\(", modules, re.MULTILINE)


#: A cell for every explorer of the course, as small as it can be.
MADE = {
    "start methods": ("processes.start_methods_explorer", "start_method_explorer()"),
    "convergence": ("parallel_sgd.convergence_explorer", "convergence_explorer()"),
    "pipeline": ("data_loading.pipeline_explorer", "pipeline_explorer(2)"),
    "DataParallel": ("data_parallel.replicas_explorer", "data_parallel_explorer()"),
    "collectives": ("distributed_data_parallel.collectives_explorer",
                    "collectives_explorer({'broadcast': ([[1], [2]], [[1]] * 2),"
                    " 'all_gather': ([[1], [2]], [[1, 2]] * 2)}, 'broadcast')"),
    "ring": ("distributed_data_parallel.ring_explorer", "ring_explorer()"),
    "buckets": ("distributed_data_parallel.bucket_explorer", "bucket_explorer()"),
    "hang": ("ddp_in_practice.who_hangs_explorer", "hang_explorer()"),
    "float": ("mixed_precision.float_explorer", "float_explorer('0.1')"),
    "loss scale": ("mixed_precision.loss_scale_explorer",
                   "loss_scale_explorer(1e-6 * __import__('torch').randn(1000), 8)"),
    "scaler": ("mixed_precision.scaler_explorer", "scaler_explorer()"),
    "gather": ("sharding.gather_explorer", "gather_explorer()"),
    "memory": ("sharding.memory_explorer", "memory_explorer()"),
    "schedule": ("model_parallel.schedule_explorer", "schedule_explorer()"),
    "product": ("model_parallel.product_explorer", "product_explorer()"),
    "pairs": ("context_and_experts.pairs_explorer", "pairs_explorer()"),
    "tokens": ("context_and_experts.tokens_explorer", "tokens_explorer()"),
    "scaling": ("scaling.scaling_explorer", "scaling_explorer()"),
}
EXPLORERS = {name: f"from lessons.{module} import {call.partition('(')[0]}\n{call}"
             for name, (module, call) in MADE.items()}
EXPLORERS["trace"] = """import tempfile, torch
from helpers.instruments.traces import read
from lessons.profiling.trace_viewer import trace_viewer
with torch.profiler.profile() as prof:
    for _ in range(50):
        torch.randn(64, 64) @ torch.randn(64, 64)
with tempfile.TemporaryDirectory() as folder:
    prof.export_chrome_trace(f'{folder}/trace.json')
    trace = read(f'{folder}/trace.json')
trace_viewer(trace)"""


# Counts from the key's own event to the first change of the picture.
WATCH = """(stage) => {
    window.answers = [];
    let pressed = 0;
    stage.addEventListener('keydown', () => { pressed = performance.now(); }, {capture: true});
    new MutationObserver(() => {
        if (pressed) window.answers.push(performance.now() - pressed);
        pressed = 0;
    }).observe(stage.querySelector('svg'), {childList: true, subtree: true, attributes: true});
}"""


def as_page(title, html):
    """A page of its own for what a notebook stores: it takes the theme that the browser asks for."""
    return ("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{title}</title><style>body {{margin: 8px; background: Canvas; color: CanvasText; "
            f"color-scheme: light dark}}</style><main><h1>{title}</h1>{html}</main></html>")


def answer_times(page, stage, slider, presses):
    """Milliseconds from each press of an arrow key on a slider to the change of the picture, by locators."""
    stage.evaluate(WATCH)
    for number in range(presses):
        at, last = float(slider.input_value()), float(slider.get_attribute("max"))
        slider.press("ArrowRight" if number % (2 * last) < last and at < last else "ArrowLeft")
        page.wait_for_function(f"answers.length > {number}", timeout=60_000)
    return page.evaluate("answers")


# JupyterLab's body is 0 pixels high and hides what overflows, and an invisible button lies over each output:
# axe takes the texts for hidden.
SEEN = """body, .jp-LabShell {overflow: visible !important}
.jp-OutputArea-promptOverlay {display: none !important}"""


def axe_findings(page, scope=None):
    """What axe-core has to say against a page, or what lies within the selector `scope`, in lines.

    Raises:
        AssertionError: it saw no picture and read no colour, so that its silence would say nothing.
    """
    from axe_playwright_python.sync_playwright import Axe

    style = page.add_style_tag(content=SEEN)
    found = Axe().run(page, scope, {"resultTypes": ["violations", "passes"]}).response
    style.evaluate("style => style.remove()")
    rules = {rule["id"] for rule in found["passes"] + found["violations"]}
    assert "color-contrast" in rules, "axe read no colour"
    return [f"{rule['id']} ({rule['impact']}): {' '.join(node['target'])[-100:]}: {node['html'][:100]!r}: "
            f"{(node['any'] + node['all'] + node['none'])[0]['message']}"
            for rule in found["violations"] for node in rule["nodes"]]
