"""Formulas for Erf in other operators, for runtimes where it is missing or slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, graph_of, known_shapes, label
from ndld_flow.graph.sanitize.edits import FLOATS, is_standard

# erf(x) = tanh(2 / sqrt(pi) * (x + 0.08943 x^3)), which makes Gelu its usual tanh approximation
_TANH_FACTOR, _TANH_CUBIC = 2 / math.sqrt(math.pi), 0.08943
# Abramowitz and Stegun, 7.1.26
_P = 0.3275911
_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


@dataclass(frozen=True)
class _Terms:
    """Inserts nodes before the one that is replaced."""

    edits: Rewriting
    node: ir.Node
    dtype: ir.DataType

    def __call__(self, op_type: str, *inputs: ir.Value | float) -> ir.Value:
        base = self.node.name or "erf"
        values = [self._value(one, f"{base}_{op_type}_constant") for one in inputs]
        return self.edits.put_for(self.node, op_type, values, wish=f"{base}_{op_type}")

    def _value(self, one: ir.Value | float, wish: str) -> ir.Value:
        if isinstance(one, ir.Value):
            return one
        return self.edits.constant_like(graph_of(self.node), one, self.dtype, wish)


@dataclass(frozen=True)
class Formula:
    """A formula, and its largest error in exact arithmetic."""

    write: Callable[[_Terms, ir.Value], ir.Value]
    largest_error: float


def replace_erfs(edited: EditedModel, nodes: Sequence[ir.Node], formula: str) -> int:
    """Replace Erf nodes by a formula, with a note on the error; returns their number.

    Raises `RequestError` for a node of unknown type.
    """
    edits = Rewriting(edited)
    erfs = [node for node in nodes if node.op_type == "Erf" and is_standard(node)]
    chosen = FORMULAS[formula]
    with known_shapes(edited.model):
        for node in erfs:
            source = node.inputs[0]
            dtype = node.outputs[0].dtype or (source.dtype if source is not None else None)
            if source is None or dtype not in FLOATS:
                raise RequestError(f"{label(node)}: its type must be a float and is unknown; inline functions first")
            edits.take_over(chosen.write(_Terms(edits, node, dtype), source), node.outputs[0])
            edits.remove(node)
    if erfs:
        edited.note(
            f"{len(erfs)} Erf by the {formula} formula: the error of each is at most {chosen.largest_error:.1e}"
        )
    return len(erfs)


def _tanh(put: _Terms, x: ir.Value) -> ir.Value:
    cubic = put("Mul", put("Mul", put("Mul", x, x), x), _TANH_CUBIC)
    return put("Tanh", put("Mul", put("Add", x, cubic), _TANH_FACTOR))


def _polynomial(put: _Terms, x: ir.Value) -> ir.Value:
    """sign(x) * (1 - (a1 t + ... + a5 t^5) exp(-x^2)) where t = 1 / (1 + p |x|)"""
    size = put("Abs", x)
    t = put("Reciprocal", put("Add", put("Mul", size, _P), 1.0))
    total = put("Mul", t, _A[0])
    for factor in _A[1:]:
        total = put("Mul", put("Add", total, factor), t)
    tail = put("Mul", total, put("Exp", put("Neg", put("Mul", x, x))))
    return put("Mul", put("Sign", x), put("Sub", 1.0, tail))


FORMULAS = {"tanh": Formula(_tanh, 3.6e-4), "polynomial": Formula(_polynomial, 1.5e-7)}
