"""Computers inside this one: each has a network of its own, and a cable of a chosen speed to one switch.

    from helpers.nodes import Nodes

    with Nodes(2, mbit=50) as lab:                   # up to 4; no root needed, if the system has namespaces
        print(lab.kind)                              # which of the two it is: see below
        job = lab.torchrun("train.py", "--epochs", "3")       # one torchrun agent on each, as in a cluster
        job.outputs, job.exitcodes                   # by node: what it printed, and how it ended

        lab.cable(200)                               # another speed, also while something runs
        job = lab.start_torchrun("train.py", "--nnodes=1:2", script_args=[…])   # goes on in the background
        job.ranks(1)[0].kill()                       # a rank killed with -9; `lab.kill(1)`: the whole node;
                                                     # `lab.unplug(1)`: its cable pulled
        job.wait(60)

A node is a network and a PID namespace: it has its own address, nobody outside can talk to it, and all that
runs on it ends with its first process. Linux lets every user make them; containers and some distributions do
not. There, or with COURSE_NODES=loopback in the environment, the agents run on this computer's loopback, side
by side and without a cable: `lab.shaped` is False. What a node runs ends with `close()`, and with the process
that called `Nodes`, however that ends. All nodes see the same files, like a cluster with a shared disk.
"""

import atexit
import contextlib
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import psutil

from helpers.ports import free_port

#: What runs beside the nodes, or around their commands.
_INSIDE = str(Path(__file__).with_name("nodes_inside.py"))
#: What C++ says when one of gloo's threads wants an interpreter that is already ending.
_ABORTED = "terminate called without an active exception"
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


class Nodes(contextlib.AbstractContextManager):
    """`n` computers, from 0; see the module.

    Attributes: `kind`, one sentence that says what they are; `addresses`, by node; `shaped`, whether the
    cable has a speed; `folder`, a Path that all nodes see, and that goes with them.
    """

    def __init__(self, n, mbit=None):
        self.n = n
        self._started = [[] for _ in range(n)]  # by node: its commands
        self._inits = {}  # by node: the process id of its first process
        self._keeper = None  # the process with which all ends; with namespaces, it is the switch
        self._jobs = 0
        atexit.register(self.close)
        try:
            why_not = self._make_namespaces()
            self.shaped = why_not is None
            if self.shaped:
                self.addresses = [f"10.0.0.{node + 1}" for node in range(n)]
                self.interface = "eth0"
                self.kind = (f"real here: this system has made {n} computers inside this one, "
                             "each with an address of its own, and a cable between them.")
                self.cable(mbit)
            else:
                self._stand_side_by_side(why_not)
            self.folder = self._keeper.folder
        except BaseException:
            self.close()
            raise

    def _make_namespaces(self):
        """Start the switch and the nodes; return None, or why that does not work here."""
        if os.environ.get("COURSE_NODES") == "loopback":
            return "COURSE_NODES=loopback"
        if sys.platform != "linux" or not all(map(shutil.which, ("unshare", "nsenter"))):
            return "it takes Linux, with util-linux"
        self._keeper = _keeper(["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork",
                                "--kill-child", "--mount-proc", sys.executable, _INSIDE, "switch"])
        try:
            self._ask(cable=1000)  # to find out whether that works here
            for node in range(self.n):
                self._boot(node)
            return None
        except RuntimeError as error:
            self._keeper.communicate()  # closes its stdin, by which it ends
            return str(error)

    def _stand_side_by_side(self, why):
        """Use loopback, where there are no namespaces."""
        self.addresses = ["127.0.0.1"] * self.n
        if sys.platform == "linux":  # agents are numbered by address; only Linux has more than one on loopback
            self.addresses = [f"127.0.0.{node + 1}" for node in range(self.n)]
        self.interface = "lo0" if sys.platform == "darwin" else "lo"
        self.kind = (f"scaled down here: this system makes no networks of our own ({why}); "
                     f"{self.n} agents side by side on loopback stand in, and no cable.")
        self._keeper = _keeper([sys.executable, _INSIDE, "keep"])

    def _ask(self, **what):
        """Have the switch do something, and wait until it is done. Raises RuntimeError: it was not."""
        limit = threading.Timer(20, self._keeper.kill)
        limit.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(json.dumps(what) + "\n")
                self._keeper.stdin.flush()
            answer = self._keeper.stdout.readline().strip()
        finally:
            limit.cancel()
        if not answer:  # it has ended, and its last line on stderr tells why
            *_, answer = ["it does not answer", *self._keeper.stderr.read().splitlines()]
        if answer != "done":
            raise RuntimeError(answer)

    def cable(self, mbit):
        """Let every node send at most `mbit` Mbit/s (10^6 bits) from now on; None: as fast as it can.

        On loopback there is no cable, and nothing happens.
        """
        if self.shaped:
            self._ask(cable=mbit)

    def start(self, node, command, env=None, **popen):
        """Start a command on a node; return its `Popen`, to wait for and to read from.

        `env` comes on top of this process's environment and of what all commands get; `env` of the Popen has
        these two. A signal to the Popen does not reach the command: `kill(node)` ends it.

        Raises RuntimeError: the node was killed; `boot` it.
        """
        command = [str(part) for part in command]
        lifeline = None
        inherited = []
        if self.shaped:
            command = [*self._way_into(node), *command]
        else:
            guards_end, lifeline = os.pipe()  # closed at our end, it tells the guard to end all
            inherited = [guards_end]
            command = [sys.executable, _INSIDE, "guard", str(guards_end), *command]
        variables = {"GLOO_SOCKET_IFNAME": self.interface, "TMPDIR": str(self.folder), "PYTHONUNBUFFERED": "1",
                     "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",  # two nodes cannot share one GPU
                     "TORCH_CPP_LOG_LEVEL": "ERROR",  # or torch warns that addresses have no names
                     "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # or a restart over gloo may wait for ever
                     **(env or {})}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **variables},
                                   start_new_session=True,  # no Ctrl-C of ours
                                   pass_fds=inherited, **popen)
        process.lifeline = lifeline
        process.env = variables
        self._started[node].append(process)
        for descriptor in inherited:
            os.close(descriptor)
        return process

    def _way_into(self, node):
        """What begins a command line that is to run in the namespaces of a node."""
        init = self._inits.get(node)
        if init is None:
            raise RuntimeError(f"node {node} was killed; boot({node}) starts it again")
        return ["nsenter", f"--target={init}", "--user", "--preserve-credentials", "--net", "--pid", "--mount",
                "env", "-C", os.getcwd()]

    def processes(self, node):
        """What runs on a node, as a list of `psutil.Process`, in the numbering of this process."""
        processes = []
        for command in self._started[node]:
            with contextlib.suppress(psutil.Error):  # one has just ended
                if command.poll() is None:
                    processes += psutil.Process(command.pid).children(recursive=True)
        return processes

    def listening(self, node):
        """Who can be connected to on a node: a sorted list of (address, port, command line).

        The address is where it listens: 0.0.0.0 or :: stand for all that the node has. Linux only.
        """
        listeners = set()
        for process in self.processes(node):
            with contextlib.suppress(OSError, psutil.Error):
                command = " ".join(process.cmdline())
                listeners |= {(address, port, command) for address, port in _listening_sockets(process.pid)}
        return sorted(listeners)

    def kill(self, node):
        """Kill with -9 all that runs on a node, and the node."""
        if self.shaped:
            self._inits.pop(node, None)
            self._ask(kill=node)
        for process in self._started[node]:
            _let_go(process)
            process.wait(20)
        self._started[node] = []

    def boot(self, node):
        """Start a node that was killed; one that runs is left alone."""
        if self.shaped and node not in self._inits:
            self._boot(node)

    def _boot(self, node):
        self._ask(boot=node)
        [switch] = psutil.Process(self._keeper.pid).children()
        for unshare in switch.children():  # one for each node, whose name is its last argument
            if unshare.cmdline()[-1:] == [f"node-{node}"] and unshare.children():
                [init] = unshare.children()
                self._inits[node] = init.pid
        if node not in self._inits:
            raise RuntimeError(f"node {node} ended as it started")

    def unplug(self, node):
        """Pull a node's cable: it runs on, and nobody hears of it. `kill` and `boot` plug it in."""
        if not self.shaped:
            raise RuntimeError(f"there is no cable to unplug: {self.kind}")
        self._ask(unplug=node)

    def start_torchrun(self, script, *options, script_args=(), nproc_per_node=1, env=None, rdzv_conf=""):
        """Start a torchrun agent on each node, which meet at the first; return a `Job`.

        `options` are torchrun's own, and come after ours, all but `rdzv_conf`, "key=value,…", of which the
        last would count alone. The script's arguments are `script_args`.
        """
        self._jobs += 1
        port = 29500 + self._jobs if self.shaped else free_port()
        job = Job(self)
        for node, address in enumerate(self.addresses):
            is_host = int(node == 0)
            own = [f"--nnodes={self.n}", f"--nproc-per-node={nproc_per_node}", "--rdzv-backend=c10d",
                   f"--rdzv-id=job-{self._jobs}", f"--rdzv-endpoint={self.addresses[0]}:{port}",
                   f"--rdzv-conf=is_host={is_host},{rdzv_conf}".rstrip(","), f"--local-addr={address}"]
            agent = [sys.executable, "-m", "torch.distributed.run", *own, *options, script, *script_args]
            job.add(node, agent, env)
        return job

    def torchrun(self, script, *script_args, timeout=120, **how):
        """Run a script under one torchrun on each node, and wait; see `start_torchrun`. Returns the `Job`.

        If a rank aborts after its work (pytorch/pytorch#190489), all is run again, at most twice.

        Raises TimeoutError: it had not ended after `timeout` seconds; the nodes were killed and booted anew.
        """
        for _ in range(3):
            job = self.start_torchrun(script, script_args=script_args, **how)
            # A rank's abort ends its agent; the others would wait 300 s for it in torchrun's exit barrier.
            job.until(lambda job: job.aborted, timeout)
            if not job.aborted:
                break
            job.stop()
        return job

    def close(self):
        """End everything; what the nodes ran, the nodes, the folder."""
        atexit.unregister(self.close)
        keeper = self._keeper
        self._keeper = None
        processes = [process for started in self._started for process in started]
        for process in processes:
            _let_go(process)
        if keeper is not None:
            with contextlib.suppress(OSError):
                keeper.stdin.close()
            processes.append(keeper)  # the last to end: it removes the folder
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        self._started = [[] for _ in range(self.n)]

    def __exit__(self, *_):
        self.close()


class Job:
    """Commands that run on several nodes, one on each.

    Attributes: `processes`, by node; `rows`, all printed lines so far that are JSON objects, as dicts, in the
    order in which they came, each with its "node".
    """

    def __init__(self, lab):
        self.lab = lab
        self.processes = {}
        self.rows = []
        self._lines = {}  # by node: what it has printed, the last lines
        self._readers = {}  # by node: a thread

    def add(self, node, command, env=None):
        """Start one more command, on a node that has none yet."""
        process = self.lab.start(node, command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 errors="replace")
        self.processes[node] = process
        self._lines[node] = deque(maxlen=10_000)
        self._readers[node] = threading.Thread(target=self._read, args=(node, process.stdout), daemon=True)
        self._readers[node].start()

    def _read(self, node, stdout):
        for line in stdout:
            self._lines[node].append(line)
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    self.rows.append({"node": node, **json.loads(line)})
        stdout.close()

    @property
    def outputs(self):
        """By node: what its command has printed so far, stdout and stderr together, as text."""
        return {node: "".join(list(lines)) for node, lines in self._lines.items()}

    @property
    def exitcodes(self):
        """By node: None while the command runs; negative for a signal."""
        return {node: process.poll() for node, process in self.processes.items()}

    @property
    def aborted(self):
        """Whether a rank says that it aborts after all its work: torch's fault (pytorch/pytorch#190489)."""
        return any(_ABORTED in text for text in self.outputs.values())

    def ranks(self, node):
        """The ranks that a node's agent has started, as a list of `psutil.Process`, by local rank."""
        ranks = {}
        for process in self.lab.processes(node):
            with contextlib.suppress(psutil.Error):
                rank = process.environ().get("LOCAL_RANK")
                if rank is not None:
                    # What a rank starts has its variables, too, and comes after it.
                    ranks.setdefault(int(rank), process)
        return [ranks[rank] for rank in sorted(ranks)]

    def until(self, holds, timeout=120):
        """Wait until `holds(job)` is true, or all commands have ended; return what `holds` returned last.

        Raises TimeoutError: it was not true within `timeout` seconds; the nodes were killed and booted anew.
        """
        end = time.monotonic() + timeout
        try:
            while True:
                all_have_ended = None not in self.exitcodes.values()
                if all_have_ended:
                    for reader in self._readers.values():  # their last lines count
                        reader.join(5)
                result = holds(self)
                if result or all_have_ended:
                    return result
                if time.monotonic() > end:
                    last_words = [f"[node {node}] {text[-1500:]}" for node, text in self.outputs.items()]
                    raise TimeoutError("\n".join([f"it had not come so far after {timeout:g} s; the nodes said:",
                                                  *last_words]))
                time.sleep(0.02)
        except BaseException:  # an interrupted cell, too
            self.stop()
            raise

    def wait(self, timeout=120):
        """Wait until all commands have ended; return the job. Raises TimeoutError, as `until` does."""
        self.until(lambda job: None not in job.exitcodes.values(), timeout)
        return self

    def stop(self):
        """Kill the nodes on which a command still runs, and boot them anew."""
        for node, code in self.exitcodes.items():
            if code is None:
                self.lab.kill(node)
                self.lab.boot(node)


def _let_go(process):
    if process.lifeline is not None:
        os.close(process.lifeline)
        process.lifeline = None


def _keeper(command):
    """A process that ends everything when its stdin does, the folder that it has made, too: its `folder`."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    limit = threading.Timer(20, process.kill)
    limit.start()
    process.folder = Path(process.stdout.readline().strip())
    limit.cancel()
    return process


def _listening_sockets(pid):
    """The (address, port) of every socket at which a process listens, from /proc (proc_pid_net(5))."""
    files = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        _, *lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()  # of all sockets in its network
        for line in lines:
            fields = line.split()
            state = fields[3]
            inode = fields[9]
            if state == _LISTENS and f"socket:[{inode}]" in files:
                address, port = fields[1].split(":")
                yield _address(address), int(port, 16)


def _address(text):
    """An address, as people write it, from /proc/net/tcp: that has 32-bit words in this machine's order."""
    packed = b""
    for start in range(0, len(text), 8):
        word = int(text[start:start + 8], 16)
        packed += word.to_bytes(4, sys.byteorder)
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)
