"""Read a document of activations and the files beside it. Names of files are a record's: none may lead out."""

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
"""The document, in its folder."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PICTURE_BYTES = 2**21
"""Larger pictures are left out: what is fed to a model is small."""


def read_activations(folder: Path) -> Activations:
    """Read `activations.json`.

    Raises a `RequestError` when the folder holds none, it cannot be read, or another version wrote it.
    """
    return read_record(
        Activations,
        folder / ACTIVATIONS_RECORD,
        absent="holds no activations",
        give="Give the folder of a step inspect_activations.",
        unreadable="is no document of activations",
    )


def read_map(folder: Path, one: ActivationMap) -> bytes:
    """Return the codes of a map: channels x height x width x 2 bytes, little-endian.

    Raises a `ValueError` that says what is wrong with the file.
    """
    wanted = one.channels * one.height * one.width * 2
    if min(one.channels, one.height, one.width) < 1:
        raise ValueError("a map without elements")
    with _opened(folder, one.file) as file:
        size = os.fstat(file.fileno()).st_size
        if size != wanted:
            raise ValueError(f"{size:,} bytes, which is no {one.channels:,} channels of {one.height:,} x {one.width:,}")
        return file.read(wanted)


def read_picture(folder: Path, name: str) -> bytes:
    """Return a PNG. Raises a `ValueError` that says what is wrong with the file."""
    with _opened(folder, name) as file:
        data = file.read(_PICTURE_BYTES + 1)
    if not data.startswith(_PNG):
        raise ValueError("not a PNG")
    if len(data) > _PICTURE_BYTES:
        raise ValueError(f"larger than {_PICTURE_BYTES >> 20} MiB")
    return data


def is_beside(name: str) -> bool:
    """Return whether a file's name stays below the folder it counts from."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and not set(name) & set("\\:\0")


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BinaryIO]:
    """A file that lies below the folder, no link out of it, and nothing that could keep a reader waiting."""
    if not is_beside(name):
        raise ValueError("not a file beside the document")
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("a link to somewhere else")
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("no regular file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except RuntimeError as error:  # what pathlib makes of a link to itself, before Python 3.13
        raise ValueError("a link to itself") from error
