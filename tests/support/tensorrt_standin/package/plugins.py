"""Plugin libraries. A file with `STANDIN_PLUGIN:MyOp,OtherOp;` represents a library with these operators.

Every builder and runtime has a registry of its own, whose parent is that of the process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .bindings import Bound, Setting, record
from .logs import LAST

_OPERATORS = re.compile(rb"STANDIN_PLUGIN:([\w,]+);")


class IPluginRegistry(Bound):
    """Loads plugin libraries."""

    error_recorder = Setting(object)
    parent_search_enabled = Setting(bool, True)

    def _begin(self, *arguments: Any) -> None:
        self._libraries: dict[str, set[str]] = {}

    def load_library(self, plugin_path: str) -> Any:
        """The library's handle; None if it is not one, or one of its operators is registered here already."""
        names = operators_in(plugin_path)
        if not names or names & set().union(*self._libraries.values()):
            for log in LAST:
                log.error(f"IPluginRegistry::loadLibrary: Unable to load library: {plugin_path}", 6)
            return None
        self._libraries[plugin_path] = names
        return plugin_path

    def deregister_library(self, handle: Any) -> None:
        self._libraries.pop(handle, None)

    def _has(self, operator: str) -> bool:
        registries = (self, _OF_PROCESS) if self.parent_search_enabled else (self,)
        return any(operator in names for registry in registries for names in registry._libraries.values())

    @property
    def all_creators(self) -> list[Any]:
        return []


_OF_PROCESS = IPluginRegistry._make()


def operators_in(library: str) -> set[str]:
    """The operators of a plugin library; empty for another file, or none."""
    found = _OPERATORS.search(Path(library).read_bytes()) if Path(library).is_file() else None
    return set() if found is None else set(found[1].decode().split(","))


def get_plugin_registry() -> Any:
    return _OF_PROCESS


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    """Loads the plugins that come with TensorRT: there are none."""
    record(_OF_PROCESS, call="init_libnvinfer_plugins")
    return isinstance(namespace, str)
