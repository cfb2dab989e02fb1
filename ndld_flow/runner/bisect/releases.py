"""The values that `bisect` tries: given ones, or the releases of a package that pip's index lists."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.runner.bisect.options import BisectOptions
from ndld_flow.runner.open_run import working_on
from ndld_flow.runner.request import Request
from ndld_flow.runner.sweep.run_sweep import write_value
from ndld_flow.runtimes.pip_environment import PipError, list_releases
from ndld_flow.runtimes.tensorrt.required_library import ON_PYPI

_PACKAGE = re.compile(r"environments\.[^.]+\.(?:packages\.)?([A-Za-z0-9][A-Za-z0-9._-]*)")
_RELEASE = re.compile(r"steps\.([^.]+)\.release")


def choose_values(request: Request, key: str, options: BisectOptions) -> tuple[tuple[str, ...], str]:
    """Return the values from the good end to the bad one, and the package whose releases they are, if it is known.

    Raises RecipeError if the recipe is wrong with the good end, RequestError for values that are no range, and
    BackendError if the index cannot be read.
    """
    good, bad = _ends(options)
    recipe = _load(request, key, good)
    package = "" if options.values else _package_of(recipe, key)
    if options.values:
        return options.values, ""
    if not package:
        raise RequestError(
            f"{key}: its values cannot be listed, since it is not the release of a package in `environments:` or of "
            "`build_engine`. Give them in order: --values A,B,C"
        )
    return tuple(_between(_list(package), good, bad)), package


def _ends(options: BisectOptions) -> tuple[str, str]:
    values = options.values
    if values:
        if options.good or options.bad:
            raise RequestError("give either --good and --bad, or --values, whose first is good and whose last is bad.")
        if len(values) < 2 or len(set(values)) < len(values):
            raise RequestError("--values: give at least two different values, from a good one to a bad one.")
        return values[0], values[-1]
    if not (options.good and options.bad):
        raise RequestError("give the releases between which to search: --good 1.27.0 --bad 1.31.1, or --values A,B,C.")
    if options.good == options.bad:
        raise RequestError(f"--good and --bad are both {options.good}, so there is nothing between them.")
    return options.good, options.bad


def override_of(key: str, value: str) -> str:
    """Return the override that gives a key a value: releases are texts, other values are read as YAML reads them."""
    if _RELEASE.fullmatch(key) or key.startswith("environments."):
        return f"{key}={write_value(value)}"
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return f"{key}={write_value(read(value))}"
    known = {"true": True, "false": False, "null": None}
    return f"{key}={write_value(known.get(value, value))}"


def _load(request: Request, key: str, value: str) -> Recipe:
    overrides = (*request.overrides, override_of(key, value))
    with working_on(replace(request, overrides=overrides), "plan") as recipe:
        if not isinstance(recipe, Recipe):
            raise RequestError(f"{request.recipe} sweeps: bisect one of its points. Override what it sweeps over.")
        return recipe


def _package_of(recipe: Recipe, key: str) -> str:
    if match := _PACKAGE.fullmatch(key):
        return match[1]
    if match := _RELEASE.fullmatch(key):
        step = next((step for step in recipe.steps if step.name == match[1]), None)
        backend = getattr(step.step, "backend", None) if step is not None else None
        return next((package for name, package in ON_PYPI.items() if name == backend), "")
    return ""


def _list(package: str) -> list[str]:
    try:
        found = list_releases(package)
    except PipError as error:
        raise BackendError(
            f"pip cannot list the releases of {package} ({error}): let it reach its index (PIP_INDEX_URL, pip.conf), "
            "or give the releases in order with --values"
        ) from None
    if not found:
        raise BackendError(f"pip's index has no release of {package} for this Python: give values with --values")
    return found


def _between(listed: Sequence[str], good: str, bad: str) -> list[str]:
    """Return the releases from the good to the bad end, also if the bad one is older."""
    from packaging.version import InvalidVersion, Version

    try:
        ends = Version(good), Version(bad)
    except InvalidVersion as error:
        raise RequestError(f"--good and --bad: {error}; write exact releases, such as 1.27.0.") from None
    inner = [release for release in listed if min(ends) < Version(release) < max(ends)]
    return [good, *(inner if ends[0] < ends[1] else reversed(inner)), bad]
