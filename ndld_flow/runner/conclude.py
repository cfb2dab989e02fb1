"""End a run: decide its gates, write its folder, or name the earlier run with the same results."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.base.text import shortened, visible_name, visible_text
from ndld_flow.machine.description import describe_machine
from ndld_flow.machine.versions import read_version
from ndld_flow.recipe.gates import GateError
from ndld_flow.recipe.recipe import SOURCE, Recipe
from ndld_flow.recipe.resolved import resolve_recipe
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import (
    ENDINGS,
    GateResult,
    Outcome,
    RunFailure,
    RunOutcome,
    RunRecord,
    RunStep,
    SourceRecord,
    judge,
    outcome_of_code,
)
from ndld_flow.runner.events import Notice, RunFailed, RunFinished
from ndld_flow.runner.outputs import FOLDER_LEASE, name_folder
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.state import Request, RunState
from ndld_flow.runner.unit_work import skip_step
from ndld_flow.runner.verify import find_run_damage
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_credentials

LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "polygraphy", "numpy", "protobuf", "hydra-core", "pydantic")


def decide_gates(run: RunState, *, as_far_as_known: bool = False) -> tuple[GateResult, ...]:
    """Decide the gates whose steps have finished; the others are not reached.

    Raises RequestError for a gate whose metric is missing, unless `as_far_as_known`.
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
    """Return a digest that is equal for runs with the same work and the same results."""
    keys: dict[str, JsonValue] = {step.name: step.record.key if step.record else None for step in run.steps}
    gates: list[JsonValue] = [gate.text for gate in run.recipe.gates]
    models: dict[str, JsonValue] = dict(model_digests(run))
    return digest_json([run.recipe.name, run.recipe.file.description, models, list(keys), keys, gates])


def find_equal_run(run: RunState) -> RunFinished | None:
    """Return the latest run if it is identical and nothing had to be computed for this one."""
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
        run.listener(Notice(text=f"the folder of run {name_folder(latest)} is damaged ({damage}): writing a new one"))
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
    """Decide the gates of a run whose steps have finished, and return its record.

    Raises RequestError for a gate whose metric is missing.
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
    """The result of a run."""

    steps: tuple[RunStep, ...]
    gates: tuple[GateResult, ...]
    outcome: RunOutcome
    failure: RunFailure | None = None


def describe_ended(run: RunState, run_id: str, command: tuple[str, ...], ended: Ended) -> RunRecord:
    """Return the record of a run with this result, finished or not."""
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
    """Return the blake3 digest of each model of the recipe, by its name in the recipe."""
    return {name: model.record.digest for name, model in run.models.items()}


def _describe_model(run: RunState, name: str) -> SourceRecord:
    found = run.models[name]
    return SourceRecord(
        location=hide_credentials(run.recipe.models[name].source),
        path=str(found.artifact.path),
        artifact=found.record,
    )


def library_versions(recipe: Recipe) -> dict[str, str]:
    """Return the versions of the libraries that a run's results depend on."""
    versions = {library: read_version(library) for library in LIBRARIES}
    for step in recipe.steps:
        versions |= step.step.library_versions()
    return versions


def make_id(started_at: datetime) -> str:
    """Return the UTC time and six hex digits that distinguish runs of the same second."""
    apart = blake3(f"{os.getpid()} {time.time_ns()}".encode()).hexdigest()[:6]
    return f"{started_at:%Y%m%dT%H%M%SZ}-{apart}"


def command_of(request: Request) -> tuple[str, ...]:
    """Return the command as it was typed, or an equivalent one for a program that uses the API."""
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


_LONGEST_MESSAGE = 5_000
_LONGEST_LINE = 500
_LONGEST_TRACEBACK = 20_000


def note_progress(run: RunState) -> None:
    """Write the progress of a run, so that its folder exists whatever happens to this process. Raises OSError."""
    from ndld_flow.runner.run_folder import write_progress

    if not run.opened:
        run.held.enter_context(run.outputs.store.locks.lease(FOLDER_LEASE, run.id))
    write_progress(_describe(run, "running", None), run.outputs, opened=run.opened)
    run.opened = True


@contextlib.contextmanager
def recording_failure(run: RunState) -> Iterator[None]:
    """Write the folder of a run that an error ends, with record, log and report. The error is raised again."""
    with run.held:
        try:
            yield
        except BaseException as error:
            _leave_folder(run, error)
            raise


def _leave_folder(run: RunState, error: BaseException) -> None:
    """Write the folder of a failed run; where that is impossible, report the reason and leave the folder as it is."""
    from ndld_flow.runner.run_folder import write_run_folder

    failure = _describe_failure(run, error)
    outcome = outcome_of_code(failure.exit_code)
    with contextlib.suppress(BrokenPipeError):  # nobody reads the output
        try:
            record = _describe(run, outcome, failure)
            folder = write_run_folder(record, run.outputs, opened=run.opened)
            run.listener(
                RunFailed(
                    outcome=outcome,
                    steps=failure.steps,
                    message=failure.message,
                    exit_code=failure.exit_code,
                    run=f"{record.recipe_name}/{record.id}",
                    folder=str(folder),
                    report=str(folder / "report.html"),
                )
            )
        except BrokenPipeError:
            raise
        except Exception as problem:  # it must not replace the error that ended the run
            place = f"; its files so far are in {run.outputs.runs / run.recipe.name / run.id}" if run.opened else ""
            notice = f"the report of this failure cannot be written ({visible_name(str(problem))}){place}"
            run.listener(Notice(text=notice))


def _describe_failure(run: RunState, error: BaseException) -> RunFailure:
    at_work = [step.name for step in run.at_work]
    named = error.step if isinstance(error, NdldFlowError) else ""
    steps = (named,) if named in at_work else tuple(at_work)
    return RunFailure(
        steps=steps,
        message=shortened(hide_credentials(visible_text(_describe_error(error, steps))), _LONGEST_MESSAGE),
        exit_code=_exit_code(error),
        traceback=_trace(error),
        log_lines={name: tuple(map(log_line, run.logs[name])) for name in steps if run.logs.get(name)},
    )


def _describe_error(error: BaseException, steps: tuple[str, ...]) -> str:
    if _exit_code(error) == ENDINGS["interrupted"].exit_code:
        return f"interrupted while {' and '.join(steps)} was running" if steps else "interrupted between two steps"
    return str(error) if isinstance(error, NdldFlowError) else f"{type(error).__name__}: {error}"


def _exit_code(error: BaseException) -> int:
    if isinstance(error, NdldFlowError):
        return error.exit_code
    # A reader of the output that goes away has ended the run as Ctrl-C does.
    is_bug = isinstance(error, Exception) and not isinstance(error, BrokenPipeError)
    return ENDINGS["bug" if is_bug else "interrupted"].exit_code


def _trace(error: BaseException) -> str:
    if _exit_code(error) != ENDINGS["bug"].exit_code:
        return ""
    text = hide_credentials(visible_text("".join(traceback.format_exception(error))))
    return shortened(text, _LONGEST_TRACEBACK)


def log_line(line: str) -> str:
    """Return a line of a log in the form of a record."""
    return shortened(hide_credentials(visible_name(visible_text(line))), _LONGEST_LINE)


def _describe(run: RunState, outcome: RunOutcome, failure: RunFailure | None) -> RunRecord:
    gates = decide_gates(run, as_far_as_known=True)
    steps = tuple(_steps(run, outcome, failure.steps if failure is not None else ()))
    return describe_ended(run, run.id, run.command, Ended(steps, gates, outcome, failure))


def _steps(run: RunState, outcome: RunOutcome, failed: tuple[str, ...]) -> Iterator[RunStep]:
    """Yield every step of the recipe: finished, running, and not reached."""
    at_work = {step.name for step in run.at_work}
    state: Outcome = "interrupted" if outcome in ("running", "interrupted") else "failed"
    reason = f"{' and '.join(failed)} failed" if state == "failed" and failed else "not reached"
    for step in run.recipe.steps:
        if step.name in run.done:
            yield run.done[step.name]
        elif step.name in at_work and (state == "interrupted" or step.name in failed):
            yield RunStep(name=step.name, step=step.type.name, outcome=state, reason=state, wall_s=0.0)
        else:
            yield skip_step(step, reason)
