"""The imports and files that the source of a Python file names. The source does not run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_IMPORTERS = {"import_module", "__import__"}
_JOINS = {"join", "joinpath"}
_KEEPS = {"abspath", "absolute", "expanduser", "fspath", "normpath", "Path", "PurePath", "realpath", "resolve", "str"}


@dataclass(frozen=True)
class SourceImports:
    """The imports and paths in a file's source."""

    modules: tuple[tuple[int, str], ...]
    """Level (0 is absolute) and dotted name of each module that it may import, anywhere in the file; for
    `from a import b` both `a` and `a.b`."""
    folders: tuple[str, ...]
    """Folders that it adds to `sys.path`."""
    files: tuple[str, ...]
    """Other paths that it builds from its own (`Path(__file__).parent / "table.json"`), whether they exist or not."""


@lru_cache(maxsize=1000)
def read_imports(source: bytes, path: Path) -> SourceImports:
    """Return the imports of a source; none if it is not Python, which the import itself will report."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return SourceImports((), (), ())
    nodes = list(ast.walk(tree))
    paths = _Paths(str(path.absolute()), _constants(tree))
    folders = [found for node in nodes if (argument := _added_to_path(node)) and (found := paths.evaluate(argument))]
    files = [found for node in nodes if isinstance(node, ast.expr) and (found := paths.evaluate(node))]
    modules = [found for node in nodes for found in _imported(node)]
    return SourceImports(tuple(dict.fromkeys(modules)), tuple(dict.fromkeys(folders)), tuple(dict.fromkeys(files)))


def _imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((0, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        yield node.level, base
        yield from ((node.level, f"{base}.{alias.name}".lstrip(".")) for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and _called(node) in _IMPORTERS and node.args:
        name = _text(node.args[0])
        yield len(name) - len(name.lstrip(".")), name.lstrip(".")


def _added_to_path(node: ast.AST) -> ast.expr | None:
    """Return the argument of `sys.path.insert(0, ...)` or `.append(...)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return None
    held = node.func.value
    on_path = isinstance(held, ast.Attribute) and held.attr == "path" and _name(held.value) == "sys"
    return node.args[-1] if on_path and node.func.attr in ("insert", "append") else None


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values assigned to names at the top level of a module."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


@dataclass(frozen=True)
class _Paths:
    """Evaluates paths that are built from `__file__`."""

    file: str
    constants: Mapping[str, ast.expr]

    def evaluate(self, node: ast.expr) -> str:
        """Return the path that an expression evaluates to; empty if unknown, or not built from `__file__`."""
        found, from_file = self._evaluate(node, 20)
        return os.path.normpath(found) if found and from_file else ""

    def _evaluate(self, node: ast.expr, depth: int) -> tuple[str, bool]:
        """Return the text, empty if unknown, and whether it is built from `__file__`."""
        if depth == 0:
            return "", False
        if isinstance(node, ast.Constant):
            return (node.value, False) if isinstance(node.value, str) else ("", False)
        if isinstance(node, ast.Name):
            return self._evaluate_name(node.id, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return self._join([node.left, node.right], depth)
        if isinstance(node, ast.Attribute):
            return self._parent(node.value, 1, depth) if node.attr == "parent" else ("", False)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, depth)
        return self._call(node, depth) if isinstance(node, ast.Call) else ("", False)

    def _evaluate_name(self, name: str, depth: int) -> tuple[str, bool]:
        if name == "__file__":
            return self.file, True
        return self._evaluate(self.constants[name], depth - 1) if name in self.constants else ("", False)

    def _call(self, node: ast.Call, depth: int) -> tuple[str, bool]:
        called, method = _called(node), isinstance(node.func, ast.Attribute)
        if called in _JOINS:
            before = [node.func.value] if isinstance(node.func, ast.Attribute) and called == "joinpath" else []
            return self._join([*before, *node.args], depth)
        if called == "dirname" and node.args:
            return self._parent(node.args[0], 1, depth)
        if called in _KEEPS and len(node.args) == 1:
            return self._evaluate(node.args[0], depth - 1)
        if called in _KEEPS and len(node.args) > 1:
            return self._join(node.args, depth)
        if called in _KEEPS and method and isinstance(node.func, ast.Attribute):
            return self._evaluate(node.func.value, depth - 1)
        return "", False

    def _subscript(self, node: ast.Subscript, depth: int) -> tuple[str, bool]:
        """Evaluate `Path(__file__).parents[1]`."""
        held, index = node.value, node.slice
        if isinstance(held, ast.Attribute) and held.attr == "parents" and isinstance(index, ast.Constant):
            return self._parent(held.value, index.value + 1, depth) if isinstance(index.value, int) else ("", False)
        return "", False

    def _parent(self, node: ast.expr, count: int, depth: int) -> tuple[str, bool]:
        text, from_file = self._evaluate(node, depth - 1)
        for _ in range(min(count, 50)):
            text = os.path.dirname(text)  # noqa: PTH120 - text, as in the source
        return text, from_file

    def _join(self, nodes: list[ast.expr], depth: int) -> tuple[str, bool]:
        found = [self._evaluate(node, depth - 1) for node in nodes]
        if not all(text for text, _ in found):
            return "", False
        return os.path.join(*(text for text, _ in found)), found[0][1]  # noqa: PTH118


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
