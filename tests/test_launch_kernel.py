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

    def reply(self, timeout=30):
        return self.client.get_shell_msg(timeout=timeout)["content"]

    def nothing_is_left(self):
        return eventually(lambda: not running(self.mark)) and eventually(lambda: not list(self.folder.iterdir()))


def used(folder):
    shared = set(os.listdir("/dev/shm"))
    kernel = Kernel(folder)
    kernel.run(OWN_SEMAPHORES)
    kernel.run("from helpers import launch, RankError")
    yield kernel
    if kernel.manager.is_alive():
        kernel.manager.shutdown_kernel()
    kernel.manager.cleanup_resources()
    assert kernel.nothing_is_left(), (running(kernel.mark), list(folder.rglob("*")))
    assert eventually(lambda: not orphaned_memory(shared)), orphaned_memory(shared)


@pytest.fixture
def kernel(tmp_path):
    yield from used(tmp_path)


@pytest.fixture(scope="module")
def lasting_kernel(tmp_path_factory):
    """For tests that leave the kernel as it was: starting one, with its fork server, takes longer than they do."""
    yield from used(tmp_path_factory.mktemp("kernel"))


@pytest.mark.parametrize("how", [COMPUTE, COLLECTIVE])
def test_an_interrupted_cell_ends_its_ranks_and_the_next_cell_works(lasting_kernel, how):
    lasting_kernel.start(ENDLESS.format(how=how))
    began = time.monotonic()
    lasting_kernel.manager.interrupt_kernel()
    assert lasting_kernel.reply()["ename"] == "KeyboardInterrupt"
    assert time.monotonic() - began < 20
    assert lasting_kernel.ranks_are_gone()
    reply, outputs = lasting_kernel.run("launch(lambda: 7, nprocs=2).results")
    assert reply["status"] == "ok"
    assert any(message["content"].get("data", {}).get("text/plain") == "[7, 7]" for message in outputs)


@pytest.mark.parametrize("now", [True, False])
def test_a_restarted_kernel_leaves_no_rank(kernel, now):
    kernel.start(ENDLESS.format(how=COLLECTIVE))
    kernel.manager.restart_kernel(now=now)
    kernel.connect()
    assert kernel.ranks_are_gone()


def test_a_killed_kernel_leaves_nothing(kernel):
    kernel.start(ENDLESS.format(how=COLLECTIVE))
    os.kill(kernel.manager.provisioner.pid, 9)
    assert kernel.nothing_is_left(), running(kernel.mark)


def test_what_stays_is_ordered_by_rank_and_what_comes_first_is_stable(lasting_kernel):
    code = ("def work():\n    import os, time\n    time.sleep(0.5 * (1 - int(os.environ['RANK'])))\n"
            "    print('hello')\n    time.sleep(0.3)\n\nrun = launch(work, nprocs=2)")
    for _ in range(2):
        _, outputs = lasting_kernel.run(code)
        shown = [message for message in outputs if message["msg_type"] in ("stream", "display_data")]
        assert [message["msg_type"] for message in shown] == ["display_data", "stream"]
        assert shown[0]["content"]["data"] == {}, "nbval compares the first state of a display: this one is empty"
        assert shown[1]["content"]["text"] == "[0] hello\n[1] hello\n"
        updates = [message["content"]["data"] for message in outputs if message["msg_type"] == "update_display_data"]
        assert {"text/plain": "[1] hello"} in updates, "rank 1's line was seen while rank 0 was still asleep"
        assert updates[-1] == {}, "and in the end the display is empty again"


def test_an_exception_shows_the_cells_own_line(lasting_kernel):
    reply, _ = lasting_kernel.run("def work():\n    x = 1\n    return x / 0\n\nlaunch(work, nprocs=2)")
    assert reply["ename"] == "RankError" and reply["evalue"].endswith("ZeroDivisionError: division by zero")
    trace = "\n".join(reply["traceback"])
    assert "line 3, in work" in trace and "return x / 0" in trace and "Cell In[" in trace
    assert "launcher" not in trace and "multiprocessing" not in trace


def test_torch_used_with_all_threads_in_the_kernel(lasting_kernel):
    lasting_kernel.run("import torch; torch.set_num_threads(2); torch.randn(4_000_000).exp()")
    work = "lambda: float(torch.ones(4_000_000).exp().sum() > 0)"
    _, outputs = lasting_kernel.run(f"launch({work}, nprocs=2, timeout=60).results")
    assert any(message["content"].get("data", {}).get("text/plain") == "[1.0, 1.0]" for message in outputs)
