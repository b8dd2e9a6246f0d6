"""What lessons do on a machine with GPUs, tested without: their cells run under tests/stand_in_gpus.

nbval runs them: no cell may raise, and all must print what is stored, as nbval wants on a machine with GPUs.
COURSE_WHOLE_LESSONS=1 does so under one GPU as well as under eight.
"""

import os
import subprocess
import sys
import textwrap
from importlib.metadata import version

import nbformat
import pytest

from helpers.experiments import SMALL
from tests.conftest import LESSONS, ROOT
from tests.stand_in_gpus import environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in nvidia-smi is a shell script")
# FakeTensorMode, once torch.cuda says that there is a GPU, asks the real driver in older versions of torch.
ASKS_THE_DRIVER = tuple(map(int, version("torch").split(".")[:2])) < (2, 14)


@pytest.mark.long
@pytest.mark.parametrize("gpus", [8, 1] if "COURSE_WHOLE_LESSONS" in os.environ else [8])
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_whole_lesson(path, gpus, tmp_path):
    if ASKS_THE_DRIVER and "FakeTensorMode" in path.read_text(encoding="utf-8"):
        pytest.skip("the FakeTensorMode of this torch asks the real driver")
    book = tmp_path / "lesson.ipynb"
    nbformat.write(nbformat.read(path, as_version=4), book)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-c", os.devnull,
               "--rootdir", tmp_path, "--nbval", "--nbval-current-env", "--nbval-cell-timeout=600",
               f"--nbval-sanitize-with={ROOT / 'tests' / 'sanitize.cfg'}", book]
    done = subprocess.run(command, env={**environment(gpus), SMALL: "1"}, cwd=ROOT / "notebooks", capture_output=True,
                          text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def stand_in(code, gpus=8, **how):
    """What Python prints under so many stand-in GPUs."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    how = {"cwd": ROOT, **how}
    return subprocess.check_output(command, env=environment(gpus), text=True, timeout=120, **how)


APART = "Expected all tensors to be on the same device"
SNIPPETS = {
    "x = torch.ones(2, device='cuda:3'); print(x, (x + 1).device, x.cpu().device, x.sum().is_cuda)":
        "tensor([1., 1.], device='cuda:3') cuda:3 cpu True",
    "nn.Linear(2, 1).cuda()(torch.rand(3, 2))": APART,
    "torch.ones(1, 2, device='cuda:1') @ torch.ones(2, 1, device='cuda:2')": APART,
    "torch.ones(1, device='cuda').numpy()": "can't convert cuda:0 device type tensor to numpy",
    "torch.cuda.set_device(8)": "invalid device ordinal",
    "layer = nn.Linear(2, 1).cuda(); layer(torch.rand(3, 2).cuda()).sum().backward(); "
    "print(layer.weight.grad.device)": "cuda:0",
    "torch.manual_seed(0); a = torch.rand(1); b = torch.rand(1, device='cuda'); torch.manual_seed(0); "
    "c, d = torch.rand(1), torch.rand(1, device='cuda'); print(a == c, b.cpu() == d.cpu(), a == b.cpu())":
        "tensor([True]) tensor([True]) tensor([False])",
    "with torch.autocast('cuda'): print((torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()).dtype)":
        "torch.float16",
    "x = [torch.zeros(2**20, device='cuda')]; y = torch.cuda.memory_allocated(); x.clear(); "
    "print(y, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())": f"{2**22} 0 {2**22}",
    "torch.cuda.set_per_process_memory_fraction(0.001); torch.zeros(2**21, device='cuda')":
        "CUDA out of memory",
    "layer = nn.DataParallel(nn.Linear(4, 2).cuda()); y = layer(torch.rand(20, 4)); y.sum().backward(); "
    "print(y.device, list(y.shape), len(layer.device_ids), layer.module.bias.grad.tolist())":
        "cuda:0 [20, 2] 8 [20.0, 20.0]",
    "torch.ones(1, device='cuda'); pid = os.fork()\nif not pid: torch.ones(1, device='cuda')\nos.wait()":
        "Cannot re-initialize CUDA in forked subprocess",
    "t = threading.Thread(target=lambda: print(torch.ones(1, device='cuda:4').device)); t.start(); t.join()":
        "cuda:4",
    "torch.save({'a': torch.ones(1).cuda()}, 'x'); print(torch.load('x', map_location='cuda:1')['a'].device)":
        "cuda:1",
}
EACH_IN_A_FORK = """
    import os, sys, threading, traceback
    import torch
    from torch import nn
    for snippet in sys.stdin.read().split(chr(0)):
        if not os.fork():
            sys.stderr = sys.stdout
            try:
                exec(snippet)
            except Exception:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print(end=chr(0), flush=True)
    """


@pytest.mark.long
def test_stand_in_gpus_do_what_gpus_do(tmp_path):
    found = stand_in(EACH_IN_A_FORK, input="\0".join(SNIPPETS), cwd=tmp_path).split("\0")
    assert len(found) == len(SNIPPETS) + 1
    for said, (snippet, wanted) in zip(found, SNIPPETS.items(), strict=False):
        assert wanted in said, snippet


NCCL = """
    import os
    import torch
    import torch.distributed as dist
    from helpers import RankError, launch

    def work(gpus):
        device = torch.device("cuda", gpus[int(os.environ["LOCAL_RANK"])])
        dist.init_process_group("nccl", device_id=device)
        x = torch.full((1,), dist.get_rank() + 1., device=device)
        dist.all_reduce(x)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            return dist.get_backend(), x.item(), str(x.device), "refuses the CPU's"

    if __name__ == "__main__":
        for row in launch(work, nprocs=2, gpus=2, args=([0, 1],), show=False).results:
            print(*row)
        try:
            launch(work, nprocs=2, gpus=2, args=([0, 0],), show=False)
        except RankError as error:
            print(error)
    """


@pytest.mark.long
def test_ranks_keep_the_rules_of_nccl():
    said = stand_in(NCCL).splitlines()
    assert said[:2] == [f"nccl 3.0 cuda:{rank} refuses the CPU's" for rank in range(2)]
    assert "Duplicate GPU detected" in said[2]


ONE_FOR_TWO = """
    import torch
    import torch.distributed as dist
    from helpers import RankError, launch

    def work():
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"))

    if __name__ == "__main__":
        try:
            launch(work, show=False)
        except RankError as error:
            print(error)
    """


@pytest.mark.long
def test_two_ranks_on_one_gpu_learn_what_to_do():
    said = stand_in(ONE_FOR_TWO, gpus=1)
    assert "Duplicate GPU detected" in said
    assert "This machine has 1 GPU for 2 ranks" in said and "Launch nprocs=1" in said


ON_THE_CPU = """
    import torch
    import torch.distributed as dist
    from helpers import RankError, launch

    def without_a_backend():
        dist.init_process_group()
        dist.all_reduce(torch.ones(1))

    if __name__ == "__main__":
        try:
            launch(without_a_backend, show=False)
        except RankError as error:
            print(error)
        print("two ranks:", len(launch("train_ddp.py", show=False).reports))
    """


def test_with_one_gpu_two_ranks_on_the_cpu_name_their_backend():
    refused, trained = stand_in(ON_THE_CPU, gpus=1).splitlines()
    assert "No backend type associated with device type cpu" in refused and trained == "two ranks: 2"
