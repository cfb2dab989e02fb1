"""Disturbances of a measurement: those found before it, and the load of other processes during it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.quantities import counted
from ndld_flow.machine.host import describe_machine, read_conditions
from ndld_flow.measure import worker
from ndld_flow.records.measurement import BUSY, cpus_used_by_others

_BUSY_LOAD = 0.5
"""Load per CPU from which it is reported; it includes this process's last minute."""
_BUSY_GPU_PERCENT = 5
_PROC = Path("/proc")
_MEASURING_PROGRAMS = ("trtexec", "onnxruntime_perf_test", "perf_analyzer")
_GPU_FIELDS = (
    "name",
    "utilization.gpu",
    "clocks.sm",
    "clocks.max.sm",
    "temperature.gpu",
    "memory.used",
    "pstate",
    "power.limit",
)


@dataclass(frozen=True)
class CpuTime:
    """CPU time since the machine started, in seconds over the usable CPUs."""

    busy_s: float
    stolen_s: float
    """Taken by the host of a virtual machine."""
    ours_s: float
    """CPU time of this process and of its ended children."""


def look_around(on_gpu: bool) -> dict[str, JsonValue]:
    """Return conditions that may disturb a measurement now; those that this system does not report are omitted."""
    conditions = read_conditions()
    others = _measuring_processes()
    if others:
        conditions["measuring_processes"] = [*others]
    if on_gpu:
        gpus = _ask_gpus()
        if gpus:
            conditions["gpus"] = [*gpus]
    return conditions


def doubts(conditions: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return a sentence for each condition that may disturb a measurement."""
    return tuple(_doubts(conditions))


def read_cpu_time(stat: Path = _PROC / "stat") -> CpuTime | None:
    """Return the CPU time so far; None if the system does not report it."""
    try:
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in stat.read_text(encoding="ascii").splitlines()]
        tick = os.sysconf("SC_CLK_TCK")
        rows = [[int(word) / tick for word in words[1:9]] for words in lines if words and words[0] in usable]
        # user, nice, system, idle, iowait, irq, softirq, steal (man 5 proc_stat)
        busy = sum(row[0] + row[1] + row[2] + row[5] + row[6] for row in rows)
        stolen = sum(row[7] for row in rows)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return CpuTime(busy, stolen, own) if rows else None


def disturbance(before: CpuTime | None, after: CpuTime | None, wall_s: float) -> dict[str, JsonValue]:
    """Return how many CPUs other processes used in between, and how many the host took; empty if unknown."""
    if before is None or after is None or wall_s <= 0:
        return {}
    others = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return {
        "wall_s": round(wall_s, 3),
        "cpus_used_by_others": round(max(0.0, others / wall_s), 3),
        "cpus_taken_by_host": round((after.stolen_s - before.stolen_s) / wall_s, 3),
    }


def disturbed(during: dict[str, JsonValue]) -> tuple[str, ...]:
    """Return a sentence if other processes used the CPUs during the measurement; else none."""
    cpus = describe_machine().cpu_count or 1
    others = cpus_used_by_others(during)
    if others < BUSY * cpus:
        return ()
    return (f"while measuring, other processes used {others:.1f} of {counted(cpus, 'CPU')}: expect noise",)


def _doubts(conditions: Mapping[str, JsonValue]) -> Iterator[str]:
    cpus = describe_machine().cpu_count or 1
    load = conditions.get("load_average")
    if isinstance(load, list) and _number(load[0]) >= _BUSY_LOAD * cpus:
        yield f"the machine is busy: load {_number(load[0]):.1f} on {counted(cpus, 'CPU')}; expect noise"
    governors = [name for name in _list(conditions, "governors") if name != "performance"]
    if governors:
        names = ", ".join(map(str, governors))
        yield (
            f"the CPU governor is {names}, not performance: clock rates vary with load "
            "(`cpupower frequency-set -g performance` sets it)"
        )
    limit = conditions.get("cgroup_cpu_limit")
    if limit is not None and _number(limit) < cpus:
        share = f"the time of {_number(limit):g} CPUs on {counted(cpus, 'CPU')}"
        yield f"this container is limited to {share}: it is throttled when it uses more"
    others = _list(conditions, "measuring_processes")
    if others:
        yield f"other measurements are running: {', '.join(map(str, others))}"
    for gpu in _list(conditions, "gpus"):
        if isinstance(gpu, dict) and _number(gpu.get("utilization.gpu")) >= _BUSY_GPU_PERCENT:
            yield f"GPU {gpu['name']} is busy: {gpu['utilization.gpu']} % used; expect noise"


def _number(value: JsonValue) -> float:
    """Return the value as a number; 0 for a non-number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0


def _list(conditions: Mapping[str, JsonValue], name: str) -> list[JsonValue]:
    value = conditions.get(name)
    return value if isinstance(value, list) else []


def _measuring_processes() -> list[str]:
    """Return measuring programs, and workers of other runs, as `trtexec (process 4711)`."""
    processes = []
    for folder in _PROC.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended, or belongs to another user
            continue
        program = Path(words[0]).name
        if worker.__name__ in words:
            program = "ndld-flow"
        elif program not in _MEASURING_PROGRAMS:
            continue
        processes.append(f"{program} (process {folder.name})")
    return sorted(processes)


def _ask_gpus() -> list[dict[str, JsonValue]]:
    """Return the state of each NVIDIA GPU from nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(_GPU_FIELDS, (word.strip() for word in line.split(",")), strict=False)) for line in lines]
