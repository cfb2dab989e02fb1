"""The checks of CI on the code: layers, types, lints and format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["lint-imports"],
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        # Without its cache it takes a minute of CPU.
        pytest.param(
            ["mypy"],
            marks=[pytest.mark.timeout(1200), *([] if (ROOT / ".mypy_cache").is_dir() else [pytest.mark.thorough])],
        ),
    ],
    ids=lambda command: command[0] + " " + " ".join(command[1:2]),
)
def test_each_check_passes(command: list[str]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


NEEDS_TORCH = ROOT / "ndld_flow/export/pytorch/onnx_operators.py"
"""It is copied beside exported modules, and only imported there."""


@pytest.mark.thorough
def test_every_module_imports_by_itself() -> None:
    """No module needs another to be imported first."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "ndld_flow").rglob("*.py"))
        if path.stem != "__main__" and path != NEEDS_TORCH
    ]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    subprocess.run([sys.executable, "-W", "error", "-c", code, *modules], cwd=ROOT, check=True)
