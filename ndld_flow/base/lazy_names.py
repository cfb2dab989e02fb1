"""Names that a module offers and imports from other modules when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a module; `homes` are its names -> the modules that define them.

    A checker of types needs the names imported under `TYPE_CHECKING`.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return load
