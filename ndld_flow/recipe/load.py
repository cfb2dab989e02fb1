"""From a recipe's file to a checked recipe or a checked sweep.

Hydra composes the file with others, interpolates and overrides; it validates nothing. A recipe may have a `defaults:`
list that names other recipes (in its folder, or in `pipelines/`) and config groups from `configs/`. Folders named
`configs` are searched in the recipe's folder, its parent, the current directory, and the package, which has presets of
its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import find_value
from ndld_flow.base.text import lazy_pattern
from ndld_flow.recipe.composed import (
    PRIMARY,
    Composed,
    bounded_resolution,
    explain_trouble,
    reading_environment,
    refuse_exposed_secrets,
)
from ndld_flow.recipe.config_files import (
    check_used_files,
    choose,
    compose_plain,
    copy_values,
    find_config,
    find_folders,
)
from ndld_flow.recipe.overrides import OF_HYDRA, OF_HYDRA_HINT, AxisError, check_overrides
from ndld_flow.recipe.recipe import Recipe, RecipeFile
from ndld_flow.recipe.resolved import write_yaml
from ndld_flow.recipe.targets import ON
from ndld_flow.recipe.validate import name_recipe, validate_recipe
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml
from ndld_flow.store.files import temporary_folder
from ndld_flow.store.hidden_credentials import hide_in_values

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ndld_flow.recipe.points import Sweep
    from ndld_flow.recipe.sweep_axes import GivenAxis


def load_sweep(
    recipe: Path | YamlFile, overrides: Sequence[str] = (), *, multirun: bool = False, trust: bool = False
) -> Recipe | Sweep:
    """Compose and check a recipe that may have a `sweep:`; return a recipe if nothing varies.

    Some overrides define an axis, which replaces the recipe's axis of this name or key, or is added: with `multirun`
    (`-m`) those with several values (`steps.speed.threads=1,2`); `sweep.over.KEY=VALUES`; and those that give an axis
    of the recipe a single value. `variant=plain,fp16` chooses among variants. Raises RecipeError with every problem.
    """
    check_overrides(overrides)
    file = read_yaml(recipe) if isinstance(recipe, Path) else recipe
    composed, given = _compose_axes(file, overrides, multirun, lambda plain: compose_recipe(file, plain, trust=trust))
    if composed.values.get("sweep") is None and not given:
        return validate_recipe(composed, trust=trust)
    from ndld_flow.recipe.make_sweep import make_sweep

    plain = composed.overrides
    return make_sweep(composed, given, trust, lambda more: compose_recipe(file, [*plain, *more], trust=trust))


def print_recipe(recipe: Path | YamlFile, overrides: Sequence[str] = (), *, multirun: bool = False) -> str:
    """Return a composed recipe as YAML that can be run itself: with presets, overrides and axes of the command line.

    Interpolations stay as they were written, and credentials are hidden. Values are not checked. Raises RecipeError for
    a recipe that cannot be composed.
    """
    check_overrides(overrides)
    file = read_yaml(recipe) if isinstance(recipe, Path) else recipe
    composed, given = _compose_axes(file, overrides, multirun, lambda plain: compose_written(file, plain))
    if given:
        from ndld_flow.recipe.sweep_axes import add_axes

        composed, _ = add_axes(composed, given)
    values = {**composed.values, "name": name_recipe(file.path, composed.values)}
    folder = file.path.absolute().parent
    if isinstance(values.get("steps_from"), list):
        values["steps_from"] = [str((folder / str(name)).resolve()) for name in values["steps_from"]]
    known = [key for key in RecipeFile.model_fields if key in values]
    ordered = hide_in_values({key: values[key] for key in (*known, *(values.keys() - set(known)))})
    return write_yaml({key: value for key, value in ordered.items() if value is not None}, "")


def _compose_axes(
    file: YamlFile, overrides: Sequence[str], multirun: bool, compose: Callable[[Sequence[str]], Composed]
) -> tuple[Composed, list[GivenAxis]]:
    """Compose a recipe with the overrides that define no axis; return it with the axes of the others."""
    if not overrides and _MISSING not in file.text:
        return compose(()), []
    from ndld_flow.recipe.sweep_axes import first_choices, read_pin

    axes, plain = _split(overrides, multirun)
    choices: list[str] = []
    if (
        _MISSING in file.text
    ):  # Hydra composes nothing while a config group is open, also where an axis chooses its file
        over = find_value(file.values, ("sweep", "over"))
        forms = {**(over if isinstance(over, dict) else {}), **{axis.key: axis.form for _, axis in axes}}
        chosen = first_choices(forms, find_folders(file.path))
        choices = [choose(group, name, file.values) for group, name in chosen.items()]

    def compose_plain(plain: Sequence[str]) -> Composed:
        return replace(compose([*plain, *choices]), overrides=tuple(plain))

    composed = compose_plain([override for _, override in plain])
    pins = [(place, pin) for place, override in plain if (pin := read_pin(override, composed.values))]
    if pins:
        left = [_compose_pin(override, dict(pins).get(place), composed.values) for place, override in plain]
        composed = compose_plain([override for override in left if override])
    return composed, [axis for _, axis in sorted([*axes, *pins], key=lambda numbered: numbered[0])]


def _split(overrides: Sequence[str], multirun: bool) -> tuple[list[tuple[int, GivenAxis]], list[tuple[int, str]]]:
    """Return the overrides that define an axis, and all others, each with its position."""
    from ndld_flow.recipe.sweep_axes import read_axis_override

    axes: list[tuple[int, GivenAxis]] = []
    plain: list[tuple[int, str]] = []
    problems: list[Problem] = []
    for index, override in enumerate(overrides):
        try:
            axis = read_axis_override(override, multirun)
        except RecipeError as error:
            problems += error.problems
            continue
        if axis is not None:
            axes.append((index, axis))
        else:
            plain.append((index, override))
    if problems:
        raise RecipeError(problems)
    return axes, plain


def _compose_pin(override: str, pin: GivenAxis | None, values: Mapping[str, Any]) -> str:
    """Return the override to compose for a pinned axis; None if it chooses a variant, which is no setting."""
    if pin is None:
        return override
    from ndld_flow.recipe.sweep_axes import find_root_key

    try:
        return f"{find_root_key(pin.key, values)}={override.partition('=')[2]}"
    except AxisError:
        return ""


def compose_recipe(recipe: Path | YamlFile, overrides: Sequence[str] = (), *, trust: bool = False) -> Composed:
    """Compose a recipe, whether or not its file has been read, with command-line overrides in Hydra's grammar.

    A plain `a.b=c` also sets what the recipe does not mention (`+` is not needed): validation knows every setting and
    suggests the nearest for a wrong one. Nothing is remembered: whatever a recipe is composed from, its values count.

    Raises RecipeError for unreadable files, wrong overrides, unknown defaults and broken interpolations, and without
    the user's `trust` for interpolations that read the environment.
    """
    file = read_yaml(recipe) if isinstance(recipe, Path) else recipe
    folders, overrides = find_folders(file.path), tuple(overrides)
    check_overrides(overrides)
    if "hydra" in file.values:
        raise RecipeError([Problem(file.where("hydra"), "hydra", OF_HYDRA, OF_HYDRA_HINT)])
    followed = _in_hydras_grammar(overrides, folders)
    if not followed and (plain := compose_plain(file, folders)) is not None:
        both = [plain, copy_values(plain)]
    else:
        with reading_environment(allowed=trust):
            both = _compose(file, followed, folders)
    for values in both:
        _settle(values, file, folders, overrides)
    composed = Composed(file, overrides, both[0], both[-1], trust)
    places = map(".".join, _find_texts(composed.values, _MISSING, ()))
    what = f"this value is missing: the recipe leaves it open (`{_MISSING}`)"
    problems = [Problem(composed.where(dotted), dotted, what, f"give it: {dotted}=VALUE") for dotted in places]
    if problems:
        raise RecipeError(problems)
    refuse_exposed_secrets(composed.values, composed.written, composed.where)
    return composed


def compose_written(file: YamlFile, overrides: Sequence[str]) -> Composed:
    """Compose a recipe with its `${...}` as written, whatever they refer to; the environment is not read.

    Raises RecipeError as `compose_recipe` does, but for interpolations.
    """
    folders, overrides = find_folders(file.path), tuple(overrides)
    check_overrides(overrides)
    with reading_environment(allowed=False):
        (values,) = _compose(file, _in_hydras_grammar(overrides, folders), folders, resolve=(False,))
    _settle(values, file, folders, overrides)
    return Composed(file, overrides, values, values)


_MISSING = "???"
"""OmegaConf's mark of a value that whoever runs the recipe has to give."""


def _find_texts(value: object, text: str, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the places of a text in plain data."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_texts(inner, text, (*words, str(key)))
    elif value == text:
        yield words


WITHOUT_SWEEP = "~sweep"
"""The override that removes a recipe's sweep. Hydra would look for presets of sweeps in `configs/`."""


def _in_hydras_grammar(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return overrides with `++` where they set a value, and without the one that removes the sweep."""
    return [
        override
        if override.startswith(("+", "~")) or "=" not in override or _chooses_group(override, folders)
        else f"++{override}"
        for override in overrides
        if override != WITHOUT_SWEEP
    ]


def _chooses_group(override: str, folders: Sequence[Path]) -> bool:
    """Return whether an override chooses a file of a config group instead of setting a value."""
    key = override.lstrip("+~").partition("=")[0]
    # A `Path` would raise for a key that is too long, or no file name.
    return "@" in key or "/" in key or any(os.path.isdir(folder / key) for folder in folders)  # noqa: PTH112


def _compose(
    file: YamlFile, overrides: Sequence[str], folders: Sequence[Path], resolve: Sequence[bool] = (True, False)
) -> list[dict[str, Any]]:
    """Return the recipe's values, for each of `resolve` with interpolations resolved or as written."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    check_used_files(file.values, overrides, folders)
    search = ",".join(_quote(f"file://{folder}") for folder in folders)
    followed = [*overrides, f"hydra.searchpath=[{search}]"]
    with temporary_folder() as aside:
        (aside / f"{PRIMARY}.yaml").write_text(file.quoted, encoding="utf-8")
        try:
            with (
                bounded_resolution(),
                warnings.catch_warnings(),
                _without_hydra_settings(),
                initialize_config_dir(config_dir=str(aside), version_base="1.3"),
            ):
                # Hydra advises to write `_self_`; without it, the recipe comes last, as one would expect.
                warnings.filterwarnings("ignore", ".*`_self_`")
                config = compose(PRIMARY, overrides=followed)
                both = [OmegaConf.to_container(config, resolve=resolved) for resolved in resolve]
        except Exception as error:  # Hydra raises errors of any type; the recipe causes them
            raise RecipeError([explain_trouble(file, overrides, error)]) from None
        finally:
            GlobalHydra.instance().clear()
    return [{str(key): _name_targets(value) for key, value in each.items()} for each in both if isinstance(each, dict)]


def _name_targets(value: Any) -> Any:  # noqa: ANN401 - plain data
    """Return values with the key `on` where Hydra, which reads YAML 1.1, has made it `true`; overrides precede it."""
    if isinstance(value, list):
        return [_name_targets(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        ON if key is True else key: _name_targets(item)
        for key, item in value.items()
        if key is not True or ON not in value
    }


@contextlib.contextmanager
def _without_hydra_settings() -> Iterator[None]:
    """Remove Hydra's settings of its own logs, help and launchers inside the block, and restore them for other users.

    Nothing here uses them, and finding and reading them takes a third of the time of a composition.
    """
    from hydra.core.config_store import ConfigStore

    group = ConfigStore.instance().repo["hydra"]
    kept = group["config.yaml"]
    group["config.yaml"] = replace(kept, node=_bare_hydra_settings())
    try:
        yield
    finally:
        group["config.yaml"] = kept


@functools.cache
def _bare_hydra_settings() -> DictConfig:
    """Return Hydra's settings without the groups that they choose from; Hydra copies the settings before each use."""
    from hydra.conf import HydraConf
    from omegaconf import OmegaConf

    settings: DictConfig = OmegaConf.structured(HydraConf(defaults=[]))
    return settings


def _quote(text: str) -> str:
    """Return text as a quoted string of Hydra's grammar, where a backslash is an escape only before a quote."""
    escaped = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), text)
    return f"'{escaped}'"


def _settle(values: dict[str, Any], file: YamlFile, folders: Sequence[Path], overrides: Sequence[str]) -> None:
    """Remove the sweep if an override does, and sort steps into the order of the recipes: those of `defaults:` first,
    then the recipe's own."""
    if WITHOUT_SWEEP in overrides:
        values.pop("sweep", None)
    steps = values.setdefault("steps", None)
    if isinstance(steps, dict):
        parts = [*_list_parts(file, folders, _choices(overrides))]
        others = [part.file.values.get("steps") for part in parts if part.name != "_self_" and part.in_root]
        written = [each for each in (*others, file.values.get("steps")) if isinstance(each, dict)]
        named = [name for each in written for name in each if name in steps]
        values["steps"] = {name: steps[name] for name in dict.fromkeys([*named, *steps])}


@dataclass(frozen=True)
class Part:
    """A file that is a part of a recipe."""

    name: str
    """As `defaults:` has it, `profiling@steps.speed: quick`; `_self_` for the recipe's own file."""
    file: YamlFile
    in_root: bool
    """True if its keys are those of the recipe itself, such as `steps`; of a group, this takes a first line."""


_IN_ROOT = lazy_pattern(r"(?m)^#\s*@package\s+_global_\s*$")


def list_parts(recipe: Path | YamlFile, overrides: Sequence[str] = ()) -> list[Part]:
    """Return the files that make up a recipe, in the order of their `defaults:`. Raises RecipeError as `read_yaml`."""
    file = read_yaml(recipe) if isinstance(recipe, Path) else recipe
    check_overrides(overrides)
    return [*_list_parts(file, find_folders(file.path), _choices(overrides))]


def _choices(overrides: Sequence[str]) -> dict[str, str]:
    """Return the value of each override, by its key: those of config groups are names of files."""
    return dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)


def _list_parts(
    file: YamlFile, folders: Sequence[Path], chosen: Mapping[str, str], name: str = "_self_", depth: int = 0
) -> Iterator[Part]:
    own = Part(name, file, name == "_self_" or ": " not in name or _IN_ROOT.search(file.text) is not None)
    defaults = file.values.get("defaults")
    entries = defaults if isinstance(defaults, list) and depth < 16 else []
    for entry in entries:
        if entry == "_self_":
            yield own
            continue
        for key, choice in entry.items() if isinstance(entry, dict) else [("", entry)]:
            group = str(key).split()[-1] if str(key).split() else ""
            wanted = chosen.get(group, str(choice))
            for path in find_config("/".join(filter(None, [group.partition("@")[0], wanted])), folders):
                listed = f"{group}: {wanted}" if group else wanted
                yield from _list_parts(read_yaml(path), folders, chosen, listed, depth + 1)
    if "_self_" not in entries:
        yield own
