"""The test files that are most likely to notice a change of a module."""

from __future__ import annotations

import ast
import math
import re
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

_UNREACHED = 8
"""Imports between a module and tests that do not import it by any path, as a step that is found by its folder."""
_NAMED = 3
"""The most imports between a module and tests that name it."""


@dataclass(frozen=True)
class RelatedTests:
    """The tests of a project, by how near they are to a module."""

    root: Path

    def rank(self, module: str, changed: str = "") -> list[Path]:
        """Return the test files, relative to the root, the most promising first.

        Every other one is among those that import the module directly or by few others; between them are those that
        have the most in common with the text of the changed function, where rare words count most.
        """
        near, alike = self._by_distance(module), self._by_words(changed) if changed else []
        return list(dict.fromkeys(path for pair in zip_longest(near, alike) for path in pair if path is not None))

    def _by_distance(self, module: str) -> list[Path]:
        """Sort the test files by their imports.

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

        return sorted(self._words, key=score)

    def _by_words(self, changed: str) -> list[Path]:
        """Sort the test files by the words that they share with a text, as search engines do."""
        weights = {
            word: math.log(len(self._words) / count)
            for word in _words(changed)
            if (count := sum(word in words for words in self._words.values()))
        }

        def score(path: Path) -> float:
            words = self._words[path]
            return sum(weight for word, weight in weights.items() if word in words) / math.sqrt(len(words) or 1)

        return sorted(self._words, key=score, reverse=True)

    @cached_property
    def _words(self) -> dict[Path, set[str]]:
        """The words of each test file."""
        tests = sorted(path for path in self._modules.values() if path.name.startswith("test_"))
        return {path: _words(self._text(path)) for path in tests}

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


def _words(text: str) -> set[str]:
    """Return the words of a text, and the parts of those with underscores."""
    names = set(re.findall(r"[A-Za-z_]{3,}", text))
    return names | {part for name in names for part in name.split("_") if len(part) > 3}


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
