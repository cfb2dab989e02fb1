"""The result of a precision search, applied to the model of a later step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.models.nodes import op_name
from ndld_flow.records.document import read_document
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch


def first_output(node: ir.Node) -> str:
    """Return the name of the first output that has one."""
    return next((value.name for value in node.outputs if value.name), "")


def read_search_result(path: Path) -> PrecisionSearch:
    """Read the result of a search. Raises `RequestError` for any other file."""
    try:
        return read_document(PrecisionSearch, path)
    except ValidationError as error:
        raise RequestError(f"{path} is not the result of a precision search: {error.errors()[0]['msg']}.") from None


def refuse_other_precision(search: PrecisionSearch, wanted: str, step: str) -> None:
    """Raise a `RequestError` if a search was for another precision than the step converts to."""
    if search.precision != wanted:
        raise RequestError(
            f"`found_by`: the search was for {search.precision}, but {step} converts to {wanted}, and each precision "
            f"breaks other nodes. Search with `precision: {wanted}`."
        )


def settings_notes(search: PrecisionSearch, model: str, settings: Mapping[str, object]) -> list[str]:
    """Return notes on settings that differ from the search's, whose set may then be wrong."""
    notes = [
        f"found_by: the search had `{name}: {_yaml(theirs)}`, but this step has {_yaml(settings[name])}: the nodes "
        "found may not be enough"
        for name, theirs in search.settings.items()
        if name in settings and settings[name] != theirs
    ]
    if search.model != model:
        notes.append(f"found_by: the search ran on the model of {search.model}, but this is the model of {model}")
    if not search.passed:
        notes.append("found_by: the search found no set that meets its bound; this is the best one it tried")
    return notes


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def reasons_of_found(model: ir.Model, search: PrecisionSearch) -> dict[ir.Node, str]:
    """Return the nodes of `model` that a search keeps -> why. Raises `RequestError` if one is missing."""
    return {
        node: f"found by search: {kept.cause}, {kept.evidence[0].sentence}"
        for kept in search.kept
        for node in _matching(model, search, kept)
    }


def find_kept_nodes(model: ir.Model, search: PrecisionSearch) -> list[ir.Node]:
    """Return the nodes of `model` that a search keeps, bodies included: by operator and first output, then by name.

    Raises `RequestError` if one is missing.
    """
    return list(reasons_of_found(model, search))


def _matching(model: ir.Model, search: PrecisionSearch, kept: KeptNode) -> list[ir.Node]:
    same_type = [node for node in model.graph.all_nodes() if op_name(node) == kept.op_type]
    output = _key_output(kept)
    by_output = [node for node in same_type if output and first_output(node) == output]
    matching = by_output or [node for node in same_type if kept.node and node.name == kept.node]
    if not matching:
        raise RequestError(_missing(same_type, search, kept))
    return matching


def _key_output(kept: KeptNode) -> str:
    return next((name for name in kept.outputs if name), "")


def _missing(same_type: Sequence[ir.Node], search: PrecisionSearch, kept: KeptNode) -> str:
    near = suggest(kept.node, [node.name for node in same_type if node.name])
    here = near.replace("known:", "this one has", 1) if same_type else f"this one has no {kept.op_type}"
    name = short_name(kept.node or _key_output(kept))
    return (
        f'`found_by`: the search ran on the model of {search.model}, and its {kept.op_type} "{name}" is not in '
        f"the model of this step; {here or 'none has a name'}. Give both steps the same `from`."
    )
