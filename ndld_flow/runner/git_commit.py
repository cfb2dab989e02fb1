"""Read the git commit of a working tree from its files, without starting git."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCE = re.compile(r"ref: (refs/[^\0\n]{1,200})\s*")
_MOST_BYTES = 20_000_000
"""Size limit of packed references."""


@lru_cache(maxsize=8)
def read_commit(folder: Path) -> str:
    """Return the commit that is checked out in a folder's working tree; empty outside one, or if it cannot be read.

    The format is that of gitrepository-layout(5): `HEAD` names a reference, which is a file or a line of
    `packed-refs`; a linked working tree has a `HEAD` of its own and shares references by `commondir`.
    """
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.exists():
            try:
                return _read_head(_linked(git))
            except (OSError, ValueError):
                return ""
    return ""


def _linked(git: Path) -> Path:
    """Return the folder of a repository; `.git` is a file that names it in a linked working tree."""
    if git.is_dir():
        return git
    return (git.parent / _text(git).removeprefix("gitdir:").strip()).resolve()


def _read_head(git: Path) -> str:
    head = _text(git / "HEAD").strip()
    reference = _REFERENCE.fullmatch(head)
    if reference is None:
        return head if _COMMIT.fullmatch(head) else ""
    common = git / _text(git / "commondir").strip() if (git / "commondir").is_file() else git
    for folder in (git, common):
        if (folder / reference[1]).is_file():
            commit = _text(folder / reference[1]).strip()
            return commit if _COMMIT.fullmatch(commit) else ""
    for line in _text(common / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == reference[1] and _COMMIT.fullmatch(commit):
            return commit
    return ""


def _text(path: Path) -> str:
    """Return a file as text. Raises OSError, and ValueError for a large one and for other bytes."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("not a file of git")
    return path.read_text("utf-8")
