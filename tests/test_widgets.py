"""The explorers' base and the launch panel without a browser (test_browser.py uses both with one)."""

import html
import re

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from helpers import launch
from helpers.figures import alt
from helpers.widgets import explorer as base
from helpers.widgets import launch_panel as module
from helpers.widgets.launch_panel import draw_curves, draw_ranks, launch_panel
from lessons.distributed_data_parallel.ring_explorer import ring_explorer
from tests.browser import EXPLORERS, made_here
from tests.conftest import ROOT, eventually
from tools import moving

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_every_explorer_is_here():
    called = {cell.rpartition("\n")[2].partition("(")[0] for cell in EXPLORERS.values()}
    assert called == set(made_here())


@pytest.mark.parametrize("name", [name for name in EXPLORERS if name != "trace"])
def test_every_explorer_has_presets_that_show_something_else_and_say_what_to_look_for(name, monkeypatch):
    """By the text alternatives of its pictures: to render them all would take long."""
    monkeypatch.setattr(base, "as_html", alt)
    *before, made = EXPLORERS[name].splitlines()
    exec("\n".join(before), names := {})
    explorer = eval(made, names)
    first, said = explorer.picture.value, {explorer.words.value}
    assert 2 <= len(explorer.presets) <= 4
    for button in explorer.presets.values():
        button.click()
        said.add(explorer.words.value)
    assert len(said) == 1 + len(explorer.presets) and first != explorer.picture.value
    explorer.put()
    assert explorer.picture.value == first


def test_play_moves_its_slider_and_step_begins_anew_after_the_last(monkeypatch):
    monkeypatch.setattr(base, "as_html", alt)
    explorer, drawn = ring_explorer(), []
    explorer.picture.observe(drawn.append, "value")
    explorer.presets["2 ranks"].click()
    assert len(drawn) == 1, "several controls, one picture"
    said = explorer.words.value
    steps = [explorer.step() or explorer.controls["step"].value for _ in range(3)]
    assert steps == [1, 2, 0] and explorer.words.value == said, "it is still about the preset"
    explorer.controls["ranks"].value = 5
    assert explorer.words.value != said


def test_a_curtain_hides_what_is_still_to_come():
    ax = Figure().subplots()
    ax.set_xlim(0, 50)
    base.curtain(ax, 100)
    assert not ax.patches
    base.curtain(ax, 40)
    assert ax.patches[0].get_x() == 20 and ax.patches[0].get_width() == 30 and "first 40 %" in alt(ax.figure)


@pytest.mark.parametrize("make", moving.EXPLORERS)
def test_moving_pictures_are_small_and_those_that_the_command_draws(make):
    path, explorer = ROOT / "docs" / "moving" / f"{make.__name__}.svg", make()
    text, slider = path.read_text(encoding="utf-8"), explorer.playing
    steps = re.findall("<desc>(.+?)</desc>", text)
    assert len(text) < 200_000
    assert len(steps) == len(set(steps)) == 1 + (slider.max - slider.min) // slider.step
    with plt.style.context(["helpers.course", moving.LOOK]):
        assert html.unescape(steps[(slider.value - slider.min) // slider.step]) == alt(explorer.figure())


def test_curves_have_their_place_before_there_is_a_number():
    ax = Figure().subplots()
    draw_curves(ax, [[], [{"epoch": 1}]])
    assert not ax.lines and "no loss has been reported yet" in ax.texts[0].get_text()


def test_curves_show_what_was_reported_and_survive_nan():
    rows = [{"loss": value} for value in (2.0, float("nan"), 1.0, float("inf"), 0.5)]
    ax = Figure().subplots()
    draw_curves(ax, [rows, [{"loss": "low"}], [{"loss": 3}]])
    first, third = ax.lines
    assert [y for y in first.get_ydata() if y == y] == [2.0, 1.0, 0.5] and list(third.get_ydata()) == [3]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["rank 0: 0.50", "rank 2: 3.00"]
    assert "loss of 3 ranks" in alt(ax.figure) and "rank 0: 5 reports, from 2.00 to 0.50." in alt(ax.figure)


def test_the_panel_shows_an_earlier_run_until_its_own_and_draws_what_that_reports():
    earlier = launch("hello.py", 3, show=False)
    panel = launch_panel("train_digits.py", "hello.py", args=["--epochs", "2"], shown=earlier)
    assert "I am rank 2 of 3" in panel.output.value
    panel.run()
    thread = panel.thread
    panel.run()  # a second press while it runs changes nothing
    assert panel.thread is thread
    panel.thread.join(60)
    assert "train_digits.py: 2 ranks finished after" in panel.output.value
    assert "test accuracy after 2 epochs on 2 rank(s)" in panel.output.value
    assert "rank 1 trained on 719 of 1437 images" in panel.output.value
    assert [len(line.get_ydata()) for line in panel.axes.lines] == [2, 2]
    assert "loss of 2 ranks" in panel.curve.value and "rank 1: 2 reports" in panel.curve.value
    data, _ = panel._repr_mimebundle_()
    assert data["text/plain"] == "Launch panel for train_digits.py, hello.py" and "image/png" in data


def test_boxes_escape_what_they_show():
    assert "<script>" not in draw_ranks([["<script>"]], {}, "<script>")


def test_who_reads_that_a_run_has_finished_can_start_the_next_one(monkeypatch, tmp_path):
    """While the thread of the last one draws, the button does nothing."""
    script = tmp_path / "script.py"
    script.write_text("from helpers import report\nreport(loss=1.0)")
    panel, at_drawing = launch_panel(str(script)), []
    monkeypatch.setattr(module, "draw_curves", lambda ax, reports: at_drawing.append(panel.output.value))
    panel.run()
    panel.thread.join(60)
    assert "finished" in panel.output.value and at_drawing and "finished" not in at_drawing[-1]


def test_the_panel_stops_a_run(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('I wait')\ntime.sleep(1000)")
    panel = launch_panel(str(script), nprocs=1)
    panel.run()
    assert eventually(lambda: "I wait" in panel.output.value, 30)
    panel.stop()
    panel.thread.join(20)
    assert "stopped" in panel.output.value and not panel.thread.is_alive()


@pytest.mark.parametrize(("source", "says"), [
    ("raise ValueError('boom')", "ValueError: boom"), (None, "FileNotFoundError")])
def test_the_panel_says_what_went_wrong(tmp_path, source, says):
    script = tmp_path / "script.py"
    if source:
        script.write_text(source)
    panel = launch_panel(str(script))
    panel.run()
    panel.thread.join(30)
    assert says in panel.output.value
