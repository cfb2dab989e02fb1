"""Files that a recipe may be composed from: other recipes and config groups, in nearby folders and in the package."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import OutputsError, Problem, RecipeError, RequestError, UnknownNameError
from ndld_flow.recipe.targets import ON
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml
from ndld_flow.store.files import write_bytes_atomically

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


_NO_WORD = "Hydra, which reads YAML 1.1, takes this word for true or false", "write it in quotes"


def check_used_files(values: dict[str, Any], overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Read each file that Hydra may read for a recipe: those in its `defaults:`, in theirs, and those that overrides
    choose. Hydra reads any file, so a file that no recipe may use is rejected first.

    Raises RecipeError as `read_yaml` does, and for words such as `off` that Hydra would read as false.
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
            file = read_yaml(path)
            words = dict.fromkeys(file.text[start:end] for start, end in file.words)
            if problems := [Problem(str(path), word, *_NO_WORD) for word in words if word != ON]:
                raise RecipeError(problems)
            waiting += _default_files(file.values, folders, group)


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


def _default_files(values: dict[str, Any], folders: Sequence[Path], group: str = "") -> list[Path]:
    """Return the files that a `defaults:` list names: `other`, `group/choice`, `group@package: choice`.

    In a file of a group they are relative to the group, or begin with `/`. An entry that depends on other choices may
    name any file.
    """
    entries = values.get("defaults")
    names = [name for entry in (entries if isinstance(entries, list) else []) for name in _named(entry)]
    if any("${" in name for name in names):
        patterns = [(folder, "**/*.y*ml" if folder.name == "configs" else "*.y*ml") for folder in folders]
        return [path for folder, each in patterns for path in sorted(islice(folder.glob(each), MAX_CONFIGS))]
    return [path for name in names for prefix in ("", group) for path in find_config(f"{prefix}/{name}", folders)]


def _named(entry: object) -> Iterator[str]:
    """Yield the names of the files that one entry of a `defaults:` list chooses."""
    for group, choices in entry.items() if isinstance(entry, dict) else [("", entry)]:
        words = str(group).partition("@")[0].split()  # `override` and `optional` may precede a group
        for choice in choices if isinstance(choices, list) else [choices]:
            yield "/".join([*words[-1:], str(choice).partition("@")[0]])


_PACKAGE = Path(__file__).parent.parent


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `pipelines` of the package; in a clone it is the one of the repository."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def example_names() -> list[str]:
    """Return the names of the example recipes, such as `quickstart`."""
    return sorted(path.stem for path in shipped_folder("pipelines").glob("*.yaml"))


def write_example(name: str, *, overwrite: bool = False) -> Path:
    """Copy an example recipe and the data that it names to `pipelines/` in the current directory, where its own
    comments expect it; return the recipe's path. Existing files are kept.

    Raises RequestError for an unknown name and if another recipe has its place.
    """
    if name not in example_names():
        raise UnknownNameError(f"There is no example {name!r}", name, example_names())
    shipped, target = shipped_folder("pipelines"), Path("pipelines")
    recipe = target / f"{name}.yaml"
    try:
        text = (shipped / recipe.name).read_bytes()
        exists = recipe.exists() and not overwrite
        if exists and recipe.read_bytes() != text:
            raise RequestError(f"{recipe}: the file exists, and was changed. Run it, or give --overwrite.")
        recipe.parent.mkdir(parents=True, exist_ok=True)
        for data in _data_files(read_yaml(shipped / recipe.name).values, shipped):
            copied = target / data.relative_to(shipped)
            if not copied.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                write_bytes_atomically(copied, data.read_bytes())
        if not exists:
            write_bytes_atomically(recipe, text)
    except OSError as error:
        raise OutputsError(f"{recipe}: the example cannot be written ({error.strerror}).") from None
    return recipe


def _data_files(values: object, shipped: Path) -> Iterator[Path]:
    """Yield the files that a recipe names by paths, globs or folders that start with `pipelines/`."""
    if isinstance(values, str) and values.startswith("pipelines/"):
        for path in shipped.parent.glob(values):
            yield from [path] if path.is_file() else path.glob("**/*.png")
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _data_files(value, shipped)


_INTERPRETED = ("${", "???", "@package", "!!")
"""Marks of text that OmegaConf or Hydra interpret."""
_WORD = r"[A-Za-z]\w*"
_GROUP = re.compile(rf"({_WORD})(?:@({_WORD}(?:\.{_WORD})*))?", re.ASCII)
_CHOICE = re.compile(rf"{_WORD}(?:-\w+)*", re.ASCII)
_SELF = "_self_"


def compose_plain(file: YamlFile, folders: Sequence[Path]) -> dict[str, Any] | None:
    """Return a recipe's values over the presets of its `defaults:`; None if composing it takes more than that.

    A preset is an entry `GROUP: NAME` or `GROUP@PATH: NAME`, and its file has no `defaults:` of its own. The result is
    Hydra's: importing Hydra and OmegaConf takes longer than everything else that an unchanged recipe needs.
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
