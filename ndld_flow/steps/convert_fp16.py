"""Convert a model to fp16, with Casts where precisions meet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.quantities import Fraction, size_change
from ndld_flow.base.settings import Settings
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, Reads, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx, PrecisionDocument

if TYPE_CHECKING:
    from ndld_flow.precision.fp16.choice import Fp16Options
    from ndld_flow.records.precision_search import PrecisionSearch


class ValuesOutside(Settings):
    """Limits of weights that are too large or too small for fp16."""

    max_abs: Annotated[float, Field(gt=0)] = 65504.0
    """A weight with a larger absolute value keeps its nodes in fp32. The largest fp16 number is 65504. Stand-ins for
    infinity, as in masks, do not count: scalars from 1e9 on, other values from 1e30 on."""
    min_abs: Annotated[float, Field(ge=0)] = 0.0
    """Values closer to 0 than this are too small; 0 disables the test. The smallest fp16 number is 6e-8; full
    precision starts at 6.1e-5."""
    share: Annotated[Fraction, Field(le=1)] = 0.0
    """A weight keeps its nodes in fp32 when more than this fraction of its non-zero values is too small."""


class Block(Settings):
    """Nodes that stay fp32. A node inside a blocked If, Loop or Scan is blocked too."""

    op_types: tuple[str, ...] = ()
    """Operators, such as `Softmax` or `com.microsoft::FusedConv`."""
    nodes: tuple[NamePattern, ...] = ()
    """Names of nodes: globs (`encoder.*`), or `/.../` for a regular expression (RE2's syntax) searched in the name."""
    values_outside: ValuesOutside | None = None
    """Nodes that read a weight with values outside these limits; `{}` uses the limits of fp16."""
    sensitive: bool = True
    """Operators for which fp16 is too coarse, or which few runtimes support in fp16: CumSum, GridSample, MaxRoiPool,
    RoiAlign; EyeLike, window functions, random number generators, and scatters with a reduction."""


class ConvertFp16(LoadsCustomOps, Step[Onnx, Onnx]):
    """Convert a model to fp16.

    Operators that ONNX does not allow in fp16, shape computations, and nodes that `constrain_precision` constrains to
    fp32 or bf16 stay in fp32. Weights beyond fp16's range are clamped; the log and the record name them.
    The step runs nothing: how far activations are from fp16's limit is known to `find_precision` only, from samples.
    """

    also_called: ClassVar[tuple[str, ...]] = ("fp16", "half", "float16", "convertfloat16", "tofp16")
    synonyms: ClassVar[Mapping[str, str]] = {
        "keep_io_types": "keep_io",
        "op_block_list": "block.op_types",
        "node_block_list": "block.nodes",
    }

    version: ClassVar[int] = 6
    keeps_inputs: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "numpy", "protobuf")
    adds_no_quantization: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("nodes", "casts_added", "kept_fp32"),
        *metrics("initializer_bytes", "file_bytes", unit="bytes"),
    )

    keep_io: bool | tuple[NamePattern, ...] = True
    """Keep the model's inputs and outputs in fp32. False makes them fp16; a list of names and patterns keeps those:
    `keep_io: [logits]` makes a decoder's KV cache fp16, which a caller returns unread."""
    block: Block = Block()
    """Nodes to keep in fp32."""
    found_by: Annotated[str | None, Reads(PrecisionDocument)] = None
    """A `find_precision` step: the nodes that it found stay fp32 too."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.edit.edit_file import raise_opset
        from ndld_flow.precision.constraints.rules import read_search_result, refuse_other_precision, settings_notes
        from ndld_flow.precision.fp16.convert import convert_to_fp16, refuse_broken

        target, search = out / Onnx.main, None
        if self.found_by is not None:
            search = read_search_result(context.read("found_by").path)
            refuse_other_precision(search, "fp16", "convert_fp16")
        path, raised = raise_opset(source.path, context.scratch, context.log)
        conversion = convert_to_fp16(path, target, self._request(search), context.log, context.progress)
        refuse_broken(target, path, conversion.functions_inlined, context.log)
        keep_io = list(self.keep_io) if isinstance(self.keep_io, tuple) else self.keep_io
        settings = {"keep_io": keep_io, "sensitive": self.block.sensitive}
        notes = [*raised, *([] if search is None else settings_notes(search, source.label, settings))]
        for note in notes:
            context.log.warning("%s", note)
        nodes, casts, kept = conversion.change.after.node_count, conversion.change.casts_added, len(conversion.kept)
        size = size_change(conversion.size_before, conversion.size_after)
        return Result(
            summary=f"fp16: {nodes} nodes, {kept} kept in fp32, {casts} casts added, {size}",
            metrics={
                "nodes": nodes,
                "initializer_bytes": conversion.change.after.initializer_bytes,
                "file_bytes": conversion.size_after,
                "casts_added": casts,
                "kept_fp32": kept,
            },
            change=conversion.change.model_copy(update={"notes": (*conversion.change.notes, *notes)}),
        )

    def _request(self, search: PrecisionSearch | None) -> Fp16Options:
        from ndld_flow.precision.constraints.rules import reasons_of_found
        from ndld_flow.precision.fp16.choice import Fp16Options, ValueLimits

        outside = self.block.values_outside
        return Fp16Options(
            keep_io=self.keep_io,
            op_types=self.block.op_types,
            nodes=self.block.nodes,
            values_outside=None if outside is None else ValueLimits(outside.max_abs, outside.min_abs, outside.share),
            keep_sensitive=self.block.sensitive,
            chosen=lambda model: {} if search is None else reasons_of_found(model, search),
        )
