"""What a model and its nodes say about themselves."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ndld_flow.errors import RequestError

_METADATA_SINCE = 10
"""IR version that brought metadata of nodes."""


def describe(subject: ir.Model | ir.Node, doc_string: str | None, metadata: Mapping[str, str | None]) -> None:
    """Write a doc string, unless it is None, and metadata; a key of None is removed."""
    if doc_string is not None:
        subject.doc_string = doc_string
    for key, value in metadata.items():
        if value is None:
            subject.metadata_props.pop(key, None)
        else:
            subject.metadata_props[key] = value


def describe_model(model: ir.Model, fields: Mapping[str, str | int | None], graph_name: str | None) -> None:
    """Set a model's own fields by name. Raises `RequestError` for a graph without a name, which ONNX wants."""
    for name, value in fields.items():
        setattr(model, name, value)
    if graph_name is not None:
        if not graph_name:
            raise RequestError("a graph needs a name")
        model.graph.name = graph_name
