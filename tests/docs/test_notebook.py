"""The example notebook: its cells work, and it is the one that its program writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "measure.ipynb"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_was_executed() -> None:
    assert all(cell["outputs"] for cell in cells())
    assert not any(output["output_type"] == "error" for cell in cells() for output in cell["outputs"])


@pytest.mark.slow
def test_the_cells_of_the_notebook_work(in_folder: Path) -> None:
    pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    for cell in cells():
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)  # noqa: S102 - our own notebook
