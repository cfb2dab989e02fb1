"""Plugin libraries and creators. A file with `STANDIN_PLUGIN:MyOp,OtherOp;` represents a library with these operators.

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
        self._creators: list[Any] = []

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

    def register_creator(self, creator: Any, plugin_namespace: str = "") -> bool:
        """False if there is one of that name, version and namespace."""
        if self.get_creator(creator.name, creator.plugin_version, plugin_namespace) is not None:
            return False
        creator.plugin_namespace = plugin_namespace
        self._creators.append(creator)
        return True

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        wanted = (type, version, plugin_namespace)
        known = (
            (creator, (creator.name, creator.plugin_version, creator.plugin_namespace)) for creator in self._creators
        )
        return next((item for item, name in known if name == wanted), None)

    def _has(self, operator: str) -> bool:
        """Return whether a library or a creator provides the operator `namespace::name`."""
        namespace, _, name = operator.rpartition("::")
        return self._creator(name, namespace) is not None or any(
            name in names for registry in self._all() for names in registry._libraries.values()
        )

    def _creator(self, name: str, *namespaces: str) -> Any:
        found = (registry.get_creator(name, "1", namespace) for namespace in namespaces for registry in self._all())
        return next((creator for creator in found if creator is not None), None)

    def _all(self) -> tuple[IPluginRegistry, ...]:
        return (self, _OF_PROCESS) if self.parent_search_enabled else (self,)

    @property
    def all_creators(self) -> list[Any]:
        return [*self._creators]


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
