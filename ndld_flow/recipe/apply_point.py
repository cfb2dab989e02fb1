"""Write a point's values, or a change that a finding suggests, into the text of a recipe, and keep the rest as it is.

YAML libraries that keep comments reformat the rest: ruamel.yaml 0.19 collapses aligned spaces, and drops the braces of
`[&name {key: value}]`, which changes its meaning. So the text is edited in place, at the positions that PyYAML reports
for its nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue

from ndld_flow.base.errors import RecipeError
from ndld_flow.base.places import split_key
from ndld_flow.profiles.diagnose.subject import RecipeChange
from ndld_flow.recipe.load import compose_recipe
from ndld_flow.recipe.points import Changes, Variations, open_variations
from ndld_flow.recipe.resolved import without_credentials, write_yaml
from ndld_flow.recipe.validate import Checker
from ndld_flow.recipe.yaml_file import compose_nodes, parse_yaml
from ndld_flow.store.hidden_credentials import hide_credentials

ALIAS = re.compile(r"\s*:\s*\*[^\s,\[\]{}]+")
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_ .%/-]*|[0-9]+(\.[0-9]+)? [A-Za-z%]+")
"""Text that needs no quotes in YAML, unless it is a word such as `null`, which PyYAML quotes."""
COMMENT = re.compile(r"[ \t]*#")

Words = Sequence[str]
"""A dotted path, split."""


class CannotEditError(ValueError):
    """The text cannot be changed only at this place."""


def set_value(text: str, words: Words, value: JsonValue) -> str:
    """Return the text with one value replaced or added. Raises CannotEditError."""
    node = _root(text)
    key: yaml.Node | None = None
    for _ in range(len(words)):
        if isinstance(node, yaml.MappingNode):
            name, rest = split_key(_entries(node), words)
            if name not in _entries(node):
                return _append(text, node, name, _nest(rest, value))
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
    index = [key.value for key, _ in node.value].index(name)
    return (_cut_from_flow if node.flow_style else _cut_lines)(text, node, index)


def _root(text: str) -> yaml.Node:
    try:
        root = compose_nodes(text)
    except yaml.YAMLError:
        raise CannotEditError("an alias elsewhere refers to the removed text") from None
    if not isinstance(root, yaml.MappingNode):
        raise CannotEditError("the text is not a mapping")
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
    """A dumper that writes values on one line, which every YAML loader reads in the same way."""


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
    # a block that begins on the line after its key: its replacement goes on the key's line, before the comment there
    colon_end = text.index(":", key.end_mark.index) + 1
    return f"{text[:colon_end]} {rendered}{text[colon_end : text.rindex(chr(10), 0, start)]}{text[end:]}"


def _append(text: str, node: yaml.MappingNode, name: str, value: JsonValue) -> str:
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


def insert_before(text: str, words: Words, name: str, value: JsonValue) -> str:
    """Return the text with an entry before the key at `words`, above the comments of that key. Raises
    CannotEditError."""
    node = _root(text)
    for index, word in enumerate(words):
        entry = _entries(node).get(word) if isinstance(node, yaml.MappingNode) else None
        if entry is None or not isinstance(node, yaml.MappingNode):
            raise CannotEditError(f"`{'.'.join(words[: index + 1])}` is not in the text")
        parent, (key, node) = node, entry
    begin, rendered = key.start_mark.index, _render({name: value})[1:-1]
    if parent.flow_style:
        return f"{text[:begin]}{rendered}, {text[begin:]}"
    line = text.rfind("\n", 0, begin) + 1
    if text[line:begin].strip():
        raise CannotEditError("the key does not begin its line")
    lines = text[:line].splitlines(keepends=True)
    above = len(lines) - _comments_above(lines, key.start_mark.column)
    return "".join([*lines[:above], f"{' ' * key.start_mark.column}{rendered}\n", *lines[above:], text[line:]])


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


_REMOVED = object()


def apply_point(path: Path, changes: Changes, overrides: Sequence[str] = ()) -> str:
    """Return the recipe's own text with changes written in place and without its `sweep:`; all else stays as it is.

    `overrides` are those of the command line, which are written into the recipe too. Lines end as they do in the file:
    write the text without translating line ends. The sweep has run its points, so the recipe is trusted. A recipe that
    cannot be changed in place is written in full, without comments, and its heading gives the reason. Raises
    RecipeError for a file that is not a recipe, and for a change of a key that it cannot have.
    """
    raw = path.read_bytes().decode("utf-8-sig")
    text = raw.replace("\r\n", "\n")
    wanted = _open_text(path, text, overrides)
    written, values = wanted.written_with(changes), wanted.values(changes)
    try:
        edited = _edit(path, text, wanted, changes)
        if _open_text(path, edited).composed.values.get("sweep") is not None:  # another one comes from `defaults:`
            edited = set_value(edited, ("sweep",), None)
        _check_meaning(_open_text(path, edited), written, values)
    except (CannotEditError, RecipeError, RecursionError) as error:
        shown = hide_credentials(", ".join(f"{key}: {json.dumps(value)}" for key, value in changes.items()))
        whole = {key: without_credentials(value, written.get(key)) for key, value in values.items()}
        edited = write_yaml(
            whole, f"{path.name} with {shown}\n{_why_in_full(path, error)},\nso it is written in full here."
        )
    return edited.replace("\n", "\r\n") if "\r\n" in raw else edited


def _why_in_full(path: Path, error: Exception) -> str:
    return f"{path.name} could not be changed only at these places ({' '.join(str(error).split())[:200]})"


def _open_text(path: Path, text: str, overrides: Sequence[str] = ()) -> Variations:
    """Compose the text of a trusted recipe. Raises RecipeError."""
    return open_variations(compose_recipe(parse_yaml(path, text), overrides, trust=True), Checker(path))


def _edit(path: Path, text: str, wanted: Variations, changes: Changes) -> str:
    """Return the text without its sweep, with the overrides of the recipe's own values and with the changes."""
    own = _open_text(path, text) if wanted.composed.overrides else wanted
    if "sweep" in own.composed.file.values:
        text = remove_key(text, ("sweep",))
    for words, value in differences(own.written, wanted.written):
        text = remove_key(text, words) if value is _REMOVED else set_value(text, words, value)  # type: ignore[arg-type]
    written = wanted.written
    for index, (key, value) in enumerate(changes.items(), 1):
        changed = wanted.written_with(dict(list(changes.items())[:index]))
        if json.dumps(changed) != json.dumps(written):
            text = set_value(text, key.split("."), value)
        written = changed
    return text


def differences(now: Mapping[str, Any], wanted: Mapping[str, Any], above: Words = ()) -> Iterator[tuple[Words, object]]:
    """Yield the paths at which two sets of values differ, with the new value of each."""
    for key in dict.fromkeys([*now, *wanted]):
        words = (*above, key)
        if key not in wanted:
            yield words, _REMOVED
        elif isinstance(now.get(key), dict) and isinstance(wanted[key], dict):
            yield from differences(now[key], wanted[key], words)
        elif key not in now or json.dumps(now[key]) != json.dumps(wanted[key]):
            yield words, wanted[key]


def _check_meaning(edited: Variations, written: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise CannotEditError unless a text has this meaning, including its `${...}` and the order of its steps."""
    both = ((edited.written, written), (edited.values({}), values))
    is_same = edited.composed.values.get("sweep") is None and all(
        json.dumps(value, sort_keys=True) == json.dumps(wanted, sort_keys=True)
        and list(value["steps"] or ()) == list(wanted["steps"] or ())
        for value, wanted in both
    )
    if not is_same:
        raise CannotEditError("its presets or aliases set other values")


_CHECK = "check_accuracy"
_READS = ("from", "candidate")
"""Settings that name a model; without them, a step reads that of the steps before it."""


@dataclass(frozen=True)
class ChangedRecipe:
    """The text of a recipe before and after a change."""

    before: str
    after: str
    step: str
    """Name of the step that profiles."""
    reason: str = ""
    """The reason why the recipe was written in full, without comments; empty if only the change was written."""


@dataclass(frozen=True)
class _Edit:
    """A change, with names for its new steps."""

    step: str
    change: RecipeChange
    source: str
    """Name of the step or model that the step reads now."""
    taken: tuple[str, ...]
    """Names of the recipe's steps and models."""
    recorded: Mapping[str, Any]
    """Step -> its resolved settings."""

    @property
    def new_steps(self) -> dict[str, dict[str, JsonValue]]:
        """Return name -> settings of the steps to insert, in order, each reading the one before."""
        steps: dict[str, dict[str, JsonValue]] = {}
        source = self.source
        for added in self.change.steps:
            name = self._free_name(added.step, steps)
            kind = {"step": added.step} if name != added.step else {}
            steps[name] = {**kind, "from": source, **added.settings}
            source = name
        if self.change.needs_check:
            name = self._free_name(_CHECK, steps)
            kind = {"step": _CHECK} if name != _CHECK else {}
            steps[name] = {**kind, "reference": self.source, "candidate": source}
        return steps

    @property
    def settings(self) -> dict[str, JsonValue]:
        """Return the new values of the step that profiles."""
        changed = [name for name, settings in self.new_steps.items() if "from" in settings]
        return {**({"from": changed[-1]} if changed else {}), **self.change.settings}

    def pins(self, steps: Mapping[str, Any]) -> dict[str, dict[str, JsonValue]]:
        """Return later step -> what it reads now, where it would read an inserted step instead."""
        names = list(steps)
        later = names[names.index(self.step) + 1 :] if self.new_steps else []
        pinned = {
            name: {
                key: self.source
                for key in _READS
                if key not in (steps[name] or {}) and self.recorded.get(name, {}).get(key) == self.source
            }
            for name in later
        }
        return {name: reads for name, reads in pinned.items() if reads}  # type: ignore[misc]

    def _free_name(self, wanted: str, others: Mapping[str, object]) -> str:
        used = {*self.taken, *others}
        numbered = (wanted if number == 1 else f"{wanted}_{number}" for number in range(1, len(used) + 2))
        return next(name for name in numbered if name not in used)

    def in_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe's values with the change."""
        steps: dict[str, Any] = {}
        changed = {self.step: self.settings, **self.pins(values["steps"])}
        for name, settings in values["steps"].items():
            if name == self.step:
                steps |= self.new_steps
            steps[name] = {**(settings or {}), **changed[name]} if name in changed else settings
        return {**values, "steps": steps}

    def in_text(self, text: str, steps: Mapping[str, Any]) -> str:
        """Return a recipe's text with the change; `steps` are its values. Raises CannotEditError."""
        for name, settings in self.new_steps.items():
            text = insert_before(text, ("steps", self.step), name, settings)
        for step, values in {self.step: self.settings, **self.pins(steps)}.items():
            for name, value in values.items():
                text = set_value(text, ("steps", step, name), value)
        return text


def change_file(
    path: Path, overrides: Sequence[str], change: RecipeChange, step: str, source: str, recorded: Mapping[str, Any]
) -> ChangedRecipe:
    """Return a recipe's own text with a change and the overrides of its run; comments stay.

    `source` is the model or step that the step read, and `recorded` the resolved recipe of the run. A recipe that
    cannot be changed in place is written in full from the record. Raises RecipeError for a file that is not a recipe.
    """
    raw = path.read_bytes().decode("utf-8-sig")
    text = raw.replace("\r\n", "\n")
    wanted = _open_text(path, text, overrides)
    values = wanted.values({})
    edit = _edit_of(values, change, step, source, recorded)
    try:
        if wanted.composed.values.get("sweep") is not None:
            raise CannotEditError("it has a `sweep:`")
        edited = edit.in_text(_edit(path, text, wanted, {}), values["steps"])
        _check_meaning(_open_text(path, edited), edit.in_values(wanted.written), edit.in_values(values))
    except (CannotEditError, RecipeError, RecursionError) as error:
        return change_record(recorded, change, step, source, _why_in_full(path, error))
    ending = "\r\n" if "\r\n" in raw else "\n"
    return ChangedRecipe(raw, edited.replace("\n", ending), step)


def change_record(
    recorded: Mapping[str, Any], change: RecipeChange, step: str, source: str, reason: str
) -> ChangedRecipe:
    """Return the resolved recipe of a run with a change, written in full."""
    values = {key: value for key, value in recorded.items() if key != "sweep"}
    after = _edit_of(values, change, step, source, values).in_values(values)
    return ChangedRecipe(
        write_yaml(values, ""), write_yaml(after, f"{reason},\nso it is written in full."), step, reason
    )


def _edit_of(
    values: Mapping[str, Any], change: RecipeChange, step: str, source: str, recorded: Mapping[str, Any]
) -> _Edit:
    taken = (*values["steps"], *(values.get("models") or ()), "source")
    return _Edit(step, change, source, taken, recorded.get("steps") or {})
