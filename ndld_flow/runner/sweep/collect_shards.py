"""Join the results of a sweep's shards into one sweep: `collect`.

The points are tried as `run` tries them, by an executor that computes nothing: what a step's key names is in the store
or the shared cache, an error is in the record of a shard, and everything else is missing. The keys are those of the
machine that each shard recorded.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from ndld_flow.base.errors import MissingPointsError, NdldFlowError, NewerFormatError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import visible_name
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.document import read_bounded
from ndld_flow.records.run_record import StepRecord
from ndld_flow.records.shard import ShardFailure, ShardRecord
from ndld_flow.runner.events import Notice, SweepFinished, SweepStarted
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.listener import Listener, ignore, synchronized
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.request import Request, Shard
from ndld_flow.runner.run_record import library_versions
from ndld_flow.runner.sweep.conclude_sweep import Ended
from ndld_flow.runner.sweep.run_sweep import check_target, conclude_sweep, measure_winners, open_sweep_state
from ndld_flow.runner.sweep.shards import (
    cached_folder,
    describe_error,
    digest_sweep,
    machine_of_step,
    shard_folder,
)
from ndld_flow.runner.sweep.share_points import refuse_dependent_points, session_size
from ndld_flow.runner.sweep.state import PointRun, SweepState, judge_point
from ndld_flow.runner.sweep.try_points import Batch, TriedPoints, advance_points, ask_batches, open_points
from ndld_flow.runner.sweep.winners import Finalist, is_measured
from ndld_flow.store.store import Store
from ndld_flow.sweep_search.make_search import make_search

_LISTED = 12
"""Maximum number of points and shards that a message lists."""
_Missing = dict[int, list[int]]
"""Shard -> the numbers of its points without results."""


@dataclass(frozen=True)
class CollectOptions:
    """The options of `collect`."""

    shards: int | None = None
    """The number of shards; None: that of the records."""
    partial: bool = False
    """Join what exists, although points are missing."""
    measure: bool = False
    """Measure the best points again on this machine."""


class _NotHereError(NdldFlowError):
    """A result is neither in the store nor in the shared cache."""


@dataclass(frozen=True)
class _Source:
    """A process that may have tried points: a shard by its record, or this machine without one."""

    state: SweepState
    record: ShardRecord | None = None

    def machine_of(self, step: RecipeStep) -> str:
        """Return the machine of a step, as its key describes it."""
        here = step.step.reused_where().value, step.step.device
        for machine in self.record.machines if self.record is not None else ():
            if (machine.where, machine.device) == here:
                return machine.description
        return machine_of_step(step, self.state).description

    @property
    def failures(self) -> Mapping[tuple[int, str], ShardFailure]:
        """Return the recorded errors by the point's number and the step."""
        failures = self.record.failures if self.record is not None else ()
        return {(failure.number, failure.step): failure for failure in failures}


@dataclass(frozen=True)
class _FoundResults:
    """An executor that computes nothing: it raises the error that a shard recorded, or `_NotHereError`."""

    failures: Mapping[tuple[int, str], ShardFailure] = field(default_factory=dict)
    slots: int = 1

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        answer: Future[Sequence[StepRecord]] = Future()
        answer.set_exception(self._error(task))
        return answer

    def _error(self, task: Task) -> NdldFlowError:
        errors = []
        for work in task.works:
            step, _, number = work.step.name.rpartition("#")
            failure = self.failures.get((int(number), step))
            if failure is not None:
                errors.append(describe_error(failure, work.step.name))
        # A session whose error names its step is measured again without that step; with any other error, in halves.
        named = [error for error in errors if error.step]
        return next(iter(named or errors), _NotHereError("its result is missing"))

    def close(self) -> None:
        """Do nothing: nothing was started."""


def collect_shards(sweep: Sweep, request: Request, options: CollectOptions, listener: Listener) -> SweepFinished:
    """Join the results of all shards, and write the folder and report of the sweep; call it inside `working_on`.

    Nothing is computed, except the best points with `options.measure`. Raises MissingPointsError if points are missing,
    and RequestError if no shard has started, or measurements are from different kinds of machines.
    """
    refuse_dependent_points(sweep, "collect")
    check_target(sweep, request)
    outputs, listener = Outputs(request.outputs), synchronized(listener)
    with open_sweep_state(sweep, request, outputs, listener) as state:
        if state.cache is not None:
            state.cache.be_patient()
        base = state.open_run(sweep.base)
        base.command = request.command_in(outputs.sweeps / sweep.base.name / base.id)
        records = _read_records(sweep, digest_sweep(sweep, base), state)
        count = _choose_count(records, options.shards, request, state)
        chosen = [record for record in records if record.count == count]
        tried, missing = _find_points(sweep, chosen, count, state)
        if missing:
            text = _describe_missing(missing, chosen, count, sweep, state)
            if not options.partial or not tried.points:
                raise MissingPointsError(text)
            listener(Notice(text=text, warning=True))
            lacking = sum(map(len, missing.values()))
            tried.stopped_because = (
                f"{counted(lacking, 'point')} of {len(tried.points) + lacking} missing: collected with --partial"
            )
        finalists = _judge_winners(sweep, tried, state, measure=options.measure)
        _refuse_different_machines(sweep, tried, finalists, state)
    return conclude_sweep(Ended(sweep, state, tried, finalists, base), request)


def _read_records(sweep: Sweep, digest: str, state: SweepState) -> list[ShardRecord]:
    """Return the valid records of this sweep's shards, of the outputs folder and the shared cache, the newest first."""
    folder = shard_folder(state.outputs, sweep.base.name, digest)
    texts: list[bytes] = state.cache.read_documents(cached_folder(digest)) if state.cache is not None else []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError):
            texts.append(read_bounded(path))
    newest: dict[object, ShardRecord] = {}
    for text in texts:
        try:
            record = ShardRecord.model_validate_json(text)
        except NewerFormatError as error:
            raise error.at(f"the record of a shard of {sweep.base.name}") from None
        except ValidationError:
            continue
        who = (record.index, record.count, record.host, record.machines)
        if record.sweep == digest and (who not in newest or newest[who].updated_at < record.updated_at):
            newest[who] = record
    return sorted(newest.values(), key=lambda record: record.updated_at, reverse=True)


def _choose_count(records: Sequence[ShardRecord], requested: int | None, request: Request, state: SweepState) -> int:
    counts = sorted({record.count for record in records})
    if requested is not None:
        return requested
    if len(counts) == 1:
        return counts[0]
    where = f"{request.outputs}" + (f" or {state.cache.remote}" if state.cache is not None else "")
    if counts:
        numbers = " and ".join(map(str, counts))
        raise RequestError(f"collect: this sweep was started in {numbers} shards. Choose with --shards {counts[-1]}.")
    raise RequestError(
        f"collect: no shard of this sweep has started in {where}. A sweep with another model, other settings or other "
        "overrides is another sweep: give `collect` the arguments of the shards, and their --outputs or --cache."
    )


def _find_points(
    sweep: Sweep, records: Sequence[ShardRecord], count: int, state: SweepState
) -> tuple[TriedPoints, _Missing]:
    """Find the results of all points; return the tried points, and the missing ones by shard."""
    search = make_search(sweep.space, sweep.options)
    state.listener(SweepStarted(recipe=sweep.base.name, method=sweep.section.method, point_count=search.size))
    tried, missing = TriedPoints(), defaultdict[int, list[int]](list)
    for place, batch in enumerate(ask_batches(sweep, search, session_size(sweep, search, count))):
        index = place % count + 1
        sources = [_Source(state, record) for record in records if record.index == index]
        for point in _find_batch(sweep, batch, [*sources, _Source(state)], state):
            if isinstance(point.failure, _NotHereError):
                missing[index].append(point.number)
            else:
                tried.points.append(point)
                tried.judgements.append(judge_point(point, state.goals))
    tried.sort()
    tried.stopped_because = search.stopped_because or f"all {len(tried.points)} points tried"
    return tried, missing


def _find_batch(sweep: Sweep, batch: Batch, sources: Iterable[_Source], state: SweepState) -> list[PointRun]:
    """Return the points of a batch, as the process found them that has the most of their results.

    The points of a batch were measured together, so they are never taken from different machines.
    """
    best: tuple[int, list[PointRun], SweepState] | None = None
    for source in sources:
        attempt = replace(
            state,
            listener=lambda event: state.listener(event) if isinstance(event, Notice) else ignore(event),
            executor=_FoundResults(source.failures),
            machine_of=source.machine_of,
            sessions=list(state.sessions),
            known=dict(state.known),
        )
        points = [_as_recorded(point, source, attempt) for point in open_points(sweep, attempt, batch)]
        advance_points(points, attempt)
        lacking = sum(isinstance(point.failure, _NotHereError) for point in points)
        if best is None or lacking < best[0]:
            best = lacking, points, attempt
        if not lacking:
            break
    assert best is not None
    _, points, attempt = best
    state.sessions[:], state.known = attempt.sessions, attempt.known
    for point in points:
        point.reported = isinstance(point.failure, _NotHereError)
    state.report_finished(points)
    return points


def _as_recorded(point: PointRun, source: _Source, state: SweepState) -> PointRun:
    """Return a point, or in its place one that has failed because its machine could not run it."""
    failure = source.failures.get((point.number, ""))
    if point.failure is not None or failure is None:
        return point
    error = describe_error(failure)
    return PointRun(point.number, point.point, point.changes, state.open_run(point.run.recipe), failure=error)


def _judge_winners(sweep: Sweep, tried: TriedPoints, state: SweepState, *, measure: bool) -> dict[int, Finalist]:
    """Return the best points as they were measured again on this machine, now or before; empty if they were not."""
    if measure:
        return measure_winners(sweep, tried, state)
    found = measure_winners(sweep, tried, replace(state, executor=_FoundResults(), listener=ignore))
    lacks = any(isinstance(finalist.point.failure, _NotHereError) for finalist in found.values())
    return {} if lacks else found


def _refuse_different_machines(
    sweep: Sweep, tried: TriedPoints, finalists: Mapping[int, Finalist], state: SweepState
) -> None:
    """Raise RequestError if objectives were measured on different kinds of machines, and nothing decides among them."""
    if not any(is_measured(objective, sweep) for objective in sweep.objectives):
        return
    machines = {
        step.record.parts.machine
        for point in tried.points
        for step in point.run.steps
        if step.record is not None and sweep_measures(step.step, sweep)
    }
    kinds = sorted({machine.partition("; ")[0] for machine in machines})
    again = "`--measure` measures the best again on this machine, in turns, which decides among them."
    if len(kinds) > 1 and not finalists:
        shown = "; ".join(map(visible_name, kinds))
        raise RequestError(
            f"collect: the points were measured on {len(kinds)} kinds of machines ({shown}), so their measurements "
            f"cannot be compared. Run all shards on one kind; or {again}"
        )
    if len(machines) > 1 and not finalists:
        state.listener(
            Notice(
                text=f"the points were measured on {len(machines)} hosts, in different sessions; {again}", warning=True
            )
        )


def sweep_measures(step_type: str, sweep: Sweep) -> bool:
    """Return whether steps of a type are measured in turns."""
    return any(step.type.name == step_type and step.type.cls.takes_turns for step in sweep.base.steps)


def _describe_missing(
    missing: _Missing, records: Sequence[ShardRecord], count: int, sweep: Sweep, state: SweepState
) -> str:
    """Return a message that names the missing points, and for each of their shards why they are missing."""
    number = sum(map(len, missing.values()))
    shards = sorted(missing)
    lines = [
        f"{Shard(index, count)}: {_list_points(missing[index])}: {_explain(index, records, sweep, state)}"
        for index in shards[:_LISTED]
    ]
    more = [f"... and {len(shards) - _LISTED} more shards"] if len(shards) > _LISTED else []
    where = str(state.outputs.root) + (f" and {state.cache.remote}" if state.cache is not None else "")
    return "\n".join(
        [
            f"collect: {counted(number, 'point')} {'is' if number == 1 else 'are'} missing in {where}.",
            *(f"shard {line}" for line in (*lines, *more)),
            "Start these shards again: they compute only what is missing. `--partial` collects what exists.",
        ]
    )


def _list_points(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)[:_LISTED]))
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return f"{'point' if len(numbers) == 1 else 'points'} {listed}{more}"


def _explain(index: int, records: Sequence[ShardRecord], sweep: Sweep, state: SweepState) -> str:
    """Return the reason why a shard's results are missing."""
    own = [record for record in records if record.index == index]
    if not own:
        return "it has not started"
    return "; ".join(_explain_record(record, library_versions(sweep.base), state.on) for record in own[:3])


def _explain_record(record: ShardRecord, versions: Mapping[str, str], on: str) -> str:
    who = visible_name(f"user {record.user or 'unknown'} on {record.host or 'unknown host'}, pid {record.process}")
    if not record.stopped_because:
        age_s = time.time() - record.updated_at.timestamp()
        return (
            f"not finished: {record.tried} of {record.point_count} points tried by {who}, "
            f"last written {age_s / 60:.0f} min ago"
        )
    if record.on != on:
        given = f"--on {visible_name(record.on)}" if record.on else "without --on"
        return f"{who} ran it {given}: collect it {given}, too"
    differing = [
        f"{name} {theirs}, here {versions[name]}"
        for name, theirs in record.versions.items()
        if versions.get(name, theirs) != theirs
    ]
    if differing:
        return visible_name(f"{who} has {', '.join(differing)}: collect with the same versions")
    if record.tried < record.point_count:
        return visible_name(f"{who}: {record.stopped_because}")
    return f"all tried by {who}, but the results are not here: share --outputs, or a cache with --push"
