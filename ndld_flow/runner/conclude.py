"""End a run: decide its gates, write its folder, or name the earlier run that has it all."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.machine.description import describe_machine
from ndld_flow.machine.versions import read_version
from ndld_flow.recipe.gates import GateError
from ndld_flow.recipe.recipe import SOURCE, Recipe
from ndld_flow.recipe.resolved import resolve_recipe
from ndld_flow.records.metric import Metric
from ndld_flow.records.outcome import ENDINGS, RunOutcome, judge
from ndld_flow.records.run_record import GateResult, RunFailure, RunRecord, SourceRecord
from ndld_flow.records.step_record import RunStep
from ndld_flow.report.run_folder import read_run_record
from ndld_flow.runner.check_folder import find_run_damage
from ndld_flow.runner.events import RunFinished, Said
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.runs import name_folder
from ndld_flow.runner.state import Request, RunState
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_credentials

LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "polygraphy", "numpy", "protobuf", "hydra-core", "pydantic")


def decide_gates(run: RunState, *, as_far_as_known: bool = False) -> tuple[GateResult, ...]:
    """Decide the gates whose steps are done; the others are not reached: the run failed already.

    Raises RequestError for a gate without a metric, unless only what is known is asked for.
    """
    records = {step.name: step.record for step in run.steps if step.record is not None}
    metrics: dict[str, Metric] = {
        f"{step}.{name}": metric for step, record in records.items() for name, metric in record.metrics.items()
    }
    results: list[GateResult] = []
    for gate in run.recipe.gates:
        if not records.keys() >= {name.partition(".")[0] for name in gate.names}:
            continue
        try:
            results.append(gate.decide(metrics))
        except GateError as error:
            if as_far_as_known:
                continue
            raise RequestError(f"gate {gate.text!r}: {error}") from None
    return tuple(results)


def _identity(run: RunState) -> str:
    """Equal for runs that would do, and say, exactly the same."""
    keys: dict[str, JsonValue] = {step.name: step.record.key if step.record else None for step in run.steps}
    gates: list[JsonValue] = [gate.text for gate in run.recipe.gates]
    models: dict[str, JsonValue] = dict(model_digests(run))
    return digest_json([run.recipe.name, run.recipe.file.description, models, list(keys), keys, gates])


def find_equal_run(run: RunState) -> RunFinished | None:
    """The latest run, when it is the very same and nothing had to be computed for this one."""
    latest = run.outputs.latest(run.recipe.name)
    if latest is None or any(step.reason != Reason.REUSED.text for step in run.steps if step.record):
        return None
    try:
        earlier = read_run_record(latest)
    except RequestError:
        return None
    if earlier.identity != _identity(run):
        return None
    damage = find_run_damage(earlier, latest, run.outputs.store.digests.digest)
    if damage:
        run.listener(Said(text=f"the folder of run {name_folder(latest)} is damaged ({damage}): another is written"))
        return None
    folder = run.outputs.runs / latest.parent.name / latest.name  # as the user wrote the outputs folder
    run.outputs.mend_latest(folder)
    return _conclude(earlier, folder, time.perf_counter() - run.start, nothing_to_do=True)


def finish_run(run: RunState) -> RunFinished:
    """Decide the gates and write the run's folder."""
    from ndld_flow.runner.run_folder import write_run_folder

    record = describe_run(run, run.id, run.command)
    folder = write_run_folder(record, run.outputs, opened=run.opened)
    return _conclude(record, folder, time.perf_counter() - run.start, nothing_to_do=False)


def describe_run(run: RunState, run_id: str, command: tuple[str, ...]) -> RunRecord:
    """Return the record of a run whose steps are done, its gates decided.

    Raises RequestError for a gate without a metric.
    """
    gates = decide_gates(run)
    records = [step.record for step in run.steps]
    undecided = any(record is not None and record.inconclusive for record in records)
    failed = not all(gate.passed for gate in gates) or not all(
        record is not None and (record.passed or record.inconclusive) for record in records
    )
    return describe_ended(run, run_id, command, Ended(run.steps, gates, judge(failed=failed, undecided=undecided)))


@dataclass(frozen=True)
class Ended:
    """What a run came to."""

    steps: tuple[RunStep, ...]
    gates: tuple[GateResult, ...]
    outcome: RunOutcome
    failure: RunFailure | None = None


def describe_ended(run: RunState, run_id: str, command: tuple[str, ...], ended: Ended) -> RunRecord:
    """Return the record of a run that has come to this, at its end or before."""
    models = {name: _describe_model(run, name) for name in run.models}
    return RunRecord(
        id=run_id,
        recipe_name=run.recipe.name,
        recipe=resolve_recipe(run.recipe, model_digests(run)),
        identity=_identity(run),
        command=tuple(map(hide_credentials, command)),
        directory=str(Path.cwd()),
        started_at=run.started_at,
        wall_s=time.perf_counter() - run.start,
        source=models.pop(SOURCE),
        models=models,
        steps=ended.steps,
        gates=ended.gates,
        machine=describe_machine(),
        versions=library_versions(run.recipe),
        passed=ended.outcome == "passed",
        outcome=ended.outcome,
        failure=ended.failure,
    )


def model_digests(run: RunState) -> dict[str, str]:
    """blake3 of each model of the recipe, by the name that steps read it by."""
    return {name: model.record.digest for name, model in run.models.items()}


def _describe_model(run: RunState, name: str) -> SourceRecord:
    found = run.models[name]
    return SourceRecord(
        location=hide_credentials(run.recipe.models[name].source),
        path=str(found.artifact.path),
        artifact=found.record,
    )


def library_versions(recipe: Recipe) -> dict[str, str]:
    """Versions of what shapes a run's results, by library."""
    versions = {library: read_version(library) for library in LIBRARIES}
    for step in recipe.steps:
        versions |= step.step.library_versions()
    return versions


def make_id(started_at: datetime) -> str:
    """UTC time and six hex digits that keep runs of the same second apart."""
    apart = blake3(f"{os.getpid()} {time.time_ns()}".encode()).hexdigest()[:6]
    return f"{started_at:%Y%m%dT%H%M%SZ}-{apart}"


def command_of(request: Request) -> tuple[str, ...]:
    """Return the command as it was typed; of a program that uses the API, one that does the same."""
    if request.command:
        return request.command
    trust = ("--trust",) if request.trust else ()
    return ("ndld-flow", "run", str(request.recipe), *request.overrides, *trust)


def _conclude(run: RunRecord, folder: Path, wall_s: float, *, nothing_to_do: bool) -> RunFinished:
    from ndld_flow.report.verdict import summarize_run

    return RunFinished(
        passed=run.passed,
        exit_code=ENDINGS[run.outcome].exit_code,
        nothing_to_do=nothing_to_do,
        run=f"{run.recipe_name}/{run.id}",
        folder=str(folder),
        report=str(folder / "report.html"),
        verdict=tuple(summarize_run(run, folder)),
        gates=run.gates,
        wall_s=wall_s,
    )
