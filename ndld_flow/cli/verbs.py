"""The verbs of the command line, found by their files, which are not imported for it.

A file of `ndld_flow/verbs/` has the name of its verb, and begins with its help. Steps that read a model are verbs too.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ndld_flow import steps

if TYPE_CHECKING:
    from ndld_flow.cli.public_functions import VerbOutput

_FIRST = ("optimize", "init", "run", "compare", "profile", "plan")
"""The verbs that most people need, which help lists before the others."""
_PACKAGE = "ndld_flow.verbs"
_READS_A_MODEL = re.compile(rb"\bStep\[Onnx, (\w+)\]\):")
_MODELS = (b"Onnx", b"Engine")


@cache
def list_verbs() -> Mapping[str, str]:
    """Return verb -> its summary, the first line of its file's docstring. No verb is imported."""
    files = [file for folder in importlib.import_module(_PACKAGE).__path__ for file in Path(folder).glob("[!_]*.py")]
    files.sort(key=lambda file: (_FIRST.index(file.stem) if file.stem in _FIRST else len(_FIRST), file.stem))
    return {file.stem: _read_summary(file) for file in files}


def _read_summary(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next((line.strip().strip('"') for line in lines if line.startswith('"""')), "")


def import_verb(name: str) -> ModuleType:
    """Return the module of a verb, which has its function, its `command` and, with `--json`, its `OUTPUT`.

    It has `READS_MODELS` if the verb reads models in its own process, which a library may crash.
    """
    return importlib.import_module(f"{_PACKAGE}.{name}")


def list_outputs() -> dict[str, VerbOutput[Any]]:
    """Return verb -> what it prints with `--json`, for the verbs that have it."""
    modules = {verb: import_verb(verb) for verb in list_verbs()}
    return {verb: module.OUTPUT for verb, module in modules.items() if hasattr(module, "OUTPUT")}


@cache
def _built_in() -> dict[str, bytes]:
    """Return step -> the kind that it makes of a model, from the header in its file; empty if it reads no model."""
    files = sorted(file for file in Path(*steps.__path__).glob("*.py") if file.stem != "__init__")
    found = ((file.stem, _READS_A_MODEL.search(file.read_bytes())) for file in files)
    return {name: header[1] if header is not None else b"" for name, header in found}


def changing_steps() -> list[str]:
    """Return the built-in steps that change a model, or build an engine of it."""
    return [name for name, kind in _built_in().items() if kind in _MODELS]


def is_step(name: str) -> bool:
    """Return whether a step of this name reads a model, or an installed package has one of this name."""
    if name in _built_in():
        return bool(_built_in()[name])
    from ndld_flow.machine.plugins import find_plugins
    from ndld_flow.recipe.step_types import ENTRY_POINTS

    return name in find_plugins(ENTRY_POINTS)


def hint_at_step(name: str) -> str:
    """Return why a step is no command; empty for other words."""
    return "" if _built_in().get(name) != b"" else f"{name} reads the results of other steps: use it in a recipe"
