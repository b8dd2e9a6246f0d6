"""The workers under real torchrun: the same files, unchanged. (Lesson 12 runs torchrun, too.)"""

import os
import re
import subprocess
import sys

import pytest
import torch

from helpers import report
from helpers.places import LESSONS
from tests.conftest import eventually, running


@pytest.mark.long
@pytest.mark.parametrize(("script", "args", "says"), [
    ("start_here/hello.py", [], r"I am rank 1 of 2"),
    ("start_here/train_digits.py", ["--epochs", "2"], r"test accuracy after 2 epochs on 2 rank.*: 0\.\d"),
    ("data_parallel/train_ddp.py", [], r"rank 0\] weights="),
    ("ddp_in_practice/train.py", ["--epochs", "2"], r"epoch 1: \d\d% of the test digits are right"),
    ("parallel_sgd/sgd_every_k.py", ["--epochs", "2"], r"accuracy=0\.\d"),
    ("profiling/slow_training.py", ["--epochs", "2", "--images", "32"], r""),
])
def test_workers_run_under_torchrun(script, args, says, tmp_path):
    mark = f"torchrun-{os.getpid()}-{tmp_path.name}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELPERS_")}
    environment = {**kept, "COURSE_TEST_MARK": mark, "GLOO_SOCKET_IFNAME": "lo", "KINETO_LOG_LEVEL": "6"}
    # Outside of `launch`, one of gloo's threads may want the interpreter when it is already ending, which
    # then aborts (pytorch/pytorch#190489).
    for _ in range(5):
        done = subprocess.run([*torchrun, LESSONS / script, *args], capture_output=True, text=True,
                              timeout=120, env=environment)
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0 and "USDT" not in done.stderr, done.stderr
    assert re.search(says, done.stdout)
    assert eventually(lambda: not running(mark)), "torchrun leaves nothing behind"


def test_report_prints_a_line_where_nobody_listens(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    report(epoch=1, loss=torch.tensor(0.25), weights=[0.0] * 30)
    assert capsys.readouterr().out == "[rank 1] epoch=1 loss=0.25 weights=[30 values]\n"
    with pytest.raises(TypeError, match=r"report\(net=…\): a Linear cannot be sent"):
        report(net=torch.nn.Linear(1, 1))
