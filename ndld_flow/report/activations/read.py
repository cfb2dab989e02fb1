"""Read a document of activations and the files beside it. Names of files are a record's: none may lead out."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from ndld_flow.errors import RequestError
from ndld_flow.records.activations import ActivationMap, Activations

ACTIVATIONS_RECORD = "activations.json"
"""The document, in its folder."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PICTURE_BYTES = 2**21
"""Larger pictures are left out: what is fed to a model is small."""


def read_activations(folder: Path) -> Activations:
    """Read `activations.json`.

    Raises a `RequestError` when the folder holds none, it cannot be read, or another version wrote it.
    """
    path = folder / ACTIVATIONS_RECORD
    try:
        record = Activations.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RequestError(
            f"{folder} holds no activations: {path.name} cannot be read ({error.strerror}). "
            "Give the folder of a step inspect_activations."
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(
            f"{path} is no document of activations this version can read: {place or 'all of it'}: {first['msg']}. "
            "Use the version of ndld-flow that wrote it."
        ) from error
    known = Activations.model_fields["format_version"].default
    if record.format_version != known:
        raise RequestError(
            f"{path} has format version {record.format_version}; this version of ndld-flow reads {known}. "
            "Use the version that wrote it."
        )
    return record


def read_map(folder: Path, one: ActivationMap) -> bytes:
    """The codes of a map: channels x height x width x 2 bytes, little-endian.

    Raises a `ValueError` that says what is wrong with the file.
    """
    wanted = one.channels * one.height * one.width * 2
    if min(one.channels, one.height, one.width) < 1:
        raise ValueError("a map without elements")
    codes = _read(folder, one.file, wanted + 1)
    if len(codes) != wanted:
        raise ValueError(f"{len(codes):,} bytes{' or more' if len(codes) > wanted else ''} instead of {wanted:,}")
    return codes


def read_picture(folder: Path, name: str) -> bytes:
    """A PNG. Raises a `ValueError` that says what is wrong with the file."""
    data = _read(folder, name, _PICTURE_BYTES + 1)
    if not data.startswith(_PNG):
        raise ValueError("not a PNG")
    if len(data) > _PICTURE_BYTES:
        raise ValueError(f"larger than {_PICTURE_BYTES >> 20} MiB")
    return data


def is_beside(name: str) -> bool:
    """Whether a file's name stays below the folder it counts from."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and not set(name) & set("\\:\0")


def _read(folder: Path, name: str, most: int) -> bytes:
    if not is_beside(name):
        raise ValueError("not a file beside the document")
    try:
        with (folder / name).open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
