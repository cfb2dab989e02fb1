"""Libraries that are preloaded before libc and alter a real process's system calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def compile_shim(source: Path, folder: Path) -> Path:
    """The library made of a C file, for `LD_PRELOAD`; skips where none can be made."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("odd system calls need Linux and a C compiler")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library
