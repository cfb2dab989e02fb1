"""Estimate the duration of a sweep from earlier durations of its steps."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.machine.description import describe_machine
from ndld_flow.records.document import Record, read_tree
from ndld_flow.records.measurement import Machine
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.runner.keys import fingerprint_machine
from ndld_flow.runner.outputs import Outputs
from ndld_flow.store.store import Store

_ASSUMED_SPREAD = 0.5
"""Relative standard deviation of a step that ran once: the effect of other settings is unknown."""
_LEAST_SPREAD = 0.1
_MOST_FILES = 300
"""Newest records of the store that are read: a plan must be quick."""
_ENOUGH = 10
"""Records of one step type that are read; older ones add little."""

Pending: TypeAlias = "Mapping[str, tuple[str, float]]"
"""Step's name -> its type, and how many times it must run."""
Durations: TypeAlias = "Mapping[tuple[str, str], Sequence[float]]"
"""Step's name (or empty, for any) and its type -> its durations in seconds."""


class Estimate(Record):
    """Estimated duration of steps that run one after another."""

    seconds: float
    low_s: float
    """With `high_s` the 95 % interval, if points are like earlier ones."""
    high_s: float
    step_type_count: int
    unknown: tuple[str, ...] = ()
    """Step types that never ran here: their time is not included."""

    @property
    def text(self) -> str:
        """The estimate in words."""
        about = f"about {seconds(self.seconds)} ({seconds(self.low_s)} to {seconds(self.high_s)}) from earlier runs"
        if not self.unknown:
            return about
        return f"{about}; {len(self.unknown)} of {self.step_type_count} step types never ran here"


def estimate_seconds(pending: Pending, recipe: str, outputs: Outputs) -> Estimate | None:
    """Estimate the duration of pending steps; None when no such step ever ran here.

    A step is expected to take as long as in this recipe's latest run and sweep; a step that was in neither, as long as
    the newest of its type in the store.
    """
    durations = dict(read_own_times(recipe, outputs))
    missing = {step for name, (step, count) in pending.items() if count > 0 and (name, step) not in durations}
    return add_up(pending, {**durations, **read_times_of_types(missing, outputs.store)})


def add_up(pending: Pending, durations: Durations) -> Estimate | None:
    """Add up the durations of all steps, with a 95 % interval.

    The prediction of a sum of `count` durations from `n` observed ones has a standard error of the standard deviation
    times sqrt(count + count² / n). Errors of steps are independent; the interval is two standard errors on each side.
    """
    total, variance = 0.0, 0.0
    types = {step for step, count in pending.values() if count > 0}
    unknown: dict[str, None] = {}
    for name, (step, count) in pending.items():
        times = durations.get((name, step)) or durations.get(("", step)) or ()
        if count <= 0:
            continue
        if not times:
            unknown[step] = None
            continue
        mean = statistics.fmean(times)
        total += count * mean
        variance += _spread(times, mean) ** 2 * (count + count**2 / len(times))
    if types == set(unknown):
        return None
    off = 2 * math.sqrt(variance)
    return Estimate(
        seconds=total,
        low_s=max(total - off, 0.0),
        high_s=total + off,
        step_type_count=len(types),
        unknown=tuple(unknown),
    )


def _spread(times: Sequence[float], mean: float) -> float:
    """Return the standard deviation of a step's durations, in seconds."""
    if len(times) < 2:
        return _ASSUMED_SPREAD * mean
    return max(statistics.stdev(times), _LEAST_SPREAD * mean)


def read_own_times(recipe: str, outputs: Outputs) -> Durations:
    """Return the durations of the steps of a recipe's latest run and sweep on this machine."""
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, step, wall_s in (*_times_of_run(outputs.latest(recipe)), *_times_of_sweep(outputs.latest_sweep(recipe))):
        durations[name, step].append(wall_s)
    return durations


def _times_of_run(folder: Path | None) -> Iterator[tuple[str, str, float]]:
    try:
        run = read_run_record(folder) if folder is not None else None
    except RequestError:
        return
    for step in run.steps if run is not None else ():
        if step.record is not None and _is_this_machine(step.record.parts.machine):
            yield step.name, step.step, step.record.wall_s


def _times_of_sweep(folder: Path | None) -> Iterator[tuple[str, str, float]]:
    """Yield the durations of steps that the sweep computed itself."""
    try:
        sweep = read_sweep_record(folder) if folder is not None else None
    except RequestError:
        return
    if sweep is None or _hardware(sweep.machine) != _hardware(describe_machine()):
        return
    for point in sweep.points:
        yield from ((step.name, step.step, step.wall_s) for step in point.steps if step.outcome == "done")


def _hardware(machine: Machine) -> tuple[str, int | None, tuple[str, ...]]:
    return machine.cpu, machine.cpu_count, tuple(machine.gpus)


def read_times_of_types(types: set[str], store: Store) -> Durations:
    """Return the durations in the newest records of these step types on this machine, under an empty name."""
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in _newest_records(store) if types else ():
        if all(len(durations["", step]) >= _ENOUGH for step in types):
            break
        try:
            record: dict[str, Any] = read_tree(path)
            step, machine, wall_s = record["parts"]["step"], record["parts"]["machine"], float(record["wall_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if step in types and len(durations["", step]) < _ENOUGH and _is_this_machine(machine):
            durations["", step].append(wall_s)
    return {key: times for key, times in durations.items() if times}


def _newest_records(store: Store) -> list[Path]:
    dated = []
    for path in (store.root / "records").glob("*/*.json"):
        try:
            dated.append((path.stat().st_mtime, path.name, path))
        except OSError:
            continue  # removed meanwhile
    return [path for *_, path in sorted(dated, reverse=True)[:_MOST_FILES]]


def _is_this_machine(machine: str) -> bool:
    """Return whether a result was computed on a machine of this kind; pure transforms do not record the machine."""
    return machine.partition("; ")[0] in ("", fingerprint_machine())
