"""Change one value in YAML text and leave the rest as it is: comments, layout, quotes.

A value is written on one line, in flow style, where the old one stood. A key that is missing is added behind the last
one of its mapping.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml
from pydantic import JsonValue

from ndld_flow.recipe.places import split_key
from ndld_flow.recipe.yaml_file import compose_nodes

ALIAS = re.compile(r"\s*:\s*\*[^\s,\[\]{}]+")
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_ .%/-]*|[0-9]+(\.[0-9]+)? [A-Za-z%]+")
"""Text that YAML reads as text without quotes, unless it is a word such as `null`, which its writer knows."""
COMMENT = re.compile(r"[ \t]*#")

Words = Sequence[str]
"""A dotted path, split."""


class CannotEditError(ValueError):
    """The text is not of a kind that can be changed in this place alone."""


def set_value(text: str, words: Words, value: JsonValue) -> str:
    """Return the text with one value replaced or added. Raises CannotEditError."""
    node = _root(text)
    key: yaml.Node | None = None
    for _ in range(len(words)):
        if isinstance(node, yaml.MappingNode):
            name, rest = split_key(_entries(node), words)
            if name not in _entries(node):
                return _insert(text, node, name, _nest(rest, value))
            key, node = _entries(node)[name]
            _refuse_alias(node, key.end_mark.index)
        elif isinstance(node, yaml.SequenceNode):
            item = int(words[0]) if words[0].isdigit() else len(node.value)
            if item >= len(node.value):
                raise CannotEditError(f"there is no item {words[0]} in the text")
            begin = node.value[item - 1].end_mark.index if item else node.start_mark.index
            key, node, rest = None, node.value[item], words[1:]
            _refuse_alias(node, begin)
        elif isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            break
        else:
            raise CannotEditError(f"`{'.'.join(words)}` is not in the text")
        words = rest
        if not words:
            break
    return _replace(text, key, node, _render(_nest(words, value)))


def remove_key(text: str, words: Words) -> str:
    """Return the text without one key of a mapping, its value and its comments. Raises CannotEditError."""
    node, parent = _root(text), words
    while True:
        if not isinstance(node, yaml.MappingNode):
            raise CannotEditError(f"`{'.'.join(words)}` is not in the text")
        name, rest = split_key(_entries(node), words)
        if name not in _entries(node):
            raise CannotEditError(f"`{name}` is not in the text")
        if not rest:
            break
        key, node = _entries(node)[name]
        _refuse_alias(node, key.end_mark.index)
        words = rest
    if len(node.value) == 1 and len(parent) > 1:
        return set_value(text, parent[: -len(words)], {})
    names = [key.value for key, _ in node.value]
    return (_cut_from_flow if node.flow_style else _cut_lines)(text, node, names.index(name))


def _root(text: str) -> yaml.Node:
    try:
        root = compose_nodes(text)
    except yaml.YAMLError:
        raise CannotEditError("an alias elsewhere refers to the removed text") from None
    if not isinstance(root, yaml.MappingNode):
        raise CannotEditError("the text is no mapping")
    return root


def _entries(node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    return {str(key.value): (key, value) for key, value in node.value}


def _refuse_alias(node: yaml.Node, begin: int) -> None:
    if node.start_mark.index < begin:
        raise CannotEditError("the value is an alias of text elsewhere")


def _nest(words: Words, value: JsonValue) -> JsonValue:
    for word in reversed(words):
        value = {word: value}
    return value


# --- writing values --------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes values on one line, so that each loader of YAML reads the same."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if PLAIN.fullmatch(text) else "'" if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _render(value: object) -> str:
    """Format a value in flow style, which is valid anywhere."""
    text: str = yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=2**30, sort_keys=False
    )
    return text.strip()[1:-1]


# --- placing them ----------------------------------------------------------------------------------------------------


def _end_of(text: str, node: yaml.Node) -> int:
    """Return the end of a node's own text; the end marks of block collections include comments and blank lines."""
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        return start + len(text[start:end].rstrip()) if node.style in ("|", ">") else int(end)
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(end)
    if isinstance(node, yaml.MappingNode):
        return _end_of_entry(text, *node.value[-1])
    before = node.value[-2].end_mark.index if len(node.value) > 1 else start
    _refuse_alias(node.value[-1], before)
    return _end_of(text, node.value[-1])


def _end_of_entry(text: str, key: yaml.Node, value: yaml.Node) -> int:
    if value.start_mark.index >= key.end_mark.index:
        return _end_of(text, value)
    alias = ALIAS.match(text, key.end_mark.index)
    if alias is None:
        raise CannotEditError("the value is an alias")
    return alias.end()


def _replace(text: str, key: yaml.Node | None, node: yaml.Node, rendered: str) -> str:
    start, end = node.start_mark.index, _end_of(text, node)
    if start == end:  # there is no value yet
        colon = "" if key is None or ":" in text[key.end_mark.index : start] else ":"
        return f"{text[:start]}{colon} {rendered}{text[end:]}"
    gap = text[key.end_mark.index : start] if key is not None else ""
    if "\n" not in gap or key is None:
        return text[:start] + rendered + text[end:]
    # a block that begins below its key: its replacement goes on the key's line, before the comment there
    colon_end = text.index(":", key.end_mark.index) + 1
    return f"{text[:colon_end]} {rendered}{text[colon_end : text.rindex(chr(10), 0, start)]}{text[end:]}"


def _insert(text: str, node: yaml.MappingNode, name: str, value: JsonValue) -> str:
    entry = _render({name: value})[1:-1]
    if not node.value:
        brace = text.index("{", node.start_mark.index) + 1
        return text[:brace] + entry + text[brace:]
    end = _end_of_entry(text, *node.value[-1])
    if node.flow_style:
        return f"{text[:end]}, {entry}{text[end:]}"
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{' ' * node.value[0][0].start_mark.column}{entry}{text[line_end:]}"


def _cut_from_flow(text: str, node: yaml.MappingNode, index: int) -> str:
    begin, end = node.value[index][0].start_mark.index, _end_of_entry(text, *node.value[index])
    if index + 1 < len(node.value):
        end = node.value[index + 1][0].start_mark.index
    elif index:
        begin = _end_of_entry(text, *node.value[index - 1])
    return text[:begin] + text[end:]


def _cut_lines(text: str, node: yaml.MappingNode, index: int) -> str:
    """Cut an entry's lines, its comments, and the blank lines that would be left over."""
    key = node.value[index][0]
    begin = text.rfind("\n", 0, key.start_mark.index) + 1
    if text[begin : key.start_mark.index].strip():
        raise CannotEditError("the key does not begin its line")
    lines = text[:begin].splitlines(keepends=True)
    own = _comments_above(lines, key.start_mark.column)
    before = "".join(lines[: len(lines) - own])
    after = text[_end_of_entry(text, *node.value[index]) :].partition("\n")[2].splitlines(keepends=True)
    while after and COMMENT.match(after[0]) and after[0].index("#") > key.start_mark.column:
        del after[0]
    if not before.strip() or before.endswith("\n\n") or not "".join(after).strip():
        while after and not after[0].strip():
            del after[0]
    return before + "".join(after) if after else before.rstrip("\n") + "\n"


def _comments_above(lines: Sequence[str], column: int) -> int:
    """Return the number of comment lines directly above a key at its indentation; 0 if they are the file's heading."""
    count = 0
    while count < len(lines) and COMMENT.match(lines[-1 - count]) and lines[-1 - count].index("#") == column:
        count += 1
    return count if count < len(lines) else 0
