"""launch: what it promises when nothing goes wrong, and what it refuses."""

import math
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from helpers import RankError, launch
from helpers.launcher import output, server

pytestmark = pytest.mark.usefixtures("nothing_left")


def group():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist


def test_a_function_runs_in_every_rank_and_returns_by_rank():
    def add_ranks(start):
        dist = group()
        total = torch.tensor([start + dist.get_rank()])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"]), total

    run = launch(add_ranks, nprocs=3, args=(10,), show=False)
    assert run.results == [(rank, torch.tensor([33])) for rank in range(3)]
    assert run.seconds > 0
    assert repr(run) == "<Run of 3 ranks>"


def test_a_function_can_be_redefined():
    def make(value):
        def work():
            return value
        return work

    assert [launch(make(v), nprocs=1, show=False).results for v in (1, 2)] == [[1], [2]]


def test_a_script_runs_as_main_with_its_arguments_beside_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("WORD = 'near'")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import sys, os, atexit
        import torch.distributed as dist
        from helpers import report
        from neighbour import WORD

        def main():
            dist.init_process_group()
            atexit.register(print, "bye")
            print(sys.argv[1:], WORD, __file__ == sys.argv[0])
            report(rank=dist.get_rank(), world=dist.get_world_size())
            report(loss=float("nan"))
            dist.destroy_process_group()

        if __name__ == "__main__":
            main()
    """))
    run = launch(script, nprocs=2, args=["--lr", 0.1], show=False)
    assert run.logs == ["['--lr', '0.1'] near True\nbye\n"] * 2
    assert [rows[0] for rows in run.results] == [{"rank": 0, "world": 2}, {"rank": 1, "world": 2}]
    assert math.isnan(run.reports[1][1]["loss"])


def test_an_edited_script_and_module_run_as_edited(tmp_path):
    script, module = tmp_path / "script.py", tmp_path / "part.py"
    script.write_text("import part; print(part.VALUE)")
    for value in (1, 22):
        module.write_text(f"VALUE = {value}")
        assert launch(script, nprocs=1, show=False).logs == [f"{value}\n"]


def test_ranks_get_the_environment_of_this_moment(monkeypatch):
    monkeypatch.setenv("COURSE_TEST_WORD", "now")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def look():
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "COURSE_TEST_WORD")
        of_the_server = ("OMP_NUM_THREADS", "HELPERS_SESSION", "MKL_NUM_THREADS")
        return {name: os.environ.get(name) for name in (*names, *of_the_server)}

    here = launch(look, nprocs=2, show=False).results[1]
    assert here == {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1", "COURSE_TEST_WORD": "now", "OMP_NUM_THREADS": "1",
                    "HELPERS_SESSION": None, "MKL_NUM_THREADS": None}
    environ = os.environ  # `from os import environ`: no copy of the notebook's
    assert launch(lambda: environ["RANK"], nprocs=2, show=False).results == ["0", "1"]


def test_threads_are_those_of_torchrun(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert launch(torch.get_num_threads, nprocs=2, show=False).results == [1, 1]
    assert launch(torch.get_num_threads, nprocs=1, show=False).results == [cores]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert launch(torch.get_num_threads, nprocs=2, show=False).results == [2, 2]


def test_ranks_form_groups_one_after_another_and_subgroups():
    def several():
        seen = []
        for _ in range(3):
            dist = group()
            seen.append(dist.get_world_size())
            part = dist.new_group([0, 1])
            if dist.get_rank() < 2:
                dist.barrier(part)
            dist.destroy_process_group()
        return seen

    assert launch(several, nprocs=3, show=False).results == [[3, 3, 3]] * 3


def test_explicit_rank_and_world_size_are_honoured():
    def explicit():
        import torch.distributed as dist

        rank, world = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
        dist.init_process_group("gloo", rank=rank, world_size=world)
        return dist.get_rank(), dist.get_world_size()

    assert launch(explicit, nprocs=2, show=False).results == [(0, 2), (1, 2)]


def test_ddp_that_outlives_its_group_does_not_hang():
    def train():
        dist = group()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        dist.destroy_process_group()

    for _ in range(5):
        launch(train, nprocs=2, show=False, timeout=30)


def test_reports_arrive_while_the_ranks_run():
    from helpers import report

    seen, stop = [], threading.Event()

    def on_report(rank, row):
        seen.append((rank, row))
        stop.set()

    def work():
        import time

        report(step=1, loss=torch.tensor(0.5))
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        launch(work, nprocs=1, on_report=on_report, stop=stop, show=False, timeout=30)
    assert seen == [(0, {"step": 1, "loss": 0.5})]


def test_large_arguments_and_results_travel():
    big = torch.arange(5_000_000)
    results = launch(lambda x: x * 2, nprocs=2, args=(big,), show=False).results
    assert all(torch.equal(result, big * 2) for result in results)


def test_a_class_of_the_caller_comes_back_as_that_class():
    class Point:
        def __init__(self, x):
            self.x = x

    Point.__module__ = "__main__"  # as if a notebook cell had defined it
    [point] = launch(lambda: Point(3), nprocs=1, show=False).results
    assert type(point) is Point and point.x == 3


def test_a_cached_function_of_a_cell_goes_along():
    cell = {"__name__": "__main__"}
    exec("""import functools
@functools.lru_cache(maxsize=3)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def work():
    return fibonacci(10), fibonacci.cache_parameters()["maxsize"], fibonacci.cache_info().hits > 0
""", cell)
    assert launch(cell["work"], nprocs=2, show=False).results == [(55, 3, True)] * 2


def test_a_function_for_each_type_goes_along():
    cell = {"__name__": "__main__"}
    exec("""from functools import singledispatch
@singledispatch
def shown(thing):
    return "?"

@shown.register
def _(number: int):
    return "int"

@shown.register
def _(things: list):
    return list(map(shown, things))
""", cell)
    assert cell["shown"]([1, ["a"]]) == ["int", ["?"]]  # it keeps what it has found in weak references
    assert launch(lambda: cell["shown"]([1, [2.0]]), nprocs=1, show=False).results == [["int", ["?"]]]


def test_a_terminal_shows_tagged_lines_as_they_come(capsys):
    launch(lambda: print("hello\nworld"), nprocs=2)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] hello", "[0] world", "[1] hello", "[1] world"]


def test_logs_are_ordered_by_rank_and_floods_are_bounded():
    text = output.by_rank(["a\nb\n", "".join(f"{i}\n" for i in range(1000)), "x" * 5000])
    lines = text.splitlines()
    assert lines[:2] == ["[0] a", "[0] b"]
    assert lines[2] == "[1] 0" and "[1] … (950 more lines; run.logs[1] has them) …" in lines and lines[-2] == "[1] 999"
    assert lines[-1].endswith("… (4,000 more characters)")
    assert len(lines) == 2 + 51 + 1


def test_a_progress_bar_leaves_its_last_state(capsys):
    def work():
        for i in range(5):
            print(f"\r{i * 25:3d}%", end="", flush=True)

    run = launch(work, nprocs=1)
    assert run.logs == ["100%"] and capsys.readouterr().out == "[0] 100%\n"


def test_stdout_and_stderr_and_c_output_keep_their_order():
    def work():
        print("python")
        os.write(1, b"descriptor\n")
        print("error", file=sys.stderr)
        os.system("echo child")

    assert launch(work, nprocs=1, show=False).logs == ["python\ndescriptor\nerror\nchild\n"]


@pytest.mark.parametrize(("nprocs", "error", "says"), [
    (0, ValueError, "at least one rank"), (-1, ValueError, "at least one rank"), ("two", TypeError, "whole number"),
    (2.5, TypeError, "whole number"), (True, TypeError, "whole number"), (None, TypeError, "whole number"),
    (10_000, ValueError, "at most 64"),
])
def test_bad_numbers_of_ranks_are_refused(nprocs, error, says):
    with pytest.raises(error, match=says):
        launch(print, nprocs=nprocs)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), None, "5"])
def test_bad_timeouts_are_refused(timeout):
    with pytest.raises((TypeError, ValueError), match="seconds"):
        launch(print, nprocs=1, timeout=timeout)


def test_more_gpus_than_there_are_are_refused():
    with pytest.raises(ValueError, match="this machine has"):
        launch(print, nprocs=2, gpus=99)


def test_bad_work_is_refused_with_advice(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no script 'helo\.py'.*hello\.py"):
        launch("helo.py")
    with pytest.raises(IsADirectoryError, match="folder"):
        launch(tmp_path)
    (tmp_path / "book.ipynb").write_text("{}")
    with pytest.raises(ValueError, match="notebook"):
        launch(tmp_path / "book.ipynb")
    (tmp_path / "wrong.py").write_text("def f(:\n  pass\n")
    with pytest.raises(SyntaxError) as caught:
        launch(tmp_path / "wrong.py")
    assert caught.value.lineno == 1 and "wrong.py" in caught.value.filename
    with pytest.raises(TypeError, match="runs a script"):
        launch(3)


def test_bad_arguments_are_refused_with_advice(tmp_path):
    with pytest.raises(TypeError, match="list or tuple"):
        launch("hello.py", args="--epochs 3")
    with pytest.raises(TypeError, match="words and numbers"):
        launch("hello.py", args=[object()])
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        launch(lambda x: x)
    lock = threading.Lock()
    with pytest.raises(TypeError, match="the variable `lock`"):
        launch(lambda: lock)
    with pytest.raises(TypeError, match="argument 0, a generator"):
        launch(lambda x: x, args=((i for i in range(3)),))

    async def later():
        pass

    with pytest.raises(TypeError, match="async"):
        launch(later)


def test_launch_inside_a_rank_is_refused():
    def nested():
        from helpers import launch

        launch(print)

    with pytest.raises(RankError, match="inside a rank"):
        launch(nested, nprocs=1, show=False)


def test_launch_inside_a_forked_process_is_refused():
    def forked(queue):
        try:
            launch(print)
        except RuntimeError as error:
            queue.put(str(error))

    import multiprocessing

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=forked, args=(queue,))
    process.start()
    assert "forked from the notebook" in queue.get(timeout=20)
    process.join(10)


def test_a_plain_script_without_a_main_guard_can_launch(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("from helpers import launch\nprint('once')\n"
                      "print(launch(lambda: 7, nprocs=2, show=False).results)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "once\n[7, 7]\n", done.stderr


def test_where_there_is_no_fork_server_ranks_are_spawned(monkeypatch):
    monkeypatch.setattr(server, "START_METHOD", "spawn")
    monkeypatch.setenv("COURSE_START_METHOD", "spawn")  # what the ranks, which import all this anew, go by

    def add():
        dist = group()
        total = torch.ones(1)
        dist.all_reduce(total)
        print("spawned")
        return total.item()

    run = launch(add, nprocs=2, show=False, timeout=120)
    assert run.results == [2.0, 2.0] and run.logs == ["spawned\n"] * 2

    def fail():
        raise ValueError("spawned and failed")

    with pytest.raises(RankError, match="spawned and failed"):
        launch(fail, nprocs=1, show=False, timeout=120)


def test_importing_helpers_is_cheap_and_loads_no_torch():
    code = ("import sys; before = set(sys.modules); import helpers; print(len(set(sys.modules) - before) < 50);"
            "from helpers import report; print('torch' in sys.modules);"
            "from helpers import launch; print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False", "False"], done.stderr


class Numbers(torch.utils.data.Dataset):
    """As if a notebook cell had defined it; see the two tests below."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


def test_a_ranks_own_children_are_waited_for(tmp_path):
    """As Python does at the end of a script under torchrun: they are joined, and queues are emptied."""
    def work(path):
        import multiprocessing
        import time

        def child():
            time.sleep(0.7)
            with open(path, "w") as file:
                file.write("done")

        multiprocessing.get_context("fork").Process(target=child).start()

    launch(work, 1, (str(tmp_path / "file"),), show=False)
    assert (tmp_path / "file").read_text() == "done"


def test_loader_workers_in_a_rank_start_as_they_would_under_torchrun(monkeypatch):
    monkeypatch.setattr(Numbers, "__module__", "__main__")

    def load():
        import multiprocessing

        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, collate_fn=lambda items: items)
        return multiprocessing.get_start_method(), list(loader)

    if sys.version_info < (3, 14):  # from then on, Python's own is forkserver
        assert launch(load, nprocs=1, show=False, timeout=60).results == [("fork", [[0, 1], [2, 3]])]


def test_objects_of_a_cells_class_can_be_gathered(monkeypatch):
    monkeypatch.setattr(Numbers, "__module__", "__main__")

    def gather():
        dist = torch.distributed
        dist.init_process_group("gloo")
        everybodys = [None, None]
        dist.all_gather_object(everybodys, Numbers())
        return [len(numbers) for numbers in everybodys]

    gather.__module__ = "__main__"
    assert launch(gather, nprocs=2, show=False).results == [[4, 4]] * 2


def test_a_decorator_may_supply_the_arguments():
    import functools

    def configured(function):
        @functools.wraps(function)
        def inner():
            return function({"lr": 1})

        return inner

    assert launch(configured(lambda config: config), nprocs=1, show=False).results == [{"lr": 1}]


def test_omp_num_threads_may_be_a_list(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert launch(torch.get_num_threads, nprocs=1, show=False).results == [2]
