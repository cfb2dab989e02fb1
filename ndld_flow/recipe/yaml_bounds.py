"""Bounds on YAML: excessive texts are found before their aliases are expanded."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

MAX_BYTES = 2**20
"""A recipe is written by people; what is larger is another file."""
MAX_VALUES = 20_000
"""Values in a file with aliases expanded: a few lines of aliases can mean billions."""
MAX_DEPTH = 64
"""Levels of nesting, aliases followed. libyaml's binding recurses without limit: 100,000 levels end the process."""
MAX_DIGITS = 100
"""Digits of a whole number."""
MAX_INTERPOLATED = 4000
"""Characters of a text with `${...}`, whose parser is slow."""

_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
_KEY_TAGS = ("str", "int", "float", "bool", "timestamp", "merge", "value")
_STANDARD = "tag:yaml.org,2002:"
_DEEP = f"is nested more than {MAX_DEPTH} levels deep, which no recipe is"


class ExcessError(ValueError):
    """A text expands to more than any recipe needs; the message names the quantity."""


def check_depth(text: str, loader: type[yaml.SafeLoader]) -> None:
    """Count levels by events, which needs no recursion. Raises ExcessError, and YAMLError for what is no YAML."""
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ExcessError(_DEEP)


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
            raise ExcessError(f"expands to more than {MAX_VALUES:,} values with its aliases, which no recipe needs")
        if depth > MAX_DEPTH:
            raise ExcessError(_DEEP)
        return values, depth

    measure(root)


def key_trouble(node: yaml.Node) -> str:
    """Return the reason why a node cannot be a key; empty if it can."""
    if isinstance(node, yaml.ScalarNode) and _short_tag(node) in _KEY_TAGS:
        return value_trouble(node)
    return "a key is text: neither nothing, nor a list, a mapping or bytes"


def value_trouble(node: yaml.Node) -> str:
    """Return the reason why a node itself cannot be a value; empty if it can."""
    if _short_tag(node) not in _PLAIN_TAGS:
        return f"the tag `{node.tag.replace(_STANDARD, '!!')}` means nothing in a recipe"
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if _short_tag(node) == "int" and len(node.value) > MAX_DIGITS:
        return f"a whole number has at most {MAX_DIGITS} digits"
    if "${" in node.value and len(node.value) > MAX_INTERPOLATED:
        return f"a text with `${{...}}` has at most {MAX_INTERPOLATED:,} characters"
    return ""


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from child if isinstance(child, tuple) else (child,)


def _short_tag(node: yaml.Node) -> str:
    """Return `int` for `tag:yaml.org,2002:int`, and any other tag whole."""
    return str(node.tag).removeprefix(_STANDARD)
