"""Runtimes, found by their place: each module or package in this folder that exports `RUNTIME`."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ndld_flow import runtimes
from ndld_flow.runtimes.protocol import SessionRequest

if TYPE_CHECKING:  # measuring processes import this module
    from pathlib import Path

    from ndld_flow.machine.check import Check
    from ndld_flow.runtimes.settings import RuntimeSettings

_FIRST = "onnxruntime"
"""The runtime of recipes that name no other."""


class Runtime(ABC):
    """A runtime. Importing its module imports no heavy library."""

    @abstractmethod
    def settings(self) -> type[RuntimeSettings]:
        """Return the class of the settings that a recipe has for it."""

    @abstractmethod
    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        """Return the request from the values of `SessionRequest.to_json`, read from JSON."""

    def examine(self, library: Path | None) -> Iterable[Check]:
        """Try the runtime on this machine, for `ndld-flow doctor`.

        `library` is the environment or archive of a TensorRT to try instead of the installed one. Raises BackendError
        when there is none.
        """
        return ()


def find_runtime(name: str) -> Runtime:
    """Return the runtime of a module in this folder. Imports no other runtime."""
    runtime: Runtime = importlib.import_module(f"{runtimes.__name__}.{name}").RUNTIME
    return runtime


def find_runtimes() -> list[Runtime]:
    """Return every runtime, the default one first."""
    names = sorted((module.name for module in pkgutil.iter_modules(runtimes.__path__)), key=lambda name: name != _FIRST)
    modules = [importlib.import_module(f"{runtimes.__name__}.{name}") for name in names]
    return [module.RUNTIME for module in modules if hasattr(module, "RUNTIME")]


def find_settings() -> list[type[RuntimeSettings]]:
    """Return the settings class of every runtime, the default runtime's first."""
    return [runtime.settings() for runtime in find_runtimes()]
