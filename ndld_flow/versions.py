"""Versions of installed libraries, without importing them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

TWINS = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime"), "tensorrt-rtx": ("tensorrt-rtx", "tensorrt_rtx")}
"""Libraries that come under several names; the first that is installed tells the version."""


@cache
def read_version(library: str) -> str:
    """A library's version, or `not installed`."""
    for name in TWINS.get(library, (library,)):
        try:
            return f"{name} {version(name)}" if library in TWINS else version(name)
        except PackageNotFoundError:
            continue
    return "not installed"
