"""The launch panel and what explorers share, without a browser (test_browser.py uses them with one)."""

import base64
import re
import time

import ipywidgets
import pytest

from helpers import launch
from helpers.widgets.explorer import Explorer
from helpers.widgets.launch_panel import draw_curves, draw_ranks, launch_panel
from helpers.widgets.svg import picture_of, svg
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_an_explorer_redraws_and_leaves_a_picture_for_github():
    explorer = Explorer({"n": ipywidgets.IntSlider(3)}, lambda n: svg(9, 9, [f"<text>{n}</text>"], f"number {n}"), "N")
    explorer.controls["n"].value = 4
    assert "<text>4</text>" in explorer.picture.value
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/plain"] == "N" and 'alt="number 4"' in bundle["text/html"]
    assert "<text>4</text>" in base64.b64decode(re.search(r"base64,([^\"]+)", bundle["text/html"])[1]).decode()


def test_pictures_escape_what_they_show():
    assert "<script>" not in draw_ranks([["<script>"]], {}, "<script>")
    assert 'aria-label="a&quot;b&lt;"' in svg(1, 1, [], 'a"b<')
    assert picture_of("<p>no picture</p>") == "<p>no picture</p>"


def test_curves_need_two_numbers_and_survive_nan():
    assert draw_curves([]) == draw_curves([[{"loss": 1.0}]]) == ""
    rows = [{"loss": value} for value in (2.0, float("nan"), 1.0, float("inf"))]
    assert draw_curves([rows, []]).count("<polyline") == 2
    assert "loss: 2.00 at the top, 1.00 at the bottom" in draw_curves([rows])


def test_the_panel_runs_a_script_and_draws_what_it_reports():
    panel = launch_panel("train_digits.py", "hello.py")
    panel.run()
    panel.run()  # a second press while it runs changes nothing
    assert panel.run_button.disabled
    panel.thread.join(60)
    assert "train_digits.py: 2 ranks finished after" in panel.output.value
    assert "rank 1 trained on 719 of 1437 images" in panel.output.value
    assert panel.curve.value.count("<polyline") == 2
    assert not panel.run_button.disabled and panel.stop_button.disabled


def test_the_panel_stops_a_run(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('I wait')\ntime.sleep(1000)")
    panel = launch_panel(str(script), nprocs=1)
    panel.run()
    assert eventually(lambda: "I wait" in panel.output.value, 30)
    began = time.monotonic()
    panel.stop()
    panel.thread.join(20)
    assert "stopped" in panel.output.value and time.monotonic() - began < 10


@pytest.mark.parametrize(("source", "says"), [
    ("raise ValueError('boom')", "ValueError: boom"), (None, "FileNotFoundError"), ("def f(:", "SyntaxError")])
def test_the_panel_says_what_went_wrong(tmp_path, source, says):
    script = tmp_path / "script.py"
    if source:
        script.write_text(source)
    panel = launch_panel(str(script))
    panel.run()
    panel.thread.join(30)
    assert says in panel.output.value and not panel.run_button.disabled


def test_the_panel_shows_an_earlier_run_until_its_own():
    run = launch("hello.py", nprocs=3, show=False)
    assert "I am rank 2 of 3" in launch_panel("hello.py", shown=run).output.value
