"""Run a recipe: a short loop over its steps."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.artifacts.digest import digest_json
from ndld_flow.artifacts.kinds import Artifact
from ndld_flow.errors import RequestError
from ndld_flow.machine import describe_machine
from ndld_flow.recipe.gates import GateError
from ndld_flow.recipe.load import load_recipe
from ndld_flow.recipe.recipe import SOURCE, Recipe, RecipeStep
from ndld_flow.recipe.resolved import resolve_recipe
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.records.metric import Metric
from ndld_flow.records.run_record import GateResult, RunRecord, SourceRecord
from ndld_flow.records.step_record import RunStep, StepRecord
from ndld_flow.runner.events import (
    Listener,
    RunFinished,
    RunStarted,
    Said,
    StepFinished,
    StepProgressed,
    StepStarted,
    StepWaits,
    ignore,
)
from ndld_flow.runner.execute import Work, execute_step
from ndld_flow.runner.plan import Decision, Planner, plan_steps, previous_records
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.runs import Outputs, read_run
from ndld_flow.versions import read_version

LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "polygraphy", "numpy", "protobuf", "hydra-core", "pydantic")


@dataclass(frozen=True)
class Request:
    """What a person asks of `run` and `plan`."""

    recipe: Path
    overrides: tuple[str, ...] = ()
    outputs: Path = Path("outputs")
    force: tuple[str, ...] = ()
    """Steps to run though nothing changed; `all` for every one."""
    trust: bool = False
    """Allow the code a recipe names in `steps_from:`."""
    command: tuple[str, ...] = ()
    """As it was typed, for the run's record."""


@dataclass
class _Run:
    """A run while it goes on."""

    recipe: Recipe
    outputs: Outputs
    planner: Planner
    model: FoundModel
    listener: Listener
    started_at: datetime
    start: float
    """`time.perf_counter()` at the start."""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    steps: list[RunStep] = field(default_factory=list)

    @property
    def digests(self) -> Mapping[str, str | None]:
        return {name: artifact.digest for name, artifact in self.artifacts.items()}


def plan_recipe(request: Request, listener: Listener = ignore) -> list[Decision]:
    """Say for each step whether it would run, and why. Nothing is computed, but the model is fetched if it must be."""
    run = _open(request, listener)
    return plan_steps(run.planner, run.model.record.digest)


def run_recipe(request: Request, listener: Listener = ignore) -> RunFinished:
    """Run a recipe and write its run folder and report.

    Where everything is there already, nothing is done and the earlier run is named. Raises NdldFlowError as errors.py
    tells; what was finished before stays in the store.
    """
    Outputs(request.outputs).prepare()
    with Outputs(request.outputs).store.working():
        run = _open(request, listener)
        listener(RunStarted(recipe=run.recipe.name, steps=tuple(step.name for step in run.recipe.steps)))
        _do_steps(run)
        finished = _find_equal(run) or _finish(run, request)
    listener(finished)
    return finished


def _open(request: Request, listener: Listener) -> _Run:
    started_at, start = datetime.now(UTC), time.perf_counter()
    outputs = Outputs(request.outputs)
    outputs.prepare()
    outputs.store.sweep_building()
    recipe = load_recipe(request.recipe, request.overrides, trust=request.trust, store=outputs.store)
    names = [step.name for step in recipe.steps]
    unknown = [name for name in request.force if name not in (*names, "all")]
    if unknown:
        raise RequestError(f"--force {unknown[0]}: there is no such step; there are: {', '.join(names)}, and `all`.")
    forced = frozenset(names if "all" in request.force else request.force)
    model = find_model(recipe.model, outputs.store, lambda text: listener(Said(text=text)))
    planner = Planner(recipe, outputs.store, _previous(outputs, recipe), forced)
    return _Run(recipe, outputs, planner, model, listener, started_at, start, {SOURCE: model.artifact})


def _previous(outputs: Outputs, recipe: Recipe) -> dict[str, StepRecord]:
    latest = outputs.latest(recipe.name)
    try:
        return previous_records(read_run(latest) if latest is not None else None)
    except RequestError:
        return {}  # a run of another version explains nothing; it is no reason to stop


def _do_steps(run: _Run) -> None:
    stopped_by = ""
    for step in run.recipe.steps:
        done = _skip(step, stopped_by) if stopped_by else _do_step(run, step)
        run.steps.append(done)
        run.listener(_tell(done))
        if done.outcome == "failed" and step.step.stops_run:
            stopped_by = step.name


def _do_step(run: _Run, step: RecipeStep) -> RunStep:
    start = time.perf_counter()
    decision = run.planner.decide(step, run.digests)
    if decision.reused:
        return _reuse(run, decision, start)
    if run.planner.store.is_held(decision.key):
        run.listener(StepWaits(name=step.name, waits_for="another run computes this step"))
    with run.planner.store.hold(decision.key):
        again = run.planner.decide(step, run.digests)  # another run may have made it while this one waited
        if again.reused:
            return _reuse(run, again, start)
        run.listener(
            StepStarted(name=step.name, step=step.type.name, reason=decision.reason.text, detail=decision.detail)
        )
        record = execute_step(_gather(run, decision), run.planner.store)
    return _place(run, decision, record, "done", start)


def _gather(run: _Run, decision: Decision) -> Work:
    step, parts = decision.step, decision.parts
    assert parts is not None  # everything a step reads is made before it

    def progress(done: int, total: int, what: str) -> None:
        run.listener(StepProgressed(name=step.name, done=done, total=total, what=what))

    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    return Work(step, parts, artifacts, run.recipe.file.inputs, progress)


def _reuse(run: _Run, decision: Decision, start: float) -> RunStep:
    assert decision.record is not None  # that is what reused means
    return _place(run, decision, decision.record, "reused", start)


def _place(run: _Run, decision: Decision, record: StepRecord, how: str, start: float) -> RunStep:
    """Make a step's artifact readable for later steps, and note how it came to be."""
    step = decision.step
    kind = step.type.cls.kinds()[1]
    folder = run.planner.store.object_folder(record.artifact.digest)
    run.artifacts[step.name] = kind(folder / kind.main, step.name, record.artifact.digest)
    outcome = ("reused" if how == "reused" else "done") if record.passed else "failed"
    return RunStep.model_validate(
        {
            "name": step.name,
            "step": step.type.name,
            "outcome": outcome,
            "reason": decision.reason.text,
            "detail": decision.detail,
            "wall_s": time.perf_counter() - start,
            "record": record,
        }
    )


def _skip(step: RecipeStep, stopped_by: str) -> RunStep:
    reason = f"{stopped_by} said no"
    return RunStep(name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0)


def _tell(step: RunStep) -> StepFinished:
    return StepFinished(
        name=step.name,
        step=step.step,
        outcome=step.outcome,
        reason=step.reason,
        detail=step.detail,
        summary=step.record.summary if step.record else "",
        wall_s=step.wall_s,
        metrics=step.record.metrics if step.record else {},
    )


def _decide_gates(run: _Run) -> tuple[GateResult, ...]:
    metrics: dict[str, Metric] = {}
    skipped = {step.name for step in run.steps if step.record is None}
    for step in run.steps:
        if step.record is not None:
            metrics |= {f"{step.name}.{name}": metric for name, metric in step.record.metrics.items()}
    results = []
    for gate in run.recipe.gates:
        if {name.partition(".")[0] for name in gate.names} & skipped:
            continue  # the run failed already, and there is nothing to compare
        try:
            results.append(gate.decide(metrics))
        except GateError as error:
            raise RequestError(f"gate {gate.text!r}: {error}") from None
    return tuple(results)


def _identity(run: _Run) -> str:
    """Equal for runs that would do, and say, exactly the same."""
    keys: dict[str, JsonValue] = {step.name: step.record.key if step.record else None for step in run.steps}
    gates: list[JsonValue] = [gate.text for gate in run.recipe.gates]
    heads = [run.recipe.name, run.recipe.file.description, run.model.record.digest]
    return digest_json([*heads, list(keys), keys, gates])


def _find_equal(run: _Run) -> RunFinished | None:
    """The latest run, when it is the very same and nothing had to be computed for this one."""
    latest = run.outputs.latest(run.recipe.name)
    if latest is None or any(step.reason != Reason.REUSED.text for step in run.steps if step.record):
        return None
    try:
        earlier = read_run(latest)
    except RequestError:
        return None
    if earlier.identity != _identity(run):
        return None
    return _conclude(earlier, latest, time.perf_counter() - run.start, nothing_to_do=True)


def _finish(run: _Run, request: Request) -> RunFinished:
    from ndld_flow.runner.run_folder import write_run_folder

    gates = _decide_gates(run)
    record = RunRecord(
        id=_make_id(run.started_at),
        recipe_name=run.recipe.name,
        recipe=resolve_recipe(run.recipe, run.model.record.digest),
        identity=_identity(run),
        command=request.command or _default_command(request),
        directory=str(Path.cwd()),
        started_at=run.started_at,
        wall_s=time.perf_counter() - run.start,
        source=SourceRecord(
            location=run.recipe.model.source, path=str(run.model.artifact.path), artifact=run.model.record
        ),
        steps=tuple(run.steps),
        gates=gates,
        machine=describe_machine(),
        versions={library: read_version(library) for library in _libraries(run.recipe)},
        passed=all(gate.passed for gate in gates) and all(s.record and s.record.passed for s in run.steps),
    )
    folder = write_run_folder(record, run.outputs)
    return _conclude(record, folder, time.perf_counter() - run.start, nothing_to_do=False)


def _libraries(recipe: Recipe) -> Sequence[str]:
    return list(dict.fromkeys([*LIBRARIES, *(name for step in recipe.steps for name in step.type.cls.libraries)]))


def _make_id(started_at: datetime) -> str:
    """UTC time and six hex digits that keep runs of the same second apart."""
    apart = blake3(f"{os.getpid()} {time.time_ns()}".encode()).hexdigest()[:6]
    return f"{started_at:%Y%m%dT%H%M%SZ}-{apart}"


def _default_command(request: Request) -> tuple[str, ...]:
    trust = ("--trust",) if request.trust else ()
    return ("ndld-flow", "run", str(request.recipe), *request.overrides, *trust)


def _conclude(run: RunRecord, folder: Path, wall_s: float, *, nothing_to_do: bool) -> RunFinished:
    from ndld_flow.report.verdict import summarize_run

    return RunFinished(
        passed=run.passed,
        nothing_to_do=nothing_to_do,
        run=f"{run.recipe_name}/{run.id}",
        folder=str(folder),
        report=str(folder / "report.html"),
        verdict=tuple(summarize_run(run, folder)),
        gates=run.gates,
        wall_s=wall_s,
    )
