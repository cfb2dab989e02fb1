"""Where a body of If, Loop or Scan comes from, as a recipe says it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx


class BodySource(Operation):
    """An operation that puts a body in: written as text, or another model."""

    text: str | None = None
    """The body in ONNX's text form: `body (int64 i, bool c, float[N] x) => (bool go, float[N] y) {...}`. Names that it
    does not define mean tensors around the node."""
    model: Annotated[str | None, Reads(Onnx)] = None
    """Instead of `text`: an earlier step that makes a model, or a model of the recipe."""
    connect: dict[str, str] = Field(default={})
    """For `model`: its input -> a tensor around the node. What is left are the body's inputs; a branch of an If has
    none, it reads tensors of their names."""

    @model_validator(mode="after")
    def _check_one_body(self) -> Self:
        if (self.text is None) == (self.model is None):
            raise ValueError("say the body by `text` or by `model`")
        if self.connect and self.model is None:
            raise ValueError("`connect` belongs to `model`")
        return self
