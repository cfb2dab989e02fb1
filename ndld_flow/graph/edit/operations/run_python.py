"""Let a Python function change the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import DataFile, RunsCode

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RunPython(Operation):
    """Let a Python function change the model, for what no operation does.

    run_python: {file: my_edit.py, arguments: {factor: 2}}

    The function gets the model, an `onnx_ir.Model` whose external data stay on disk, and the arguments by name. It
    changes the model in place or returns another one, and the result is checked as that of any operation. Its
    contents and those of the modules beside it that it imports are part of the step's key; other files that it opens
    are not, unless it names them by `__file__`. It runs only when the recipe is trusted.
    """

    about = "rules and code"

    file: Annotated[Path, DataFile(), RunsCode()]
    """The Python file."""
    function: str = "edit"
    """The function in it, `def edit(model, ...)`."""
    arguments: dict[str, JsonValue] = Field(default={})
    """What it gets besides the model."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.python_edit import run_edit

        return run_edit(edited, self.file, self.function, self.arguments)
