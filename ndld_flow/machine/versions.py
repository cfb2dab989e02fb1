"""Versions of installed libraries, without importing them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from ndld_flow.machine.onnxruntime_builds import build_in_use

_MISSING = "not installed"
_DISTRIBUTIONS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "PyYAML"}
"""Modules whose name differs from their distribution's; others are looked up, which takes longer."""


@cache
def read_version(library: str) -> str:
    """Return a library's version, or `not installed`. That of ONNX Runtime begins with the name of its distribution."""
    if library == "onnxruntime":
        return str(build_in_use() or _MISSING)
    try:
        return f"{library} {version(library)}" if library == "tensorrt-rtx" else version(library)
    except PackageNotFoundError:
        return _MISSING


@cache
def read_module_version(module: str) -> tuple[str, str]:
    """Return the distribution that a top-level module comes from, and its version."""
    name = _DISTRIBUTIONS.get(module, module)
    version_text = read_version(name)
    if version_text == _MISSING:
        name = (packages_distributions().get(module) or [module])[0]
        version_text = read_version(name)
    return name, version_text
