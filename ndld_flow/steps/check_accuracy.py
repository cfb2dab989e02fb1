"""Compare two models' outputs on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.artifacts.kinds import AccuracyDocument, Onnx
from ndld_flow.backends.comparing.tolerance import Tolerance, outside
from ndld_flow.errors import RequestError
from ndld_flow.nearest import say_nearest
from ndld_flow.quantities import number
from ndld_flow.records.accuracy import HIGHER_IS_BETTER, Accuracy, OutputAgreement
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, Reads, Result, Reuse, Step

if TYPE_CHECKING:
    from ndld_flow.backends.comparing.model_comparison import ComparedOutput, Comparison, Side

_UNITS = {"snr_db": "dB"}


class CheckAccuracy(Step[Onnx, AccuracyDocument]):
    """Run two models on the same inputs and compare every output; say no when they are too far apart.

    NaN or infinity that only one of the two has is always too far. Integers, bools and strings must be equal unless
    the output has a tolerance of its own.
    """

    # Not `anywhere`: kernels differ between CPUs (int8 saturates on some, bfloat16 is emulated on others) and between
    # execution providers, so "within tolerance" holds where it was checked. Checking again is cheap.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime", "numpy", "pillow")
    read_key: ClassVar[str] = "candidate"
    uses_inputs: ClassVar[bool] = True

    reference: Annotated[str, Reads(Onnx)] = "source"
    """The step whose model is right, or `source`."""
    # cosine 0.999 alone would let a wrong scale pass; 25 dB is an error of about 5 % of the signal.
    tolerance: Tolerance = Tolerance(cosine=0.999, snr_db=25.0)
    """How far outputs may be apart; when not given, cosine at least 0.999 and snr_db at least 25."""
    output_tolerance: dict[str, Tolerance] = Field(default={})
    """Output name -> its own tolerance, which replaces `tolerance` there."""
    samples: Annotated[int, Field(ge=1)] = 1
    """How many inputs to compare on; random ones are seeded with `seed`, `seed + 1`, ..."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of random inputs."""
    provider: str = "cpu"
    """Execution provider that runs the candidate: `cpu`, `cuda`, `tensorrt`, or ONNX Runtime's full name."""
    provider_options: dict[str, str | int | float | bool] = Field(default={})
    """Options of that provider, such as `device_id`."""
    reference_provider: str | None = None
    """Execution provider that runs the reference; the candidate's when not given."""
    optimization: Literal["disabled", "basic", "extended", "layout", "all"] = "all"
    """Graph optimization level of ONNX Runtime, for both."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads within an operator; 0 leaves it to ONNX Runtime."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.backends.comparing.model_comparison import Samples, compare_models

        reference = context.read("reference")
        compared = compare_models(
            self._side(Path(reference.path), reference.label, self.reference_provider),
            self._side(source.path, source.label, None),
            Samples(context.inputs, self.samples, self.seed),
            self._elementwise,
            context.scratch,
            context.progress,
        )
        for said in (*compared.notes, *compared.log.splitlines()):
            context.log.info("%s", said)
        self._check_output_names(compared)
        accuracy = self._record(compared, reference.label, source.label)
        (out / AccuracyDocument.main).write_text(accuracy.to_json(), encoding="utf-8")
        for output in accuracy.outputs:
            context.log.info("%s: %s %s", output.output, output.metrics, "; ".join(output.failed) or "ok")
        metrics = _worst(accuracy)
        return Result(_summary(accuracy, metrics), accuracy.passed, metrics)

    def _side(self, path: Path, label: str, provider: str | None) -> Side:
        from ndld_flow.backends.comparing.model_comparison import Side
        from ndld_flow.backends.running.onnxruntime_session import SessionSettings

        # The options belong to the candidate's provider; another one would not know them.
        own = provider is None or provider == self.provider
        settings = SessionSettings(
            provider=provider or self.provider,
            provider_options=self.provider_options if own else {},
            optimization=self.optimization,
            threads=self.threads,
        )
        return Side(path, label, settings)

    def _elementwise(self, output: str) -> tuple[float | None, float | None]:
        tolerance = self.output_tolerance.get(output, self.tolerance)
        return tolerance.rtol, tolerance.atol if tolerance.mismatched is None else tolerance.atol or 0.0

    def _check_output_names(self, compared: Comparison) -> None:
        names = [output.name for output in compared.outputs]
        for name in self.output_tolerance:
            if name not in names:
                raise RequestError(f'output_tolerance: the model has no output "{name}"; {say_nearest(name, names)}')

    def _record(self, compared: Comparison, reference: str, candidate: str) -> Accuracy:
        return Accuracy(
            reference=reference,
            candidate=candidate,
            provider_reference=compared.provider_reference,
            provider_candidate=compared.provider_candidate,
            sample_count=self.samples,
            inputs=compared.inputs,
            tolerance=self.tolerance.given(),
            output_tolerance={name: tolerance.given() for name, tolerance in self.output_tolerance.items()},
            outputs=tuple(self._agreement(output) for output in compared.outputs),
            notes=compared.notes,
        )

    def _agreement(self, output: ComparedOutput) -> OutputAgreement:
        metrics = output.agreement.metrics()
        bounds = self.output_tolerance.get(output.name, self.tolerance).bounds()
        if output.exact and output.name not in self.output_tolerance:
            bounds = {"mismatched": 0.0}
        return OutputAgreement(
            output=output.name,
            dtype=output.dtype,
            shape=output.shape,
            metrics=metrics,
            failed=(*output.wrong, *_nonfinite(output), *outside(metrics, bounds)),
        )


def _nonfinite(output: ComparedOutput) -> list[str]:
    said = []
    if count := output.agreement.only_candidate_nonfinite:
        said.append(f"{count} elements are NaN or infinite where the reference is not")
    if count := output.agreement.only_reference_nonfinite:
        said.append(f"{count} elements are not the NaN or infinity that the reference has there")
    return said


def _worst(accuracy: Accuracy) -> dict[str, Metric]:
    """Each metric of the output where it is worst."""
    found: dict[str, list[float]] = {}
    for output in accuracy.outputs:
        for name, value in output.metrics.items():
            found.setdefault(name, []).append(value)
    return {
        name: Metric(value=min(values) if name in HIGHER_IS_BETTER else max(values), unit=_UNITS.get(name, ""))
        for name, values in found.items()
    }


def _summary(accuracy: Accuracy, metrics: dict[str, Metric]) -> str:
    parts = []
    if "cosine" in metrics:
        parts.append(f"cosine {number(metrics['cosine'].value)}, max abs {number(metrics['max_abs'].value)}")
    elif "mismatched" in metrics:
        parts.append(f"{metrics['mismatched'].value:.2%} of elements differ")
    failed = [output for output in accuracy.outputs if output.failed]
    if not failed:
        hollow = "; ".join(note for note in accuracy.notes if "says little" in note)
        said = f"{', '.join(parts) or 'nothing to compare'}: within tolerance"
        return f"{said} ({hollow})" if hollow else said
    worst = failed[0]
    more = f" (and {len(failed) - 1} more outputs)" if len(failed) > 1 else ""
    parts.append(f'output "{worst.output}": {"; ".join(worst.failed)}{more}')
    return f"outside tolerance: {', '.join(parts)}"
