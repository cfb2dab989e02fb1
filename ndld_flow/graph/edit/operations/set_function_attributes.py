"""Set attributes of a local function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetFunctionAttributes(Operation):
    """Set attributes of a local function and their defaults, and let nodes in it refer to them.

    set_function_attributes:
      function: "model::Layer"
      attributes: {slope: 0.1}
      references: {LeakyRelu_3: {alpha: slope}}
    """

    heading = "local functions"

    function: str
    """`domain::Name`, or the name alone."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Attribute -> default; `null` means no default: nodes that refer to it lack the attribute unless the call sets
    it."""
    references: dict[str, dict[str, str]] = Field(default={})
    """Node in the function -> its attribute -> the function's attribute that it refers to. A function attribute that is
    not in `attributes` gets the node's value as its default."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not (self.attributes or self.references):
            raise ValueError("give `attributes`, `references`, or both")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.functions import find_function, set_attributes

        function = find_function(edited.model, self.function)
        references = set_attributes(edited, function, self.attributes, self.references)
        return f"{self.function}: {len(self.attributes)} attributes set, {references} references added"
