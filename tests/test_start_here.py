"""Start here: the launch panel without a browser (test_browser.py uses it with one)."""

import pytest
from matplotlib.figure import Figure

from helpers import launch
from helpers.figures import alt
from lessons.start_here import launch_panel as module
from lessons.start_here.launch_panel import draw_curves, draw_ranks, launch_panel
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("nothing_left")


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
