"""Stands for TensorRT in tests: any release from 10.8 to 11.4, and TensorRT-RTX, with the names that it has.

`write_standin` writes a folder like a virtual environment with the package `tensorrt` in it. Processes that get its
`site-packages` on their path import that; our tests' code need not be importable there.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ndld_flow.base.extras import EngineBackend
from ndld_flow.runtimes.tensorrt.release_names import names_of_release

_PACKAGE = Path(__file__).with_name("package")


def write_standin(folder: Path, release: str, backend: EngineBackend = "tensorrt") -> Path:
    """Write a virtual environment's folders with this release in them; gives its `site-packages`."""
    names = names_of_release(backend, release)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    package = site / backend
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    document = {
        "backend": backend,
        "release": names.release,
        "classes": {owner: sorted(found) for owner, found in sorted(names.classes.items())},
    }
    (package / "release.json").write_text(json.dumps(document))
    metadata = site / f"{backend}-{names.release}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {backend}\nVersion: {names.release}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\nversion = {sys.version.split()[0]}\n")
    return site


def write_plugin(file: Path, operators: Sequence[str]) -> Path:
    """Write a file that the stand-in accepts as a plugin library with these operators."""
    file.write_bytes(b"\x7fELF STANDIN_PLUGIN:" + ",".join(operators).encode() + b";")
    return file
