"""What `helpers.nodes` starts. Each process ends when a pipe does: with its starter, however that ends.

    python nodes_inside.py switch | keep | guard LIFELINE COMMAND…
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil

_PR_SET_CHILD_SUBREAPER, _CLONE_NEWNET = 36, 0x40000000


class Switch:
    """The first process in the namespaces, and the switch: boots and kills nodes, sets cables' speed."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.nodes = {}  # by number: its first process, which ends when its stdin does
        self.mbit = None  # of every cable; None: as fast as it can
        with _netlink() as ip:
            ip.link("add", ifname="switch", kind="bridge")
            ip.link("set", index=_index(ip, "switch"), state="up")

    def serve(self):
        """Do what each line of stdin asks for, and answer "done", or why not."""
        for line in sys.stdin:
            try:
                self.do(json.loads(line))
                answer = "done"
            except Exception as error:
                answer = f"{type(error).__name__}: {error}".splitlines()[0]
            print(answer, flush=True)

    def do(self, request):
        match request:
            case {"boot": node}:
                self.boot(node)
            case {"kill": node}:
                self.kill(node)
            case {"unplug": node}:
                with _netlink() as ip:
                    ip.link("set", index=_index(ip, f"port{node}"), state="down")
            case {"cable": mbit}:
                self.mbit = mbit
                for node in self.nodes:
                    self.shape(node)

    def boot(self, node):
        init = subprocess.Popen(["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                                 "sh", "-c", "echo up; exec cat", f"node-{node}"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.nodes[node] = init
        if init.stdout.readline() != b"up\n":
            raise RuntimeError("no second namespace inside the first")
        with _netlink() as ip:  # a cable has two ends: a port of the switch, and the node's eth0
            ip.link("add", ifname=f"port{node}", kind="veth", peer={"ifname": "eth0", "net_ns_pid": init.pid})
            ip.link("set", index=_index(ip, f"port{node}"), state="up", master=_index(ip, "switch"))
        with self.inside(node), _netlink() as ip:
            cable = _index(ip, "eth0")
            ip.addr("add", index=cable, address=f"10.0.0.{node + 1}", prefixlen=24)
            ip.link("set", index=cable, state="up")
            ip.link("set", index=_index(ip, "lo"), state="up")
        self.shape(node)

    def kill(self, node):
        from pyroute2 import NetlinkError

        if node not in self.nodes:
            return
        self.nodes.pop(node).communicate()  # closes its stdin: its first process ends, and with it all others
        with _netlink() as ip:  # the system removes the port, too, now or some time later
            for port in ip.link_lookup(ifname=f"port{node}"):
                with contextlib.suppress(NetlinkError):
                    ip.link("del", index=port)

    def shape(self, node):
        """Give a node's cable its speed."""
        with self.inside(node), _netlink() as ip:
            cable = _index(ip, "eth0")
            if self.mbit:  # a bucket of tokens: 64 KiB may pass at once, then so many bits a second
                rate = f"{round(self.mbit * 1000)}kbit"
                ip.tc("replace", "tbf", index=cable, rate=rate, burst=65536, latency="400ms")
            else:
                ip.tc("replace", "pfifo", index=cable, limit=1000)

    @contextlib.contextmanager
    def inside(self, node):
        """Be in a node's network: netlink's sockets belong to the network in which they were made."""
        with open("/proc/self/ns/net") as ours, open(f"/proc/{self.nodes[node].pid}/ns/net") as its:
            try:
                if self.libc.setns(its.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
                yield
            finally:
                self.libc.setns(ours.fileno(), _CLONE_NEWNET)

    def end(self):
        """End all nodes."""
        for init in self.nodes.values():
            init.communicate()


def _netlink():
    from pyroute2 import IPRoute  # here, because on loopback it need not be installed

    return IPRoute()


def _index(ip, name):
    """The number by which netlink knows an interface."""
    return ip.link_lookup(ifname=name)[0]


def _switch():
    with _folder():
        switch = Switch()
        try:
            switch.serve()
        finally:
            switch.end()


@contextlib.contextmanager
def _folder():
    """A new folder, which goes when the starter of this process ends. Its path is the first line printed."""
    folder = tempfile.mkdtemp(prefix="nodes-")
    try:
        print(folder, flush=True)  # fails where the starter has ended already
        yield
    finally:
        for _ in range(100):  # those who write there are about to end, too
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.05)


def _keep():
    """On loopback: a folder, until nobody needs it any more."""
    with _folder():
        sys.stdin.read()


def _guard(lifeline, *command):
    """On loopback: run a command; when it ends, or the lifeline does, end all that it has started."""
    if sys.platform == "linux":  # a process that loses its parent becomes our child: none escapes
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def kill_all():
        """Kill what is left of all that was started here, and return it."""
        left = psutil.Process().children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return left

    def watch():
        os.read(int(lifeline), 1)
        while True:  # until the child, too, has ended
            kill_all()
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    while left := kill_all():
        psutil.wait_procs(left, 0.1)
    if code < 0:  # end as it did
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    {"switch": _switch, "keep": _keep, "guard": _guard}[sys.argv[1]](*sys.argv[2:])
