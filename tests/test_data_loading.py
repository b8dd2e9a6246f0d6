"""Lesson 03: the pipeline simulator against its limits and against measurements; the workers; what dies or is empty."""

import itertools
import statistics
import time

import pytest

from helpers import RankError, launch
from helpers.exercises import data_loading
from helpers.widgets.pipeline import Timeline, draw, draw_sweep, pipeline_explorer, simulate, stalling

SETTINGS = list(itertools.product((0, 1, 2, 3, 8), (1, 2, 5), (0, 7, 40), (5, 20), (0, 15)))


# ------------------------------------------------------------------------------------------------------ the simulator


def simulated():
    for workers, prefetch, load, compute, start in SETTINGS:
        yield simulate(workers, prefetch, stalling(load, 20), compute, 20, start), workers, prefetch, load, compute


def test_every_batch_is_loaded_once_and_computed_once_in_order():
    for timeline, _, _, load, compute in simulated():
        assert len(timeline.loads) == len(timeline.computes) == 20
        assert sum(end - begin for begin, end in timeline.computes) == pytest.approx(20 * compute)
        assert sum(end - begin for _, begin, end in timeline.loads) == pytest.approx(sum(stalling(load, 20)))
        for (_, _, loaded), (begin, _) in zip(timeline.loads, timeline.computes, strict=True):
            assert begin >= loaded - 1e-9
        for (_, end), (begin, _) in itertools.pairwise(timeline.computes):
            assert begin >= end
        waited = sum(end - begin for begin, end in timeline.waits)
        assert waited + 20 * compute == pytest.approx(timeline.total)
        assert timeline.busy == pytest.approx(20 * compute / timeline.total)


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
    assert simulate(8, 2, 30, 10, 24).total == 30 + 24 * 10, "many workers: bound by computing, after the first batch"
    assert simulate(3, 2, 30, 10, 24, start_ms=5).total == 3 * 5 + 30 + 24 * 10, "workers start one after another"
    assert simulate(2, 1, 30, 10, 1).total == 40
    assert simulate(0, 1, 0, 5, 2).busy == 1


def test_more_workers_never_slower_and_prefetching_only_helps_against_stalls():
    for load, compute in ((30, 10), (30, 30), (5, 20)):
        totals = [simulate(workers, 2, load, compute, 24).total for workers in range(9)]
        assert totals == sorted(totals, reverse=True)
        assert simulate(4, 8, load, compute, 24).total == pytest.approx(simulate(4, 2, load, compute, 24).total)
    assert simulate(4, 8, stalling(20, 42), 15, 42).total < 0.8 * simulate(4, 1, stalling(20, 42), 15, 42).total


@pytest.mark.parametrize("arguments, error, said", [
    ({"num_workers": -1}, ValueError, "num_workers must be 0 or more, not -1"),
    ({"num_workers": 1.5}, TypeError, "num_workers must be a whole number"),
    ({"num_workers": True}, TypeError, "num_workers must be a whole number"),
    ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be 1 or more"),
    ({"batches": 0}, ValueError, "batches must be 1 or more"),
    ({"load_ms": -1}, ValueError, "load_ms must be 0 or more"),
    ({"load_ms": [1, 2]}, ValueError, "load_ms lists 2 batches, but there are 24"),
    ({"load_ms": "3"}, TypeError, "load_ms must be a number of milliseconds"),
    ({"compute_ms": float("nan")}, ValueError, "compute_ms must be 0 or more"),
    ({"start_ms": float("inf")}, ValueError, "start_ms must be 0 or more"),
    ({"load_ms": 0, "compute_ms": 0}, ValueError, "nothing to see"),
])
def test_what_makes_no_sense_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        simulate(**{"num_workers": 2, **arguments})


def test_pictures():
    for workers in (0, 1, 4, 8, 40):
        picture = draw(simulate(workers, 2, 30, 20, 24, 5), "<simulated>", until=3000)
        assert picture.count("<svg") == 1 and "&lt;simulated&gt;" in picture and "device is busy" in picture
    assert "← best" in draw_sweep([("no workers", 1.5), ("4 workers", 0.5)], best="4 workers")


def test_explorer_redraws_within_50_ms():
    explorer = pipeline_explorer()
    before, times = explorer.picture.value, []
    for value in (8, 3, 1, 5):
        began = time.perf_counter()
        explorer.controls["num_workers"].value = value
        times.append(time.perf_counter() - began)
    assert statistics.median(times) < 0.05
    assert explorer.picture.value != before and "5 workers" in explorer.picture.value
    explorer.controls["stalls"].value = True
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/plain"].startswith("Pipeline simulator") and "data:image/svg" in bundle["text/html"]


# --------------------------------------------------------------------------------------------------------- the workers


def rows_of(script, *args, nprocs=1):
    run = launch(script, nprocs, [str(arg) for arg in args], timeout=100, show=False)
    return run.results[0], run.logs


def span(timeline):
    """Milliseconds from the first batch's arrival to the end, so that the start of workers does not count."""
    return timeline.computes[-1][1] - timeline.computes[0][0]


@pytest.mark.usefixtures("nothing_left")
def test_prediction_agrees_with_a_measurement_within_20_percent():
    # (The lesson itself predicts more settings, and nbval compares its verdict.)
    rows, _ = rows_of("input_pipeline.py", "--workers", 0, 3, "--prefetch", 1, 4, "--epochs", 2, "--batches", 14,
                      "--batch", 1, "--pixels", 8, "--read-ms", 50, "--stall-ms", 120, "--device-ms", 15, "--keep")
    fastest = {}  # of two epochs: other programs only ever add time
    for row in sorted(rows, key=lambda row: span(Timeline.measured(row))):
        fastest.setdefault((row["workers"], row["prefetch"] or 1), Timeline.measured(row))
    loads = [end - begin for _, begin, end in fastest[0, 1].loads]
    compute = statistics.median(end - begin for begin, end in fastest[0, 1].computes)
    for (workers, prefetch), timeline in fastest.items():
        predicted = span(simulate(workers, prefetch, loads, compute, len(loads)))
        assert predicted == pytest.approx(span(timeline), rel=0.2), (workers, prefetch)


@pytest.mark.usefixtures("nothing_left")
def test_input_pipeline_trains_on_real_photos():
    rows, _ = rows_of("input_pipeline.py", "--workers", 0, 2, "--batches", 4, "--pixels", 32)
    for row in rows:
        timeline = Timeline.measured(row)
        assert len(timeline.loads) == len(timeline.computes) == 4
        assert {worker for worker, _, _ in timeline.loads} == set(range(max(1, row["workers"])))
        assert all(0 <= begin < end for begin, end in timeline.computes)
        assert draw(timeline)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("arguments, said", [
    (["--workers", "-1"], "num_workers option should be non-negative"),
    (["--workers", "1", "--prefetch", "0"], "prefetch_factor must be greater than 0"),
    (["--batches", "0"], "--batches and --batch must be 1 or more"),
])
def test_input_pipeline_with_bad_settings_says_so(arguments, said):
    with pytest.raises(RankError, match=said):
        launch("input_pipeline.py", 1, arguments, timeout=60, show=False)


@pytest.mark.usefixtures("nothing_left")
def test_kept_workers_start_once():
    rows, _ = rows_of("worker_start.py", "--methods", "fork")
    fresh, kept = rows
    assert not fresh["persistent"] and kept["persistent"]
    assert kept["second"] < kept["first"] and kept["second"] < fresh["second"]


def test_which_random_numbers_repeat():
    rows, logs = rows_of("worker_seeds.py", nprocs=2)
    different = {source: len(set(numbers)) for source, numbers in rows[0].items()}
    assert different.pop("a_generator_in_the_dataset") == 1
    assert set(different.values()) == {4}
    assert logs[0] == logs[1]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_stream_is_read_once_by_each_worker(workers):
    rows, _ = rows_of("stream_twice.py", "--workers", workers)
    assert sorted(rows[0]["items"]) == sorted(list(range(10)) * max(1, workers))


def test_reading_a_list_grows_a_worker_and_reading_an_array_does_not():
    rows, _ = rows_of("memory_of_lists.py")
    grown = {row["kind"]: row["mib"] for row in rows}
    assert grown["list of str"] > 10 > 3 > grown["numpy array of bytes"]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("signal, said", [("SIGBUS", "shared memory"), ("SIGKILL", "killed by signal: Killed")])
def test_a_killed_worker_is_named(signal, said):
    _, logs = rows_of("worker_killed.py", signal)
    assert "item 3" in logs[0] and "exited unexpectedly" in logs[0] and said in logs[0]


# ------------------------------------------------------------------------------------- the exercises, on stranger code


@pytest.mark.usefixtures("nothing_left")
def test_worker_that_dies_in_an_exercise():
    def shard_the_stream(stream, rank, world_size):
        import os

        from torch.utils.data import get_worker_info

        if get_worker_info():
            os._exit(3)
        return [item for item in stream if item % world_size == rank]

    feedback = data_loading.shard_the_stream.check(shard_the_stream)
    assert feedback.status == "not yet" and "DataLoader worker" in repr(feedback)


@pytest.mark.usefixtures("nothing_left")
def test_worker_that_hangs_in_an_exercise(monkeypatch):
    monkeypatch.setattr(type(data_loading.shard_the_stream), "timeout", 3)

    def shard_the_stream(stream, rank, world_size):
        import time

        from torch.utils.data import get_worker_info

        time.sleep(1000 if get_worker_info() else 0)
        return [item for item in stream if item % world_size == rank]

    feedback = data_loading.shard_the_stream.check(shard_the_stream)
    assert feedback.status == "not yet" and "no result after 3 s" in repr(feedback)


@pytest.mark.usefixtures("nothing_left")
def test_worker_that_raises_in_an_exercise_is_shown_with_the_learners_line():
    def shard_the_stream(stream, rank, world_size):
        from torch.utils.data import get_worker_info

        if get_worker_info():
            raise KeyError("mine")
        return [item for item in stream if item % world_size == rank]

    feedback = data_loading.shard_the_stream.check(shard_the_stream)
    assert feedback.status == "not yet" and 'raise KeyError("mine")' in repr(feedback)


@pytest.mark.parametrize("exercise, answer", [
    ("shard_the_stream", lambda stream, rank, world_size: [list(stream)]),
    ("shard_the_stream", lambda stream, rank, world_size: 7),
    ("shard_the_stream", lambda stream, rank, world_size: (str(item) for item in stream)),
    ("hide_the_loading", lambda dataset: [1, 2]),
    ("hide_the_loading", lambda dataset: dataset),
    ("slowest_transform", lambda transforms, image: transforms),
    ("slowest_transform", lambda transforms, image: transforms.clear()),
    ("slowest_transform", lambda transforms, image: None),
])
def test_what_is_no_answer_gets_feedback(exercise, answer):
    feedback = getattr(data_loading, exercise).check(answer)
    assert feedback.status == "not yet" and "cannot read" not in repr(feedback), feedback


@pytest.mark.usefixtures("nothing_left")
def test_loader_without_batches_and_loader_of_dicts_get_feedback():
    from torch.utils.data import DataLoader

    def single(dataset):
        return DataLoader(dataset, batch_size=None, num_workers=2)

    def in_dicts(dataset):
        return DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=lambda items: {"items": items})

    assert "a batch of 1 arrived" in repr(data_loading.hide_the_loading.check(single))
    assert data_loading.hide_the_loading.check(in_dicts).status == "not yet"
