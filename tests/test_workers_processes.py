"""The scripts about processes: each prints what the lesson says of it, and leaves nothing behind."""

import re
import sys

import pytest

from helpers import launch
from helpers.hardware import hardware

pytestmark = pytest.mark.usefixtures("nothing_left")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the lesson's fork experiments are about Linux")


def log_of(script, *args, **options):
    return launch(script, nprocs=1, args=list(args), timeout=120, show=False, **options).logs[0]


def table_of(run):
    return {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in run.logs[0].splitlines()}


@pytest.mark.long  # lesson 01 runs it, and shows this table
@linux_only
def test_start_methods_says_what_each_child_receives_and_costs():
    run = launch("start_methods.py", nprocs=1, timeout=120, show=False)
    table = table_of(run)
    assert table == {
        "method": ["fork", "spawn", "forkserver"],
        "setting": ["changed later", "as in the script", "as in the script"],
        "lock": ["locked", "free", "free"],
        "threads": ["1", "1", "1"],
        "file": ["open", "closed", "closed"],
        "torch": ["already there", "imported anew", "imported anew"],
    }
    fork, spawn, server = run.results[0]
    assert [row["method"] for row in run.results[0]] == table["method"]
    assert min(spawn["ms"], server["ms"]) > 2 * fork["ms"]
    assert min(spawn["mib"], server["mib"]) > 5 * fork["mib"]


@linux_only
def test_a_fork_server_that_preloads_torch_pays_once():
    run = launch("start_methods.py", nprocs=1, args=["--preload", "torch"], timeout=120, show=False)
    assert table_of(run)["torch"] == ["already there"]
    [[server]] = run.results
    assert server["first_ms"] > 2 * server["ms"]


def test_which_tensors_cross():
    log = log_of("what_crosses.py")
    verdicts = {line[:24].strip(): line[25:] for line in log.splitlines() if "arrive" in line}
    assert len(verdicts) == 8
    for name, said in verdicts.items():
        assert said.startswith("never arrives" if name == "result of a computation" else "arrives: ")
    assert "sparse_coo" in verdicts["sparse COO"] and "sparse_csr" in verdicts["sparse CSR"]
    assert "RuntimeError: Cowardly refusing to serialize non-leaf tensor" in log
    assert "Warning" not in log


@linux_only
@pytest.mark.parametrize("method, tensor", [("fork", "[0.0, 0.0]"), ("spawn", "[7.0, 0.0]")])
def test_a_sent_tensor_is_shared_and_a_copied_one_is_not(method, tensor):
    values = [line.split(":")[1].strip() for line in log_of("shared_tensor.py", method).splitlines()]
    assert values == ["[0, 0]", tensor, "[7.0, 0.0]"]


@linux_only
def test_the_producer_has_to_outlive_the_consumer():
    tensor = "tensor([0., 1., 2.])"
    assert [line.split(maxsplit=1) for line in log_of("producer_gone.py").splitlines()] == [
        ["put_and_leave", "FileNotFoundError"], ["put_and_die", "ConnectionRefusedError"],
        ["put_and_stay", tensor], ["put_bytes", tensor]]


def test_weights_come_home_through_queue_and_pipe():
    line = "y = 3.00 x + 1.00"
    assert log_of("weights_through_queue.py") == f"Queue: {line}\nPipe : {line}\nchild ended with exit code 0\n"


def percents(log):
    return [int(number) for number in re.findall(r"(\d+)% right", log)]


def test_one_process_per_device_trains():
    before, *processes, average = percents(log_of("one_process_per_device.py"))
    assert before < 30 and len(processes) >= 2 and min(*processes, average) > 80


@pytest.mark.long
def test_one_process_per_device_says_why_a_child_failed(tmp_path):
    from helpers.launcher import RankError
    from helpers.notebooks import LESSONS

    script = tmp_path / "broken.py"
    source = (LESSONS / "processes" / "one_process_per_device.py").read_text()
    script.write_text(source.replace("device = torch.device(devices[rank])", "raise ValueError('no such device')"))
    with pytest.raises(RankError, match="no such device"):
        log_of(script)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_training_is_lost_on_a_device_of_its_own_only(device):
    before, child, after = percents(log_of("lost_training.py", device))
    assert before < 30 and after == {"cpu": child, "gpu": before}[device] and child > 80


@linux_only
@pytest.mark.parametrize("options, finishes", [
    ("", False), ("--threads 1", True), ("--child-threads 1", True), ("--method spawn", True)])
def test_fork_after_threads_hangs_unless_cured(options, finishes):
    log = log_of("fork_after_threads.py", *options.split())
    assert [line.split()[-1] for line in log.splitlines()] == ["True", str(finishes)]


needs_a_gpu = pytest.mark.skipif(not hardware.usable_gpus, reason="needs a GPU")


@needs_a_gpu
def test_a_cuda_tensor_crosses_as_a_handle():
    from lessons.processes.recorded import cuda_tensor_in_a_queue

    seen = launch(cuda_tensor_in_a_queue, nprocs=1, gpus=1, show=False).results[0]
    assert seen.pop("bytes sent") < 10_000
    assert seen == {"arrived": True, "after the receiver's += 1 the sender sees": 1.0,
                    "share_memory_() moved it": False}


@needs_a_gpu
def test_fork_after_cuda_is_refused():
    log = log_of("fork_after_cuda.py", gpus=1)
    assert "fork: RuntimeError: Cannot re-initialize CUDA in forked subprocess" in log
    assert "spawn: tensor([1.], device='cuda:0')" in log
