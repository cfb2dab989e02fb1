"""Set what the model, or nodes of it, say about themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetMetadata(Operation):
    """Set what the model, or nodes of it, say about themselves.

    set_metadata: {producer_name: ours, metadata: {license: Apache-2.0, draft: null}}
    """

    about = "the model"
    keeps_outputs = True

    producer_name: str | None = None
    """The tool that made the model."""
    producer_version: str | None = None
    """Its version."""
    model_version: int | None = None
    """The model's own version, a number."""
    domain: str | None = None
    """The model's name space, such as `org.example`."""
    graph_name: Annotated[str, Field(min_length=1)] | None = None
    """The main graph's name."""
    doc_string: str | None = None
    """Text about the model; with `select`, about the nodes."""
    metadata: dict[str, str | None] = Field(default={})
    """Key -> value; null removes the key. With `select`, of the nodes."""
    select: Select | None = None
    """Write `doc_string` and `metadata` on these nodes instead."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    @model_validator(mode="after")
    def _check_whose(self) -> Self:
        if self.select is not None and self._of_model:
            raise ValueError("nodes have `doc_string` and `metadata` only; set the model's in an operation of its own")
        if not self._of_model and self.doc_string is None and not self.metadata:
            raise ValueError("say what to set")
        return self

    @property
    def _of_model(self) -> dict[str, str | int]:
        """What only a model says, where it is said."""
        names = ("producer_name", "producer_version", "model_version", "domain", "graph_name")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.metadata import describe, describe_model

        if self.select is not None:
            nodes = edited.select_nodes(self.select, self.allow_empty)
            for node in nodes:
                describe(node, self.doc_string, self.metadata)
            return f"metadata set on {len(nodes)} nodes"
        describe_model(edited.model, self._of_model)
        describe(edited.model, self.doc_string, self.metadata)
        doc = ["doc_string"] if self.doc_string is not None else []
        return f"set: {', '.join([*self._of_model, *doc, *self.metadata])}"
