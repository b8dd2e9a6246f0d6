"""helpers.records and tools/record.py: what is run or skipped, and why; what is stored, and shown."""

import json
import shutil
import subprocess
import sys

import pytest

from helpers import records
from tests.conftest import LESSONS, ROOT, eventually, running
from tests.stand_in_gpus import environment

RECORDED = '''
"""Experiments of a lesson that is made for a test."""

import os

from helpers.records import experiment


@experiment(gpus=0)
def adds():
    """One and one."""
    print("noise")
    return {"sum": 2, "halves": [0.5, 1 / 3], "of": {"deep": True}}


@experiment(gpus=1)
def on_a_gpu():
    """The device of a tensor."""
    import torch
    return str(torch.ones(1, device="cuda").device)


@experiment(gpus=2)
def ranks():
    """The devices of two ranks."""
    import torch.multiprocessing as mp
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, args=(queue,), nprocs=2)
    return sorted([queue.get(), queue.get()])


def rank(index, queue):
    import torch
    queue.put(str(torch.ones(1, device=f"cuda:{index}").device))


@experiment(gpus=0)
def launched():
    """What two ranks of `launch` return."""
    from helpers import launch
    return launch(int, nprocs=2, show=False).results


@experiment(gpus=1)
def raises():
    """Nothing."""
    raise RuntimeError("no such luck")


@experiment(gpus=0)
def dies():
    """Nothing."""
    os.abort()


@experiment(gpus=8)
def eight():
    """What eight GPUs find."""
    return 8
'''
HANGING = '''
from helpers.records import experiment


@experiment(gpus=0)
def hangs():
    """Nothing."""
    import subprocess
    import time
    subprocess.Popen(["sleep", "987"])
    time.sleep(100)
'''


@pytest.fixture
def course(tmp_path):
    """A copy of the course, not installed, where only `made_up` and `hanging` have experiments."""
    root = tmp_path / "copy"
    for folder in ("helpers", "tools", "notebooks/lessons"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for other in (root / "notebooks" / "lessons").glob("*/recorded.py"):
        other.unlink()
    for lesson, code in (("made_up", RECORDED), ("hanging", HANGING)):
        (root / "notebooks" / "lessons" / lesson).mkdir(parents=True)
        (root / "notebooks" / "lessons" / lesson / "recorded.py").write_text(code, encoding="utf-8")
    return root


def record(course, gpus, *args):
    """What tools/record.py prints on a machine with so many GPUs, and what it stores of the lesson."""
    done = subprocess.run([sys.executable, course / "tools" / "record.py", *args], env=environment(gpus),
                          cwd=course.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    stored = course / "data" / "records" / "made_up.json"
    return done.stdout, json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else None


@pytest.mark.long
def test_machines_with_more_and_more_gpus_record_what_they_can(course):
    older = {"result": 88, "seconds": 1.0, "gpus": "8 × Larger", "driver": "1", "cuda": "13.0",
             "torch": "2.11.0", "python": "3.10.0", "date": "2026-01-01"}
    folder = course / "data" / "records"
    records.store(folder / "made_up.json", {"results": {"eight": older, "gone": older}, "skipped": {}})
    (folder / "launch.json").write_text("a benchmark's own")
    before = (folder / "made_up.json").read_bytes()
    said, _ = record(course, 0)
    assert "no GPU here" in said and (folder / "made_up.json").read_bytes() == before

    said, stored = record(course, 1, "made_up")
    assert {name: row["result"] for name, row in stored["results"].items()} == {
        "adds": {"sum": 2, "halves": [0.5, 1 / 3], "of": {"deep": True}}, "on_a_gpu": "cuda:0",
        "launched": [0, 0], "eight": 88}, "not `gone`, an experiment that the lesson no longer has"
    assert stored["results"]["eight"] == older and "the earlier result stays" in said
    machine = stored["results"]["adds"]
    assert machine["gpus"] == "1 × Stand-in GPU" and machine["driver"] == "000.00" and machine["cuda"]
    assert machine["python"].startswith("3.") and machine["torch"][0].isdigit()
    assert machine["date"] > "2026"
    assert "made_up.adds: " in said and " s in all, 4 skipped" in said
    assert stored["skipped"] == {
        "ranks": "needs 2 GPUs, this machine has 1", "raises": "raised RuntimeError: no such luck",
        "dies": "ended by SIGABRT",
        "eight": "needs 8 GPUs, this machine has 1"}
    assert all(why in said for why in stored["skipped"].values())
    assert (folder / "launch.json").read_text() == "a benchmark's own"

    (course / "notebooks" / "lessons" / "made_up" / "recorded.py").write_text(
        RECORDED.partition("@experiment(gpus=0)\ndef launched")[0], encoding="utf-8")
    said, stored = record(course, 8, "made_up")
    assert stored["results"]["ranks"]["result"] == ["cuda:0", "cuda:1"] and stored["skipped"] == {}
    assert stored["results"]["ranks"]["gpus"] == "8 × Stand-in GPU" and "0 skipped" in said


@pytest.mark.long
def test_a_hang_costs_its_limit_and_leaves_no_process(course):
    said, _ = record(course, 1, "--limit", "4", "hanging")
    assert "skipped after 4." in said and "not finished after 4 s" in said and "1 skipped" in said
    assert eventually(lambda: not running("sleep 987"))


@pytest.fixture
def lesson(monkeypatch, tmp_path):
    """A lesson of two experiments, one of them recorded."""
    @records.experiment(gpus=1)
    def speed():
        """Seconds, by format: median of 5.

        More about it.
        """

    @records.experiment(gpus=2)
    def scaling():
        """Images a second."""

    monkeypatch.setattr(records, "experiments", lambda lesson: {"speed": speed, "scaling": scaling})
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    machine = {"gpus": "1 × NVIDIA H100 80GB HBM3", "driver": "580.1", "cuda": "13.0", "torch": "2.11.0",
               "python": "3.12.3", "date": "2026-11-21", "seconds": 3.0}
    result = {"fp32": 0.123456, "rows": [1.0, 2], "deep": {"a": 3}}
    stored = {"results": {"speed": {"result": result, **machine}}, "skipped": {}}
    records.store(tmp_path / "lesson.json", stored)


def test_a_lesson_shows_the_numbers_and_their_machine(lesson):
    shown = records.recorded("lesson", "speed")
    assert shown.result["fp32"] == 0.123456
    assert repr(shown).splitlines() == [
        "Seconds, by format: median of 5.",
        "recorded: 1 × NVIDIA H100 80GB HBM3, driver 580.1, CUDA 13.0, torch 2.11.0, Python 3.12.3, "
        "2026-11-21",
        "  fp32: 0.1235", "  rows: 1, 2", "  deep:", "    a: 3"]


@pytest.mark.parametrize("name", ["lesson", "another"])
def test_a_lesson_without_a_result_says_what_would_be_measured(lesson, name):
    shown = records.recorded(name, "scaling")
    assert shown.result is None
    assert repr(shown) == "Would be measured on a machine with 2 GPUs, by tools/record.py: Images a second."


BOOKS = {path.stem.partition("_")[2]: path for path in LESSONS}
RECORDING = [lesson for lesson in BOOKS if (ROOT / "notebooks/lessons" / lesson / "recorded.py").exists()]


@pytest.mark.parametrize("lesson", RECORDING)
def test_each_experiment_says_what_it_measures_and_is_shown(lesson):
    cells = json.loads(BOOKS[lesson].read_text(encoding="utf-8"))["cells"]
    shown = [source for source in ("".join(cell["source"]) for cell in cells) if "recorded(" in source]
    for name, function in records.experiments(lesson).items():
        assert function.gpus >= 1 and (function.__doc__ or "").strip().splitlines()[0].endswith("."), name
        assert any(f'"{name}"' in source for source in shown), name
