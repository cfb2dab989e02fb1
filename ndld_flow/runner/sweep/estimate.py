"""How long a sweep may take, from what its steps took before."""

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
from ndld_flow.records.base import Record
from ndld_flow.records.machine import Machine
from ndld_flow.records.read_document import read_tree
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.runner.keys import fingerprint_machine
from ndld_flow.runner.outputs import Outputs
from ndld_flow.store.store import Store

_ASSUMED_SPREAD = 0.5
"""Relative standard deviation of a step that ran once: what another point makes of it is not known."""
_LEAST_SPREAD = 0.1
_MOST_FILES = 300
"""Records of the store that are read, the newest; a plan is to be quick."""
_ENOUGH = 10
"""Records of one step type; older ones add little."""

Todo: TypeAlias = "Mapping[str, tuple[str, float]]"
"""Step's name -> its type, and how many times it is to be done."""
Took: TypeAlias = "Mapping[tuple[str, str], Sequence[float]]"
"""Step's name (or empty, for any) and its type -> seconds that it took."""


class Estimate(Record):
    """How long steps may take, one after another."""

    seconds: float
    low_s: float
    """With `high_s` where it will be 19 times of 20, if points are like those before."""
    high_s: float
    step_type_count: int
    unknown: tuple[str, ...] = ()
    """Step types that never ran here: their time is not in it."""

    @property
    def said(self) -> str:
        """In words."""
        about = f"about {seconds(self.seconds)} ({seconds(self.low_s)} to {seconds(self.high_s)}) from earlier runs"
        if not self.unknown:
            return about
        return f"{about}; {len(self.unknown)} of {self.step_type_count} step types never ran here"


def estimate_seconds(todo: Todo, recipe: str, outputs: Outputs) -> Estimate | None:
    """How long what is to be done may take; None when nothing like it ever ran here.

    A step counts as it did in this recipe's latest run and sweep; one that was in neither as the newest of its type in
    the store did.
    """
    took = dict(read_own_times(recipe, outputs))
    missing = {step for name, (step, count) in todo.items() if count > 0 and (name, step) not in took}
    return add_up(todo, {**took, **read_times_of_types(missing, outputs.store)})


def add_up(todo: Todo, took: Took) -> Estimate | None:
    """The times of all steps together, with the bounds that their spread leaves.

    The sum of `count` more of what took `n` times so and so long is off by the standard deviation times
    sqrt(count + count² / n); steps are off independently of each other, and 19 times of 20 by less than twice as much.
    """
    total, variance = 0.0, 0.0
    types = {step for step, count in todo.values() if count > 0}
    unknown: dict[str, None] = {}
    for name, (step, count) in todo.items():
        times = took.get((name, step)) or took.get(("", step)) or ()
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
    """Standard deviation of what a step takes, in seconds."""
    if len(times) < 2:
        return _ASSUMED_SPREAD * mean
    return max(statistics.stdev(times), _LEAST_SPREAD * mean)


def read_own_times(recipe: str, outputs: Outputs) -> Took:
    """What the steps of a recipe's latest run and sweep took on this machine."""
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, step, wall_s in (*_times_of_run(outputs.latest(recipe)), *_times_of_sweep(outputs.latest_sweep(recipe))):
        took[name, step].append(wall_s)
    return took


def _times_of_run(folder: Path | None) -> Iterator[tuple[str, str, float]]:
    try:
        run = read_run_record(folder) if folder is not None else None
    except RequestError:
        return
    for step in run.steps if run is not None else ():
        if step.record is not None and _is_of_here(step.record.parts.machine):
            yield step.name, step.step, step.record.wall_s


def _times_of_sweep(folder: Path | None) -> Iterator[tuple[str, str, float]]:
    """Of what it did itself: the rest was there before."""
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


def read_times_of_types(types: set[str], store: Store) -> Took:
    """What the newest records of these step types took on this machine, under no name."""
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in _newest_records(store) if types else ():
        if all(len(took["", step]) >= _ENOUGH for step in types):
            break
        try:
            record: dict[str, Any] = read_tree(path)
            step, machine, wall_s = record["parts"]["step"], record["parts"]["machine"], float(record["wall_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if step in types and len(took["", step]) < _ENOUGH and _is_of_here(machine):
            took["", step].append(wall_s)
    return {key: times for key, times in took.items() if times}


def _newest_records(store: Store) -> list[Path]:
    dated = []
    for path in (store.root / "records").glob("*/*.json"):
        try:
            dated.append((path.stat().st_mtime, path.name, path))
        except OSError:
            continue  # gone meanwhile
    return [path for *_, path in sorted(dated, reverse=True)[:_MOST_FILES]]


def _is_of_here(machine: str) -> bool:
    """Return whether a result took its time on a machine of this kind; pure transforms do not say where."""
    return machine.partition("; ")[0] in ("", fingerprint_machine())
