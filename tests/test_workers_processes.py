"""The scripts about processes: what lesson 01, which runs them and compares what they print, leaves open."""

import io
import json
import os
import pickle
import pickletools
import subprocess
import sys
import threading
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from PIL import Image
from torch.distributed.run import config_from_args, parse_args

from helpers import launch
from helpers.hardware import hardware
from helpers.launcher import RankError
from helpers.places import LESSONS
from tests.conftest import cells_of

pytestmark = pytest.mark.usefixtures("nothing_left")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the lesson's fork experiments need Linux")
needs_a_gpu = pytest.mark.skipif(not hardware.usable_gpus, reason="needs a GPU")


def log_of(script, *args, **options):
    return launch(script, nprocs=1, args=list(args), timeout=120, show=False, **options).logs[0]


def together(work):
    """The seconds for which two threads do this work at the same time, if Python takes the GIL from neither."""
    spans = []

    def timed():
        began = time.monotonic()
        work()
        spans.append((began, time.monotonic()))

    threads = [threading.Thread(target=timed) for _ in range(2)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    (_, first_ends), (second_begins, _) = sorted(spans)
    return first_ends - second_begins


def test_a_jpeg_decoder_releases_the_gil_and_python_code_does_not():
    jpeg = io.BytesIO()
    Image.effect_noise((1024, 1024), 50).save(jpeg, "JPEG")

    def decode():
        for _ in range(10):
            Image.open(io.BytesIO(jpeg.getvalue())).load()

    def count():
        for number in range(1_000_000):
            number % 7

    assert together(count) < 0 < together(decode)


@linux_only
def test_a_sent_tensor_is_a_note_that_names_a_socket_and_shares_memory():
    numbers = torch.zeros(100_000)
    note = bytes(ForkingPickler.dumps(numbers))
    assert len(note) < 500
    texts = [text for _, text, _ in pickletools.genops(note) if isinstance(text, str)]
    assert any(Path(text).is_socket() for text in texts)
    pickle.loads(note)[0] = 5
    assert numbers[0] == 5


@pytest.mark.long
@linux_only
@pytest.mark.parametrize(("method", "strategy"), [("fork", "file_system"), ("spawn", "file_descriptor")])
def test_only_a_forked_worker_inherits_the_sharing_strategy(method, strategy):
    usual = mp.get_sharing_strategy()
    mp.set_sharing_strategy("file_system")
    try:
        with mp.get_context(method).Pool(1) as pool:
            assert pool.apply(mp.get_sharing_strategy) == strategy
    finally:
        mp.set_sharing_strategy(usual)


#: Executes the cells that come in, as a notebook does that knows nothing of the course.
PASTED = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    shell.run_cell(cell).raise_error()
"""


@pytest.mark.long
def test_the_cells_without_this_course_can_be_pasted_and_leave_no_file(tmp_path):
    cells = cells_of("01_processes")
    names = ("folder-tempfile-temporarydirectory-o", "without-written", "without-run", "without-removed")
    pasted = json.dumps([cells[name].source for name in names])
    said = subprocess.run([sys.executable, "-I", "-c", PASTED], input=pasted, cwd=tmp_path, check=True,
                          capture_output=True, text=True, timeout=120).stdout
    assert said.count("ranks: 2") == 2 and "Writing" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("ranks", "threads"), [(1, None), (2, "1")])
def test_torchrun_sets_the_threads_only_for_more_than_one_rank(monkeypatch, ranks, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is removed in the end
    monkeypatch.delenv("OMP_NUM_THREADS")
    config_from_args(parse_args([f"--nproc-per-node={ranks}", "ranks.py"]))
    assert os.environ.get("OMP_NUM_THREADS") == threads


@pytest.mark.long
def test_one_process_per_device_says_why_a_child_failed(tmp_path):
    script = tmp_path / "broken.py"
    source = (LESSONS / "processes" / "one_process_per_device.py").read_text()
    line = "device = torch.device(devices[rank])"
    script.write_text(source.replace(line, "raise ValueError('no such device')"))
    with pytest.raises(RankError, match="no such device"):
        log_of(script)


@pytest.mark.long
@linux_only
def test_spawn_cures_the_fork_after_threads():
    log = log_of("fork_after_threads.py", "--method", "spawn")
    assert [line.split()[-1] for line in log.splitlines()] == ["True", "True"]


@needs_a_gpu
def test_a_cuda_tensor_crosses_as_a_handle():
    from lessons.processes.recorded import cuda_tensor_in_a_queue

    found = cuda_tensor_in_a_queue.run()["result"]
    assert all(row["bytes"] < 10_000 and row["sender sees"] == 1 for row in found["rows"])
    assert not found["share_memory_ moved it"]


@needs_a_gpu
def test_fork_after_cuda_is_refused():
    from lessons.processes.recorded import fork_after_cuda

    forked, spawned, *_ = (said for *_, said in fork_after_cuda.run()["result"]["rows"])
    assert "Cannot re-initialize CUDA in forked subprocess" in forked and spawned == "tensor([1.], device='cuda:0')"
