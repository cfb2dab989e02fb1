"""Settings that operations which make nodes share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ndld_flow.graph.edit.attribute_values import AttributeValue
from ndld_flow.graph.edit.operation import Operation


class MakesNode(Operation):
    """Base of operations that say an operator with its attributes."""

    op_type: str = Field(min_length=1)
    """The operator, such as `Relu`."""
    domain: str = ""
    """Its domain, such as `com.microsoft`; imported where the model does not. What is in no domain of ONNX or ONNX
    Runtime is a custom operator, and nothing of it is checked."""
    attributes: dict[Annotated[str, Field(min_length=1)], AttributeValue] = Field(default={})
    """Attribute -> its value, as in `set_attributes`."""

    @property
    def own_domain(self) -> str:
        """As models write it: empty for ONNX's own."""
        return "" if self.domain == "ai.onnx" else self.domain
