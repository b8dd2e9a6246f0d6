"""launch inside a real Jupyter kernel: interrupted, restarted, killed; each by the fork server and by spawn.

The first of it is short: tests/conformance/test_session.py, and test_launch.py for spawn.
"""

import os
import tempfile
import time
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from tests.conftest import OWN_SEMAPHORES, ROOT, eventually, orphaned_memory, running

pytestmark = pytest.mark.long

ENDLESS = """
def work():
    import subprocess, time
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    dist.init_process_group()
    batches = iter(DataLoader(range(8), num_workers=1))
    batch = next(batches)  # it is shared memory, and the worker has a socket at which it gives that away
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
        self.run(f"{OWN_SEMAPHORES}\nfrom helpers import launch")

    def run(self, code, timeout=60):
        """Execute a cell; return (reply, outputs)."""
        for _ in range(20):
            outputs = []
            reply = self.client.execute_interactive(code, timeout=timeout, output_hook=outputs.append)
            # Aborted is what arrives while Jupyter still ends a cell that failed.
            if reply["content"]["status"] != "aborted":
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
        assert reply["ename"] == "RankError"
        assert reply["evalue"].endswith("ZeroDivisionError: division by zero")
        trace = "\n".join(reply["traceback"])
        assert "launcher" not in trace and "multiprocessing" not in trace
        return "line 3, in work" in trace and "return x / 0" in trace and "Cell In[" in trace

    def nothing_is_left(self):
        gone = eventually(lambda: not running(self.mark))
        return gone and eventually(lambda: not list(self.folder.iterdir()))


def text(outputs):
    """What a cell has printed."""
    return "".join(message["content"].get("text", "") for message in outputs)


def used():
    """A kernel. When it is not needed any more, it is killed, and has left nothing."""
    shared = set(os.listdir("/dev/shm"))
    # Not pytest's folder: where its name is long, multiprocessing's sockets do not go with the run.
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        kernel = Kernel(Path(folder))
        yield kernel
        kernel.manager.shutdown_kernel(now=True)  # kill -9
        kernel.manager.cleanup_resources()
        assert kernel.nothing_is_left(), (running(kernel.mark), list(Path(folder).rglob("*")))
    assert eventually(lambda: not orphaned_memory(shared)), orphaned_memory(shared)


@pytest.fixture(scope="module", params=["fork server", "spawn"], autouse=True)
def kernel(request):
    """One for all tests: starting one takes longer than they do. Ranks are spawned on macOS and Windows."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "spawn":
            patch.setenv("COURSE_START_METHOD", "spawn")
        yield from used()


def test_functions_of_cells_and_scripts_run_print_report_and_return(kernel):
    reply, outputs = kernel.run("""
from helpers import report
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
print([pair.both for pair in run.results], run.reports)
print(launch("hello.py", nprocs=2, show=False, timeout=240).logs)
""", timeout=500)
    assert reply["status"] == "ok", reply
    said = text(outputs)
    assert said.startswith("[0] I am 0\n[1] I am 1\n"), said
    assert "[(0, 11), (1, 11)] [[{'loss': 0}], [{'loss': 10}]]\n" in said
    assert "I am rank 1 of 2" in said


def test_an_exception_shows_the_cells_own_line(kernel):
    assert kernel.shows_the_cells_own_line()


def test_a_hang_ends_at_its_limit_and_says_who_waits_where(kernel):
    limited = ENDLESS.format(how=COLLECTIVE).replace("nprocs=2", "nprocs=2, timeout=60")
    reply, _ = kernel.run(limited, timeout=300)
    assert reply["ename"] == "RankError" and "60 s" in reply["evalue"], reply["evalue"]
    said = "\n".join(reply["traceback"])
    assert "dist.barrier()" in said and "time.sleep(1000)" in said, said


@pytest.mark.parametrize("how", [COMPUTE, COLLECTIVE])
def test_an_interrupted_cell_leaves_nothing_and_the_next_one_works(kernel, how):
    assert kernel.is_interrupted(how, patience=60)


# Where ranks are spawned, a kernel that shuts down in good order leaves the run's folder of temporary files.
@pytest.mark.parametrize(("kernel", "now"), [("fork server", True), ("fork server", False), ("spawn", True)],
                         indirect=["kernel"], scope="module")
def test_a_restarted_kernel_leaves_no_rank(kernel, now):
    kernel.start(ENDLESS.format(how=COLLECTIVE))
    kernel.manager.restart_kernel(now=now)
    kernel.connect()
    assert kernel.ranks_are_gone()


def test_a_killed_kernel_leaves_nothing(kernel):
    """What ranks leave is gone when the fixture ends, which kills the kernel and looks."""
    kernel.start(ENDLESS.format(how=COLLECTIVE))
