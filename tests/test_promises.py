"""The promises of docs/promises.md that have no other home. PROMISE_SEED=7 pytest -m long … draws others.
"""

import argparse
import ast
import contextlib
import gzip
import ipaddress
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from helpers import RankError, launch, records, report
from helpers.data import DataError, Digits
from helpers.exercises import journal
from helpers.exercises.catalogue import progress
from helpers.instruments import traces
from helpers.places import LESSONS as SCRIPTS
from tests.benchmarks import soak
from tests.conftest import ROOT, eventually, running
from tests.test_traces import STEP, written

SEED = os.environ.get("PROMISE_SEED", "0")
LESSONS = [pytest.param(path, id=path.stem) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]

# ---------------------------------------------------------------------------------------- lessons, as a whole


class Lesson:
    """A lesson that is executed in a kernel, all of whose processes can be told by their environment."""

    def __init__(self, path, folder):
        self.mark = f"lesson-{os.getpid()}-{folder.name}"
        self.environment = {**os.environ, "COURSE_TEST_MARK": self.mark,
                            "COURSE_PROGRESS": str(folder / "progress.json")}
        self.book = nbformat.read(path, as_version=4)
        here = {"metadata": {"path": str(folder)}}  # where it writes files
        self.client = NotebookClient(self.book, timeout=600, kernel_name="python3", store_widget_state=False,
                                     resources=here)

    def execute(self):
        self.client.execute(env=self.environment)

    def kill(self):
        os.kill(self.client.km.provisioner.pid, signal.SIGKILL)

    def heard(self, known):
        """The addresses on which its processes listen now, but for networks of their own, and torchrun itself.

        known: {process id: whether it is the lesson's}, kept from look to look.
        """
        found, network = set(), os.readlink("/proc/self/ns/net")
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError, psutil.Error):  # it has ended meanwhile
                if pid not in known:
                    known[pid] = self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
                ours = b"torch.distributed.run" not in Path(f"/proc/{pid}/cmdline").read_bytes()
                if ours and known[pid] and os.readlink(f"/proc/{pid}/ns/net") == network:
                    found |= {one.laddr.ip for one in psutil.Process(int(pid)).net_connections("tcp")
                              if one.status == psutil.CONN_LISTEN}
        return found


@pytest.mark.long
@pytest.mark.parametrize("path", LESSONS)
def test_in_no_lesson_anything_listens_beyond_loopback(path, tmp_path):
    """The computers of lesson 12 listen in networks of their own, which no interface joins to this one."""
    lesson, seen, known, over = Lesson(path, tmp_path), set(), {}, threading.Event()
    interfaces = set(psutil.net_if_addrs())

    def watch():
        while not over.wait(0.05):
            seen.update(lesson.heard(known))
            seen.update(set(psutil.net_if_addrs()) - interfaces)  # a name, which is no address

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        lesson.execute()
    finally:
        over.set()
        watcher.join()
    assert "127.0.0.1" in seen, "the kernel's own, at least"
    addresses = [ipaddress.ip_address(address) for address in seen]
    assert all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in addresses), seen


@pytest.mark.long
@pytest.mark.parametrize("path", LESSONS)
def test_a_kernel_killed_at_a_random_moment_of_a_lesson_leaves_no_process(path, tmp_path):
    lesson, dice = Lesson(path, tmp_path), random.Random(f"{SEED}{path.stem}")
    starting = [number for number, cell in enumerate(lesson.book.cells) if cell.cell_type == "code"
                and re.search(r"launch\(|\.check\(|Process|Popen|DataLoader|submit|torchrun", cell.source)]
    victim, delay = dice.choice(starting), dice.uniform(0, 2)
    # So that the lesson goes on for longer.
    lesson.book.cells.append(nbformat.v4.new_code_cell("import time; time.sleep(2)"))

    def kill_in(cell, cell_index):
        if cell_index == victim:
            threading.Timer(delay, lesson.kill).start()

    lesson.client.on_cell_execute = kill_in
    with pytest.raises(DeadKernelError):
        lesson.execute()
    assert eventually(lambda: not running(lesson.mark), 20), (victim, delay, running(lesson.mark))


# --------------------------------------------------------------------------------------------------- launches


def test_random_launches_leave_everything_as_it_was(tmp_path, monkeypatch, capsys, interruptible):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nobody else's files come or go
    monkeypatch.setattr(tempfile, "tempdir", None)
    left = soak.main(argparse.Namespace(launches=12, seed=SEED, first=0))
    assert not left, capsys.readouterr().out


@pytest.mark.long
def test_500_random_launches_leave_everything_as_it_was():
    command = [sys.executable, soak.__file__, "--launches", "500", "--seed", SEED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_of_a_run_are_private_whatever_the_umask(no_umask):
    modes = set()

    def look(*_):
        folders = Path(tempfile.gettempdir()).glob(f"helpers-ranks-{os.getpid()}-*")
        modes.update(oct(stat.S_IMODE(folder.stat().st_mode)) for folder in folders)

    launch(lambda: report(up=True), show=False, on_report=look)
    assert modes == {"0o700"}


def test_the_progress_file_is_its_owners_alone(tmp_path, monkeypatch, no_umask):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    journal.record("a.b", "correct")
    assert stat.S_IMODE((tmp_path / "progress.json").stat().st_mode) == 0o600


# ---------------------------------------------------------------------------------------------- damaged files


def damaged(content, dice):
    """The bytes, cut off somewhere or with one to three bits turned."""
    if dice.random() < 0.3:
        return content[:dice.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(dice.randint(1, 3)):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def damages(content, count):
    """`count` different damages, none of which leaves the bytes as they were."""
    dice = random.Random(SEED)
    return [found for found in (damaged(content, dice) for _ in range(count)) if found != content]


def refused_cut_off_or_missing(path, read):
    """`read()` must refuse the file in words if it ends too early, at whatever byte, or is not there."""
    whole = path.read_bytes()
    in_words = f"Cannot read {path.name}.*git checkout -- data/{path.parent.name}"
    for length in random.Random(SEED).sample(range(len(whole) - 1), 15):  # without its last line end, JSON is whole
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=in_words):
            read()
    path.unlink()
    with pytest.raises(DataError, match=in_words):
        read()
    path.write_bytes(whole)


def test_damaged_digits_are_refused_in_words(tmp_path):
    folder = shutil.copytree(ROOT / "data" / "digits", tmp_path / "digits")
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        refused_cut_off_or_missing(folder / name, lambda: Digits(root=tmp_path))
    assert len(Digits(root=tmp_path)) == 1437


def test_damaged_records_are_refused_in_words(tmp_path):
    path = tmp_path / "records" / "record.json"
    records.store(path, {"a": [1, None, "ü"]})
    refused_cut_off_or_missing(path, lambda: records.stored(path))
    assert records.stored(path) == {"a": [1, None, "ü"]} and os.listdir(path.parent) == ["record.json"]


def test_damaged_traces_are_refused_in_words_or_counted(tmp_path):
    """A packed trace holds a checksum, so no damage goes unnoticed; in a plain one, a digit may change."""
    whole = traces.read(written(tmp_path / "t.json", STEP, rank=0))
    plain = (tmp_path / "t.json").read_bytes()
    ends = Counter()
    for name, content in (("t.json", plain), ("t.json.gz", gzip.compress(plain, mtime=0))):
        for bad in damages(content, 100):
            (tmp_path / name).write_bytes(bad)
            try:
                trace = traces.read(tmp_path / name)
                trace.seconds(), trace.overlap(), trace.self_seconds(), trace.steps
                traces.together([trace, whole] if trace.rank == 1 else [trace])
                assert name == "t.json" or trace == whole
                ends[name, "read"] += 1
            except traces.TraceError as error:
                assert str(error).startswith(name)
                ends[name, "refused"] += 1
    assert all(ends[name, "refused"] > 25 for name in ("t.json", "t.json.gz")), ends


def test_a_damaged_progress_file_does_no_harm(tmp_path, monkeypatch, capsys):
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    journal.record("start_here.my_share", "correct")
    whole = path.read_bytes()
    for content in damages(whole, 5):
        path.write_bytes(content)
        repr(progress()), progress()._repr_html_()
        journal.record("start_here.say_it_once", "not yet")
        said = capsys.readouterr().out
        aside = Path(f"{path}.damaged")
        assert aside.exists() == ("damaged" in said)
        assert not aside.exists() or aside.read_bytes() == content, "what was there is kept"
        assert "start_here.say_it_once" in path.read_text()
        aside.unlink(missing_ok=True)


# -------------------------------------------------------------------------------------------- resume, loading


def killed_before_a_line(script, args, victim, at):
    """Run a script as a rank does, and return how many lines it, and torch.save for it, have run.

    Rank `victim` kills itself before the `at`-th of them: at any moment, also with half a file written.
    """
    import runpy

    watched, count, rank = (script, torch.serialization.__file__), 0, int(os.environ["RANK"])

    def lines(frame, event, _):
        nonlocal count
        if event == "line":
            count += 1
            if (rank, count) == (victim, at):
                os.kill(os.getpid(), signal.SIGKILL)
        return lines

    sys.argv = [script, *args]
    sys.settrace(lambda frame, *_: lines if frame.f_code.co_filename in watched else None)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.settrace(None)
    return count


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("script", "args", "worlds"), [
    ("ddp_in_practice/train_one.py", ["--epochs", "4", "--fp16"], [1]),
    ("ddp_in_practice/train.py", ["--epochs", "4", "--fp16"], [2]),
    ("many_machines/elastic.py", ["mine"], [1, 2]),
])
def test_killed_at_20_random_points_it_ends_as_an_undisturbed_run(script, args, worlds, tmp_path):
    dice, script, nprocs = random.Random(f"{SEED}{script}"), str(SCRIPTS / script), worlds[-1]

    def run(path, victim=None, at=0):
        work = script, [str(path), *args], victim, at
        return launch(killed_before_a_line, nprocs, work, show=False).results

    def state(path):
        return {name: part for name, part in torch.load(path).items() if not isinstance(part, str)}

    lines, within_a_save = run(tmp_path / "whole.pt"), 0
    for number in range(20):
        path, victim = tmp_path / f"{number}.pt", dice.randrange(nprocs)
        at = dice.randint(1, lines[victim])
        with pytest.raises(RankError, match="SIGKILL"):
            run(path, victim, at)
        within_a_save += Path(f"{path}.unfinished").exists()
        launch(script, dice.choice(worlds), [path, *args], show=False)
        torch.testing.assert_close(state(path), state(tmp_path / "whole.pt"), rtol=0, atol=0,
                                   msg=lambda text, at=(victim, at): f"killed at (rank, line) {at}: {text}")
    assert within_a_save


#: What may read pickles of any kind, and why: they are its own.
OWN_PICKLES = {
    "helpers/experiments.py": "what its forks have put into a temporary folder, mode 0700",
    "helpers/launcher/cells.py": "the same as rank.py",
    "helpers/launcher/rank.py": "the work that the kernel has put into a folder of its own, mode 0700",
    "helpers/launcher/sending.py": "what its ranks have put there",
    "notebooks/lessons/processes/exercises/send_weights.py": "what the learner's function has just put into a queue",
    "notebooks/01_processes.ipynb": "what the cell has pickled in the same line",
}


#: The calls that run what a file tells them to.
UNSAFE = (r"(.*\.)?(pickle|cloudpickle|dill|marshal|joblib|ForkingPickler)\.loads?"
          r"|(.*\.)?Unpickler|shelve\.open")


def sources():
    """Every piece of Python that a learner or a maintainer runs, and that may load: (file, its tree)."""
    for folder in (ROOT / "helpers", ROOT / "tools", ROOT / "notebooks"):
        for path in [*folder.rglob("*.py"), *folder.glob("*.ipynb")]:
            text = path.read_text(encoding="utf-8")
            cells = json.loads(text)["cells"] if path.suffix == ".ipynb" else []
            codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            for code in codes if cells else [text]:
                if re.search("load|Unpickler|shelve|allow_pickle", code):
                    plain = re.sub(r"^(\s*)[%!].*", r"\1pass", code, flags=re.MULTILINE)
                    yield str(path.relative_to(ROOT)), ast.parse(plain)


def unsafe_loads(tree):
    """The calls in a tree that would run what a file tells them to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if (re.fullmatch(UNSAFE, name) or options.get("allow_pickle") == "True"
                    or (name.endswith("torch.load") and options.get("weights_only", "True") != "True")):
                yield ast.unparse(node)


def test_nothing_loads_more_than_weights_but_what_is_its_own():
    found = {(file, call) for file, tree in sources() for call in unsafe_loads(tree)}
    assert {file for file, _ in found} == set(OWN_PICKLES), found
    assert not [call for _, call in found if "torch.load" in call], found


def test_torch_load_itself_takes_weights_only(tmp_path):
    """Scripts rely on torch's default, which no variable may have turned."""
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    torch.save({"net": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(RankError, match="Weights only load failed"):
        launch("train_one.py", 1, [tmp_path / "evil.pt"], show=False)
    assert not (tmp_path / "was here").exists()
