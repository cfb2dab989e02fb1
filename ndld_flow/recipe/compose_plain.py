"""Compose recipes whose `defaults:` only choose presets, with the same result as Hydra and without importing it.

Importing Hydra and OmegaConf takes longer than everything else that an unchanged recipe needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ndld_flow.recipe.config_files import find_config
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml

_INTERPRETED = ("${", "???", "@package", "!!")
"""Marks of text that OmegaConf or Hydra interpret."""
_WORD = r"[A-Za-z]\w*"
_GROUP = re.compile(rf"({_WORD})(?:@({_WORD}(?:\.{_WORD})*))?", re.ASCII)
_CHOICE = re.compile(rf"{_WORD}(?:-\w+)*", re.ASCII)
_SELF = "_self_"


def compose_plain(file: YamlFile, folders: Sequence[Path]) -> dict[str, Any] | None:
    """Return a recipe's values over the presets of its `defaults:`; None if composing it takes more than that.

    A preset is an entry `GROUP: NAME` or `GROUP@PATH: NAME`, and its file has no `defaults:` of its own.
    """
    if any(mark in file.text for mark in _INTERPRETED):
        return None
    parts = _find_parts(file, folders) if "defaults" in file.values else [("", file)]
    if parts is None:
        return None
    composed: dict[str, Any] = {}
    for path, part in parts:
        values: Any = {key: value for key, value in part.values.items() if key != "defaults"}
        for key in reversed(path.split(".") if path else []):
            values = {key: values}
        if not _merge(composed, values):
            return None
    return {str(key): value for key, value in composed.items()}


def _find_parts(file: YamlFile, folders: Sequence[Path]) -> list[tuple[str, YamlFile]] | None:
    """Return the files that make up a recipe, each with the dotted path of its values; None if Hydra must find them."""
    entries = file.values["defaults"]
    parts: dict[str | tuple[str, str], tuple[str, YamlFile]] = {}
    for entry in entries if isinstance(entries, list) else [None]:
        if entry == _SELF and _SELF not in parts:
            parts[_SELF] = ("", file)
            continue
        match list(entry.items()) if isinstance(entry, dict) else []:
            case [(str(key), str(choice))] if (named := _GROUP.fullmatch(key)) and _CHOICE.fullmatch(choice):
                group, path = named[1], named[2] or named[1]
            case _:
                return None
        found = find_config(f"{group}/{choice}", folders)
        if (group, path) in parts or not found:
            return None
        preset = read_yaml(found[0])
        if "defaults" in preset.values or any(mark in preset.text for mark in _INTERPRETED):
            return None
        parts[group, path] = (path, preset)
    parts.setdefault(_SELF, ("", file))
    return list(parts.values())


def _merge(into: dict[Any, Any], values: dict[Any, Any]) -> bool:
    """Add values to a mapping, inside of mappings that both have; any other value replaces the earlier one.

    Each alias of YAML becomes a value of its own, as OmegaConf makes it. Return False where a list meets a mapping,
    which OmegaConf refuses.
    """
    for key, value in values.items():
        earlier = into.get(key)
        if {type(earlier), type(value)} == {dict, list}:
            return False
        if not isinstance(earlier, dict) or not isinstance(value, dict):
            into[key] = copy_values(value)
        elif not _merge(earlier, value):
            return False
    return True


def copy_values(value: Any) -> Any:  # noqa: ANN401 - plain data
    """Return a copy of plain data without anything in common with it."""
    if isinstance(value, dict):
        return {key: copy_values(inner) for key, inner in value.items()}
    return [copy_values(inner) for inner in value] if isinstance(value, list) else value
