"""Shape inference by onnx, on a model whose own notes about inner tensors are not trusted."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ndld_flow.backends.sanitizing.edits import Edits, is_standard


class Interface:
    """Inputs and outputs as the model declared them, and inner shapes that inference may not find again."""

    def __init__(self, edits: Edits) -> None:
        graph = edits.model.graph
        self._declared = {v.name: (v.type, v.shape) for v in (*graph.inputs, *graph.outputs)}
        self._inner: dict[str | None, ir.Shape | None] = {}

    def forget_inner_shapes(self, edits: Edits) -> None:
        """Notes of exporters are sometimes wrong, and wrong shapes fold to wrong models."""
        for graph in edits.model.graphs():
            for node in graph:
                if is_standard(node):
                    for value in node.outputs:
                        self._inner[value.name] = value.shape
                        value.shape = None

    def restore(self, edits: Edits, reshaped: bool) -> None:
        """Inputs and outputs get back exactly what they declared, unless inputs were given other shapes."""
        graph = edits.model.graph
        for graph_ in edits.model.graphs():
            for node in graph_:
                for value in node.outputs:
                    _drop_made_up_names(value)
                    if value.shape is None and not reshaped:
                        value.shape = self._inner.get(value.name)
        for value in graph.outputs if reshaped else (*graph.inputs, *graph.outputs):
            type_, shape = self._declared[value.name]
            value.type = type_ if type_ is not None else value.type
            value.shape = _more_exact(value.shape, shape) if reshaped else shape


def _more_exact(found: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Numbers where inference found them, the declared names elsewhere."""
    if found is None or declared is None or len(found) != len(declared):
        return found if found is not None else declared
    return ir.Shape([f if isinstance(f, int) else d for f, d in zip(found, declared, strict=True)])


def _drop_made_up_names(value: ir.Value) -> None:
    """`unk__7` is inference's name for a dimension it does not know."""
    if value.shape is not None and any(_made_up(dim) for dim in value.shape):
        value.shape = ir.Shape([None if _made_up(dim) else dim for dim in value.shape])


def _made_up(dim: object) -> bool:
    return isinstance(dim, ir.SymbolicDim) and str(dim.value).startswith("unk__")


def set_input_shapes(edits: Edits, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give graph inputs other shapes. Names and ranks were checked before."""
    for value in edits.model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])


def infer_shapes(edits: Edits) -> None:
    """Write shapes and dtypes on every value where they follow; what cannot be inferred stays open."""
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(edits.model)
