"""helpers.hardware: what it says, what it must not do (import torch, start CUDA, name you), and the tiers."""

import getpass
import itertools
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.hardware import GPU, Hardware, Tier, hardware
from tools.execute import sanitised

module = sys.modules["helpers.hardware"]
ROOT = Path(__file__).resolve().parents[1]
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
T4 = "Tesla T4, 15360, 7.5"
on_unix = pytest.mark.skipif(sys.platform == "win32", reason="the fake nvidia-smi is a shell script")


#: What `python -m helpers.hardware` does; before it, what is imported where only cheap things are asked for.
COMMAND = """
import runpy, sys
from helpers.hardware import hardware
hardware.cores, hardware.gpus, hardware.versions
print(sorted({'torch', 'torchvision', 'numpy'} & set(sys.modules)))
str(hardware), hardware.tier(gpus=1)
print(sys.modules['torch'].cuda.is_initialized())
runpy.run_module('helpers.hardware', run_name='__main__')
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A function that puts an nvidia-smi on PATH, alone there, which runs the given shell lines."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(shell):
        script = tmp_path / "nvidia-smi"
        script.write_text("#!/bin/sh\n" + textwrap.dedent(shell))
        script.chmod(0o755)

    return install


@pytest.fixture
def three_gpus(smi):
    smi(f"echo '0, {H100}'; echo '1, {H100}'; echo '2, {T4}'")


def fake(gpus, usable=None):
    """A machine with so many GPUs, of which torch can use all, or `usable`."""
    machine = Hardware()
    machine.gpus = tuple(GPU(i, "G", 8.0, (8, 0)) for i in range(gpus))
    machine.usable_gpus = gpus if usable is None else usable
    return machine


def test_the_command_prints_a_table_names_nobody_and_does_not_start_cuda():
    text = subprocess.check_output([sys.executable, "-c", COMMAND], cwd=ROOT, text=True, timeout=120)
    imported, *_, started, text = text.split("\n", 2)
    assert (imported, started) == ("[]", "False"), text
    assert re.search(r"^CPU cores +[1-9]\d* usable", text, re.MULTILINE)
    assert re.search(r"^torch +\d+\.\d+", text, re.MULTILINE)
    columns = {re.match(r".*?  +", line).end() for line in text.splitlines()}
    assert len(columns) == 1, "they are aligned"
    for private in (str(Path.home()), str(ROOT), socket.gethostname()):
        assert len(private) < 3 or private not in text
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", text)


@on_unix
def test_gpus_are_parsed(three_gpus):
    gpus = Hardware().gpus
    assert [gpu.name for gpu in gpus] == ["NVIDIA H100 80GB HBM3"] * 2 + ["Tesla T4"]
    assert gpus[0].memory_gib == pytest.approx(79.65, abs=0.01) and gpus[0].capability == (9, 0)
    assert gpus[0].fast_dtypes == ("fp16", "bf16", "tf32", "fp8") and gpus[2].fast_dtypes == ("fp16",)
    assert str(gpus[2]) == "Tesla T4, 15.0 GiB, capability 7.5, fast: fp16"


@pytest.mark.parametrize("shell", [None, pytest.param("echo '0, X, 1, 9.0'; exit 9", marks=on_unix),
                                   pytest.param("exec /bin/sleep 60", marks=on_unix)])
def test_no_driver_or_a_broken_one_means_no_gpus(smi, monkeypatch, shell):
    monkeypatch.setattr(module, "NVIDIA_SMI_SECONDS", 0.3)
    if shell:
        smi(shell)
    assert Hardware().gpus == ()


@on_unix
def test_memory_that_the_driver_does_not_know(smi):
    smi("echo '0, NVIDIA GB10, [N/A], 12.1'")
    (gpu,) = Hardware().gpus
    assert gpu.memory_gib is None and "memory not known" in str(gpu) and gpu.capability == (12, 1)


#: The layouts of control groups, of version 2 and of version 1, in a group whose parent limits it.
#: tests/test_preflight.py makes a real one, of the version that this machine has.
GROUPS = {
    "v2": {"own": "0::/a/b", "root/a/b/cpu.max": "max 100000", "root/a/cpu.max": "150000 100000",
           "root/memory.max": "max", "root/a/memory.max": str(2**28), "root/a/memory.current": str(2**27),
           "root/a/memory.stat": f"anon 9\ninactive_file {2**25}\nactive_file {2**25}\nslab 9"},
    "v1": {"own": "4:memory:/a/b\n1:cpu,cpuacct:/a/b\n0::/", "root/cpu/cpu.cfs_quota_us": "-1",
           "root/cpu/a/b/cpu.cfs_quota_us": "75000", "root/cpu/a/b/cpu.cfs_period_us": "50000",
           "root/memory/a/b/memory.limit_in_bytes": "9223372036854771712",
           "root/memory/a/memory.limit_in_bytes": str(2**28), "root/memory/a/memory.usage_in_bytes": str(2**27),
           "root/memory/a/memory.stat": "cache 9\ninactive_file 0\nactive_file 0\ntotal_cache 9\n"
                                        f"total_inactive_file {2**25}\ntotal_active_file {2**25}\ntotal_unevictable 0"},
    # A container sees its own group at the root, by whatever name it goes outside.
    "v1 from inside": {"own": "9:memory:/docker/0c\n3:cpuacct,cpu:/docker/0c", "root/cpu/cpu.cfs_quota_us": "150000",
                       "root/cpu/cpu.cfs_period_us": "100000", "root/memory/memory.limit_in_bytes": str(2**28),
                       "root/memory/memory.usage_in_bytes": str(2**26), "root/memory/memory.stat": "cache 0"},
}


@pytest.mark.parametrize("layout", GROUPS)
def test_container_limits(layout, tmp_path, monkeypatch):
    for name, text in GROUPS[layout].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(module, "CGROUPS", tmp_path / "root")
    monkeypatch.setattr(module, "OWN_CGROUPS", tmp_path / "own")
    machine = Hardware()
    assert (machine.cpu_limit, machine.memory_limit_gib, machine.memory_available_gib) == (1.5, 0.25, 0.1875)
    assert "limited to 1.5" in str(machine) and "limited to 0.2 GiB" in str(machine)
    shutil.rmtree(tmp_path / "root")
    assert Hardware().memory_limit_gib is None and Hardware().cpu_limit is None


@pytest.mark.parametrize(
    ("here", "wanted", "allowed", "name", "word"),
    [
        (0, 0, {}, "real here", "no GPU"),
        (2, 2, {}, "real here", "2 GPUs"),
        (0, 1, {}, "recorded", "a GPU"),
        (0, 2, {"cpu_stand_in": True}, "scaled down here", "CPU"),
        (1, 2, {}, "recorded", "measured"),
    ],
)
def test_tiers(here, wanted, allowed, name, word):
    tier = fake(here).tier(gpus=wanted, **allowed)
    assert isinstance(tier, Tier) and tier.name == name and word in tier.why
    assert str(tier) == repr(tier) == f"{name}: {tier.why}"


def test_gpus_that_this_torch_cannot_use_do_not_count():
    machine = fake(2, usable=0)
    assert machine.tier(gpus=1).name == "recorded"
    assert "torch can use 0 of them" in str(machine) and "No GPU" in machine.sentence


def test_what_a_lesson_prints_of_it_is_the_same_on_all_machines():
    sentences = set()
    for machine in map(fake, (0, 1, 2, 8)):
        sentences.add(machine.sentence)
        assert sanitised(f"before\n{machine.sentence}\nafter 1 GPU") == "before\nHARDWARE\nafter 1 GPU"
        for wanted, stand_in in itertools.product((0, 1, 2, 8), (False, True)):
            tier = machine.tier(gpus=wanted, cpu_stand_in=stand_in)
            assert sanitised(f"before\n{tier}\nafter 1 GPU") == "before\nTIER\nafter 1 GPU"
            assert sanitised(f"DDP: {tier!r}") == "DDP: TIER"
    assert len(sentences) == 3 and not re.search(r"\d", "".join(sentences)), "none, one, several"


def test_on_a_real_gpu_it_agrees_with_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    assert hardware.usable_gpus == torch.cuda.device_count()
    for gpu in hardware.gpus[:hardware.usable_gpus]:
        real = torch.cuda.get_device_properties(gpu.index)
        assert gpu.name.startswith(real.name.split(" MIG")[0]) and gpu.capability == (real.major, real.minor)
