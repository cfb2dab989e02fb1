"""Read one YAML file: its values, the order of its keys, and the line of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ndld_flow.errors import Problem, RecipeError

MAX_BYTES = 4 * 2**20
"""A recipe is written by people; what is larger is another file."""
MAX_VALUES = 100_000
"""Values in a file, each alias counted as all that it stands for: a few lines of aliases can mean billions."""
MAX_DEPTH = 64
"""Levels of nesting, aliases followed."""


@dataclass(frozen=True)
class YamlFile:
    """A file's top-level mapping, with the line on which each dotted path stands."""

    path: Path
    text: str
    values: dict[str, Any]
    lines: dict[str, int]

    def where(self, dotted: str) -> str:
        """`file:line` of a dotted path, or of its nearest parent that this file holds."""
        while dotted and dotted not in self.lines:
            dotted = dotted.rpartition(".")[0]
        return f"{self.path}:{self.lines.get(dotted, 1)}"


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML mapping, safely (no tags that construct objects).

    Raises RecipeError when the file is missing, not UTF-8, not YAML, not a mapping, or names a key twice.
    """
    return parse_yaml(path, _read_text(path))


def parse_yaml(path: Path, text: str) -> YamlFile:
    """A text as if it were this file's. Raises as `read_yaml` does."""
    loader = _SafeLoader(text)
    try:
        root = loader.get_single_node()
        _refuse_explosion(path, root)
        lines, problems = _walk(path, root)
        values = loader.construct_document(root) if root is not None else {}
    except yaml.YAMLError as error:
        raise RecipeError([_syntax_problem(path, error)]) from None
    except RecursionError:
        raise _refuse(path, "", "is nested too deeply to be a recipe") from None
    except ValueError as error:  # a date in the 13th month, a number of 5000 digits
        raise _refuse(path, "", f"holds a value that cannot be read: {error}") from None
    finally:
        loader.dispose()
    if problems:
        raise RecipeError(problems)
    if not isinstance(values, dict):
        raise _refuse(path, "", "a recipe is a mapping with keys such as `model:` and `steps:`")
    return YamlFile(path, text, values, lines)


def compose_nodes(text: str) -> yaml.Node | None:
    """A text's tree of nodes, each with the marks where it begins and ends. The text was read before: it is YAML."""
    root: yaml.Node | None = yaml.compose(text, _SafeLoader)
    return root


def refuse_explosive_aliases(path: Path) -> None:
    """Refuse a file that someone else will load when its aliases stand for too much; nothing else is looked for.

    Raises RecipeError.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if "*" in text and "&" in text:
            _refuse_explosion(path, yaml.compose(text, _SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return  # whoever loads it will say what is wrong with it


class _SafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's loader where it is there, Python's otherwise; both build plain data only."""


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _refuse(path, "", f"is larger than {MAX_BYTES // 2**20} MiB, which no recipe is")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _refuse(path, "", "there is no such file", _near_files(path)) from None
    except IsADirectoryError:
        raise _refuse(path, "", "is a folder, not a recipe") from None
    except UnicodeDecodeError:
        raise _refuse(path, "", "is not UTF-8 text, so it is not a recipe") from None
    except OSError as error:
        raise _refuse(path, "", f"cannot be read: {error.strerror}") from None


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either" if str(folder) != "." else ""
    from ndld_flow.nearest import say_nearest

    return say_nearest(path.name, [p.name for p in folder.glob("*.y*ml")])


def _refuse_explosion(path: Path, root: yaml.Node | None) -> None:
    """Refuse a file whose aliases stand for too much, or for themselves, before anything follows them."""
    known: dict[int, tuple[int, int]] = {}
    """Node -> values and levels below it, aliases followed; none yet while it is being measured."""

    def measure(node: yaml.Node) -> tuple[int, int]:
        if id(node) not in known:
            known[id(node)] = (0, 0)
            children = node.value if isinstance(node, yaml.CollectionNode) else []
            inner = [measure(part) for child in children for part in (child if isinstance(child, tuple) else (child,))]
            known[id(node)] = 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
        values, depth = known[id(node)]
        if not values:
            raise _refuse(path, "", "an alias (`*name`) stands inside what it is an alias of")
        if values > MAX_VALUES or depth > MAX_DEPTH:
            raise _refuse(path, "", "its aliases and nesting stand for more than any recipe needs")
        return values, depth

    if root is not None:
        measure(root)


def _walk(path: Path, root: yaml.Node | None) -> tuple[dict[str, int], list[Problem]]:
    """Lines of all dotted paths, and a problem for every key that stands twice in one mapping."""
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    visited: set[int] = set()

    def visit(node: yaml.Node | None, dotted: str) -> None:
        if id(node) in visited:
            return
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                name = f"{dotted}.{key.value}" if dotted else str(key.value)
                line = key.start_mark.line + 1
                if key.value in seen and key.value != "<<":
                    what = f"the key `{key.value}` stands twice (first on line {seen[key.value]})"
                    problems.append(Problem(f"{path}:{line}", name, what, "give each key once"))
                seen.setdefault(key.value, line)
                lines.setdefault(name, line)
                visit(value, name)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                name = f"{dotted}.{index}"
                lines.setdefault(name, value.start_mark.line + 1)
                visit(value, name)

    visit(root, "")
    return lines, problems


def _syntax_problem(path: Path, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    what = getattr(error, "problem", None) or str(error)
    hint = "quote values that hold `: `, `#`, `*` or `{`; indent with spaces"
    return Problem(where, "", f"this is not YAML: {what}", hint)


def _refuse(path: Path, dotted: str, what: str, hint: str = "") -> RecipeError:
    return RecipeError([Problem(str(path), dotted, what, hint)])
