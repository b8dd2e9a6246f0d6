"""launch under faults: each ends in time, with an error to act on, and leaves nothing behind."""

import contextlib
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
import torch

from helpers import RankError, launch, report
from helpers.launcher import client, processes
from tests.conftest import eventually, orphaned_memory, running
from tests.test_launch import group

pytestmark = pytest.mark.usefixtures("nothing_left")

MAY_MOUNT = shutil.which("unshare") and not subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode


def failing(work, nprocs=2, timeout=60, **options):
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(work, nprocs=nprocs, show=False, timeout=timeout, **options)
    assert time.monotonic() - began < 20
    return caught.value


def says(error, pattern):
    return re.search(pattern, str(error), re.DOTALL)


# ---------------------------------------------------------------------------------------------- a rank raises


def before():
    if os.environ["RANK"] == "1":
        raise ValueError("boom before")
    group().barrier()


def tidy():
    dist = group()
    try:
        if dist.get_rank() == 1:
            raise ValueError("boom tidy")
        dist.barrier()
    finally:
        dist.destroy_process_group()  # rank 0 hears of it before rank 1's exception reaches the top
        time.sleep(0.3)


@pytest.mark.parametrize(("work", "message", "line"), [
    (before, "ValueError: boom before", 'raise ValueError("boom before")'),
    (tidy, "ValueError: boom tidy", 'raise ValueError("boom tidy")'),
])
def test_the_exception_of_the_rank_that_failed_first_is_shown(work, message, line):
    error = failing(work)
    assert (error.rank, error.exitcode) == (1, 1)
    assert says(error, message)
    assert line in error.failures[0].traceback, "the learner's own line"
    assert "launcher" not in error.failures[0].traceback, "and none of ours"
    assert line in "\n".join(error._render_traceback_())
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.failures) == (str(error), error.rank, error.failures)


def test_a_failing_script_shows_its_own_line(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import torch\n\ndef deep():\n    import no_such_module\n\nprint('so far')\n"
                      "torch.distributed.init_process_group('gloo')\ndeep()\n")
    error = failing(script)
    assert says(error, "ModuleNotFoundError: No module named 'no_such_module'")
    assert 'fails.py", line 4, in deep' in error.failures[0].traceback
    assert error.logs[error.rank] == "so far\n"


def test_a_hook_may_end_the_rank_with_a_code_of_its_own():
    def work():
        sys.excepthook = lambda *_: sys.exit(44)
        raise ValueError("boom")

    error = failing(work, nprocs=1)
    assert error.exitcode == 44 and says(error, "ValueError: boom")


def test_an_exception_is_known_at_exit_and_printed_where_the_script_sends_its_stderr(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import atexit, os, sys\natexit.register(lambda: print(sys.last_type, file=open('seen', 'w')))\n"
                      "os.dup2(os.open('stderr', os.O_CREAT | os.O_WRONLY), 2)\nraise ValueError('boom')\n")
    with contextlib.chdir(tmp_path):
        error = failing(script, nprocs=1)
    assert error.logs == [""]
    assert (tmp_path / "stderr").read_text().endswith("ValueError: boom\n")
    assert (tmp_path / "seen").read_text() == "<class 'ValueError'>\n"


def test_a_script_that_freezes_its_objects_loses_no_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import gc, signal\nsignal.signal(signal.SIGTERM, lambda *_: log)\n"
                      "log = open('log.txt', 'w')\nlog.write('x')\ngc.collect()\ngc.freeze()\ngc.disable()\n")
    with contextlib.chdir(tmp_path):
        launch(script, nprocs=1, show=False)
    assert (tmp_path / "log.txt").read_text() == "x"


def test_a_rank_that_can_open_no_more_files_says_so():
    def work():
        while True:
            os.open(os.devnull, os.O_RDONLY)

    assert says(failing(work, nprocs=1), r"OSError: \[Errno 24\] Too many open files")


# ------------------------------------------------------------------------------------------- a rank goes away


def leave(how):
    dist = group()
    dist.barrier()
    if dist.get_rank() == 1:
        how()
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(("how", "exitcode", "message"), [
    (lambda: os._exit(3), 3, r"exit code 3 \(os._exit\?\)"),
    (lambda: os._exit(0), 0, "left before its work was done"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), -9, "SIGKILL.*memory"),
    (lambda: __import__("ctypes").string_at(0), -11, "SIGSEGV at `.*string_at"),
])
def test_a_rank_that_goes_away_is_named(how, exitcode, message):
    error = failing(leave, args=(how,))
    assert (error.rank, error.exitcode) == (1, exitcode)
    assert says(error, message)


def test_a_rank_that_leaves_in_good_order_too_early_is_named():
    def early():
        dist = group()
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    error = failing(early)
    assert error.rank == 0 and says(error, "Rank 1 had finished by then")


def test_an_answer_that_is_still_being_written_is_not_read(tmp_path):
    """On a busy machine a rank was cut short in its answer, and was said to be busy in compiled code."""
    code = ("import faulthandler, sys, threading, time;"
            "threading.Thread(target=time.sleep, args=(9,), daemon=True).start();"
            "deep = lambda n: deep(n - 1) if n else faulthandler.dump_traceback(sys.stdout); deep(int(sys.argv[1]))")
    for depth in 3, 200:
        answer = subprocess.check_output([sys.executable, "-c", code, str(depth)])
        for length in range(len(answer) + 1):
            (tmp_path / "stack").write_bytes(answer[:length])
            assert processes.is_whole(tmp_path / "stack") == (length == len(answer)), answer[:length]
    assert not processes.is_whole(tmp_path / "nowhere")


def test_whatever_a_rank_hangs_in_is_found_when_it_sleeps_too():
    """One sleeps, one waits for it, one does not end, one has become another program."""
    def hang():
        dist = torch.distributed
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank == 0:
            time.sleep(1000)
        if rank == 1:
            dist.all_reduce(torch.ones(1))
        if rank == 2:
            threading.Thread(target=time.sleep, args=(1000,)).start()
        if rank == 3:
            os.execvp("sleep", ["sleep", "1000"])

    error = failing(hang, nprocs=4, timeout=2)
    assert error.exitcode is None and says(error, "no result after 2 s: ")
    assert "rank 0 was at `time.sleep(1000)`" in str(error)
    assert "rank 1 was at `dist.all_reduce(torch.ones(1))`" in str(error)
    assert says(error, "rank 2 has done its work but does not end")


def test_a_hang_in_a_folder_whose_name_is_not_ascii_shows_its_line(tmp_path):
    script = tmp_path / "jürgen 汉" / "hangs.py"
    script.parent.mkdir()
    script.write_text("import time\ntime.sleep(1000)  # here\n")
    assert says(failing(script, nprocs=1, timeout=0.5), r"rank 0 was at `time.sleep\(1000\)` \(hangs.py line 2\)")


def test_a_result_that_cannot_be_read_hides_no_failure():
    class Unreadable:
        def __reduce__(self):
            return os.kill, ("no number",)

    def work():
        if os.environ["RANK"] == "0":
            time.sleep(0.1)
            raise ValueError("boom")
        return Unreadable()

    assert says(failing(work), "ValueError: boom")
    assert says(failing(Unreadable, nprocs=1), "what rank 0 returned cannot be read here: TypeError")


def test_others_have_their_grace_also_where_the_first_has_lost_a_peer():
    def work():
        if os.environ["RANK"] == "0":
            raise RuntimeError("Connection closed by peer")
        time.sleep(2)
        raise ValueError("the root")

    assert says(failing(work, grace=10), "ValueError: the root")


def test_a_rank_that_ignores_signals_is_ended(monkeypatch):
    monkeypatch.setattr(processes, "SECONDS_AFTER_SIGTERM", 0.2)

    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.environ["RANK"] == "0":
            raise ValueError("boom")
        time.sleep(1000)

    assert failing(stubborn).rank == 0


# ----------------------------------------------------------------------------------- what is sent and printed


def test_a_huge_exception_is_shortened():
    def fail():
        raise ValueError("x" * 10**6)

    assert len("\n".join(failing(fail, 1)._render_traceback_())) < 50_000


def test_floods_are_kept_up_to_a_bound_and_shown_in_part(capsys):
    def flood():
        if os.environ["RANK"] == "0":
            print("\n".join(f"line {i} of a flood" for i in range(20_000)))
        else:
            for _ in range(40):
                os.write(1, b"x" * 2**19)

    few, endless = launch(flood, nprocs=2, timeout=120).logs
    assert few.count("\n") == 20_000 and few.endswith("line 19999 of a flood\n")
    assert 16 * 2**20 < len(endless) < 17 * 2**20 and "left out" in endless
    assert len(capsys.readouterr().out) < 100_000


def test_a_flood_is_bounded_on_the_disk_while_it_is_written():
    def flood():
        for _ in range(60):
            os.write(1, b"x" * 2**20)
            report(MiB=os.fstat(1).st_blocks * 512 / 2**20)
            time.sleep(0.02)

    run = launch(flood, nprocs=1, show=False)
    assert max(row["MiB"] for row in run.reports[0]) < 40
    assert "left out" in run.logs[0] and "\0" not in run.logs[0]


def test_binary_junk_and_emoji():
    def junk():
        print("🚀 ünïcode \ud800")
        os.write(1, bytes(range(256)) + b"\n\xf0\x9f\n")
        print("\x1b[2J\x1b[1mbold\x1b[0m")

    [log] = launch(junk, nprocs=1, show=False).logs
    assert "🚀 ünïcode \\ud800" in log and "\x00" not in log and "\ufffd" in log
    assert log.endswith("\x1b[1mbold\x1b[0m\n"), "colours stay, clearing the screen does not"
    log.encode()


def test_a_terminal_that_cannot_show_a_character_shows_its_number(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    launch(lambda: print("é"), nprocs=1)
    assert sys.stdout.buffer.getvalue() == b"[0] \\xe9\n"


# ------------------------------------------------------------------------------------------- the surroundings


@pytest.mark.parametrize("process_groups", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_interrupted_rank_may_tidy_up(tmp_path, interruptible, monkeypatch, process_groups):
    if not process_groups:
        monkeypatch.delattr("os.killpg")  # as on Windows, where ranks are spawned
        monkeypatch.setattr(client, "START_METHOD", "spawn")
    up = set()

    def interrupt(rank, row):
        up.add(rank)
        if len(up) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C would

    def tidy():
        try:
            report(up=True)
            while os.environ["RANK"] == "2":
                torch.ones(100, 100) @ torch.ones(100, 100)
            time.sleep(1000)
        finally:
            (tmp_path / os.environ["RANK"]).touch()

    with pytest.raises(KeyboardInterrupt):
        launch(tidy, nprocs=3, show=False, timeout=60, on_report=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_signal_handlers_are_left_as_they_were():
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in watched]
    launch(print, nprocs=1, show=False)
    assert [signal.getsignal(number) for number in watched] == before


def test_nothing_listens_beyond_loopback():
    def wait():
        group().barrier()
        report(up=True)
        time.sleep(0.5)

    seen = []

    def look(rank, row):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one of another test's has just ended
                seen.extend(c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)

    launch(wait, nprocs=2, show=False, on_report=look)
    assert seen, "gloo listens"
    assert {address.ip for address in seen} <= {"127.0.0.1", "::1"}


def test_an_unwritable_temporary_folder(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self/no-such-folder")
    with pytest.raises(OSError, match="set TMPDIR to a folder that you can write"):
        launch(print, nprocs=1)


def test_a_folder_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(FileNotFoundError, match="the folder in which this notebook runs is not there any more"):
        launch(print, nprocs=1)


IN_TROUBLE = """
import sys, tempfile
from helpers import RankError, launch
def fill():
    with open(tempfile.mktemp(), "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
outcome = open(sys.argv[1], "w")
print(launch(lambda: 5, nprocs=2).results, file=outcome)
try:
    launch(fill, nprocs=2, timeout=60)
except RankError as error:
    print(error, error.failures[0].traceback, file=outcome)
"""


def test_a_full_disk_is_named_also_where_nobody_can_be_told(tmp_path):
    """In a temporary folder of 4 MiB, by a kernel whose standard streams are closed."""
    if not MAY_MOUNT:
        pytest.skip("no file system can be mounted here")
    disk, outcome = tmp_path / "disk", tmp_path / "outcome"
    disk.mkdir()
    shell = f'mount -t tmpfs -o size=4m tmpfs {disk} && exec "$@" <&- >&- 2>&-'
    subprocess.run(["unshare", "-m", "sh", "-c", shell, "sh", sys.executable, "-c", IN_TROUBLE, str(outcome)],
                   env={**os.environ, "TMPDIR": str(disk)}, timeout=60, check=True)
    assert "[5, 5]" in outcome.read_text()
    assert "No space left on device" in outcome.read_text() and "line 7, in fill" in outcome.read_text()


# ---------------------------------------------------------------------------------- the fork server goes away


@pytest.mark.long
def test_the_fork_server_killed_during_a_run_and_the_next_launch(monkeypatch):
    monkeypatch.setattr(processes, "SECONDS_AFTER_SIGTERM", 0.2)
    launch(print, nprocs=1, show=False)

    def kill(rank, row):
        os.kill(client.start().process.pid, signal.SIGKILL)

    def wait():
        report(up=True)
        time.sleep(1000)

    assert says(failing(wait, nprocs=1, on_report=kill), "fork server")
    assert launch(lambda: 5, nprocs=1, show=False, timeout=60).results == [5]


@pytest.mark.long
def test_an_import_that_fails_is_told_each_time():
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Invalid log settings"):
            launch(print, nprocs=1, show=False, env={"TORCH_LOGS": "nonsense"})
    assert launch(lambda: 5, nprocs=1, show=False, timeout=60).results == [5]


# --------------------------------------------------------------------------------------- the kernel goes away

#: A plain script without a main guard.
KERNEL = """
import multiprocessing, subprocess, time
from helpers import launch
print("once", flush=True)
def work(endless):
    import torch, torch.distributed as dist
    dist.init_process_group()
    total = torch.ones(1000)
    dist.all_reduce(total)
    if endless:
        subprocess.Popen(["sleep", "876543"])
        print("up", flush=True)
        if dist.get_rank() == 0:
            dist.barrier()                  # waits in C++
        time.sleep(1000)
    return total.sum().item()
class Show:
    def update(self, lines, unfinished):
        for rank, line in lines:
            print(line, flush=True)
    def finish(self, logs): pass
print(launch(work, 2, (False,), show=False).results, flush=True)
"""
ENDLESS = "launch(work, 2, (True,), show=Show())"
CHILD = "multiprocessing.get_context('fork').Process(target=time.sleep, args=(20,)).start()\n"
#: A container may have no more shared memory than this; launching needs none.
SMALL = "mount -t tmpfs -o size=64k tmpfs /dev/shm && "


@pytest.fixture
def alone(tmp_path):
    """An environment by which all that a kernel starts can be told; nothing of it may be left."""
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    shared_before = set(os.listdir("/dev/shm"))
    yield {**os.environ, "TMPDIR": str(tmp_path), "COURSE_TEST_MARK": mark}
    left = f"{tmp_path} is not empty"  # while CHILD still runs
    assert eventually(lambda: not list(tmp_path.iterdir()), 15), left
    assert eventually(lambda: not running(mark)), running(mark)
    assert eventually(lambda: not orphaned_memory(shared_before)), orphaned_memory(shared_before)


@pytest.mark.long
@pytest.mark.parametrize(("number", "whole_group", "child"), [
    pytest.param(signal.SIGKILL, False, "", id="kill -9"),
    pytest.param(signal.SIGTERM, True, "", id="SIGTERM to its group"),
    # The child holds the kernel's end of the fork server's socket.
    pytest.param(signal.SIGKILL, False, CHILD, id="kill -9, and a child lives on"),
])
def test_a_kernel_that_is_gone_leaves_nothing(number, whole_group, child, alone):
    command = [sys.executable, "-c", KERNEL + child + ENDLESS]
    if MAY_MOUNT:
        command = ["unshare", "-m", "sh", "-c", f'{SMALL}exec "$@"', "sh", *command]
    kernel = subprocess.Popen(command, env=alone, text=True, stdout=subprocess.PIPE, start_new_session=True)
    assert [kernel.stdout.readline() for _ in range(4)] == ["once\n", "[2000.0, 2000.0]\n", "up\n", "up\n"]
    assert len(running(alone["COURSE_TEST_MARK"])) >= 6, "kernel, server, tracker, two ranks, their children"
    (os.killpg if whole_group else os.kill)(kernel.pid, number)
    kernel.wait(20)
    kernel.stdout.close()


@pytest.mark.long
@pytest.mark.parametrize("code", ["import helpers.launcher", "from helpers import launch; launch(print)"])
def test_a_kernel_that_ends_in_good_order_leaves_nothing(code, alone):
    """Also one whose server still imports."""
    subprocess.run([sys.executable, "-c", code], env=alone, timeout=60, check=True)


LETS_GO = """
import threading

let_go, gone = threading.Event(), threading.Event()

class Held:
    def __del__(self):
        print("deleted", flush=True)
        let_go.set()
        gone.wait(2)

def hold(box):
    let_go.wait()
    box.clear()
    gone.set()

threading.Thread(target=hold, args=([Held()],), daemon=True).start()
"""


def test_what_a_thread_lets_go_of_at_the_end_is_deleted_once(tmp_path):
    (tmp_path / "lets_go.py").write_text(LETS_GO)
    assert launch(tmp_path / "lets_go.py", nprocs=1, show=False).logs == ["deleted\n"]
