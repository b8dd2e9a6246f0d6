"""One test a finding of helpers/launcher/workarounds.py: the name it needs is there, and the trap it avoids is real.

When a new Python or torch fails one of these, read the finding beside the workaround: a name has moved, or the
workaround can go.
"""

import atexit
import datetime
import inspect
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import time
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread

import psutil
import pytest
import torch.distributed as dist

from helpers import RankError, launch
from helpers.hardware import hardware
from helpers.launcher import server, workarounds

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_server_pid_is_the_fork_servers():
    launch(print, nprocs=1, show=False)
    assert "forkserver" in " ".join(psutil.Process(workarounds.server_pid()).cmdline())


def test_main_left_alone_keeps_a_childs_hands_off_the_callers_main(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent("""
        import multiprocessing, sys
        from multiprocessing import spawn
        from helpers.launcher import workarounds
        with workarounds.main_left_alone():
            inside = spawn.get_preparation_data("x")
        outside = spawn.get_preparation_data("x")
        print("init_main_from_path" in inside, "init_main_from_path" in outside, __file__ == sys.argv[0])
    """))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


def test_server_environment_is_the_servers_alone():
    os.environ["COURSE_TEST_KEPT"] = "old"
    try:
        with workarounds.server_environment(COURSE_TEST_KEPT="new", COURSE_TEST_GONE="new"):
            assert os.environ["COURSE_TEST_KEPT"] == os.environ["COURSE_TEST_GONE"] == "new"
        assert os.environ["COURSE_TEST_KEPT"] == "old" and "COURSE_TEST_GONE" not in os.environ
    finally:
        del os.environ["COURSE_TEST_KEPT"]


def test_entry_points_are_looked_up_once():
    source = inspect.getsource(workarounds.remember_entry_points)
    assert "functools.cache" in source
    looked_up = launch(lambda: __import__("importlib.metadata").metadata.entry_points.cache_info().currsize,
                       nprocs=1, show=False).results
    assert looked_up == [1], "the server has filled the cache that its ranks inherit"


def test_the_servers_memory_lies_in_huge_pages():
    server.wait_until_ready()
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 1):
        pytest.skip("this Linux gathers nothing")
    memory = Path(f"/proc/{workarounds.server_pid()}/smaps_rollup").read_text()
    kilobytes = dict(re.findall(r"(\w+): +(\d+) kB", memory))
    assert int(kilobytes["AnonHugePages"]) > int(kilobytes["Anonymous"]) / 2, kilobytes


def test_the_servers_socket_lies_in_a_folder_of_its_own():
    server.wait_until_ready()
    folder = os.path.dirname(forkserver._forkserver._forkserver_address)
    assert os.path.basename(folder).startswith("pymp-")


def test_a_rank_gives_the_servers_pipe_back_and_dies_with_the_server():
    def look():
        import ctypes
        from multiprocessing import forkserver

        number = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
        return forkserver._forkserver._forkserver_alive_fd, number.value

    assert launch(look, nprocs=1, show=False).results == [(None, 9)]
    # The trap: in a child that does not give it back, the pipe is open.
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    process = context.Process(target=_pipe, args=(queue,))
    with workarounds.main_left_alone():
        process.start()
    assert queue.get() is True
    process.join(10)


def _pipe(queue):
    os.fstat(forkserver._forkserver._forkserver_alive_fd)
    queue.put(True)


def test_exit_functions_run_in_ranks_and_only_the_learners():
    def register():
        atexit.register(print, "mine")
        return atexit._ncallbacks()

    run = launch(register, nprocs=1, show=False)
    assert run.results == [1] and run.logs == ["mine\n"]


def test_torch_still_finds_its_rendezvous_in_the_place_that_is_patched():
    code = """
        import sys, torch.distributed as dist
        from helpers.launcher import workarounds
        handlers = sys.modules[dist.rendezvous.__module__]._rendezvous_handlers
        before = handlers["env"]
        workarounds.rendezvous_by_file("/nowhere/meeting")
        print(before is not handlers["env"], callable(before))
    """
    answer = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True, timeout=90).strip()
    assert answer == "True True"


def test_groups_meet_through_files_and_no_store_listens():
    def store():
        import torch.distributed as dist

        dist.init_process_group("gloo")
        inner = dist.distributed_c10d._get_default_store()
        while hasattr(inner, "underlying_store"):
            inner = inner.underlying_store
        return type(inner).__name__

    expected = "FileStore" if hardware.gpus else "QuickFileStore"
    assert launch(store, nprocs=2, show=False).results == [expected] * 2


def test_the_store_that_looks_oftener_does_what_torchs_own_does(tmp_path):
    def asked(store):
        within = dist.PrefixStore("group", store)
        within.set("a", "1")
        with pytest.raises(RuntimeError) as error:
            within.wait(["never"], datetime.timedelta(milliseconds=100))
        return [within.get("a"), within.add("n", 2), within.add("n", 3), within.compare_set("a", "1", "2"),
                within.check(["a", "n"]), within.check(["b"]), within.num_keys(), within.delete_key("n"),
                within.check(["n"]), within.wait(["a"]), within.clone().get("a"), str(error.value)]

    ours, theirs = workarounds._store(str(tmp_path / "ours"), 1), dist.FileStore(str(tmp_path / "theirs"), 1)
    assert asked(ours) == asked(theirs)
    Thread(target=lambda: (time.sleep(0.2), ours.set("late", "2"))).start()
    assert ours.get("late") == b"2", "it goes on looking when it no longer looks often"


def test_destroyed_groups_are_kept():
    def kept():
        import torch.distributed as dist

        dist.init_process_group("gloo")
        assert dist.distributed_c10d._world.pg_map, "the name that is kept"
        dist.destroy_process_group()
        cells = dict(zip(dist.destroy_process_group.__code__.co_freevars, dist.destroy_process_group.__closure__,
                         strict=True))
        return len(cells["kept"].cell_contents)

    assert launch(kept, nprocs=2, show=False).results == [1, 1]


@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="no NVIDIA GPU here")
def test_the_server_never_initialises_cuda():
    def compute():
        import torch

        return torch.cuda._is_in_bad_fork(), torch.ones(2, device="cuda").sum().item()

    import torch

    torch.ones(1, device="cuda")  # CUDA already used in the kernel
    assert launch(compute, nprocs=2, show=False).results == [(False, 2.0)] * 2


def test_a_rank_that_is_done_stays_while_others_may_still_be_connecting():
    def work():
        import time

        import torch.distributed as dist

        dist.init_process_group("gloo")
        pids = [None, None]
        dist.all_gather_object(pids, os.getpid())
        if dist.get_rank() == 0:
            return None
        time.sleep(0.5)
        return psutil.Process(pids[0]).status()

    run = launch(work, nprocs=2, show=False, timeout=60)
    assert run.results[1] in (psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING)


def test_a_rank_that_is_done_does_not_stay_for_long(tmp_path):
    began = time.monotonic()
    workarounds.stay_for_late_ranks(tmp_path / "meeting", [[tmp_path / "result-1"]], seconds=60)
    assert time.monotonic() - began < 60, "no group was formed"
    (tmp_path / "meeting-0").touch()
    workarounds.stay_for_late_ranks(tmp_path / "meeting", [[tmp_path / "result-1"]], seconds=0.2)
    assert 0.2 < time.monotonic() - began < 60


def test_a_rank_that_fails_stays_while_others_are_still_connecting(tmp_path):
    failing = tmp_path / "failing"

    def work():
        import time

        import torch.distributed as dist

        c10d = dist.distributed_c10d
        connect, sleep = c10d._new_process_group_helper, time.sleep

        def slowly(*args, **kwargs):
            formed = connect(*args, **kwargs)
            while not failing.exists():
                sleep(0.01)
            sleep(0.5)
            print("formed")
            return formed

        if os.environ["RANK"] == "1":
            c10d._new_process_group_helper = slowly
        else:  # it looks so seldom that rank 1 has failed and ended before it goes
            time.sleep = lambda seconds: sleep(1)
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            print("a", end="")
            failing.touch()
        raise ValueError(dist.get_rank())

    with pytest.raises(RankError, match="rank 0 of 2 failed first") as failed:
        launch(work, nprocs=2, show=False, timeout=60)
    assert failed.value.logs == ["a", "formed\n"]


def test_a_rank_that_fails_does_not_stay_for_long(tmp_path, monkeypatch):
    began = time.monotonic()
    workarounds.stay_for_connecting_ranks(seconds=60)
    monkeypatch.setattr(workarounds, "_formed", [[tmp_path / "meeting-0-0"]])
    workarounds.stay_for_connecting_ranks(seconds=0.2)
    assert 0.2 < time.monotonic() - began < 60
