"""Lesson 03: the pipeline simulator against its limits and measurements; its frames; what the lesson leaves open."""

import itertools
import statistics
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from helpers import launch
from helpers.figures import ACTIVITIES, alt
from lessons.data_loading import pipeline_explorer as pipeline
from lessons.data_loading.pictures import draw
from lessons.data_loading.pipeline_explorer import Timeline, pipeline_explorer, simulate, stalling
from tests.conftest import cells_of, shapes_of

pytestmark = pytest.mark.usefixtures("nothing_left")
SETTINGS = list(itertools.product((0, 1, 3, 8), (1, 2, 5), (0, 40), (5, 20), (0, 15)))


# ---------------------------------------------------------------------------------------------- the simulator


def simulated():
    for workers, prefetch, load, compute, start in SETTINGS:
        timeline = simulate(workers, prefetch, stalling(load, 20), compute, 20, start)
        yield timeline, workers, prefetch, load, compute


def test_every_batch_is_loaded_once_and_computed_once_in_order():
    for timeline, _, _, load, compute in simulated():
        assert len(timeline.loads) == len(timeline.computes) == 20
        assert sum(end - begin for begin, end in timeline.computes) == pytest.approx(20 * compute)
        assert sum(end - begin for _, begin, end in timeline.loads) == pytest.approx(sum(stalling(load, 20)))
        for (_, _, loaded), (begin, _) in zip(timeline.loads, timeline.computes, strict=True):
            assert begin >= loaded - 1e-9
        for (_, end), (begin, _) in itertools.pairwise(timeline.computes):
            assert begin >= end


def test_no_worker_does_two_things_at_once_and_none_runs_ahead_of_its_prefetching():
    for timeline, workers, prefetch, _, _ in simulated():
        for worker in range(max(1, workers)):
            own = [(begin, end) for by, begin, end in timeline.loads if by == worker]
            assert all(begin >= end - 1e-9 for (_, end), (begin, _) in itertools.pairwise(own))
        if workers:
            assert [load[0] for load in timeline.loads] == [batch % workers for batch in range(20)]
            for batch in range(workers * prefetch, 20):
                assert timeline.loads[batch][1] >= timeline.computes[batch - workers * prefetch][0]


def test_limits():
    assert simulate(0, 2, 30, 10, 8).total == 8 * (30 + 10), "without workers, one thing after the other"
    assert simulate(1, 2, 30, 10, 8).total == 8 * 30 + 10, "one worker that is too slow: bound by loading"
    assert simulate(8, 2, 30, 10, 24).total == 30 + 24 * 10, "many workers: bound by computing, but at first"
    assert simulate(3, 2, 30, 10, 24, start_ms=5).total == 3 * 5 + 30 + 24 * 10, "workers start in turn"
    more, less = (simulate(4, prefetch, stalling(20, 42), 15, 42) for prefetch in (8, 1))
    assert more.total < 0.8 * less.total


def drawn(timeline, **settings):
    figure = Figure(figsize=(9, 3))
    draw(figure.subplots(), timeline, "A title", **settings)
    figure.draw_without_rendering()
    return figure


def spans_of(bars):
    """The (begin, end) of each bar that `broken_barh` has drawn, from left to right, as an array."""
    return np.array(sorted((box.x0, box.x1) for box in (path.get_extents() for path in bars.get_paths())))


def test_the_picture_shows_every_load_and_step_and_how_many_batches_lay_ready():
    for timeline, workers, _, _, _ in itertools.islice(simulated(), 3, None, 19):
        figure = drawn(timeline, until=9000)
        ax, = figure.axes
        *rows, ready, waits, steps = ax.collections
        for worker, bars in enumerate(rows):
            loads = [(begin, end) for by, begin, end in timeline.loads if by == worker and end > begin]
            assert spans_of(bars) == pytest.approx(np.array(loads))
        assert spans_of(steps) == pytest.approx(np.array(timeline.computes))
        seen = [wait for wait in timeline.waits if wait[1] > wait[0]]
        assert spans_of(waits) == pytest.approx(np.array(seen))
        names = [text.get_text() for text in ax.get_yticklabels()]
        assert names[:-2] == ([f"worker {worker} loads" for worker in range(workers)] or ["main loads"])
        both = zip(timeline.loads, timeline.computes, strict=True)
        lay = [(end, begin) for (_, _, end), (begin, _) in both]
        most = max(sum(end <= at < begin for end, begin in lay) for at, _ in lay)
        assert names[-2] == f"ready: up to {most}"
        assert most > 0 or not np.ptp(ready.get_paths()[0].vertices[:, 1])
        computed = timeline.busy * timeline.total
        said = f"computes for {computed:.0f} ms and waits for {timeline.total - computed:.0f} ms"
        assert said in alt(figure)


# ------------------------------------------------------------------------------------------------- its frames

#: num_workers, prefetch_factor, load_ms, stall, compute_ms
SCENES = [(3, 1, 20, 8, 14), (5, 4, 40, 3, 10), (0, 1, 20, 8, 14), (8, 8, 100, 10, 1), (1, 2, 1, 1, 100)]


def played(workers, prefetch, load, stall, compute):
    """(the time, its shapes, its note) of each frame, and the timeline."""
    timeline = simulate(workers, prefetch, stalling(load, pipeline.BATCHES, stall), compute)
    frames = pipeline.scene(workers, prefetch, load, stall, compute)["frames"]
    steps = len(frames) - 1
    moments = []
    for number, frame in enumerate(frames):
        moments.append((timeline.total * number / steps, shapes_of(frame), frame["note"]))
    return moments, timeline


@pytest.mark.parametrize("setting", SCENES)
def test_each_batch_is_where_the_model_says(setting):
    moments, timeline = played(*setting)
    for now, shapes, note in moments[:-1]:
        lies = 0
        for batch, (_, begin, loaded) in enumerate(timeline.loads):
            taken, done = timeline.computes[batch]
            shape = shapes.get(f"batch {batch}")
            if shape is None or shape["passes"]:
                assert now < begin or done <= now
            elif now < loaded:
                assert begin <= now and pipeline.WORKER <= shape["y"] <= pipeline.WORKER + pipeline.WORKER_HIGH
            elif now < taken:
                assert shape["y"] == pipeline.READY + 1
                lies += 1
            else:
                assert shape["y"] == pipeline.DEVICE + 2
                assert shapes["device"]["fill"] == ACTIVITIES["compute"]
        assert now == 0 or note.endswith(f"Ready: {lies}.")


@pytest.mark.parametrize("setting", SCENES)
def test_at_the_end_the_lanes_show_all_of_the_timeline(setting):
    workers, *_ = setting
    moments, timeline = played(*setting)
    (now, shapes, note), most = moments[-1], max(timeline.ready[1])

    def spans(kind):
        found = [(shape["x"], shape["w"]) for name, shape in shapes.items() if name.startswith(f"{kind} ")]
        scale = now / pipeline.WIDE
        return [(scale * (x - pipeline.LEFT), scale * (x - pipeline.LEFT + wide)) for x, wide in found]

    assert np.array(spans("load")) == pytest.approx(np.array([span for _, *span in timeline.loads]), abs=1e-6)
    assert np.array(spans("step")) == pytest.approx(np.array(timeline.computes), abs=1e-6)
    waited = sum(end - begin for begin, end in spans("wait"))
    assert waited == pytest.approx(timeline.total * (1 - timeline.busy))
    assert f"waited for {waited:.0f} ms" in note and f"{timeline.busy:.0%} of the time" in note
    heaps = [shape["h"] for name, shape in shapes.items() if name.startswith("ready ")]
    assert len(heaps) == sum(count > 0 for count in timeline.ready[1])
    assert bool(heaps) == bool(workers) and f"At most {most} lay ready" in note


def test_while_a_straggler_is_loaded_others_lie_ready_and_their_workers_are_idle():
    moments, _ = played(3, 1, 20, 8, 14)
    _, shapes, _ = next(moment for moment in moments if "batch 8" in moment[1] and "Ready: 2." in moment[2])
    assert [shapes[f"box {worker}"].get("text") for worker in range(3)] == [None, "idle", "idle"]
    assert shapes["device"]["fill"] == ACTIVITIES["waiting"] and shapes["batch 6"]["hatch"]
    assert {"batch 6", "batch 7", "batch 8"} <= set(shapes) and "batch 9" not in shapes
    frame = shapes["asked"]
    assert [frame["x"], frame["w"]] == pytest.approx([shapes["place 6"]["x"] - 2, 3 * pipeline.CELL + 3])


def test_the_knob_and_the_boxes_beside_the_workers_set_the_controls():
    shapes = shapes_of(pipeline.scene(2, 3, 20, 8, 14)["frames"][0])
    control, places = shapes["knob"]["drag"]
    assert control == "prefetch_factor" and places[2] == [shapes["knob"]["x"], shapes["knob"]["y"]]
    assert shapes["+"]["click"] == {"num_workers": 3} and shapes["−"]["click"] == {"num_workers": 1}
    without = pipeline.scene(0, 3, 20, 8, 14)
    assert without["off"] == ["prefetch_factor"] and not {"knob", "−"} & set(shapes_of(without["frames"][0]))


def test_the_explorer_says_where_more_prefetching_changes_nothing():
    totals = [played(3, prefetch, 20, 8, 14)[1].total for prefetch in (1, 4, 8)]
    assert totals[1] == totals[2] < 0.75 * totals[0], "it matters as the explorer opens"
    for setting, changes in (((0, 1, 20, 8, 14), True), ((3, 4, 20, 8, 14), False), ((3, 1, 20, 8, 14), True),
                             ((3, 2, 60, 1, 14), False)):
        moments, _ = played(*setting)
        assert ("A larger prefetch_factor changes nothing" in moments[-1][2]) != changes


def test_from_four_workers_on_the_device_waits_for_the_first_batch_only():
    waited = [sum(end - begin for begin, end in simulate(workers, 1, 40, 10, 16).waits) for workers in range(9)]
    assert waited[4:] == [40] * 5 and min(waited[:4]) > 40


def test_the_presets_of_the_pipeline_show_what_they_ask_for():
    explorer = pipeline_explorer(3, 1)
    assert [preset["words"] for preset in explorer.story["presets"]] == [
        "no workers", "little in advance", "more in advance", "slow loading"]
    for _, shapes, _ in played(0, 1, 20, 8, 14)[0][:-1]:
        busy = shapes["device"]["fill"] == ACTIVITIES["compute"]
        loads = any(name.startswith("batch ") and shape["y"] < pipeline.READY for name, shape in shapes.items())
        assert busy != loads, "one after the other"
    advance, _ = played(3, 8, 20, 8, 14)
    lay = [int(note.rpartition("Ready: ")[2].rstrip(".")) for _, _, note in advance[1:-1]]
    assert max(lay) > 3 and lay[-1] < 3, "a heap that is used up"


# ------------------------------------------------------------------------------------------------ the workers


def rows_of(script, *args):
    run = launch(script, 1, [str(arg) for arg in args], timeout=100, show=False)
    return run.results[0], run.logs


def test_prediction_agrees_with_a_measurement_within_20_percent():
    # (The lesson itself predicts more settings, and nbval compares its verdict.)
    fastest = {}  # of two epochs, and of more if this machine is busy: other programs only ever add time
    for _ in range(4):
        rows, _ = rows_of("input_pipeline.py", "--workers", 0, 3, "--prefetch", 1, 4, "--epochs", 2, "--keep",
                          "--batches", 14, "--batch", 1, "--pixels", 8, "--read-ms", 50, "--stall-ms", 120,
                          "--device-ms", 15)
        for row in rows:
            setting, timeline = (row["workers"], row["prefetch"] or 1), Timeline.measured(row)
            fastest[setting] = min(timeline, fastest.get(setting, timeline), key=lambda one: one.total)
        loads = [end - begin for _, begin, end in fastest[0, 1].loads]
        compute = statistics.median(end - begin for begin, end in fastest[0, 1].computes)
        ratios = {setting: simulate(*setting, loads, compute, len(loads)).total / timeline.total
                  for setting, timeline in fastest.items()}
        if all(0.8 < ratio < 1.2 for ratio in ratios.values()):
            return
    raise AssertionError(ratios)


def test_batches_overtake_a_stalled_one_unless_they_are_in_order():
    (ordered, smooth, loose, _), _ = rows_of("in_order.py")
    assert ordered["order"] == smooth["order"] == list(range(12)) and ordered["weights"] == smooth["weights"]
    assert sorted(loose["order"]) == list(range(12)) and loose["order"] != list(range(12))
    assert loose["weights"] != ordered["weights"]


def test_a_stream_of_shards_goes_on_after_any_batch():
    def goes_on():
        from lessons.data_loading.shard_stream import batches

        whole = batches()
        wrong = [done for done in (1, 6, 23, 24) if batches(done) != whole[done:]]
        return whole, batches(epoch=1) != whole, wrong

    (one, other_order, wrong), (other, *_) = launch(goes_on, 2, show=False).results
    assert len({sample for batch in one + other for sample in batch}) == 8 * 24
    assert len(one) == len(other) == 24
    assert other_order and not wrong


@pytest.mark.long  # lesson 03 runs it
def test_a_full_shm_is_named():
    _, logs = rows_of("full_shm.py")
    if "not allowed" in logs[0]:
        pytest.skip("no file system can be mounted here")
    assert "stacks samples: RuntimeError: unable to allocate shared memory(shm)" in logs[0]
    assert "batches: RuntimeError: DataLoader timed out" in logs[0]
    assert "a worker printed: RuntimeError: unable to allocate" in logs[0]


@pytest.mark.long  # lesson 03 shows it
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is shared where a worker is not forked")
def test_a_list_is_copied_into_a_worker_page_by_page():
    def grown():
        import numpy as np

        from lessons.data_loading.memory_of_lists import growth

        names = [f"photos/2024/summer/{index:06}.jpg" for index in range(100_000)]
        return growth(names), growth(np.array(names, dtype="S"))

    as_list, as_array = launch(grown, 1, show=False).results[0]
    assert as_list > 5 * max(0.2, as_array)


# ---------------------------------------------------------------------------------------------------- the page


def test_a_loop_that_is_timed_waits_for_the_device_and_leaves_out_the_first_batch(monkeypatch, capsys):
    now = [0]
    scope = {"statistics": statistics, "torch": torch, "time": SimpleNamespace(perf_counter=lambda: now[0])}
    exec(cells_of("03_data_loading")["timed"].source, scope)

    def loader():
        for milliseconds in (2000, 10, 50):
            now[0] += milliseconds / 1000
            yield milliseconds

    def synchronize():
        now[0] += 0.004

    def run():
        for _ in scope["timed"](loader()):
            now[0] += 0.002
        return capsys.readouterr().out

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert "waits 30.0 ms and computes 2.0 ms: 15.0 to 1" in run()
    for milliseconds in scope["timed"](loader()):
        now[0] += 0.002
        if milliseconds == 50:
            break
    assert "waits 10.0 ms and computes 2.0 ms" in capsys.readouterr().out, "of a loop that ends early, too"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    assert "waits 30.0 ms and computes 6.0 ms: 5.0 to 1" in run()


def test_without_a_gpu_nothing_is_pinned_and_torch_warns():
    def pinned():
        import warnings

        from torch.utils.data import DataLoader

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batch = next(iter(DataLoader(torch.zeros(4), pin_memory=True)))
        return batch.is_pinned(), [str(warning.message) for warning in said]

    is_pinned, said = launch(pinned, 1, env={"CUDA_VISIBLE_DEVICES": ""}, show=False).results[0]
    assert not is_pinned and any("pin_memory" in words for words in said)


def test_the_cross_entropy_ignores_the_target_that_the_lesson_names():
    scores = torch.randn(3, 5)
    kept = torch.nn.functional.cross_entropy(scores[:2], torch.tensor([1, 4]))
    assert torch.nn.functional.cross_entropy(scores, torch.tensor([1, 4, -100])) == kept
