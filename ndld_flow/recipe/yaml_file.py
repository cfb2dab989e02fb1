"""Read a YAML file within bounds: its values, the order of its keys, and the line of each."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import yaml

from ndld_flow.base.errors import Problem, RecipeError, require_utf8
from ndld_flow.base.text import shell_word, suggest, visible_name

MAX_BYTES = 2**20
"""Maximum size of a recipe: people write recipes, and a larger file is something else."""
MAX_VALUES = 20_000
"""Maximum number of values in a file with aliases expanded: a few lines of aliases can mean billions."""
MAX_DEPTH = 64
"""Maximum nesting, aliases followed. libyaml's binding recurses without limit: 100,000 levels crash the process."""
MAX_DIGITS = 100
"""Maximum number of digits of an integer."""
MAX_INTERPOLATED = 4000
"""Maximum number of characters of a string with `${...}`, whose parser is slow."""

_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
_KEY_TAGS = ("str", "int", "float", "bool", "timestamp", "merge", "value")
_STANDARD = "tag:yaml.org,2002:"
_DEEP = f"is nested more than {MAX_DEPTH} levels deep, the limit for recipes"
_LIBYAML_DEEP = "exceeded maximum nesting depth"
"""The problem that libyaml 0.2.6 reports beyond 1000 levels, before it yields the first event."""


class ExcessError(ValueError):
    """A text expands beyond the limit for recipes; the message names the quantity."""


def check_depth(text: str, loader: type[yaml.SafeLoader]) -> None:
    """Count levels by events, which needs no recursion. Raises ExcessError, and YAMLError for invalid YAML."""
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ExcessError(_DEEP)
    except yaml.MarkedYAMLError as error:
        if error.problem != _LIBYAML_DEEP:
            raise
        raise ExcessError(_DEEP) from None


def check_size(root: yaml.Node) -> None:
    """Count values and levels, aliases followed. Raises ExcessError, also for an alias inside its own target."""
    known: dict[int, tuple[int, int]] = {}
    """Node -> values and levels below it; none yet while it is being measured."""

    def measure(node: yaml.Node) -> tuple[int, int]:
        if id(node) not in known:
            known[id(node)] = (0, 0)
            inner = [measure(child) for child in _children(node)]
            known[id(node)] = 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
        values, depth = known[id(node)]
        if not values:
            raise ExcessError("an alias (`*name`) is inside its own target")
        if values > MAX_VALUES:
            raise ExcessError(f"expands through its aliases to more than {MAX_VALUES:,} values, the limit for recipes")
        if depth > MAX_DEPTH:
            raise ExcessError(_DEEP)
        return values, depth

    measure(root)


def key_trouble(node: yaml.Node) -> str:
    """Return the reason why a node cannot be a key; empty if it can."""
    if isinstance(node, yaml.ScalarNode) and _short_tag(node) in _KEY_TAGS:
        return value_trouble(node)
    return "a key must be a string: not empty, a list, a mapping or bytes"


def value_trouble(node: yaml.Node) -> str:
    """Return the reason why a node itself cannot be a value; empty if it can."""
    if _short_tag(node) not in _PLAIN_TAGS:
        return f"the tag `{node.tag.replace(_STANDARD, '!!')}` has no meaning in a recipe"
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if _short_tag(node) == "int" and len(node.value) > MAX_DIGITS:
        return f"an integer has at most {MAX_DIGITS} digits"
    if "${" in node.value and len(node.value) > MAX_INTERPOLATED:
        return f"a string with `${{...}}` has at most {MAX_INTERPOLATED:,} characters"
    return ""


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from child if isinstance(child, tuple) else (child,)


def _short_tag(node: yaml.Node) -> str:
    """Return `int` for `tag:yaml.org,2002:int`, and any other tag whole."""
    return str(node.tag).removeprefix(_STANDARD)


@dataclass(frozen=True)
class YamlFile:
    """A file's top-level mapping, with the line of each dotted path."""

    path: Path
    text: str
    values: dict[str, Any]
    lines: dict[str, int]
    has_file: bool = True
    """False for a recipe that a program passes: `path` is then only its name in messages."""
    words: tuple[tuple[int, int], ...] = ()
    """Start and end in the text of each word that YAML 1.1 reads as true or false where one is meant, such as `off`."""

    @property
    def quoted(self) -> str:
        """Return the text with these words in quotes, for other readers of YAML."""
        text = self.text
        for start, end in sorted(self.words, reverse=True):
            text = f"{text[:start]}'{text[start:end]}'{text[end:]}"
        return text

    def where(self, dotted: str) -> str:
        """Return `file:line` of a dotted path, or of its nearest parent in this file."""
        if not self.has_file:
            return str(self.path)
        while dotted and dotted not in self.lines:
            dotted = dotted.rpartition(".")[0]
        return f"{self.path}:{self.lines.get(dotted, 1)}"


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML mapping, safely (no tags that construct objects).

    Raises RecipeError if the file is missing, not UTF-8, not YAML, not a mapping, or names a key twice.
    """
    return parse_yaml(path, read_text(path))


def parse_yaml(path: Path, text: str) -> YamlFile:
    """Parse a text as if it were the contents of this file. Raises like `read_yaml`."""
    try:
        check_depth(text, _SafeLoader)
        walk, values = _load(path, text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        hint = "quote values that hold `: `, `#`, `*` or `{`, and `???` in braces; indent with spaces"
        raise RecipeError([Problem(where, "", f"this is not YAML: {what}", hint)]) from None
    except ExcessError as error:
        raise _refuse(path, "", str(error)) from None
    except _NO_VALUE as error:
        raise _refuse(path, "", f"contains a value that cannot be read: {error}") from None
    if walk.problems:
        raise RecipeError(walk.problems)
    if not isinstance(values, dict):
        raise _refuse(path, "", "a recipe is a mapping with keys such as `model:` and `steps:`")
    return YamlFile(path, text, values, walk.lines, words=tuple(walk.words))


_NO_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that PyYAML raises for a date in the 13th month, and for `!!bool maybe`, `!!int ""`, `!!timestamp x`."""


def _load(path: Path, text: str) -> tuple[_Walk, object]:
    """Return what a walk found, and the values if there are no problems."""
    loader, walk = _SafeLoader(text), _Walk(path, text)
    try:
        root = loader.get_single_node()
        if root is None:
            return walk, {}
        check_size(root)
        walk.visit(root)
        return walk, None if walk.problems else loader.construct_document(root)
    finally:
        loader.dispose()


def compose_nodes(text: str) -> yaml.Node | None:
    """Return a text's tree of nodes with their start and end marks. The text is valid YAML."""
    root: yaml.Node | None = yaml.compose(text, _SafeLoader)
    return root


class _SafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's loader if it is available, otherwise Python's; both build only plain data.

    Scalars mean what they mean to OmegaConf (`get_yaml_loader` in its `_utils.py`): `1e3` is a number, a date is text.
    """


_SafeLoader.add_implicit_resolver(
    f"{_STANDARD}float",
    re.compile(
        r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)
_SafeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_STANDARD}timestamp"]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


def read_text(path: Path) -> str:
    require_utf8(path)
    try:
        _check_kind(path, path.stat())
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
        raise _refuse(path, "", "is not a valid file name") from None


def _check_kind(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # a pipe or a device may never end
        raise _refuse(path, "", "is not a regular file; write the recipe to a file first")
    if path.suffix.lower() == ".onnx":
        hint = f"write a recipe for it with `ndld-flow init {shell_word(path)}`, then run that"
        raise _refuse(path, "", "is a model, not a recipe", hint)
    if status.st_size > MAX_BYTES:
        raise _refuse(path, "", f"is larger than {MAX_BYTES // 2**20} MiB, the limit for recipes")


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either" if str(folder) != "." else ""
    return suggest(path.name, [p.name for p in folder.glob("*.y*ml")])


@dataclass
class _Walk:
    """A walk that finds the lines of all dotted paths, and every invalid or repeated key and value.

    YAML 1.1 reads `off`, `on`, `yes` and `no` as true and false. As a key, and in `defaults:`, a word is meant.
    """

    path: Path
    text: str
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)
    _visited: set[int] = field(default_factory=set)

    def visit(self, node: yaml.Node, dotted: str = "") -> None:
        if id(node) in self._visited:
            return
        self._visited.add(id(node))
        if dotted.partition(".")[0] == "defaults":
            self._take_as_word(node)
        if trouble := value_trouble(node):
            self._report(node, dotted, trouble)
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
                self._report(key, dotted, trouble)
                continue
            self._take_as_word(key)
            name = f"{dotted}.{key.value}" if dotted else str(key.value)
            line = key.start_mark.line + 1
            if key.value in seen and key.value != "<<":
                what = f"the key `{key.value}` is given twice (first on line {seen[key.value]})"
                self._report(key, name, what, "give each key once")
            seen.setdefault(key.value, line)
            self.lines.setdefault(name, line)
            self.visit(value, name)

    def _take_as_word(self, node: yaml.Node) -> None:
        if _short_tag(node) == "bool":
            node.tag = f"{_STANDARD}str"
            place = node.start_mark.index, node.end_mark.index
            if self.text[slice(*place)] == node.value:  # no anchor or tag is in front
                self.words.append(place)

    def _report(self, node: yaml.Node, dotted: str, what: str, hint: str = "") -> None:
        where = f"{self.path}:{node.start_mark.line + 1}"
        self.problems.append(Problem(where, visible_name(dotted), visible_name(what), hint))


OF_PROGRAM = Path("recipe")
"""The name of a recipe without a file. It has no folder, so relative paths start at the current directory."""


def yaml_of_values(values: Mapping[str, Any]) -> YamlFile:
    """Return a recipe that a program passes as if it were a file in the current directory.

    Lists may be tuples, and paths `Path` objects. Raises RecipeError as `read_yaml` does, and for a value that is not
    plain data.
    """
    try:
        text = yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        what = f"contains a value that is not plain data, of the type {type(error.args[-1]).__name__}"
        raise _refuse(OF_PROGRAM, "", what) from None
    except RecursionError:
        raise _refuse(OF_PROGRAM, "", _DEEP) from None
    return replace(parse_yaml(OF_PROGRAM, text), has_file=False)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, PurePath) else value


def _refuse(path: Path, dotted: str, what: str, hint: str = "") -> RecipeError:
    return RecipeError([Problem(str(path), dotted, what, hint)])
