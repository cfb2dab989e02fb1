"""Shape inference that does not trust the exported shapes of inner tensors."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Edits, is_standard
from ndld_flow.models.shape_inference import drop_invented_names
from ndld_flow.models.shape_inference import infer_shapes as infer


class Interface:
    """The declared inputs and outputs, and exported inner shapes that inference may not find again."""

    def __init__(self, edits: Edits) -> None:
        graph = edits.model.graph
        self._declared = {v.name: (v.type, v.shape) for v in (*graph.inputs, *graph.outputs)}
        self._inner: dict[ir.Value, ir.Shape | None] = {}

    def forget_inner_shapes(self, edits: Edits) -> None:
        """Clear inner shapes: exporters sometimes write wrong ones, and folding with them gives wrong models."""
        for graph in edits.model.graphs():
            for node in graph:
                if is_standard(node):
                    for value in node.outputs:
                        self._inner[value] = value.shape
                        value.shape = None

    def recall_ranks(self, edits: Edits) -> bool:
        """Use the exported rank (not the dimensions) of values for which inference finds no rank.

        Exporters omit shapes of If outputs; then their readers' outputs determine the rank, if they agree.
        """
        recalled = False
        for graph in edits.model.graphs():
            for value in (value for node in graph for value in node.outputs):
                if value.shape is None and (rank := self._exported_rank(edits, value)) is not None:
                    value.shape = ir.Shape([None] * rank)
                    recalled = True
        return recalled

    def _exported_rank(self, edits: Edits, value: ir.Value) -> int | None:
        exported = self._inner.get(value)
        if exported is not None:
            return len(exported)
        ranks = {self._rank_from_reader(edits, use.node) for use in value.uses() if use.idx == 0} - {None}
        return ranks.pop() if len(ranks) == 1 else None

    def _rank_from_reader(self, edits: Edits, reader: ir.Node) -> int | None:
        """Return the rank of a node's first input, given the known or exported rank of its output."""
        if reader.op_type not in ("Identity", "Unsqueeze") or not is_standard(reader):
            return None
        output = reader.outputs[0]
        shape = output.shape if output.shape is not None else self._inner.get(output)
        if shape is None or reader.op_type == "Identity":
            return None if shape is None else len(shape)
        axes = edits.constant(reader.inputs[1]) if len(reader.inputs) > 1 else None
        return None if axes is None else len(shape) - axes.size

    def restore(self, edits: Edits, reshaped: bool) -> None:
        """Restore the declared inputs and outputs exactly, unless inputs were given other shapes."""
        graph = edits.model.graph
        for graph_ in edits.model.graphs():
            for node in graph_:
                for value in node.outputs:
                    drop_invented_names(value)
                    if value.shape is None and not reshaped:
                        value.shape = self._inner.get(value)
        for value in graph.outputs if reshaped else (*graph.inputs, *graph.outputs):
            type_, shape = self._declared[value.name]
            value.type = type_ if type_ is not None else value.type
            # The checker requires a shape on every output, even if the exporter wrote none.
            value.shape = _merged(value.shape, shape) if reshaped or shape is None else shape


def _merged(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return inferred sizes where there are any, and declared names elsewhere."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return inferred if inferred is not None else declared
    return ir.Shape([f if isinstance(f, int) else d for f, d in zip(inferred, declared, strict=True)])


def infer_shapes(edits: Edits, interface: Interface) -> None:
    """Write shapes and dtypes to every value for which they can be inferred."""
    infer(edits.model)
    if interface.recall_ranks(edits):
        infer(edits.model)
