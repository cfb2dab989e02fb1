"""Hand the model to a function of a person's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.graph.edit.edited_model import EditedModel


def run_edit(edited: EditedModel, path: Path, function: str, arguments: Mapping[str, JsonValue]) -> str:
    """Call a function with the model; returns what it did, in its own words if it returns a text.

    Raises `RequestError` when there is no such function, for what it raises, with its line, and when it returns what is
    neither a model nor a text.
    """
    module = load_user_module(path)
    known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    if function not in known:
        raise RequestError(f"{path}: there is no function {function!r} in it; {suggest(function, known)}")
    with locating_errors(path):
        returned = getattr(module, function)(edited.model, **arguments)
    if isinstance(returned, ir.Model):
        edited.model = returned
    if not isinstance(edited.model.graph, ir.Graph):
        raise RequestError(f"{path}: {function} leaves a model without a graph")
    if not isinstance(returned, ir.Model | str | None):
        kind = type(returned).__name__
        raise RequestError(f"{path}: {function} returned {kind}: it returns nothing, an onnx_ir.Model, or what it did")
    told = returned if isinstance(returned, str) else ""
    return short_name(told) or f"{function} of {path.name} ran"
