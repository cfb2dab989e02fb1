"""Gates: sentences such as `speed.latency.median <= 1.05 * base.latency.median` that a run must satisfy."""

from __future__ import annotations

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ndld_flow.nearest import say_nearest
from ndld_flow.records.metric import Metric
from ndld_flow.records.run_record import GateResult
from ndld_flow.units import parse_bytes, parse_duration_ms

COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.Eq: operator.eq,
}
ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
QUANTITY = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(%|(?:ns|us|µs|ms|s|min|[KMGT]i?B|B)(?![\w.]))")
MAX_LENGTH = 500


class GateError(ValueError):
    """A gate that cannot be read, or that names what is not there."""


@dataclass(frozen=True)
class Expression:
    """Arithmetic over metrics, such as `speed.latency.median / base.latency.median`."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> list[str]:
        """The metrics it names, as `step.metric`."""
        return _names(self.tree)

    def evaluate(self, metrics: Mapping[str, Metric]) -> Metric:
        """Its value for `step.metric` -> value, with a unit where the arithmetic keeps one.

        Raises GateError for a metric that is not there, and for a division by zero.
        """
        return Metric(value=_evaluate(self.tree, metrics), unit=_unit(self.tree, metrics) or "")


@dataclass(frozen=True)
class Gate:
    """A parsed gate."""

    text: str
    left: Expression
    comparison: type[ast.cmpop]
    right: Expression

    @property
    def names(self) -> list[str]:
        """The metrics it names, as `step.metric`."""
        return [*self.left.names, *self.right.names]

    def decide(self, metrics: Mapping[str, Metric]) -> GateResult:
        """Whether the sentence holds for `step.metric` -> value. Raises GateError for a metric that is not there."""
        left, right = self.left.evaluate(metrics), self.right.evaluate(metrics)
        units = {side.unit for side, part in ((left, self.left), (right, self.right)) if part.names}
        return GateResult(
            gate=self.text,
            passed=COMPARISONS[self.comparison](left.value, right.value),
            left=left.value,
            right=right.value,
            unit=units.pop() if len(units) == 1 else "",
        )

    def violation(self, metrics: Mapping[str, Metric]) -> float:
        """How far the sentence is from holding: 0 when it holds, else the distance of its sides relative to the bound.

        The bound is the side that names no metric, or the right one; where it is 0 the distance itself counts.
        Infinite where a side is no number. Raises GateError for a metric that is not there.
        """
        result = self.decide(metrics)
        if result.passed:
            return 0.0
        bound = result.right if self.left.names else result.left
        distance = abs(result.left - result.right) / (abs(bound) or 1.0)
        return max(distance, sys.float_info.min) if math.isfinite(distance) else math.inf


@lru_cache
def parse_gate(text: str) -> Gate:
    """Parse `<expression> <= <expression>` with + - * / and parentheses over metrics, numbers and quantities.

    Quantities: `20 ms`, `64 MiB`, `5 %`. Raises GateError with what is wrong.
    """
    tree = _parse(text, "this is not a comparison such as `speed.latency.median <= 20 ms`")
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in COMPARISONS:
        raise GateError("a gate compares two sides with one of <= < >= > ==")
    left, right = (_check_expression(ast.unparse(side), side) for side in (tree.left, tree.comparators[0]))
    gate = Gate(text, left, type(tree.ops[0]), right)
    if not gate.names:
        raise GateError("a gate names at least one metric, as `step.metric`")
    return gate


def parse_expression(text: str) -> Expression:
    """Parse arithmetic over metrics, as it stands on either side of a gate. Raises GateError with what is wrong."""
    tree = _parse(text, "this is no metric such as `speed.latency.median`, and no arithmetic over metrics")
    expression = _check_expression(text, tree)
    if not expression.names:
        raise GateError("name at least one metric, as `step.metric`")
    return expression


def _parse(text: str, complaint: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise GateError(f"a gate has at most {MAX_LENGTH} characters")
    try:
        return ast.parse(QUANTITY.sub(_plain_number, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise GateError(complaint) from None


def _check_expression(text: str, tree: ast.expr) -> Expression:
    _check(tree)
    return Expression(text, tree)


def _plain_number(match: re.Match[str]) -> str:
    number, unit = match.groups()
    if unit == "%":
        return repr(float(number) / 100)
    if unit.endswith("B"):
        return repr(parse_bytes(f"{number} {unit}"))
    return repr(parse_duration_ms(f"{number} {unit}"))


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return f"{head}.{node.attr}" if head else None
    return None


def _names(node: ast.expr) -> list[str]:
    dotted = _dotted(node)
    if dotted is not None:
        return [dotted]
    return [name for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr) for name in _names(child)]


def _check(node: ast.expr) -> None:
    dotted = _dotted(node)
    if dotted is not None:
        if "." not in dotted:
            raise GateError(f"`{dotted}` names no metric; write `step.metric`")
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        _check(node.left)
        _check(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand)
    elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        raise GateError("a gate is made of metrics, numbers, + - * / and parentheses")


def _evaluate(node: ast.expr, metrics: Mapping[str, Metric]) -> float:
    dotted = _dotted(node)
    if dotted is not None:
        if dotted not in metrics:
            raise GateError(f"there is no metric `{dotted}`; {say_nearest(dotted, metrics)}")
        return metrics[dotted].value
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, metrics), _evaluate(node.right, metrics)
        try:
            return ARITHMETIC[type(node.op)](left, right)
        except ZeroDivisionError:
            raise GateError(f"`{ast.unparse(node)}` divides by zero") from None
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, metrics)
    assert isinstance(node, ast.Constant) and isinstance(node.value, int | float)  # _check saw to it
    return float(node.value)


def _unit(node: ast.expr, metrics: Mapping[str, Metric]) -> str | None:
    """The unit of what a tree comes to; None for a plain number, which takes any. Its metrics are there."""
    dotted = _dotted(node)
    if dotted is not None:
        return metrics[dotted].unit
    if isinstance(node, ast.UnaryOp):
        return _unit(node.operand, metrics)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _unit(node.left, metrics), _unit(node.right, metrics)
    if isinstance(node.op, ast.Add | ast.Sub):
        return left if right in (None, left) else right if left is None else ""
    if right is None:
        return left
    return right if left is None and isinstance(node.op, ast.Mult) else ""
