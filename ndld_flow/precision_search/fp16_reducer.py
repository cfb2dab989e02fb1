"""A model in fp16 with some of its nodes kept, written as `convert_fp16` writes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ndld_flow.models.element_types import infer_types, subgraphs_of
from ndld_flow.models.files import load_model
from ndld_flow.models.node_selection import nodes_named
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import group_places
from ndld_flow.precision.constraints.found_nodes import found_reasons
from ndld_flow.precision.fp16.block import Fp16Request, blocked_nodes
from ndld_flow.precision.fp16.choice import choose_fp32, keep_blocked, keep_shape_arithmetic
from ndld_flow.precision.fp16.convert import convert_to_fp16, prepare, refuse_broken
from ndld_flow.precision_search.reducing import searched_nodes
from ndld_flow.records.precision_search import PrecisionSearch

Chosen = Callable[[ir.Model], Mapping[ir.Node, str]]

_QUIET = logging.getLogger(__name__)
_QUIET.propagate = False
_QUIET.addHandler(logging.NullHandler())


class Fp16Reducer:
    """Keeps nodes in fp32, beside `keep` (names and globs) and the sensitive ones.

    Raises `ModelError` for a model that cannot be read, `RequestError` for a name that fits no node.
    """

    def __init__(self, source: Path, keep: Sequence[str], keep_io: bool, sensitive: bool) -> None:
        self._source = source
        self._keep = keep
        request = self._request = Fp16Request(keep_io=keep_io, keep_sensitive=sensitive, chosen=self._asked)
        model = load_model(source)
        prepare(model, source)
        self.nodes = searched_nodes(model)
        self.candidates, self.always_kept = _halved(model, request)

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        return {"keep_io": self._request.keep_io, "sensitive": self._request.keep_sensitive}

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model with these nodes in fp32."""
        self._convert(lambda model: _at(model, kept), target)

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as `convert_fp16` with `found_by` does, and check it as it does."""
        self._convert(lambda model: found_reasons(model, search), target)
        refuse_broken(target, self._source, 0, _QUIET)

    def _convert(self, chosen: Chosen, target: Path) -> None:
        request = replace(self._request, chosen=lambda model: {**self._asked(model), **chosen(model)})
        convert_to_fp16(self._source, target, request, _QUIET, lambda done, total, what: None)

    def _asked(self, model: ir.Model) -> dict[ir.Node, str]:
        named = nodes_named(model, self._keep, "keep")
        return {node: f"keep {pattern!r}" for pattern, nodes in named.items() for node in nodes}


def _at(model: ir.Model, positions: Collection[int]) -> dict[ir.Node, str]:
    return {node: "tried" for position, node in enumerate(model.graph.all_nodes()) if position in positions}


def _halved(model: ir.Model, request: Fp16Request) -> tuple[tuple[int, ...], dict[int, str]]:
    """Positions of nodes that become fp16, and of those that could hold it and do not -> why."""
    groups = group_places(model, infer_types(model), request.keep_io)
    keep_blocked(groups, blocked_nodes(model, request, []))
    keep_shape_arithmetic(model, groups)
    fp32 = choose_fp32(groups)
    of_node = groups.of_node()
    candidates: list[int] = []
    kept = {}
    for position, node in enumerate(model.graph.all_nodes()):
        members = of_node.get(node, [])
        if not members or is_op(node, "Cast"):
            continue
        if any(group not in fp32 for group in members):
            # Keeping a node with bodies would keep all that is in them: these nodes are candidates themselves.
            candidates += [] if any(subgraphs_of(node)) else [position]
        else:
            kept[position] = members[0].kept
    return tuple(candidates), kept
