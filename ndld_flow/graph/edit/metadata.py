"""What a model and its nodes say about themselves."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir


def describe(subject: ir.Model | ir.Node, doc_string: str | None, metadata: Mapping[str, str | None]) -> None:
    """Write a doc string, unless it is None, and metadata; a key of None is removed."""
    if doc_string is not None:
        subject.doc_string = doc_string
    for key, value in metadata.items():
        if value is None:
            subject.metadata_props.pop(key, None)
        else:
            subject.metadata_props[key] = value


def describe_model(model: ir.Model, fields: Mapping[str, str | int]) -> None:
    """Set a model's own fields by name, `graph_name` among them."""
    for name, value in fields.items():
        if name == "graph_name":
            model.graph.name = str(value)
        else:
            setattr(model, name, value)
