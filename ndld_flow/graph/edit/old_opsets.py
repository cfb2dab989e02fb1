"""Copies of models of old opsets into which Casts can be inserted."""

from __future__ import annotations

import logging
from pathlib import Path

from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operations.model import SetOpset
from ndld_flow.models.files import OLDEST_OPSET, load_model


def raise_opset(source: Path, scratch: Path, log: logging.Logger) -> tuple[Path, list[str]]:
    """Return a model, or a copy in `scratch` of the oldest opset that can be converted, with a note on it.

    Names stay. Raises `RequestError` with the nodes that cannot be raised, and why.
    """
    model = load_model(source)
    opset = model.opset_imports.get("", OLDEST_OPSET)
    if opset >= OLDEST_OPSET:
        return source, []
    raised = scratch / f"opset_{OLDEST_OPSET}.onnx"
    entry = Entry(f"opset {opset} is too old for other precisions", SetOpset(to=OLDEST_OPSET))
    edit_file(EditedModel(model, source, log=log), [entry], raised)
    note = f"opset {opset} -> {OLDEST_OPSET} first: Casts need the broadcasting and the Cast of newer operators"
    return raised, [note]
