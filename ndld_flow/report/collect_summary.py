"""Collect the summary of a run: its outcome, the changes and the gates."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.declared_metrics import metric_texts
from ndld_flow.base.quantities import apart, quantity
from ndld_flow.base.text import first_of, short_name, visible_text
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.build import Build
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.measurement import FIXED_SIZES, is_warning
from ndld_flow.records.model_diff import GraphChange, GraphSummary
from ndld_flow.records.outcomes import ENDINGS, is_complete
from ndld_flow.records.placement import Placement
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.records.run_record import GateResult, RunFailure, RunRecord, RunStep, StepRecord
from ndld_flow.report.collect_latency import LatencyOutcome, collect_latency
from ndld_flow.report.search_outcome import SearchOutcome, outcomes_of

_RELATION = re.compile(r"<=|>=|==|!=|<|>")
_SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}


@dataclass(frozen=True)
class GateView:
    """One gate."""

    gate: str
    outcome: str
    """`passed`, `failed`, `inconclusive` or `not reached`."""
    left: str = ""
    """The measured value, with its unit."""
    relation: str = ""
    right: str = ""
    """The limit, with its unit."""
    fraction: float | None = None
    """Measured value over limit, if both are positive."""
    note: str = ""
    """The reason why it is inconclusive, or the origin of the limit."""


def collect_gates(run: RunRecord) -> tuple[GateView, ...]:
    """Return gates in recipe order, then those that the recipe does not list."""
    results = {result.gate: result for result in run.gates}
    asked = run.recipe.get("gates")
    names = [gate for gate in asked if isinstance(gate, str)] if isinstance(asked, list) else []
    return tuple(_view(name, results.get(name)) for name in dict.fromkeys([*names, *results]))


def _view(gate: str, result: GateResult | None) -> GateView:
    name = short_name(gate)
    if result is None:
        return GateView(gate=name, outcome="not reached")
    match = _RELATION.search(gate)
    relation = match.group() if match else ""
    if result.undecided:
        left = quantity(result.left, short_name(result.unit, 20))
        return GateView(gate=name, outcome="inconclusive", left=left, note=short_name(result.undecided, 300))
    comparable = result.left >= 0 and result.right > 0
    values, unit = (result.left, result.right), short_name(result.unit, 20)
    measured = gate[: match.start()].strip() if match else ""
    left, right = apart(values, unit) if unit else metric_texts(measured, *values)
    if gate.rstrip().endswith("%") and not unit and not left.endswith("%"):
        left, right = apart([100 * value for value in values], "%")
    return GateView(
        gate=name,
        outcome="passed" if result.passed else "failed",
        left=left,
        relation=_SIGNS.get(relation, relation),
        right=right,
        fraction=result.left / result.right if comparable else None,
        note=short_name(result.note, 300),
    )


# Last lines of the log of a failed step; the run's folder has more.
_LOG_LINES = 20
# Characters of a reason why a run failed.
_REASON = 300
_NOT_RECORDED = "The end of the run was not recorded: it is still running, or the process was killed."


@dataclass(frozen=True)
class GraphOutcome:
    """The recipe's model and the last model derived from it."""

    final: str
    """Step that produced the last model; without any, the only other model of the recipe, or `source`."""
    before: GraphSummary | None
    """None if no step of the chain recorded a change."""
    after: GraphSummary | None
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class AccuracyOutcome:
    """The most relevant comparison: one that failed, otherwise the last one."""

    accuracy: Accuracy
    cosine: float | None
    """The worst over all outputs; None if not computed."""
    max_abs: float | None
    unjudged: tuple[str, ...]
    """Which of slices, cosine and max abs are known and have neither a bound nor a gate."""
    undecided: str
    """The reason why the bounds of an output cannot be decided; empty if they are."""
    broken: tuple[str, ...]
    """Bounds that do not hold, each with the value, the limit and the place."""
    checks: int
    """Number of comparisons of the run."""
    checks_passed: int


@dataclass(frozen=True)
class EngineOutcome:
    """One engine that was built."""

    step: str
    build: Build
    checked: str
    """`checked by agree`, `not checked` if no step of the run compared its outputs with a model's, or `for inspection`
    if it has marked outputs."""


@dataclass(frozen=True)
class FailureView:
    """The failure that ended a run before all of its steps finished."""

    steps: tuple[str, ...]
    message: str
    logs: tuple[tuple[str, str], ...]
    """(step, the last lines of its log)"""
    traceback: str
    finished: tuple[str, ...]
    """The finished steps."""
    not_reached: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """A run at a glance."""

    run: RunRecord
    failure: FailureView | None
    reasons: tuple[str, ...]
    """Why it did not pass: the first line of the failure, or a sentence for each step and gate that failed, and then
    for each that is undecided, with number and limit."""
    warnings: tuple[str, ...]
    """Circumstances that may make the results useless, such as an input without a size."""
    outcomes: dict[str, int]
    """Outcome of a step -> number of steps."""
    graph: GraphOutcome
    searches: tuple[SearchOutcome, ...]
    """Precision searches, failed ones first."""
    accuracy: AccuracyOutcome | None
    weak: dict[str, tuple[str, ...]]
    """Comparison that passed -> the reasons why it shows little."""
    latency: LatencyOutcome | None
    executed: GraphChange | None
    """The graphs that two releases ran, of the first comparison that has them."""
    engines: tuple[EngineOutcome, ...]
    gates: dict[str, int]
    """Outcome of a gate (`passed`, `failed`, `not reached`) -> number of gates, those of comparisons included."""
    accuracy_unread: bool = False
    """A step compared outputs, but its record cannot be read."""
    latency_unread: bool = False


def collect_summary(documents: RunDocuments) -> Summary:
    """Summarize a run. Documents are preferred over metrics."""
    run, accuracies = documents.run, documents.of(Accuracy)
    graph, gates = _graph_outcome(run), collect_gates(run)
    comparisons = documents.of(Comparison).values()
    outcomes = [gate.outcome for gate in gates] + [gate.outcome for each in comparisons for gate in each.gates]
    compared = (profile for comparison in comparisons for profile in comparison.profiles)
    return Summary(
        run=run,
        warnings=_find_warnings(documents),
        failure=_failure(run),
        reasons=tuple(_reasons(documents, gates)),
        outcomes=dict(Counter(step.outcome for step in run.steps)),
        graph=graph,
        searches=outcomes_of(documents.of(PrecisionSearch)),
        accuracy=_accuracy_outcome(accuracies, [gate.gate for gate in documents.run.gates]),
        weak=_weak(documents),
        latency=collect_latency(documents),
        executed=next((profile.graphs for profile in compared if profile.graphs is not None), None),
        engines=tuple(
            EngineOutcome(short_name(step), build, _checked_by(build, accuracies))
            for step, build in documents.of(Build).items()
        ),
        gates=dict(Counter(outcomes)),
        accuracy_unread=bool(documents.problems[Accuracy]),
        latency_unread=bool(documents.problems[Profile]),
    )


_MOST_FAULTS = 3


def _find_warnings(documents: RunDocuments) -> tuple[str, ...]:
    """Return the notes of measurements, checks and changed models that are warnings, each once."""
    parts = (documents.of(Profile), documents.of(Accuracy), documents.of(Activations))
    changes = (record.change for record in documents.run.records.values() if record.change is not None)
    notes = [note for part in parts for document in part.values() for note in document.notes]
    notes += [note for change in changes for note in change.notes]
    warnings = [*documents.run.doubts, *(note for note in notes if is_warning(note))]
    given = [each for each in documents.of(Accuracy).values() if each.candidate in documents.run.models]
    warnings += [note for accuracy in given for note in accuracy.notes if FIXED_SIZES in note]
    shared = defaultdict[str, list[str]](list)
    for step in documents.run.steps:
        if step.record is not None and step.record.shared_device:
            shared["; ".join(step.record.shared_device[:_MOST_FAULTS])].append(step.name)
    warnings += [f"{', '.join(names)} may not have had the device alone: {why}" for why, names in shared.items()]
    warnings += _warn_of_engines(documents)
    return tuple(dict.fromkeys(short_name(warning, 300) for warning in warnings))


def _failure(run: RunRecord) -> FailureView | None:
    if is_complete(run.outcome):
        return None
    failure = run.failure or RunFailure(message=_NOT_RECORDED, exit_code=ENDINGS[run.outcome].exit_code)
    at_work = tuple(step.name for step in run.steps if step.outcome == "interrupted")
    return FailureView(
        steps=tuple(map(short_name, failure.steps or at_work)),
        message=visible_text(failure.message),
        logs=tuple(
            (short_name(step), visible_text("\n".join(lines[-_LOG_LINES:])))
            for step, lines in failure.log_lines.items()
        ),
        traceback=visible_text(failure.traceback),
        finished=tuple(map(short_name, run.records)),
        not_reached=tuple(short_name(step.name) for step in run.steps if step.outcome == "skipped"),
    )


def _reasons(documents: RunDocuments, gates: Sequence[GateView]) -> Iterator[str]:
    run = documents.run
    if not is_complete(run.outcome):
        message = run.failure.message.strip() if run.failure is not None else _NOT_RECORDED
        yield short_name(message.partition("\n")[0], _REASON)
        return
    for step in run.steps:
        if has_failed_check(step):
            yield f"{short_name(step.name)}: {_why(step, documents)}"
    for gate in gates:
        if gate.outcome == "failed":
            yield f"gate {gate.gate}: measured {gate.left}, limit {gate.right}{f' ({gate.note})' if gate.note else ''}"
    for step in run.steps:
        if step.record is not None and step.record.inconclusive:
            yield f"{short_name(step.name)} is undecided: {_why(step, documents)}"
    yield from (f"gate {gate.gate} is undecided: {gate.note}" for gate in gates if gate.outcome == "inconclusive")


def _why(step: RunStep, documents: RunDocuments) -> str:
    """Return the first bound or the gates that a step missed; its summary for what has neither."""
    assert step.record is not None
    accuracy, comparison = documents.of(Accuracy).get(step.name), documents.of(Comparison).get(step.name)
    if accuracy is not None and (broken := first_of(_broken(accuracy), 1)):
        return broken
    gates = comparison.gates if comparison is not None else ()
    missed = "; ".join(gate.text for gate in gates if gate.outcome != "passed")
    return short_name(missed or step.record.summary, _REASON)


def _broken(accuracy: Accuracy) -> tuple[str, ...]:
    """Return the bounds of a comparison that do not hold, each with the output if there are several."""
    named = [(f"{output.output}: " if len(accuracy.outputs) > 1 else "", output.failed) for output in accuracy.outputs]
    sentences = [*(("", metric.failed) for metric in accuracy.labelled), *named]
    return tuple(short_name(f"{name}{sentence}", _REASON) for name, failed in sentences for sentence in failed)


def has_failed_check(step: RunStep) -> bool:
    """Return whether a check of the step failed, in this run or in the reused result; an error does not count."""
    record = step.record
    return record is not None and not record.passed and not record.inconclusive


def _graph_outcome(run: RunRecord) -> GraphOutcome:
    records = run.records
    models = [name for name, record in records.items() if record.artifact.kind == "onnx"]
    given = [*run.models] if len(run.models) == 1 else []  # another file, which the recipe compares with its model
    final = (models or given or ["source"])[-1]
    chain: list[StepRecord] = []  # the steps from the source to the final model
    name = final
    while name in records and records[name] not in chain:
        chain.insert(0, records[name])
        parents = records[name].parents
        name = parents.get("from") or next(iter(parents.values()), "source")
    changes = [record.change for record in chain if record.change is not None]
    source_bytes = run.source.artifact.size_bytes
    return GraphOutcome(
        final=final,
        before=changes[0].before if changes else None,
        after=changes[-1].after if changes else None,
        bytes_before=source_bytes,
        bytes_after=(chain[-1] if chain else run.models.get(final, run.source)).artifact.size_bytes,
    )


def _accuracy_outcome(accuracies: dict[str, Accuracy], gates: Sequence[str]) -> AccuracyOutcome | None:
    if not accuracies:
        return None
    failed = [name for name, accuracy in accuracies.items() if not accuracy.passed]
    # One with a broken bound comes before one that is undecided.
    step = next((name for name in failed if accuracies[name].failed), failed[0]) if failed else list(accuracies)[-1]
    shown = accuracies[step]
    return AccuracyOutcome(
        accuracy=shown,
        cosine=_worst(shown, "cosine") if shown.tells_by_cosine else None,
        max_abs=_worst(shown, "max_abs"),
        unjudged=tuple(
            shown_as
            for metric, shown_as in (("slice_rms", "slices"), ("cosine", "cosine"), ("max_abs", "max abs"))
            if any(metric in output.metrics for output in shown.outputs)
            and not shown.judges(metric)
            and not any(gate.startswith(f"{step}.{metric} ") for gate in gates)
        ),
        undecided=next((short_name(output.undecided, 200) for output in shown.outputs if output.undecided), ""),
        broken=_broken(shown),
        checks=len(accuracies),
        checks_passed=len(accuracies) - len(failed),
    )


def _weak(documents: RunDocuments) -> dict[str, tuple[str, ...]]:
    """Return step -> why it shows little, of the checks and searches that passed."""
    searches: dict[str, PrecisionSearch | Placement] = {**documents.of(PrecisionSearch), **documents.of(Placement)}
    weak = {step: search.power.weak for step, search in searches.items() if search.power is not None}
    weak |= {step: accuracy.weak for step, accuracy in documents.of(Accuracy).items() if accuracy.passed}
    return {
        short_name(step): tuple(short_name(each, 200) for each in reasons) for step, reasons in weak.items() if reasons
    }


def _worst(accuracy: Accuracy, metric: str) -> float | None:
    output = accuracy.worst_output(metric)
    return None if output is None else output.metrics[metric]


_WEAK = ("FP16", "BF16", "INT8", "FP8")
"""Types that a weakly typed engine may choose by itself."""


def _checked_by(build: Build, accuracies: Mapping[str, Accuracy]) -> str:
    if build.marked_outputs:
        return "for inspection"
    checks = [
        short_name(step)
        for step, accuracy in accuracies.items()
        for ran in (accuracy.execution_candidate, accuracy.execution_reference)
        if ran is not None and ran.built is not None and ran.built.digest == build.engine_digest
    ]
    return f"checked by {' and '.join(dict.fromkeys(checks))}" if checks else "not checked"


def _warn_of_engines(documents: RunDocuments) -> Iterator[str]:
    """Yield a warning for each engine that chooses reduced precisions itself, and whose outputs no step compared."""
    for step, build in documents.of(Build).items():
        chooses = build.typing.startswith("weakly typed") and any(word in build.typing for word in _WEAK)
        if chooses and _checked_by(build, documents.of(Accuracy)) == "not checked":
            yield (
                f"{step} is {build.typing}, and no step compares its outputs with the model's: add `check_accuracy` "
                f"with `runtime: {{backend: {build.backend}, engine: {step}}}`"
            )
