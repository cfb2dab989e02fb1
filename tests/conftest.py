"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ndld_flow.errors import SourceError
from tests.samples import fetch_sample


@pytest.fixture(scope="session")
def sample_model() -> Callable[[str], Path]:
    """`sample_model("det")`: the path of a real model with trained weights; skips where none can be fetched."""

    def fetch(name: str) -> Path:
        try:
            return fetch_sample(name)
        except SourceError as error:
            pytest.skip(f"the sample model cannot be fetched: {error}")

    return fetch


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
