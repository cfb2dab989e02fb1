"""Prove a variant: it is right on samples that the search has not seen, and better than the source."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError, OutputsError
from ndld_flow.execution.events import Event, Notice, RunFailed, RunFinished, RunStarted, StepFinished
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.request import Request
from ndld_flow.optimize.budget import BudgetEndedError
from ndld_flow.optimize.compose import Composer, ProofTime
from ndld_flow.optimize.goals import Objective
from ndld_flow.optimize.variant import Variant
from ndld_flow.recipe.gates import GateError, parse_expression
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.write_recipe import name_recipe
from ndld_flow.records.accuracy import BLIND, Accuracy
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.measurement import BUSY, Metric
from ndld_flow.records.optimization import Gain, Speed, VariantOutcome
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import find_file, read_run_record, read_stored
from ndld_flow.records.run_record import RunRecord, RunStep, StepRecord, metrics_of
from ndld_flow.runner.export import Export, export_results
from ndld_flow.runner.run import open_executor, run_steps
from ndld_flow.runner.run_state import RunState
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.kinds import Onnx, ProfileDocument
from ndld_flow.sweep.run_request import open_single, run_request, working_on

_JUDGING: Mapping[str, VariantOutcome] = {
    "fits": "not right",
    "held": "not right on held-out data",
    "agree": "not right",
}
"""Step -> the outcome if it fails."""
_DECIDES = "versus"
"""The last step of a proof, which compares the variant with the source."""


@dataclass(frozen=True)
class Proof:
    """The outcome of the proof of a variant, and what it measured."""

    variant: Variant
    recipe: Path
    outcome: VariantOutcome
    why: str
    record: RunRecord | None = None
    """The record of the run; None if it ended with an error."""
    speed: Speed | None = None
    used_by_others: float = 0.0
    """Largest share of the CPUs that other processes used during its profiles."""
    gains: tuple[Gain, ...] = ()
    new_size_ms: tuple[float, float] | None = None
    """Time of the first pass at a size that is new to the process, of the source and of the variant."""
    accuracy: str = ""
    held_samples: int = 0
    """Samples that the search has not seen, those that the check made included."""
    worst_sample: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    finished: RunFinished | None = None
    took_s: float = 0.0
    """Seconds of its run; of reused steps, those that they took."""
    exported: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether the variant is right and better."""
        return self.outcome in ("delivered", "on the front")

    @property
    def source(self) -> ArtifactRecord:
        """Return the source; only of a run that finished."""
        assert self.record is not None
        return self.record.source.artifact

    @property
    def model(self) -> ArtifactRecord:
        """Return the model that was measured; only of a run that finished."""
        assert self.record is not None
        return self.source if self.variant.is_source else _step(self.record, self.variant.result).artifact

    @property
    def file(self) -> Path:
        """Return the path of the model in the folder of the run; only of a run that finished, and not of the source."""
        assert self.finished is not None
        return find_file(Path(self.finished.folder) / self.variant.result, Onnx.main)


@dataclass(frozen=True)
class Prover:
    """Proves variants by recipes in a folder."""

    composer: Composer
    folder: Path
    request: Request
    listener: Listener

    def prove(
        self,
        variant: Variant,
        left_s: Callable[[], float] = lambda: math.inf,
        spare_s: float = math.inf,
        rounds: int = ProofTime().rounds,
    ) -> Proof:
        """Check a variant on held-out samples; if it is right, compare it with the source, in what is left of the
        budget then: `left_s` returns it in seconds. `spare_s`: what the proof does not need of it; `rounds`: at most.

        An error of its steps fails it, and is not raised.
        """
        for measured in (False, True):  # what is wrong is not measured
            suffix = "" if measured else "-check"
            recipe = self.folder / f"{name_recipe(Path(f'{variant.name}.yaml'))}{suffix}.yaml"
            output = self.request.output or Path("fast.onnx")
            compose = partial(self.composer.compose_proof, variant, recipe, output)
            try:
                if measured and self.composer.races:
                    self._profile(recipe, compose(part="profiles", time=ProofTime(spare_s=spare_s)))
                text = compose(part="all" if measured else "check", time=ProofTime(left_s(), spare_s, rounds))
                proof = self.run(variant, text, recipe, measured=measured)
            except OutputsError:
                raise
            except NdldFlowError as error:
                return Proof(variant, recipe, "failed", str(error))
            if not proof.passed:
                break
        return proof

    def _profile(self, recipe: Path, text: str) -> None:
        """Run the steps before the comparison, which reuses them, without a folder: then it is known what time is left
        for its rounds.
        """
        write_text_atomically(recipe, text)
        request = replace(self.request, recipe=recipe, output=None)
        with working_on(request, "run") as loaded:
            assert isinstance(loaded, Recipe)
            run = open_single(loaded, request, self.listener)
            run.keeps_folder = False
            self.listener(RunStarted(recipe=loaded.name, steps=tuple(step.name for step in loaded.steps)))
            with run.held, open_executor(run, request) as executor:
                run_steps(run, lambda: executor)
        if not request.force and any(step.outcome == "reused" and _is_disturbed(run, step) for step in run.steps):
            replace(self, request=replace(self.request, force=("base", "speed")))._profile(recipe, text)

    def deliver(self, proof: Proof) -> Proof:
        """Export the model of a proof that passed, if a file is requested. Raises OutputsError if that fails."""
        output = self.request.output
        if output is None:
            return proof
        assert proof.finished is not None  # it passed
        run = Path(proof.finished.folder)
        export = Export(proof.variant.result, output, self.composer.describe_check(proof.variant))
        (files,) = export_results([export], read_run_record(run), run)
        return replace(proof, exported=files)

    def run(self, variant: Variant, text: str, recipe: Path | None = None, *, measured: bool = False) -> Proof:
        """Run a recipe that judges a variant; one that is `measured` compares it with the source too.

        Raises NdldFlowError for the errors of its steps.
        """
        from ndld_flow.accuracy.accuracy_record import summarize

        recipe = recipe or self.folder / "source.yaml"
        write_text_atomically(recipe, text)

        start = time.monotonic()
        finished = self._finish(replace(self.request, recipe=recipe, output=None), variant.name)
        took_s = time.monotonic() - start
        run = Path(finished.folder)
        record = read_run_record(run)
        took_s = max(took_s, sum(max(step.wall_s, step.record.wall_s) for step in record.steps if step.record))
        gains = tuple(_gains(record, self.composer.objectives)) if measured else ()
        judged = [name for name in ("agree", "held") if (run / name).is_dir()]
        documents = {name: read_stored(Accuracy, find_file(run / name, Accuracy.file_name)) for name in judged}
        outcome, why = _judge(record, documents)
        if outcome == "delivered" and measured and not any(gain.proved for gain in gains):
            outcome, why = "not faster", "; ".join(gain.describe() for gain in gains)
        if outcome == "not faster" and any(gain.is_open for gain in gains):
            outcome, why = "not proved", "; ".join(gain.describe() for gain in gains)
        doubt = self._doubt([*documents.values()])
        if outcome == "delivered" and doubt is not None and not variant.is_source:
            outcome, why = doubt
        held = documents[judged[-1]] if judged else None
        is_raced = measured and not self.composer.preset.built_only
        return Proof(
            variant=variant,
            recipe=recipe,
            outcome=outcome,
            why=why,
            record=record,
            speed=_speed(run) if is_raced else None,
            used_by_others=_used_by_others(run, record) if is_raced else 0.0,
            gains=gains,
            new_size_ms=_new_size_ms(record) if is_raced else None,
            # The optimization's own sentence names the samples.
            accuracy=(
                summarize(held.model_copy(update={"seen": None}), dict(self.composer.conditions.accuracy))
                if held is not None
                else ""
            ),
            held_samples=len(held.samples) if held is not None else 0,
            worst_sample=(held.worst_sample or "") if held is not None else "",
            metrics=_step(record, judged[-1]).metrics if judged else {},
            finished=finished,
            took_s=took_s,
        )

    def _finish(self, request: Request, name: str) -> RunFinished:
        """Run a proof's recipe; if the budget ends while its report is written, once more from the stored results."""
        is_decided = False

        def listen(event: Event) -> None:
            nonlocal is_decided
            is_decided |= isinstance(event, StepFinished) and event.name == _DECIDES
            if isinstance(event, RunFailed) and event.outcome == "interrupted":  # which is no failure of the search
                if not is_decided:
                    self.listener(Notice(text=f"the proof of {name} was stopped before its end"))
            elif not isinstance(event, RunFinished):
                self.listener(event)

        try:
            finished = run_request(request, listen)
        except BudgetEndedError:
            if not is_decided:
                raise
            finished = run_request(request, listen)
        assert isinstance(finished, RunFinished)
        return finished

    def _doubt(self, checks: Sequence[Accuracy]) -> tuple[VariantOutcome, str] | None:
        """Return the outcome and the reason if samples that hold all conditions leave in doubt whether others do."""
        near = self.composer.conditions.near_bound([sample for check in checks for sample in check.samples])
        if near:
            return "near the bound", near
        is_blind = bool(checks) and all(check.blind and not check.by_rounding for check in checks)
        return ("not judged", BLIND) if is_blind else None


def _is_disturbed(run: RunState, step: RunStep) -> bool:
    """Return whether a step is a profile that was measured while other processes used the CPUs."""
    artifact = run.artifacts.get(step.name)
    if not isinstance(artifact, ProfileDocument):
        return False
    return read_document(Profile, artifact.path).share_used_by_others >= BUSY


def _judge(record: RunRecord, documents: Mapping[str, Accuracy]) -> tuple[VariantOutcome, str]:
    """Return the outcome of a run, and why it is not delivered."""
    beyond = [
        step.record.summary for step in record.steps if step.name == "fits" and step.record and not step.record.passed
    ]
    if beyond:
        return "not right", beyond[0]
    for name, outcome in _JUDGING.items():
        wrong = [*_failures(record, name, documents.get(name))]
        if wrong:
            is_open = all(is_open for _, is_open in wrong)
            return "not judged" if is_open else outcome, "; ".join(sentence for sentence, _ in wrong)
    if record.passed:
        return "delivered", ""
    failed = [gate for gate in record.gates if not gate.passed]
    reasons = [f"{gate.gate} fails: {gate.undecided or f'{gate.left:.4g}'}" for gate in failed]
    compared = (step.record.summary for step in record.steps if step.name == _DECIDES and step.record)
    return "not faster", next(compared, "; ".join(reasons))


def _gains(record: RunRecord, objectives: Sequence[Objective]) -> Iterator[Gain]:
    """Yield each objective against the source, as far as a run has its metrics."""
    metrics = metrics_of(record.steps)
    for objective in objectives:
        try:
            ratio, low, high = (
                parse_expression(objective.ratio.format(end=end)).evaluate(metrics).value
                for end in ("", "_low", "_high")
            )
        except GateError:
            continue
        yield Gain(objective=objective.name, ratio=ratio, low=low, high=high, evidence=objective.evidence)


def _failures(record: RunRecord, name: str, found: Accuracy | None) -> Iterator[tuple[str, bool]]:
    """Yield the failures of a step and of its gates, and whether it is open that they are some."""
    for step in record.steps:
        if step.name == name and step.record is not None and not step.record.passed:
            violated = found.violations if found is not None else ""
            yield violated or step.record.summary, step.record.inconclusive
    for gate in record.gates:
        if gate.gate.startswith(f"{name}.") and not gate.passed:
            yield f"{gate.gate.removeprefix(f'{name}.')} fails: {gate.undecided or f'{gate.left:.4g}'}", False


def _step(record: RunRecord, name: str) -> StepRecord:
    return next(step.record for step in record.steps if step.name == name and step.record is not None)


def _speed(folder: Path) -> Speed | None:
    """Return the ratio that alternating passes gave; None if they gave none."""
    comparison = read_stored(Comparison, find_file(folder / _DECIDES, Comparison.file_name))
    found = [each for each in comparison.profiles[0].verdicts if each.metric == "latency.median" and each.base == 0]
    if not found:
        return None
    return Speed(ratio=found[0].ratio, low=found[0].low, high=found[0].high, clock=found[0].clock, proved=True)


def _new_size_ms(record: RunRecord) -> tuple[float, float] | None:
    times = [_step(record, name).metrics.get("new_size_ms") for name in ("base", "speed")]
    return (times[0].value, times[1].value) if times[0] is not None and times[1] is not None else None


def _used_by_others(folder: Path, record: RunRecord) -> float:
    """Return the largest share of the CPUs that other processes used during the profiles of a run.

    It says nothing about rounds that were measured later, when the profiles were reused.
    """
    outcomes = {step.name: step.outcome for step in record.steps}
    profiles = [name for name in ("base", "speed") if outcomes.get(name) == outcomes.get(_DECIDES)]
    files = (find_file(folder / name, Profile.file_name) for name in profiles)
    return max((read_stored(Profile, file).share_used_by_others for file in files), default=0.0)


def command_of(proof: Proof, request: Request) -> str:
    """Return the command that repeats a proof, and writes its model."""
    words = ["ndld-flow", "run", str(proof.recipe)]
    words += ["-o", str(request.output)] if request.output is not None and not proof.variant.is_source else []
    words += ["--outputs", str(request.outputs)] if request.outputs != Path("outputs") else []
    return shlex.join([*words, *(["--trust"] if request.trust else [])])
