"""The scripts of the pages pass ESLint and TypeScript, which checks their JSDoc strictly with the types of the data."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.page_data_types import DECLARATIONS, declarations

FOLDER = Path(__file__).parents[1] / "javascript"


@pytest.mark.parametrize("script", [pytest.param("lint", marks=pytest.mark.thorough), "types"])
def test_the_scripts_pass_the_linters(script: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("ESLint and TypeScript are not installed: run `npm ci` in tests/javascript")
    command = [npm, "run", "--silent", script]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_typescript_knows_the_page_data() -> None:
    assert DECLARATIONS.read_text("utf-8") == declarations(), "run `python -m tests.support.page_data_types`"
