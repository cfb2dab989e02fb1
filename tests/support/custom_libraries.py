"""Libraries of custom operators for ONNX Runtime, compiled by tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_library(path: Path, factor: float = 2) -> Path:
    """Write a library with the operator `com.acme::Scaled`, which multiplies by a factor."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    source = Path(__file__).with_name("custom_op.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-DFACTOR={factor}", "-o", path, source], check=True)
    return path
