"""Words for a disk that is full, may not be written, or fails."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ndld_flow.errors import NdldFlowError, OutputsError, RecipeError
from ndld_flow.report.write_page import PageError

ALMOST_NOTHING_BYTES = 2**20
_AGAIN = "What was finished is kept; free some space (`ndld-flow gc` removes what no run needs) and run again."
_FORBIDDEN = "{place} cannot be written ({reason}). Choose another folder with --outputs."
_BROKEN = "{place} cannot be written or read ({reason}). What was finished is kept; look after the disk and run again."
_IN_THE_WAY = "{place} cannot be made ({reason}). Move what is in the way, or choose another folder with --outputs."
_TOO_MANY = "{reason}, so that {place} cannot be opened. Allow more (`ulimit -n`), or close other programs."
_WORDS = {
    errno.ENOSPC: f"the disk of {{folder}} is full. {_AGAIN}",
    errno.EDQUOT: f"the quota for the disk of {{folder}} is used up. {_AGAIN}",
    errno.EFBIG: "{place} would be larger than is allowed here ({reason}). Raise the limit (`ulimit -f`).",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _FORBIDDEN),
    **dict.fromkeys((errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE), _BROKEN),
    **dict.fromkeys((errno.ENFILE, errno.EMFILE), _TOO_MANY),
}
_WORDS_OF_OURS = {
    errno.ENAMETOOLONG: "{place} is a longer name than its disk allows. Choose another folder with --outputs.",
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP), _IN_THE_WAY),
}
"""Of what lies below the folder: elsewhere these are mistakes of who wrote the step."""


@contextlib.contextmanager
def explaining_disk(who: str, folder: Path) -> Iterator[None]:
    """Turn what a full, forbidden or failing disk does to `who`, writing below `folder`, into an OutputsError.

    Libraries hide the system's error number, so the free space is asked too. Other errors pass.
    """
    try:
        yield
    except PageError as error:  # of a folder whose other files cannot be written either
        told = explain_disk(error.__cause__, folder)
        raise OutputsError(f"{who}: {told}" if told else str(error)) from error
    except (OutputsError, RecipeError):
        raise
    except Exception as error:
        told = explain_disk(error, folder)
        if told:
            raise OutputsError(f"{who}: {told}") from error
        raise


@contextlib.contextmanager
def explaining_file(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a file that the user named is written into an OutputsError."""
    try:
        yield
    except OSError as error:
        raise OutputsError(f"{path}: it cannot be written ({error.strerror}). Choose another place.") from None


def explain_disk(error: BaseException | None, folder: Path) -> str:
    """What an error says of the disk, and what to do about it; empty where it says nothing of it."""
    full = next((str(place) for place in _places(folder) if _is_full(place)), "")
    if full:
        return _WORDS[errno.ENOSPC].format(folder=full)
    if isinstance(error, NdldFlowError) or not isinstance(error, OSError) or error.errno is None:
        return ""
    if error.errno == errno.ENOENT and not _name_of(error) and "temporary directory" in str(error):
        return "no folder for temporary files can be written. Name one that can by the environment variable TMPDIR."
    place = Path(_name_of(error) or folder)
    is_ours = place.absolute().is_relative_to(folder.absolute())
    words = _WORDS.get(error.errno) or (_WORDS_OF_OURS.get(error.errno, "") if is_ours else "")
    return words.format(place=place, folder=folder, reason=error.strerror)


def _name_of(error: OSError) -> str:
    """The file an error tells of; of a renaming the new name."""
    name = error.filename2 or error.filename
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")


def _places(folder: Path) -> Iterator[Path]:
    """Where a run writes."""
    yield folder
    with contextlib.suppress(OSError):  # there may be none
        yield Path(tempfile.gettempdir())


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < ALMOST_NOTHING_BYTES
    except OSError:
        return False
