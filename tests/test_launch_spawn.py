"""launch where there is no fork server, as on macOS and Windows, inside a real Jupyter kernel: by its setting, here.

Each rank imports torch itself, so this takes long; test_launch.py has the first of it.
"""

import os

import pytest

from tests.test_launch_kernel import COLLECTIVE, COMPUTE, ENDLESS, text, used

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory):
    os.environ["COURSE_START_METHOD"] = "spawn"
    try:
        yield from used(tmp_path_factory.mktemp("spawning"))
    finally:
        del os.environ["COURSE_START_METHOD"]


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
    assert kernel.shows_the_cells_own_line()


def test_a_hang_ends_at_its_limit_and_says_who_waits_where(kernel):
    reply, _ = kernel.run(ENDLESS.format(how=COLLECTIVE).replace("nprocs=2", "nprocs=2, timeout=60"), timeout=300)
    assert reply["ename"] == "RankError" and "60 s" in reply["evalue"], reply["evalue"]
    said = "\n".join(reply["traceback"])
    assert "dist.barrier()" in said and "time.sleep(1000)" in said, said


@pytest.mark.parametrize("how", [COMPUTE, COLLECTIVE])
def test_an_interrupted_cell_leaves_nothing_and_the_next_one_works(kernel, how):
    assert kernel.is_interrupted(how, patience=60)


def test_a_killed_kernel_leaves_nothing(kernel):
    """What ranks leave is gone when the fixture ends, which kills the kernel and looks."""
    kernel.start(ENDLESS.format(how=COLLECTIVE))
