"""The order of a composed recipe's steps: Hydra puts what a preset adds to a step before the recipe's other steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.recipe.config_files import find_config
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml


def order_steps(steps: object, file: YamlFile, folders: Sequence[Path]) -> object:
    """Put steps in the order in which recipes name them: those of `defaults:` first, then the recipe's own."""
    if not isinstance(steps, dict):
        return steps
    named = [name for name in _named_steps(file, folders, depth=0) if name in steps]
    return {name: steps[name] for name in dict.fromkeys([*named, *steps])}


def _named_steps(file: YamlFile, folders: Sequence[Path], depth: int) -> list[str]:
    names: list[str] = []
    defaults = file.values.get("defaults")
    for entry in defaults if isinstance(defaults, list) and depth < 16 else []:
        if isinstance(entry, str) and entry != "_self_" and "@" not in entry:
            for base in find_config(entry, folders):
                names += _named_steps(read_yaml(base), folders, depth + 1)
    own = file.values.get("steps")
    return names + (list(own) if isinstance(own, dict) else [])
