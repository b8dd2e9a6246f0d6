"""The traps that launching ranks has to avoid: each private name that it needs is there, and it helps.

When a new Python or torch fails one, read the finding beside the code: a name has moved, or the code can go.
"""

import datetime
import os
import re
import time
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.distributed as dist

from helpers import launch
from helpers.hardware import hardware
from helpers.launcher import client, meeting

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_the_servers_memory_lies_in_huge_pages():
    pid = client.wait_until_ready().process.pid
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 1):
        pytest.skip("this Linux gathers nothing")
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kilobytes = dict(re.findall(r"(\w+): +(\d+) kB", memory))
    assert int(kilobytes["AnonHugePages"]) > int(kilobytes["Anonymous"]) / 2, kilobytes


def test_what_a_rank_has_from_the_server_and_what_not():
    def found():
        import ctypes
        import weakref
        from importlib import metadata
        from unittest import mock

        parents_death = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(parents_death))  # PR_GET_PDEATHSIG
        with mock.patch.object(metadata, "distributions", side_effect=LookupError):
            backends = metadata.entry_points(group="torch.distributed.backends")  # which the server has looked up
        at_exit = sum(finalizer.atexit for finalizer in list(weakref.finalize._registry))
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return {"signal when the server dies": parents_death.value, "backends": type(backends).__name__,
                "exit functions of the server's imports": at_exit, "store": type(store).__name__}

    assert launch(found, nprocs=1, show=False).results == [{
        "signal when the server dies": 9, "backends": "EntryPoints",
        "exit functions of the server's imports": 0,
        "store": "FileStore" if hardware.gpus else "QuickFileStore"}]


def test_the_store_that_looks_oftener_does_what_torchs_own_does(tmp_path):
    def asked(store):
        within = dist.PrefixStore("group", store)
        within.set("a", "1")
        return [within.get("a"), within.add("n", 2), within.add("n", 3), within.compare_set("a", "1", "2"),
                within.check(["a", "n"]), within.check(["b"]), within.num_keys(), within.delete_key("n"),
                within.check(["n"]), within.wait(["a"]), within.clone().get("a")]

    ours, theirs = meeting.quick_store(str(tmp_path / "ours"), 1), dist.FileStore(str(tmp_path / "theirs"), 1)
    assert asked(ours) == asked(theirs)
    with pytest.raises(dist.DistStoreError):
        ours.wait(["never"], datetime.timedelta(milliseconds=100))
    Thread(target=lambda: (time.sleep(0.2), ours.set("late", "2"))).start()
    assert ours.get("late") == b"2", "it goes on looking when it no longer looks often"


def test_no_rank_leaves_a_meeting_before_all_are_connected():
    def form_a_group():
        c10d = dist.distributed_c10d
        connect = c10d._new_process_group_helper

        def slowly(*args, **kwargs):
            formed = connect(*args, **kwargs)
            time.sleep(0.5)
            return formed

        if os.environ["RANK"] == "1":
            c10d._new_process_group_helper = slowly
        began = time.monotonic()
        dist.init_process_group("gloo")
        return time.monotonic() - began > 0.4

    assert launch(form_a_group, nprocs=2, show=False, timeout=60).results == [True, True]


def test_a_ddp_object_lets_go_of_its_group_last():
    def last():
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        assert model.reducer, "what holds the group from C++"
        dist.destroy_process_group()
        return list(vars(model))[-1]

    assert launch(last, nprocs=2, show=False).results == ["process_group"] * 2


@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="no NVIDIA GPU here")
def test_the_server_never_initialises_cuda():
    def compute():
        return torch.cuda._is_in_bad_fork(), torch.ones(2, device="cuda").sum().item()

    torch.ones(1, device="cuda")  # CUDA already used in the kernel
    assert launch(compute, nprocs=2, show=False).results == [(False, 2.0)] * 2
