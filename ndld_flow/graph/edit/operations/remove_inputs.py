"""Remove inputs that nothing reads, or make constants of inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import JsonValue

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveInputs(Operation):
    """Remove inputs that nothing reads, or make constants of inputs.

    An input with a default value (an initializer) becomes that constant.

        remove_inputs: {inputs: [training], replace_by: false}
    """

    about = "inputs and outputs"

    inputs: Patterns
    """Names, globs or `/regex/`."""
    replace_by: JsonValue = None
    """The value they have from now on, as a constant: a number for every element, or lists in the input's shape."""
    replace_by_file: Annotated[Path | None, DataFile()] = None
    """The same from a `.npy` file."""
    allow_empty: bool = False
    """Let it pass when no name fits."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.input_values import constant_for
        from ndld_flow.graph.edit.interface import fix_input, pick, remove_input

        values = pick(edited.model.graph.inputs, self.inputs, "input", self.allow_empty)
        for value in values:
            if self.replace_by is None and self.replace_by_file is None:
                remove_input(edited, value)
            else:
                fix_input(edited, value, constant_for(value, self.replace_by, self.replace_by_file))
        return f"{len(values)} inputs removed: {', '.join(str(value.name) for value in values)}"
