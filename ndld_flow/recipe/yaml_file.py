"""Read one YAML file: its values, the order of its keys, and the line of each."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ndld_flow.base.errors import Problem, RecipeError, require_utf8
from ndld_flow.base.text import visible_name
from ndld_flow.recipe.yaml_bounds import MAX_BYTES, ExcessError, check_depth, check_size, key_trouble, value_trouble


@dataclass(frozen=True)
class YamlFile:
    """A file's top-level mapping, with the line of each dotted path."""

    path: Path
    text: str
    values: dict[str, Any]
    lines: dict[str, int]

    def where(self, dotted: str) -> str:
        """Return `file:line` of a dotted path, or of its nearest parent in this file."""
        while dotted and dotted not in self.lines:
            dotted = dotted.rpartition(".")[0]
        return f"{self.path}:{self.lines.get(dotted, 1)}"


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML mapping, safely (no tags that construct objects).

    Raises RecipeError when the file is missing, not UTF-8, not YAML, not a mapping, or names a key twice.
    """
    return parse_yaml(path, read_text(path))


def parse_yaml(path: Path, text: str) -> YamlFile:
    """Parse a text as if it were this file's. Raises as `read_yaml` does."""
    try:
        check_depth(text, _SafeLoader)
        lines, problems, values = _load(path, text)
    except yaml.YAMLError as error:
        raise RecipeError([_syntax_problem(path, error)]) from None
    except ExcessError as error:
        raise _refuse(path, "", str(error)) from None
    except _NO_VALUE as error:
        raise _refuse(path, "", f"holds a value that cannot be read: {error}") from None
    if problems:
        raise RecipeError(problems)
    if not isinstance(values, dict):
        raise _refuse(path, "", "a recipe is a mapping with keys such as `model:` and `steps:`")
    return YamlFile(path, text, values, lines)


_NO_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML raises of a date in the 13th month, and of `!!bool maybe`, `!!int ""`, `!!timestamp x`."""


def _load(path: Path, text: str) -> tuple[dict[str, int], list[Problem], object]:
    """Return the lines of all dotted paths, the problems of keys and values, and the values if there are none."""
    loader = _SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return {}, [], {}
        check_size(root)
        walk = _Walk(path)
        walk.visit(root)
        return walk.lines, walk.problems, None if walk.problems else loader.construct_document(root)
    finally:
        loader.dispose()


def compose_nodes(text: str) -> yaml.Node | None:
    """Return a text's tree of nodes with their start and end marks. The text is valid YAML."""
    root: yaml.Node | None = yaml.compose(text, _SafeLoader)
    return root


class _SafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's loader where it is there, Python's otherwise; both build plain data only."""


def read_text(path: Path) -> str:
    require_utf8(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # a pipe or a device may never end
            raise _refuse(path, "", "is no regular file; write the recipe to a file first")
        if found.st_size > MAX_BYTES:
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
    except ValueError:
        raise _refuse(path, "", "no file can have this name") from None


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either" if str(folder) != "." else ""
    from ndld_flow.base.text import suggest

    return suggest(path.name, [p.name for p in folder.glob("*.y*ml")])


@dataclass
class _Walk:
    """Find the lines of all dotted paths, and every invalid or repeated key and value."""

    path: Path
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _visited: set[int] = field(default_factory=set)

    def visit(self, node: yaml.Node, dotted: str = "") -> None:
        if id(node) in self._visited:
            return
        self._visited.add(id(node))
        if trouble := value_trouble(node):
            self._tell(node, dotted, trouble)
        elif isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, dotted)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.lines.setdefault(f"{dotted}.{index}", value.start_mark.line + 1)
                self.visit(value, f"{dotted}.{index}")

    def _visit_mapping(self, node: yaml.MappingNode, dotted: str) -> None:
        seen: dict[str, int] = {}
        for key, value in node.value:
            if trouble := key_trouble(key):
                self._tell(key, dotted, trouble)
                continue
            name = f"{dotted}.{key.value}" if dotted else str(key.value)
            line = key.start_mark.line + 1
            if key.value in seen and key.value != "<<":
                what = f"the key `{key.value}` is given twice (first on line {seen[key.value]})"
                self._tell(key, name, what, "give each key once")
            seen.setdefault(key.value, line)
            self.lines.setdefault(name, line)
            self.visit(value, name)

    def _tell(self, node: yaml.Node, dotted: str, what: str, hint: str = "") -> None:
        where = f"{self.path}:{node.start_mark.line + 1}"
        self.problems.append(Problem(where, visible_name(dotted), visible_name(what), hint))


def _syntax_problem(path: Path, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    what = getattr(error, "problem", None) or " ".join(str(error).split())
    hint = "quote values that hold `: `, `#`, `*` or `{`; indent with spaces"
    return Problem(where, "", f"this is not YAML: {what}", hint)


def _refuse(path: Path, dotted: str, what: str, hint: str = "") -> RecipeError:
    return RecipeError([Problem(str(path), dotted, what, hint)])
