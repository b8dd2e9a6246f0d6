"""What this machine has, and which parts of a lesson run for real on it.

    from helpers.hardware import hardware
    hardware                  # a table, in a notebook
    hardware.tier(gpus=2)     # "real here", "scaled down here" or "recorded", and why

`python -m helpers.hardware` prints the same table for a bug report: it holds no user name, host name or path.
Everything is looked up when first asked for. Importing this module imports no torch, and nothing here starts CUDA in
the calling process (one that has started CUDA cannot fork workers that use it).
"""

import html
import multiprocessing
import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path

GIB = 2**30
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
# The instruction sets that decide which number formats are fast on a CPU: x86 first, then Arm.
CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16", "i8mm")
# The oldest compute capability whose tensor cores work in this format.
FAST_SINCE = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
NVIDIA_SMI_SECONDS = 15  # it needs seconds where the driver sleeps between uses; more than this is a broken driver


@dataclass(frozen=True)
class GPU:
    """One NVIDIA GPU that this process may use."""

    index: int
    """Its number in torch (`cuda:0` …), counted after CUDA_VISIBLE_DEVICES, in the order of the PCI bus."""
    name: str
    """As the driver calls it, "NVIDIA A100-SXM4-80GB"."""
    memory_gib: float | None
    """All of its memory; None where the driver does not say (a slice of a GPU, memory shared with the CPU)."""
    capability: tuple[int, int]
    """Compute capability, (8, 0) for an A100."""

    @property
    def fast_dtypes(self) -> tuple[str, ...]:
        """The number formats that its tensor cores speed up, of fp16, bf16, tf32 and fp8."""
        return tuple(dtype for dtype, since in FAST_SINCE.items() if self.capability >= since)

    def __str__(self) -> str:
        memory = "memory not known" if self.memory_gib is None else f"{self.memory_gib:.1f} GiB"
        capability = ".".join(map(str, self.capability))
        return f"{self.name}, {memory}, capability {capability}, fast: {', '.join(self.fast_dtypes) or 'fp32 only'}"


@dataclass(frozen=True)
class Tier:
    """How an experiment runs on this machine. Its text has no number in it that depends on the machine."""

    name: str
    """`"real here"`, `"scaled down here"` or `"recorded"`."""
    why: str
    """One sentence that a lesson prints."""

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"

    __repr__ = __str__


class Hardware:
    """What this machine has. Each attribute is looked up when first asked for, then kept.

    Only `backends`, `cuda`, `usable_gpus`, `sentence`, `tier` and the whole table import torch.
    """

    @cached_property
    def cpu(self) -> str:
        """The processor's name."""
        if platform.system() == "Darwin":
            return _output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
        return _cpuinfo("model name") or platform.processor() or platform.machine()

    @cached_property
    def cores(self) -> int:
        """Logical cores that this process may run on, which can be fewer than the machine has."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @cached_property
    def cpu_flags(self) -> tuple[str, ...]:
        """Those of CPU_FLAGS that the processor has; empty where the system does not say (macOS, Windows)."""
        flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
        return tuple(flag for flag in CPU_FLAGS if flag in flags)

    @cached_property
    def memory_gib(self) -> float:
        """All memory of the machine, in GiB."""
        return _memory().total / GIB

    @property
    def memory_available_gib(self) -> float:
        """Memory that programs could still get, in GiB, now: looked up each time. It ignores a container's limit."""
        return _memory().available / GIB

    @cached_property
    def memory_limit_gib(self) -> float | None:
        """What the container or batch job may use, in GiB; None if nothing limits it below the machine's memory."""
        limits = [int(text) / GIB for text in _cgroup("memory.max") if text.isdigit()]
        return min((gib for gib in limits if gib < self.memory_gib), default=None)

    @cached_property
    def cpu_limit(self) -> float | None:
        """How many cores' worth of time the container or batch job may use; None if nothing limits it."""
        pairs = [text.split() for text in _cgroup("cpu.max")]
        return min((int(quota) / int(period) for quota, period in pairs if quota.isdigit()), default=None)

    @cached_property
    def shm_gib(self) -> float | None:
        """Size of /dev/shm in GiB: tensors travel between processes through it. None where there is none."""
        return shutil.disk_usage("/dev/shm").total / GIB if os.path.isdir("/dev/shm") else None

    @cached_property
    def gpus(self) -> tuple[GPU, ...]:
        """The NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves, asked of nvidia-smi; empty if it is absent or fails."""
        query = "--query-gpu=index,uuid,name,memory.total,compute_cap"
        lines = _output("nvidia-smi", query, "--format=csv,noheader,nounits", seconds=NVIDIA_SMI_SECONDS).splitlines()
        by_uuid = dict(filter(None, map(_parse_gpu, lines)))
        return _visible(by_uuid, os.environ.get("CUDA_VISIBLE_DEVICES"))

    @cached_property
    def driver(self) -> str | None:
        """The version of NVIDIA's driver; None where nvidia-smi is absent or fails."""
        query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        return next(iter(_output(*query, seconds=NVIDIA_SMI_SECONDS).splitlines()), None)

    @cached_property
    def cuda(self) -> str | None:
        """The CUDA version that this torch was built with; None for a build that cannot use NVIDIA GPUs."""
        import torch

        return torch.version.cuda

    @property
    def usable_gpus(self) -> int:
        """How many GPUs this torch can use: none in a build without CUDA."""
        return len(self.gpus) if self.gpus and self.cuda else 0

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The ways to communicate that this torch was built with, of BACKENDS."""
        import torch.distributed as dist

        return tuple(name for name in BACKENDS if getattr(dist, f"is_{name}_available", bool)())

    @cached_property
    def start_methods(self) -> tuple[str, ...]:
        """How this system can start processes; the first is Python's default."""
        return tuple(multiprocessing.get_all_start_methods())

    @cached_property
    def versions(self) -> dict[str, str]:
        """Of the system, Python, torch and torchvision ("not installed" if so)."""
        return {"OS": _system(), "Python": platform.python_version()} | {
            package: _version(package) for package in ("torch", "torchvision")
        }

    @property
    def sentence(self) -> str:
        """One sentence without numbers, the same on all machines of a kind: fit for a lesson's stored output."""
        if self.usable_gpus > 1:
            return "Several GPUs here: experiments on GPUs run for real."
        if self.usable_gpus == 1:
            return "One GPU here: what needs several is scaled down to this one or to the CPU, or shown as recorded."
        return "No GPU here: what needs one is scaled down to the CPU, or shown as recorded."

    def tier(self, gpus: int = 0, *, cpu_stand_in: bool = False, gpu_can_be_shared: bool = False) -> Tier:
        """How an experiment that wants `gpus` GPUs runs here: real, scaled down or recorded.

        gpus: how many it wants; 0 for one that is about processes on the CPU.
        cpu_stand_in: the lesson can show the same thing with CPU ranks over gloo.
        gpu_can_be_shared: the lesson can show it with several ranks on one GPU over gloo; preferred over the CPU.
        Raises TypeError or ValueError where `gpus` is not a whole number from 0 up.
        """
        if isinstance(gpus, bool) or not isinstance(gpus, int):
            raise TypeError(f"gpus must be a whole number such as 2, not {gpus!r}")
        if gpus < 0:
            raise ValueError(f"gpus must be 0 or more, not {gpus}")
        if gpus == 0:
            return Tier("real here", "this needs no GPU.")
        wanted = "a GPU" if gpus == 1 else f"{gpus} GPUs"
        if self.usable_gpus >= gpus:
            return Tier("real here", f"this wants {wanted}, and this machine has what it wants.")
        lack = f"this wants {wanted}, which this machine does not have"
        if gpu_can_be_shared and self.usable_gpus and "gloo" in self.backends:
            return Tier("scaled down here", f"{lack}; its ranks share a GPU and talk over gloo instead.")
        if cpu_stand_in and "gloo" in self.backends:
            return Tier("scaled down here", f"{lack}; ranks on the CPU that talk over gloo stand in.")
        return Tier("recorded", f"{lack}; what you see was measured on the machine named beside it.")

    def rows(self) -> list[tuple[str, str]]:
        """The table, as (what, answer) pairs of text."""
        limits = [f"limited to {self.cpu_limit:g}" if self.cpu_limit else "", ", ".join(self.cpu_flags)]
        memory = f"{self.memory_gib:.1f} GiB, {self.memory_available_gib:.1f} GiB available"
        if self.memory_limit_gib is not None:
            memory += f", limited to {self.memory_limit_gib:.1f} GiB"
        rows = [
            ("CPU", self.cpu),
            ("CPU cores", "; ".join(filter(None, [f"{self.cores} usable", *limits]))),
            ("Memory", memory),
            ("/dev/shm", "none" if self.shm_gib is None else f"{self.shm_gib:.2f} GiB"),
            *((f"GPU {gpu.index}", str(gpu)) for gpu in self.gpus),
        ]
        if not self.gpus:
            rows.append(("GPU", "none"))
        elif not self.usable_gpus:
            rows.append(("GPU use", "none: this torch was built without CUDA"))
        rows += self.versions.items()
        rows.append(("CUDA in torch", self.cuda or "none"))
        rows.append(("Backends", ", ".join(self.backends) or "none"))
        rows.append(("Start methods", ", ".join(self.start_methods)))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(what) for what, _ in rows)
        return "\n".join(f"{what:<{width}}  {answer}" for what, answer in rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        row = '<tr><th scope="row" style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>'
        body = "".join(row.format(html.escape(what), html.escape(answer)) for what, answer in self.rows())
        head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in ("What", "Here"))
        caption = "<caption>What this machine has</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def free_port() -> int:
    """A port of the loopback interface that is free now; nothing listens on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _output(*command: str, seconds: float = 5) -> str:
    """What a command prints, or nothing at all if it is absent, fails or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _parse_gpu(line: str) -> tuple[str, GPU] | None:
    """(UUID, GPU) from a line such as `0, GPU-1f…, NVIDIA H200, 143771, 9.0`; None for a line that is not like it."""
    match = re.fullmatch(r"\s*(\d+), *([^,]+), *(.+), *([^,]+), *(\d+)\.(\d+)\s*", line)
    if match is None:
        return None
    index, uuid, name, mib, major, minor = match.groups()
    memory = float(mib) / 1024 if re.fullmatch(r"[\d.]+", mib) else None  # "[N/A]" where the CPU's memory is shared
    return uuid, GPU(int(index), name, memory, (int(major), int(minor)))


def _visible(by_uuid: dict[str, GPU], wanted: str | None) -> tuple[GPU, ...]:
    """The GPUs that CUDA shows under CUDA_VISIBLE_DEVICES, whose list ends at the first entry that names no GPU."""
    if wanted is None:
        return tuple(by_uuid.values())
    chosen = []
    for entry in map(str.strip, wanted.split(",")):
        if entry.startswith("MIG-"):  # CUDA uses one slice per process; a slice of which GPU, only the driver knows
            first = list(by_uuid.values())[:1]
            return tuple(replace(gpu, index=0, name=f"{gpu.name} (MIG slice)", memory_gib=None) for gpu in first)
        start = entry if entry.startswith("GPU-") else "-"  # a UUID's start is enough, where it fits one GPU only
        found = [gpu for uuid, gpu in by_uuid.items() if entry == str(gpu.index) or uuid.startswith(start)]
        if len(found) != 1:
            break
        if found[0] in chosen:  # named twice: CUDA shows none at all
            return ()
        chosen += found
    return tuple(replace(gpu, index=index) for index, gpu in enumerate(chosen))


def _memory():
    import psutil  # always there: Jupyter's kernel needs it

    return psutil.virtual_memory()


def _cpuinfo(key: str) -> str:
    """The first value of a key in /proc/cpuinfo, or an empty string."""
    match = re.search(rf"^{key}\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cgroup(name: str, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[str]:
    """What `name` holds in this process's control group (version 2) and in those above it: each of them limits it."""
    match = re.search("^0::/(.*)$", _read(own), re.MULTILINE)
    inside = root / match[1] if match else root
    texts = [_read(place / name) for place in (inside, *inside.parents) if place.is_relative_to(root)]
    return [text for text in texts if text]


def _system() -> str:
    """Distribution and kernel. Only the kernel's number: the rest of its name may be a company's or a person's."""
    kernel = platform.release()
    number = (re.match(r"[\d.]+", kernel) or [""])[0].rstrip(".")
    text = f"{platform.system()} {number} {platform.machine()}{', WSL' if 'microsoft' in kernel.lower() else ''}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {text}"
    except (OSError, KeyError, AttributeError):
        return text


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


hardware = Hardware()

if __name__ == "__main__":
    print(hardware)
