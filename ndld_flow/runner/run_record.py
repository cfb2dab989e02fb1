"""Build the record of a run, finished or not: its gates, its steps, its outcome, and the error that ended it."""

from __future__ import annotations

import platform
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError, RecipeError, RequestError, is_interruption
from ndld_flow.base.quantities import counted, quantity
from ndld_flow.base.text import shortened, visible_name, visible_text
from ndld_flow.base.users import name_me
from ndld_flow.execution.events import Notice, StepFinished, StepLogged, describe_progress
from ndld_flow.execution.listener import Listener
from ndld_flow.machine.host import describe_machine
from ndld_flow.machine.versions import read_version
from ndld_flow.recipe.calibrated_checks import doubt_checks
from ndld_flow.recipe.gates import HISTORY, Gate, GateError
from ndld_flow.recipe.recipe import SOURCE, Recipe, RecipeStep
from ndld_flow.records.measurement import Metric
from ndld_flow.records.outcomes import ENDINGS, Outcome, RunOutcome, judge
from ndld_flow.records.run_folder import find_file
from ndld_flow.records.run_record import (
    GateResult,
    RunFailure,
    RunRecord,
    RunStep,
    SourceRecord,
    StepRecord,
    metrics_of,
)
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.run_state import RunState
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.execution.execute import Work
    from ndld_flow.records.history import MetricSeries

LAST_LINES = 40
"""Number of lines of a failed step's log that are recorded."""


def gather_work(run: RunState, decision: Decision, name: str = "") -> Work:
    """Return the work of a step; all its inputs exist. `name` replaces the step's in events, its log and errors."""
    from ndld_flow.execution.execute import Work

    step, parts = decision.step, decision.parts
    shown = name or step.name
    assert parts is not None  # all inputs of a step are computed before the step
    run.planner.store.locks.use([decision.key])

    def progress(done: int, total: int, what: str) -> None:
        run.listener(describe_progress(shown, done, total, hide_credentials(what)))

    last_lines = run.logs[step.name] = deque[str](maxlen=LAST_LINES)

    def logged(line: str) -> None:
        last_lines.append(line)
        run.listener(StepLogged(name=shown, text=hide_credentials(visible_text(line))))

    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    inputs = run.recipe.file.inputs if step.inputs is None else step.inputs
    return Work(replace(step, name=shown), parts, artifacts, inputs, progress, run.recipe.name, logged)


def set_damaged_aside(step: str, key: str, store: Store, listener: Listener) -> str:
    """Set a damaged result of a step aside before it is recomputed, and report that; return a short description."""
    damaged = store.clear(key)
    if damaged is None:
        return ""
    listener(
        Notice(
            text=f"the result of step {step} was damaged ({damaged.damage}); it was moved to {damaged.place} "
            "and is recomputed",
            warning=True,
        )
    )
    return f"{damaged.damage}; set aside as {damaged.place.name}"


def clear_damage(run: RunState, decisions: Sequence[Decision]) -> list[Decision]:
    """Set the damaged results of these decisions aside, and add that to their details. Their keys must be locked."""
    cleared = []
    for decision in decisions:
        detail = set_damaged_aside(decision.step.name, decision.key, run.planner.store, run.listener)
        cleared.append(replace(decision, detail=detail) if detail else decision)
    return cleared


def place_records(
    run: RunState, decisions: Sequence[Decision], records: Sequence[StepRecord], outcome: Outcome, wall_s: float
) -> list[RunStep]:
    """Make artifacts readable for later steps; return the finished steps, each with a duration of `wall_s`."""
    placed = []
    for decision, record in zip(decisions, records, strict=True):
        step = decision.step
        kind = step.type.cls.kinds()[1]
        folder = run.planner.store.object_folder(record.artifact.digest)
        run.artifacts[step.name] = kind(folder / kind.main, step.name, record.artifact.digest)
        placed.append(
            RunStep(
                name=step.name,
                step=step.type.name,
                outcome=outcome if record.passed else "inconclusive" if record.inconclusive else "failed",
                reason=decision.reason.text,
                detail=decision.detail,
                wall_s=wall_s,
                record=record,
                target=run.target_of(step) if outcome == "done" else step.target,
            )
        )
    return placed


def skip_step(step: RecipeStep, reason: str) -> RunStep:
    """Return the entry of a step that does not run."""
    return RunStep(
        name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0, target=step.target
    )


def describe_end(step: RunStep) -> StepFinished:
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


LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "polygraphy", "numpy", "protobuf", "hydra-core", "pydantic")
_LONGEST_MESSAGE = 5_000
_LONGEST_LINE = 500
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True)
class Ended:
    """The result of a run."""

    steps: tuple[RunStep, ...]
    gates: tuple[GateResult, ...]
    outcome: RunOutcome
    failure: RunFailure | None = None


def describe_run(run: RunState) -> RunRecord:
    """Decide the gates of a run whose steps have finished, and return its record.

    Raises RequestError for a gate whose metric is missing.
    """
    gates = decide_gates(run)
    records = [step.record for step in run.steps]
    undecided = any(record is not None and record.inconclusive for record in records)
    undecided = undecided or any(gate.undecided for gate in gates)
    failed = not all(gate.passed or gate.undecided for gate in gates) or not all(
        record is not None and (record.passed or record.inconclusive) for record in records
    )
    return describe_ended(run, Ended(run.steps, gates, judge(failed=failed, undecided=undecided)))


def describe_unfinished(run: RunState, outcome: RunOutcome, failure: RunFailure | None = None) -> RunRecord:
    """Return the record of a run that is running, or that an error has ended."""
    gates = decide_gates(run, as_far_as_known=True)
    steps = tuple(_all_steps(run, outcome, failure.steps if failure is not None else ()))
    return describe_ended(run, Ended(steps, gates, outcome, failure))


def describe_ended(run: RunState, ended: Ended) -> RunRecord:
    """Return the record of a run with this result, finished or not."""
    models = {
        name: SourceRecord(
            location=hide_credentials(run.recipe.models[name].source),
            path=str(model.artifact.path),
            artifact=model.record,
        )
        for name, model in run.models.items()
    }
    return RunRecord(
        id=run.id,
        recipe_name=run.recipe.name,
        recipe=run.resolved,
        identity=identify_run(run),
        command=tuple(map(hide_credentials, run.command)),
        directory=str(Path.cwd()),
        user=visible_name(name_me()),
        host=visible_name(platform.node()),
        commit=run.commit,
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
        doubts=tuple(doubt_checks(run.recipe).values()),
    )


def decide_gates(run: RunState, *, as_far_as_known: bool = False) -> tuple[GateResult, ...]:
    """Decide the gates whose steps have finished; the others are not reached.

    Raises RequestError for a gate whose metric is missing, unless `as_far_as_known`.
    """
    finished = {step.name for step in run.steps if step.record is not None}
    metrics = metrics_of(run.steps)
    results: list[GateResult] = []
    for gate in run.recipe.gates:
        if not finished >= {name.partition(".")[0] for name in gate.names}:
            continue
        if gate.history and as_far_as_known:
            continue  # it is decided once, at the end
        try:
            if gate.history:
                result = decide_by_history(gate, run.outputs, run.recipe.name, run.steps, metrics)
            else:
                result = gate.decide(metrics)
            results.append(_without_undecided_steps(result, gate, run))
        except GateError as error:
            if as_far_as_known:
                continue
            raise RequestError(f"gate {gate.text!r}: {error}") from None
    return tuple(results)


def _without_undecided_steps(result: GateResult, gate: Gate, run: RunState) -> GateResult:
    """Return a gate that holds by the metrics of an inconclusive step as undecided: they are those of a part."""
    undecided = [step.name for step in run.steps if step.record is not None and step.record.inconclusive]
    named = [name for name in undecided if any(metric.startswith(f"{name}.") for metric in gate.names)]
    if not result.passed or not named:
        return result
    return result.model_copy(update={"passed": False, "undecided": f"{' and '.join(named)} could not be decided"})


def identify_run(run: RunState) -> str:
    """Return a digest that is equal for runs with the same work and the same results."""
    keys: dict[str, JsonValue] = {step.name: step.record.key if step.record else None for step in run.steps}
    gates: list[JsonValue] = [gate.text for gate in run.recipe.gates]
    models: dict[str, JsonValue] = dict(model_digests(run))
    return digest_json([run.recipe.name, run.recipe.file.description, models, list(keys), keys, gates])


def find_artifacts(run: RunState, folder: Path) -> dict[str, str]:
    """Return the main file of each finished step's artifact, in the run's folder or behind the link there."""
    mains = {step.name: step.type.cls.kinds()[1].main for step in run.recipe.steps}
    return {
        step.name: str(find_file(folder / step.name, mains[step.name])) for step in run.steps if step.record is not None
    }


def model_digests(run: RunState) -> dict[str, str]:
    """Return the blake3 digest of each model of the recipe, by its name in the recipe."""
    return {name: model.record.digest for name, model in run.models.items()}


def library_versions(recipe: Recipe) -> dict[str, str]:
    """Return the versions of the libraries on which a run's results depend."""
    versions = {library: read_version(library) for library in LIBRARIES}
    for step in recipe.steps:
        versions |= step.step.library_versions()
    return versions


def describe_failure(run: RunState, error: BaseException) -> RunFailure:
    """Return the error that ended a run, with the steps that it concerns and the last lines of their logs."""
    at_work = [step.name for step in run.at_work]
    named = error.step if isinstance(error, NdldFlowError) else ""
    is_recipe = isinstance(error, RecipeError)  # found before the first of them ran
    steps = (named,) if named in at_work else () if is_recipe else tuple(at_work)
    exit_code = _exit_code(error)
    message = str(error) if isinstance(error, NdldFlowError) else f"{type(error).__name__}: {error}"
    if exit_code == ENDINGS["interrupted"].exit_code:
        message = f"interrupted while {' and '.join(steps)} was running" if steps else "interrupted between two steps"
    trace = "".join(traceback.format_exception(error)) if exit_code == ENDINGS["bug"].exit_code else ""
    return RunFailure(
        steps=steps,
        message=shortened(hide_credentials(visible_text(message)), _LONGEST_MESSAGE),
        exit_code=exit_code,
        traceback=shortened(hide_credentials(visible_text(trace)), _LONGEST_TRACEBACK),
        log_lines={name: tuple(map(log_line, run.logs[name])) for name in steps if run.logs.get(name)},
    )


def _exit_code(error: BaseException) -> int:
    if isinstance(error, NdldFlowError):
        return error.exit_code
    # A closed output pipe has ended the run like Ctrl-C.
    is_bug = isinstance(error, Exception) and not isinstance(error, BrokenPipeError) and not is_interruption(error)
    return ENDINGS["bug" if is_bug else "interrupted"].exit_code


def log_line(line: str) -> str:
    """Return a line of a log as records store it."""
    return shortened(hide_credentials(visible_name(visible_text(line))), _LONGEST_LINE)


def _all_steps(run: RunState, outcome: RunOutcome, failed: tuple[str, ...]) -> Iterator[RunStep]:
    """Yield every step of the recipe: finished, running, and not reached."""
    at_work = {step.name for step in run.at_work}
    state: Outcome = "interrupted" if outcome in ("running", "interrupted") else "failed"
    reason = f"{' and '.join(failed)} failed" if state == "failed" and failed else "not reached"
    for step in run.recipe.steps:
        if step.name in run.done:
            yield run.done[step.name]
        elif step.name in at_work and (state == "interrupted" or step.name in failed):
            yield RunStep(
                name=step.name, step=step.type.name, outcome=state, reason=state, wall_s=0.0, target=step.target
            )
        else:
            yield skip_step(step, reason)


def decide_by_history(
    gate: Gate, outputs: Outputs, recipe: str, steps: Sequence[RunStep], metrics: Mapping[str, Metric]
) -> GateResult:
    """Return the result of a gate that names levels of the history.

    They are those of earlier measurements that may be compared with this run's: on the same kind of machine, by the
    same runtime, with the same inputs. The measurement itself, which earlier runs may show too, is left out. Without a
    good one the gate is undecided: a gate that compares with nothing must not pass. Raises GateError for a missing
    metric.
    """
    name = gate.names[0]
    known = {**metrics, **dict.fromkeys(HISTORY, metrics.get(name, Metric(value=0.0)))}
    measured = gate.decide(known).left if gate.left.names else gate.decide(known).right
    series = _earlier(outputs, recipe, steps, name)
    levels = {"history.best": series.best, "history.last": series.good_level} if series is not None else {}
    missing = [level for level in gate.history if levels.get(level) is None]
    if series is None or missing:
        if series is None:
            absent = "no earlier run has a measurement on this kind of machine with this runtime and these inputs"
        else:
            earlier = counted(len(series.points), "earlier measurement")
            absent = f"none of {earlier} is a baseline ({series.points[-1].doubt})"
        return GateResult(
            gate=gate.text,
            passed=False,
            left=measured,
            right=0.0,
            unit=metrics[name].unit,
            undecided=f"{absent}; the next run is compared with this one",
        )
    unit = metrics[name].unit
    values = {level: Metric(value=value, unit=unit) for level, value in levels.items() if value is not None}
    result = gate.decide({**metrics, **values})
    used = (f"{level} is {quantity(values[level].value, unit)}" for level in dict.fromkeys(gate.history))
    good = sum(not point.doubt for point in series.points)
    note = f"{', '.join(used)}, from {counted(good, 'measurement')} until {series.points[-1].run}"
    return result.model_copy(update={"note": note})


def _earlier(outputs: Outputs, recipe: str, steps: Sequence[RunStep], metric: str) -> MetricSeries | None:
    from ndld_flow.history.series import read_measurements
    from ndld_flow.runs.metric_history import read_earlier

    step = next(step for step in steps if step.name == metric.partition(".")[0])
    alone = step.model_dump(mode="json", include={"name", "record"})
    tree = {"steps": [alone], "gates": [], "passed": True}
    name = metric.partition(".")[2]
    own = next(each for each in read_measurements(tree) if name in each.what.units)
    return read_earlier(outputs, recipe, metric, own)
