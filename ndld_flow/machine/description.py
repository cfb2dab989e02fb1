"""What this machine is, and what it is doing right now. Imports nothing heavy: plans need it too."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.records.machine import Machine

_GIB = 2**30
_CPUS = Path("/sys/devices/system/cpu")
_NVIDIA = Path("/proc/driver/nvidia")
# Jetson's GPU is no PCI card: the driver's list of cards does not have it, nor older versions of nvidia-smi. Windows'
# subsystem for Linux has one device for whatever GPU there is.
_GPU_DEVICES = (Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"), Path("/dev/nvidia0"), Path("/dev/dxg"))


@cache
def describe_machine() -> Machine:
    """The machine's fingerprint, looked up once in a process. Without a GPU it takes some milliseconds."""
    gpus, driver = _nvidia()
    return Machine(
        system=_system(),
        architecture=platform.machine(),
        cpu=_cpu_name(),
        cpu_count=_usable_cpus(),
        memory_bytes=memory_size() or None,
        gpus=gpus,
        driver=driver,
        python=platform.python_version(),
    )


def has_nvidia_gpu() -> bool:
    """Whether there is an NVIDIA GPU, or may be one: only a sure no stops a run before it begins."""
    return bool(describe_machine().gpus) or any(path.exists() for path in _GPU_DEVICES)


def read_conditions() -> dict[str, JsonValue]:
    """What may disturb a measurement at this moment: load, governors, clock rates, the CPUs that may be used, and
    their limits. What this system does not tell is left out.
    """
    readers: dict[str, Callable[[], JsonValue]] = {
        "load_average": lambda: list(os.getloadavg()),
        "affinity": lambda: [*sorted(os.sched_getaffinity(0))],
        "governors": lambda: _distinct("cpu[0-9]*/cpufreq/scaling_governor"),
        "cpu_mhz": _clock_rates,
        "turbo": _turbo,
        "cgroup_cpu_limit": _cgroup_cpus,
    }
    found: dict[str, JsonValue] = {}
    for name, read in readers.items():
        try:
            value = read()
        except (OSError, AttributeError, ValueError):  # this system has no such file or call
            continue
        if value not in (None, []):
            found[name] = value
    return found


def _system() -> str:
    """`Linux 6.12`: patch releases of a kernel are one system."""
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return f"{platform.system()} {release}".strip()


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        named = _output_of("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        named = _cpuinfo("model name") or _board_name()
    return " ".join((named or platform.processor() or platform.machine()).split())


def _cpuinfo(field: str) -> str:
    """The first CPU's `field` in /proc/cpuinfo."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def _board_name() -> str:
    """ARM's /proc/cpuinfo names no CPU; the board is what tells a Jetson from another."""
    try:
        return Path("/proc/device-tree/model").read_text(encoding="utf-8").rstrip("\0")
    except OSError:
        return ""


def _usable_cpus() -> int:
    """CPUs this process may use: a smaller set is another machine to a measurement."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_size() -> int:
    """Rounded to GiB: the kernel's own share varies a little from boot to boot."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    return max(1, round(total / _GIB)) * _GIB


def _nvidia() -> tuple[tuple[str, ...], str]:
    """Names of the NVIDIA GPUs and the driver's version.

    Linux's driver tells both in files, at once; nvidia-smi may take a second, which every plan would pay.
    """
    if not (_NVIDIA / "version").is_file():
        return _ask_nvidia_smi()
    version = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", (_NVIDIA / "version").read_text())
    cards = (path.read_text() for path in sorted(_NVIDIA.glob("gpus/*/information")))
    names = [re.search(r"^Model:\s*(.+)$", card, re.MULTILINE) for card in cards]
    return tuple(name[1].strip() for name in names if name), version[1] if version else ""


def _ask_nvidia_smi() -> tuple[tuple[str, ...], str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ""
    lines = _output_of(program, "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    rows = [line.rpartition(",") for line in lines if "," in line]
    return tuple(name.strip() for name, _, _ in rows), rows[0][2].strip() if rows else ""


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _distinct(pattern: str) -> list[JsonValue]:
    return list({path.read_text().strip(): None for path in sorted(_CPUS.glob(pattern))})


def _clock_rates() -> JsonValue:
    """Lowest and highest clock rate over the CPUs."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    rates = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return [min(rates), max(rates)] if rates else None


def _turbo() -> JsonValue:
    intel = _CPUS / "intel_pstate" / "no_turbo"
    if intel.exists():
        return intel.read_text().strip() == "0"
    return (_CPUS / "cpufreq" / "boost").read_text().strip() == "1"


def _cgroup_cpus() -> JsonValue:
    """How many CPUs' time the container may use; None without a limit."""
    quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)
