"""launch under faults: each ends within its time with an error that a learner can act on, and leaves nothing behind."""

import dataclasses
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import psutil
import pytest
import torch

from helpers import RankError, launch, report
from helpers.launcher import server
from tests.conftest import eventually, orphaned_memory, running
from tests.test_launch import group

pytestmark = pytest.mark.usefixtures("nothing_left")


def failing(work, nprocs=2, timeout=60, **options):
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(work, nprocs=nprocs, show=False, timeout=timeout, **options)
    return caught.value, time.monotonic() - began


def says(error, pattern):
    return re.search(pattern, str(error), re.DOTALL)


# ------------------------------------------------------------------------------------------------- a rank raises


def before():
    if os.environ["RANK"] == "1":
        raise ValueError("boom before")
    group().barrier()


def inside():
    dist = group()
    dist.all_reduce(torch.ones(2) if dist.get_rank() == 0 else "not a tensor")


def after():
    dist = group()
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("boom after")
    dist.barrier()


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
    (inside, "TypeError: .*tensor", "dist.all_reduce("),
    (after, "ValueError: boom after", 'raise ValueError("boom after")'),
    (tidy, "ValueError: boom tidy", 'raise ValueError("boom tidy")'),
])
def test_the_exception_of_the_rank_that_failed_first_is_shown(work, message, line):
    error, seconds = failing(work)
    assert (error.rank, error.exitcode) == (1, 1)
    assert says(error, message)
    assert line in error.failures[0].traceback, "the learner's own line"
    assert "launcher" not in error.failures[0].traceback, "and none of ours"
    assert line in "\n".join(error._render_traceback_())
    assert seconds < 20


def test_a_failing_script_shows_its_own_line(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import torch\n\n\ndef deep():\n    return {}['key']\n\n\nprint('so far')\ndeep()\n")
    error, _ = failing(script)
    assert 'fails.py", line 5, in deep' in error.failures[0].traceback
    assert error.logs[error.rank] == "so far\n"


def test_a_module_that_the_script_needs_is_missing(tmp_path):
    script = tmp_path / "needs.py"
    script.write_text("import no_such_module\n")
    error, _ = failing(script, nprocs=1)
    assert says(error, "ModuleNotFoundError: No module named 'no_such_module'")


# ---------------------------------------------------------------------------------------------- a rank goes away


def leave(how):
    dist = group()
    dist.barrier()
    if dist.get_rank() == 1:
        how()
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(("how", "exitcode", "message"), [
    (lambda: os._exit(3), 3, r"exit code 3 \(os._exit\?\)"),
    (lambda: os._exit(0), 0, "left before its work was done"),
    (lambda: sys.exit(3), 3, r"SystemExit: sys.exit\(3\)"),
    (lambda: sys.exit("no data"), 1, "SystemExit: no data"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), -9, "SIGKILL.*memory"),
    (lambda: os.kill(os.getpid(), signal.SIGTERM), -15, "SIGTERM"),
    (lambda: __import__("ctypes").string_at(0), -11, "SIGSEGV at `.*string_at"),
    (lambda: os.abort(), -6, "SIGABRT"),
])
def test_a_rank_that_goes_away_is_named(how, exitcode, message):
    error, seconds = failing(leave, args=(how,))
    assert (error.rank, error.exitcode) == (1, exitcode)
    assert says(error, message)
    assert seconds < 20


def test_a_rank_that_leaves_in_good_order_too_early_is_named():
    def early():
        dist = group()
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    error, _ = failing(early)
    assert error.rank == 0 and says(error, "Rank 1 had finished by then")


def test_ranks_that_disagree_on_a_collective_end():
    def disagree():
        dist = group()
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(4))
        else:
            dist.barrier()
            dist.barrier()

    _, seconds = failing(disagree, timeout=3)
    assert seconds < 20


def test_a_rank_that_sleeps_for_ever_is_found_asleep():
    def sleep():
        dist = group()
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(1))

    error, seconds = failing(sleep, timeout=2)
    assert seconds < 20 and error.exitcode is None
    assert says(error, "no result after 2 s: ")
    assert "rank 0 was at `dist.all_reduce(torch.ones(1))`" in str(error)
    assert "rank 1 was at `time.sleep(1000)`" in str(error)


def test_a_rank_that_hangs_while_it_leaves_is_found():
    def linger():
        threading.Thread(target=time.sleep, args=(1000,)).start()

    error, _ = failing(linger, nprocs=1, timeout=2)
    assert says(error, "has done its work but does not end")


def test_a_rank_that_ignores_signals_is_ended():
    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.environ["RANK"] == "0":
            raise ValueError("boom")
        time.sleep(1000)

    error, seconds = failing(stubborn)
    assert error.rank == 0 and seconds < 20


def test_what_a_rank_has_started_ends_with_it():
    def start():
        subprocess.Popen(["sleep", "987654"])
        return os.getpid()

    launch(start, nprocs=2, show=False)
    assert eventually(lambda: not running("987654")), "after success"

    def start_and_fail():
        subprocess.Popen(["sleep", "987654"])
        raise ValueError

    failing(start_and_fail)
    assert eventually(lambda: not running("987654")), "after a failure"


# ------------------------------------------------------------------------------------------------------- sending


def test_something_unpicklable_as_a_result():
    error, _ = failing(lambda: threading.Lock(), nprocs=1)
    assert says(error, "TypeError: what this rank returned, a lock, cannot be sent")


def test_a_result_that_cannot_be_read_here():
    class Sticky:
        def __reduce__(self):
            return (eval, ("1 / 0",))

    error, _ = failing(lambda: Sticky(), nprocs=1)
    assert says(error, "cannot be read here: ZeroDivisionError")


def test_a_worker_that_prints_200_000_lines(capsys):
    def flood():
        for i in range(200_000):
            print(f"line {i} of a flood")

    run = launch(flood, nprocs=2, timeout=120)
    assert run.logs[0].count("\n") == 200_000 and run.logs[1].endswith("line 199999 of a flood\n")
    assert len(capsys.readouterr().out) < 100_000


def test_a_worker_that_prints_without_end_on_one_line():
    def flood():
        for _ in range(200):
            os.write(1, b"x" * 2**20)

    run = launch(flood, nprocs=1, show=False, timeout=120)
    assert 16 * 2**20 < len(run.logs[0]) < 17 * 2**20 and "left out" in run.logs[0]


def test_binary_junk_and_emoji():
    def junk():
        print("🚀 ünïcode \ud800")
        os.write(1, bytes(range(256)) + b"\n\xf0\x9f\n")
        print("\x1b[2J\x1b[1mbold\x1b[0m")

    [log] = launch(junk, nprocs=1, show=False).logs
    assert "🚀 ünïcode \\ud800" in log and "\x00" not in log and "\ufffd" in log
    assert log.endswith("\x1b[1mbold\x1b[0m\n"), "colours stay, clearing the screen does not"
    log.encode()


# ------------------------------------------------------------------------------------------------ the surroundings


class InterruptWhenUp:
    """For `on_report`: interrupts this process, as Ctrl-C would, once every rank has reported."""

    def __init__(self, nprocs=2):
        self.missing = set(range(nprocs))

    def __call__(self, rank, row):
        self.missing.discard(rank)
        if not self.missing:
            self.at = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_during_compute_and_during_a_collective(interruptible):
    def compute():
        report(up=True)
        while True:
            torch.ones(100, 100) @ torch.ones(100, 100)

    def collective():
        dist = group()
        report(up=True)
        if dist.get_rank() == 0:
            dist.barrier()
        time.sleep(1000)

    for work in (compute, collective):
        interrupt = InterruptWhenUp()
        with pytest.raises(KeyboardInterrupt):
            launch(work, nprocs=2, show=False, timeout=60, on_report=interrupt)
        assert time.monotonic() - interrupt.at < 20


@pytest.mark.parametrize("process_groups", [True, False])
def test_an_interrupted_rank_may_tidy_up(tmp_path, interruptible, monkeypatch, process_groups):
    if not process_groups:
        monkeypatch.delattr("os.killpg")  # as on Windows, where ranks are spawned
        monkeypatch.setattr(server, "START_METHOD", "spawn")

    def tidy():
        try:
            report(up=True)
            time.sleep(1000)
        finally:
            (tmp_path / os.environ["RANK"]).touch()

    with pytest.raises(KeyboardInterrupt):
        launch(tidy, nprocs=2, show=False, timeout=60, on_report=InterruptWhenUp())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_signal_handlers_are_left_as_they_were():
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in watched]
    launch(print, nprocs=1, show=False)
    assert [signal.getsignal(number) for number in watched] == before


def test_torch_used_with_all_threads_before():
    torch.set_num_threads(max(2, torch.get_num_threads()))
    torch.randn(4_000_000).exp()

    def work():
        group().barrier()
        return torch.randn(4_000_000).exp().shape[0]

    assert launch(work, nprocs=2, show=False, timeout=60).results == [4_000_000] * 2


def test_the_fork_server_killed_between_launches():
    for number in (signal.SIGKILL, signal.SIGTERM):
        launch(print, nprocs=1, show=False)
        os.kill(server.start().process.pid, number)
        assert launch(lambda: 5, nprocs=1, show=False, timeout=60).results == [5]


def test_the_fork_server_killed_between_the_look_at_it_and_the_first_rank(monkeypatch):
    make_folder = tempfile.mkdtemp

    def kills_the_server(**options):
        monkeypatch.undo()
        os.kill(server.start().process.pid, signal.SIGKILL)
        return make_folder(**options)

    launch(print, nprocs=1, show=False)
    monkeypatch.setattr(tempfile, "mkdtemp", kills_the_server)
    assert launch(lambda: 5, nprocs=2, show=False, timeout=60).results == [5, 5]


def test_a_server_whose_kernel_ends_while_it_imports_leaves_nothing(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COURSE_TEST_MARK": f"mark-{tmp_path.name}-{os.getpid()}"}
    subprocess.run([sys.executable, "-c", "import helpers.launcher"], env=environment, timeout=60, check=True)
    assert eventually(lambda: not running(environment["COURSE_TEST_MARK"]))
    assert eventually(lambda: not list(tmp_path.iterdir())), list(tmp_path.rglob("*"))


def test_the_fork_server_killed_during_a_run():
    launch(print, nprocs=1, show=False)
    threading.Timer(1.0, lambda: os.kill(server.start().process.pid, signal.SIGKILL)).start()
    error, seconds = failing(lambda: time.sleep(1000))
    assert says(error, "fork server") and seconds < 20


def test_an_unwritable_temporary_folder():
    code = textwrap.dedent("""
        import os, tempfile
        tempfile.tempdir = "/proc/self/no-such-folder"
        from helpers import launch
        try:
            launch(print, nprocs=1)
        except OSError as error:
            print("OSError", error)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "OSError" in done.stdout and "set TMPDIR to a folder that you can write" in done.stdout, done.stderr


def test_a_small_dev_shm():
    """Launching needs no shared memory at all: a container's 64 KiB are enough."""
    code = ("from helpers import launch; import torch, torch.distributed as dist\n"
            "def work():\n    dist.init_process_group(); t = torch.ones(1000); dist.all_reduce(t)\n"
            "    return t.sum().item()\n"
            "print(launch(work, nprocs=2, show=False).results)")
    shell = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} -c '{code}'"
    try:
        probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if probe.returncode:
        pytest.skip("mounting a small /dev/shm needs rights that this user has not")
    done = subprocess.run(["unshare", "-m", "sh", "-c", shell], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[2000.0, 2000.0]\n", done.stderr


def test_nothing_listens_beyond_loopback():
    def wait():
        group().barrier()
        time.sleep(1.5)

    seen = []
    launch(print, nprocs=1, show=False)

    def look():
        for process in psutil.Process().children(recursive=True):
            seen.extend(c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)

    threading.Timer(1.0, look).start()
    launch(wait, nprocs=2, show=False)
    assert seen, "gloo listens"
    assert {address.ip for address in seen} <= {"127.0.0.1", "::1"}


def test_two_launches_at_once_from_threads():
    results = {}

    def work(name):
        dist = group()
        total = torch.tensor([name])
        dist.all_reduce(total)
        return total.item()

    threads = [threading.Thread(target=lambda n=n: results.update({n: launch(work, 2, (n,), show=False).results}))
               for n in (1, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {1: [2, 2], 10: [20, 20]}


# ------------------------------------------------------------------------------------------- the kernel goes away

KERNEL = """
import os, subprocess, sys, threading, time
from helpers import launch
def work():
    import torch.distributed as dist
    dist.init_process_group()
    subprocess.Popen(["sleep", "876543"])
    print("up", flush=True)
    if dist.get_rank() == 0:
        dist.barrier()                  # waits in C++
    time.sleep(1000)
class Show:
    def update(self, lines, unfinished):
        for rank, line in lines:
            print(line, flush=True)
    def finish(self, logs): pass
launch(work, nprocs=2, show=Show())
"""


@pytest.mark.parametrize("how", ["kill the kernel", "kill its whole group", "SIGTERM to its group"])
def test_a_kernel_that_is_gone_leaves_nothing(how, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COURSE_TEST_MARK": f"mark-{tmp_path.name}-{os.getpid()}"}
    shared_before = set(os.listdir("/dev/shm"))
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], env=environment, stdout=subprocess.PIPE, text=True,
                              start_new_session=True)
    assert kernel.stdout.readline() == "up\n" and kernel.stdout.readline() == "up\n"
    mark = environment["COURSE_TEST_MARK"]
    assert len(running(mark)) >= 6, "kernel, server, tracker, two ranks, what they started"
    if how == "kill the kernel":
        kernel.kill()
    else:
        os.killpg(kernel.pid, signal.SIGTERM if how.startswith("SIGTERM") else signal.SIGKILL)
    kernel.wait(20)
    kernel.stdout.close()
    assert eventually(lambda: not running(mark)), running(mark)
    assert eventually(lambda: not list(tmp_path.iterdir())), list(tmp_path.rglob("*"))
    assert eventually(lambda: not orphaned_memory(shared_before)), orphaned_memory(shared_before)


def test_a_kernel_that_exits_in_good_order_leaves_nothing(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COURSE_TEST_MARK": f"mark-{tmp_path.name}-{os.getpid()}"}
    code = "from helpers import launch; launch(print, nprocs=2)"
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)
    assert eventually(lambda: not running(environment["COURSE_TEST_MARK"]))
    assert eventually(lambda: not list(tmp_path.iterdir())), list(tmp_path.rglob("*"))


@pytest.mark.long
def test_two_notebooks_at_once():
    code = ("from helpers import launch; import torch, torch.distributed as dist\n"
            "def work(n):\n    dist.init_process_group(); t = torch.tensor([n]); dist.all_reduce(t); return t.item()\n"
            "print([launch(work, 2, ({n},), show=False).results for _ in range(5)][-1])")
    both = [subprocess.Popen([sys.executable, "-c", code.replace("{n}", str(n))], stdout=subprocess.PIPE, text=True)
            for n in (1, 10)]
    assert [process.communicate(timeout=120)[0] for process in both] == ["[2, 2]\n", "[20, 20]\n"]


# ------------------------------------------------------------------------- found by somebody who tried to break it


def test_a_writer_that_left_the_ranks_group_does_not_hold_the_launch():
    def leave_a_flood_behind():
        subprocess.Popen(["timeout", "2", "yes"], start_new_session=True)
        time.sleep(0.2)

    began = time.monotonic()
    launch(leave_a_flood_behind, nprocs=1, show=False)
    assert time.monotonic() - began < 20


def test_an_endless_printer_is_ended_in_time():
    def flood():
        while True:
            print("x" * 1000)

    _, seconds = failing(flood, nprocs=1, timeout=3)
    assert seconds < 20


def test_a_rank_that_has_become_another_program_is_ended():
    error, _ = failing(lambda: os.execvp("sleep", ["sleep", "1000"]), nprocs=1, timeout=2)
    assert says(error, "no result after 2 s")


def test_long_reports_arrive_whole():
    def work():
        report(numbers=list(range(300_000)))
        report(last=True)

    assert [len(row) for row in launch(work, nprocs=1, show=False).reports[0]] == [1, 1]


def test_a_huge_message_is_shortened():
    def fail():
        raise ValueError("x" * 10**6)

    error, _ = failing(fail, nprocs=1)
    assert len("\n".join(error._render_traceback_())) < 50_000


def test_a_rank_error_can_be_pickled():
    error, _ = failing(lambda: 1 / 0, nprocs=1)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.failures) == (str(error), error.rank, error.failures)


def test_a_terminal_that_cannot_show_a_character_shows_its_number():
    code = "from helpers import launch; launch(lambda: print('é'), nprocs=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout == "[0] \\xe9\n", done.stderr


def test_many_open_files_do_not_matter():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard[1]), hard[1]))
    many = [open(os.devnull) for _ in range(1100)]  # more than select(2) can look at
    try:
        assert launch(lambda: 5, nprocs=1, show=False).results == [5]
    finally:
        for file in many:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)


def test_a_launch_in_another_environment_leaves_one_that_runs_alone():
    results = []

    def launch_slowly():
        results.extend(launch(lambda: time.sleep(4) or 1, nprocs=1, show=False).results)

    slow = threading.Thread(target=launch_slowly)
    slow.start()
    time.sleep(1)
    assert launch(lambda: 2, nprocs=1, show=False, env={"PYTHONWARNINGS": "ignore"}).results == [2]
    slow.join(60)
    assert results == [1]


def test_an_import_that_fails_is_told_each_time():
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="Invalid log settings"):
            launch(print, nprocs=1, show=False, env={"TORCH_LOGS": "nonsense"})
        assert time.monotonic() - began < 60
    assert launch(lambda: 5, nprocs=1, show=False, timeout=60).results == [5]


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "a\0b"}, {"A": 1}, ["A"]])
def test_what_is_no_environment_is_refused(env):
    with pytest.raises(TypeError, match="env must be a dict of texts"):
        launch(print, nprocs=1, env=env)


def test_an_exception_that_cannot_be_changed_is_the_cause():
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        pass

    def fail():
        raise Frozen()

    error, _ = failing(fail, nprocs=1)
    assert type(error.__cause__).__name__ == "Frozen" and says(error, "Frozen")


def test_a_kernel_whose_child_lives_on_leaves_nothing(tmp_path):
    """The child holds the kernel's end of the fork server's socket."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COURSE_TEST_MARK": f"mark-{tmp_path.name}-{os.getpid()}"}
    code = KERNEL.replace("launch(work", "import multiprocessing\nmultiprocessing.get_context('fork').Process("
                          "target=time.sleep, args=(20,)).start()\nlaunch(work")
    kernel = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert kernel.stdout.readline() == "up\n" and kernel.stdout.readline() == "up\n"
    kernel.kill()
    kernel.wait(20)
    kernel.stdout.close()
    assert eventually(lambda: not list(tmp_path.iterdir()), 15), list(tmp_path.rglob("*"))
    for child in running(environment["COURSE_TEST_MARK"]):
        child.kill()


def test_threads_of_a_rank_that_ask_at_once_are_answered_one_by_one():
    def ask():
        errors = []

        def asks():
            try:
                input("? ")
            except EOFError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=asks) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    assert launch(ask, nprocs=1, show=False, timeout=30).results == [["EOF when reading a line"] * 3]
