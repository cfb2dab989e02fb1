"""The failure of a run: what must stay the same while the model becomes smaller."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.execution.events import Event, RunFailed
from ndld_flow.execution.request import Request
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.document import Record, read_document
from ndld_flow.records.inspection import Findings
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import GateResult, RunRecord, RunStep
from ndld_flow.reduce.part import NodeFacts
from ndld_flow.runner.run import run_recipe
from ndld_flow.runs.outputs import Outputs
from ndld_flow.sweep.run_request import open_single

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_SPECIFIC = re.compile(r"\S*[\d/\\]\S*")
"""Words with numbers and paths: sizes, names of nodes, addresses."""
_WORD = re.compile(r"[^\s'\"`(),;:]+")
_NAME = re.compile(r"[^\s'\"`(),;]+")
_NONFINITE = "NaN or infin"
_SERIOUS_SHARE = 0.5


class Failure(Record):
    """A failure of a run, with the evidence for its cause as far as records show it."""

    kind: str
    """`gate`, `check` (of a step), `error`, `bug` or `killed`."""
    where: str
    """The gate, or the name of the step."""
    words: str = ""
    """Message of an error, or summary of a check, without names, numbers and paths."""
    cause: tuple[str, ...] = ()
    """What must be equal: classes of the error and of its causes, the signal and the function of a crash, the side of a
    gate that is larger, whether values were not finite."""
    criteria: tuple[str, ...] = ()
    """Bounds and findings that failed; one of them must fail again."""
    outputs: tuple[str, ...] = ()
    """Outputs that failed."""
    excess: float | None = None
    """Distance of a gate's sides relative to its bound; infinite if one is not a number."""
    message: str = ""
    """The message as it was printed."""
    suspects: dict[str, float] = {}
    """Node or tensor -> the evidence that the failure begins there: 1 or more is strong."""

    def same_as(self, other: Failure, *, strict: bool = False) -> bool:
        """Return whether another run failed in this way; `strict`: also at the same outputs, by all the criteria that
        failed, and by at least half of the distance."""
        if (self.kind, self.where, self.words) != (other.kind, other.where, other.words):
            return False
        # An error that another process passes on may have lost its causes.
        count = None if self.kind != "error" else min(len(self.cause), len(other.cause))
        if self.cause[:count] != other.cause[:count]:
            return False
        if self.criteria and not set(self.criteria) & set(other.criteria):
            return False
        if not strict:
            return True
        return (
            set(self.criteria) == set(other.criteria)
            and (not self.outputs or bool(set(self.outputs) & set(other.outputs)))
            and _is_as_far(self.excess, other.excess)
        )

    def resembles(self, other: Failure) -> bool:
        """Return whether two failures are of the same step and kind. A process that ends is recorded differently by the
        one that started it, so for a crash only the step is compared."""
        if self.kind == "killed" or other.kind == "killed":
            return bool(set(self.where.split(" and ")) & set(other.where.split(" and ")))
        return (self.kind, self.where) == (other.kind, other.where)

    def __str__(self) -> str:
        return {
            "gate": f"the gate `{self.where}` fails",
            "check": f"the check of step {self.where} fails",
            "killed": f"step {self.where} ends its process: {self.message}",
        }.get(self.kind, f"step {self.where} fails: {self.message}")


def _is_as_far(excess: float | None, other: float | None) -> bool:
    if excess is None or other is None:
        return excess is other
    return other >= _SERIOUS_SHARE * excess if math.isfinite(excess) else not math.isfinite(other)


def words_of(message: str, names: Collection[str] = ()) -> str:
    """Return a message without quoted text, numbers, paths and the given names."""
    plain = _SPECIFIC.sub("#", _QUOTED.sub("*", message))
    return " ".join(_WORD.sub(lambda found: "*" if found[0].rstrip(".") in names else found[0], plain).split())


def failure_of_error(kind: str, where: str, error: BaseException, names: Collection[str] = ()) -> Failure:
    """Return the failure of a step that ended with an error; `names` are those of the model's nodes and tensors."""
    message = error.message if isinstance(error, NdldFlowError) else f"{type(error).__name__}: {error}"
    classes, cause = [type(error).__name__], error.__cause__
    while cause is not None:
        if type(cause).__name__ != classes[-1]:  # an error that names its step is raised from one that does not
            classes.append(type(cause).__name__)
        cause = cause.__cause__
    if kind == "bug":
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code if trace is not None else None
        classes.append(f"{Path(code.co_filename).name} in {code.co_name}" if code is not None else "")
    return Failure(kind=kind, where=where, words=words_of(message, names), cause=tuple(classes), message=message)


_OUTCRY = re.compile(r"terminate called|what\(\):|[Aa]ssert|[Ff]atal|abort", re.MULTILINE)


def failure_of_end(where: str, how: str, frame: str, output: str) -> Failure:
    """Return the failure of a step whose process ended: by which signal, in which function, with which last words."""
    lines = [line.strip() for line in output.splitlines() if _OUTCRY.search(line)]
    words = " ".join(words_of(line) for line in lines[-2:])
    message = " / ".join([how, *lines[-2:]])
    return Failure(kind="killed", where=where, words=words, cause=(how, frame), message=message)


def failures_of_record(record: RunRecord) -> tuple[Failure, ...]:
    """Return the failures that the record of a run shows, the first one first; of a step that ended with an error only
    its place."""
    if record.failure is not None:
        where = " and ".join(record.failure.steps)
        return (
            Failure(kind=record.outcome, where=where, message=record.failure.message.removeprefix(f"step {where}: ")),
        )
    return (*(Failure(kind="check", where=step.name) for step in _failed(record.steps)), *failed_gates(record.gates))


def _failed(steps: Sequence[RunStep]) -> list[RunStep]:
    """Return the steps that failed; undecided ones did not."""
    return [step for step in steps if step.record and not step.record.passed and not step.record.inconclusive]


def read_failures(
    steps: Sequence[RunStep], gates: Sequence[GateResult], documents: Mapping[str, Path], names: Collection[str]
) -> Iterator[Failure]:
    """Yield the failures of a run without an error, with the evidence of the steps' results.

    `documents` has the main file of each result; `names` are those of the model's nodes and tensors.
    """
    for step in _failed(steps):
        assert step.record is not None
        known = _READERS.get(step.record.artifact.kind)
        plain = {"words": words_of(step.record.summary, names)}
        failure = Failure(kind="check", where=step.name, message=step.record.summary)
        yield failure.model_copy(update=plain if known is None else known(documents[step.name]))
    suspects: dict[str, float] = {}
    for step in steps:
        with contextlib.suppress(NdldFlowError):
            # The result of a step makes tensors and nodes suspect, whether it passed or not.
            known = _READERS.get(step.record.artifact.kind) if step.record is not None else None
            found = known(documents[step.name]).get("suspects", {}) if known is not None else {}
            assert isinstance(found, dict)
            suspects |= found
    for failure in failed_gates(gates):
        yield failure.model_copy(update={"suspects": suspects})


def read_accuracy_evidence(document: Accuracy) -> dict[str, object]:
    """Return the fields of the failure of a check of accuracy: whether values were finite, criteria, outputs."""
    failed = {each.output: each.failed for each in document.outputs if each.failed}
    sentences = [sentence for group in failed.values() for sentence in group]
    sentences += [f"{each.name} {sentence}" for each in document.labelled for sentence in each.failed]
    metrics = {metric for each in document.outputs for metric in each.metrics}
    first = [sentence.partition(" ")[0] for sentence in sentences]
    criteria = {
        word if word in metrics else words_of(sentence) for word, sentence in zip(first, sentences, strict=True)
    }
    side = sorted({words_of(sentence) for sentence in sentences if _NONFINITE in sentence})
    return {"cause": tuple(side), "criteria": tuple(sorted(criteria)), "outputs": tuple(failed), **_diverged(document)}


def _diverged(document: Accuracy) -> dict[str, object]:
    """Return the tensors at which two models begin to differ, if their layers were compared."""
    errors = {
        layer.tensor: math.inf if layer.nonfinite else layer.metrics.get("relative_rms", 0.0)
        for layer in document.layers
    }
    growth = {}
    for layer in document.layers:
        before = max((errors.get(name, 0.0) for name in layer.reads), default=0.0)
        after = errors[layer.tensor]
        if after > before:
            growth[layer.tensor] = 2.0 if math.isinf(after) else after - before
    largest = max((value for value in growth.values() if value < 2), default=0.0)
    certain = any(value == 2 for value in growth.values())
    scale = (0.9 if certain else 1.0) / largest if largest else 0.0
    return {"suspects": {name: value if value == 2 else value * scale for name, value in growth.items()}}


def _of_activations(document: Activations) -> dict[str, object]:
    found = {
        name: any(getattr(tensor.range, f"{name}_count") for tensor in document.tensors) for name in ("nan", "inf")
    }
    suspects = {document.first_nonfinite: 1.0} if document.first_nonfinite else {}
    return {"criteria": tuple(name for name, is_found in found.items() if is_found), "suspects": suspects}


def _of_findings(document: Findings) -> dict[str, object]:
    worst = "error" if document.count("error") else "warning"
    found = [finding for finding in document.findings if finding.severity == worst]
    return {
        "criteria": tuple(sorted({finding.check for finding in found})),
        "suspects": {finding.node: 1.0 for finding in found if finding.node},
    }


def _of_profile(profile: Profile) -> dict[str, object]:
    """Return the nodes of slow layers: half of the time is strong evidence."""
    times, total = profile.layer_times.ms, profile.layers_sum_ms
    shares: dict[str, float] = {}
    for layer, time_ms in zip(profile.layers, times, strict=True) if total else ():
        for node in layer.onnx_nodes:
            shares[node] = shares.get(node, 0.0) + 2 * time_ms / total
    return {"suspects": shares}


_READERS: Mapping[str, Callable[[Path], dict[str, object]]] = {
    "accuracy": lambda path: read_accuracy_evidence(read_document(Accuracy, path)),
    "activations": lambda path: _of_activations(read_document(Activations, path)),
    "lint": lambda path: _of_findings(read_document(Findings, path)),
    "profile": lambda path: _of_profile(read_document(Profile, path)),
}
"""Kind of artifact -> the function that returns the evidence in its document."""


def failed_gates(gates: Sequence[GateResult]) -> list[Failure]:
    """Return the failures of the gates that do not hold; undecided ones did not fail."""
    failures: list[Failure] = []
    for gate in gates:
        if gate.passed or gate.undecided:
            continue
        cause = f"left {'<' if gate.left < gate.right else '>' if gate.left > gate.right else '='} right"
        if unknown := [side for side in ("left", "right") if math.isnan(getattr(gate, side))]:
            cause = f"{' and '.join(unknown)} is not a number"
        distance = abs(gate.left - gate.right) / (abs(gate.right) or 1.0)
        failure = Failure(
            kind="gate",
            where=gate.gate,
            cause=(cause,),
            excess=distance if math.isfinite(distance) else math.inf,
            message=f"{gate.left:g}, {gate.right:g} {gate.unit}".strip(),
        )
        failures.append(failure)
    return failures


def words_in(message: str) -> set[str]:
    """Return the words of a message, among which names of nodes and operators may be."""
    return {word for found in _NAME.findall(message) for word in (found, found.rstrip(".:"))}


def run_once(recipe: Recipe, request: Request) -> tuple[RunRecord, Exception | None]:
    """Run a recipe, and return its record, and the error that ended it.

    Raises NdldFlowError for a recipe that cannot start, and KeyboardInterrupt.
    """
    ended, raised = list[str](), None

    def listen(event: Event) -> None:
        if isinstance(event, RunFailed):
            ended.append(event.folder)

    try:
        ended.append(run_recipe(open_single(recipe, request, listen), request).folder)
    except Exception as error:
        if not ended:
            raise
        raised = error
    return read_run_record(Path(ended[-1])), raised


@dataclass(frozen=True)
class FailedRun:
    """A run that failed."""

    recipe: Recipe
    record: RunRecord
    failure: Failure
    """Only its place."""
    error: Exception | None

    def read_evidence(self, outputs: Outputs, nodes: Sequence[NodeFacts]) -> Failure | None:
        """Return the failure with the evidence of the run; None for a crash, whose function only a trial records."""
        names = {name for node in nodes for name in (node.name, *node.inputs, *node.outputs)}
        if self.error is not None:
            found = [failure_of_error(self.failure.kind, self.failure.where, self.error, names)]
        else:
            kinds = {step.name: step.type.cls.kinds()[1] for step in self.recipe.steps}
            documents = {
                step.name: outputs.store.object_folder(step.record.artifact.digest) / kinds[step.name].main
                for step in self.record.steps
                if step.record is not None
            }
            found = list(read_failures(self.record.steps, self.record.gates, documents, names))
        same = (each for each in found if each.resembles(self.failure) and each.kind != "killed")
        return next(same, None)
