"""Words for a disk that is full or may not be written."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from ndld_flow.errors import NdldFlowError, OutputsError

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
ALMOST_NOTHING_BYTES = 2**20


@contextlib.contextmanager
def explaining_disk(who: str, folder: Path) -> Iterator[None]:
    """Turn what a full or forbidden disk does to `who`, writing below `folder`, into an OutputsError.

    Libraries hide the system's error number, so the free space is asked too. Other errors pass.
    """
    try:
        yield
    except OutputsError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in FULL or shutil.disk_usage(folder).free < ALMOST_NOTHING_BYTES:
            raise OutputsError(
                f"{who}: the disk of {folder} is full. What was finished is kept; free some space (`ndld-flow gc` "
                "removes what no run needs) and run again."
            ) from error
        if number in FORBIDDEN and not isinstance(error, NdldFlowError):
            place = getattr(error, "filename", None) or folder
            raise OutputsError(
                f"{who}: {place} cannot be written ({error.strerror}). Choose another folder with --outputs."  # type: ignore[attr-defined]
            ) from error
        raise
