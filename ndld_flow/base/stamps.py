"""Stamps of files, which show without reading a file that it may have changed."""

from __future__ import annotations

import os
import re
import time
from functools import cache
from pathlib import Path

SETTLED_AFTER_S = 2.0
"""A file younger than this may change again within one tick of its timestamps, so that its stamp proves nothing."""


def make_stamp(status: os.stat_result) -> list[int]:
    """Return size, times in ns, inode and device. The change time cannot be set from user space."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def is_settled(stamp: list[int], now_ns: int | None = None) -> bool:
    """Return whether a later change of a file is sure to change its stamp. `now_ns`: the present time by default."""
    return (now_ns or time.time_ns()) - max(stamp[1], stamp[2]) > SETTLED_AFTER_S * 1e9


_FOLLOW_WRITES = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs"})
"""Linux file systems that change a file's times whenever it is written. tmpfs does not where a program writes through a
memory map, and network file systems show changes of other hosts late. An overlay is like the file system below it,
which may be tmpfs and cannot be known.
"""


def follows_writes(device: int) -> bool:
    """Return whether the stamps of files on a device are sure to change with their contents; False if unknown."""
    return _file_systems().get(device, "") in _FOLLOW_WRITES


@cache
def _file_systems() -> dict[int, str]:
    """Return the types of the mounted file systems, by device (proc_pid_mountinfo(5))."""
    try:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = re.findall(r"^\S+ \S+ (\d+):(\d+) .* - (\S+) ", text, re.MULTILINE)
    return {os.makedev(int(major), int(minor)): name for major, minor, name in found}
