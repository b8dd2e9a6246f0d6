"""Profiling: the trace viewer, its bars in the whole and in a part; the slow script and its five faults."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from helpers import launch
from helpers.figures import ACTIVITIES
from helpers.instruments.traces import Trace, TraceError, read, together
from lessons.profiling.averages import AveragesTable
from lessons.profiling.trace_viewer import GREY, MOST, Timeline, trace_viewer
from tests.conftest import ROOT, cells_of
from tests.test_traces import STEP, two_ranks, written


def bars(scene):
    """{name of a bar: shape}."""
    return {shape["id"]: shape for shape in scene["frames"][0]["shapes"] if "lane" in shape}


def spans(scene):
    """{name of an event: (begin, end) of its bar in µs}."""
    axis, found = scene["axis"], {}
    for shape in bars(scene).values():
        ends = [(x - axis["x"]) / axis["w"] * axis["to"] * 1000 for x in (shape["x"], shape["x"] + shape["w"])]
        found[shape["text"]] = tuple(map(round, ends))
    return found


def names_of_rows(scene):
    rows = [shape for shape in scene["frames"][0]["shapes"] if shape["id"].startswith("name ")]
    return [shape["text"] for shape in sorted(rows, key=lambda shape: shape["y"])]


# ------------------------------------------------------------------------------------------------- the viewer


def test_every_event_is_a_bar_in_its_row(tmp_path):
    scene = Timeline(read(written(tmp_path / "t.json", STEP))).scene()
    assert spans(scene) == {"ProfilerStep#2": (0, 100), "load": (0, 20), "aten::linear": (20, 50),
                            "aten::addmm": (25, 45), "aten::mm": (50, 90), "gloo:all_reduce": (60, 95)}
    shown = {shape["text"]: shape for shape in bars(scene).values()}
    rows = [shown[name]["y"] for name in ("ProfilerStep#2", "aten::linear", "aten::addmm", "gloo:all_reduce")]
    assert rows == sorted(set(rows)) and shown["load"]["y"] == shown["aten::mm"]["y"] == shown["aten::linear"]["y"]
    assert shown["load"]["fill"] == GREY and shown["aten::mm"]["fill"] == ACTIVITIES["compute"]
    assert shown["gloo:all_reduce"]["fill"] == ACTIVITIES["communication"] and "hatch" in shown["gloo:all_reduce"]
    assert shown["aten::mm"]["tip"] == "compute, 40.0 µs" and shown["ProfilerStep#2"]["tip"] == "100.0 µs"
    assert names_of_rows(scene) == ["steps", "main thread", "gloo"]
    [frame] = scene["frames"]
    assert frame["title"] == "Timeline: 5 events in 0.1 ms"
    assert frame["note"].startswith("In all: compute 0.1 ms, communication 0.0 ms, waiting 0.0 ms or more (")


def test_ranks_one_below_the_other_and_one_meaning_of_waiting(tmp_path):
    traces = together(two_ranks(tmp_path))
    scene = Timeline(traces).scene()
    assert names_of_rows(scene) == ["rank 0: main thread", "rank 0: gloo", "rank 1: main thread", "rank 1: gloo"]
    waiting = [shape for shape in bars(scene).values() if shape["fill"] == ACTIVITIES["waiting"]]
    assert [shape["text"] for shape in waiting] == ["waits for rank 1 (gloo:all_reduce)"]
    assert spans(scene)[waiting[0]["text"]] == traces[0].busy("waiting")[0] == (60, 90), "from 50 to 60 it computes"
    assert "Rank 1: compute" in scene["frames"][0]["note"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """12,000 short events in three threads and some long ones, nested twice."""
    rows = [("aten::outer", "cpu_op", i % 3, 100 * i, 95) for i in range(3000)]
    rows += [(f"aten::inner{j}", "cpu_op", i % 3, 100 * i + 30 * j, 20)
             for i in range(3000) for j in range(3)]
    return read(written(tmp_path_factory.mktemp("large") / "t.json", rows))


def test_events_too_short_to_be_seen_share_a_bar(large):
    assert len(large.events) == 12_000
    timeline = Timeline(large)
    assert 100 < len(timeline.bars) <= MOST
    events = [bar.last - bar.first for bar in timeline.bars]
    assert sum(events) == 12_000 and max(events) > 10
    shared = next(shape for bar, shape in timeline.bars.items() if bar.last - bar.first > 1)
    assert shared["text"].endswith(" events") and "; longest: aten::outer, compute, 95.0 µs" in shared["tip"]


@pytest.mark.parametrize("window", [[0, 150], [100, 101], [299.9, 300], [0, 0.2]])
def test_a_part_is_shown_in_more_detail_in_the_places_of_the_whole(large, window):
    timeline = Timeline(large)
    whole, part = bars(timeline.scene()), bars(timeline.scene(window))
    assert len(part) <= 2 * MOST and len(part) >= len(whole)
    assert set(whole) <= set(part), "a bar that is divided leaves its name to its first part"
    ends = [max(shape["x"] + shape["w"] for shape in shown.values()) for shown in (whole, part)]
    assert ends[0] == pytest.approx(ends[1])
    if window[1] - window[0] <= 1:  # every event has its own bar there
        begin, end = (timeline.lanes.at(moment) for moment in window)
        inside = [shape for shape in part.values() if begin <= shape["x"] <= end]
        assert not [shape for shape in inside if shape["text"].endswith("events")]


def test_numbers_of_a_zoomed_axis_have_decimals_enough(large):
    """At 4,096 times, a hundredth of a unit would be 41 pixels."""
    stage = trace_viewer(large)
    packed = stage.packed(window=[299.9, 300])["frames"][0]["set"]
    last = max((shape for shape in packed.values() if "lane" in shape), key=lambda shape: shape["x"])
    x, wide = stage.scene.__self__.lanes.at(299.96), 520 * 0.02 / 300
    assert last["x"] == pytest.approx(x, abs=1e-4) and last["w"] == pytest.approx(wide, rel=0.01)


def test_it_begins_with_the_part_that_is_asked_for(large):
    whole, part = trace_viewer(large), trace_viewer(large, zoom=3, centre=0.9)
    assert whole.story["first"] == [None] and part.story["first"][0] == pytest.approx([200, 300], abs=0.1)
    presets = {one["words"]: one["setting"][0] for one in part.story["presets"]}
    assert presets["all of it"] is None
    assert presets["the middle, closer"] == pytest.approx([131.25, 168.75], abs=0.1)
    assert whole.story["scenes"] == part.story["scenes"] and len(whole.story["scenes"]) == 1, "the browser zooms it"
    assert len(json.dumps(part.story)) < 90_000
    first, second = (one._repr_mimebundle_()["image/svg+xml"] for one in (whole, part))
    assert len(first) < 22_000, "although no bar is left out here"
    assert ">0</text>" in first and ">0</text>" not in second and ">260</text>" in second


def test_a_trace_without_events_is_refused():
    with pytest.raises(TraceError, match="no events to show"):
        Timeline(Trace([]))


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
    cells = cells_of("08_profiling").values()
    [cell] = [cell.source for cell in cells if "def make_it_fast" in cell.source]
    script = (ROOT / "notebooks/lessons/profiling/slow_training.py").read_text()
    train = script[script.index("def train"):script.index('if __name__')].strip()
    assert cell.endswith(train.replace("def train", "def make_it_fast"))
    [check] = [cell for cell in cells if cell.source.startswith("ex.make_it_fast.check(")]
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


# ------------------------------------------------------------------------------------- what the lesson says of torch


def test_columns_and_operators_are_called_as_the_lesson_calls_them():
    rows = torch.randn(32, 64)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        nn.functional.linear(rows, torch.randn(8, 64), torch.randn(8))
        torch.cdist(rows, rows)
        rows.square()
        torch.tensor([1.0])
    averages = {row.key: row for row in prof.key_averages()}
    assert {"aten::linear", "aten::addmm", "aten::pow", "aten::lift_fresh"} <= set(averages)
    assert "aten::_euclidean_dist" in averages, "cdist multiplies matrices"
    row = averages["aten::addmm"]
    assert hasattr(row, "device_time_total") and not hasattr(row, "cuda_time_total")
    assert "not all" in torch.cuda.set_sync_debug_mode.__doc__ and torch.OutOfMemoryError


def test_lines_that_wait_are_those_of_the_record():
    (record,) = json.loads((ROOT / "data/records/gpus/profiling/item_waits.json").read_text())
    named = record["result"]["named"]
    assert named["loss.item()"] and named["print(loss)"] and named["loss.cpu()"]
    assert not named["losses.append(loss.detach())"], "the way out that the answer of the prediction names"


def test_no_cell_trains_as_the_exercise_wants_it():
    """Each loop of the lesson ends a step after one batch; in the exercise, a step has two."""
    accumulating = [cell for cell in cells_of("08_profiling").values() if "accumulate(batch)" in cell.source]
    (hunted,) = [cell for cell in accumulating if cell.cell_type == "code"]
    assert hunted.source.endswith("\n        prof.step()"), "after the loop: the fault"
