"""Share the points of a sweep among processes that have an outputs folder or a cache in common: `run --shard 2/4`.

Nobody coordinates the shards. Each enumerates the same points in the same order and tries every n-th measurement
session, so that `collect` can compute the keys of all results from the recipe alone. A shard leaves a record of what
the keys do not contain: its machine, and the points that ended with an error. The results are in the store, as those of
every sweep, so a shard that was killed and starts again computes only what is missing.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.base.text import visible_name
from ndld_flow.machine.host import UNKNOWN_HOST
from ndld_flow.machine.reuse import describe_place
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.shard import ShardFailure, ShardMachine, ShardRecord
from ndld_flow.runner.disk import name_me
from ndld_flow.runner.events import Notice, ShardFinished, SweepStarted
from ndld_flow.runner.keys import HIDDEN_VALUES, describe_key
from ndld_flow.runner.listener import Listener, synchronized
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.request import Placement, Request, Shard
from ndld_flow.runner.run import pushing_results
from ndld_flow.runner.run_folder import recording_failure
from ndld_flow.runner.run_record import library_versions
from ndld_flow.runner.run_state import RunState
from ndld_flow.runner.sweep.run_sweep import open_sweep_state
from ndld_flow.runner.sweep.share_points import ask_shard, count_points, refuse_dependent_points
from ndld_flow.runner.sweep.state import PointRun, SweepState
from ndld_flow.runner.sweep.try_points import try_points
from ndld_flow.runner.sweep.unknown_inputs import refuse_unknown_inputs_of_points
from ndld_flow.step import Reuse
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import write_text_atomically
from ndld_flow.sweep_search.make_search import make_search

_NOT_RESULTS = frozenset({"time", "timeout", "winners"})
"""Keys of `sweep:` that do not change the points: shards, and `collect`, may have other values."""


def digest_sweep(sweep: Sweep, base: RunState) -> str:
    """Return the digest that all shards of a sweep have in common, on machines with any libraries.

    Raises RequestError for a missing data file.
    """

    def parts(step: RecipeStep) -> JsonValue:
        known = describe_key(step, step.reads, base.recipe.file.inputs, base.outputs.store, lambda _: "")
        reads = {name: digest for name, digest in known.reads.items() if name != HIDDEN_VALUES}
        return [step.name, known.model_copy(update={"reads": reads, "libraries": {}}).model_dump(mode="json")]

    return digest_json(
        {
            "name": sweep.base.name,
            "models": {name: model.record.digest for name, model in base.models.items()},
            "steps": [parts(step) for step in sweep.base.steps],
            "gates": list(sweep.base.file.gates),
            "sweep": sweep.section.model_dump(mode="json", exclude=set(_NOT_RESULTS)),
        }
    )


def shard_folder(outputs: Outputs, recipe: str, digest: str) -> Path:
    """Return the folder of the records of a sweep's shards."""
    return outputs.shards / recipe / digest[:16]


def cached_folder(digest: str) -> str:
    """Return the same folder below the URL of a cache."""
    return f"shards/{digest}"


def machine_of_step(step: RecipeStep, state: SweepState) -> ShardMachine:
    """Return this machine, as the key of a step describes it."""
    where, device = step.step.reused_where(), step.step.device
    described = describe_place(where, device) if state.cache is None else state.cache.machine_of(step)
    return ShardMachine(where=where.value, device=device, description=described)


@dataclass
class _Progress:
    """The state of a shard, and its record."""

    shard: Shard
    digest: str
    sweep: Sweep
    base: RunState
    state: SweepState
    point_count: int
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    points: list[PointRun] = field(default_factory=list)
    machines: dict[tuple[str, str], ShardMachine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._note_machines(self.base.recipe.steps)

    @property
    def path(self) -> Path:
        """Return the path of the record. A shard that starts again on another machine has another one."""
        on = (self.state.on,) if self.state.on else ()
        here = [
            visible_name(platform.node()),
            *on,
            *sorted(machine.model_dump_json() for machine in self._first_machines),
        ]
        name = f"{self.shard.index}-of-{self.shard.count}.{digest_json([*here])[:12]}.json"
        return shard_folder(self.state.outputs, self.sweep.base.name, self.digest) / name

    @property
    def _first_machines(self) -> list[ShardMachine]:
        kinds = {(step.step.reused_where().value, step.step.device) for step in self.base.recipe.steps}
        return [machine for kind, machine in self.machines.items() if kind in kinds]

    def note(self, points: Sequence[PointRun]) -> None:
        """Add points that have been tried, and write the record."""
        self.points += points
        for point in points:
            self._note_machines(point.run.recipe.steps)
        self.write()

    def write(self, stopped_because: str = "") -> None:
        """Write the record to the outputs folder, and to the cache if this machine pushes to it. Raises OSError."""
        text = self._describe(stopped_because).to_json()
        write_text_atomically(self.path, text)
        if self.state.cache is not None:
            self.state.cache.push_document(f"{cached_folder(self.digest)}/{self.path.name}", text)

    def _note_machines(self, steps: Sequence[RecipeStep]) -> None:
        for step in steps:
            kind = step.step.reused_where().value, step.step.device
            if step.target or kind in self.machines:
                continue
            if step.step.reused_where() is not Reuse.ANYWHERE:
                self.machines[kind] = machine_of_step(step, self.state)

    def _describe(self, stopped_because: str) -> ShardRecord:
        return ShardRecord(
            sweep=self.digest,
            recipe_name=self.sweep.base.name,
            index=self.shard.index,
            count=self.shard.count,
            user=visible_name(name_me()),
            host=visible_name(platform.node()),
            process=os.getpid(),
            started_at=self.started_at,
            updated_at=datetime.now(UTC),
            tried=len(self.points),
            point_count=self.point_count,
            stopped_because=stopped_because,
            on=self.state.on,
            machines=tuple(self.machines.values()),
            versions=library_versions(self.sweep.base),
            failures=tuple(_describe_failures(self.points)),
            keys=tuple(sorted(self.state.known)),
        )


def _describe_failures(points: Sequence[PointRun]) -> Iterator[ShardFailure]:
    for point in points:
        if point.failure is not None:
            yield ShardFailure(
                number=point.number,
                step=point.failed_step,
                message=point.failure.message,
                exit_code=point.failure.exit_code,
                blames=point.failure.step.partition("#")[0],
            )


def run_shard(sweep: Sweep, request: Request, listener: Listener) -> ShardFinished:
    """Try the points of one shard, and write its record; call it inside `working_on`.

    Raises NdldFlowError for an error of the whole sweep, which leaves the folder of a failed run.
    """
    shard = request.shard
    assert shard is not None
    refuse_dependent_points(sweep, f"--shard {shard}")
    _refuse_options(request)
    start = time.perf_counter()
    outputs, listener = Outputs(request.outputs), synchronized(listener)
    outputs.store.locks.warn_once(lambda text: listener(Notice(text=text, warning=True)))
    with open_sweep_state(sweep, request, outputs, listener) as state:
        base = state.open_run(sweep.base)
        base.command = request.command_in(outputs.sweeps / sweep.base.name / base.id)
        with recording_failure(base):
            search = make_search(sweep.space, sweep.options)
            progress = _Progress(
                shard, digest_sweep(sweep, base), sweep, base, state, count_points(sweep, search, shard)
            )
            _refuse_results_of_no_use(sweep, progress, shard)
            state.check_names = cache(partial(refuse_unknown_inputs_of_points, sweep, state))
            state.note_tried = progress.note
            listener(
                SweepStarted(recipe=sweep.base.name, method=sweep.section.method, point_count=progress.point_count)
            )
            progress.write()
            with pushing_results(state.cache, state.known.values):
                tried = try_points(sweep, search, state, ask_shard(sweep, search, shard))
            complete = len(tried.points) >= progress.point_count or not tried.stopped_because.startswith("the time")
            progress.write("all of its points were tried" if complete else tried.stopped_because)
    return ShardFinished(
        passed=complete,
        exit_code=0 if complete else 4,
        recipe=sweep.base.name,
        shard=str(shard),
        sweep=progress.digest,
        tried=len(tried.points),
        outcomes=dict(Counter(judged.outcome for judged in tried.judgements)),
        stopped_because="" if complete else tried.stopped_because,
        record=str(progress.path),
        wall_s=time.perf_counter() - start,
    )


def _refuse_options(request: Request) -> None:
    if request.apply is not None:
        raise RequestError(
            f"--apply {request.apply}: a shard does not know the best point: use `ndld-flow collect --apply`."
        )
    if request.place != Placement(jobs=request.place.jobs):
        raise RequestError("--ray runs all points on a cluster, and --shard a part of them here: choose one of them.")


def _refuse_results_of_no_use(sweep: Sweep, progress: _Progress, shard: Shard) -> None:
    """Raise RequestError if `collect` could never find a result of this shard."""
    for step in sweep.base.steps:
        if step.step.reused_where() is Reuse.NEVER:
            raise RequestError(
                f"--shard {shard}: step {step.name} ({step.type.name}) is never reused, so its results cannot be "
                "collected."
            )
    targets = progress.state.targets
    sites = [targets.site_of(step) for step in progress.base.recipe.steps] if targets is not None else []
    machines = [site.machine for site in sites if site is not None]
    if any(UNKNOWN_HOST in each for each in (*machines, *(here.description for here in progress.machines.values()))):
        raise RequestError(
            f"--shard {shard}: the host that measures cannot be identified, so its measurements are never "
            "reused, and cannot be collected. Use `reuse_on: same_kind`."
        )


def describe_error(failure: ShardFailure, name: str = "") -> NdldFlowError:
    """Return the error that a shard recorded; `name` is the name of its step in a measurement session."""
    error = NdldFlowError(failure.message, step=(name or failure.blames) if failure.blames else "")
    error.exit_code = failure.exit_code
    return error
