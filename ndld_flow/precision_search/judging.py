"""How far a model at reduced precision is from the reference, on samples whose right outputs are computed once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.accuracy.agreement import Agreement, Measuring
from ndld_flow.accuracy.stored_outputs import StoredOutputs, storable
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.accuracy.yardstick import Yardstick, find_yardstick
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.models.declared_inputs import model_inputs
from ndld_flow.precision.emulate.stored_model import emulate_stored
from ndld_flow.records.accuracy import OutputKind, higher_is_better
from ndld_flow.runtimes.onnxruntime.model_matching import shared_inputs
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.samples.sample_feeds import Sample

_NONFINITE = -50.0
"""Score where NaN or infinity came up; no metric is that bad."""
_DECADES = 30.0


@dataclass(frozen=True)
class Judged:
    """What running a model came to."""

    outputs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Output -> its metrics."""
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    """Output -> elements that are NaN or infinite in one of the two only."""
    trouble: str = ""
    """Why it could not be run."""


@dataclass(frozen=True)
class Bounds:
    """The bounds on every output, by its kind."""

    tolerance: Tolerance
    kinds: Mapping[str, OutputKind]

    def of(self, output: str) -> dict[str, float]:
        """Return metric -> bound."""
        return self.tolerance.bounds(self.kinds[output])

    def passed(self, judged: Judged) -> bool:
        """Whether everything that was asked holds."""
        if judged.trouble or any(judged.nonfinite.values()):
            return False
        return not any(outside(metrics, self.of(output)) for output, metrics in judged.outputs.items())

    def score(self, judged: Judged) -> float:
        """How good it is, 0 at the bound: minus the decades by which the worst metric is too far off."""
        if judged.trouble:
            return -math.inf
        bad = sum(judged.nonfinite.values())
        if bad:
            return _NONFINITE - math.log10(bad)
        return min((self._score(name, metrics) for name, metrics in judged.outputs.items()), default=-math.inf)

    def worst(self, judged: Judged) -> dict[str, float]:
        """Metrics of the output that is worst; `nonfinite` of them where NaN or infinity came up."""
        bad = max(judged.nonfinite, key=judged.nonfinite.__getitem__, default="")
        if bad and judged.nonfinite[bad]:
            return {"nonfinite": judged.nonfinite[bad], **judged.outputs[bad]}
        scores = {name: self._score(name, metrics) for name, metrics in judged.outputs.items() if metrics}
        return dict(judged.outputs[min(scores, key=scores.__getitem__)]) if scores else {}

    def _score(self, output: str, metrics: Mapping[str, float]) -> float:
        excess = (_decades(name, metrics[name], bound) for name, bound in self.of(output).items() if name in metrics)
        return -max(excess, default=-_DECADES)


def _decades(metric: str, value: float, bound: float) -> float:
    """How far a metric is beyond its bound, as the logarithm of the error; less than 0 within it."""
    if metric.endswith("_db"):
        return max(-_DECADES, min((bound - value) / 20, _DECADES))
    if higher_is_better(metric):
        value, bound = 1.0 - value, 1.0 - bound
    return max(-_DECADES, min(math.log10(max(value, 1e-30)) - math.log10(max(bound, 1e-30)), _DECADES))


class Judge:
    """Knows what the reference gives, and measures what others give."""

    def __init__(
        self, reference: Path, samples: Iterable[Sample], tolerance: Tolerance, settings: SessionSettings, scratch: Path
    ) -> None:
        self._reference = reference
        self._inputs = model_inputs(reference)
        self._samples = samples
        self._settings = settings
        rtol, atol = tolerance.elementwise()
        self._measuring = Measuring(rtol, atol)
        folder = scratch / "reference"
        folder.mkdir()
        self._kept = StoredOutputs(folder)
        self.notes: tuple[str, ...] = ()
        """What makes agreement say less than it seems to."""
        self.ran = reference
        """The model that was run last."""
        self._yardsticks = self._run_reference()
        self.bounds = Bounds(tolerance, {name: yardstick.kind for name, yardstick in self._yardsticks.items()})
        _refuse_unmeetable(self.bounds, self._compare_with_itself())

    def _run_reference(self) -> dict[str, Yardstick]:
        """Keep the reference's outputs; return what the errors of each are measured by."""
        model = open_model(self._reference, self._settings)
        for sample in self._samples:
            bound = model.bind({name: feed.values for name, feed in sample.feeds.items()})
            bound.once()
            self._kept.add(bound.outputs())
        names = dict.fromkeys(name for outputs in self._kept for name, array in outputs.items() if array is not None)
        return {name: find_yardstick(self._kept.samples_of(name)) for name in names}

    def _compare_with_itself(self) -> dict[str, dict[str, float]]:
        """Return output -> its metrics against itself, which are not perfect where it is NaN or infinite."""
        agreements = {name: Agreement(self._measuring, yardstick) for name, yardstick in self._yardsticks.items()}
        for outputs in self._kept:
            for name, array in outputs.items():
                if array is not None:
                    agreements[name].add(array, array)
        return {name: agreement.metrics() for name, agreement in agreements.items()}

    def judge(self, reduced: Path) -> Judged:
        """Run a model as hardware would that stores tensors in their types and computes in fp32."""
        try:
            self.ran = runnable(reduced)
            return self._run(self.ran)
        except ModelError as error:
            return Judged(trouble=str(error))

    def _run(self, path: Path) -> Judged:
        inputs = shared_inputs(self._inputs, model_inputs(path))
        model = open_model(path, self._settings)
        agreements: dict[str, Agreement] = {}
        for kept, sample in zip(self._kept, self._samples, strict=True):
            bound = model.bind(inputs.for_candidate(sample.feeds))
            bound.once()
            outputs = bound.outputs()
            for name, reference in kept.items():
                if reference is None:
                    continue
                array = outputs.get(name)
                if array is None or array.shape != reference.shape:
                    return Judged(trouble=f'its output "{name}" has another shape than the reference\'s')
                agreement = agreements.setdefault(name, Agreement(self._measuring, self._yardsticks[name]))
                agreement.add(reference, storable(array))
        flat = [name for name, one in agreements.items() if one.is_weak_evidence]
        if flat:
            self.notes = (f"the reference is constant in {', '.join(flat)}, so agreement there is weak evidence",)
        return Judged(
            {name: one.metrics() for name, one in agreements.items()},
            {name: one.only_candidate_nonfinite + one.only_reference_nonfinite for name, one in agreements.items()},
        )


def _refuse_unmeetable(bounds: Bounds, itself: Mapping[str, Mapping[str, float]]) -> None:
    """Raise a `RequestError` for bounds that the reference does not even meet against itself: no trial could."""
    if not any(itself.values()):
        raise RequestError(
            "the model gives nothing on these samples that could be compared: its outputs are empty, or no tensors. "
            "Give inputs of other shapes."
        )
    for name, metrics in itself.items():
        unmet = outside(metrics, bounds.of(name))
        if unmet and bounds.kinds[name] == "numbers" and "cosine" not in metrics:
            raise RequestError(
                f'output "{name}" of the model as it is is NaN or infinite everywhere on these samples, so nothing can '
                "agree with it. Give other values (`data`, or the recipe's `inputs`)."
            )
        if unmet:
            raise RequestError(
                f'`tolerance`: no trial can meet it, for output "{name}" of the model as it is does not: {unmet[0]}. '
                "Give another bound."
            )


def runnable(reduced: Path) -> Path:
    """The model that gives here what this one gives on hardware: itself, or its emulation if tensors are reduced."""
    emulated = reduced.with_name(f"{reduced.stem}_emulated.onnx")
    return reduced if emulate_stored(reduced, emulated) is None else emulated
