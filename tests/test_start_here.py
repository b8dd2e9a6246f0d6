"""Start here: what its text says; the launch panel without a browser (test_browser.py uses it with one)."""

import re

import numpy as np
import pytest
import torch.distributed as dist

from helpers import launch
from helpers.launcher.run import TIMEOUT
from lessons.start_here.launch_panel import SHOWN_RUNS, Shown, draw_ranks, launch_panel, scene
from lessons.start_here.questions import QUESTIONS
from tests.conftest import ROOT, cells_of, eventually

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_what_the_text_says_of_torch_of_launch_and_of_its_scripts():
    cells = cells_of("00_start_here").values()
    text = " ".join(" ".join(cell.source for cell in cells if cell.cell_type == "markdown").split())
    assert f"a time limit: {TIMEOUT} s, or what `timeout` says" in text
    default = dist.Backend.default_device_backend_map
    assert (default["cpu"], default["cuda"]) == ("gloo", "nccl") and "its default is `nccl`" in text
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    one_step = re.search(r'"--batch-size", "(\d+)"', code)[1]
    run = launch("train_digits.py", 2, args=["--batch-size", one_step, "--epochs", "1"], show=False)
    assert [rows[0]["steps"] for rows in run.reports] == [1, 1] and 0 < run.reports[0][0]["seconds"] < run.seconds
    lines = sum(len(log.splitlines()) for log in launch("hello.py", 4, show=False).logs)
    assert lines == 8 and next(iter(QUESTIONS["hello_lines"][1])) == "eight"
    hurry = re.search(r"\*\*In a hurry\?\*\* Read (.*?): they need nothing from the other lessons", text)[1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    in_readme = re.search(r"In a hurry\? Read 00, (.*?): they need nothing from the other lessons", readme)[1]
    assert re.sub(r"\[(\d\d)\]\(\1_\w+\.ipynb\)", r"\1", hurry) == in_readme


def test_the_panels_question_has_one_answer():
    """The loss is as low after the same number of epochs, whatever the number of ranks."""
    one, four = (Shown(0, "", launch("train_digits.py", ranks, args=["--epochs", "5"], show=False).reports).losses()
                 for ranks in (1, 4))
    assert four == pytest.approx(one, rel=0.05) and one[-1] < one[0] / 5


def drawn(*runs):
    """The only frame of what the panel draws for some runs, and its shapes by name."""
    frame, = scene(runs)["frames"]
    return frame, {shape["id"]: shape for shape in frame["shapes"]}


def run(number, *losses_by_rank, seconds=1.0):
    return Shown(number, "train.py", [[{"loss": loss} for loss in losses] for losses in losses_by_rank], seconds)


def test_the_loss_is_that_of_whole_batches_the_mean_over_the_ranks():
    assert run(0, [2.0, 1.0], [4.0, 3.0]).losses() == [3.0, 2.0]
    assert run(0, [2.0, 1.0], [4.0]).losses() == [3.0], "a report that one rank has not made yet is not there"
    assert run(0, [], [1.0, 0.5]).losses() == [1.0, 0.5], "only one rank reports"
    assert run(0, ["low"], []).losses() == []


def test_runs_stand_side_by_side_on_one_scale_with_their_ranks_and_seconds():
    frame, shapes = drawn(run(3, [1.0, 0.1], seconds=1.0), run(4, [1.0, 0.1], [1.0, 0.1], seconds=4.0),
                          run(5, [1.0, 0.01, 0.001], seconds=2.0))
    assert [shapes[f"run {number} ranks"]["text"] for number in (3, 4, 5)] == ["1 rank", "2 ranks", "1 rank"]
    assert [shapes[f"run {number} loss"]["text"] for number in (3, 4, 5)] == ["ends at 0.1"] * 2 + ["ends at 0.001"]
    one, two, three = (np.array(shapes[f"curve {number} at {number}"]["points"]) for number in (3, 4, 5))
    apart = two[0, 0] - one[0, 0]
    assert apart > 0 and two == pytest.approx(one + np.array([apart, 0])), "equal losses lie equally high"
    step = one[1, 1] - one[0, 1]
    assert np.diff(three[:, 1]) == pytest.approx([2 * step, step]), "a tenth is always a step down"
    assert shapes["curve 5 at 3"]["points"] == pytest.approx(three - [2 * apart, 0]), "it lies behind the others, too"
    wide = [shapes[f"run {number} bar"]["w"] for number in (3, 4, 5)]
    assert wide == pytest.approx([wide[1] / 4, wide[1], wide[1] / 2]) and shapes["run 4 seconds"]["text"] == "4.0 s"
    assert "next" in shapes and "2 ranks: 2 reports, loss from 1 to 0.1, 4.0 s." in frame["alt"]


def test_curves_have_their_place_before_there_is_a_number_and_survive_what_is_none():
    frame, shapes = drawn()
    assert shapes["next"]["text"] and frame["alt"] == "No run yet."
    _, shapes = drawn(run(0, [2.0, float("nan"), -1.0, float("inf"), 0.5]), Shown(1, "hello.py", [[], []]))
    assert len(shapes["curve 0 at 0"]["points"]) == 2 and shapes["run 1 loss"]["text"] == "none yet"
    _, shapes = drawn(*(run(number, [10.0 ** (place % 20 - 12) for place in range(10_000)]) for number in range(4)))
    assert "next" not in shapes and len(shapes["curve 0 at 0"]["points"]) < 110
    assert sum(name.startswith("loss grid") for name in shapes) <= 7


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
    shown, = panel.runs
    assert len(shown.losses()) == 2 and shown.called == "train_digits.py --epochs 2"
    assert shown.losses()[1] == sum(rows[1]["loss"] for rows in shown.reports) / 2
    frame, = panel.stage.answer["scene"]["frames"]
    assert "2 ranks: 2 reports" in frame["alt"]
    data = panel._repr_mimebundle_()
    assert data["text/plain"] == "Launch panel for train_digits.py, hello.py" and "2 ranks" in data["image/svg+xml"]
    assert "rank 1 trained on 719" in data["text/html"] and "stage-stored" in data["text/html"]


def test_the_last_runs_with_a_loss_stay_beside_the_new_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nfrom helpers import report\nif sys.argv[1:]: report(loss=1.0)")
    panel = launch_panel(str(script))
    for args in ("", "a", "b", "c", "d", "e"):
        panel.args.value = args
        panel.run(1)
        panel.thread.join(60)
    assert [one.called[-1] for one in panel.runs] == ["b", "c", "d", "e"] and len(panel.runs) == SHOWN_RUNS
    assert all(one.seconds > 0 for one in panel.runs)


def test_boxes_escape_what_they_show():
    assert "<script>" not in draw_ranks([["<script>"]], {}, "<script>")


def test_who_reads_that_a_run_has_finished_can_start_the_next_one(monkeypatch, tmp_path):
    """While the thread of the last one draws, the button does nothing."""
    script = tmp_path / "script.py"
    script.write_text("from helpers import report\nreport(loss=1.0)")
    panel, at_drawing = launch_panel(str(script)), []
    monkeypatch.setattr(panel.stage, "put", lambda scene: at_drawing.append(panel.output.value))
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
