"""Files that a recipe may be composed from: other recipes and config groups, in nearby folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ndld_flow.recipe.examples import shipped_folder
from ndld_flow.recipe.yaml_file import read_yaml

MAX_CONFIGS = 10_000
"""Limit of files in a folder called `configs`; further ones are ignored."""


def find_folders(path: Path) -> list[Path]:
    """Return the folders of config groups and other recipes, nearest first."""
    folder = path.absolute().parent
    candidates = [
        folder / "configs",
        folder.parent / "configs",
        Path.cwd() / "configs",
        folder,
        Path.cwd() / "pipelines",
        shipped_folder("configs"),
    ]
    return [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]


def check_used_files(values: dict[str, Any], overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Read each file that Hydra may read for a recipe: those in its `defaults:`, in theirs, and those that overrides
    choose. Hydra reads any file, so a file that no recipe may use is rejected first.

    Raises RecipeError as `read_yaml` does.
    """
    waiting = _default_files(values, folders)
    for override in overrides:
        group, _, choice = override.lstrip("+~").partition("=")
        for word in re.split(r"[\s,()\[\]'\"]+", choice):
            waiting += find_config(f"{group.partition('@')[0]}/{word}", folders)
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            # `configs/profiling/quick.yaml` belongs to the group `profiling`.
            holders = (folder for folder in folders if path.is_relative_to(folder))
            group = next((path.parent.relative_to(folder).as_posix() for folder in holders), "")
            waiting += _default_files(read_yaml(path).values, folders, group)


def finds_the_same(values: dict[str, Any], path: Path, other: Path) -> bool:
    """Return whether a recipe's `defaults:` refer to the same files from another path."""
    return _default_files(values, find_folders(path)) == _default_files(values, find_folders(other))


def find_config(name: str, folders: Sequence[Path]) -> list[Path]:
    """Return the file of a name such as `profiling/quick`, in the first folder that contains it."""
    paths = (folder / f"{name.strip('/').removesuffix('.yaml')}.yaml" for folder in folders)
    # Reading reports a wrong kind of file. A `Path` would raise for a name that is too long.
    return [path for path in paths if os.path.exists(path) and not path.is_dir()][:1]  # noqa: PTH110


def list_choices(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the names of the files of a config group, `precision` or `profiling@steps.speed`; empty if it is none."""
    name = group.partition("@")[0]
    if not re.fullmatch(r"\w+([/-]\w+)*", name):
        return []
    found = {path.stem for folder in folders for path in islice((folder / name).glob("*.yaml"), MAX_CONFIGS)}
    return sorted(found)


def choose(group: str, choice: str, values: Mapping[str, Any]) -> str:
    """Return the override that chooses a file of a config group; `values` are those of the recipe's file."""
    defaults = values.get("defaults")
    entries = (entry for entry in (defaults if isinstance(defaults, list) else []) if isinstance(entry, dict))
    is_default = any(str(key).split()[-1:] == [group] for entry in entries for key in entry)
    return f"{'' if is_default else '+'}{group}={choice}"


def _config_files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        pattern = "**/*.y*ml" if folder.name == "configs" else "*.y*ml"
        yield from sorted(islice(folder.glob(pattern), MAX_CONFIGS))


def _default_files(values: dict[str, Any], folders: Sequence[Path], group: str = "") -> list[Path]:
    """Return the files that a `defaults:` list names: `other`, `group/choice`, `group@package: choice`.

    In a file of a group they are relative to the group, or begin with `/`. An entry that depends on other choices may
    name any file.
    """
    entries = values.get("defaults")
    names = [name for entry in (entries if isinstance(entries, list) else []) for name in _named(entry)]
    if any("${" in name for name in names):
        return list(_config_files(folders))
    return [path for name in names for prefix in ("", group) for path in find_config(f"{prefix}/{name}", folders)]


def _named(entry: object) -> Iterator[str]:
    """Yield the names of the files that one entry of a `defaults:` list chooses."""
    for group, choices in entry.items() if isinstance(entry, dict) else [("", entry)]:
        words = str(group).partition("@")[0].split()  # `override` and `optional` may precede a group
        for choice in choices if isinstance(choices, list) else [choices]:
            yield "/".join([*words[-1:], str(choice).partition("@")[0]])
