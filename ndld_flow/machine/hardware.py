"""Properties of this machine that identify it in keys and records.

Every plan needs them: only light modules of the standard library are imported, and not `dataclasses`, which imports
`inspect`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_NVIDIA = Path("/proc/driver/nvidia")


class Hardware(NamedTuple):
    """A machine without its identity: equal machines are equal."""

    system: str
    """Name and release of the operating system, without the patch release."""
    architecture: str
    cpu: str
    cpu_count: int
    """Number of CPUs that this process may use; another number counts as another machine."""
    gpus: tuple[str, ...]
    """Names of the NVIDIA GPUs."""
    driver: str
    """Version of NVIDIA's driver; empty without one."""


@cache
def read_hardware() -> Hardware:
    """Return this machine's hardware, cached per process. Without a GPU it takes some milliseconds."""
    gpus, driver = _nvidia()
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if platform.system() == "Darwin":
        named = _output_of("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        named = describe_cpu("model name")
        if not named:  # ARM's /proc/cpuinfo does not name the CPU: the board is named
            with contextlib.suppress(OSError):
                named = Path("/proc/device-tree/model").read_text(encoding="utf-8").rstrip("\0")
    return Hardware(
        f"{platform.system()} {release}".strip(),
        platform.machine(),
        " ".join((named or platform.processor() or platform.machine()).split()),
        cpus,
        gpus,
        driver,
    )


def describe_cpu(field: str) -> str:
    """Return the first CPU's `field` in /proc/cpuinfo; empty if the system has none."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def _nvidia() -> tuple[tuple[str, ...], str]:
    """Return the names of the NVIDIA GPUs and the driver's version.

    The Linux driver has both in files; nvidia-smi may take a second, in every plan.
    """
    if not (_NVIDIA / "version").is_file():
        return _ask_nvidia_smi()
    version = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", (_NVIDIA / "version").read_text())
    cards = (path.read_text() for path in sorted(_NVIDIA.glob("gpus/*/information")))
    names = [re.search(r"^Model:\s*(.+)$", card, re.MULTILINE) for card in cards]
    return tuple(name[1].strip() for name in names if name), version[1] if version else ""


def _ask_nvidia_smi() -> tuple[tuple[str, ...], str]:
    if os.name == "posix" and not any(os.access(f"{folder}/nvidia-smi", os.X_OK) for folder in os.get_exec_path()):
        return (), ""  # importing shutil takes as long as all the rest
    from shutil import which

    program = which("nvidia-smi")
    if program is None:
        return (), ""
    lines = _output_of(program, "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    rows = [line.rpartition(",") for line in lines if "," in line]
    return tuple(name.strip() for name, _, _ in rows), rows[0][2].strip() if rows else ""


def _output_of(*command: str) -> str:
    import subprocess

    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()
