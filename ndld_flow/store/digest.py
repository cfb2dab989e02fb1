"""Digests of files and of JSON values."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.records.document import stat_file
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.store.files import read_note, write_note

ALWAYS_HASH_BELOW_BYTES = 16 * 2**20
"""Smaller files are hashed by every process, without a cached digest on disk: that takes at most 5 ms."""

_WINDOW_BYTES = 16 * 2**20
"""Bytes that are mapped at once: mapped pages count as this process's memory. Reading would take twice as long."""


def digest_file(path: Path) -> str:
    """Return the blake3 digest of a file's contents, in hex."""
    hasher = blake3(max_threads=blake3.AUTO)
    size = path.stat().st_size
    if size < ALWAYS_HASH_BELOW_BYTES:
        hasher.update(path.read_bytes())
        return hasher.hexdigest()
    with path.open("rb") as file:
        for start in range(0, size, _WINDOW_BYTES):
            length = min(_WINDOW_BYTES, size - start)
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start) as window:
                hasher.update(window)
    return hasher.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's contents, in hex: the digest that other programs know."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: JsonValue) -> str:
    """Return the blake3 digest of a JSON value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return blake3(text.encode()).hexdigest()


def describe_files(kind: str, files: Iterable[ArtifactFile]) -> ArtifactRecord:
    """Return the artifact of these files. Its digest depends only on their names and contents."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    digest = digest_json([[file.path, file.digest, file.size_bytes] for file in ordered])
    return ArtifactRecord(kind=kind, digest=digest, files=ordered)


def describe_folder(kind: str, folder: Path, digest: Callable[[Path], str] = digest_file) -> ArtifactRecord:
    """Return the artifact of all files below a folder, each hashed by `digest`."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return describe_files(
        kind,
        (
            ArtifactFile(path=path.relative_to(folder).as_posix(), digest=digest(path), size_bytes=path.stat().st_size)
            for path in paths
        ),
    )


def find_fault(artifact: ArtifactRecord) -> str:
    """Return why an artifact cannot be as it is recorded, in a few words; empty if it can."""
    if not artifact.files:
        return "it has no files"
    described = describe_files(artifact.kind, artifact.files)
    return "" if described.digest == artifact.digest else "its digest is not that of its files"


def find_damage(path: Path, file: ArtifactFile, digest: Callable[[Path], str] = digest_file) -> str:
    """Return the damage of an artifact's file, in a few words; empty if there is none."""
    try:
        size_bytes = path.stat().st_size
        if path.is_dir():
            return "a folder is in its place"
        if size_bytes != file.size_bytes:
            return f"{size_bytes:,} of {file.size_bytes:,} bytes"
        return "" if digest(path) == file.digest else "its contents have changed"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


@dataclass(frozen=True)
class DigestMemory:
    """Digests of files, cached while their stamps stay the same; those of large files in a folder.

    Files on file systems whose stamps do not follow every write are read each time.
    """

    folder: Path

    def digest(self, path: Path) -> str:
        """Return the blake3 digest of a file; an unchanged file is not read again.

        Raises OSError, also for a pipe or a device.
        """
        stamp = make_stamp(stat_file(path))
        if stamp[0] < ALWAYS_HASH_BELOW_BYTES:
            return _digest_by_stamp(path, stamp)
        note = self.folder / f"{blake3(str(path.absolute()).encode()).hexdigest()[:32]}.json"
        remembered = read_note(note)
        if isinstance(remembered, list) and remembered[:-1] == stamp and follows_writes(stamp[4]):
            return str(remembered[-1])
        lasting = is_settled(stamp) and follows_writes(stamp[4])
        if lasting:
            _write_back(path)
        digest = digest_file(path)
        if lasting and make_stamp(path.stat()) == stamp:
            write_note(note, [*stamp, digest])
        return digest


def cached_digest(path: Path) -> str:
    """Return the blake3 digest of a file, which this process reads again only if it changed. Raises OSError."""
    return _digest_by_stamp(path, make_stamp(stat_file(path)))


def _digest_by_stamp(path: Path, stamp: list[int]) -> str:
    settled = is_settled(stamp) and follows_writes(stamp[4])
    return _digest_small(path, *stamp) if settled else digest_file(path)


def _write_back(path: Path) -> None:
    """Write changed pages of a file to disk.

    A write through a memory map changes the times only if the page was clean: without this, a program that has the file
    mapped could change a page again and leave the times as they are.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


@lru_cache(maxsize=100_000)
def _digest_small(path: Path, *stamp: int) -> str:
    """Cache digests in memory: each step, and each point of a sweep, asks for the same images."""
    del stamp  # only part of the cache's key
    _write_back(path)
    return digest_file(path)


SETTLED_AFTER_S = 2.0
"""A file younger than this may change again within one tick of its timestamps, so that its stamp proves nothing."""


def make_stamp(status: os.stat_result) -> list[int]:
    """Return size, times in ns, inode and device. The change time cannot be set from user space."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def is_settled(stamp: list[int]) -> bool:
    """Return whether a later change of a file is sure to change its stamp."""
    return time.time_ns() - max(stamp[1], stamp[2]) > SETTLED_AFTER_S * 1e9


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
