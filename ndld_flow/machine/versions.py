"""Versions of installed libraries, without importing them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ndld_flow.machine.installed import find_version
from ndld_flow.machine.onnxruntime_builds import build_in_use

NOT_INSTALLED = "not installed"
_DISTRIBUTIONS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "PyYAML"}
"""Modules whose name differs from their distribution's; others are looked up, which takes longer."""


@cache
def read_version(library: str) -> str:
    """Return a library's version, or `not installed`. That of ONNX Runtime begins with the name of its distribution."""
    if library == "onnxruntime":
        return str(build_in_use() or NOT_INSTALLED)
    version = find_version(library)
    if version is None:
        return NOT_INSTALLED
    return f"{library} {version}" if library == "tensorrt-rtx" else version


@cache
def read_module_version(module: str) -> tuple[str, str]:
    """Return the distribution that a top-level module comes from, and its version."""
    name = _DISTRIBUTIONS.get(module, module)
    version_text = read_version(name)
    if version_text == NOT_INSTALLED:
        from importlib.metadata import packages_distributions

        name = (packages_distributions().get(module) or [module])[0]
        version_text = read_version(name)
    return name, version_text


def installed_versions(name: str) -> Iterator[tuple[str, str]]:
    """Yield a distribution and all that it requires, with their versions here."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import Requirement

    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(name)]
    while waiting:
        wanted = waiting.pop()
        mark = (wanted.name.lower().replace("_", "-"), frozenset(wanted.extras))
        if mark in seen:
            continue
        seen.add(mark)
        try:
            found = distribution(wanted.name)
        except PackageNotFoundError:
            continue
        yield mark[0], found.version
        for line in found.requires or ():
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate({"extra": each}) for each in ("", *wanted.extras)):
                waiting.append(inner)
