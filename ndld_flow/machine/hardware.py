"""Properties of this machine that identify it in keys and records, and the CPU time and memory that it may use.

Those are limited by control groups, version 1 and 2. Unknown is not unlimited.

Every plan needs them: only light modules of the standard library are imported, and not `dataclasses`, which imports
`inspect`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Callable
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


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs on which this process may run."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@cache
def read_hardware() -> Hardware:
    """Return this machine's hardware, cached per process. Without a GPU it takes some milliseconds."""
    gpus, driver = _nvidia()
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    cpus = len(usable_cpus())
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


UNKNOWN = "unknown"
NONE = "none"

_UNLIMITED_BYTES = 1 << 60
"""Version 1 reports "no limit" as the largest multiple of a page; the kernel's maximum varies."""


def read_limits(root: Path = Path("/")) -> dict[str, str]:
    """Return the limits that affect measurements, as text: `CPU time` in CPUs, `memory` in bytes.

    A limit is the smallest of this process's group and its parents. `root` contains /proc and /sys.
    """
    try:
        groups: dict[str, str] = {}
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            # The group of version 2 has an empty name.
            _, controllers, group = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), group)
    except OSError:
        return {"CPU time": NONE, "memory": NONE}  # a system without control groups
    mounts = _read_mounts(root)
    return {
        "CPU time": _limit(_folders("cpu", groups, mounts), _cpus),
        "memory": _limit(_folders("memory", groups, mounts), _bytes),
    }


class _Mount(NamedTuple):
    """The mount point of a hierarchy of groups."""

    controllers: frozenset[str]
    """Empty for version 2, which has one hierarchy for all."""
    group: str
    """The group at the top of the mount: a container sees a part of the hierarchy."""
    folder: Path


def _read_mounts(root: Path) -> list[_Mount]:
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            group, folder = (
                re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), word) for word in before.split(" ")[3:5]
            )
            controllers = frozenset(options.split(",")) if kind == "cgroup" else frozenset()
            mounts.append(_Mount(controllers, group, root / folder.lstrip("/")))
    return mounts


def _folders(controller: str, groups: dict[str, str], mounts: list[_Mount]) -> list[Path] | None:
    """Return the folders of this process's groups of a controller, innermost first; None if none is visible.

    A controller is either in version 1's or in version 2's hierarchy.
    """
    version = controller if controller in groups else ""
    seen = [mount for mount in mounts if (version in mount.controllers if version else not mount.controllers)]
    if version not in groups or not seen:
        return None
    folders = []
    for mount in seen:
        group = groups[version]
        if mount.group != "/" and (group == mount.group or group.startswith(f"{mount.group}/")):
            group = group[len(mount.group) :]
        leaf = mount.folder / ("" if ".." in group else group.lstrip("/"))
        if not leaf.is_dir():  # the path is the host's, and only a part of the hierarchy is visible
            leaf = mount.folder
        folders += [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(mount.folder))]
    return folders


def _limit(folders: list[Path] | None, read: Callable[[Path], float | None]) -> str:
    if folders is None:
        return UNKNOWN
    try:
        limits = [limit for folder in folders if (limit := read(folder)) is not None]
    except (OSError, ValueError):
        return UNKNOWN
    return f"{min(limits):.15g}" if limits else NONE


def _cpus(folder: Path) -> float | None:
    """Return a group's limit of CPU time, in CPUs; None without one."""
    limit = _read(folder, "cpu.max") or f"{_read(folder, 'cpu.cfs_quota_us')} {_read(folder, 'cpu.cfs_period_us')}"
    quota, _, period = limit.partition(" ")
    return int(quota) / int(period) if quota not in ("", "max", "-1") else None


def _bytes(folder: Path) -> float | None:
    limit = _read(folder, "memory.max") or _read(folder, "memory.limit_in_bytes")
    return int(limit) if limit not in ("", "max") and int(limit) < _UNLIMITED_BYTES else None


def _read(folder: Path, name: str) -> str:
    """Return a file's text; empty if the group does not have it, such as the root group."""
    try:
        return (folder / name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
