"""Shape inference by onnx, on a model whose own notes about inner tensors are not trusted."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Edits, is_standard
from ndld_flow.models.shape_inference import drop_invented_names
from ndld_flow.models.shape_inference import infer_shapes as infer


class Interface:
    """Inputs and outputs as the model declared them, and inner shapes that inference may not find again."""

    def __init__(self, edits: Edits) -> None:
        graph = edits.model.graph
        self._declared = {v.name: (v.type, v.shape) for v in (*graph.inputs, *graph.outputs)}
        self._inner: dict[ir.Value, ir.Shape | None] = {}

    def forget_inner_shapes(self, edits: Edits) -> None:
        """Notes of exporters are sometimes wrong, and wrong shapes fold to wrong models."""
        for graph in edits.model.graphs():
            for node in graph:
                if is_standard(node):
                    for value in node.outputs:
                        self._inner[value] = value.shape
                        value.shape = None

    def recall_ranks(self, edits: Edits) -> bool:
        """Where inference finds not even a rank, believe the rank (not the dimensions) that the exporter noted.

        Exporters leave out notes on outputs of If; then the notes on what reads them tell, when they agree.
        """
        recalled = False
        for graph in edits.model.graphs():
            for value in (value for node in graph for value in node.outputs):
                if value.shape is None and (rank := self._noted_rank(edits, value)) is not None:
                    value.shape = ir.Shape([None] * rank)
                    recalled = True
        return recalled

    def _noted_rank(self, edits: Edits, value: ir.Value) -> int | None:
        noted = self._inner.get(value)
        if noted is not None:
            return len(noted)
        ranks = {self._rank_told_by(edits, use.node) for use in value.uses() if use.idx == 0} - {None}
        return ranks.pop() if len(ranks) == 1 else None

    def _rank_told_by(self, edits: Edits, reader: ir.Node) -> int | None:
        """Rank of the first input of a node whose output's rank is known or noted."""
        if reader.op_type not in ("Identity", "Unsqueeze") or not is_standard(reader):
            return None
        output = reader.outputs[0]
        shape = output.shape if output.shape is not None else self._inner.get(output)
        if shape is None or reader.op_type == "Identity":
            return None if shape is None else len(shape)
        axes = edits.constant(reader.inputs[1]) if len(reader.inputs) > 1 else None
        return None if axes is None else len(shape) - axes.size

    def restore(self, edits: Edits, reshaped: bool) -> None:
        """Inputs and outputs get back exactly what they declared, unless inputs were given other shapes."""
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
            # The checker wants a shape on every output, even where the exporter wrote none.
            value.shape = _more_exact(value.shape, shape) if reshaped or shape is None else shape


def _more_exact(found: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Numbers where inference found them, the declared names elsewhere."""
    if found is None or declared is None or len(found) != len(declared):
        return found if found is not None else declared
    return ir.Shape([f if isinstance(f, int) else d for f, d in zip(found, declared, strict=True)])


def infer_shapes(edits: Edits, interface: Interface) -> None:
    """Write shapes and dtypes on every value where they follow; what cannot be inferred stays open."""
    infer(edits.model)
    if interface.recall_ranks(edits):
        infer(edits.model)
