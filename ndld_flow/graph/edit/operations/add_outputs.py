"""Make tensors outputs of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Dims, Patterns

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class AddOutputs(Operation):
    """Make tensors of the main graph outputs of the model.

    add_outputs: {select: ["/backbone/*/Relu_output_0", features]}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    select: Patterns
    """Names, globs or `/regex/` of node outputs; inputs and initializers by their exact names. New outputs are
    appended to the existing ones."""
    dtype: str | None = None
    """Element type of tensors whose type cannot be inferred, such as outputs of custom operators."""
    shape: Dims | None = None
    """Shape of tensors whose shape cannot be inferred."""
    allow_empty: bool = False
    """Succeed when all of them are outputs already."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.models.input_shapes import show_tensors

        new = [value for value in self._chosen(edited) if not value.is_graph_output()]
        if not new and not self.allow_empty:
            raise RequestError("all of them are outputs already; `allow_empty: true` accepts that")
        self._declare(edited.model, new)
        edited.model.graph.outputs.extend(new)
        return f"{counted(len(new), 'output')} added: {show_tensors(new)}"

    def _chosen(self, edited: EditedModel) -> Iterable[ir.Value]:
        """Return the selected tensors. Raises `RequestError` for a pattern that matches none in the main graph."""
        from ndld_flow.graph.edit.edited_model import values_of

        graph = edited.model.graph
        computed = [value for node in graph for value in node.outputs if value.name]
        named = [value for value in values_of(graph) if value.name in self.select]
        chosen: dict[ir.Value, None] = {}
        for pattern in self.select:
            fits = name_matcher(pattern)
            matching = [value for value in named if value.name == pattern]
            matching = matching or [value for value in computed if fits(value.name or "")]
            if not matching:
                raise RequestError(_why_no_output(edited, pattern))
            chosen |= dict.fromkeys(matching)
        return chosen

    def _declare(self, model: ir.Model, values: Sequence[ir.Value]) -> None:
        """Set the type and rank of outputs, which ONNX requires. Raises `RequestError` for unknown ones."""
        import onnx_ir as ir

        from ndld_flow.graph.edit.interface import Declared
        from ndld_flow.models.element_types import dtype_of, infer_types
        from ndld_flow.models.shape_inference import infer_shapes

        given = Declared(self.dtype, self.shape)
        if any(value.type is None or value.shape is None for value in values):
            infer_shapes(model)
        types = infer_types(model) if any(value.type is None for value in values) and not model.functions else {}
        for value in values:
            inferred = types.get(value, "")
            if value.type is None:
                value.type = given.type
            if value.type is None and inferred.startswith("tensor("):
                value.type = ir.TensorType(dtype_of(inferred))
            if value.type is None:
                raise RequestError(f"the type of {value.name!r} cannot be inferred; give it with `dtype`")
            if value.shape is None and isinstance(value.type, ir.TensorType):
                value.shape = given.dims
                if value.shape is None:
                    raise RequestError(f"the shape of {value.name!r} cannot be inferred; give it with `shape`")


def _why_no_output(edited: EditedModel, pattern: str) -> str:
    from ndld_flow.graph.edit.edited_model import values_of
    from ndld_flow.models.input_shapes import suggest_tensor

    fits = name_matcher(pattern)
    for address, graph in edited.scopes().items():
        inside = next((value.name for value in values_of(graph) if fits(value.name or "")), None)
        if address and inside is not None:
            return (
                f"{short_name(inside)!r} is in {short_name(address)}, which may run any number of times, while a model "
                "has one value for each output. Make it an output of the subgraph first, or move the nodes out"
            )
    nearest = suggest_tensor(pattern, values_of(edited.model.graph))
    return f"no tensor has a name like {short_name(pattern)!r}; {nearest}"
