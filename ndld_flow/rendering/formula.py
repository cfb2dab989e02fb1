"""Formulas over tensors, such as `4 * abs(a - b)`: a small language that cannot do anything else.

Python's parser reads a formula, and only the nodes and functions listed here are accepted: no attributes, subscripts,
strings, keyword arguments or calls of anything else. All arithmetic is on float64 arrays, so that no integer grows
without bound. Recipes come from strangers: length, nodes and the size of every result are limited.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from ndld_flow.base.text import one_line, suggest

if TYPE_CHECKING:
    from ndld_flow.models.tensors import Array

LONGEST = 300
"""Characters of a formula."""
MOST_NODES = 100
"""Numbers, names, operators and calls of a formula."""
MOST_WORK = 2**28
"""Elements of the largest intermediate result, times the nodes of the formula: it bounds both time and memory."""

FUNCTIONS: Mapping[str, int] = {
    "abs": 1,
    "sqrt": 1,
    "exp": 1,
    "log": 1,
    "sigmoid": 1,
    "tanh": 1,
    "minimum": 2,
    "maximum": 2,
    "clip": 3,
    "where": 3,
    "mean": 1,
}
"""Function -> number of arguments. `mean` is over the channels; `clip(x, low, high)`; `where(condition, x, y)`."""

_OPERATORS: Mapping[type[ast.operator | ast.unaryop | ast.cmpop], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Mod: "mod",
    ast.Pow: "power",
    ast.USub: "negative",
    ast.UAdd: "positive",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
"""Operator -> numpy's function."""


def parse_formula(text: str) -> ast.expr:
    """Return the checked expression. Raises a `ValueError` that names the part that is not allowed."""
    if len(text) > LONGEST:
        raise ValueError(f"a formula has at most {LONGEST} characters; this one has {len(text):,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's parser, on calls and literals that are refused below
            expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it cannot be parsed"
        raise ValueError(f"`{one_line(text)}` is not a formula: {reason}") from None
    nodes = [node for node in ast.walk(expression) if isinstance(node, ast.expr)]
    if len(nodes) > MOST_NODES:
        raise ValueError(f"a formula has at most {MOST_NODES} operators, names and numbers; this one has {len(nodes)}")
    _check(expression)
    return expression


def names_in(expression: ast.expr) -> frozenset[str]:
    """Return the names of the tensors in a checked expression."""
    called = {id(node.func) for node in ast.walk(expression) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(expression) if isinstance(node, ast.Name) and id(node) not in called)


def _check(node: ast.expr) -> None:
    """Raise a `ValueError` for anything that is not listed."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if abs(number) > sys.float_info.max:  # exact also for integers, such as 0xfff...
                raise ValueError("a number in a formula has at most the size of a float64")
        case ast.Name():
            pass
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            _check(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            _check_call(name, arguments)
        case _:
            raise ValueError(
                f"`{one_line(ast.unparse(node))}` is not allowed in a formula: use numbers, names, + - * / % **, one "
                f"comparison, and {', '.join(FUNCTIONS)}"
            )


def _check_call(name: str, arguments: list[ast.expr]) -> None:
    if name not in FUNCTIONS:
        raise ValueError(f"a formula has no function `{one_line(name)}`; {suggest(name, FUNCTIONS)}")
    if len(arguments) != FUNCTIONS[name]:
        raise ValueError(f"`{name}` takes {FUNCTIONS[name]} arguments, not {len(arguments)}")
    for argument in arguments:
        _check(argument)


def evaluate(expression: ast.expr, tensors: Mapping[str, Array]) -> Array:
    """Return the value of a checked expression.

    `tensors`: name -> float64 [channels, height, width]. Channels, height and width of 1 are broadcast, as in numpy.
    Division by zero and overflow give infinity or NaN, which images show. Raises a `ValueError` for shapes that do not
    fit, or too much work (`MOST_WORK`).
    """
    import numpy as np

    nodes = sum(isinstance(node, ast.expr) for node in ast.walk(expression))
    with np.errstate(all="ignore"):
        return _evaluated(expression, tensors, MOST_WORK // nodes)


def _evaluated(node: ast.expr, tensors: Mapping[str, Array], most: int) -> Array:
    """Return the value of a node; no intermediate result has more than `most` elements."""
    import numpy as np

    operator: Any = None
    match node:
        case ast.Constant(value=int() | float() as number):
            return np.asarray(float(number))
        case ast.Name(id=name):
            return tensors[name]
        case ast.UnaryOp(op=operator, operand=operand):
            operands = [operand]
        case ast.BinOp(left=left, op=operator, right=right) | ast.Compare(left, [operator], [right]):
            operands = [left, right]
        case ast.Call(func=ast.Name(id=name), args=operands):
            pass
        case _:
            raise AssertionError(f"unchecked: {ast.dump(node)}")
    function = _function(name) if operator is None else getattr(np, _OPERATORS[type(operator)])
    return _apply(function, node, [_evaluated(operand, tensors, most) for operand in operands], most)


def _function(name: str) -> Callable[..., Any]:
    import numpy as np

    own: Mapping[str, Callable[..., Any]] = {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "mean": lambda x: x.mean(axis=0, keepdims=True) if x.ndim == 3 else x,
        "where": lambda condition, x, y: np.where(condition != 0, x, y),
    }
    chosen: Callable[..., Any] = own[name] if name in own else getattr(np, name)
    return chosen


def _apply(function: Callable[..., Any], node: ast.expr, operands: list[Array], most: int) -> Array:
    import numpy as np

    shapes = " and ".join("x".join(map(str, operand.shape)) or "a number" for operand in operands)
    try:
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    except ValueError:
        raise ValueError(f"`{one_line(ast.unparse(node))}`: the shapes {shapes} do not fit") from None
    if (elements := prod(shape)) > most:
        raise ValueError(f"`{one_line(ast.unparse(node))}` of {shapes} has {elements:,} elements; at most {most:,} fit")
    return np.asarray(function(*operands), np.float64)
