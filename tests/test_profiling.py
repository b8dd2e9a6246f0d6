"""Lesson 07: the trace viewer, its pictures and its speed; the slow script and its five faults."""

import base64
import json
import os
import re
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter

import nbformat
import pytest

from helpers import launch
from helpers.exercises import profiling as exercises
from helpers.traces import TraceError, read, together
from helpers.widgets.trace_viewer import DEEPEST, View, draw_memory, draw_table, trace_viewer
from tests.conftest import ROOT
from tests.test_traces import STEP, two_ranks, written


def parsed(picture):
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img" and root.get("aria-label")
    assert min(float(element.get("font-size", 16)) for element in root.iter()) >= 14
    return root


def named(picture):
    """The titles of all bars, shown where one hovers."""
    return [element.text for element in parsed(picture).iter() if element.tag.endswith("}title")][1:]


# ----------------------------------------------------------------------------------------------------------- the viewer


def test_every_event_is_a_bar_in_its_row(tmp_path):
    picture = View(read(written(tmp_path / "t.json", STEP))).draw()
    assert len(named(picture)) == len(STEP)
    for name in ("ProfilerStep#2, 0.10 ms", "aten::addmm, 20.0 µs", "gloo:all_reduce, 35.0 µs"):
        assert name in named(picture)
    tops = {}
    root = parsed(picture)
    for bar in [*root.iterfind("./{*}g"), *root.iterfind("./{*}rect[{*}title]")]:
        rect = bar if bar.get("y") else bar.find("./{*}rect")
        tops[bar.find("./{*}title").text.split(",")[0]] = float(rect.get("y"))
    assert tops["ProfilerStep#2"] < tops["aten::linear"] < tops["aten::addmm"] < tops["gloo:all_reduce"]
    assert tops["aten::mm"] == tops["aten::linear"] == tops["load"]


def test_zoom_shows_the_part_that_it_says(tmp_path):
    view = View(read(written(tmp_path / "t.json", STEP)))
    early, late = view.draw(4, 0.1), view.draw(4, 1.0)
    assert any("load" in name for name in named(early)) and not any("aten::mm" in name for name in named(early))
    assert any("gloo" in name for name in named(late)) and not any("load" in name for name in named(late))
    assert view.draw(1, 0.0) == view.draw(1, 1.0) == view.draw(0.1, 0.5), "the whole cannot be moved"


def test_ranks_one_below_the_other(tmp_path):
    picture = View(together(two_ranks(tmp_path))).draw()
    shown = [element.text for element in parsed(picture).iter() if element.tag.endswith("text")]
    assert {"0: main thread", "1: main thread", "0: gloo", "1: gloo"} <= set(shown)
    assert any(name.startswith("waits for rank 1") for name in named(picture))


def test_names_are_escaped(tmp_path):
    trace = read(written(tmp_path / "t.json", [("a<b>&c", "cpu_op", 1, 0, 50)]))
    assert any(name.startswith("a<b>&c") for name in named(View(trace).draw()))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """12,000 short events in three threads and some long ones, nested twice."""
    rows = [("aten::outer", "cpu_op", i % 3, 100 * i, 95) for i in range(3000)]
    rows += [(f"aten::inner{j}", "cpu_op", i % 3, 100 * i + 30 * j, 20) for i in range(3000) for j in range(3)]
    return read(written(tmp_path_factory.mktemp("large") / "t.json", rows))


def test_ten_thousand_events_are_redrawn_without_lag(large):
    widget, times, seen = trace_viewer(large), [], set()
    assert len(large.events) == 12_000
    for name, value in [("zoom", 2.0**n) for n in range(0, 13, 2)] + [("centre", n / 7) for n in range(8)]:
        began = time.perf_counter()
        widget.controls[name].value = value
        times.append(time.perf_counter() - began)
        seen.add(widget.picture.value)
    assert statistics.median(times) < 0.1 and len(seen) > 8
    began = time.perf_counter()
    picture = View(large).draw()
    assert time.perf_counter() - began < 1
    assert len(named(picture)) < 6 * 900, "events too short to be seen share a bar"


def test_no_event_gets_lost_in_the_picture(large):
    together_named = 0
    for name in named(View(large).draw()):
        together_named += int(match[1]) if (match := re.match(r"(\d+) short events", name)) else 1
    assert together_named == 12_000


def test_deep_events_are_left_out_and_no_event_is_refused(tmp_path):
    rows = [(f"aten::{depth}", "cpu_op", 1, depth, 100 - 2 * depth) for depth in range(20)]
    assert len(named(View(read(written(tmp_path / "t.json", rows))).draw())) == DEEPEST
    with pytest.raises(TraceError, match="no events to show"):
        trace_viewer([])


def test_static_picture_is_smaller_than_the_one_to_hover_over(large):
    viewer = trace_viewer(large)
    [data] = re.findall("base64,([^\"]+)", viewer._repr_mimebundle_()["text/html"])
    static = base64.b64decode(data).decode()
    assert not named(static) and static.count("<rect") == viewer.picture.value.count("<rect") > 100
    assert len(static) < 0.7 * len(viewer.picture.value)


def test_static_picture_and_stable_text(tmp_path):
    bundles = [trace_viewer(read(written(tmp_path / "t.json", STEP)), zoom=zoom)._repr_mimebundle_() for zoom in (1, 4)]
    assert bundles[0]["text/plain"] == bundles[1]["text/plain"]
    assert "data:image/svg" in bundles[0]["text/html"] and "<svg" not in bundles[0]["text/html"]


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
    shown = [element.text for element in parsed(draw_table(averages, rows=3)).iter() if element.tag.endswith("text")]
    assert "aten::mm" in shown and "3" in shown and "Self CPU %" in shown
    memory = draw_table(averages, sort_by="self_cpu_memory_usage", memory=True)
    shown = [element.text for element in parsed(memory).iter() if element.tag.endswith("text")]
    assert "Self CPU Mem" in shown and any(text.endswith("MiB") for text in shown)


def test_memory_is_drawn_with_its_peak(profiled, tmp_path):
    _, trace = profiled
    peak = max(size for _, size in trace.memory) / 2**20
    assert peak >= 4 and f"peak {peak:.1f} MiB" in draw_memory(trace)
    parsed(draw_memory(trace))
    with pytest.raises(TraceError, match="holds no memory"):
        draw_memory(read(written(tmp_path / "t.json", STEP)))


# ------------------------------------------------------------------------------------------------------ the slow script


def test_the_cell_holds_the_script_as_it_is():
    book = nbformat.read(ROOT / "notebooks" / "07_profiling.ipynb", as_version=4)
    [cell] = [cell.source for cell in book.cells if "def make_it_fast" in cell.source]
    script = (ROOT / "helpers/workers/slow_training.py").read_text()
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


def test_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               str(ROOT / "helpers/workers/slow_training.py"), "--images", "32", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                          env=os.environ | {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"})
    assert done.returncode == 0 and "USDT" not in done.stderr, done.stderr


def test_the_profilers_own_log_is_quiet_in_ranks(monkeypatch):
    def profiled():
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]):
            torch.ones(1) + 1

    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    assert launch(profiled, 1, show=False, timeout=60).logs == [""]


# -------------------------------------------------------------------------------------------------------- the exercises


def test_culprits_are_new_each_time():
    kept = []

    class Seen(exercises.FindTheCulprit):
        world_sizes = (2,)

        def judge(self, observed):
            kept.append([(seen["culprit"], seen["label"], seen["long"]) for seen in observed[0]])

    for _ in range(4):
        Seen().check(lambda traces: (0, "augment"))
    assert len({json.dumps(plan) for plan in kept}) > 1
    for plan in kept:
        assert {culprit for culprit, _, _ in plan} == {0, 1} and len({label for _, label, _ in plan}) == 2
        assert all(label != long for _, label, long in plan)


def test_hints_lead_from_the_trace_to_the_cause():
    hints = " ".join(exercises.MakeItFast.hints)
    for evidence in ("tiny operators", "aten::lift_fresh", "forwards", "gloo:all_gather", "Gaps"):
        assert evidence in hints
