"""Runtimes, found by their place: each module or package in this folder that exports `RUNTIME`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ndld_flow import runtimes
from ndld_flow.runtimes.protocol import SessionRequest

if TYPE_CHECKING:  # measuring processes import this module
    from ndld_flow.runtimes.settings import RuntimeSettings

_FIRST = "onnxruntime"
"""The runtime of recipes that name no other."""


class Runtime(Protocol):
    """A runtime. Importing its module imports no heavy library."""

    def settings(self) -> type[RuntimeSettings]:
        """Return the class of the settings that a recipe has for it."""

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        """Return the request from the values of `SessionRequest.to_json`, read from JSON."""


def find_runtime(name: str) -> Runtime:
    """Return the runtime of a module in this folder. Imports no other runtime."""
    runtime: Runtime = importlib.import_module(f"{runtimes.__name__}.{name}").RUNTIME
    return runtime


def find_settings() -> list[type[RuntimeSettings]]:
    """Return the settings class of every runtime, the default runtime's first."""
    names = sorted((module.name for module in pkgutil.iter_modules(runtimes.__path__)), key=lambda name: name != _FIRST)
    modules = [importlib.import_module(f"{runtimes.__name__}.{name}") for name in names]
    return [module.RUNTIME.settings() for module in modules if hasattr(module, "RUNTIME")]
