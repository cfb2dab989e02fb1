"""The test files that are most likely to notice a change of a module."""

from __future__ import annotations

import ast
import re
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_UNREACHED = 8
"""Imports between a module and tests that do not import it by any path, as a step that is found by its folder."""
_NAMED = 3
"""The most imports between a module and tests that name it."""


@dataclass(frozen=True)
class RelatedTests:
    """The tests of a project, by how near they are to a module."""

    root: Path

    def rank(self, module: str) -> list[Path]:
        """Return the test files, relative to the root: those first that import the module, directly or by few others.

        Tests in the folder of the same room, and tests that name the module, as recipes name a step, count as nearer;
        attacks on the whole program and tests in a browser as farther.
        """
        distances = self._distances(module)
        name = module.rpartition(".")[2]
        word = re.compile(rf"\b{re.escape(name)}\b")

        def score(path: Path) -> tuple[int, str]:
            is_named = bool(word.search(self._text(path)))
            distance = min(distances.get(_module_name(path), _UNREACHED), _NAMED if is_named else _UNREACHED)
            room = sum(mine == theirs for mine, theirs in zip(path.parts[1:], module.split(".")[1:], strict=False))
            named = 3 * (f"_{name}" in path.stem) + is_named
            costly = 2 * ("reliability" in path.parts or "_in_browser" in path.stem)
            return distance - 2 * room - named + costly, path.as_posix()

        tests = (path for path in self._modules.values() if path.name.startswith("test_"))
        return sorted(tests, key=score)

    @cached_property
    def _modules(self) -> dict[str, Path]:
        """All modules of the packages in the root: name -> path, relative to the root."""
        paths = [
            path.relative_to(self.root)
            for package in self.root.iterdir()
            if (package / "__init__.py").exists()
            for path in package.rglob("*.py")
        ]
        return {_module_name(path): path for path in paths}

    @cached_property
    def _importers(self) -> dict[str, set[str]]:
        importers: dict[str, set[str]] = {}
        for name, path in self._modules.items():
            for node in ast.walk(ast.parse(self._text(path))):
                for imported in _imported_names(node):
                    target = imported if imported in self._modules else imported.rpartition(".")[0]
                    importers.setdefault(target, set()).add(name)
        return importers

    def _text(self, path: Path) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def _distances(self, module: str) -> dict[str, int]:
        """Return, for each module that imports this one by any path, the number of imports between the two."""
        distances = {module: 0}
        waiting = deque([module])
        while waiting:
            near = waiting.popleft()
            for importer in self._importers.get(near, ()):
                if importer not in distances:
                    distances[importer] = distances[near] + 1
                    waiting.append(importer)
        return distances


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
