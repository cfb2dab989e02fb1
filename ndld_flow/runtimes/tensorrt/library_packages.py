"""Lays out the packages of a TensorRT that a child process may import, and no others."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zipfile
from pathlib import Path

from ndld_flow.base.errors import BackendError

_SEEN = re.compile(
    r"""(tensorrt(_rtx)?(_cu\d+)?(_bindings|_libs)?(\.libs)?|nvidia(_\w+)?)  # packages
        (-[^-]+\.(dist|egg)-info)?""",  # and their metadata
    re.VERBOSE,
)


def link_packages(site: Path, target: Path) -> None:
    """Make TensorRT and NVIDIA's libraries of a site-packages importable from `target`; nothing else of it is.

    Where symbolic links are not allowed, files are linked or copied.
    """
    for package in sorted(site.iterdir()):
        if package.is_dir() and _SEEN.fullmatch(package.name):
            try:
                (target / package.name).symlink_to(package.resolve(), target_is_directory=True)
            except OSError:  # Windows allows them to administrators and developers only
                shutil.copytree(package, target / package.name, copy_function=_link_or_copy)


def unpack_wheel(wheel: Path, target: Path) -> None:
    """Unpack a wheel into `target`. Raises BackendError when it is damaged or a member would land elsewhere."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not (target / name.replace("\\", "/")).resolve().is_relative_to(target.resolve()):
                    raise BackendError(f"{wheel} would write outside its folder ({name!r}): do not use this archive")
            archive.extractall(target)
    except (zipfile.BadZipFile, EOFError) as error:
        raise BackendError(f"{wheel} is damaged ({error}): unpack the archive again") from error


def _link_or_copy(source: str, target: str) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
