"""launch: what it promises when nothing goes wrong, and what it refuses. (Scripts: tests/conformance.)"""

import linecache
import math
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers import RankError, launch, report
from helpers.launcher import client, output

pytestmark = pytest.mark.usefixtures("nothing_left")


def group():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist


def test_a_function_runs_in_every_rank_and_returns_by_rank():
    def add_ranks(start, big):
        dist = group()
        total = torch.tensor([start + dist.get_rank()])
        dist.all_reduce(total)
        return dist.get_rank(), total, big * 2

    big = torch.arange(1_000_000)
    run = launch(add_ranks, nprocs=3, args=(10, big), show=False)
    assert [result[:2] for result in run.results] == [(rank, torch.tensor([33])) for rank in range(3)]
    assert all(torch.equal(result[2], big * 2) for result in run.results)
    assert run.seconds > 0
    assert repr(run) == "<Run of 3 ranks>"


def test_a_script_reports_rows_and_finds_what_lies_beside_it(tmp_path):
    script, neighbour = tmp_path / "script.py", tmp_path / "neighbour.py"
    script.write_text("import sys, neighbour\nfrom helpers import report\n"
                      "print(sys.argv[1:], neighbour.WORD)\nreport(a=1)\nreport(loss=float('nan'))\n")
    for word in ("near", "edited"):
        neighbour.write_text(f"WORD = {word!r}")
        run = launch(script, nprocs=2, args=["--lr", 0.1], show=False)
        assert run.logs == [f"['--lr', '0.1'] {word}\n"] * 2
    assert [rows[0] for rows in run.results] == [{"a": 1}] * 2
    assert math.isnan(run.reports[1][1]["loss"])


def test_a_folder_and_a_zip_file_are_programs_too(tmp_path):
    main = tmp_path / "folder" / "__main__.py"
    main.parent.mkdir()
    main.write_text("import sys; print(__name__, sys.argv[1:])")
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as file:
        file.write(main, "__main__.py")
    for program in (main.parent, tmp_path / "program.pyz"):
        assert launch(program, nprocs=1, args=["a"], show=False).logs == ["__main__ ['a']\n"]


def test_two_launches_at_once_from_threads():
    def work(number):
        group()
        total = torch.tensor([number])
        torch.distributed.all_reduce(total)
        return total.item()

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda number: launch(work, 2, (number,), show=False, timeout=60), (1, 10)))
    assert [run.results for run in runs] == [[2, 2], [20, 20]]


def test_ranks_get_the_environment_of_this_moment_and_torchruns_threads(monkeypatch):
    monkeypatch.setenv("COURSE_TEST_WORD", "now")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environ = os.environ  # `from os import environ`: no copy of the notebook's
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "COURSE_TEST_WORD",
             "OMP_NUM_THREADS", "HELPERS_SESSION")

    def work():
        return [environ.get(name) for name in names], torch.get_num_threads()

    here = ["1", "1", "2", "2", "127.0.0.1", "now", "1", None]
    assert launch(work, nprocs=2, show=False).results[1] == (here, 1)
    cores = len(os.sched_getaffinity(0))
    assert launch(torch.get_num_threads, nprocs=1, show=False).results == [cores]


def test_reports_arrive_while_the_ranks_run():
    seen, stop = [], threading.Event()

    def on_report(rank, row):
        seen.append((rank, row))
        stop.set()

    def work():
        report(step=1, loss=torch.tensor(0.5))
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        launch(work, nprocs=1, on_report=on_report, stop=stop, show=False, timeout=30)
    assert seen == [(0, {"step": 1, "loss": 0.5})]


def test_a_terminal_shows_tagged_lines_as_they_come_and_a_bars_last_state(capsys):
    def work():
        print("hello\nworld")
        for percent in (0, 50, 100):
            print(f"\r{percent:3d}%", end="", flush=True)

    run = launch(work, nprocs=2)
    assert run.logs == ["hello\nworld\n100%"] * 2
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[0] 100%", "[0] hello", "[0] world", "[1] 100%", "[1] hello", "[1] world"]


def test_logs_are_ordered_by_rank_and_floods_are_bounded():
    text = output.by_rank(["a\nb\n", "".join(f"{i}\n" for i in range(1000)), "x" * 5000])
    lines = text.splitlines()
    assert lines[:2] == ["[0] a", "[0] b"]
    assert lines[2] == "[1] 0" and lines[-2] == "[1] 999"
    assert "[1] … (950 more lines; run.logs[1] has them) …" in lines
    assert lines[-1].endswith("… (4,000 more characters)")
    assert len(lines) == 2 + 51 + 1


async def later():
    pass


@pytest.mark.parametrize(("error", "says", "work", "options"), [
    (ValueError, "at least one rank", print, {"nprocs": 0}),
    (TypeError, "whole number", print, {"nprocs": 2.5}),
    (ValueError, "at most 64", print, {"nprocs": 10_000}),
    (ValueError, "seconds", print, {"timeout": 0}),
    (ValueError, "seconds", print, {"timeout": "5"}),
    (TypeError, "env must be a dict of texts", print, {"env": {"A": 1}}),
    (TypeError, "env must be a dict of texts", print, {"env": {1: "A"}}),
    (ValueError, "this machine has", print, {"gpus": 99}),
    (FileNotFoundError, r"no script 'helo\.py'.*hello\.py", "helo.py", {}),
    (IsADirectoryError, "folder", ".", {}),
    (ValueError, "notebook", "book.ipynb", {}),
    (SyntaxError, r"wrong\.py, line 1", "wrong.py", {}),
    (TypeError, "runs a script", 3, {}),
    (TypeError, "list or tuple", "hello.py", {"args": "--epochs 3"}),
    (TypeError, "words and numbers", "hello.py", {"args": [object()]}),
    (TypeError, "kwargs are for functions", "hello.py", {"kwargs": {"lr": 1}}),
    (TypeError, "argument 0, a generator", print, {"args": ((i for i in range(3)),)}),
    (TypeError, "async", later, {}),
])
def test_what_is_wrong_is_refused_with_advice(error, says, work, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.ipynb").write_text("{}")
    (tmp_path / "wrong.py").write_text("def f(:\n  pass\n")
    with pytest.raises(error) as caught:
        launch(work, **options)
    assert re.search(says, str(caught.value))


@pytest.mark.parametrize("noted", [None, time.time()], ids=["as IPython 8 does", "as IPython 7 does, with a time"])
def test_a_rank_shows_the_lines_of_a_function_that_no_file_holds(noted):
    name, source = "/tmp/ipykernel_1/2.py", "def divides():\n    return 1 // 0  # by nothing"
    linecache.cache[name] = len(source), noted, source.splitlines(keepends=True), name
    scope = {}
    exec(compile(source, name, "exec"), scope)
    with pytest.raises(RankError) as caught:
        launch(scope["divides"], 1, show=False)
    del linecache.cache[name]
    assert "    return 1 // 0  # by nothing\n" in caught.value.failures[0].traceback


def test_launch_inside_a_rank_is_refused():
    with pytest.raises(RankError, match="inside a rank"):
        launch(lambda: launch(print), nprocs=1, show=False)


def test_where_there_is_no_fork_server_ranks_are_spawned(monkeypatch):
    monkeypatch.setattr(client, "START_METHOD", "spawn")
    monkeypatch.setenv("COURSE_START_METHOD", "spawn")  # what the ranks, which import all this anew, go by

    def add():
        dist = group()
        total = torch.ones(1)
        dist.all_reduce(total)
        print("spawned")
        if dist.get_rank() == 1:
            raise ValueError("spawned and failed")
        return total.item()

    with pytest.raises(RankError, match="spawned and failed") as caught:
        launch(add, nprocs=2, show=False, timeout=120, grace=10)
    assert caught.value.results == {0: 2.0} and caught.value.logs == ["spawned\n"] * 2


def test_importing_helpers_is_cheap_and_loads_no_torch():
    code = ("import sys; before = set(sys.modules); import helpers\n"
            "print(len(set(sys.modules) - before) < 50)\n"
            "from helpers import launch, report; print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr
