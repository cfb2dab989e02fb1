"""Remove inputs of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, TensorValue
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    from onnx_ir import TensorProtocol, Value

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
        from ndld_flow.graph.edit.interface import fix_input, pick, remove_input

        values = pick(edited.model.graph.inputs, self.select, "input", self.allow_empty)
        for value in values:
            if self.replace_by is None and self.replace_by_file is None:
                remove_input(edited, value)
            else:
                fix_input(edited, value, self._constant(value))
        return f"{len(values)} inputs removed: {', '.join(str(value.name) for value in values)}"

    def _constant(self, value: Value) -> TensorProtocol:
        """Return the constant, of the input's type; a single number fills the input's shape.

        Raises `RequestError` for a value of another type, and for a single number where the shape is dynamic.
        """
        from ndld_flow.graph.edit.constant_tensors import make_tensor

        if value.dtype is None:
            raise RequestError(f"the type of input {value.name!r} is unknown; set it by `set_dtypes` first")
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
