"""The ways to start two ranks from a notebook, and the Jupyter kernels in which they are timed."""

import contextlib
import inspect
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import work
from jupyter_client.manager import KernelManager

from helpers.hardware import free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 90  # seconds that any one launch may take


@dataclass
class Engine:
    """A way to start two ranks: the code that a notebook holds for it."""

    setup: str
    """What a notebook imports for it."""
    call: str
    """The launch, with places for what (the work's name), its folder, a free port, and words (a command line)."""
    package: str = "torch"
    slow: bool = False
    """Takes seconds, so that it is repeated less often."""
    wait: int = 0
    """Seconds between the import and the first launch."""


TORCHRUN = '[sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port={port}", "work.py"]'
FUNCTION, SCRIPT, LATER = "launch, function", "launch, script", ", 4 s after import"
OURS = "from helpers import launch"
MP = "import work, torch.distributed, torch.multiprocessing as mp"
ENGINES = {
    FUNCTION: Engine(OURS, "launch({what}, 2, args=({folder!r},))"),
    SCRIPT: Engine(OURS, "launch('work.py', 2, args={words!r})"),
    "fork from the kernel": Engine(MP, "mp.start_processes(work.numbered, ({what!r}, {folder!r}, {port}), 2, "
                                       "start_method='fork')"),
    "notebook_launcher": Engine("import work; from accelerate import notebook_launcher",
                                "notebook_launcher(work.{what}, ({folder!r},), num_processes=2, use_port='{port}')",
                                package="accelerate"),
    "spawn": Engine(MP, "mp.start_processes(work.numbered, ({what!r}, {folder!r}, {port}), 2, start_method='spawn')",
                    slow=True),
    "torchrun": Engine("import subprocess, sys", f"subprocess.run({TORCHRUN} + {{words!r}}, check=True, "
                                                 "capture_output=True)", slow=True),
    "torchrunx": Engine("import work, torchrunx",
                        "torchrunx.Launcher(['localhost'], 2, backend=None).run(work.{what}, {folder!r})",
                        package="torchrunx", slow=True),
}
FIRSTS = {**ENGINES} | {f"{name}{LATER}": Engine(OURS, ENGINES[name].call, wait=4) for name in (FUNCTION, SCRIPT)}


class LaunchFailed(Exception):
    """A launch raised, took too long, or its ranks did not do their work."""


class Kernel:
    """A fresh Jupyter kernel in which one engine launches."""

    def __init__(self, engine):
        self.engine = engine
        self.manager = KernelManager(kernel_name="python3")
        paths = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.logs = tempfile.TemporaryDirectory()  # torchrunx would leave its own in the current folder
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TORCHRUNX_LOG_DIR": self.logs.name}
        self.manager.start_kernel(cwd=HERE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.run("import time\n" + "\n".join(map(inspect.getsource, (work.group, work.ddp))))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """End the kernel and everything that its engine left running."""
        left = []
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.manager.provisioner.pid)
            left = [*own.children(recursive=True), own]
        self.client.stop_channels()
        self.manager.shutdown_kernel()  # a busy one is killed after some seconds
        _, left = psutil.wait_procs(left, timeout=5)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.logs.cleanup()

    def run(self, code, value="[]", seconds=LIMIT):
        """Run a cell; return the numbers in the list that the expression `value` then gives."""
        try:
            reply = self.client.execute_interactive(code, user_expressions={"it": value}, timeout=seconds,
                                                    allow_stdin=False, output_hook=lambda message: None)["content"]
        except TimeoutError:
            raise LaunchFailed(f"took more than {seconds} s") from None
        if reply["status"] != "ok":
            raise LaunchFailed(f"{reply.get('ename')}: {reply.get('evalue')}")
        return json.loads(reply["user_expressions"]["it"]["data"]["text/plain"])

    def launch(self, what, extra=(), setup=""):
        """Launch `what` once, after `setup` in the same cell.

        Returns:
            Milliseconds of the setup, milliseconds of the launch, and what the two ranks wrote down.
        """
        with tempfile.TemporaryDirectory() as folder:
            call = self.engine.call.format(what=what, folder=folder, port=free_port(), words=[what, folder, *extra])
            cell = f"t0 = time.perf_counter()\n{setup}\nt1 = time.perf_counter()\n{call};\nt2 = time.perf_counter()"
            before, took = self.run(cell, "[1000 * (t1 - t0), 1000 * (t2 - t1)]")
            wrote = [float(file.read_text()) for file in sorted(Path(folder).iterdir())]
        right = {"group": wrote == [3, 3], "ddp": len(set(wrote)) == 1, "train": True}[what]
        if len(wrote) != 2 or not right:
            raise LaunchFailed(f"its ranks left {wrote}")
        return before, took, wrote
