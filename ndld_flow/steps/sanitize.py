"""Make a model smaller without changing what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.base.quantities import size_change
from ndld_flow.base.units import Bytes
from ndld_flow.inputs import Shape
from ndld_flow.records.graph_change import GraphChange
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx


class Sanitize(Step[Onnx, Onnx]):
    """Fold constants, remove what does nothing, share duplicates, fuse what has one operator.

    Inputs and outputs stay as they are, nodes that survive keep their names, only standard operators of the model's
    own opset are used, and the result passes the ONNX checker. Weights in external data stay on disk.
    """

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy")
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("nodes", "parameters"),
        *metrics("initializer_bytes", unit="bytes"),
    )

    fold_constants: bool = True
    """Compute what depends on constants only, once. Random operators and Q/DQ pairs are left alone."""
    fold_size_threshold: Bytes = 64 * 2**20
    """Results larger than this stay computed, and constants larger than this are not read."""
    passes: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """How often to go over the model; `auto` goes on until nothing changes."""
    remove_unused: bool = True
    """Remove nodes, initializers and functions that no output depends on."""
    deduplicate: bool = True
    """Keep one of equal nodes and of equal initializers."""
    simplify: bool = True
    """Remove nodes that change nothing (Identity, Dropout, Casts to the same type, ...) and branches never taken."""
    fuse: bool = True
    """Fuse BatchNormalization, Mul, Add and Pad into Conv, MatMul + Add to Gemm, and LayerNormalization from its
    parts. Outputs then differ in the last bits (about 1e-7). Without it every number is computed as before, though a
    runtime may choose another kernel for weights that have become constant."""
    inline_functions: bool = False
    """Put the bodies of local functions where they are called, first."""
    input_shapes: dict[str, Shape] = Field(default={})
    """Input -> shape to fix it at before folding, such as `{x: [1, 3, 320, 320]}`."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.sanitize import SanitizeOptions, sanitize_file

        options = SanitizeOptions(
            fold_constants=self.fold_constants,
            fold_size_threshold=self.fold_size_threshold,
            passes=None if self.passes == "auto" else self.passes,
            remove_unused=self.remove_unused,
            deduplicate=self.deduplicate,
            simplify=self.simplify,
            fuse=self.fuse,
            inline_functions=self.inline_functions,
            input_shapes=self.input_shapes,
        )
        context.progress(0, 0, "sanitizing")
        change = sanitize_file(source.path, out / Onnx.main, options, context.log)
        for note in change.notes:
            context.log.info(note)
        return Result(summary=_summary(change), metrics=_metrics(change), change=change)


def _summary(change: GraphChange) -> str:
    before, after = change.before, change.after
    sizes = size_change(before.initializer_bytes, after.initializer_bytes)
    return f"{before.node_count} -> {after.node_count} nodes, {sizes}"


def _metrics(change: GraphChange) -> dict[str, Metric]:
    return {
        "nodes": Metric(value=change.after.node_count),
        "initializer_bytes": Metric(value=change.after.initializer_bytes, unit="bytes"),
        "parameters": Metric(value=change.after.parameter_count),
    }
