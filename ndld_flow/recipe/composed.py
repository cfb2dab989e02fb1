"""A composed recipe, its interpolations, and what can be wrong with both.

OmegaConf has no limit, so interpolations are bounded here: a few lines of `${a}${a}` can expand beyond any memory. The
environment contains passwords and tokens, which a stranger's recipe could write into the URL of its model or into a
report, so only a trusted recipe may read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import find_value
from ndld_flow.base.text import lazy_pattern, suggest
from ndld_flow.recipe.config_files import find_folders
from ndld_flow.recipe.foreign_forms import hint_at_override, hint_at_variable
from ndld_flow.recipe.targets import ON
from ndld_flow.recipe.yaml_file import YamlFile
from ndld_flow.store.hidden_credentials import is_secret_variable, remember_secrets, remembered_secrets

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

_SEVERAL = "add `-m` to sweep over them; write [1,2] for one list, or quote text with commas"
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
            return Problem(where, "", "this gives several values", _SEVERAL)
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
    refuse_exposed_secrets(resolved, written, composed.where)
    return resolved


def refuse_exposed_secrets(values: object, written: object, where: Callable[[str], str]) -> None:
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
