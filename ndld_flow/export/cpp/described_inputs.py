"""Inputs and outputs of a model as the C++ program reads and writes them, or the reason why it cannot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.settings import fields_of
from ndld_flow.base.text import short_name, suggest
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples.feeds import Feed
from ndld_flow.samples.images import ImageInput
from ndld_flow.samples.wanted_inputs import WantedInput
from ndld_flow.store.found_files import (
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    VIDEO_SUFFIXES,
    find_files,
)

ENUMERATORS = {
    "bool": "kBool",
    "int8": "kInt8",
    "int16": "kInt16",
    "int32": "kInt32",
    "int64": "kInt64",
    "uint8": "kUint8",
    "uint16": "kUint16",
    "uint32": "kUint32",
    "uint64": "kUint64",
    "float16": "kFloat16",
    "bfloat16": "kBfloat16",
    "float32": "kFloat32",
    "float64": "kFloat64",
}
"""Element type -> its enumerator in `tensor.h`."""

_READ_IMAGES = (".png", ".jpg", ".jpeg")
_NOT_IN_CPP = ("rate", "hop", "tokenizer", "max_length", "fed_from", "first_shape", "grow")
"""Settings of an input that the program does not follow, for audio, text and sequences."""
_OF_IMAGES = ("scale", "mean", "std", "resize", "interpolation", "pad", "align", "crop_share", "color")
_KINDS = (
    (AUDIO_SUFFIXES, "audio"),
    (VIDEO_SUFFIXES, "video"),
    (TABLE_SUFFIXES, "tables"),
    (TEXT_SUFFIXES, "text"),
    (IMAGE_SUFFIXES, "images other than PNG and JPEG"),
)


@dataclass(frozen=True)
class DescribedInput:
    """An input of the program."""

    spec: TensorSpec
    feed: Feed
    """Its values in the first sample of the recipe."""
    low: float
    high: float
    """Range of random values."""
    image: ImageInput | None
    """The conversion of images; None for an input that takes only arrays."""
    left_out: str
    """The conversion of the recipe that the program does not have, with the user's consent; else empty."""


def check_tensors(kind: str, specs: Sequence[TensorSpec]) -> None:
    """Raise `RequestError` for an input or output that the program has no type or no name for."""
    for spec in specs:
        name = short_name(spec.name)
        if spec.dtype not in ENUMERATORS:
            raise RequestError(
                f'{kind} "{name}" is {spec.dtype}, which the C++ program does not support: it has bool, integers of 8 '
                "to 64 bits, float16, bfloat16, float32 and float64."
            )
        if "\0" in spec.name:
            raise RequestError(f'{kind} "{name}" has a NUL in its name, which C++ runtimes do not accept: rename it.')


def describe_inputs(
    specs: Sequence[TensorSpec], given: Mapping[str, InputSpec], feeds: Mapping[str, Feed], arrays: Collection[str]
) -> list[DescribedInput]:
    """Return the inputs with the conversion that the recipe gives them.

    Raises `RequestError` for a conversion that the program does not have, unless the input is one of `arrays`.
    """
    known = [spec.name for spec in specs]
    for name in arrays:
        if name not in known:
            raise RequestError(f'arrays: "{name}" is not an input of the model; {suggest(name, known)}')
    return [_described(spec, given.get(spec.name, InputSpec()), feeds[spec.name], arrays) for spec in specs]


def _described(spec: TensorSpec, given: InputSpec, feed: Feed, arrays: Collection[str]) -> DescribedInput:
    file = find_files(given.data_patterns)[0].path if given.data_patterns else None
    # Settings and kinds of files that the program does not have.
    settings = [name for name in _NOT_IN_CPP if getattr(given, name) is not None]
    found = [f"`{'from' if name == 'fed_from' else name}: {getattr(given, name)}`" for name in settings]
    suffix = file.suffix.lower() if file else ""
    kind = next((kind for suffixes, kind in _KINDS if suffix in suffixes and suffix not in _READ_IMAGES), "")
    left_out = ", ".join([*([f"{kind} ({suffix})"] if kind else []), *found])
    is_changed = any(getattr(given, name) != fields_of(InputSpec)[name].default for name in _OF_IMAGES)
    image = None
    if spec.name not in arrays and not left_out and (is_changed or (file and _is_image(file))):
        try:
            image = ImageInput.of(WantedInput(spec, given, given.run_shape or spec.shape), file or Path("image.png"))
        except RequestError as error:
            left_out = f"`{_first_changed(given)}`: {error}" if is_changed else str(error)
        else:
            left_out = _image_not_in_cpp(image)
    if left_out and spec.name not in arrays:
        raise RequestError(
            f'input "{short_name(spec.name)}": the C++ program does not have this conversion of the recipe: '
            f"{left_out.rstrip('.')}. Add the input to `arrays:`, so that the program takes it only as a .npy file."
        )
    if spec.name in arrays and (is_changed or (file and _is_image(file))):
        left_out = left_out or "the conversion of images"
    low, high = given.range
    if not np.isfinite([low, high]).all():
        raise RequestError(f'input "{short_name(spec.name)}": `range` must be finite.')
    return DescribedInput(spec, feed, low, high, image if not left_out else None, left_out)


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in _READ_IMAGES


def _first_changed(given: InputSpec) -> str:
    return next(name for name in _OF_IMAGES if getattr(given, name) != fields_of(InputSpec)[name].default)


def _image_not_in_cpp(image: ImageInput) -> str:
    if image.channels == 4:
        return "images of 4 channels"
    numbers = np.array([image.scale, *image.given.mean, *image.given.std], np.float64)
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(numbers.astype(np.float32)).all()
    return "" if is_finite else "`scale`, `mean` or `std` beyond the range of float32"
