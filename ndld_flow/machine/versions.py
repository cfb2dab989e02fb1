"""Versions of installed libraries, without importing them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

TWINS = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime"), "tensorrt-rtx": ("tensorrt-rtx", "tensorrt_rtx")}
"""Libraries with several distributions; the version of the first that is installed is used."""

_DISTRIBUTIONS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "PyYAML"}
"""Modules whose name differs from their distribution's; others are looked up, which takes longer."""


@cache
def read_version(library: str) -> str:
    """Return a library's version, or `not installed`."""
    for name in TWINS.get(library, (library,)):
        try:
            return f"{name} {version(name)}" if library in TWINS else version(name)
        except PackageNotFoundError:
            continue
    return "not installed"


@cache
def read_module_version(module: str) -> tuple[str, str]:
    """Return the distribution that a top-level module comes from, and its version."""
    name = _DISTRIBUTIONS.get(module, module)
    version_text = read_version(name)
    if version_text == "not installed":
        name = (packages_distributions().get(module) or [module])[0]
        version_text = read_version(name)
    return name, version_text
