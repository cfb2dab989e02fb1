"""Writers of models at a reduced precision with some nodes kept: the trials of a precision search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.models.element_types import has_subgraphs, infer_types, is_op
from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.nodes import nodes_named, op_name
from ndld_flow.precision.constraints.rules import NodeSelector, Rule, constrain_file, reasons_of_found
from ndld_flow.precision.constraints.typed_model import plan_constraints, write_typed_model
from ndld_flow.precision.fp16.choice import (
    Fp16Options,
    blocked_nodes,
    choose_fp32,
    keep_blocked,
    keep_shape_arithmetic,
    why_sensitive,
)
from ndld_flow.precision.fp16.convert import Rewriter, convert_to_fp16, prepare, refuse_broken
from ndld_flow.precision.type_groups import group_places
from ndld_flow.records.precision_search import PrecisionSearch


@dataclass(frozen=True)
class SearchedNode:
    """A node of the searched model."""

    position: int
    """Index in the order of execution, from 0; nodes of a body follow the node that has the body."""
    name: str
    op_type: str
    outputs: tuple[str, ...]

    @property
    def output(self) -> str:
        """The first output that has a name."""
        return next(filter(None, self.outputs), "")

    @property
    def label(self) -> str:
        """Name, or operator and output if it has none."""
        return self.name or f"{self.op_type} -> {self.output}"


class Reducer(Protocol):
    """Writes one model repeatedly, each time with different nodes kept."""

    @property
    def nodes(self) -> Sequence[SearchedNode]:
        """All nodes, by position."""

    @property
    def candidates(self) -> Sequence[int]:
        """Positions of the nodes that change when nothing is kept, in order."""

    @property
    def always_kept(self) -> Mapping[int, str]:
        """Positions of nodes that support the precision but never get it -> reason."""

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        """Settings that a later step must share to use the result."""

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model to `target` with all candidates except `kept` reduced. Raises `ModelError`."""

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as the step that uses the search's result does."""


def searched_nodes(model: ir.Model) -> tuple[SearchedNode, ...]:
    """Return all nodes of a model, bodies included."""
    return tuple(
        SearchedNode(position, node.name or "", op_name(node), tuple(value.name or "" for value in node.outputs))
        for position, node in enumerate(model.graph.all_nodes())
    )


Chosen = Callable[[ir.Model], Mapping[ir.Node, str]]

_QUIET = logging.getLogger(__name__)
_QUIET.propagate = False
_QUIET.addHandler(logging.NullHandler())


class Fp16Reducer:
    """Keeps nodes in fp32 in addition to `keep` (names and globs) and sensitive ones; writes as `convert_fp16` does.

    Raises `ModelError` for a model that cannot be read, `RequestError` for a name that fits no node.
    """

    def __init__(self, source: Path, keep: Sequence[str], keep_io: bool, sensitive: bool) -> None:
        self._source = source
        self._keep = keep
        request = self._request = Fp16Options(keep_io=keep_io, keep_sensitive=sensitive, chosen=self._kept_by_name)
        model = load_model(source)
        prepare(model, source)
        self.nodes = searched_nodes(model)
        self.candidates, self.always_kept = _fp16_candidates(model, request)

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        return {"keep_io": self._request.keep_io is True, "sensitive": self._request.keep_sensitive}

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model with the nodes `kept` in fp32."""

        def at_positions(model: ir.Model) -> dict[ir.Node, str]:
            return {node: "tried" for position, node in enumerate(model.graph.all_nodes()) if position in kept}

        self._convert(at_positions, target)

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write and check the model as `convert_fp16` with `found_by` does."""
        self._convert(lambda model: reasons_of_found(model, search), target)
        refuse_broken(target, self._source, 0, _QUIET)

    def _convert(self, chosen: Chosen, target: Path) -> None:
        request = replace(self._request, chosen=lambda model: {**self._kept_by_name(model), **chosen(model)})
        convert_to_fp16(self._source, target, request, _QUIET, lambda done, total, what: None)

    def _kept_by_name(self, model: ir.Model) -> dict[ir.Node, str]:
        named = nodes_named(model, self._keep, "keep")
        return {node: f"keep {pattern!r}" for pattern, nodes in named.items() for node in nodes}


def _fp16_candidates(model: ir.Model, request: Fp16Options) -> tuple[tuple[int, ...], dict[int, str]]:
    """Return the positions of nodes that become fp16, and of those that could but do not -> reason."""
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
            # Keeping a node with bodies would keep everything inside; the inner nodes are candidates themselves.
            candidates += [] if has_subgraphs(node) else [position]
        else:
            kept[position] = members[0].kept
    return tuple(candidates), kept


_FIRST_OPSET = 13
_EVERYTHING = Rule("find_precision", "name", "*", "bf16")


class Bf16Reducer:
    """Gives bf16 to every node that supports it, except those that are kept in fp32.

    Written as `constrain_precision` with `{"*": bf16}` and `apply_precision` do. Raises `ModelError` for a model that
    cannot be read or calls local functions.
    """

    def __init__(self, source: Path, keep: Sequence[str]) -> None:
        self._source = source
        model = load_model(source)
        if model.functions:
            raise ModelError(
                f"{source}: the model calls local functions, whose nodes cannot be constrained. Inline them with step "
                "`sanitize` and `inline_functions: true`."
            )
        opset = model.opset_imports.get("", _FIRST_OPSET)
        if opset < _FIRST_OPSET:
            raise RequestError(
                f"{source}: bf16 requires opset {_FIRST_OPSET} or later, but the model has {opset}. Convert it first "
                "(step edit, operation set_opset)."
            )
        prepare(model, source)
        self.nodes = searched_nodes(model)
        able = set(NodeSelector(model).select(_EVERYTHING).nodes)
        kept = {node for nodes in nodes_named(model, keep, "keep").values() for node in nodes}
        nodes_by_position = dict(enumerate(model.graph.all_nodes()))
        self._reduced = frozenset(
            position for position, node in nodes_by_position.items() if node in able and node not in kept
        )
        # Keeping a node with bodies does not keep the nodes inside them.
        self.candidates = tuple(
            position for position in sorted(self._reduced) if not has_subgraphs(nodes_by_position[position])
        )
        sensitive = {position: why for position, node in nodes_by_position.items() if (why := why_sensitive(node))}
        named = {position: "keep" for position, node in nodes_by_position.items() if node in kept and node in able}
        self.always_kept = sensitive | named

    settings: Mapping[str, bool | int | float | str] = {}

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model with the nodes `kept` in fp32."""
        model = load_model(self._source)
        prepare(model, self._source)
        reduced = self._reduced - kept
        precisions = {node: "bf16" for position, node in enumerate(model.graph.all_nodes()) if position in reduced}
        types = infer_types(model)
        plan = plan_constraints(model, types, precisions)
        Rewriter(model, types, plan.groups, plan.choice, lambda done, total, what: None).rewrite()
        save_model(model, target)

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as `constrain_precision` with `found_by` and `apply_precision` do."""
        constrained = target.with_name("constrained.onnx")
        constrain_file(self._source, constrained, [_EVERYTHING], keep=True, allow_empty=False, found=search)
        write_typed_model(constrained, target)
