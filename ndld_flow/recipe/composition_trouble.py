"""Errors of Hydra and OmegaConf in composing a recipe, as one located problem."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ndld_flow.base.errors import Problem
from ndld_flow.base.text import suggest
from ndld_flow.recipe.environment import READS_ENVIRONMENT, explain_reading
from ndld_flow.recipe.resolution import TOO_MUCH
from ndld_flow.recipe.yaml_file import YamlFile

PRIMARY = "ndld_flow_recipe"
"""Hydra wants a directory and a stem; the recipe, whatever its name, is handed over under this one."""

SEVERAL = "add `-m` to sweep over them; write [1,2] for one list, or quote text that holds commas"
_OVERRIDE = "write KEY=VALUE, ~KEY to remove, +KEY=VALUE to add; quote values that hold commas or spaces"
_NOT_FOR_USERS = re.compile(
    r"\s*(full_key: |Config search path:|Set the environment variable|See https?://).*"  # and all after it
)


def explain_trouble(file: YamlFile, overrides: Sequence[str], error: Exception) -> Problem:
    """Return Hydra's message as one located problem."""
    if isinstance(error, RecursionError):
        return Problem(file.where("defaults"), "", "its `defaults:` or `${...}` lead too deep, or back to themselves")
    if isinstance(error, OSError) and error.strerror:  # from looking for files
        return Problem(file.where("defaults"), "", f"its `defaults:` cannot be read: {error.strerror}")
    text = " ".join(str(error).replace(PRIMARY, file.path.name).split())
    text = _NOT_FOR_USERS.sub("", text) or f"Hydra cannot compose this ({type(error).__name__})"
    if override := _refused(error, text, overrides):
        where = f'override "{override.removeprefix("++")}"'
        if "--multirun" in text:
            return Problem(where, "", "this names several values", SEVERAL)
        return Problem(where, "", text.replace("++", ""), _OVERRIDE)
    dotted = str(getattr(error, "full_key", None) or "")
    if READS_ENVIRONMENT in text:
        return explain_reading(file.where(dotted), dotted, text)
    return Problem(file.where(dotted), dotted, text, _hint(text, file))


def _refused(error: Exception, text: str, overrides: Sequence[str]) -> str | None:
    """Return the override that a message refers to."""
    parsed = getattr(error, "override", None)  # of Hydra's parser
    named = re.findall(r"'([^']+)'", text)
    for override in overrides:
        key = override.removeprefix("++").partition("=")[0].lstrip("+~")
        if override == parsed or override in text or key in named:
            return override
    return None


def _hint(text: str, file: YamlFile) -> str:
    if "nterpolation" not in text or TOO_MUCH in text:
        return ""
    names = re.findall(r"[Ii]nterpolation key '([^']+)'", text)
    return suggest(names[0], file.lines) if names else "write ${steps.NAME.SETTING} for another value"
