"""Apply precision constraints by Casts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ndld_flow.base.errors import RequestError
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx


class ApplyPrecision(LoadsCustomOps, Step[Onnx, Onnx]):
    """Apply the constraints of `constrain_precision` by inserting Casts, for strongly typed TensorRT.

    Nodes constrained to fp32, fp16 or bf16 compute in that type; all others, and the model's inputs and outputs, keep
    their types. `check_accuracy` on the result measures the loss. int8, fp8 and int4 need Q/DQ nodes in the model.
    """

    keeps_inputs: ClassVar[bool] = True
    version: ClassVar[int] = 2
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "numpy", "ml-dtypes", "protobuf")
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes", "constraints", "ignored", "casts_added")

    strict: bool = True
    """Fail if a constraint cannot be applied. With `false`, such constraints are ignored, and listed in the log and the
    record."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.edit.edit_file import raise_opset
        from ndld_flow.precision.constraints.typed_model import write_typed_model

        path, raised = raise_opset(source.path, context.scratch, context.log)
        typed = write_typed_model(path, out / Onnx.main, context.log)
        if self.strict and typed.ignored:
            raise RequestError(
                "\n".join(
                    f"{constraint.node!r} requests {constraint.precision}: {constraint.outcome}"
                    for constraint in typed.ignored
                )
                + "\nRemove such constraints (`none` in `constrain_precision`), or set `strict: false`."
            )
        for constraint in typed.constraints:
            context.log.info("%s %r: %s", constraint.precision, constraint.node, constraint.outcome)
        context.log_lines(*raised, *typed.change.notes)
        count, ignored = len(typed.constraints), len(typed.ignored)
        rest = f", {ignored} ignored" if ignored else ""
        return Result(
            summary=f"{count - ignored} constraints applied{rest}, {typed.casts_added} casts added",
            metrics={
                "nodes": typed.change.after.node_count,
                "constraints": count,
                "ignored": ignored,
                "casts_added": typed.casts_added,
            },
            change=typed.change.model_copy(update={"notes": (*raised, *typed.change.notes)}),
        )
