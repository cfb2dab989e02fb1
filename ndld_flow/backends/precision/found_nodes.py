"""The nodes that a precision search found, in the model of the step that uses its result."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import onnx_ir as ir
from pydantic import ValidationError

from ndld_flow.backends.models.node_selection import op_name
from ndld_flow.errors import RequestError
from ndld_flow.nearest import say_nearest
from ndld_flow.plain_text import short_name
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch

NodeKey = tuple[str, str]
"""Operator and first output: what a node is known by, for names may be empty or repeat."""


def node_key(node: ir.Node) -> NodeKey:
    """What a node is known by in a `PrecisionSearch`."""
    return op_name(node), first_output(node)


def first_output(node: ir.Node) -> str:
    """The name of the first output that has one."""
    return next((value.name for value in node.outputs if value.name), "")


def read_found(path: Path) -> PrecisionSearch:
    """The result of a search. Raises `RequestError` when the file is none."""
    try:
        return PrecisionSearch.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise RequestError(f"{path} is not the result of a precision search: {error.errors()[0]['msg']}.") from None


def refuse_other_precision(search: PrecisionSearch, wanted: str, step: str) -> None:
    """Raise a `RequestError` when a search was made for another precision than the step makes."""
    if search.precision != wanted:
        raise RequestError(
            f"`found_by`: the search was made for {search.precision}, and {step} makes {wanted}: what breaks in one "
            f"is not what breaks in the other. Search with `precision: {wanted}`."
        )


def match_found(model: ir.Model, search: PrecisionSearch) -> list[ir.Node]:
    """The nodes of `model` that a search keeps, bodies included: by operator and first output, then by name.

    Raises `RequestError` when one is not there.
    """
    by_key: dict[NodeKey, list[ir.Node]] = defaultdict(list)
    by_name: dict[tuple[str, str], list[ir.Node]] = defaultdict(list)
    for node in model.graph.all_nodes():
        by_key[node_key(node)].append(node)
        by_name[op_name(node), node.name or ""].append(node)
    found = []
    for kept in search.kept:
        nodes = by_key.get((kept.op_type, _key_output(kept))) or by_name.get((kept.op_type, kept.node), [])
        if not nodes or not (kept.node or kept.outputs):
            raise RequestError(_missing(model, search, kept))
        found += nodes
    return list(dict.fromkeys(found))


def _key_output(kept: KeptNode) -> str:
    return next((name for name in kept.outputs if name), "")


def _missing(model: ir.Model, search: PrecisionSearch, kept: KeptNode) -> str:
    names = [node.name for node in model.graph.all_nodes() if op_name(node) == kept.op_type and node.name]
    near = say_nearest(kept.node, names)
    said = (
        f" (of this operator here: {near.removeprefix('known: ')})" if near else f" (there is no {kept.op_type} here)"
    )
    return (
        f"`found_by`: the search was made on the model of {search.model}, and its {kept.op_type} "
        f'"{short_name(kept.node or _key_output(kept))}" is not in this one{said}. Search on the model that is '
        "converted: give both steps the same `from`."
    )
