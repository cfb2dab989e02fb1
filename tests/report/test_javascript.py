"""The scripts of the pages pass ESLint and TypeScript, which checks their JSDoc strictly with the types of the data."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ndld_flow.base.quantities import counted
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


def test_pages_count_as_texts_do(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    counts = [(1, "row"), (1, "pass"), (0, "pass"), (2, "match"), (4712, "row")]
    shutil.copy("ndld_flow/report/static/quantities.js", tmp_path / "quantities.mjs")
    (tmp_path / "print.mjs").write_text(
        'import { counted } from "./quantities.mjs";\n'
        f"console.log(JSON.stringify({json.dumps(counts)}.map((pair) => counted(...pair))));\n"
    )
    done = subprocess.run([node, "print.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    texts = [counted(value, noun) for value, noun in counts]
    assert json.loads(done.stdout) == texts == ["1 row", "1 pass", "0 passes", "2 matches", "4,712 rows"]
