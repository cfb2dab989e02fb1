"""Plugin libraries. A file with `STANDIN_PLUGIN:MyOp,OtherOp;` represents a library with these operators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .bindings import Bound, Setting, record
from .logs import LAST

_OPERATORS = re.compile(rb"STANDIN_PLUGIN:([\w,]+);")


class _Loaded:
    """Plugin libraries loaded into this process."""

    def __init__(self) -> None:
        self.operators: set[str] = set()
        self.libraries: dict[str, tuple[str, ...]] = {}


REGISTRY = _Loaded()


class IPluginRegistry(Bound):
    """Loads plugin libraries."""

    error_recorder = Setting(object)
    parent_search_enabled = Setting(bool, True)

    def _begin(self, *arguments: Any) -> None:
        """Every registry is the process's only one."""

    def load_library(self, plugin_path: str) -> Any:
        found = _OPERATORS.search(Path(plugin_path).read_bytes()) if Path(plugin_path).is_file() else None
        if found is None:
            for log in LAST:
                log.error(f"IPluginRegistry::loadLibrary: Unable to load library: {plugin_path}", 6)
            return None
        names = tuple(found[1].decode().split(","))
        REGISTRY.operators.update(names)
        REGISTRY.libraries[plugin_path] = names
        return plugin_path

    def deregister_library(self, handle: Any) -> None:
        REGISTRY.operators.difference_update(REGISTRY.libraries.pop(handle, ()))

    @property
    def all_creators(self) -> list[Any]:
        return []


def get_plugin_registry() -> Any:
    return IPluginRegistry._make()


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    """Loads the plugins that come with TensorRT: there are none."""
    record(REGISTRY, call="init_libnvinfer_plugins")
    return isinstance(namespace, str)
