"""Stamps of files, which show without reading a file that it may have changed."""

from __future__ import annotations

import os
import time

SETTLED_AFTER_S = 2.0
"""A file younger than this may change again within one tick of its timestamps, so that its stamp proves nothing."""


def make_stamp(status: os.stat_result) -> list[int]:
    """Return size, times in ns, inode and device. The change time cannot be set from user space."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def is_settled(stamp: list[int], now_ns: int | None = None) -> bool:
    """Return whether a later change of a file is sure to change its stamp. `now_ns`: the present time by default."""
    return (now_ns or time.time_ns()) - max(stamp[1], stamp[2]) > SETTLED_AFTER_S * 1e9
