"""The scripts about processes: what lesson 01, which runs them and compares what they print, leaves open."""

import sys

import pytest

from helpers import launch
from helpers.hardware import hardware
from helpers.launcher import RankError
from helpers.places import LESSONS

pytestmark = pytest.mark.usefixtures("nothing_left")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the lesson's fork experiments need Linux")
needs_a_gpu = pytest.mark.skipif(not hardware.usable_gpus, reason="needs a GPU")


def log_of(script, *args, **options):
    return launch(script, nprocs=1, args=list(args), timeout=120, show=False, **options).logs[0]


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
