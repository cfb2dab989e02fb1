"""Compose a recipe with Hydra and return a plain dictionary, within bounds, or one located problem.

Only this module imports OmegaConf, and only this module and `overrides.py`, which uses Hydra's parser, import Hydra.
They compose, interpolate and override; they validate nothing. OmegaConf has no limit, so interpolations are bounded
here: a few lines of `${a}${a}` can expand beyond any memory. The environment contains passwords and tokens, which a
stranger's recipe could write into the URL of its model or into a report, so only a trusted recipe may read it.

A recipe may have a `defaults:` list that names other recipes (in its folder, or in `pipelines/`) and config groups from
`configs/`. Folders named `configs` are searched in the recipe's folder, its parent, the current directory, and the
package, which has presets of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import find_value
from ndld_flow.base.text import lazy_pattern, suggest
from ndld_flow.recipe.config_files import check_used_files, compose_plain, copy_values, find_config, find_folders
from ndld_flow.recipe.foreign_forms import hint_at_override, hint_at_variable
from ndld_flow.recipe.overrides import OF_HYDRA, OF_HYDRA_HINT, check_overrides
from ndld_flow.recipe.targets import ON
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml
from ndld_flow.store.files import temporary_folder
from ndld_flow.store.hidden_credentials import is_secret_variable, remember_secrets, remembered_secrets

if TYPE_CHECKING:
    from omegaconf import DictConfig

READS_ENVIRONMENT = "this recipe reads the environment variable"


@contextlib.contextmanager
def reading_environment(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid OmegaConf to read the environment variables that a recipe names, inside the block."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def refuse(variable: object, _default: object = None) -> NoReturn:
        raise PermissionError(f"{READS_ENVIRONMENT} {variable}")

    def read(variable: str, *default: Any) -> Any:  # noqa: ANN401 - whatever OmegaConf passes
        value = oc.env(variable, *default)
        if variable in os.environ and is_secret_variable(variable):
            remember_secrets({str(value): variable})
            if hasattr(_LEFT, "steps"):
                _LEFT.read = (*_LEFT.read, variable)
        return value

    OmegaConf.register_new_resolver("oc.env", read if allowed else refuse, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


MAX_STEPS = 20_000
"""Limit on the cost of a recipe: ten per interpolation, one per value and per hundred characters of its result."""
TOO_MUCH = "its interpolations expand beyond the limit for recipes"

_LEFT = threading.local()
"""The remaining `steps` of this thread, without which nothing is counted, and the secret variables that were `read`."""


@contextlib.contextmanager
def bounded_resolution() -> Iterator[None]:
    """Limit the interpolations that OmegaConf resolves inside the block; beyond, it raises
    InterpolationResolutionError. Whatever they make of a secret variable is hidden from then on.
    """
    _count_resolutions()
    _LEFT.steps, _LEFT.read = MAX_STEPS, ()
    try:
        yield
    finally:
        del _LEFT.steps, _LEFT.read


def _count_resolutions() -> None:
    """Count the interpolations that OmegaConf resolves: each goes through one method, which has no hook."""
    from omegaconf import Container, Node, OmegaConf
    from omegaconf.errors import InterpolationResolutionError

    follow = Container.resolve_parse_tree
    if hasattr(follow, "__wrapped__"):
        return

    def counted(self: Container, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever OmegaConf passes
        if not hasattr(_LEFT, "steps"):
            return follow(self, *args, **kwargs)
        before = len(_LEFT.read)
        resolved = follow(self, *args, **kwargs)
        if not isinstance(resolved, Container):
            plain = resolved._value() if isinstance(resolved, Node) else resolved
        else:
            plain = OmegaConf.to_container(resolved, resolve=False)
        _LEFT.steps -= 10 + _count(plain)
        if _LEFT.steps >= 0:
            remember_secrets(dict.fromkeys(_texts(plain), _LEFT.read[-1]) if len(_LEFT.read) > before else {})
        else:
            raise InterpolationResolutionError(TOO_MUCH)
        return resolved

    counted.__wrapped__ = follow  # type: ignore[attr-defined]
    Container.resolve_parse_tree = counted  # type: ignore[method-assign]


def _texts(plain: object) -> Iterator[str]:
    """Yield every text and number in plain data, keys included."""
    if isinstance(plain, dict | list):
        for inner in (*plain.keys(), *plain.values()) if isinstance(plain, dict) else plain:
            yield from _texts(inner)
    elif plain is not None and not isinstance(plain, bool):
        yield str(plain)


def _count(plain: object) -> int:
    if isinstance(plain, dict | list):
        return 1 + sum(map(_count, plain.values() if isinstance(plain, dict) else plain))
    return 1 + len(str(plain)) // 100


PRIMARY = "ndld_flow_recipe"
"""The name under which Hydra gets the recipe, whatever its own: Hydra takes a directory and a stem."""

SEVERAL = "add `-m` to sweep over them; write [1,2] for one list, or quote text with commas"
_OVERRIDE = "write KEY=VALUE, ~KEY to remove, +KEY=VALUE to add; quote values with commas or spaces"
_NOT_FOR_USERS = lazy_pattern(
    r"\s*(full_key: |Config search path:|Set the environment variable|See https?://).*"  # and everything after it
)


def explain_trouble(file: YamlFile, overrides: Sequence[str], error: Exception) -> Problem:
    """Return Hydra's message as one located problem."""
    if isinstance(error, RecursionError):
        return Problem(
            file.where("defaults"), "", "its `defaults:` or `${...}` are nested too deeply, or refer to themselves"
        )
    if isinstance(error, OSError) and error.strerror:  # from searching for files
        return Problem(file.where("defaults"), "", f"its `defaults:` cannot be read: {error.strerror}")
    text = " ".join(str(error).replace(PRIMARY, file.path.name).split())
    text = _NOT_FOR_USERS.sub("", text) or f"Hydra cannot compose this ({type(error).__name__})"
    if override := _refused(error, text, overrides):
        where = f'override "{override.removeprefix("++")}"'
        if "--multirun" in text:
            return Problem(where, "", "this gives several values", SEVERAL)
        hint = hint_at_override(override.removeprefix("++"))
        return Problem(where, "", "this is no override" if hint else text.replace("++", ""), hint or _OVERRIDE)
    dotted = str(getattr(error, "full_key", None) or "")
    if READS_ENVIRONMENT in text:
        what = re.sub(rf".*({READS_ENVIRONMENT} \S+).*", r"\1", text)
        return Problem(
            file.where(dotted), dotted, what, "it may be a secret: check the recipe, then allow it with --trust"
        )
    return Problem(file.where(dotted), dotted, text, _hint(text, dotted, file))


def _refused(error: Exception, text: str, overrides: Sequence[str]) -> str | None:
    """Return the override that a message refers to."""
    parsed = getattr(error, "override", None)  # of Hydra's parser
    named = re.findall(r"'([^']+)'", text)
    for override in overrides:
        key = override.removeprefix("++").partition("=")[0].lstrip("+~")
        if override == parsed or override in text or key in named:
            return override
    return None


def _hint(text: str, dotted: str, file: YamlFile) -> str:
    variable = hint_at_variable(file.text if not dotted else str(find_value(file.values, tuple(dotted.split(".")))))
    if variable:
        return variable
    if "Could not load" in text:
        return f"`defaults:` are looked for in {', '.join(map(str, find_folders(file.path)))}"
    if "nterpolation" not in text or TOO_MUCH in text:
        return ""
    names = re.findall(r"[Ii]nterpolation key '([^']+)'", text)
    return suggest(names[0], file.lines) if names else "write ${steps.NAME.SETTING} for another value"


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


WITHOUT_SWEEP = "~sweep"
"""The override that removes a recipe's sweep. Hydra would look for presets of sweeps in `configs/`."""

DEPENDS_ON_SURROUNDINGS = lazy_pattern(
    r"\$\{\s*(oc\.env|now|hydra|python_version)\b"
    r"|\$\{[^:{}]*\$\{[^{}]*\}[^:{}]*:"  # `${oc.${name}:HOME}`: a resolver whose name is computed may be any
)
"""Interpolations whose value may be in no file."""


@dataclass(frozen=True)
class Composed:
    """A recipe as one dictionary, with the origin of each value."""

    file: YamlFile
    overrides: tuple[str, ...]
    values: dict[str, Any]
    written: dict[str, Any]
    """The values with their `${...}` as written."""
    trust: bool = False
    """True if `${oc.env:...}` may read the environment, which holds passwords and tokens."""

    def where(self, dotted: str) -> str:
        """Return the override, or `file:line`, that set a dotted path."""
        for override in reversed(self.overrides):
            key = override.lstrip("+~").partition("=")[0].partition("@")[0]
            below = key.startswith(f"{dotted}.") and dotted not in self.file.lines
            if dotted == key or dotted.startswith(f"{key}.") or below:
                return f'override "{override}"'
        return self.file.where(dotted)


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
    _refuse_exposed_secrets(composed.values, composed.written, composed.where)
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


def _in_hydras_grammar(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return overrides with `++` where they set a value, and without the one that removes the sweep."""
    return [
        override
        if override.startswith(("+", "~")) or "=" not in override or _chooses_group(override, folders)
        else f"++{override}"
        for override in overrides
        if override != WITHOUT_SWEEP
    ]


def resolve_interpolations(composed: Composed, written: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a composed recipe whose text was changed before its `${...}` are resolved.

    Raises RecipeError for an interpolation without a target.
    """
    if not holds_interpolation(written):
        return written
    from omegaconf import OmegaConf

    try:
        with bounded_resolution(), reading_environment(allowed=composed.trust):
            values = OmegaConf.to_container(OmegaConf.create(written), resolve=True)
    except Exception as error:  # as in `_compose`
        raise RecipeError([explain_trouble(composed.file, (), error)]) from None
    resolved = {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}
    _refuse_exposed_secrets(resolved, written, composed.where)
    return resolved


_MISSING = "???"
"""OmegaConf's mark of a value that whoever runs the recipe has to give."""


def _find_texts(value: object, text: str, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the places of a text in plain data."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_texts(inner, text, (*words, str(key)))
    elif value == text:
        yield words


def _refuse_exposed_secrets(values: object, written: object, where: Callable[[str], str]) -> None:
    """Raise RecipeError for a secret outside of the settings of steps and the URLs of models: it could not be hidden in
    the names of folders, the keys of metrics and whatever else the rest of a recipe becomes.
    """
    hint = "use it in a setting of a step, or in the URL of a model; another variable needs another name"
    exposed = [place for place in _find_secrets(values, written, ()) if not _may_hold_secret(*place)]
    what = "it contains the secret of an environment variable"
    problems = [Problem(where(".".join(words)), ".".join(words), what, hint) for words, _ in exposed]
    if problems:
        raise RecipeError(problems)


def _find_secrets(value: object, written: object, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the places, with the values, that interpolations have set to what a recipe made of a secret variable."""
    interpolated = isinstance(written, str) and "${" in written
    if isinstance(value, dict):
        for key, inner in value.items():
            below = written if interpolated else written.get(key) if isinstance(written, dict) else None
            yield from _find_secrets(inner, below, (*words, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            items = written if isinstance(written, list) and len(written) == len(value) else ()
            yield from _find_secrets(inner, written if interpolated else items and items[index], (*words, str(index)))
    elif interpolated and str(value) in remembered_secrets():
        yield words, str(value)


def _may_hold_secret(words: tuple[str, ...], value: str) -> bool:
    """Return whether a place is a setting of a step, or the URL of a model."""
    if words[0] == "steps":
        return len(words) > 2 and words[2] not in ("step", "from", "inputs", ON)
    return words[0] in ("model", "models") and "://" in value


def holds_interpolation(value: object) -> bool:
    """Return whether `${...}` occurs anywhere in plain data."""
    if isinstance(value, dict):
        return any(map(holds_interpolation, value.values()))
    return any(map(holds_interpolation, value)) if isinstance(value, list) else isinstance(value, str) and "${" in value


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
