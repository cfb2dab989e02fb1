"""The description of this machine, and its current conditions. Imports nothing heavy: plans need it too."""

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

from ndld_flow.records.measurement import Machine

_GIB = 2**30
_CPUS = Path("/sys/devices/system/cpu")
_NVIDIA = Path("/proc/driver/nvidia")
# Jetson's GPU is no PCI card: neither the driver's list of cards nor older versions of nvidia-smi have it. The Windows
# Subsystem for Linux has one device for any GPU.
_GPU_DEVICES = (Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"), Path("/dev/nvidia0"), Path("/dev/dxg"))


@cache
def describe_machine() -> Machine:
    """Return the machine's description, cached per process. Without a GPU it takes some milliseconds."""
    gpus, driver = _nvidia()
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    # CPUs that this process may use: a smaller set counts as another machine.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        system=f"{platform.system()} {release}".strip(),  # without the patch release
        architecture=platform.machine(),
        cpu=_cpu_name(),
        cpu_count=cpus,
        memory_bytes=memory_size() or None,
        gpus=gpus,
        driver=driver,
        python=platform.python_version(),
    )


def has_nvidia_gpu() -> bool:
    """Return whether there is, or may be, an NVIDIA GPU: only a definite no stops a run before it starts."""
    return bool(describe_machine().gpus) or any(path.exists() for path in _GPU_DEVICES)


def read_conditions() -> dict[str, JsonValue]:
    """Return the conditions that may disturb a measurement: load, governors, clock rates, usable CPUs and limits.

    Values that this system does not report are left out.
    """
    readers: dict[str, Callable[[], JsonValue]] = {
        "load_average": lambda: list(os.getloadavg()),
        "affinity": lambda: [*sorted(os.sched_getaffinity(0))],
        "governors": lambda: _distinct("cpu[0-9]*/cpufreq/scaling_governor"),
        "cpu_mhz": _clock_rates,
        "turbo": _turbo,
        "cgroup_cpu_limit": _container_cpus,
    }
    conditions: dict[str, JsonValue] = {}
    for name, read in readers.items():
        try:
            value = read()
        except (OSError, AttributeError, ValueError):  # this system has no such file or call
            continue
        if value not in (None, []):
            conditions[name] = value
    return conditions


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        named = _output_of("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        named = _cpuinfo("model name") or _board_name()
    return " ".join((named or platform.processor() or platform.machine()).split())


def _cpuinfo(field: str) -> str:
    """Return the first CPU's `field` in /proc/cpuinfo."""
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
    """Return the name of the board: ARM's /proc/cpuinfo names no CPU."""
    try:
        return Path("/proc/device-tree/model").read_text(encoding="utf-8").rstrip("\0")
    except OSError:
        return ""


def memory_size() -> int:
    """Return the memory in bytes, rounded to GiB: the kernel's share varies a little from boot to boot."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    return max(1, round(total / _GIB)) * _GIB


def _nvidia() -> tuple[tuple[str, ...], str]:
    """Return the names of the NVIDIA GPUs and the driver's version.

    Linux's driver has both in files; nvidia-smi may take a second, in every plan.
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
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()


def _container_cpus() -> JsonValue:
    """Return the container's limit of CPU time, in CPUs; None without one."""
    quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _distinct(pattern: str) -> list[JsonValue]:
    return list({path.read_text().strip(): None for path in sorted(_CPUS.glob(pattern))})


def _clock_rates() -> JsonValue:
    """Return the lowest and highest clock rate of the CPUs."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    rates = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return [min(rates), max(rates)] if rates else None


def _turbo() -> JsonValue:
    intel = _CPUS / "intel_pstate" / "no_turbo"
    if intel.exists():
        return intel.read_text().strip() == "0"
    return (_CPUS / "cpufreq" / "boost").read_text().strip() == "1"
