"""helpers.hardware: what it says, what it must not do (import torch, start CUDA), and the tiers."""

import itertools
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.hardware import Hardware, Tier, hardware
from tools.execute import sanitised

module = sys.modules["helpers.hardware"]
ROOT = Path(__file__).resolve().parents[1]
on_unix = pytest.mark.skipif(sys.platform == "win32", reason="the fake nvidia-smi is a shell script")


#: What is imported where only cheap things are asked for; and what a tier does not start.
COMMAND = """
import sys
from helpers.hardware import hardware
hardware.cores, hardware.gpus
print(sorted({'torch', 'torchvision', 'numpy'} & set(sys.modules)))
hardware.tier(gpus=1)
print(sys.modules['torch'].cuda.is_initialized())
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


def fake(gpus, usable=None):
    """A machine with so many GPUs, of which torch can use all, or `usable`."""
    machine = Hardware()
    machine.gpus = gpus * ("G",)
    machine.usable_gpus = gpus if usable is None else usable
    return machine


def test_cheap_things_import_no_torch_and_a_tier_does_not_start_cuda():
    text = subprocess.check_output([sys.executable, "-c", COMMAND], cwd=ROOT, text=True, timeout=120)
    assert text.split("\n") == ["[]", "False", ""], text


@on_unix
def test_gpus_and_their_driver_are_asked_of_nvidia_smi(smi):
    smi("case $1 in *name*) echo '0, NVIDIA H100 80GB HBM3'; echo '1, Tesla T4';; *) echo '0, 580.1'; esac")
    assert Hardware().gpus == ("NVIDIA H100 80GB HBM3", "Tesla T4") and Hardware().driver == "580.1"


@pytest.mark.parametrize("shell", [None, pytest.param("echo '0, X'; exit 9", marks=on_unix),
                                   pytest.param("exec /bin/sleep 60", marks=on_unix)])
def test_no_driver_or_a_broken_one_means_no_gpus(smi, monkeypatch, shell):
    monkeypatch.setattr(module, "NVIDIA_SMI_SECONDS", 0.3)
    if shell:
        smi(shell)
    assert Hardware().gpus == ()


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
    assert "No GPU" in machine.sentence


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
