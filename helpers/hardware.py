"""What this machine has, and which parts of a lesson run for real on it.

    from helpers.hardware import hardware
    hardware.cores, hardware.gpus
    hardware.tier(gpus=2)     # "real here", "scaled down here" or "recorded", and why

Everything is looked up when first asked for. Importing this module imports no torch, and nothing here starts
CUDA in the calling process (one that has started CUDA cannot fork workers that use it).
"""

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

GIB = 2**30
#: What processors call their instructions for numbers of 16 bits; the last is Arm's.
FLAGS_FOR_16_BITS = ("avx512_bf16", "avx512_fp16", "amx_bf16", "bf16")
NVIDIA_SMI_SECONDS = 15  # a driver that sleeps between uses needs some seconds; a broken one, more
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Tier:
    """How an experiment runs on this machine. Its text has no number in it that depends on the machine."""

    name: str
    """`"real here"`, `"scaled down here"` or `"recorded"`."""
    why: str
    """One sentence that a lesson prints."""

    def __repr__(self):
        return f"{self.name}: {self.why}"


class Hardware:
    """What this machine has. Each attribute is looked up when first asked for, then kept.

    Only `usable_gpus`, `sentence` and `tier` import torch.
    """

    @cached_property
    def cpu(self):
        """The processor's name."""
        if platform.system() == "Darwin":
            return _output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
        return _cpuinfo("model name") or platform.processor() or platform.machine()

    @cached_property
    def cores(self):
        """Logical cores that this process may run on, which can be fewer than the machine has."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count()

    @cached_property
    def cpu_flags(self):
        """Those of FLAGS_FOR_16_BITS that it has; empty where the system does not say (macOS, Windows)."""
        flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()
        return tuple(flag for flag in FLAGS_FOR_16_BITS if flag in flags)

    @property
    def memory_available_gib(self):
        """Memory that programs could still get now, in GiB, within the container's limit."""
        left = [limit - used for limit, used in _memory_limits()]
        return max(0, min([_memory().available, *left])) / GIB

    @cached_property
    def memory_limit_gib(self):
        """What the container or batch job may use, in GiB; None if nothing limits it."""
        return min((limit / GIB for limit, _ in _memory_limits()), default=None)

    @cached_property
    def cpu_limit(self):
        """How many cores' worth of time the container or batch job may use; None if nothing limits it."""
        limits = []
        for group in _control_groups("cpu"):
            version1 = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
            # Microseconds of work, in how many of the clock's. Where there is no limit, the first is "max" or -1.
            quota_and_period = re.match(r"(\d+) (\d+)$", _read(group / "cpu.max") or version1)
            if quota_and_period:
                limits.append(int(quota_and_period[1]) / int(quota_and_period[2]))
        return min(limits, default=None)

    @cached_property
    def gpus(self):
        """The names of the machine's NVIDIA GPUs, asked of nvidia-smi; none if it is absent or fails."""
        return _nvidia_smi("name")

    @cached_property
    def driver(self):
        """The version of NVIDIA's driver; None where nvidia-smi is absent or fails."""
        return next(iter(_nvidia_smi("driver_version")), None)

    @cached_property
    def usable_gpus(self):
        """How many GPUs this torch can use: CUDA_VISIBLE_DEVICES may leave fewer than there are."""
        import torch

        return torch.cuda.device_count()  # asks the driver's library, and does not start CUDA

    @property
    def sentence(self):
        """One sentence without numbers, which a lesson can store: all machines of a kind have the same."""
        if self.usable_gpus > 1:
            return "Several GPUs here: experiments on GPUs run for real."
        if self.usable_gpus == 1:
            return ("One GPU here: what needs several is scaled down to this one or to the CPU, "
                    "shown as recorded, or folded into a line.")
        return "No GPU here: what needs one is scaled down to the CPU, shown as recorded, or folded into a line."

    def tier(self, gpus=0, *, cpu_stand_in=False):
        """How an experiment that wants `gpus` GPUs runs here: real, scaled down or recorded.

        gpus: how many it wants; 0 for one that is about processes on the CPU.
        cpu_stand_in: the lesson can show the same thing with CPU ranks over gloo.
        """
        if gpus == 0:
            return Tier("real here", "this needs no GPU.")
        wanted = "a GPU" if gpus == 1 else f"{gpus} GPUs"
        if self.usable_gpus >= gpus:
            return Tier("real here", f"this wants {wanted}, and this machine has what it wants.")
        lack = f"this wants {wanted}, which this machine does not have"
        if cpu_stand_in:
            return Tier("scaled down here", f"{lack}; ranks on the CPU that talk over gloo stand in.")
        return Tier("recorded", f"{lack}; what you see was measured on the machine named beside it.")


def _output(*command, seconds=5):
    """What a command prints, or nothing at all if it is absent, fails or takes too long."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _nvidia_smi(field):
    """What the driver says of each GPU."""
    text = _output("nvidia-smi", f"--query-gpu=index,{field}", "--format=csv,noheader", seconds=NVIDIA_SMI_SECONDS)
    return tuple(re.findall(r"^\d+, (.*)$", text, re.MULTILINE))  # it also says "No devices were found"


def _memory():
    import psutil  # always there: Jupyter's kernel needs it

    return psutil.virtual_memory()


def _cpuinfo(key):
    """The first value of a key in /proc/cpuinfo, or an empty string."""
    match = re.search(rf"^{key}\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else ""


def _read(path):
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _control_groups(controller):
    """The folders of this process's control group and of those above it: each limits it.

    With version 2 of control groups, one tree holds all controllers; with version 1, each has its own.
    """
    for line in _read(OWN_CGROUPS).splitlines():  # version 2: "0::/a/b"; version 1: "4:cpu,cpuacct:/a/b"
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = CGROUPS / controller if controllers else CGROUPS
            own = root / group.lstrip("/")  # a container may see no such folder: its own group is the root
            for folder in (own, *own.parents):
                if folder.is_relative_to(root):
                    yield folder


def _memory_limits():
    """For each control group that limits this process's memory: the limit and what is used of it, in bytes."""
    total = _memory().total
    for group in _control_groups("memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if limit.isdigit() and int(limit) < total:  # version 1 writes a huge number where there is none
            used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
            # Copies of files count as used, and the system gives them up when programs need room. Version 1 has
            # first those of this group alone, then those with the groups below it.
            files = re.findall(r"^(?:total_)?(?:in)?active_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            copies = sum(map(int, files[-2:]))
            yield int(limit), int(used) - copies


hardware = Hardware()
