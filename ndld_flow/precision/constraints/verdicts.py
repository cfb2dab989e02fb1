"""What becomes of a constraint where types are the model's: which places change, and what to say of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.models.element_types import Types, dtype_of, element_of
from ndld_flow.models.node_precision import FLOATING, INTEGERS, QUANTIZED
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import ALL_FLOATS, Group, Groups, group_places

BY_CASTS = "Casts in the model"
ALREADY = "the layer has it already"
BY_SCALES = "Q/DQ in the model"
IGNORED = "ignored: "
CALLS_FUNCTION = "it calls a local function; `sanitize` with `inline_functions: true` puts its nodes here"


@dataclass(frozen=True)
class Verdicts:
    """What is decided on every constraint of a model."""

    groups: Groups
    choice: Mapping[Group, ir.DataType]
    """Group of places -> the type it gets. The others stay as they are."""
    outcomes: Mapping[ir.Node, str]
    """Constrained node -> what becomes of it, in words."""


def decide(model: ir.Model, types: Types, asked: Mapping[ir.Node, str]) -> Verdicts:
    """Decide on nodes -> the precision each was asked for. Local functions must be inlined before."""
    floats = {node: FLOATING[precision] for node, precision in asked.items() if precision in FLOATING}
    groups = group_places(model, types, True, floats.get, ALL_FLOATS)
    casts = _Casting(types, groups.of_node(), floats)
    outcomes = {
        node: casts.outcome(node) if node in floats else _other_outcome(node, precision, types)
        for node, precision in asked.items()
    }
    return Verdicts(groups, casts.choice, outcomes)


@dataclass
class _Casting:
    """Decides on fp32, fp16 and bf16."""

    types: Types
    of_node: Mapping[ir.Node, list[Group]]
    floats: Mapping[ir.Node, ir.DataType]
    choice: dict[Group, ir.DataType] = field(default_factory=dict)

    def outcome(self, node: ir.Node) -> str:
        dtype = self.floats[node]
        if is_op(node, "Constant"):
            return f"{IGNORED}a constant has the type its readers want"
        if is_op(node, "Cast", "CastLike"):
            made = {self.types.get(value) for value in node.outputs}
            return ALREADY if made == {f"tensor({dtype.name.lower()})"} else f"{IGNORED}a Cast has the type it casts to"
        groups = self.of_node.get(node, [])
        if not groups:
            return f"{IGNORED}it has no floating-point tensors"
        free = [group for group in groups if not self._why_fixed(group, dtype)]
        if not free:
            return ALREADY if all(self._has(group, dtype) for group in groups) else self._refusal(groups, dtype)
        if all(self._has(group, dtype) for group in free):
            return ALREADY
        self.choice |= dict.fromkeys(free, dtype)
        return BY_CASTS

    def _refusal(self, groups: list[Group], dtype: ir.DataType) -> str:
        return IGNORED + next(reason for group in groups if (reason := self._why_fixed(group, dtype)))

    def _why_fixed(self, group: Group, dtype: ir.DataType) -> str:
        """Why a group cannot get the type; empty when it can."""
        others = [node for node in group.nodes if self.floats.get(node) != dtype]
        if others:
            return f"it hands on a sequence together with {others[0].op_type} {others[0].name!r}, which is not asked to"
        return group.kept

    def _has(self, group: Group, dtype: ir.DataType) -> bool:
        values = (*group.values, *(use.value for use in group.uses if use.value is not None))
        return all(dtype_of(self.types[value]) == dtype for value in values)


def _other_outcome(node: ir.Node, precision: str, types: Types) -> str:
    """What becomes of int8, fp8, int4, and of the integers that no Cast may make."""
    if precision in QUANTIZED:
        return _quantized_outcome(node, precision, types)
    wanted = INTEGERS[precision]
    made = [types[value] for value in node.outputs if types.get(value)]
    if made and all(dtype_of(type_) == wanted for type_ in made):
        return ALREADY
    has = ", ".join(dict.fromkeys(made)) or "nothing whose type is known"
    return f"{IGNORED}it makes {has}; {precision} would change what the model computes"


def _quantized_outcome(node: ir.Node, precision: str, types: Types) -> str:
    wanted = {dtype.name.lower() for dtype in QUANTIZED[precision]}
    if any(element_of(types.get(value, "")) in wanted for value in node.outputs):
        return ALREADY
    floats = [v for v in node.inputs if v is not None and element_of(types.get(v, "")) in ALL_FLOATS]
    # A bias stays as it is: TensorRT and ONNX Runtime have it in fp32 or int32.
    bare = [value for value in floats[:2] if not _is_dequantized(value, wanted, types)]
    if floats and not bare:
        return BY_SCALES
    where = f"its input {bare[0].name!r} comes through none" if bare else "it has no floating-point input"
    return f"{IGNORED}{precision} needs QuantizeLinear and DequantizeLinear, and {where}: quantise the model"


def _is_dequantized(value: ir.Value, wanted: set[str], types: Types) -> bool:
    maker = value.producer()
    stored = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else None
    return stored is not None and element_of(types.get(stored, "")) in wanted
