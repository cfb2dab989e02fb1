"""Which nodes a rule selects.

A name takes its node in any case, an operator all its nodes that can have the precision, and a pattern those that
`convert_fp16` would convert too: nothing that fp16 is known to be too coarse for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.models.element_types import element_of, infer_types
from ndld_flow.models.node_precision import FLOATING, INTEGERS
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.op_signatures import is_known_op, is_op, known_op_types
from ndld_flow.models.type_groups import ALL_FLOATS, group_places
from ndld_flow.precision.constraints.verdicts import CALLS_FUNCTION
from ndld_flow.precision.fp16.choice import keep_shape_arithmetic, why_sensitive

_NARROW = ("fp16", "bf16")
_GIVES_TYPE = "it has the type it says"
_NO_FLOATS = "it has no floating-point tensors"


@dataclass(frozen=True)
class Rule:
    """A precision for the nodes of a name or of an operator."""

    where: str
    """Where it is written: `layers`, `op_types`, `list.txt:3`."""
    by: Literal["name", "operator"]
    pattern: str
    precision: str
    """One of `records.precision.PRECISIONS`, or `none`, which takes a constraint away."""


@dataclass(frozen=True)
class Selected:
    """What a rule selects."""

    nodes: tuple[ir.Node, ...]
    problem: str = ""
    """Why that is nothing, with the nearest right name; empty when it is something."""


class Selection:
    """Selects nodes of one model, its subgraphs included."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._nodes = list(model.graph.all_nodes())
        self._types = infer_types(model)
        self._obstacles: dict[str, dict[ir.Node, str]] = {}

    def select(self, rule: Rule) -> Selected:
        """The nodes a rule selects, and why not when there are none."""
        fitting = self._fitting(rule)
        if not fitting:
            return Selected((), f"{rule.where}: {self._unknown(rule)}")
        named = tuple(node for node in fitting if rule.by == "name" and node.name == rule.pattern)
        if named or rule.precision == "none":
            return Selected(named or tuple(fitting))
        obstacles = self._obstacles_of(rule.precision)
        if rule.by == "name" and rule.precision in _NARROW:
            obstacles = {node: why for node in fitting if (why := why_sensitive(node))} | obstacles
        able = [node for node in fitting if node not in obstacles]
        if able:
            return Selected(tuple(able))
        telling = next((node for node in fitting if obstacles[node] not in (_GIVES_TYPE, _NO_FLOATS)), fitting[0])
        fits = f"{rule.pattern!r} fits {len(fitting)} nodes, and none can be {rule.precision}"
        return Selected((), f"{rule.where}: {fits}; {telling.name!r}: {obstacles[telling]}")

    def _fitting(self, rule: Rule) -> list[ir.Node]:
        if rule.by == "operator":
            return [node for node in self._nodes if op_name(node) == rule.pattern]
        fits = name_matcher(rule.pattern)
        return [node for node in self._nodes if fits(node.name or "")]

    def _unknown(self, rule: Rule) -> str:
        if rule.by == "name":
            near = suggest(rule.pattern, (node.name or "" for node in self._nodes))
            return f"no node of this model has a name like {rule.pattern!r}: {near}"
        domain, _, name = rule.pattern.rpartition("::")
        if is_known_op(name, domain):
            return f"this model has no {rule.pattern}"
        near = suggest(rule.pattern, [*map(op_name, self._nodes), *known_op_types()])
        return f"there is no operator {rule.pattern!r}: {near}"

    def _obstacles_of(self, precision: str) -> dict[ir.Node, str]:
        """Node -> why it cannot have the precision; a node that can is missing."""
        if precision not in self._obstacles:
            by_type = self._not_integer if precision in INTEGERS else self._not_floating
            self._obstacles[precision] = by_type(precision)
        return self._obstacles[precision]

    def _not_integer(self, precision: str) -> dict[ir.Node, str]:
        element = INTEGERS[precision].name.lower()
        makes = {n for n in self._nodes if any(element_of(self._types.get(v, "")) == element for v in n.outputs)}
        return {node: f"it makes no {precision}" for node in self._nodes if node not in makes}

    def _not_floating(self, precision: str) -> dict[ir.Node, str]:
        """What converting to it would leave alone; int8, fp8 and int4 are for whatever has floats."""
        dtype = FLOATING.get(precision)
        groups = group_places(self._model, self._types, True, lambda node: dtype, ALL_FLOATS)
        if precision in _NARROW:
            keep_shape_arithmetic(self._model, groups)
        of_node = groups.of_node()
        obstacles: dict[ir.Node, str] = {}
        for node in self._nodes:
            members = of_node.get(node, [])
            if is_op(node, "Cast", "CastLike", "Constant"):
                obstacles[node] = _GIVES_TYPE
            elif node.op_identifier() in self._model.functions:
                obstacles[node] = CALLS_FUNCTION
            elif not members:
                obstacles[node] = _NO_FLOATS
            elif all(group.kept for group in members):
                obstacles[node] = members[0].kept
        return obstacles


def select_all(model: ir.Model, rules: Sequence[Rule]) -> tuple[dict[ir.Node, str], list[str]]:
    """Node -> the precision that the last rule says which selects it; and the problems of rules that select nothing."""
    selection = Selection(model)
    chosen: dict[ir.Node, str] = {}
    problems = []
    for rule in rules:
        selected = selection.select(rule)
        chosen |= dict.fromkeys(selected.nodes, rule.precision)
        if selected.problem:
            problems.append(selected.problem)
    return chosen, problems
