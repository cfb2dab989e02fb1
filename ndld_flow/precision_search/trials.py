"""Trials of a precision search: models are written, run, compared with the reference, and recorded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from blake3 import blake3

from ndld_flow.accuracy.agreement import Agreement, Measuring, Yardstick
from ndld_flow.accuracy.inside.capture import run_each
from ndld_flow.accuracy.model_comparison import CONSTANT, StoredOutputs, storable
from ndld_flow.accuracy.power.measure_power import Check, JudgedOutput, measure_power, seconds_for
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.base.declared_metrics import higher_is_better
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import count
from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import identifying_bytes
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.precision_search.minimal_set import Attempt, Kept, Outcome, Phase
from ndld_flow.precision_search.reducers import Reducer
from ndld_flow.records.accuracy import OutputKind
from ndld_flow.records.power import Power
from ndld_flow.records.precision_search import PrecisionSearch, Trial
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.feeds import shared_inputs
from ndld_flow.samples.made_samples import ExtendedSamples
from ndld_flow.samples.sample_feeds import Sample, Samples
from ndld_flow.store.files import make_folder, share

_NONFINITE = -50.0
"""Score of outputs with NaN or infinity, lower than that of any metric."""
_DECADES = 30.0
_GIVEN = " without made samples"
"""Suffix of outputs that are judged on the samples at hand alone."""


@dataclass(frozen=True)
class TrialResult:
    """The comparison of a candidate's outputs with the reference."""

    outputs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Output -> its metrics."""
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    """Output -> number of elements that are NaN or infinite in only one of the two."""
    trouble: str = ""
    """Why the candidate could not run."""
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Output -> metric -> the slice in which it is worst, such as `channel 4`."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on every output, by its kind."""

    tolerance: Tolerance
    kinds: Mapping[str, OutputKind]

    def of(self, output: str) -> dict[str, float]:
        """Return metric -> bound."""
        return self.tolerance.bounds(self.kinds[output])

    def passed(self, judged: TrialResult) -> bool:
        """Return whether all bounds hold."""
        return not self.broken(judged)

    def broken(self, judged: TrialResult) -> str:
        """Return the first bound that does not hold, and its output; empty if all hold."""
        if judged.trouble:
            return judged.trouble
        for output, metrics in judged.outputs.items():
            if judged.nonfinite.get(output):
                return f"{count(judged.nonfinite[output])} values of {output} are NaN or infinite"
            unmet = outside(metrics, self.of(output), judged.places.get(output))
            if unmet:
                return f"{output}: {unmet[0]}"
        return ""

    def score(self, judged: TrialResult) -> float:
        """Return minus the decades by which the worst metric exceeds its bound: 0 at the bound, higher is better."""
        if judged.trouble:
            return -math.inf
        bad = sum(judged.nonfinite.values())
        if bad:
            return _NONFINITE - math.log10(bad)
        return min((self._score(name, metrics) for name, metrics in judged.outputs.items()), default=-math.inf)

    def worst(self, judged: TrialResult) -> dict[str, float]:
        """Return the metrics of the worst output, with `nonfinite` if it has NaN or infinity."""
        bad = max(judged.nonfinite, key=judged.nonfinite.__getitem__, default="")
        if bad and judged.nonfinite[bad]:
            return {"nonfinite": judged.nonfinite[bad], **judged.outputs[bad]}
        scores = {name: self._score(name, metrics) for name, metrics in judged.outputs.items() if metrics}
        return dict(judged.outputs[min(scores, key=scores.__getitem__)]) if scores else {}

    def _score(self, output: str, metrics: Mapping[str, float]) -> float:
        excess = (_decades(name, metrics[name], bound) for name, bound in self.of(output).items() if name in metrics)
        return -max(excess, default=-_DECADES)


def _decades(metric: str, value: float, bound: float) -> float:
    """Return by how many decades of error a metric exceeds its bound; negative within the bound."""
    if metric.endswith("_db"):
        return max(-_DECADES, min((bound - value) / 20, _DECADES))
    if higher_is_better(metric):
        value, bound = 1.0 - value, 1.0 - bound
    return max(-_DECADES, min(math.log10(max(value, 1e-30)) - math.log10(max(bound, 1e-30)), _DECADES))


class Judge:
    """Runs candidates and compares their outputs with those of the reference, which runs once.

    Made samples widen the spread against which errors are measured, so that a candidate must also agree without them.
    """

    def __init__(
        self,
        reference: Path,
        samples: Iterable[Sample],
        tolerance: Tolerance,
        settings: OnnxruntimeRequest,
        runtime: SessionRequest,
        scratch: Path,
    ) -> None:
        """Run the reference with `settings`; `runtime` runs candidates."""
        self._reference, self._scratch = reference, scratch
        self._inputs = model_inputs(reference)
        self._samples = samples
        self._settings, self._runtime = settings, runtime
        rtol, atol = tolerance.elementwise()
        self._measuring = Measuring(rtol, atol)
        self._kept = StoredOutputs(scratch / "reference")
        self._given = len(samples.base) if isinstance(samples, ExtendedSamples) else 0
        """Number of samples that are judged without made ones too."""
        self.ran = reference
        """The model that ran last."""
        self._trial_s = 0.0
        """Seconds of the slowest trial."""
        self._yardsticks = self._run_reference()
        self.bounds = Bounds(tolerance, {name: yardstick.kind for name, yardstick in self._yardsticks.items()})
        own = self._compare_with_itself()
        _refuse_unmeetable(self.bounds, {name: agreement.metrics() for name, agreement in own.items()})
        names = (name for name in self._yardsticks if not name.endswith(_GIVEN))
        self._outputs = tuple(
            JudgedOutput(
                name, self._yardsticks[name], self._measuring, self.bounds.of(name), own[name].is_weak_evidence
            )
            for name in names
        )
        flat = [output.name for output in self._outputs if output.is_constant]
        self.notes = (f"{CONSTANT} {', '.join(flat)}, so agreement there is weak evidence",) if flat else ()
        """Reasons why agreement with the reference proves little."""

    def _run_reference(self) -> dict[str, Yardstick]:
        """Store the reference's outputs; return the yardstick of each."""
        for outputs in run_each(self._settings.open(self._reference), (sample.arrays for sample in self._samples)):
            self._kept.add(outputs)
        given = self._kept.first(self._given).yardsticks(self._reference, {})
        return self._kept.yardsticks(self._reference, {}) | {name + _GIVEN: each for name, each in given.items()}

    def _judged_as(self, name: str, sample: int) -> tuple[str, ...]:
        """Return the names under which an output of a sample is judged."""
        return (name, name + _GIVEN) if sample < self._given else (name,)

    def _compare_with_itself(self) -> dict[str, Agreement]:
        """Return output -> its agreement with itself, which is imperfect if it is NaN or infinite."""
        agreements = {name: Agreement(self._measuring, yardstick) for name, yardstick in self._yardsticks.items()}
        for i, outputs in enumerate(self._kept):
            for name, array in outputs.items():
                if array is not None:
                    for judged in self._judged_as(name, i):
                        r, c = agreements[judged].yardstick.pair(name, outputs, outputs)
                        assert r is not None and c is not None
                        agreements[judged].add(r, c)
        return agreements

    def measure_power(self, search_s: float) -> Power:
        """Return which faults a trial would notice; it takes as long as two trials, or a tenth of the search."""
        check = Check(self._reference, self._settings, self._samples, self._outputs)
        return measure_power(check, self._scratch, seconds=seconds_for(self._trial_s, search_s))

    def judge(self, reduced: Path) -> TrialResult:
        """Run a model as hardware that stores tensors in their types and computes in fp32 would."""
        started = time.monotonic()
        try:
            self.ran = runnable(reduced)
            return self._run(self.ran)
        except ModelError as error:
            return TrialResult(trouble=str(error))
        finally:
            self._trial_s = max(self._trial_s, time.monotonic() - started)

    def _run(self, path: Path) -> TrialResult:
        inputs = shared_inputs(self._inputs, model_inputs(path))
        model = self._runtime.open(path)
        agreements: dict[str, Agreement] = {}
        for i, (kept, sample) in enumerate(zip(self._kept, self._samples, strict=True)):
            bound = model.bind(inputs.for_candidate(sample.feeds))
            bound.run()
            outputs = bound.outputs()
            for name, reference in kept.items():
                if reference is None:
                    continue
                array = outputs.get(name)
                if array is None or array.shape != reference.shape:
                    return TrialResult(trouble=f'the shape of its output "{name}" differs from the reference\'s')
                for judged in self._judged_as(name, i):
                    yardstick = self._yardsticks[judged]
                    r, c = yardstick.pair(name, kept, outputs)
                    assert r is not None and c is not None
                    agreements.setdefault(judged, Agreement(self._measuring, yardstick)).add(r, storable(c))
        return TrialResult(
            {name: agreement.metrics() for name, agreement in agreements.items()},
            {name: agreement.nonfinite for name, agreement in agreements.items()},
            places={name: agreement.worst_slices() for name, agreement in agreements.items()},
        )


def _refuse_unmeetable(bounds: Bounds, own_metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Raise a `RequestError` for bounds that the reference misses even against itself: no trial could meet them."""
    if not any(own_metrics.values()):
        raise RequestError(
            "the model has no output to compare on these samples: its outputs are empty or are not tensors. "
            "Give inputs of other shapes."
        )
    for name, metrics in own_metrics.items():
        unmet = outside(metrics, bounds.of(name))
        if unmet and bounds.kinds[name] == "numbers" and "cosine" not in metrics:
            raise RequestError(
                f'output "{name}" of the unconverted model is NaN or infinite everywhere on these samples, so nothing '
                "can agree with it. Give other values (`data`, or the recipe's `inputs`)."
            )
        if unmet:
            raise RequestError(
                f'`tolerance`: no trial can meet it: output "{name}" of the unconverted model misses it: {unmet[0]}. '
                "Give another bound."
            )


def runnable(reduced: Path) -> Path:
    """Return a model that computes here what `reduced` computes on hardware: itself, or its emulation."""
    emulated = reduced.with_name(f"{reduced.stem}_emulated.onnx")
    return reduced if emulate_stored(reduced, emulated) is None else emulated


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that has run."""

    judged: TrialResult
    wall_s: float


class TrialFile:
    """Trials of an unfinished search: a line of JSON each, written at once; an incomplete line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_folder(path.parent)

    def read(self) -> Mapping[frozenset[int], FinishedTrial]:
        """Return the kept nodes -> their trial."""
        if not self._path.is_file():
            return {}
        trials = {}
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                trials[frozenset(entry["kept"])] = FinishedTrial(TrialResult(**entry["judged"]), entry["wall_s"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        return trials

    def add(self, kept: frozenset[int], trial: FinishedTrial) -> None:
        """Append a trial."""
        line = json.dumps({"kept": sorted(kept), "judged": asdict(trial.judged), "wall_s": trial.wall_s})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
        share(self._path)

    def delete(self) -> None:
        """Delete the file after the search."""
        self._path.unlink(missing_ok=True)


@dataclass
class Trials:
    """The oracle of a search."""

    reducer: Reducer
    judge: Judge
    file: TrialFile
    scratch: Path
    done: dict[Kept, FinishedTrial] = field(default_factory=dict)
    before: Mapping[Kept, FinishedTrial] = field(default_factory=dict)
    """Trials of an earlier, unfinished search."""

    def try_keeping(self, kept: Kept) -> Outcome:
        """Return the outcome of keeping these nodes; each set is run once."""
        if kept not in self.done:
            self.done[kept] = self.before[kept] if kept in self.before else self._run_trial(kept)
        judged = self.done[kept].judged
        return Outcome(self.judge.bounds.passed(judged), self.judge.bounds.score(judged))

    def metrics(self, kept: Kept) -> dict[str, float]:
        """Return the metrics of the worst output."""
        return self.judge.bounds.worst(self.done[kept].judged)

    def record(self, attempt: Attempt) -> Trial:
        """Return the record of an attempt."""
        trial = self._describe(
            attempt.number, attempt.phase, attempt.description, attempt.kept, self.done[attempt.kept]
        )
        return trial.model_copy(update={"remembered": attempt.kept in self.before})

    def verify(self, search: PrecisionSearch, kept: Kept) -> Trial:
        """Convert as the step that uses the result will, and check the outcome."""
        started = time.monotonic()
        path = self.scratch / "verified.onnx"
        self.reducer.write_found(search, path)
        done = FinishedTrial(self.judge.judge(path), time.monotonic() - started)
        what = "converted as the step that uses the result does"
        return self._describe(len(search.trials) + 1, "verify", what, kept, done)

    def _describe(
        self, number: int, phase: Phase | Literal["verify"], what: str, kept: Kept, done: FinishedTrial
    ) -> Trial:
        return Trial(
            number=number,
            phase=phase,
            what=what,
            kept_count=len(kept),
            kept=tuple(sorted(kept)),
            metrics=self.judge.bounds.worst(done.judged),
            passed=self.judge.bounds.passed(done.judged),
            wall_s=done.wall_s,
            trouble=done.judged.trouble,
        )

    def _run_trial(self, kept: Kept) -> FinishedTrial:
        started = time.monotonic()
        path = self.scratch / "tried.onnx"
        try:
            self.reducer.write(kept, path)
            judged = self.judge.judge(path)
        except ModelError as error:
            judged = TrialResult(trouble=str(error))
        done = FinishedTrial(judged, time.monotonic() - started)
        self.file.add(kept, done)
        return done


def digest_samples(samples: Samples) -> str:
    """Return the BLAKE3 digest of every input of every sample: name, dtype, shape and bytes."""
    hasher = blake3()
    for sample in samples:
        for part in identifying_bytes(sample.arrays):
            hasher.update(part)
    return hasher.hexdigest()
