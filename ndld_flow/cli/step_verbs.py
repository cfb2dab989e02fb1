"""The steps that are commands too: those that read a model. Their names are found without importing one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ndld_flow import steps

_READS_A_MODEL = re.compile(rb"\bStep\[Onnx, (\w+)\]\):")
_MODELS = (b"Onnx", b"Engine")


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
