"""Read a document of activations and its files, whose untrusted names must not lead out of the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ndld_flow.records.activations import ActivationMap, Activations
from ndld_flow.records.run_folder import read_record

ACTIVATIONS_RECORD = "activations.json"
"""File name of the document."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PICTURE_BYTES = 2**21
"""Maximum size of a picture; inputs of models are small."""


def read_activations(folder: Path) -> Activations:
    """Read `activations.json`.

    Raises a `RequestError` if there is none, it cannot be read, or another version wrote it.
    """
    return read_record(
        Activations,
        folder / ACTIVATIONS_RECORD,
        absent="holds no activations",
        give="Give the folder of an inspect_activations step.",
        unreadable="is not a document of activations",
    )


def read_map(folder: Path, one: ActivationMap) -> bytes:
    """Return the codes of a map: channels x height x width values of 2 bytes, little-endian.

    Raises a `ValueError` with the file's problem.
    """
    wanted = one.channels * one.height * one.width * 2
    if min(one.channels, one.height, one.width) < 1:
        raise ValueError("a map without elements")
    with _opened(folder, one.file) as file:
        size = os.fstat(file.fileno()).st_size
        if size != wanted:
            raise ValueError(
                f"{size:,} bytes, which is not {one.channels:,} channels of {one.height:,} x {one.width:,}"
            )
        return file.read(wanted)


def read_picture(folder: Path, name: str) -> bytes:
    """Return a PNG. Raises a `ValueError` with the file's problem."""
    with _opened(folder, name) as file:
        data = file.read(_PICTURE_BYTES + 1)
    if not data.startswith(_PNG):
        raise ValueError("not a PNG")
    if len(data) > _PICTURE_BYTES:
        raise ValueError(f"larger than {_PICTURE_BYTES >> 20} MiB")
    return data


def is_beside(name: str) -> bool:
    """Return whether a relative file name stays within its folder."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and not set(name) & set("\\:\0")


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a regular file within the folder; refuse links out of it and special files that could block."""
    if not is_beside(name):
        raise ValueError("not a file next to the document")
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("a link out of the folder")
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except RuntimeError as error:  # pathlib's error for a link to itself before Python 3.13
        raise ValueError("a link to itself") from error
