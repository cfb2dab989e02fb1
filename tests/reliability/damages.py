"""Damages of files, as by a power failure or by manual changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Other contents at the same time: who looks at a modification time sees nothing."""
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(change(path.read_bytes()))
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def cut_to_nothing(path: Path) -> None:
    _rewrite(path, lambda _: b"")


def cut_in_half(path: Path) -> None:
    _rewrite(path, lambda data: data[: len(data) // 2])


def cut_one_byte(path: Path) -> None:
    _rewrite(path, lambda data: data[:-1])


def flip_one_byte(path: Path) -> None:
    """In the middle: a text stays one, a number may become another."""
    _rewrite(path, lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])


def replace_by_a_folder(path: Path) -> None:
    _remove(path)
    path.mkdir()
    (path / "stranger").write_text("nobody expects this")


def replace_by_a_dangling_link(path: Path) -> None:
    _remove(path)
    path.symlink_to(path.with_name("there-is-none"))


def delete(path: Path) -> None:
    _remove(path)


CUTS = (cut_to_nothing, cut_in_half, cut_one_byte)
CHANGES = (flip_one_byte,)
LOSSES = (replace_by_a_folder, replace_by_a_dangling_link, delete)


def is_possible(damage: Callable[[Path], None], path: Path) -> bool:
    """Links and empty files have nothing to cut."""
    if path.is_symlink() or path.stat().st_size == 0:
        return damage in LOSSES
    return True
