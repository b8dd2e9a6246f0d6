"""Profiling: the trace viewer, its pictures and its speed; the slow script and its five faults."""

import os
import xml.etree.ElementTree as ElementTree
from collections import Counter
from types import SimpleNamespace

import nbformat
import pytest

from helpers import launch
from helpers.instruments.traces import TraceError, read, together
from lessons.profiling import exercises as exercises
from lessons.profiling.trace_viewer import DEEPEST, AveragesTable, View, trace_viewer
from tests.conftest import ROOT, cost
from tests.test_traces import STEP, two_ranks, written


def named(view):
    """The names of the events that the bars of the view's figure stand for."""
    return {event.name for event in view.shown}


def written_on_bars(view):
    return [text.get_text() for text in view.ax.texts]


def boxes(view):
    """[(kind, begin in ms, end in ms, row's place)] of all bars, as they are drawn."""
    return [(kind, corners[:, 0].min(), corners[:, 0].max(), corners[:, 1].mean())
            for kind, bars in view.bars.items() for corners in (path.vertices for path in bars.get_paths())]


# ----------------------------------------------------------------------------------------------------------- the viewer


def test_every_event_is_a_bar_in_its_row(tmp_path):
    view = View(read(written(tmp_path / "t.json", STEP)))
    view.draw()
    assert named(view) == {name for name, *_ in STEP} and len(boxes(view)) == len(STEP)
    kinds = {kind: [(round(1000 * begin), round(1000 * end)) for one, begin, end, _ in boxes(view) if one == kind]
             for kind in view.bars}
    assert kinds == {"a step": [(0, 100)], "other": [(0, 20)], "compute": [(20, 50), (50, 90), (25, 45)],
                     "communication": [(60, 95)], "waiting": []}
    places = {kind + str(round(1000 * begin)): place for kind, begin, _, place in boxes(view)}
    assert places["a step0"] < places["compute20"] < places["compute25"] < places["communication60"]
    assert places["compute50"] == places["compute20"] == places["other0"]
    assert {"aten::addmm", "gloo:all_reduce"} <= set(written_on_bars(view))
    assert [tick.get_text() for tick in view.ax.get_yticklabels()] == ["steps", "main thread", "gloo"]


def test_a_name_stays_within_its_bar(tmp_path):
    """Letters are not all as wide: AddmmBackward0 ran over the end of its bar."""
    names = ["AddmmBackward0" * 3, "WWWWmmmm" * 9, "illi" * 20, "a" * 99]
    rows = [(name, "cpu_op", 1, 100 * number, 13 * (number + 1)) for number, name in enumerate(names)]
    view = View(read(written(tmp_path / "t.json", [*rows, ("end", "cpu_op", 1, 900, 100)])))
    for zoom in (1, 2, 4):
        figure = view.draw(zoom, 0.0)
        figure.canvas.draw()
        ends = sorted(view.ax.transData.transform((end, 0))[0] for _, _, end, _ in boxes(view))
        for text in view.ax.texts:
            if "…" in text.get_text():
                extent = text.get_window_extent()
                assert extent.x1 <= next(end for end in ends if end > extent.x0) + 1, text.get_text()


def test_zoom_shows_the_part_that_it_says(tmp_path):
    view = View(read(written(tmp_path / "t.json", STEP)))
    early = (view.draw(4, 0.1), view.ax.get_xlim(), named(view))
    late = (view.draw(4, 1.0), view.ax.get_xlim(), named(view))
    assert early[1] == pytest.approx((0, 0.025)) and late[1] == pytest.approx((0.075, 0.1))
    assert "load" in early[2] and "aten::mm" not in early[2] and "load" not in late[2] and "gloo:all_reduce" in late[2]
    for centre in (0.0, 1.0):
        view.draw(1, centre)
        assert view.ax.get_xlim() == pytest.approx((0, 0.1)), "the whole cannot be moved"


def test_ticks_differ_however_far_one_zooms(large):
    view = View(large)
    for zoom in (1, 64, 1024, 4096):
        figure = view.draw(zoom, 0.61)
        figure.canvas.draw()
        shown = [tick.get_text() for tick in view.ax.get_xticklabels()]
        assert len(shown) >= 4 and len(set(shown)) == len(shown), shown


def test_ranks_one_below_the_other_and_one_meaning_of_waiting(tmp_path):
    traces = together(two_ranks(tmp_path))
    view = View(traces)
    figure = view.draw()
    assert [tick.get_text() for tick in view.ax.get_yticklabels()] == ["0: main thread", "0: gloo", "1: main thread",
                                                                      "1: gloo"]
    waits = [(round(1000 * begin), round(1000 * end)) for kind, begin, end, _ in boxes(view) if kind == "waiting"]
    assert waits == [(60, 90)] and traces[0].busy("waiting") == [(60, 90)], "not while it computes, from 50 to 60"
    assert "waits for rank 1 (gloo:all_reduce)" in named(view) and "waiting 0.0 ms" in figure.get_label()


def test_names_are_shown_as_they_are(tmp_path):
    view = View(read(written(tmp_path / "t.json", [("a<b>&$c_1$", "cpu_op", 1, 0, 50)])))
    view.draw()
    assert written_on_bars(view) == ["a<b>&$c_1$"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """12,000 short events in three threads and some long ones, nested twice."""
    rows = [("aten::outer", "cpu_op", i % 3, 100 * i, 95) for i in range(3000)]
    rows += [(f"aten::inner{j}", "cpu_op", i % 3, 100 * i + 30 * j, 20) for i in range(3000) for j in range(3)]
    return read(written(tmp_path_factory.mktemp("large") / "t.json", rows))


def test_ten_thousand_events_are_redrawn_without_lag(large):
    widget, seen = trace_viewer(large), set()
    assert len(large.events) == 12_000
    assert cost(widget, "zoom", [2.0**n for n in range(2, 13, 2)]) < 5
    for name, value in [("zoom", 2.0**n) for n in range(0, 13, 2)] + [("centre", n / 7) for n in range(8)]:
        widget.controls[name].value = value
        seen.add(widget.picture.value)
    assert cost(widget, "centre", (0.1, 0.3, 0.6, 0.9)) < 5 and len(seen) > 8
    view = View(large)
    view.draw()
    assert len(view.shown) < 6 * 900, "events too short to be seen share a bar"
    assert len(view.ax.texts) < 300


def test_deep_events_are_left_out_and_no_event_is_refused(tmp_path):
    rows = [(f"aten::{depth}", "cpu_op", 1, depth, 100 - 2 * depth) for depth in range(20)]
    view = View(read(written(tmp_path / "t.json", rows)))
    view.draw()
    assert len(named(view)) == DEEPEST
    with pytest.raises(TraceError, match="no events to show"):
        trace_viewer([])


def test_stored_picture_and_stable_text(tmp_path):
    shown = [trace_viewer(read(written(tmp_path / "t.json", STEP)), zoom=zoom)._repr_mimebundle_() for zoom in (1, 4)]
    (first, metadata), (second, _) = shown
    assert first["text/plain"] == second["text/plain"] and first["image/png"][:4] == b"\x89PNG"
    assert first["image/png"] != second["image/png"] and "0.10 ms of 0.10 ms" in metadata["image/png"]["alt"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A profiler's table and trace of three products, with memory."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    os.environ["KINETO_LOG_LEVEL"] = "6"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        for _ in range(3):
            torch.ones(1024, 256) @ torch.ones(256, 1024)
    path = tmp_path_factory.mktemp("memory") / "t.json"
    prof.export_chrome_trace(str(path))
    return prof.key_averages(), read(path)


def test_table_shows_what_the_profiler_counted(profiled):
    averages, _ = profiled
    table = AveragesTable(averages, rows=3)
    assert len(table.table) == 4 and ["Name", "# of Calls", "Self CPU"] == table.table[0][:3]
    [product] = [row for row in table.table if row[0] == "aten::mm"]
    assert product[1] == "3" and product[4].endswith("%")
    lines = repr(table).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[0].startswith("Name ")
    root = ElementTree.fromstring(table._repr_html_())
    assert [head.get("scope") for head in root.iter("th")] == ["col"] * 6 + ["row"] * 3
    assert all("text-align: left" in head.get("style") for head in root.iter("th") if head.get("scope") == "row")
    memory = AveragesTable(averages, sort_by="self_cpu_memory_usage", memory=True)
    assert memory.table[0][-2:] == ["Self CPU Mem", "CPU Mem"] and memory.table[1][-1].endswith("MiB")


def test_names_in_the_table_are_escaped():
    row = SimpleNamespace(key="a<b>", count=1, self_cpu_time_total=5.0, cpu_time_total=2000.0, device_time_total=0)
    table = AveragesTable([row])
    assert "a&lt;b&gt;" in table._repr_html_()
    assert table.table[1:] == [["a<b>", "1", "5.0 µs", "2.00 ms", "100.0%", "2.00 ms"]]


def test_a_trace_holds_the_memory_over_time(profiled):
    _, trace = profiled
    assert max(size for _, size in trace.memory) / 2**20 >= 4


# ------------------------------------------------------------------------------------------------------ the slow script


def test_the_cell_holds_the_script_as_it_is():
    book = nbformat.read(ROOT / "notebooks" / "08_profiling.ipynb", as_version=4)
    [cell] = [cell.source for cell in book.cells if "def make_it_fast" in cell.source]
    script = (ROOT / "notebooks/lessons/profiling/slow_training.py").read_text()
    train = script[script.index("def train"):script.index('if __name__')].strip()
    assert cell.endswith(train.replace("def train", "def make_it_fast"))


@pytest.mark.usefixtures("nothing_left")
def test_each_fault_shows_in_the_trace(tmp_path):
    args = ["--images", "32", "--epochs", "1", "--trace", str(tmp_path)]
    launch("slow_training.py", 2, args, show=False, timeout=60)
    for trace in together([read(tmp_path / f"rank{rank}.json") for rank in (0, 1)]):
        calls = Counter(event.name for event in trace.events)
        assert calls["aten::sub"] == 32 * 48, "row by row"
        assert calls["DistributedDataParallel.forward"] == 8, "4 images at a time"
        assert calls["aten::lift_fresh"] >= 8, "all images, for each piece"
        assert calls["gloo:all_gather"] >= 1, "the ranks compare their weights"
        assert trace.seconds()["other"] > 0.008, "the log's disk, and Python"


def test_the_profilers_own_log_is_quiet_in_ranks(monkeypatch):
    def profiled():
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], acc_events=True):  # else torch 2.11 warns of lost cycles
            torch.ones(1) + 1

    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    assert launch(profiled, 1, show=False, timeout=60).logs == [""]


# -------------------------------------------------------------------------------------------------------- the exercises


def test_the_lesson_gives_no_fault_away():
    """What is stored of the check of the training as it is, and of no other."""
    book = nbformat.read(ROOT / "notebooks" / "08_profiling.ipynb", as_version=4)
    [cell] = [cell for cell in book.cells if cell.source.startswith("ex.make_it_fast.check(")]
    stored = cell.outputs[0]["data"]["text/plain"]
    assert "faults left: 5 of 5\n" in stored and "gone" not in stored


def test_hints_lead_from_the_trace_to_the_cause():
    hints = " ".join(exercises.MakeItFast.hints)
    for evidence in ("tiny operators", "aten::lift_fresh", "forwards", "gloo:all_gather", "gaps"):
        assert evidence in hints
