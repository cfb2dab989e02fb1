"""A stand-in for CUDA's runtime library in tests, on host memory; `cudart.c` documents how to make it fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("cudart.c")


def compile_cudart(folder: Path) -> Path:
    """A folder with libcudart.so.13 for LD_LIBRARY_PATH; skips the test where nothing compiles C."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux, for the stand-in of CUDA's runtime library")
    library = folder / "libcudart.so.13"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1", "-o", library, _SOURCE], check=True
    )
    return folder
