"""Words for a disk that is full, may not be written, or fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError, OutputsError, RecipeError
from ndld_flow.report.write_page import PageError

ALMOST_NOTHING_BYTES = 2**20
_AGAIN = "What was finished is kept; free some space (`ndld-flow gc` removes what no run needs) and run again."
_FORBIDDEN = "{place} cannot be written ({reason}). Choose another folder with --outputs."
_NOT_PERMITTED = (
    "{place} cannot be read or written by {me}: {blocking} belongs to {owner} (group {group}) and has mode {mode:04o}. "
    "Have {owner} run `chmod -R g+rwX {folder}` (after `chgrp -R GROUP {folder}`, where the group is another), or "
    "choose another folder with --outputs."
)
_BROKEN = "{place} cannot be written or read ({reason}). What was finished is kept; look after the disk and run again."
_IN_THE_WAY = "{place} cannot be made ({reason}). Move what is in the way, or choose another folder with --outputs."
_TOO_MANY = "{reason}, so that {place} cannot be opened. Allow more (`ulimit -n`), or close other programs."
_WORDS = {
    errno.ENOSPC: f"the disk of {{folder}} is full. {_AGAIN}",
    errno.EDQUOT: f"the quota for the disk of {{folder}} is used up. {_AGAIN}",
    errno.EFBIG: "{place} would be larger than is allowed here ({reason}). Raise the limit (`ulimit -f`).",
    errno.EROFS: _FORBIDDEN,
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
    if error.errno in (errno.EACCES, errno.EPERM):
        return _explain_permissions(place, folder) or _FORBIDDEN.format(place=place, reason=error.strerror)
    is_ours = place.absolute().is_relative_to(folder.absolute())
    words = _WORDS.get(error.errno) or (_WORDS_OF_OURS.get(error.errno, "") if is_ours else "")
    return words.format(place=place, folder=folder, reason=error.strerror)


def _explain_permissions(place: Path, folder: Path) -> str:
    """Return whose file or folder keeps this user out, and what to do; empty where none of them does."""
    if sys.platform == "win32":
        return ""
    for path in (*reversed(place.absolute().parents), place.absolute()):
        try:
            found = path.stat()
        except OSError:
            continue
        inside = path.is_relative_to(folder.absolute())
        wanted = (os.R_OK | os.X_OK if stat.S_ISDIR(found.st_mode) else os.R_OK) | (os.W_OK if inside else 0)
        is_object = not found.st_mode & 0o222  # the store's objects are read-only for everybody
        if not os.access(path, wanted & ~os.W_OK if is_object else wanted):
            return _NOT_PERMITTED.format(
                place=place,
                me=name_user(os.geteuid()),
                blocking="it" if path == place.absolute() else path,
                owner=name_user(found.st_uid),
                group=_name_group(found.st_gid),
                mode=stat.S_IMODE(found.st_mode),
                folder=folder,
            )
    return ""


def name_user(number: int) -> str:
    """Return the name of a user, or the number where there is none."""
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def _name_group(number: int) -> str:
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (ImportError, KeyError):
        return str(number)


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
