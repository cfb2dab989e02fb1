"""Extract a local function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, JsonValue

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ExtractFunction(Operation):
    """Keep only a local function, as a model with the types and attributes of a call.

    extract_function: {function: "pkg.nn::Attention", call: layer_3, attributes: {heads: 8}}
    """

    heading = "extracting and combining"

    function: str
    """`domain::Name`."""
    call: str | None = None
    """The calling node, whose inputs give the types and whose attributes give the values; the first by default."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Values of the function's attributes, instead of those of the call and of the defaults."""
    types: dict[str, str] = Field(default={})
    """Input or output of the function -> `float32[1, 3, H, ?]`, instead of the call's."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_function

        keep_function(edited, self.function, self.call, self.attributes, self.types)
        return f"{self.function} with {counted(len(edited.model.graph), 'node')} kept"
