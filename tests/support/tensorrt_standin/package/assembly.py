"""Puts a release together: its classes with the names it has, and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from . import (
    builder,
    config,
    engine,
    execution,
    interfaces,
    logs,
    network,
    parsing,
    plugins,
    refitting,
    running,
    runtime,
    timing,
    values,
)
from .bindings import CLASSES, IS_STRONG_ONLY, RELEASE, Bound, Interface, Unplayed, recorded
from .enums import make_enum

_PLAYED: tuple[ModuleType, ...] = (
    builder, config, engine, execution, interfaces, logs, network, parsing, plugins,
    refitting, running, runtime, timing, values,
)  # fmt: skip
_ALIASES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "int4": "INT4",
    "uint8": "UINT8",
    "fp8": "FP8",
    "fp4": "FP4",
    "e8m0": "E8M0",
    "bool": "BOOL",
}


def assemble() -> dict[str, Any]:
    """Return all names of the module of this release."""
    played = {
        name: kind
        for module in _PLAYED
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__ and name in RELEASE["classes"]
    }
    for name, names in RELEASE["classes"].items():
        CLASSES[name] = make_enum(name, names) if _is_enum(names) else played.get(name) or _unplayed(name)
    for name, names in RELEASE["classes"].items():
        if not _is_enum(names):
            _fit(CLASSES[name], set(names))
    if IS_STRONG_ONLY:
        setattr(network.ITensor, "dtype", property(vars(network.ITensor)["dtype"].fget))  # noqa: B010
    aliases = {alias: getattr(CLASSES["DataType"], name, None) for alias, name in _ALIASES.items()}
    return {
        **CLASSES,
        **{alias: kind for alias, kind in aliases.items() if kind is not None},
        "get_plugin_registry": plugins.get_plugin_registry,
        "init_libnvinfer_plugins": plugins.init_libnvinfer_plugins,
        "nptype": values.nptype,
        "volume": values.volume,
        "get_nv_onnx_parser_version": lambda: int(RELEASE["release"].split(".")[0]) * 10000,
        "__version__": RELEASE["release"],
    }


def _is_enum(names: Iterable[str]) -> bool:
    return all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in names)


def _unplayed(name: str) -> Any:
    base = network.ILayer if re.fullmatch(r"I\w+Layer", name) else Interface
    return type(name, (base,), {"__module__": __name__})


def _fit(kind: Any, names: set[str]) -> None:
    """Remove names that this release lacks, and add placeholders for unimplemented ones."""
    for name in [name for name in vars(kind) if not name.startswith("_")]:
        if name not in names and name != "Severity":
            delattr(kind, name)
        elif isinstance(vars(kind)[name], FunctionType) and issubclass(kind, Bound):
            setattr(kind, name, recorded(vars(kind)[name]))
    for name in names:
        if not hasattr(kind, name):
            setattr(kind, name, Unplayed(kind.__name__, name))
