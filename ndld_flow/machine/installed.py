"""Installed distributions, by the `*.dist-info` folders on Python's path.

Every plan asks for versions and plugins. `importlib.metadata` answers too, but it imports `email`, `csv` and `zipfile`
and parses metadata as mail: together a tenth of the time of a plan. It is asked here only where distributions may be
something else than folders, such as eggs and archives, and wherever a plugin is found.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache


def find_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    if not _are_all_folders():
        return _ask_library(distribution)
    name = _normalized(distribution)
    for folder in _path():
        found = _distributions_in(*folder).get(name)
        if found is not None:
            header, _, _ = _read(f"{found}/METADATA").replace(b"\r\n", b"\n").partition(b"\n\n")
            version = re.search(rb"^Version:[ \t]*(\S+)[ \t]*$", header, re.MULTILINE | re.IGNORECASE)
            return (version[1].decode("utf-8", "replace") if version else "") or _ask_library(distribution)
    return None


def may_have_entry_points(group_prefix: str) -> bool:
    """Return whether an installed distribution may have entry points of a group with this prefix."""
    opening = f"[{group_prefix}".encode()
    return not _are_all_folders() or any(
        opening in _read(f"{found}/entry_points.txt")
        for folder in _path()
        for found in _distributions_in(*folder).values()
    )


def _ask_library(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _are_all_folders() -> bool:
    """Return whether all distributions are `*.dist-info` folders of folders on Python's path."""
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_distributions"))
    if any(getattr(finder, "__name__", "") != "PathFinder" for finder in finders):
        return False
    return not any(os.path.isfile(entry) for entry in sys.path) and not any(_has_eggs(*folder) for folder in _path())  # noqa: PTH113


def _path() -> Iterator[tuple[str, int]]:
    """Yield the folders on Python's path, with the times of their last changes."""
    for entry in sys.path:
        try:
            yield entry or ".", os.stat(entry or ".").st_mtime_ns  # noqa: PTH116 - pathlib is slower
        except OSError:
            continue


@lru_cache(maxsize=64)
def _names_in(folder: str, changed_ns: int) -> tuple[str, ...]:
    """Return the names in a folder; `changed_ns` tells its states apart."""
    del changed_ns
    try:
        return tuple(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return ()


@lru_cache(maxsize=64)
def _distributions_in(folder: str, changed_ns: int) -> Mapping[str, str]:
    """Return the normalized names of the distributions in a folder -> their `*.dist-info` folders."""
    names = [name for name in _names_in(folder, changed_ns) if name.lower().endswith(".dist-info")]
    found: dict[str, str] = {}
    for name in names:  # of two versions, `importlib.metadata` takes the first too
        found.setdefault(_normalized(name.rpartition(".")[0].partition("-")[0]), f"{folder}/{name}")
    return found


@lru_cache(maxsize=64)
def _has_eggs(folder: str, changed_ns: int) -> bool:
    names = (name.lower() for name in _names_in(folder, changed_ns))
    return any(name.endswith((".egg", ".egg-info", ".egg-link")) or name == "egg-info" for name in names)


def _normalized(name: str) -> str:
    """Return the name of a distribution as the Python packaging specifications compare it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slower
            return file.read()
    except OSError:
        return b""
