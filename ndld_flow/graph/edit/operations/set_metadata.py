"""Set metadata of the model or of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NewName, Select

if TYPE_CHECKING:
    from onnx_ir import Model, Node

    from ndld_flow.graph.edit.edited_model import EditedModel


class SetMetadata(Operation):
    """Set metadata of the model, or of nodes.

    set_metadata: {producer_name: ours, metadata: {license: Apache-2.0, draft: null}}
    """

    heading = "model"
    keeps_outputs = True

    producer_name: str | None = None
    """The tool that produced the model."""
    producer_version: str | None = None
    """Version of that tool."""
    model_version: int | None = None
    """Version of the model, an integer."""
    domain: str | None = None
    """Namespace of the model, such as `org.example`."""
    graph_name: NewName | None = None
    """Name of the main graph."""
    doc_string: str | None = None
    """Documentation of the model; with `select`, of the nodes."""
    metadata: dict[str, str | None] = Field(default={})
    """Key -> value; null removes the key. With `select`, of the nodes."""
    select: Select | None = None
    """Nodes to set `doc_string` and `metadata` of, instead of the model."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    @model_validator(mode="after")
    def _check_subject(self) -> Self:
        if self.select is not None and self._model_fields:
            raise ValueError(
                "nodes have only `doc_string` and `metadata`; set those of the model with another operation"
            )
        if not self._model_fields and self.doc_string is None and not self.metadata:
            raise ValueError("give something to set")
        return self

    @property
    def _model_fields(self) -> dict[str, str | int]:
        """Return the given fields that only a model has."""
        names = ("producer_name", "producer_version", "model_version", "domain", "graph_name")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def apply(self, edited: EditedModel) -> str:
        if self.select is not None:
            nodes = edited.select_nodes(self.select, self.allow_empty)
            for node in nodes:
                self._describe(node)
            return f"metadata set on {counted(len(nodes), 'node')}"
        for name, value in self._model_fields.items():
            if name == "graph_name":
                edited.model.graph.name = str(value)
            else:
                setattr(edited.model, name, value)
        self._describe(edited.model)
        doc = ["doc_string"] if self.doc_string is not None else []
        return f"set: {', '.join([*self._model_fields, *doc, *self.metadata])}"

    def _describe(self, subject: Model | Node) -> None:
        if self.doc_string is not None:
            subject.doc_string = self.doc_string
        for key, value in self.metadata.items():
            if value is None:
                subject.metadata_props.pop(key, None)
            else:
                subject.metadata_props[key] = value
