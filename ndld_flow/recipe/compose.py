"""Compose a recipe with Hydra and hand over a plain dictionary.

Hydra and OmegaConf stay inside this file. They compose, interpolate and override; they validate nothing. (Only
override_grammar.py uses Hydra too: its parser of values.)

A recipe may have a `defaults:` list that names other recipes (in its folder, or in `pipelines/`) and config groups from
`configs/`. Folders named `configs` are searched in the recipe's folder, its parent, the current directory, and the
package, which has presets of its own.
"""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.recipe.composition_trouble import PRIMARY, explain_trouble
from ndld_flow.recipe.config_files import check_used_files, config_texts, find_folders
from ndld_flow.recipe.environment import reading_environment
from ndld_flow.recipe.overrides import OF_HYDRA, OF_HYDRA_HINT, check_overrides
from ndld_flow.recipe.resolution import bounded_resolution
from ndld_flow.recipe.step_order import order_steps
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import temporary_folder
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.seals import read_note, write_note

WITHOUT_SWEEP = "~sweep"
"""The override that takes a recipe's sweep away. (Hydra would look for presets of sweeps, where `configs/` has any.)"""

DEPENDS_ON_SURROUNDINGS = re.compile(r"\$\{\s*(oc\.env|now|hydra|python_version)\b")
"""Interpolations whose value is not in any file: a recipe with one is composed each time."""

_MOST_COMPOSED = 64
_COMPOSED: dict[tuple[str, ...], list[dict[str, Any]]] = {}
"""Results of this process, by the text of the recipe and its overrides, which alone decide them."""


@dataclass(frozen=True)
class Composed:
    """A recipe as one dictionary, with what is needed to say where each value came from."""

    file: YamlFile
    overrides: tuple[str, ...]
    values: dict[str, Any]
    written: dict[str, Any]
    """The same with its `${...}` as they were written."""
    trust: bool = False
    """Whether `${oc.env:...}` may read the environment, which holds passwords and tokens."""

    def where(self, dotted: str) -> str:
        """Return the override, or `file:line`, that set a dotted path."""
        for override in reversed(self.overrides):
            key = override.lstrip("+~").partition("=")[0].partition("@")[0]
            below = key.startswith(f"{dotted}.") and dotted not in self.file.lines
            if dotted == key or dotted.startswith(f"{key}.") or below:
                return f'override "{override}"'
        return self.file.where(dotted)


def compose_recipe(
    path: Path, overrides: Sequence[str] = (), memory: Path | None = None, *, trust: bool = False
) -> Composed:
    """Compose a recipe file with command-line overrides in Hydra's grammar.

    A plain `a.b=c` also sets what the recipe does not mention (`+` is not needed): validation knows every setting and
    names the nearest for a wrong one. With a `memory` folder, the result is kept by the digest of all files and
    overrides it depends on, and Hydra is not imported when nothing changed.

    Raises RecipeError for unreadable files, wrong overrides, unknown defaults and broken interpolations, and for those
    that read the environment, unless the recipe has the user's `trust`.
    """
    return compose_file(read_yaml(path), overrides, memory, trust=trust)


def compose_file(
    file: YamlFile, overrides: Sequence[str] = (), memory: Path | None = None, *, trust: bool = False
) -> Composed:
    """Compose a recipe whose text is already read; otherwise like `compose_recipe`."""
    folders = find_folders(file.path)
    overrides = tuple(overrides)
    check_overrides(overrides)
    if "hydra" in file.values:
        raise RecipeError([Problem(file.where("hydra"), "hydra", OF_HYDRA, OF_HYDRA_HINT)])
    key = _digest_sources(file, overrides, folders)
    note = memory / f"{key}.json" if memory is not None and key is not None else None
    both = _recall(note)
    if both is None:
        by_text = key is not None and not _uses_folders(file, overrides, folders)
        followed = [_normalise(override, folders) for override in overrides if override != WITHOUT_SWEEP]
        with reading_environment(allowed=trust):
            both = _compose_once(file, followed, folders, by_text=by_text)
        for values in both:
            if WITHOUT_SWEEP in overrides:
                values.pop("sweep", None)
            values["steps"] = order_steps(values.get("steps"), file, folders)
        if note is not None:
            write_note(note, both if both[0] != both[1] else both[:1])
    return Composed(file, overrides, both[0], both[-1], trust)


def resolve_interpolations(composed: Composed, written: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a composed recipe after changes to its text, before `${...}` is resolved.

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
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def holds_interpolation(value: object) -> bool:
    """Return whether `${...}` occurs anywhere in plain data."""
    if isinstance(value, dict):
        return any(map(holds_interpolation, value.values()))
    return any(map(holds_interpolation, value)) if isinstance(value, list) else isinstance(value, str) and "${" in value


def _digest_sources(file: YamlFile, overrides: Sequence[str], folders: Sequence[Path]) -> str | None:
    """Return the digest of all files that composition reads; None if it also reads the environment or the clock."""
    texts = [file.text, *overrides]
    if any(hide_credentials(text) != text for text in texts):
        return None  # nothing of it is kept
    if _uses_folders(file, overrides, folders):
        texts += config_texts(folders)
    if any(DEPENDS_ON_SURROUNDINGS.search(text) for text in texts):
        return None
    return digest_json(
        ["as written too", version("hydra-core"), version("ndld-flow"), str(file.path.absolute()), *texts]
    )


def _uses_folders(file: YamlFile, overrides: Sequence[str], folders: Sequence[Path]) -> bool:
    """Return whether a recipe's values come from other files as well."""
    return "defaults" in file.values or any(_chooses_group(override, folders) for override in overrides)


def _recall(note: Path | None) -> list[dict[str, Any]] | None:
    both = read_note(note) if note is not None else None
    return both if isinstance(both, list) and all(isinstance(values, dict) for values in both) else None


def _chooses_group(override: str, folders: Sequence[Path]) -> bool:
    """Return whether an override chooses a file of a config group instead of setting a value."""
    key = override.lstrip("+~").partition("=")[0]
    return "@" in key or "/" in key or any(_is_folder(folder / key) for folder in folders)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # longer than a name can be, or no name
        return False


def _normalise(override: str, folders: Sequence[Path]) -> str:
    """Return the override with `+` if it sets a key that the recipe does not mention."""
    if override.startswith(("+", "~")) or "=" not in override or _chooses_group(override, folders):
        return override
    return f"++{override}"


def _compose_once(
    file: YamlFile, overrides: Sequence[str], folders: Sequence[Path], *, by_text: bool
) -> list[dict[str, Any]]:
    """Compose a recipe, or repeat the result for the same text: a sweep composes its recipe many times."""
    if not by_text:
        return _compose(file, overrides, folders)
    key = (file.text, *overrides)
    if key not in _COMPOSED:
        if len(_COMPOSED) >= _MOST_COMPOSED:
            _COMPOSED.clear()
        _COMPOSED[key] = _compose(file, overrides, folders)
    return copy.deepcopy(_COMPOSED[key])


def _compose(file: YamlFile, overrides: Sequence[str], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the recipe's values with interpolations resolved, and as written."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    check_used_files(file.values, overrides, folders)
    search = ",".join(_quote(f"file://{folder}") for folder in folders)
    followed = [*overrides, f"hydra.searchpath=[{search}]", *_without_hydra_settings()]
    with temporary_folder() as aside:
        (aside / f"{PRIMARY}.yaml").write_text(file.text, encoding="utf-8")
        try:
            with bounded_resolution(), _quiet(), initialize_config_dir(config_dir=str(aside), version_base="1.3"):
                config = compose(PRIMARY, overrides=followed)
                both = [OmegaConf.to_container(config, resolve=resolve) for resolve in (True, False)]
        except Exception as error:  # Hydra lets through whatever goes wrong in it; the recipe is all that differs
            raise RecipeError([explain_trouble(file, overrides, error)]) from None
        finally:
            GlobalHydra.instance().clear()
    return [{str(key): value for key, value in values.items()} for values in both if isinstance(values, dict)]


def _without_hydra_settings() -> list[str]:
    """Return overrides that leave out Hydra's settings of its own logs, help and launchers.

    Nothing here uses them, and reading their files takes a third of the time of a composition.
    """
    from hydra.conf import HydraConf

    groups = [group for default in HydraConf().defaults for group, name in default.items() if name is not None]
    return [f"~hydra/{group}" for group in groups]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Hydra's advice to write `_self_`; without it, the recipe comes last, as one would expect."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*`_self_`")
        yield


def _quote(text: str) -> str:
    """Return text as a quoted string of Hydra's grammar, where a backslash is an escape only before a quote."""
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text)
    return f"'{escaped}'"
