"""Replace Erf by other operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NodeSelect, Select

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.graph_edits import OperationEdits


class ReplaceErf(Operation):
    """Replace Erf, a part of the exact Gelu, by other operators; the error is recorded.

    replace_erf: {by: tanh}
    """

    heading = "transformations"
    keeps_outputs = True

    by: Literal["tanh", "polynomial"]
    """`tanh`: the usual approximation of Gelu (error up to 3.6e-4); `polynomial`: as accurate as fp32 (error up to
    1.5e-7), uses Exp."""
    select: Select = NodeSelect(op_type=("Erf",))
    """Erf nodes; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when there is no Erf."""

    @property
    def keeps_values(self) -> bool:
        return self.by == "polynomial"

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, label
        from ndld_flow.graph.sanitize.edits import FLOATS, is_standard

        edits, formula = OperationEdits(edited), _FORMULAS[self.by]
        nodes = edited.select_nodes(self.select, self.allow_empty)
        erfs = [node for node in nodes if node.op_type == "Erf" and is_standard(node)]
        if not erfs and not self.allow_empty:
            raise RequestError("there is no Erf among the selected nodes; `allow_empty: true` accepts that")
        with known_shapes(edited.model):
            for node in erfs:
                source = node.inputs[0]
                dtype = node.outputs[0].dtype or (source.dtype if source is not None else None)
                if source is None or dtype not in FLOATS:
                    raise RequestError(
                        f"{label(node)}: its type must be a float and is unknown; inline functions first"
                    )
                edits.take_over(formula.write(_Terms(edits, node, dtype), source), node.outputs[0])
                edits.remove(node)
        if erfs:
            error = f"the error of each is at most {formula.largest_error:.1e}"
            edited.note(f"{len(erfs)} Erf replaced by the {self.by} formula: {error}")
        return f"{len(erfs)} Erf replaced"


@dataclass(frozen=True)
class _Terms:
    """Inserts nodes before the Erf that they replace."""

    edits: OperationEdits
    node: ir.Node
    dtype: ir.DataType

    def __call__(self, op_type: str, *inputs: ir.Value | float) -> ir.Value:
        from ndld_flow.graph.edit.graph_edits import graph_of

        wish = f"{self.node.name or 'erf'}_{op_type}"
        values = [
            self.edits.constant_like(graph_of(self.node), term, self.dtype, f"{wish}_constant")
            if isinstance(term, int | float)
            else term
            for term in inputs
        ]
        return self.edits.put_for(self.node, op_type, values, wish=wish)


# erf(x) = tanh(2 / sqrt(pi) * (x + 0.08943 x^3)), which makes Gelu its usual tanh approximation
_TANH_FACTOR, _TANH_CUBIC = 2 / math.sqrt(math.pi), 0.08943
# Abramowitz and Stegun, 7.1.26
_P = 0.3275911
_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _tanh(put: _Terms, x: ir.Value) -> ir.Value:
    cubic = put("Mul", put("Mul", put("Mul", x, x), x), _TANH_CUBIC)
    return put("Tanh", put("Mul", put("Add", x, cubic), _TANH_FACTOR))


def _polynomial(put: _Terms, x: ir.Value) -> ir.Value:
    """Return sign(x) * (1 - (a1 t + ... + a5 t^5) exp(-x^2)) where t = 1 / (1 + p |x|)."""
    size = put("Abs", x)
    t = put("Reciprocal", put("Add", put("Mul", size, _P), 1.0))
    total = put("Mul", t, _A[0])
    for factor in _A[1:]:
        total = put("Mul", put("Add", total, factor), t)
    tail = put("Mul", total, put("Exp", put("Neg", put("Mul", x, x))))
    return put("Mul", put("Sign", x), put("Sub", 1.0, tail))


@dataclass(frozen=True)
class _Formula:
    """A formula, and its largest error in exact arithmetic."""

    write: Callable[[_Terms, ir.Value], ir.Value]
    largest_error: float


_FORMULAS = {"tanh": _Formula(_tanh, 3.6e-4), "polynomial": _Formula(_polynomial, 1.5e-7)}
