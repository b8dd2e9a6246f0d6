"""launch where there is no fork server, as on macOS and Windows, inside a real Jupyter kernel: by its setting, here.

Each rank imports torch itself, so this takes long; test_launch.py has the first of it.
"""

import os

import pytest

from tests.conftest import eventually, running
from tests.test_launch_kernel import COLLECTIVE, COMPUTE, ENDLESS, used

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def spawn():
    os.environ["COURSE_START_METHOD"] = "spawn"
    yield
    del os.environ["COURSE_START_METHOD"]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    yield from used(tmp_path_factory.mktemp("spawning"))


def text(outputs):
    """What a cell has shown."""
    return "".join(message["content"].get("text", "") for message in outputs)


def test_functions_of_cells_and_scripts_run_print_report_and_return(kernel):
    reply, outputs = kernel.run("""
from helpers import report
from helpers.launcher import server
factor = 10

class Pair:
    def __init__(self, *both):
        self.both = both

def work(start):
    import torch
    import torch.distributed as dist
    dist.init_process_group()
    total = torch.tensor(start + dist.get_rank())
    dist.all_reduce(total)
    report(loss=factor * dist.get_rank())
    print("I am", dist.get_rank())
    return Pair(dist.get_rank(), total.item())

run = launch(work, nprocs=2, args=(5,), timeout=240)
print(server.START_METHOD, [pair.both for pair in run.results], run.reports)
print(launch("hello.py", nprocs=2, show=False, timeout=240).logs)
""", timeout=500)
    assert reply["status"] == "ok", reply
    said = text(outputs)
    assert said.startswith("[0] I am 0\n[1] I am 1\nspawn [(0, 11), (1, 11)] [[{'loss': 0}], [{'loss': 10}]]\n"), said
    assert "I am rank 1 of 2" in said


def test_an_exception_shows_the_cells_own_line(kernel):
    code = "def work():\n    x = 1\n    return x / 0\n\nlaunch(work, nprocs=2, timeout=240)"
    reply, _ = kernel.run(code, timeout=300)
    assert reply["ename"] == "RankError" and reply["evalue"].endswith("ZeroDivisionError: division by zero"), reply
    trace = "\n".join(reply["traceback"])
    assert "line 3, in work" in trace and "return x / 0" in trace and "Cell In[" in trace
    assert "launcher" not in trace and "multiprocessing" not in trace


def test_a_hang_ends_at_its_limit_and_says_who_waits_where(kernel):
    reply, _ = kernel.run("""
def work():
    import time
    import torch.distributed as dist
    dist.init_process_group()
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(1000)

launch(work, nprocs=2, timeout=60)
""", timeout=300)
    assert reply["ename"] == "RankError" and "60 s" in reply["evalue"], reply["evalue"]
    said = "\n".join(reply["traceback"])
    assert "dist.barrier()" in said and "time.sleep(1000)" in said, said


@pytest.mark.parametrize("how", [COMPUTE, COLLECTIVE])
def test_an_interrupted_cell_leaves_nothing_and_the_next_one_works(kernel, how):
    kernel.start(ENDLESS.format(how=how))
    kernel.manager.interrupt_kernel()
    assert kernel.reply(60)["ename"] == "KeyboardInterrupt"
    assert kernel.ranks_are_gone()
    reply, outputs = kernel.run("print(launch(lambda: 7, nprocs=2, timeout=240).results)", timeout=300)
    assert text(outputs) == "[7, 7]\n", reply


def test_a_killed_kernel_leaves_nothing(tmp_path):
    (kernel := next(steps := used(tmp_path))).start(ENDLESS.format(how=COLLECTIVE))
    os.kill(kernel.manager.provisioner.pid, 9)
    assert eventually(lambda: not running(kernel.mark), 60)
    next(steps, None)
