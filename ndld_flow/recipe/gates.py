"""Gates: conditions such as `speed.latency.median <= 1.05 * base.latency.median` that a run must satisfy."""

from __future__ import annotations

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ndld_flow.base.declared_metrics import ANY, DURATIONS, UNKNOWN, mixed
from ndld_flow.base.quantities import parse_bytes, parse_duration_ms
from ndld_flow.base.text import lazy_pattern, suggest
from ndld_flow.records.measurement import Metric

if TYPE_CHECKING:
    from ndld_flow.records.run_record import GateResult

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
QUANTITY = lazy_pattern(r"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(%|(?:ns|us|µs|ms|s|min|[KMGT]i?B|B)(?![\w.]))")
MAX_LENGTH = 500
_QUANTITIES = ("ms", "bytes")
"""Units of quantities in a parsed gate, where `20 ms` is `(20.0).ms`."""
_PERCENT = "percent"
HISTORY = ("history.best", "history.last")
"""The best and the last level of the gate's metric in earlier runs. `history.best + 3 %` is 1.03 times the level."""
UnitOf = Callable[[str], str]
"""The unit of a metric by its name, `UNKNOWN` where it is not known before the run."""


class GateError(ValueError):
    """A gate that cannot be parsed, or that names something unknown."""


@dataclass(frozen=True)
class Expression:
    """Arithmetic over metrics, such as `speed.latency.median / base.latency.median`."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> list[str]:
        """Metrics that it names, as `step.metric`."""
        return [name for name in _names(self.tree) if name not in HISTORY]

    @property
    def history(self) -> list[str]:
        """Levels of the history that it names."""
        return [name for name in _names(self.tree) if name in HISTORY]

    def evaluate(self, metrics: Mapping[str, Metric]) -> Metric:
        """Return the value for these metrics (`step.metric` -> value), with a unit if the arithmetic preserves one.
        Raises GateError for a missing metric, and for a division by zero.
        """
        value, unit = _evaluate(self.tree, metrics)
        return Metric(value=value, unit=unit if unit not in (ANY, UNKNOWN) else "")

    def check_units(self, unit_of: UnitOf) -> None:
        """Raise GateError if units do not match."""
        _unit(self.tree, unit_of)


@dataclass(frozen=True)
class Gate:
    """A parsed gate."""

    text: str
    left: Expression
    comparison: type[ast.cmpop]
    right: Expression

    @property
    def names(self) -> list[str]:
        """Metrics that it names, as `step.metric`."""
        return [*self.left.names, *self.right.names]

    @property
    def history(self) -> list[str]:
        """Levels of the history that it names: those of its only metric."""
        return [*self.left.history, *self.right.history]

    def decide(self, metrics: Mapping[str, Metric]) -> GateResult:
        """Return whether the gate holds for these values of `step.metric`, and of `history.best` where it is named.

        Raises GateError for a missing metric.
        """
        left, right, unit = _alike(_evaluate(self.left.tree, metrics), _evaluate(self.right.tree, metrics))
        from ndld_flow.records.run_record import GateResult

        return GateResult(
            gate=self.text,
            passed=COMPARISONS[self.comparison](left, right),
            left=left,
            right=right,
            unit=unit if unit not in (ANY, UNKNOWN) else "",
        )

    def check_units(self, unit_of: UnitOf) -> None:
        """Raise GateError if the two sides cannot be compared: `speed.latency.median <= 64 MiB`."""

        def own_unit(name: str) -> str:
            return unit_of(self.names[0] if name in HISTORY else name)

        _check_alike(_unit(self.left.tree, own_unit), _unit(self.right.tree, own_unit), "compared with")

    def violation(self, metrics: Mapping[str, Metric]) -> float:
        """Return the violation of a gate: 0 if it holds, else the distance of its sides relative to the bound.

        The bound is the side that names no metric, or the right one; if it is 0, the result is the distance itself. The
        result is infinite if a side is not a number. Raises GateError for a missing metric.
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

    Quantities: `20 ms`, `64 MiB`, `5 %`. `history.best` and `history.last` are levels of the gate's only metric in
    earlier runs. Raises GateError with what is wrong.
    """
    gate = _parse_comparison(text)
    if gate.history and len(set(gate.names)) != 1:
        raise GateError(f"`{gate.history[0]}` is the level of one metric, so the gate must name one")
    return gate


@lru_cache
def parse_constraint(text: str) -> Gate:
    """Parse a gate that points of a sweep must satisfy, which have no history. Raises GateError."""
    gate = _parse_comparison(text)
    if gate.history:
        raise GateError("points of a sweep have no history; compare with a number, or with another step")
    return gate


@lru_cache
def parse_condition(text: str) -> Gate:
    """Parse a gate whose metrics may lack their step: `latency.median < 5 ms`, `cosine > 0.999`. Raises GateError."""
    gate = _parse_comparison(text, with_step=False)
    if gate.history:
        raise GateError("the history is for gates of recipes; `ndld-flow history` shows it")
    return gate


def _parse_comparison(text: str, *, with_step: bool = True) -> Gate:
    tree = _parse(text, "this is not a comparison such as `speed.latency.median <= 20 ms`")
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in COMPARISONS:
        raise GateError("a gate compares two sides with one of <= < >= > ==")
    left, right = tree.left, tree.comparators[0]
    for side in (left, right):
        _check(side, with_step)
    gate = Gate(text, Expression(_text(left), left), type(tree.ops[0]), Expression(_text(right), right))
    if not gate.names:
        raise GateError("a gate names at least one metric, as `step.metric`")
    return gate


def parse_expression(text: str) -> Expression:
    """Parse arithmetic over metrics, as on either side of a gate. Raises GateError with what is wrong."""
    tree = _parse(text, "this is neither a metric such as `speed.latency.median` nor arithmetic over metrics")
    _check(tree, with_step=True)
    expression = Expression(text, tree)
    if not expression.names:
        raise GateError("name at least one metric, as `step.metric`")
    if expression.history:
        raise GateError("points of a sweep have no history")
    return expression


def _parse(text: str, complaint: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise GateError(f"a gate has at most {MAX_LENGTH} characters")
    try:
        return ast.parse(QUANTITY.sub(_plain_number, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise GateError(complaint) from None


def _plain_number(match: re.Match[str]) -> str:
    number, unit = match.groups()
    if unit == "%":
        return f"({float(number) / 100!r}).{_PERCENT}"
    if unit.endswith("B"):
        return f"({float(parse_bytes(f'{number} {unit}'))!r}).bytes"
    return f"({parse_duration_ms(f'{number} {unit}')!r}).ms"


def _quantity(node: ast.expr) -> tuple[float, str | None] | None:
    """Return number and unit of a quantity or a plain number; None for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Constant):
        number, unit = _quantity(node.value) or (0.0, None), node.attr
        return (number[0], "" if unit == _PERCENT else unit) if unit in (*_QUANTITIES, _PERCENT) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value), ANY
    return None


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    head = _dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{head}.{node.attr}" if isinstance(node, ast.Attribute) and head else None


def _names(node: ast.expr) -> list[str]:
    dotted = _dotted(node)
    if dotted is not None:
        return [dotted]
    return [name for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr) for name in _names(child)]


def _check(node: ast.expr, with_step: bool) -> None:
    dotted = _dotted(node)
    if dotted is not None:
        if with_step and "." not in dotted:
            raise GateError(f"`{dotted}` is not a metric; write `step.metric`")
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        _check(node.left, with_step)
        _check(node.right, with_step)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, with_step)
    elif _quantity(node) is None:
        raise GateError("a gate consists of metrics, numbers, + - * / and parentheses")


def _evaluate(node: ast.expr, metrics: Mapping[str, Metric]) -> tuple[float, str | None]:
    """Return the value and the unit of an expression. Raises GateError."""
    dotted = _dotted(node)
    if dotted is not None:
        if dotted not in metrics:
            raise GateError(f"there is no metric `{dotted}`; {suggest(dotted, metrics)}")
        return metrics[dotted].value, metrics[dotted].unit
    if isinstance(node, ast.BinOp):
        sides = _evaluate(node.left, metrics), _evaluate(node.right, metrics)
        if _is_relative(node):
            return sides[0][0] * ARITHMETIC[type(node.op)](1.0, sides[1][0] or 0.0), sides[0][1]
        left, right, _ = (
            _alike(*sides) if isinstance(node.op, ast.Add | ast.Sub | ast.Div) else (sides[0][0], sides[1][0], None)
        )
        try:
            value = ARITHMETIC[type(node.op)](left, right)
        except ZeroDivisionError:
            raise GateError(f"`{_text(node)}` divides by zero") from None
        return value, _join_units(node.op, sides[0][1], sides[1][1])
    if isinstance(node, ast.UnaryOp):
        value, unit = _evaluate(node.operand, metrics)
        return -value, unit
    constant = _quantity(node)
    assert constant is not None  # `_check` rejects others
    return constant


def _is_relative(node: ast.BinOp) -> bool:
    """Return whether a percentage is added to, or taken from, a level of the history."""
    is_percent = isinstance(node.right, ast.Attribute) and node.right.attr == _PERCENT
    return is_percent and isinstance(node.op, ast.Add | ast.Sub) and _dotted(node.left) in HISTORY


def _alike(left: tuple[float, str | None], right: tuple[float, str | None]) -> tuple[float, float, str | None]:
    """Return two values in one unit, and the unit: seconds and milliseconds become ms."""
    if {left[1], right[1]} == set(DURATIONS):
        in_ms = [value * 1e3 if unit == "s" else value for value, unit in (left, right)]
        return in_ms[0], in_ms[1], "ms"
    return left[0], right[0], _join_units(ast.Add(), left[1], right[1])


def _unit(node: ast.expr, unit_of: UnitOf) -> str | None:
    """Return the unit of an expression's value. Raises GateError if units do not match."""
    dotted = _dotted(node)
    if dotted is not None:
        return unit_of(dotted)
    if isinstance(node, ast.UnaryOp):
        return _unit(node.operand, unit_of)
    if isinstance(node, ast.BinOp):
        left, right = _unit(node.left, unit_of), _unit(node.right, unit_of)
        if _is_relative(node):
            return left
        if isinstance(node.op, ast.Add | ast.Sub):
            _check_alike(left, right, "added to" if isinstance(node.op, ast.Add) else "taken from")
        return _join_units(node.op, left, right)
    constant = _quantity(node)
    return constant[1] if constant is not None else ANY


def _check_alike(left: str | None, right: str | None, how: str) -> None:
    if mixed(left, right):
        first, second = (f"a number in {unit}" if unit else "a plain number" for unit in (left, right))
        raise GateError(f"{first} cannot be {how} {second}")


def _join_units(op: ast.operator, left: str | None, right: str | None) -> str | None:
    """Return the unit of a sum, a product or a ratio; `UNKNOWN` if it has no name."""
    if isinstance(op, ast.Add | ast.Sub):
        known = {unit for unit in (left, right) if unit is not ANY}
        return known.pop() if len(known) == 1 else ANY if not known else "ms" if known == set(DURATIONS) else UNKNOWN
    if (isinstance(op, ast.Div) and left == right) or ({left, right} == set(DURATIONS) and isinstance(op, ast.Div)):
        return left if left is ANY else ""
    if right in (ANY, ""):
        return left
    return right if left in (ANY, "") and isinstance(op, ast.Mult) else UNKNOWN


def _text(node: ast.expr) -> str:
    """Return an expression in the notation of gates."""
    return re.sub(r"\((\d[^()]*)\)\.(\w+)|(\d+\.\d+)\.(ms|bytes|percent)", r"\1\3 \2\4", ast.unparse(node))
