"""Profiling: the trace viewer, its pictures and its speed; the slow script and its five faults."""

from collections import Counter
from types import SimpleNamespace

import nbformat
import pytest

from helpers import launch
from helpers.instruments.traces import read, together
from lessons.profiling.trace_viewer import AveragesTable, View, trace_viewer
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


def spans(view, kind):
    """The (begin, end) of a kind's bars, in µs."""
    return [(round(1000 * begin), round(1000 * end)) for one, begin, end, _ in boxes(view) if one == kind]


# ------------------------------------------------------------------------------------------------- the viewer


def test_every_event_is_a_bar_in_its_row(tmp_path):
    view = View(read(written(tmp_path / "t.json", STEP)))
    view.draw()
    assert named(view) == {name for name, *_ in STEP} and len(boxes(view)) == len(STEP)
    assert {kind: spans(view, kind) for kind in view.bars} == {
        "a step": [(0, 100)], "other": [(0, 20)], "compute": [(20, 50), (50, 90), (25, 45)],
        "communication": [(60, 95)], "waiting": []}
    places = {kind + str(round(1000 * begin)): place for kind, begin, _, place in boxes(view)}
    assert places["a step0"] < places["compute20"] < places["compute25"] < places["communication60"]
    assert places["compute50"] == places["compute20"] == places["other0"]
    assert {"aten::addmm", "gloo:all_reduce"} <= set(written_on_bars(view))
    assert [tick.get_text() for tick in view.ax.get_yticklabels()] == ["steps", "main thread", "gloo"]


def test_a_name_stays_within_its_bar(tmp_path):
    """Letters are not all as wide: AddmmBackward0 ran over the end of its bar."""
    names = ["a<b>&$c_1$" * 9, "AddmmBackward0" * 3, "WWWWmmmm" * 9, "illi" * 20, "a" * 99]
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
    assert "load" in early[2] and "aten::mm" not in early[2]
    assert "load" not in late[2] and "gloo:all_reduce" in late[2]
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
    assert [tick.get_text() for tick in view.ax.get_yticklabels()] == [
        "0: main thread", "0: gloo", "1: main thread", "1: gloo"]
    assert spans(view, "waiting") == traces[0].busy("waiting") == [(60, 90)], "from 50 to 60 it computes"
    assert "waits for rank 1 (gloo:all_reduce)" in named(view) and "waiting 0.0 ms" in figure.get_label()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """12,000 short events in three threads and some long ones, nested twice."""
    rows = [("aten::outer", "cpu_op", i % 3, 100 * i, 95) for i in range(3000)]
    rows += [(f"aten::inner{j}", "cpu_op", i % 3, 100 * i + 30 * j, 20)
             for i in range(3000) for j in range(3)]
    return read(written(tmp_path_factory.mktemp("large") / "t.json", rows))


def test_ten_thousand_events_are_redrawn_without_lag(large):
    assert len(large.events) == 12_000
    assert cost(trace_viewer(large), "zoom", [2.0**n for n in (2, 5, 8, 11)]) < 5
    view = View(large)
    view.draw()
    assert len(view.shown) < 6 * 900, "events too short to be seen share a bar"
    assert len(view.ax.texts) < 300


def test_stored_picture_and_stable_text(tmp_path):
    trace = read(written(tmp_path / "t.json", STEP))
    (first, metadata), (second, _) = (trace_viewer(trace, zoom=zoom)._repr_mimebundle_() for zoom in (1, 4))
    assert first["text/plain"] == second["text/plain"] and first["image/png"][:4] == b"\x89PNG"
    assert first["image/png"] != second["image/png"] and "0.10 ms of 0.10 ms" in metadata["image/png"]["alt"]


def test_table_shows_what_the_profiler_counted():
    row = SimpleNamespace(key="aten::mm", count=3, self_cpu_time_total=5.0, cpu_time_total=6000.0,
                          device_time_total=0, self_cpu_memory_usage=2**22, cpu_memory_usage=5000)
    other = SimpleNamespace(**vars(row) | {"key": "aten::a_long_name", "self_cpu_time_total": 15.0})
    lines = repr(AveragesTable([row, other])).splitlines()
    assert lines[0].split()[:4] == ["Name", "#", "of", "Calls"] and len({len(line) for line in lines}) == 1
    assert lines[1].startswith("aten::a_long_name")
    assert lines[2].split() == ["aten::mm", "3", "5.0", "µs", "6.00", "ms", "25.0%", "2.00", "ms"]
    memory = repr(AveragesTable([row], sort_by="self_cpu_memory_usage", memory=True)).splitlines()
    assert memory[0].endswith("CPU Mem") and memory[1].endswith("4.9 KiB") and "4.0 MiB" in memory[1]


# -------------------------------------------------------------------------------------------- the slow script


def test_the_cell_holds_the_script_as_it_is_and_its_check_gives_no_fault_away():
    book = nbformat.read(ROOT / "notebooks" / "08_profiling.ipynb", as_version=4)
    [cell] = [cell.source for cell in book.cells if "def make_it_fast" in cell.source]
    script = (ROOT / "notebooks/lessons/profiling/slow_training.py").read_text()
    train = script[script.index("def train"):script.index('if __name__')].strip()
    assert cell.endswith(train.replace("def train", "def make_it_fast"))
    [check] = [cell for cell in book.cells if cell.source.startswith("ex.make_it_fast.check(")]
    stored = check.outputs[0]["data"]["text/plain"]
    assert "faults left: 5 of 5\n" in stored and "gone" not in stored


@pytest.mark.long
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
