"""Run a Python function on the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import DataFile, RunsCode

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RunPython(Operation):
    """Run a Python function that changes the model, for edits that no operation covers.

    run_python: {file: my_edit.py, arguments: {factor: 2}}

    The function gets the model, an `onnx_ir.Model` whose external data stay on disk, and the arguments by name. It
    changes the model in place or returns another one, and the result is checked like that of any operation. Every
    file in the file's folder and below is part of the step's key. It runs only when the recipe is trusted.
    """

    heading = "rules and code"

    file: Annotated[Path, DataFile(), RunsCode()]
    """The Python file."""
    function: str = "edit"
    """Name of the function, `def edit(model, ...)`."""
    arguments: dict[str, JsonValue] = Field(default={})
    """Arguments, in addition to the model."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.base.user_code import load_user_module, locating_errors

        module = load_user_module(self.file)
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        if self.function not in known:
            nearest = suggest(self.function, known)
            raise RequestError(f"{self.file}: there is no function {self.function!r} in it; {nearest}")
        with locating_errors(self.file):
            returned = getattr(module, self.function)(edited.model, **self.arguments)
        if isinstance(returned, ir.Model):
            edited.model = returned
        if not isinstance(edited.model.graph, ir.Graph):
            raise RequestError(f"{self.file}: {self.function} leaves a model without a graph")
        if not isinstance(returned, ir.Model | str | None):
            raise RequestError(
                f"{self.file}: {self.function} returned {type(returned).__name__}; it may return an onnx_ir.Model, a "
                "string that describes the change, or nothing"
            )
        description = short_name(returned) if isinstance(returned, str) else ""
        return description or f"{self.function} of {self.file.name} ran"
