"""Plugins: additional operators of TensorRT and of the user, in libraries and in Python files."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import short_name
from ndld_flow.base.user_code import load_user_module
from ndld_flow.runtimes.tensorrt.build_log import reason_of
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

_ENTRY_POINTS = ("getCreators", "getPluginCreators")


def load_plugins(trt: Bindings, logger: Bound, owner: Bound, plugins: Sequence[Path]) -> None:
    """Load TensorRT's own plugins and the user's, for a builder or a runtime (`owner`).

    Engines resolve their plugins while they are opened, so plugins must be loaded before. Raises BackendError with the
    loader's reason, or RequestError with the failing line of a Python file.
    """
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(logger, "")
    for plugin in plugins:
        path = str(plugin.absolute())
        if plugin.suffix == ".py":
            _import_plugins(plugin.absolute())
        elif owner.get_plugin_registry().load_library(path) is None:
            _load_old_plugin(plugin)


@cache
def _import_plugins(file: Path) -> None:
    """Run a file that registers its plugins with the process, the parent of all registries: once, or it would fail."""
    load_user_module(file)


def _load_old_plugin(plugin: Path) -> None:
    """Load a library that does not list its operators, but registers them when loaded."""
    named = short_name(str(plugin))
    try:
        loaded = ctypes.CDLL(str(plugin.absolute()), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendError(
            f"plugins: {named} does not load ({reason_of(str(error))}). Check the path, and that it was built for this "
            "system and this release of TensorRT."
        ) from None
    if any(hasattr(loaded, name) for name in _ENTRY_POINTS):
        raise BackendError(
            f"plugins: TensorRT rejects {named}, although the system loads it: it was built for another release, or "
            "its operators are registered already."
        )
