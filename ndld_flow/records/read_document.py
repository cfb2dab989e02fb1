"""Read the files of documents within bounds: no special files, and none larger than any document."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from ndld_flow.base.errors import NewerFormatError
from ndld_flow.records.base import Document

MAX_BYTES = 500_000_000
"""Size limit of a document; a profile of 5,000 layers has 5 MB."""

AnyDocument = TypeVar("AnyDocument", bound=Document)


def read_document(kind: type[AnyDocument], path: Path) -> AnyDocument:
    """Read a document; one of an earlier version is upgraded.

    Raises OSError and ValidationError for an unreadable or invalid one, and NewerFormatError for a later version's.
    """
    try:
        return kind.model_validate_json(read_bounded(path))
    except NewerFormatError as error:
        raise error.at(path) from None


def read_tree(path: Path) -> Any:  # noqa: ANN401 - it may be anything
    """Return a file of JSON as plain values. Raises OSError, and ValueError for invalid or too deep JSON."""
    return from_json(read_bounded(path))


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for a pipe or a device, which may have no end."""
    size_bytes = stat_file(path).st_size
    if size_bytes > limit:
        raise OSError(errno.EFBIG, f"{size_bytes:,} bytes are more than the {limit:,} that are read", str(path))
    return path.read_bytes()


def stat_file(path: Path) -> os.stat_result:
    """Return the status of a regular file. Raises OSError, also for a pipe or a device, which may block."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file but a pipe, a socket or a device", str(path))
    return found
