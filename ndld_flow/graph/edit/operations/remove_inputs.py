"""Remove inputs of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of, short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, TensorValue
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveInputs(Operation):
    """Remove unused inputs, or replace inputs by constants.

    An input with a default value (an initializer) becomes that constant.

        remove_inputs: {select: [training], replace_by: false}
    """

    heading = "inputs and outputs"

    select: Patterns
    """Inputs to remove, by names, globs or `/regex/`."""
    replace_by: JsonValue = None
    """The constant that replaces them: a number for every element, or lists in the input's shape."""
    replace_by_file: Annotated[Path | None, DataFile()] = None
    """The constant in a `.npy` file."""
    allow_empty: bool = False
    """Succeed when no name matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import pick
        from ndld_flow.models.input_shapes import show_tensors

        values = pick(edited.model.graph.inputs, self.select, "input", self.allow_empty)
        for value in values:
            if self.replace_by is None and self.replace_by_file is None:
                _remove(edited, value)
            else:
                _replace(edited, value, self._constant(value))
        return f"{counted(len(values), 'input')} removed: {show_tensors(values)}"

    def _constant(self, value: ir.Value) -> ir.TensorProtocol:
        """Return the constant, of the input's type; a single number fills the input's shape.

        Raises `RequestError` for a value of another type, and for a single number if the shape is dynamic.
        """
        from ndld_flow.graph.edit.constant_tensors import make_tensor

        if value.dtype is None:
            raise RequestError(f"the type of input {value.name!r} is unknown; set it with `set_dtypes` first")
        written, name = TensorValue(value=self.replace_by, file=self.replace_by_file), value.name or ""
        tensor = make_tensor(written, name, value.dtype)
        if value.shape is None or len(tensor.shape) or not len(value.shape):
            return tensor
        if not value.shape.is_static():
            raise RequestError(
                f"input {value.name!r} has dynamic dimensions, so one number does not determine its shape; fix them "
                "by `set_shapes` first, or give lists"
            )
        return make_tensor(written, name, value.dtype, tuple(value.shape.numpy()))


def _remove(edited: EditedModel, value: ir.Value) -> None:
    """Remove an unused input; one with a default value becomes that constant.

    Raises `RequestError` for an input that is used.
    """
    from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
    from ndld_flow.graph.edit.wiring import is_used, prune_values
    from ndld_flow.models.scopes import node_label

    if is_used(value) and not value.is_initializer():
        nodes = [f"{node.op_type} {short_name(node_label(node))!r}" for node in value.consumers()]
        readers = first_of(nodes, 3)
        raise RequestError(
            f"input {value.name!r} is read by {readers or 'an output'}; give a constant with `replace_by`, "
            "or remove its readers first"
        )
    edited.model.graph.inputs.remove(value)
    if value.is_initializer():
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    prune_values([value])


def _replace(edited: EditedModel, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Replace an input by a constant. Raises `RequestError` for a constant of another type or shape."""
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
    from ndld_flow.models.input_shapes import show_shape

    if value.dtype not in (None, tensor.dtype):
        raise RequestError(f"input {value.name!r} is {value.dtype}, but the value given is {tensor.dtype}")
    dims = tuple(tensor.shape.numpy())
    own = value.shape
    pairs = zip(own or (), dims, strict=False)
    if own is not None and (len(own) != len(dims) or any(isinstance(dim, int) and dim != new for dim, new in pairs)):
        raise RequestError(f"input {value.name!r} has the shape {show_shape(own)}, the value given {list(dims)}")
    edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
    graph = edited.model.graph
    graph.inputs.remove(value)
    value.const_value = tensor
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(dims)
    if not value.is_initializer():
        graph.register_initializer(value)
