"""What `helpers.nodes` starts. Each process ends when a pipe does: with its starter, however that ends.

    python nodes_inside.py switch | keep | guard LIFELINE COMMAND…
"""

import contextlib
import ctypes
import errno
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


def _switch():
    """The first process in the namespaces, and the switch: boots and kills nodes, sets cables' speed."""
    from pyroute2 import IPRoute, NetlinkError

    libc, nodes, speed = ctypes.CDLL(None, use_errno=True), {}, [None]

    @contextlib.contextmanager
    def inside(node):  # netlink's sockets belong to the network in which they were made
        with open("/proc/self/ns/net") as our_network, open(f"/proc/{nodes[node].pid}/ns/net") as its_network:
            try:
                if libc.setns(its_network.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
                yield
            finally:
                libc.setns(our_network.fileno(), _CLONE_NEWNET)

    def kill(node):
        if node in nodes:
            nodes.pop(node).communicate()  # closes its stdin: its first process ends, and with it all others
            with IPRoute() as ip:  # the system removes the port, too, now or some time later
                for port in ip.link_lookup(ifname=f"port{node}"):
                    try:
                        ip.link("del", index=port)
                    except NetlinkError as error:
                        if error.code != errno.ENODEV:
                            raise

    def boot(node):
        kill(node)  # one whose starter was interrupted
        nodes[node] = subprocess.Popen(["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                                        "sh", "-c", "echo up; exec cat", f"node-{node}"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if nodes[node].stdout.readline() != b"up\n":
            raise RuntimeError("no second namespace inside the first")
        with IPRoute() as ip:
            cable_end = {"ifname": "eth0", "net_ns_pid": nodes[node].pid}
            ip.link("add", ifname=f"port{node}", kind="veth", peer=cable_end)
            ip.link("set", index=ip.link_lookup(ifname=f"port{node}")[0], state="up",
                    master=ip.link_lookup(ifname="switch")[0])
        with inside(node), IPRoute() as ip:
            cable = ip.link_lookup(ifname="eth0")[0]
            ip.addr("add", index=cable, address=f"10.0.0.{node + 1}", prefixlen=24)
            ip.link("set", index=cable, state="up")
            ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
        shape(node)

    def shape(node):
        with inside(node), IPRoute() as ip:
            cable = ip.link_lookup(ifname="eth0")[0]
            if speed[0]:  # a bucket of tokens: 64 KiB may pass at once, then so many bits a second
                rate = f"{round(speed[0] * 1000)}kbit"
                ip.tc("replace", "tbf", index=cable, rate=rate, burst=65536, latency="400ms")
            else:
                ip.tc("replace", "pfifo", index=cable, limit=1000)

    def answer():
        with IPRoute() as ip:
            ip.link("add", ifname="switch", kind="bridge")
            ip.link("set", index=ip.link_lookup(ifname="switch")[0], state="up")
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                match asked:
                    case {"boot": node}:
                        boot(node)
                    case {"kill": node}:
                        kill(node)
                    case {"unplug": node}:
                        with IPRoute() as ip:
                            ip.link("set", index=ip.link_lookup(ifname=f"port{node}")[0], state="down")
                    case {"cable": mbit}:
                        speed[0] = mbit
                        for node in nodes:
                            shape(node)
                print(asked["number"], "done", flush=True)
            except Exception as error:
                print(asked["number"], f"{type(error).__name__}: {error}".splitlines()[0], flush=True)

    with _folder():
        try:
            answer()
        finally:
            for node in nodes.values():
                node.communicate()


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
    if sys.platform == "linux":  # who loses its parent becomes our child: nobody escapes
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def kill_all():
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
