"""Versions of installed libraries, without importing them, and the distributions of ONNX Runtime.

`onnxruntime` and `onnxruntime-gpu` write the same files, so the one that was installed last is in use, and removing one
breaks the other. pip notices neither. If it installs both with one command, the one for the CPU is installed last (pip
23 and 26).
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    distributions,
    packages_distributions,
    version,
)
from importlib.util import find_spec
from pathlib import Path

from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.text import lazy_pattern

NOT_INSTALLED = "not installed"
_DISTRIBUTIONS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "PyYAML"}
"""Modules whose name differs from their distribution's; others are looked up, which takes longer."""


def find_version(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def read_version(library: str) -> str:
    """Return a library's version, or `not installed`. That of ONNX Runtime begins with the name of its distribution."""
    if library == "onnxruntime":
        return str(build_in_use() or NOT_INSTALLED)
    found = find_version(library)
    if found is None:
        return NOT_INSTALLED
    return f"{library} {found}" if library == "tensorrt-rtx" else found


@cache
def read_module_version(module: str) -> tuple[str, str]:
    """Return the distribution that a top-level module comes from, and its version."""
    name = _DISTRIBUTIONS.get(module, module)
    version_text = read_version(name)
    if version_text == NOT_INSTALLED:
        name = (packages_distributions().get(module) or [module])[0]
        version_text = read_version(name)
    return name, version_text


@cache
def installed_versions(name: str) -> dict[str, str]:
    """Return the versions here of a distribution and of all that it requires."""
    from packaging.requirements import Requirement

    versions: dict[str, str] = {}
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
        versions[mark[0]] = found.version
        for line in found.requires or ():
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate({"extra": each}) for each in ("", *wanted.extras)):
                waiting.append(inner)
    return versions


CPU_BUILD, GPU_BUILD = "onnxruntime", "onnxruntime-gpu"

_INFO = "capi/build_and_package_info.py"
_VALUE = lazy_pattern(r"^(package_name|__version__) = '([^']*)'", re.MULTILINE)
_LARGEST = 2**26
"""Larger files (the CUDA provider) are compared by their size alone."""


@dataclass(frozen=True)
class Build:
    """An installed distribution of ONNX Runtime."""

    name: str
    version: str
    changed: tuple[str, ...] = ()
    """Its files that are missing, or not as it installed them."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def repair(self) -> str:
        """The command that writes all its files again."""
        return f"pip install --force-reinstall --no-deps {self.name}=={self.version}"


def build_in_use() -> Build | None:
    """Return the build that `import onnxruntime` loads, without importing it; None without one.

    If exactly one of the two usual distributions is installed, it is that one; otherwise the build names itself in a
    file.
    """
    usual = [Build(name, found) for name in (GPU_BUILD, CPU_BUILD) if (found := find_version(name)) is not None]
    if len(usual) == 1:
        return usual[0]
    spec = find_spec("onnxruntime")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    for folder in folders:
        try:
            values = dict(_VALUE.findall((Path(folder) / _INFO).read_text(encoding="utf-8", errors="replace")))
            return Build(values["package_name"], values["__version__"])
        except (OSError, KeyError):
            continue
    return None


@dataclass(frozen=True)
class CudaLack:
    """The reason why this ONNX Runtime lacks the CUDA provider, and the command that installs one that has it."""

    reason: str
    command: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.command}"


def find_cuda_lack() -> CudaLack | None:
    """Return what is wrong with the build in use; None if it is not the one for the CPU."""
    build = build_in_use()
    if build is None or build.name != CPU_BUILD:
        return None
    gpu_version = find_version(GPU_BUILD)
    if gpu_version is None:
        return CudaLack(f"{build} is the build for the CPU", EXTRAS["gpu"].command)
    replaced = Build(GPU_BUILD, gpu_version)
    return CudaLack(f"{build} replaced the files of {replaced}", replaced.repair)


def installed_builds(path: list[str] | None = None) -> list[Build]:
    """Return all distributions that own the module `onnxruntime`, with the files that changed since.

    `path` has the folders to search, instead of `sys.path`.
    """
    return sorted(
        (
            Build(found.name, found.version, tuple(_changed_files(found)))
            for found in distributions(path=path or sys.path)
            if (found.name or "").lower().replace("_", "-").startswith("onnxruntime")
            and any(str(file) == "onnxruntime/__init__.py" for file in found.files or ())
        ),
        key=lambda build: build.name,
    )


def _changed_files(found: Distribution) -> Iterator[str]:
    for file in found.files or ():
        if file.parts[0] != "onnxruntime" or file.hash is None:  # compiled Python has no digest
            continue
        path = Path(str(file.locate()))
        size = path.stat().st_size if path.is_file() else -1
        if size != file.size or (size <= _LARGEST and _digest(path, file.hash.mode) != file.hash.value):
            yield str(file)


def _digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file as pip records it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
