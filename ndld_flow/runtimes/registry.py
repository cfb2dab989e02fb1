"""Runtimes: each module or package in this folder that exports `RUNTIME`, and those of installed packages."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ndld_flow import runtimes
from ndld_flow.base.errors import RequestError

if TYPE_CHECKING:  # measuring processes import this module
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from ndld_flow.machine.host import Check
    from ndld_flow.runtimes.environments import KeptLibrary
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.runtimes.settings import Builder, RuntimeSettings

ENTRY_POINTS = "ndld_flow.runtimes"
"""Group in which an installed package lists its runtimes: `name = "package.module:RUNTIME"`. The name is the `runtime`
of the runtime's requests."""
DEFAULT = "onnxruntime"
"""The default runtime."""
_OTHERS = frozenset(
    {
        "environments",
        "native_output",
        "one_runtime",
        "protocol",
        "registry",
        "session_process",
        "settings",
    }
)
"""Modules of this folder that are no runtimes: plans import only those that are."""


class Runtime(ABC):
    """A runtime. Importing its module imports no heavy library."""

    @abstractmethod
    def settings(self) -> type[RuntimeSettings]:
        """Return the class of its settings in a recipe."""

    @abstractmethod
    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        """Return the request from the values of `SessionRequest.to_json`, read from JSON."""

    def examine(self, library: Path | None) -> Iterable[Check]:
        """Try the runtime on this machine, for `ndld-flow doctor`.

        `library` is the environment or archive of a TensorRT to try instead of the installed one. Raises BackendError
        when there is none.
        """
        return ()

    def kept_libraries(self) -> Iterable[KeptLibrary]:
        """Return the libraries that runs have created in the user's cache folder."""
        return ()


def find_runtime(name: str) -> Runtime:
    """Return the runtime of a module in this folder, or of an installed package. Imports no other runtime."""
    if name in _built_in_names():
        runtime: Runtime = importlib.import_module(f"{runtimes.__name__}.{name}").RUNTIME
        return runtime
    return _load(_installed()[name])


def find_runtimes() -> list[Runtime]:
    """Return every runtime, the default one first, then the others of this folder, then those of installed packages."""
    names = sorted(_built_in_names(), key=lambda name: (name != DEFAULT, name))
    modules = [importlib.import_module(f"{runtimes.__name__}.{name}") for name in names]
    built_in = [module.RUNTIME for module in modules if hasattr(module, "RUNTIME")]
    return [*built_in, *map(_load, _installed().values())]


def find_settings() -> list[type[RuntimeSettings]]:
    """Return the settings class of every runtime, the default runtime's first."""
    return [runtime.settings() for runtime in find_runtimes()]


def settings_of(backend: str) -> type[RuntimeSettings] | None:
    """Return the settings class that a value of `backend` chooses; None for an unknown one."""
    return next((each for each in find_settings() if backend in each.backends()), None)


def runtime_names() -> tuple[str, ...]:
    """Return the values of `backend` that choose a runtime, the default one's first."""
    return tuple(name for each in find_settings() for name in each.backends())


def find_builder(backend: str) -> Builder | None:
    """Return how to build what a runtime runs instead of a model; None if it runs models, or is unknown."""
    settings = settings_of(backend)
    return None if settings is None else settings.builder


def plugin_versions(settings: RuntimeSettings) -> dict[str, str]:
    """Return the version of the package that a runtime comes from; empty for one of this folder."""
    from ndld_flow.machine.plugins import plugin_version

    return {
        f"runtime {name}": plugin_version(point)
        for name, point in _installed().items()
        if _load(point).settings() is type(settings)
    }


@cache
def _built_in_names() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(runtimes.__path__)) - _OTHERS


def _installed() -> dict[str, EntryPoint]:
    from ndld_flow.machine.plugins import find_plugins

    return {name: point for name, point in find_plugins(ENTRY_POINTS).items() if name not in _built_in_names()}


def _load(point: EntryPoint) -> Runtime:
    from ndld_flow.machine.plugins import load_plugin, plugin_origin

    runtime = load_plugin(point)
    if not isinstance(runtime, Runtime):
        raise RequestError(f"{plugin_origin(point)}: {point.value} is no runtime: it is no instance of `Runtime`.")
    return runtime
