"""Names that a module imports for checkers of types, and offers at run time: each is imported when it is first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path


def lazy_names(module: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a module that imports its names under `if TYPE_CHECKING:`."""

    def load(name: str) -> object:
        homes = names_for_checkers(module)
        if name.startswith("__") or name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    def list_names() -> list[str]:
        return [*vars(sys.modules[module]), *names_for_checkers(module)]

    return load, list_names


@cache
def names_for_checkers(module: str) -> Mapping[str, str]:
    """Return the names that an imported module has under `if TYPE_CHECKING:` -> the modules that define them."""
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_bytes())
    branches = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for branch in branches for node in branch.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
