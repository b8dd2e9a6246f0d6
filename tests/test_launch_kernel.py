"""launch inside a real Jupyter kernel: interrupted, restarted, killed; what it displays, each time the same."""

import os
import time

import pytest
from jupyter_client.manager import KernelManager

from tests.conftest import OWN_SEMAPHORES, ROOT, eventually, orphaned_memory, running

ENDLESS = """
def work():
    import subprocess, time
    import torch.distributed as dist
    dist.init_process_group()
    subprocess.Popen(["sleep", "765432"])
    print("up")
    if dist.get_rank() == 0:
        {how}
    time.sleep(1000)

launch(work, nprocs=2)
"""
COMPUTE = "while True: sum(range(1000))"
COLLECTIVE = "dist.barrier()"


class Kernel:
    """A Jupyter kernel with a temporary folder and an environment variable of its own."""

    def __init__(self, folder):
        self.folder, self.mark = folder, f"kernel-{os.getpid()}-{folder.name}"
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=ROOT / "notebooks",
                                  env={**os.environ, "TMPDIR": str(folder), "COURSE_TEST_MARK": self.mark})
        self.connect()

    def connect(self):
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code, timeout=60):
        """Execute a cell; return (reply, outputs)."""
        for _ in range(20):
            outputs = []
            reply = self.client.execute_interactive(code, timeout=timeout, output_hook=outputs.append)
            if reply["content"]["status"] != "aborted":  # what arrives while Jupyter still ends a cell that failed
                break
            time.sleep(0.1)
        return reply["content"], [message for message in outputs if message["msg_type"] != "status"]

    def start(self, code):
        """Execute a cell, without waiting, until its ranks are up."""
        self.client.execute(code)
        assert eventually(lambda: sum("sleep" in p.info["name"] for p in running(self.mark)) == 2, 60)

    def ranks_are_gone(self):
        return eventually(lambda: not any("sleep" in p.info["name"] for p in running(self.mark)))

    def is_interrupted(self, how, patience=30):
        """Interrupt a cell that runs ranks without end: it ends them. Whether the next cell works."""
        self.start(ENDLESS.format(how=how))
        self.manager.interrupt_kernel()
        assert self.client.get_shell_msg(timeout=patience)["content"]["ename"] == "KeyboardInterrupt"
        assert self.ranks_are_gone()
        return text(self.run("print(launch(lambda: 7, nprocs=2).results)", 10 * patience)[1]) == "[7, 7]\n"

    def shows_the_cells_own_line(self):
        reply, _ = self.run("def work():\n    x = 1\n    return x / 0\n\nlaunch(work, nprocs=2)", 300)
        assert reply["ename"] == "RankError" and reply["evalue"].endswith("ZeroDivisionError: division by zero")
        trace = "\n".join(reply["traceback"])
        assert "launcher" not in trace and "multiprocessing" not in trace
        return "line 3, in work" in trace and "return x / 0" in trace and "Cell In[" in trace

    def nothing_is_left(self):
        return eventually(lambda: not running(self.mark)) and eventually(lambda: not list(self.folder.iterdir()))


def text(outputs):
    """What a cell has printed."""
    return "".join(message["content"].get("text", "") for message in outputs)


def used(folder):
    shared = set(os.listdir("/dev/shm"))
    kernel = Kernel(folder)
    kernel.run(OWN_SEMAPHORES)
    kernel.run("from helpers import launch, RankError")
    yield kernel
    kernel.manager.shutdown_kernel(now=True)  # kill -9
    kernel.manager.cleanup_resources()
    assert kernel.nothing_is_left(), (running(kernel.mark), list(folder.rglob("*")))
    assert eventually(lambda: not orphaned_memory(shared)), orphaned_memory(shared)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One for all tests: starting one, with its fork server, takes longer than they do."""
    yield from used(tmp_path_factory.mktemp("kernel"))


@pytest.mark.parametrize("how", [COLLECTIVE, pytest.param(COMPUTE, marks=pytest.mark.long)])
def test_an_interrupted_cell_ends_its_ranks_and_the_next_cell_works(kernel, how):
    assert kernel.is_interrupted(how)


def test_what_stays_is_ordered_by_rank_and_what_comes_first_is_stable(kernel):
    code = ("def work():\n    import os, time\n    time.sleep(0.4 * (1 - int(os.environ['RANK'])))\n"
            "    print('hello')\n\nrun = launch(work, nprocs=2)")
    for _ in range(2):
        _, outputs = kernel.run(code)
        shown = [message for message in outputs if message["msg_type"] in ("stream", "display_data")]
        assert [message["msg_type"] for message in shown] == ["display_data", "stream"]
        assert shown[0]["content"]["data"] == {}, "nbval compares the first state of a display: this one is empty"
        assert shown[1]["content"]["text"] == "[0] hello\n[1] hello\n"
        updates = [message["content"]["data"] for message in outputs if message["msg_type"] == "update_display_data"]
        assert {"text/plain": "[1] hello"} in updates, "rank 1's line was seen while rank 0 was still asleep"
        assert updates[-1] == {}, "and in the end the display is empty again"


def test_an_exception_shows_the_cells_own_line(kernel):
    assert kernel.shows_the_cells_own_line()


@pytest.mark.parametrize("now", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_restarted_kernel_leaves_no_rank(kernel, now):
    kernel.run("from helpers import launch")
    kernel.start(ENDLESS.format(how=COLLECTIVE))
    kernel.manager.restart_kernel(now=now)
    kernel.connect()
    assert kernel.ranks_are_gone()


@pytest.mark.long
def test_a_killed_kernel_leaves_nothing(kernel):
    """What ranks leave is gone when the fixture ends, which kills the kernel and looks."""
    kernel.run("from helpers import launch")
    kernel.start(ENDLESS.format(how=COLLECTIVE))
