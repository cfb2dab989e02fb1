"""Messages about a disk that is full, failing or not writable."""

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

from ndld_flow.base.errors import NdldFlowError, OutputsError, PageError, RecipeError
from ndld_flow.base.users import name_user

ALMOST_NOTHING_BYTES = 2**20
_REMEDY = "Finished results are kept; free some space (`ndld-flow gc` removes what no run needs) and run again."
_FORBIDDEN = "{place} cannot be written ({reason}). Choose another folder with --outputs."
_NOT_PERMITTED = (
    "{place} cannot be read or written by {me}: {blocking} belongs to {owner} (group {group}) and has mode {mode:04o}. "
    "Have {owner} run `chmod -R g+rwX {folder}` (after `chgrp -R GROUP {folder}`, where the group is another), or "
    "choose another folder with --outputs."
)
_BROKEN = "{place} cannot be written or read ({reason}). Finished results are kept; check the disk and run again."
_IN_THE_WAY = (
    "{place} cannot be created ({reason}). Move the file that has this name, or choose another folder with --outputs."
)
_TOO_MANY = "{reason}, so that {place} cannot be opened. Allow more (`ulimit -n`), or close other programs."
_MESSAGES = {
    errno.ENOSPC: f"the disk of {{folder}} is full. {_REMEDY}",
    errno.EDQUOT: f"the quota for the disk of {{folder}} is used up. {_REMEDY}",
    errno.EFBIG: "{place} would exceed the file size limit ({reason}). Raise the limit (`ulimit -f`).",
    errno.EROFS: _FORBIDDEN,
    **dict.fromkeys((errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE), _BROKEN),
    **dict.fromkeys((errno.ENFILE, errno.EMFILE), _TOO_MANY),
}
_MESSAGES_BELOW = {
    errno.ENAMETOOLONG: "the file name {place} is too long for its disk. Choose another folder with --outputs.",
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP), _IN_THE_WAY),
}
"""Messages for paths inside the folder: elsewhere these errors are mistakes in a step."""


@contextlib.contextmanager
def explaining_disk(work: str, folder: Path) -> Iterator[None]:
    """Turn errors of a full, read-only or failing disk into an OutputsError; `work` (may be empty) writes to `folder`.

    Libraries hide the system's error number, so the free space is checked too. Other errors propagate.
    """
    prefix = f"{work}: " if work else ""
    try:
        yield
    except PageError as error:  # other files of the folder cannot be written either
        message = explain_disk(error.__cause__, folder)
        raise OutputsError(f"{prefix}{message}" if message else str(error)) from error
    except (OutputsError, RecipeError):
        raise
    except Exception as error:
        message = explain_disk(error, folder)
        if message:
            raise OutputsError(f"{prefix}{message}") from error
        raise


def explain_disk(error: BaseException | None, folder: Path) -> str:
    """Return the problem of the disk that caused an error, and the remedy; empty if the disk is not the cause."""
    full = _find_full_folder(folder)
    if full is not None:
        return _MESSAGES[errno.ENOSPC].format(folder=full)
    if isinstance(error, NdldFlowError) or not isinstance(error, OSError) or error.errno is None:
        return ""
    if error.errno == errno.ENOENT and not _name_of(error) and "temporary directory" in str(error):
        return "no folder for temporary files is writable. Set the environment variable TMPDIR to one that is."
    place = Path(_name_of(error) or folder)
    if error.errno in (errno.EACCES, errno.EPERM):
        return _explain_permissions(place, folder) or _FORBIDDEN.format(place=place, reason=error.strerror)
    is_ours = place.absolute().is_relative_to(folder.absolute())
    message = _MESSAGES.get(error.errno) or (_MESSAGES_BELOW.get(error.errno, "") if is_ours else "")
    return message.format(place=place, folder=folder, reason=error.strerror)


def _explain_permissions(place: Path, folder: Path) -> str:
    """Return the owner of the file or folder to which this user has no access, and the remedy; empty if there is
    none."""
    if sys.platform == "win32":
        return ""
    for path in (*reversed(place.absolute().parents), place.absolute()):
        try:
            status = path.stat()
        except OSError:
            continue
        inside = path.is_relative_to(folder.absolute())
        wanted = (os.R_OK | os.X_OK if stat.S_ISDIR(status.st_mode) else os.R_OK) | (os.W_OK if inside else 0)
        is_object = not status.st_mode & 0o222  # the store's objects are read-only for everybody
        if not os.access(path, wanted & ~os.W_OK if is_object else wanted):
            return _NOT_PERMITTED.format(
                place=place,
                me=name_user(os.geteuid()),
                blocking="it" if path == place.absolute() else path,
                owner=name_user(status.st_uid),
                group=_name_group(status.st_gid),
                mode=stat.S_IMODE(status.st_mode),
                folder=folder,
            )
    return ""


def _name_group(number: int) -> str:
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (ImportError, KeyError):
        return str(number)


def _name_of(error: OSError) -> str:
    """Return the file of an error; of a renaming the new name."""
    name = error.filename2 or error.filename
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")


def _find_full_folder(folder: Path) -> Path | None:
    """Return the folder on a full disk among those to which a run writes: its outputs, and that of temporary files."""
    written = [folder]
    with contextlib.suppress(OSError):  # there may be none
        written.append(Path(tempfile.gettempdir()))
    for each in written:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(each).free < ALMOST_NOTHING_BYTES:
                return each
    return None
