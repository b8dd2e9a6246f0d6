"""helpers/experiments.py, tools/record.py, and every experiment of the lessons: rehearsed under stand-in GPUs."""

import json
import os
import re
import shutil
import subprocess
import sys
import types

import nbformat
import pytest

from helpers.experiments import SMALL, experiment, machine
from helpers.records import DataError
from tests.conftest import LESSONS, ROOT, eventually, running
from tests.stand_in_gpus import environment
from tools.execute import EXPERIMENT
from tools.record import all_experiments, main

EXPERIMENTS = {f"{one.lesson}.{one.name}": one for one in all_experiments()}

#: What is refused in a rehearsal, by experiment: stand-ins have no FlexAttention, and memory shall come to its end.
REFUSED = {"context_and_experts.packed_documents": "Expect q/k/v", "mixed_precision.batch_sizes": "out of memory"}
#: Statements of experiments that no stand-in reaches, by lesson, sorted.
ONLY_ON_A_CARD = {
    "context_and_experts": [
        "by_pairs = 1 / pairs",
        'faster = without_mask["ms"] / flex["ms"]',
        'return (f"FlexAttention computes only blocks that hold such pairs. It is **{faster:.1f} times** as fast as "',
    ],
    "data_loading": ['words += f" This machine refused some settings: `{refusal}`."'],
    "distributed_data_parallel": [
        "about_number = (",
        'return "This NCCL lets two ranks use the same GPU: the sum of a one in each rank is **2**."',
        'return f"{ones.item():g}"',
        'return {"refused": str(error).partition("\\n")[0]}',
        'words += f" `{name}`: {after_call.get(\'refused\', after_call)}."',
    ],
    "mixed_precision": [
        'return f"{promised:,}, reached {rate / promised:.0%}"',
        'table += f"| {name} | {row[\'refused\']} | | | |\\n"',
    ],
    "model_parallel": [
        'on_gpu = real["refused"]',
    ],
    "parallel_sgd": [
        "if time.monotonic() > until:",
        "raise RuntimeError(Path(log.name).read_text() or answer.stderr)",
        'return ". ".join(refusals)',
        'return f"The program was refused: **{rows[\'refused\']}**"',
        'return f"| {title} | refused: {rows[\'refused\']} | | |"',
        "table += others",
        "time.sleep(0.1)",
    ],
    "processes": [
        "return arrived",
        'return f"Here a CUDA tensor cannot be sent: **{row[\'refused\']}**"',
        'words += (f" `nvidia-smi` lists {len(listed)} processes, with {min(listed):,} to {max(listed):,} MiB each. "',
    ],
    "profiling": [
        "return NO_LINE",
        'return f"{row[\'refused\']} |  | "',
    ],
    "scaling": [
        'refused_lines.append(f"{begin} {row[\'refused\']} | | | | | |")',
    ],
    "speed_ladder": [
        'lines.append(f"| {rung} | {refusals[0]} | | | | | |")',
        'return ""',
    ],
}


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """{name: row} of tests/rehearsal.py, and the statements that were not executed, as `lesson:number`."""
    out = tmp_path_factory.mktemp("rehearsal")
    done = subprocess.run([sys.executable, "-m", "tests.rehearsal", out], env=environment(2), cwd=ROOT,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    statements, executed = ((out / name).read_text().splitlines() for name in ("statements", "executed"))
    return {row["name"]: row for row in rows}, [line for line in statements if line not in {*executed}]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_whole_on_stand_ins_and_can_be_shown(name, rehearsed):
    row, one = rehearsed[0][name], EXPERIMENTS[name]
    assert "error" not in row, row["error"]
    assert row["headline"] and (row.get("figures") == 1) == (one.draw is not None)
    assert all(size <= 300_000 for size in row["bytes"].values())
    for refused in re.findall(r'"refused": "([^"]*)', json.dumps(row["result"])):
        assert REFUSED.get(name, "nothing") in refused


def test_few_lines_are_left_to_the_card(rehearsed):
    left = {}
    for place in rehearsed[1]:
        lesson, _, number = place.partition(":")
        source = (ROOT / "notebooks" / "lessons" / lesson / "recorded.py").read_text(encoding="utf-8")
        left.setdefault(lesson, []).append(source.splitlines()[int(number) - 1].strip())
    assert {lesson: sorted(lines) for lesson, lines in left.items()} == ONLY_ON_A_CARD


def test_all_that_one_gpu_shows_fits_the_time_that_one_is_lent():
    one_gpu = [one for one in EXPERIMENTS.values() if one.gpus == 1]
    assert sum(one.seconds for one in one_gpu) <= 280
    assert len(one_gpu) >= 20


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)
def test_a_lesson_shows_each_of_its_experiments_once_as_they_are_recorded(path):
    cells = nbformat.read(path, as_version=4).cells
    mine = {one.name: one for one in EXPERIMENTS.values() if one.lesson == path.stem.partition("_")[2]}
    for name, one in mine.items():
        [cell] = [cell for cell in cells if (call := EXPERIMENT.search(cell.source)) and call[1] == name]
        assert {"hide-input", "nbval-ignore-output"} <= set(cell.metadata.get("tags", ()))
        stored = dict(cell.outputs[-1].data)
        assert stored == one.words(one.recorded()), "run tools/execute.py --experiments"
        assert one.question.endswith("?")


@pytest.mark.long
def test_each_runs_in_a_process_of_its_own():
    done = subprocess.run([sys.executable, "tools/record.py"], env={**environment(2), SMALL: "1"}, cwd=ROOT,
                          capture_output=True, text=True, timeout=600)
    table = done.stdout.partition(" experiments in ")[2].splitlines()[1:]
    assert len(table) == len(EXPERIMENTS) and "FAIL" not in done.stdout, done.stdout


def test_without_a_gpu_each_says_why_it_was_not_run():
    done = subprocess.run([sys.executable, "tools/record.py"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    table = done.stdout.partition(" experiments in ")[2].splitlines()[1:]
    assert len(table) == len(EXPERIMENTS)
    assert all("not run: needs" in row and "this machine has 0" in row for row in table)


MADE_UP = '''
"""Experiments of a lesson that is made for a test."""

import os
import subprocess
import time

import torch

from helpers.experiments import attempt, experiment, in_ranks


@experiment(gpus=1, seconds=1, wanted=1)
def device():
    """Where is a tensor?"""
    print("noise")
    return {"device": str(torch.ones(1, device="cuda").device), 8: (1, 0.5), "raw.gz": b"bytes"}


@device.tells
def device_in_words(result):
    return f"It is on **{result['device']}**. " + result["raw.gz"].decode()


@experiment(gpus=2, seconds=1)
def ranks():
    """What do two ranks add up to?

    By an all-reduce.
    """
    return {"sums": in_ranks(add, 2, 3.0, backend="nccl")}


def add(number):
    x = torch.full((1,), number, device="cuda")
    torch.distributed.all_reduce(x)
    return x.item(), str(x.device)


@ranks.tells
def ranks_in_words(result):
    return f"To **{result['sums'][0][0]:g}**."


@experiment(gpus=1, seconds=1)
def refused():
    """What does a card refuse?"""
    return attempt(torch.empty, 2**31, device="cuda")


refused.tells(lambda found: f"**{found['refused']}**")


@experiment(gpus=1, seconds=1)
def raises():
    """Nothing?"""
    raise RuntimeError("no such luck")


@experiment(gpus=1, seconds=1)
def dies():
    """Nothing?"""
    os.abort()


@experiment(gpus=1, seconds=1)
def spoilt():
    """What if there is a record that cannot be read?"""
    return {"a": 1}


@experiment(gpus=1, seconds=1)
def speechless():
    """What if the words do not expect it?"""
    return {"a": 1}


speechless.tells(lambda result: result["b"])


@experiment(gpus=1, seconds=-1.6, wanted=3)
def hangs():
    """Nothing?"""
    subprocess.Popen(["sleep", "987"])
    time.sleep(100)
'''


@pytest.fixture
def course(tmp_path):
    """A copy of the course, not installed, where only the lesson `made_up` has experiments."""
    root = tmp_path / "copy"
    for folder in ("helpers", "tools", "notebooks/lessons"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for other in (root / "notebooks" / "lessons").glob("*/recorded.py"):
        other.unlink()
    (root / "notebooks" / "lessons" / "made_up").mkdir()
    (root / "notebooks" / "lessons" / "made_up" / "recorded.py").write_text(MADE_UP, encoding="utf-8")
    return root


def record(course, gpus, *args, **variables):
    """{experiment: row of the table} that tools/record.py prints on a machine with so many stand-ins."""
    done = subprocess.run([sys.executable, course / "tools" / "record.py", *args], env=environment(gpus) | variables,
                          cwd=course.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    rows = done.stdout.partition(" experiments in ")[2].splitlines()[1:]
    return {row.split()[0].partition(".")[2]: row for row in rows}


def test_what_is_found_is_stored_and_what_fails_says_why(course, capsys):
    folder = course / "data" / "records" / "gpus" / "made_up"
    folder.mkdir(parents=True)
    (folder / "spoilt.json").write_text("<<<<<<< HEAD")
    rows = record(course, 1)
    assert list(rows) == ["device", "ranks", "refused", "raises", "dies", "spoilt", "speechless",
                          "hangs"], "most wanted first"
    assert "cuda:0" in rows["device"] and "out of memory" in rows["refused"]
    assert "needs 2 GPU(s), this machine has 1" in rows["ranks"]
    assert "no such luck" in rows["raises"] and "recorded.py\", line" in capsys.readouterr().out
    assert "git checkout" in rows["spoilt"], "and those after it are measured all the same"
    assert "SIGABRT" in rows["dies"] and "measured, but its words fail: KeyError: 'b'" in rows["speechless"]
    assert "no result after 2 s" in rows["hangs"] and eventually(lambda: not running("sleep 987"))
    assert {path.name for path in folder.iterdir()} == {
        "device.json", "device.1-Stand-in-GPU.raw.gz", "refused.json", "spoilt.json", "speechless.json"}
    [stored] = json.loads((folder / "device.json").read_text(encoding="utf-8"))
    assert stored["result"] == {"device": "cuda:0", "8": [1, 0.5]} and stored["gpus"] == "1 × Stand-in GPU"
    assert stored["driver"] == "000.00" and stored["cuda"] and stored["date"] > "2026" and stored["torch"]


@pytest.mark.long
def test_records_of_several_machines_stand_side_by_side(course):
    folder = course / "data" / "records" / "gpus" / "made_up"
    record(course, 1, "device")
    rows = record(course, 2, "ranks", "device")
    assert len(rows) == 2 and rows["ranks"].endswith("6")
    record(course, 1, "device", PATH=os.environ["PATH"])
    assert [one["gpus"] for one in json.loads((folder / "device.json").read_text(encoding="utf-8"))] == [
        "1 × GPU without nvidia-smi", "2 × Stand-in GPU", "1 × Stand-in GPU"]
    [stored] = json.loads((folder / "ranks.json").read_text(encoding="utf-8"))
    assert stored["result"] == {"sums": [[6.0, "cuda:0"], [6.0, "cuda:1"]]}


@pytest.fixture
def speed(monkeypatch, tmp_path):
    """An experiment without a record."""
    monkeypatch.setattr("helpers.experiments.COURSE", tmp_path)
    monkeypatch.setattr("helpers.experiments.RECORDS", tmp_path / "data" / "records")
    monkeypatch.setattr("helpers.launcher.files.run_folder", lambda: tmp_path)  # one of its own goes with this process

    def speed():
        """How fast is <it>?

        By `two` clocks.
        """

    speed.__module__ = "lessons.made_up.recorded"
    made = experiment(gpus=1, seconds=3)(speed)
    made.tells(lambda found: f"It does **{found['rate']:.0f} a second**, {found['raw.gz'].decode()}.")
    return made


def test_until_there_is_a_record_a_lesson_shows_one_folded_line(speed):
    [output] = shown(speed)
    assert output["text/plain"] == "How fast is <it>?"
    assert output["text/html"].startswith("<details><summary>On one GPU: <b>How fast is &lt;it&gt;?</b></summary>")
    assert "<p>By <code>two</code> clocks.</p>" in output["text/html"] and "We expect 3 s" in output["text/html"]
    assert "<pre>def speed():</pre>" in output["text/html"], "without its decorator and its docstring"


def test_then_it_shows_the_words_and_their_machine(speed):
    machine = {"driver": "580.1", "cuda": "13.0", "torch": "2.11.0", "python": "3.12.3", "date": "2026-11-21"}
    for gpus, rate in (("1 × NVIDIA H100", 7.4), ("1 × NVIDIA H200", 9.6), ("1 × NVIDIA H100", 8.2)):
        speed.store({"result": {"rate": rate, "raw.gz": gpus[-4:].encode()}, "gpus": gpus, **machine})
    assert [one["result"]["rate"] for one in speed.records()] == [8.2, 9.6]
    words = ("**How fast is <it>?**\n\nIt does **8 a second**, H100.\n\n"
             "The file: `data/records/gpus/made_up/speed.1-NVIDIA-H100.raw.gz`\n\n"
             "*1 × NVIDIA H100, driver 580.1, CUDA 13.0, torch 2.11.0, 2026-11-21*. "
             "*On 1 × NVIDIA H200:* `speed.show('1 × NVIDIA H200')`")
    assert shown(speed) == [{"text/plain": words, "text/markdown": words}], "in a terminal, too"
    assert "**10 a second**, H200" in shown(speed, "h200")[0]["text/markdown"]
    with pytest.raises(ValueError, match=r"on 'A100'\. There are records of: 1 × NVIDIA H100, 1 × NVIDIA H200\."):
        speed.show("A100")


def test_what_was_recorded_on_this_machine_today_is_not_measured_again(speed, monkeypatch):
    one_gpu = types.SimpleNamespace(usable_gpus=1, gpus=("Card",), driver="580.1", cpu="CPU", cores=16)
    monkeypatch.setattr("helpers.experiments.hardware", one_gpu)
    speed.store({"result": {"rate": 5.0, "raw.gz": b"raw"}, **machine()})
    assert "**5 a second**" in shown(speed)[0]["text/markdown"]
    speed.store({"result": {"rate": 6.0, "raw.gz": b"raw"}, **machine(), "date": "2026-01-01"})
    monkeypatch.setattr(type(speed), "run", lambda self: {"result": {"rate": 7.0, "raw.gz": b"raw"}, **machine()})
    assert "**7 a second**" in shown(speed)[0]["text/markdown"]
    monkeypatch.setattr(type(speed), "run", lambda self: {"result": {"refused": "out of memory"}, **machine()})
    assert "**6 a second**" in shown(speed)[0]["text/markdown"], "the record, because a small card refuses"


def test_a_damaged_record_is_refused_in_words(speed):
    speed.store({"result": {"rate": 1.0, "raw.gz": b"raw"}, "gpus": "1 × GPU"})
    for damage in ("speed.1-GPU.raw.gz", "speed.json"):
        [path] = speed._file.parent.glob(damage)
        path.unlink() if path.suffix == ".gz" else path.write_text('[{"result"')
        with pytest.raises(DataError, match=r"Cannot read speed\.json.*git checkout -- data/records"):
            speed.records()


def test_a_headline_is_what_is_bold(speed):
    speed.tells(lambda found: "It does 8 a second.")
    with pytest.raises(ValueError, match=r"nothing is \*\*bold\*\* in 'It does 8 a second\.'"):
        speed.headline({})


def test_a_name_that_is_none_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["record.py", "data_parallel", "04_data_parallel"])
    with pytest.raises(SystemExit):
        main()
    assert "is called 04_data_parallel. The lessons: context_and_experts, data_loading" in capsys.readouterr().err


def shown(made, *args):
    """What `show` displays in a notebook."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    before, shell.display_pub = shell.display_pub, CapturingDisplayPublisher()
    try:
        made.show(*args)
        return [output["data"] for output in shell.display_pub.outputs]
    finally:
        shell.display_pub = before
        InteractiveShell.clear_instance()
