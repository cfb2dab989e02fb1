"""The small faults that are planted in a module: boundaries, guards, loops, constants, calls, returns."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_NO_CONTEXT = '__import__("contextlib").nullcontext()'
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "pattern"}
"""Fields of syntax nodes whose change has no effect at run time, or is no valid Python."""
_WITHOUT_EFFECT = {"frozen", "slots", "repr", "kw_only", "timeout", "daemon", "stacklevel", "indent", "exc_info"}
"""Keyword arguments whose change shows only in checks of types, in a reader's comfort, or after a long wait."""
_LOGGING = {"debug", "info", "log"}
_WAITING = {"sleep"}


@dataclass(frozen=True)
class Mutant:
    """One change of a source text."""

    kind: str
    line: int
    """Counted from 1."""
    start: int
    """Byte offset of the replaced text."""
    end: int
    replacement: str

    def apply(self, source: str) -> str:
        """Return the source with this change."""
        data = source.encode()
        return (data[: self.start] + self.replacement.encode() + data[self.end :]).decode()


def find_sites(source: str) -> list[list[Mutant]]:
    """Return the places of a module that can be changed, in source order, each with its possible changes.

    Raises SyntaxError where the source cannot be parsed.
    """
    offsets = line_offsets(source)
    changes = (list(_changes(node, source)) for node in _walk(ast.parse(source)))
    sites = ([_mutant(offsets, kind, target, text) for kind, target, text in site] for site in changes if site)
    return sorted(sites, key=lambda site: site[0].start)


def line_offsets(source: str) -> list[int]:
    """Return the byte offset of each line, and the length of the source."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run. Parts of f-strings are left out: Python 3.11 records no positions for them."""
    if _is_without_effect(node):
        return
    yield node
    if isinstance(node, ast.JoinedStr):
        return
    for name, value in ast.iter_fields(node):
        if name not in _SKIPPED_FIELDS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _walk(child)


def _is_without_effect(node: ast.AST) -> bool:
    """Return whether no change of a node has an effect that a user could notice."""
    match node:
        case ast.If(test=test):
            return _is_type_checking(test)
        case ast.Subscript(value=value):
            return ast.unparse(value) == "Literal"
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.keyword(arg=name):
            return name in _WITHOUT_EFFECT
        case ast.FunctionDef(body=[*_, ast.Expr(value=ast.Constant())]):
            return True  # a method of a protocol: only its implementations run
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=owner))):
            return name in _WAITING or (name in _LOGGING and ast.unparse(owner).rpartition(".")[2] in ("log", "logger"))
    return False


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _mutant(offsets: list[int], kind: str, target: ast.expr | ast.stmt, text: str) -> Mutant:
    assert target.end_lineno is not None
    assert target.end_col_offset is not None
    start = offsets[target.lineno - 1] + target.col_offset
    end = offsets[target.end_lineno - 1] + target.end_col_offset
    return Mutant(kind, target.lineno, start, end, text)


_Change = tuple[str, ast.expr | ast.stmt, str]


def _changes(node: ast.AST, source: str) -> Iterator[_Change]:
    match node:
        case ast.Compare():
            yield from _change_comparison(node)
        case ast.BoolOp():
            yield from _change_condition(node)
        case ast.UnaryOp(op=ast.Not()):
            yield "not removed", node, f"({ast.unparse(node.operand)})"
        case ast.Constant():
            yield from _change_constant(node, source)
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield "function swapped", node.func, _FUNCTIONS[name]
        case ast.List(elts=elements, ctx=ast.Load()) if len(elements) > 1:
            yield from _drop_elements(node)
        case ast.comprehension():
            yield from (("filter removed", test, "True") for test in node.ifs)
        case _:
            yield from _change_flow(node)


def _change_flow(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Continue():
            yield "continue to break", node, "break"
        case ast.Break():
            yield "break to continue", node, "continue"
        case ast.If() | ast.IfExp():
            yield "guard removed", node.test, "False"
            yield "guard removed", node.test, "True"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "call removed", node, "pass"
        case ast.With(items=items):
            yield from (("with removed", item.context_expr, _NO_CONTEXT) for item in items if not item.optional_vars)
        case ast.Return(value=ast.Tuple(elts=[first, second, *rest])):
            swapped = ast.Tuple([second, first, *rest], ast.Load())
            yield "return swapped", node, f"return {ast.unparse(swapped)}"
        case ast.Return(value=ast.IfExp(test, body, orelse)):
            yield "return swapped", node, f"return {ast.unparse(ast.IfExp(test, orelse, body))}"


def _change_comparison(node: ast.Compare) -> Iterator[_Change]:
    for position, operator in enumerate(node.ops):
        changed = copy.copy(node)
        changed.ops = [*node.ops]
        changed.ops[position] = _COMPARISONS[type(operator)]()
        yield "comparison", node, ast.unparse(changed)


def _change_condition(node: ast.BoolOp) -> Iterator[_Change]:
    swapped = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    yield "and/or", node, f"({ast.unparse(swapped)})"
    for position in range(len(node.values)):
        rest = [*node.values[:position], *node.values[position + 1 :]]
        yield "operand removed", node, f"({ast.unparse(ast.BoolOp(node.op, rest))})"


def _change_constant(node: ast.Constant, source: str) -> Iterator[_Change]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", node, str(not value)
    elif isinstance(value, int) and (ast.get_source_segment(source, node) or "").startswith("0o"):
        yield "constant", node, "0o666" if value != 0o666 else "0o600"
    elif isinstance(value, int | float):
        yield "constant", node, f"({value!r} + 1)"
        yield "constant", node, f"({value!r} - 1)"


def _drop_elements(node: ast.List) -> Iterator[_Change]:
    for position, element in enumerate(node.elts):
        if not isinstance(element, ast.Constant):
            rest = [*node.elts[:position], *node.elts[position + 1 :]]
            yield "element removed", node, ast.unparse(ast.List(rest, ast.Load()))
