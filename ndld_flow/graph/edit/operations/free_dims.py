"""Make dimensions of inputs dynamic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import DimName, Patterns

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class FreeDims(Operation):
    """Make dimensions of inputs dynamic, named or unnamed.

    An output that stays static is reported with the node that makes it static, such as a Reshape to a constant shape.

        free_dims: {axes: {0: batch, 2: height, 3: width}, select: image}
    """

    heading = "shapes"

    axes: dict[int, DimName | None] = Field(min_length=1)
    """Axis -> name of the dimension; null leaves it unnamed. Axes count from 0, or from the end by -1, -2, ..."""
    select: Patterns = ("*",)
    """Inputs to change, by names, globs or `/regex/`; all by default."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import change_shapes, pick, show_inputs
        from ndld_flow.models.input_shapes import dynamic_values, real_inputs, show_shape

        model = edited.model
        inputs = pick(real_inputs(model), self.select, "input")
        change_shapes(edited, {value.name or "": self._freed(value) for value in inputs}, {})
        for value in model.graph.outputs:
            if value not in dynamic_values(model):
                edited.note(f"output {value.name} is still {show_shape(value.shape)}{_where_fixed(model)}")
        return show_inputs(model)

    def _freed(self, value: ir.Value) -> list[int | str | None]:
        """Return the new shape of an input. Raises `RequestError` for an axis that it does not have."""
        if value.shape is None:
            raise RequestError(f"the shape of input {value.name!r} is unknown; set it with `set_shapes`")
        dims: list[int | str | None] = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for axis, name in self.axes.items():
            if not -len(dims) <= axis < len(dims):
                raise RequestError(
                    f"input {value.name!r} has {len(dims)} dimensions and no axis {axis}; restrict the inputs by "
                    "`select`"
                )
            dims[axis] = name
        return dims


def _where_fixed(model: ir.Model) -> str:
    """Return a description of the first node with dynamic inputs and static outputs."""
    from ndld_flow.models.input_shapes import show_shape
    from ndld_flow.models.scopes import node_label

    for node in model.graph:
        if any(value is not None and _is_free(value) for value in node.inputs) and not any(map(_is_free, node.outputs)):
            label = f"{node.op_type} {short_name(node_label(node))!r}"
            return f": {label} produces {show_shape(node.outputs[0].shape)} for any input"
    return ""


def _is_free(value: ir.Value) -> bool:
    return value.shape is None or any(not isinstance(dim, int) for dim in value.shape)
