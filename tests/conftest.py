"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ndld_flow.artifacts.store import Store
from ndld_flow.errors import SourceError
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import find_model

PIPELINES = Path(__file__).parent.parent / "pipelines"
SAMPLES = {
    "det": (
        "pypi:rapidocr-onnxruntime==1.4.4/rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "rec": (
        "pypi:rapidocr-onnxruntime==1.4.4/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "silero": (
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
}


@pytest.fixture(scope="session")
def sample_store() -> Store:
    """Where fetched sample models are kept between test runs, so that each wheel is fetched once a machine."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Store(Path(base) / "ndld_flow-tests")


@pytest.fixture(scope="session")
def sample_model(sample_store: Store) -> Callable[[str], Path]:
    """`sample_model("det")`: the path of a real model with trained weights; skips where none can be fetched."""

    def fetch(name: str) -> Path:
        source, sha256 = SAMPLES[name]
        try:
            return find_model(ModelSource(source=source, sha256=sha256), sample_store, print).artifact.path
        except SourceError as error:
            pytest.skip(f"the sample model cannot be fetched: {error}")

    return fetch


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
