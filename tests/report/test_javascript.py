"""The scripts of the pages pass ESLint and TypeScript, which reads their JSDoc and the types of the page data."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.page_data_types import DECLARATIONS, declarations

FOLDER = Path(__file__).parents[1] / "javascript"


@pytest.mark.parametrize("script", ["lint", "types"])
def test_the_scripts_pass_the_linters(script: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("ESLint and TypeScript are not installed: run `npm ci` in tests/javascript")
    command = [npm, "run", "--silent", script]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_scripts_are_strictly_typed_except_those_that_are_listed() -> None:
    """`loose.txt` lists the scripts with parameters or null values that TypeScript does not check yet."""
    npm = shutil.which("npm")
    if npm is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("TypeScript is not installed: run `npm ci` in tests/javascript")
    command = [npm, "run", "--silent", "strict"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=120)
    faults = re.findall(r"^(\S+\.js)\(\d+,\d+\): error", done.stdout, re.MULTILINE)
    faulty = {path.removeprefix("../../ndld_flow/report/") for path in faults}
    loose = set((FOLDER / "loose.txt").read_text().split())
    assert faulty - loose == set(), done.stdout
    assert loose - faulty == set(), "these scripts are strict now: take them off the list"


def test_typescript_knows_the_page_data() -> None:
    assert DECLARATIONS.read_text("utf-8") == declarations(), "run `python -m tests.support.page_data_types`"
