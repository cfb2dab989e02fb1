"""Gates: sentences such as `speed.latency.median <= 1.05 * base.latency.median` that a run must satisfy."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
class Gate:
    """A parsed gate."""

    text: str
    left: ast.expr
    comparison: type[ast.cmpop]
    right: ast.expr

    @property
    def names(self) -> list[str]:
        """The metrics it names, as `step.metric`."""
        return [*_names(self.left), *_names(self.right)]

    def decide(self, metrics: Mapping[str, Metric]) -> GateResult:
        """Whether the sentence holds for `step.metric` -> value. Raises GateError for a metric that is not there."""
        left, right = _evaluate(self.left, metrics), _evaluate(self.right, metrics)
        units = {metrics[name].unit for name in self.names}
        return GateResult(
            gate=self.text,
            passed=COMPARISONS[self.comparison](left, right),
            left=left,
            right=right,
            unit=units.pop() if len(units) == 1 else "",
        )


def parse_gate(text: str) -> Gate:
    """Parse `<expression> <= <expression>` with + - * / and parentheses over metrics, numbers and quantities.

    Quantities: `20 ms`, `64 MiB`, `5 %`. Raises GateError with what is wrong.
    """
    if len(text) > MAX_LENGTH:
        raise GateError(f"a gate has at most {MAX_LENGTH} characters")
    try:
        tree = ast.parse(QUANTITY.sub(_plain_number, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise GateError("this is not a comparison such as `speed.latency.median <= 20 ms`") from None
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in COMPARISONS:
        raise GateError("a gate compares two sides with one of <= < >= > ==")
    gate = Gate(text, tree.left, type(tree.ops[0]), tree.comparators[0])
    for side in (gate.left, gate.right):
        _check(side)
    if not gate.names:
        raise GateError("a gate names at least one metric, as `step.metric`")
    return gate


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
