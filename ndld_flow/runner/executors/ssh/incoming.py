"""Files on their way into a store: what has arrived stays there, so that a transfer continues where it broke off.

A file is written under the digest of its whole contents. Two senders of one file write the same bytes at the same
offsets, so they need no lock; what does not match its digest is never stored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.store.files import make_folder
from ndld_flow.store.remote_store import is_valid
from ndld_flow.store.store import Store

CHUNK_BYTES = 2**20
_FORGET_AFTER_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Incoming:
    """Incomplete files of a store."""

    store: Store

    def size(self, digest: str) -> int:
        """Return the number of a file's bytes that have arrived."""
        try:
            return self._path(digest).stat().st_size
        except OSError:
            return 0

    def write(self, digest: str, offset: int, chunks: Iterator[bytes]) -> None:
        """Write a file's bytes from an offset on. Takes all chunks, also after an error. Raises OSError."""
        try:
            make_folder(self._path(digest).parent)
            with os.fdopen(os.open(self._path(digest), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.seek(offset)
                for chunk in chunks:
                    file.write(chunk)
        finally:
            for _ in chunks:
                pass

    def keep(self, artifact: ArtifactRecord) -> bool:
        """Store an artifact whose files have arrived; False, and they are forgotten, if one is not what it should be.

        Raises OSError.
        """
        if not is_valid(artifact):
            return False
        if self.store.is_intact(artifact):
            return True
        paths = [self._path(file.digest) for file in artifact.files]
        with self.store.building() as folder:
            built = folder / "received"
            try:
                for file, path in zip(artifact.files, paths, strict=True):
                    target = built / file.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(OSError):
                        os.link(path, target)
                        continue
                    shutil.copyfile(path, target)
                kept = self.store.keep(artifact.kind, built).digest == artifact.digest
            except FileNotFoundError:
                kept = False
        for path in paths:
            path.unlink(missing_ok=True)
        return kept

    def forget_old(self) -> None:
        """Remove files of transfers that nobody has continued for a week."""
        for path in self._path("0").parent.glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _FORGET_AFTER_S:
                    path.unlink()

    def _path(self, digest: str) -> Path:
        return self.store.root / "incoming" / digest


def read_chunks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Yield `size` bytes as `read(at_most)` returns them. Raises EOFError when they end early."""
    while size:
        chunk = read(min(size, CHUNK_BYTES))
        if not chunk:
            raise EOFError
        size -= len(chunk)
        yield chunk
