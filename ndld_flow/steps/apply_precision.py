"""Carry out precision constraints by Casts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ndld_flow.base.errors import RequestError
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx


class ApplyPrecision(Step[Onnx, Onnx]):
    """Carry out what `constrain_precision` asked for by Casts, as a strongly typed TensorRT needs it.

    Nodes that fp32, fp16 or bf16 was asked for compute in it; all others, and the model's inputs and outputs, keep
    their types. `check_accuracy` on the result tells what that costs. int8, fp8 and int4 need Q/DQ nodes in the model.
    """

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "numpy", "ml-dtypes", "protobuf")
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes", "constraints", "ignored", "casts_added")

    strict: bool = True
    """Refuse constraints that cannot be carried out. Without it the log and the record tell them."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.precision.constraints.typed_model import write_typed_model

        done = write_typed_model(source.path, out / Onnx.main, context.log)
        if self.strict and done.ignored:
            raise RequestError(
                "\n".join(f"{one.node!r} asks for {one.precision}: {one.outcome}" for one in done.ignored)
                + "\nTake such constraints away (`none` in `constrain_precision`), or say `strict: false`."
            )
        for one in done.constraints:
            context.log.info("%s %r: %s", one.precision, one.node, one.outcome)
        for note in done.change.notes:
            context.log.info("%s", note)
        count, ignored = len(done.constraints), len(done.ignored)
        rest = f", {ignored} ignored" if ignored else ""
        return Result(
            summary=f"{count - ignored} constraints carried out{rest}, {done.casts_added} casts added",
            metrics={
                "nodes": Metric(value=done.change.after.node_count),
                "constraints": Metric(value=count),
                "ignored": Metric(value=ignored),
                "casts_added": Metric(value=done.casts_added),
            },
            change=done.change,
        )
