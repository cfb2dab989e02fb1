"""Versions of installed libraries, without importing them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

TWINS = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime"), "tensorrt-rtx": ("tensorrt-rtx", "tensorrt_rtx")}
"""Libraries that come under several names; the first that is installed tells the version."""

_OF_MODULES = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "PyYAML"}
"""Well-known modules that are not called as their distributions are; others are looked for, which takes its time."""


@cache
def read_version(library: str) -> str:
    """A library's version, or `not installed`."""
    for name in TWINS.get(library, (library,)):
        try:
            return f"{name} {version(name)}" if library in TWINS else version(name)
        except PackageNotFoundError:
            continue
    return "not installed"


@cache
def read_module_version(module: str) -> tuple[str, str]:
    """Return the distribution that a top-level module comes from, and its version."""
    name = _OF_MODULES.get(module, module)
    found = read_version(name)
    if found == "not installed":
        name = (packages_distributions().get(module) or [module])[0]
        found = read_version(name)
    return name, found
