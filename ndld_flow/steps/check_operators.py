"""Check the library of custom operators against their references."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.runtimes.custom_operators import CustomOperator, OperatorName
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.step import Context, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import AccuracyDocument, Onnx

if TYPE_CHECKING:
    pass


class CheckOperators(SampleSettings, Step[Onnx, AccuracyDocument]):
    """Check the library of custom operators against their references.

    The model runs once with the libraries. For each node of an operator with a `reference`, the values that it read are
    given to the reference, and the values that it wrote are compared with the reference's, judged as by
    `check_accuracy`. So each node is checked on real inputs, and the error of one does not reach the next. Nodes in
    subgraphs, operators without a reference, and TensorRT plugins are not checked, and listed so.
    """

    also_called: ClassVar[tuple[str, ...]] = ("checkcustomops", "customoperators", "checkplugins")

    version: ClassVar[int] = 2
    # Kernels differ between CPUs, as for `check_accuracy`.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (*Tolerance.declared(), *metrics("nodes"))

    custom_operators: dict[OperatorName, CustomOperator] = Field(min_length=1)
    """Operator -> its library, plugin and reference; by default those of the recipe's `custom_operators:`."""
    tolerance: Tolerance = Tolerance(slice_rms=0.001, slice_max=0.005, position_rms=0.01, relative_rms=0.001)
    """Bounds on the differences of each node's outputs, as in `check_accuracy`, but by default 0.1 % RMS: both compute
    the same formula on the same values, so that what FP16 does to a whole model would hide a wrong factor."""

    @property
    def operator_libraries(self) -> tuple[str, ...]:
        named = (operator.library for operator in self.custom_operators.values())
        return tuple(dict.fromkeys(str(path.absolute()) for path in named if path is not None))

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.accuracy_record import Criteria, metrics_of, summarize, worst_sample
        from ndld_flow.accuracy.operator_check import check_operators
        from ndld_flow.models.files import model_inputs
        from ndld_flow.records.accuracy import Accuracy
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
        from ndld_flow.samples.sample_feeds import make_samples

        settings = OnnxruntimeRequest(custom_ops=self.operator_libraries)
        criteria = Criteria(self.tolerance, {}, 5, -1, ())
        made = make_samples(model_inputs(source.path), context.inputs, self, source.label)
        samples = [(each.label, each.arrays) for each in made]
        checks = check_operators(source.path, self.custom_operators, samples, settings, criteria, context.scratch)
        accuracy = Accuracy(
            reference="the references of the operators",
            candidate=source.label,
            provider_reference="reference",
            provider_candidate="CPUExecutionProvider",
            sample_count=len(samples),
            inputs={},
            tolerance=self.tolerance.given(5),
            outputs=checks.outputs,
            worst_sample=worst_sample(checks.outputs, list(self.tolerance.given(5))),
            notes=checks.notes,
        )
        accuracy.write(out)
        context.log_lines(*accuracy.notes)
        for output in accuracy.outputs:
            context.log.info("%s: %s %s", output.output, output.metrics, "; ".join(output.failed) or "ok")
        return Result(summarize(accuracy), accuracy.passed, {**metrics_of(accuracy), "nodes": checks.node_count})
