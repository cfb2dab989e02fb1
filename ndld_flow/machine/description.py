"""The description of this machine, its current conditions, and the results of checks of it.

Imports nothing heavy: plans need it too.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from ndld_flow.machine.container_limits import UNKNOWN, read_limits
from ndld_flow.machine.hardware import read_hardware
from ndld_flow.machine.host import read_modes
from ndld_flow.records.document import Record
from ndld_flow.records.measurement import Machine


class Check(Record):
    """The result of one check."""

    name: str
    state: Literal["ok", "absent", "broken"]
    """`absent`: only some recipes need it; `broken`: every run needs it."""
    found: str
    advice: str = ""


_GIB = 2**30
# Jetson's GPU is not a PCI card: neither the driver's list of cards nor older versions of nvidia-smi include it. The
# Windows Subsystem for Linux has one device file for all GPUs.
_GPU_DEVICES = (Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"), Path("/dev/nvidia0"), Path("/dev/dxg"))


@cache
def describe_machine() -> Machine:
    """Return the machine's description, cached per process. Without a GPU it takes some milliseconds."""
    hardware = read_hardware()
    return Machine(
        system=hardware.system,
        architecture=hardware.architecture,
        cpu=hardware.cpu,
        cpu_count=hardware.cpu_count,
        memory_bytes=memory_size() or None,
        gpus=hardware.gpus,
        driver=hardware.driver,
        python=platform.python_version(),
    )


def has_nvidia_gpu() -> bool:
    """Return whether there is, or may be, an NVIDIA GPU: a run is stopped before it starts only if there certainly is
    none."""
    return bool(describe_machine().gpus) or any(path.exists() for path in _GPU_DEVICES)


def read_conditions() -> dict[str, JsonValue]:
    """Return the conditions that may disturb a measurement: load, governors, clock rates, usable CPUs and limits.

    Values that this system does not report are omitted.
    """
    modes = read_modes()
    readers: dict[str, Callable[[], JsonValue]] = {
        "load_average": lambda: list(os.getloadavg()),
        "affinity": lambda: [*sorted(os.sched_getaffinity(0))],
        "governors": lambda: [name for name in modes["governor"].split(", ") if name != UNKNOWN],
        "cpu_mhz": _clock_rates,
        "turbo": lambda: {"1": True, "0": False}.get(modes["boost"]),
        "cgroup_cpu_limit": lambda: float(read_limits()["CPU time"]),  # no number for `none` and `unknown`
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


def memory_size() -> int:
    """Return the memory in bytes, rounded to GiB: the kernel's share varies a little from boot to boot."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    return max(1, round(total / _GIB)) * _GIB


def _clock_rates() -> JsonValue:
    """Return the lowest and highest clock rate of the CPUs."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    rates = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return [min(rates), max(rates)] if rates else None
