"""Models whose precision constraints are implemented with Casts, as strongly typed TensorRT networks require."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.text import first_of
from ndld_flow.models.element_types import Types, dtype_of, element_of, infer_types, is_op
from ndld_flow.models.files import blaming_model, load_model, save_model, summarize_model
from ndld_flow.models.lazy_tensors import FORMATS, Loss
from ndld_flow.models.nodes import FLOATING, INTEGERS, QUANTIZED, precision_of
from ndld_flow.precision.constraints.constraints import check_precision, ignored_notes
from ndld_flow.precision.fp16.convert import Rewriter, prepare, refuse_broken
from ndld_flow.precision.type_groups import ALL_FLOATS, Group, Groups, group_places
from ndld_flow.records.build import Constraint
from ndld_flow.records.model_diff import GraphChange

_LOSSES_NAMED = 10
"""Maximum number of weights that are named."""


def loss_notes(losses: Sequence[Loss]) -> list[str]:
    """Return notes for each precision: the weights with values beyond its range, and those with values that vanish."""
    notes: list[str] = []
    for form in FORMATS.values():
        clamped = [loss for loss in losses if loss.format == form and loss.clamped]
        if clamped:
            count = sum(loss.clamped for loss in clamped)
            names = first_of([f"{loss.name} (largest {loss.largest:.4g})" for loss in clamped], _LOSSES_NAMED)
            notes.append(
                f"{count} weight values exceed {form.precision}'s {form.largest:.5g} and were clamped, in {names}"
            )
        vanished = [loss for loss in losses if loss.format == form and loss.vanished]
        if vanished:
            count = sum(loss.vanished for loss in vanished)
            names = first_of([f"{loss.name} ({loss.vanished} of {loss.size})" for loss in vanished], _LOSSES_NAMED)
            notes.append(
                f"{count} weight values are too small for {form.precision} and became 0 or its smallest, in {names}"
            )
    return notes


BY_CASTS = "Casts in the model"
ALREADY = "the layer has it already"
BY_SCALES = "Q/DQ in the model"
IGNORED = "ignored: "
CALLS_FUNCTION = "it calls a local function; `sanitize` with `inline_functions: true` puts its nodes here"


@dataclass(frozen=True)
class ConstraintPlan:
    """The plan for each constraint of a model."""

    groups: Groups
    choice: Mapping[Group, ir.DataType]
    """Group of places -> its new type. Other groups keep theirs."""
    outcomes: Mapping[ir.Node, str]
    """Constrained node -> the outcome of its constraint, as text."""


def plan_constraints(model: ir.Model, types: Types, requested: Mapping[ir.Node, str]) -> ConstraintPlan:
    """Plan how to give each node its requested precision. Local functions must be inlined first."""
    floats = {node: FLOATING[precision] for node, precision in requested.items() if precision in FLOATING}
    groups = group_places(model, types, True, floats.get, ALL_FLOATS)
    casts = _CastPlanner(types, groups.of_node(), floats)
    outcomes = {
        node: casts.outcome(node) if node in floats else _other_outcome(node, precision, types)
        for node, precision in requested.items()
    }
    return ConstraintPlan(groups, casts.choice, outcomes)


@dataclass
class _CastPlanner:
    """Plans constraints to fp32, fp16 and bf16."""

    types: Types
    of_node: Mapping[ir.Node, list[Group]]
    floats: Mapping[ir.Node, ir.DataType]
    choice: dict[Group, ir.DataType] = field(default_factory=dict)

    def outcome(self, node: ir.Node) -> str:
        dtype = self.floats[node]
        if is_op(node, "Constant"):
            return f"{IGNORED}a constant has the type that its consumers need"
        if is_op(node, "Cast", "CastLike"):
            types = {self.types.get(value) for value in node.outputs}
            return (
                ALREADY if types == {f"tensor({dtype.name.lower()})"} else f"{IGNORED}a Cast has the type it casts to"
            )
        groups = self.of_node.get(node, [])
        if not groups:
            return f"{IGNORED}it has no floating-point tensors"
        reasons = {group: self._why_fixed(group, dtype) for group in groups}
        free = [group for group, reason in reasons.items() if not reason]
        if all(self._has(group, dtype) for group in free or groups):
            return ALREADY
        if not free:
            return IGNORED + reasons[groups[0]]
        self.choice |= dict.fromkeys(free, dtype)
        return BY_CASTS

    def _why_fixed(self, group: Group, dtype: ir.DataType) -> str:
        """Return why a group cannot get the type; empty if it can."""
        others = [node for node in group.nodes if self.floats.get(node) != dtype]
        if others:
            return f"it shares a sequence with {others[0].op_type} {others[0].name!r}, which lacks the constraint"
        return group.kept

    def _has(self, group: Group, dtype: ir.DataType) -> bool:
        values = (*group.values, *(use.value for use in group.uses if use.value is not None))
        return all(dtype_of(self.types[value]) == dtype for value in values)


def _other_outcome(node: ir.Node, precision: str, types: Types) -> str:
    """Return the outcome for int8, fp8, int4, and for integers, to which no Cast may convert."""
    if precision in QUANTIZED:
        return _quantized_outcome(node, precision, types)
    wanted = INTEGERS[precision]
    outputs = [types[value] for value in node.outputs if types.get(value)]
    if outputs and all(dtype_of(type_) == wanted for type_ in outputs):
        return ALREADY
    has = ", ".join(dict.fromkeys(outputs)) or "no output of a known type"
    return f"{IGNORED}its output is {has}; {precision} would change the model's results"


def _quantized_outcome(node: ir.Node, precision: str, types: Types) -> str:
    wanted = {dtype.name.lower() for dtype in QUANTIZED[precision]}
    if any(element_of(types.get(value, "")) in wanted for value in node.outputs):
        return ALREADY
    floats = [v for v in node.inputs if v is not None and element_of(types.get(v, "")) in ALL_FLOATS]
    # A bias stays as it is: TensorRT and ONNX Runtime keep it in fp32 or int32.
    bare = [value for value in floats[:2] if not _is_dequantized(value, wanted, types)]
    if floats and not bare:
        return BY_SCALES
    where = f"its input {bare[0].name!r} has none" if bare else "it has no floating-point input"
    return f"{IGNORED}{precision} needs QuantizeLinear and DequantizeLinear, but {where}: quantize the model"


def _is_dequantized(value: ir.Value, wanted: set[str], types: Types) -> bool:
    maker = value.producer()
    stored = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else None
    return stored is not None and element_of(types.get(stored, "")) in wanted


@dataclass(frozen=True)
class TypedModel:
    """The outcome of a model's constraints."""

    constraints: tuple[Constraint, ...]
    """In the model's order, each with its outcome."""
    casts_added: int
    notes: tuple[str, ...]
    """Notes for the log and the report."""
    change: GraphChange

    @property
    def ignored(self) -> tuple[Constraint, ...]:
        """Constraints that could not be implemented."""
        return tuple(constraint for constraint in self.constraints if constraint.outcome.startswith(IGNORED))


def write_typed_model(source: Path, target: Path, log: logging.Logger | None = None) -> TypedModel:
    """Write `source` to `target` with each node that is constrained to fp32, fp16 or bf16 computing in that precision.

    Only constrained nodes change their types; inputs and outputs keep theirs, and no Cast is inserted between
    neighbours of the same precision. Weights are converted one by one, so that memory does not grow with the model. If
    a constraint cannot be implemented, its outcome gives the reason (`ignored: ...`) and the node is unchanged. Raises
    `ModelError` for a model that cannot be read or converted, and for invalid constraints.
    """
    model = load_model(source)
    functions = len(model.functions)
    with blaming_model(source):
        done = _write(model, source, target)
    refuse_broken(target, source, functions, log or logging.getLogger(__name__))
    return done


def _write(model: ir.Model, source: Path, target: Path) -> TypedModel:
    before = summarize_model(model)
    calls = [node for node in _constrained(model) if node.op_identifier() in model.functions]
    on_calls = [
        Constraint(node=node.name or "", precision=precision_of(node), outcome=IGNORED + CALLS_FUNCTION)
        for node in calls
    ]
    notes = prepare(model, source)
    requested = {node: precision_of(node) for node in _constrained(model)}
    for node, precision in requested.items():
        check_precision(precision, node.name or "")
    types = infer_types(model)
    plan = plan_constraints(model, types, requested)
    rewriter = Rewriter(model, types, plan.groups, plan.choice, lambda done, total, what: None)
    if plan.choice:
        rewriter.rewrite()
    save_model(model, target)
    on_nodes = (
        Constraint(node=node.name or "", precision=precision, outcome=plan.outcomes[node])
        for node, precision in requested.items()
    )
    constraints, casts = (*on_calls, *on_nodes), rewriter.casts_added
    notes += [*loss_notes(rewriter.constants.losses), *ignored_notes(constraints)]
    change = GraphChange(before=before, after=summarize_model(model), casts_added=casts, notes=tuple(notes))
    return TypedModel(constraints, casts, tuple(notes), change)


def _constrained(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if precision_of(node)]
