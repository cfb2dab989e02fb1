"""A model whose precision constraints are carried out by Casts: a strongly typed TensorRT obeys nothing else."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ndld_flow.models.element_types import infer_types
from ndld_flow.models.files import check_model, load_model, save_model, summarize_model
from ndld_flow.models.node_precision import precision_of
from ndld_flow.precision.constraints.constraints import check_precision
from ndld_flow.precision.constraints.ignored import tell_ignored
from ndld_flow.precision.constraints.losses import loss_notes
from ndld_flow.precision.constraints.verdicts import CALLS_FUNCTION, IGNORED, decide
from ndld_flow.precision.fp16.convert import prepare, refuse_broken
from ndld_flow.precision.fp16.rewrite import Rewriter
from ndld_flow.records.build import Constraint
from ndld_flow.records.graph_change import GraphChange


@dataclass(frozen=True)
class TypedModel:
    """What was done about a model's constraints."""

    constraints: tuple[Constraint, ...]
    """In the model's order, each with what became of it."""
    casts_added: int
    notes: tuple[str, ...]
    """Sentences for people."""
    change: GraphChange

    @property
    def ignored(self) -> tuple[Constraint, ...]:
        """Those that could not be carried out."""
        return tuple(constraint for constraint in self.constraints if constraint.outcome.startswith(IGNORED))


def write_typed_model(source: Path, target: Path, log: logging.Logger | None = None) -> TypedModel:
    """Write `source` to `target`, with each node that fp32, fp16 or bf16 was asked for computing in it.

    Only nodes with a constraint change their types, inputs and outputs stay as they are, and no Cast stands between
    neighbours of one precision. Weights are converted themselves, one by one, so that memory does not grow with the
    model. What cannot be carried out is told in the constraint's outcome (`ignored: ...`), and the node stays.
    Raises `ModelError` for a model that cannot be read, converted, or whose constraints cannot be understood.
    """
    model = load_model(source)
    functions = len(model.functions)
    try:
        done = _write(model, source, target)
    except (LookupError, TypeError, ValueError, AttributeError):
        check_model(source, full_check=True)
        raise
    refuse_broken(target, source, functions, log or logging.getLogger(__name__))
    return done


def _write(model: ir.Model, source: Path, target: Path) -> TypedModel:
    before = summarize_model(model)
    on_calls = [_call_outcome(node) for node in _constrained(model) if node.op_identifier() in model.functions]
    notes = prepare(model, source)
    asked = {node: _checked_precision(node) for node in _constrained(model)}
    types = infer_types(model)
    verdicts = decide(model, types, asked)
    rewriter = Rewriter(model, types, verdicts.groups, verdicts.choice, lambda done, total, what: None)
    if verdicts.choice:
        rewriter.rewrite()
    save_model(model, target)
    on_nodes = (
        Constraint(node=node.name or "", precision=precision, outcome=verdicts.outcomes[node])
        for node, precision in asked.items()
    )
    constraints, casts = (*on_calls, *on_nodes), rewriter.casts_added
    notes += [*loss_notes(rewriter.constants.losses), *tell_ignored(constraints)]
    change = GraphChange(before=before, after=summarize_model(model), casts_added=casts, notes=tuple(notes))
    return TypedModel(constraints, casts, tuple(notes), change)


def _constrained(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if precision_of(node)]


def _checked_precision(node: ir.Node) -> str:
    precision = precision_of(node)
    check_precision(precision, node.name or "")
    return precision


def _call_outcome(node: ir.Node) -> Constraint:
    return Constraint(node=node.name or "", precision=precision_of(node), outcome=IGNORED + CALLS_FUNCTION)
