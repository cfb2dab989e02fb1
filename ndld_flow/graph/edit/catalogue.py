"""Find operations: built in, and from installed packages. Only those that are asked for are imported."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

from ndld_flow.graph.edit import operations
from ndld_flow.graph.edit.operation import Operation

ENTRY_POINTS = "ndld_flow.operations"
"""Group in which an installed package names its operations: `word = "package.module:Class"`."""


@cache
def operation_words() -> tuple[str, ...]:
    """All words that a list of operations may use, sorted. Imports no operation."""
    built_in = (module.name for module in pkgutil.iter_modules(operations.__path__))
    return tuple(sorted({*built_in, *(point.name for point in entry_points(group=ENTRY_POINTS))}))


@cache
def find_operation(word: str) -> type[Operation] | None:
    """The operation of that name, or None."""
    if word in {module.name for module in pkgutil.iter_modules(operations.__path__)}:
        return _only_operation(importlib.import_module(f"{operations.__name__}.{word}"))
    for point in entry_points(group=ENTRY_POINTS, name=word):
        found: type[Operation] = point.load()
        return found
    return None


def origin_of(word: str) -> str:
    """The distribution that an operation comes from, with its version; empty for a built-in one."""
    for point in entry_points(group=ENTRY_POINTS, name=word):
        return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    return ""


def summary_of(operation: type[Operation]) -> str:
    """First line of its docstring."""
    return (inspect.getdoc(operation) or "").partition("\n")[0]


def _only_operation(module: ModuleType) -> type[Operation]:
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Operation)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
    if len(own) != 1:
        raise TypeError(f"{module.__name__}: an operation's file holds exactly one subclass of Operation")
    return own[0]
