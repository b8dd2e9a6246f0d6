"""What lessons do on a machine with GPUs, tested without: their cells run under stand-in GPUs (tests/stand_in_gpus).

nbval runs them: no cell may raise, and all must print what is stored, so that nbval passes on a machine with GPUs, too.
COURSE_WHOLE_LESSONS=1 does so under one GPU as well as under eight.
"""

import os
import subprocess
import sys
import textwrap
from importlib.metadata import version

import nbformat
import pytest

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
    done = subprocess.run(command, env=environment(gpus), cwd=ROOT / "notebooks", capture_output=True, text=True,
                          timeout=900)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def stand_in(code, gpus=8):
    """What Python prints under stand-in GPUs."""
    return subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], env=environment(gpus), cwd=ROOT,
                                   text=True, timeout=120).splitlines()


@pytest.mark.long
def test_hardware_and_torch_see_the_same_gpus():
    code = """
        from helpers.hardware import hardware
        import torch
        print(hardware.usable_gpus, torch.cuda.device_count(), hardware.gpus[0].name == torch.cuda.get_device_name())
        print(hardware.gpus[0].capability == torch.cuda.get_device_capability(), hardware.driver)
        print(hardware.gpus[0].memory_gib * 2**30 == torch.cuda.get_device_properties(0).total_memory)
        print(hardware.sentence, hardware.tier(gpus=2), hardware.tier(gpus=9))
        """
    said = stand_in(code)
    assert said[:3] == ["8 8 True", "True 000.00", "True"] and "Several GPUs" in said[3] and "recorded: " in said[3]
    assert stand_in(code, 1)[0] == "1 1 True"


APART = "Expected all tensors to be on the same device"
SNIPPETS = {
    "x = torch.ones(2, device='cuda:3'); print(x.device, (x + 1).device, x.cpu().device, x.sum().is_cuda)":
        "cuda:3 cuda:3 cpu True",
    "print(torch.ones(2, device='cuda'))": "tensor([1., 1.], device='cuda:0')",
    "print(nn.Linear(2, 1).to('cuda:1').weight.device, nn.Linear(2, 1, device='cuda:2').bias.device)": "cuda:1 cuda:2",
    "nn.Linear(2, 1).cuda()(torch.rand(3, 2))": APART,
    "torch.ones(1, 2, device='cuda:1') @ torch.ones(2, 1, device='cuda:2')": APART,
    "torch.ones(1, device='cuda').numpy()": "can't convert cuda:0 device type tensor to numpy",
    "torch.cuda.set_device(8)": "invalid device ordinal",
    "torch.cuda.set_device(torch.device('cuda', 5)); print(torch.ones(1, device='cuda').device)": "cuda:5",
    "layer = nn.Linear(2, 1).cuda(); layer(torch.rand(3, 2).cuda()).sum().backward(); print(layer.weight.grad.device)":
        "cuda:0",
    "torch.manual_seed(0); a = torch.rand(1); b = torch.rand(1, device='cuda'); torch.manual_seed(0); "
    "print(torch.equal(a, torch.rand(1)), torch.equal(b, torch.rand(1, device='cuda')), a.item() == b.item())":
        "True True False",
    "with torch.autocast('cuda'): print((torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()).dtype)": "torch.float16",
    "x = [torch.zeros(2**20, device='cuda')]; y = torch.cuda.memory_allocated(); x.clear(); "
    "print(y, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())": f"{2**22} 0 {2**22}",
    "torch.cuda.set_per_process_memory_fraction(0.001); torch.zeros(2**21, device='cuda')": "CUDA out of memory",
    "a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); b.record(); "
    "print(0 <= a.elapsed_time(b) < 1000)": "True",
    "layer = nn.DataParallel(nn.Linear(4, 2).cuda()); y = layer(torch.rand(20, 4)); y.sum().backward(); "
    "print(y.device, list(y.shape), len(layer.device_ids), layer.module.bias.grad.tolist())":
        "cuda:0 [20, 2] 8 [20.0, 20.0]",
    "torch.ones(1, device='cuda'); pid = os.fork()\nif not pid: torch.ones(1, device='cuda')\nos.wait()":
        "Cannot re-initialize CUDA in forked subprocess",
    "t = threading.Thread(target=lambda: print(torch.ones(1, device='cuda:4').device)); t.start(); t.join()": "cuda:4",
    "print(next(iter(torch.utils.data.DataLoader(torch.zeros(4), pin_memory=True))).is_pinned())": "True",
    "torch.save({'a': torch.ones(1).cuda()}, 'x'); print(torch.load('x', map_location='cuda:1')['a'].device)":
        "cuda:1",
    "from torch._subclasses import FakeTensorMode\nwith FakeTensorMode(): print(torch.ones(1, device='cuda').device)":
        "cuda:0",
    "layer = nn.Linear(2, 1).cuda(); layer.weight.register_hook(lambda grad: print(torch.ones(1, device='cuda:1'))); "
    "layer(torch.ones(1, 2, device='cuda')).sum().backward()": "device='cuda:1'",
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
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(EACH_IN_A_FORK)], input="\0".join(SNIPPETS),
                          env=environment(8), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = dict(zip(SNIPPETS, done.stdout.split("\0"), strict=False))
    wrong = {snippet: said for snippet, said in found.items() if SNIPPETS[snippet] not in said
             and not (ASKS_THE_DRIVER and "FakeTensorMode" in snippet)}
    assert len(found) == len(SNIPPETS) and not wrong


DDP = """
    import os
    import torch
    import torch.distributed as dist
    from helpers import RankError, launch

    def work(device_of, backend):
        rank = int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", device_of[rank])
        torch.cuda.set_device(device)
        dist.init_process_group(backend, device_id=device)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).to(device), device_ids=[device.index])
        model(torch.full((1, 2), rank + 1., device=device)).sum().backward()
        try:
            dist.all_reduce(torch.ones(1))
            cpu = "sent"
        except RuntimeError as error:
            cpu = "refused"
        found = dist.get_backend(), model.module.weight.grad.tolist(), str(model.module.weight.grad.device), cpu
        dist.destroy_process_group()
        return found

    if __name__ == "__main__":
        for row in launch(work, nprocs=2, gpus=2, args=([0, 1], "nccl"), show=False).results:
            print(*row)
        try:
            launch(work, nprocs=2, gpus=2, args=([0, 0], "nccl"), show=False)
        except RankError as error:
            print(error)
    """


@pytest.mark.long
def test_ranks_of_launch_and_ddp():
    said = stand_in(DDP)
    assert said[:2] == [f"nccl [[1.5, 1.5]] cuda:{rank} refused" for rank in range(2)]
    assert "Duplicate GPU detected" in said[2]
