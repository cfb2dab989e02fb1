"""Files on their way into a store: what has arrived stays there, so that a transfer continues where it broke off.

A file is written under the digest of its whole contents; what does not match its digest is never stored.
Processes of one sender write the same bytes at the same offsets, so they need no lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ndld_flow.records.document import Digest
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.store.files import make_folder
from ndld_flow.store.store import Store

CHUNK_BYTES = 2**20
_FORGET_AFTER_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Incoming:
    """Incomplete files of a store."""

    store: Store
    sender: str = ""
    """The sender, if there are several: one must not write into a file that another sends."""

    def size(self, digest: Digest) -> int:
        """Return the number of a file's bytes that have arrived."""
        try:
            return self._path(digest).stat().st_size
        except OSError:
            return 0

    def write(self, digest: Digest, offset: int, chunks: Iterator[bytes]) -> None:
        """Write a file's bytes from an offset on. Takes all chunks, also after an error. Raises OSError."""
        try:
            make_folder(self._path(digest).parent)
            opened = os.open(self._path(digest), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(opened, "wb") as file:
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
        for path in (self.store.root / "incoming").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _FORGET_AFTER_S:
                    path.unlink()

    def _path(self, digest: Digest) -> Path:
        sender = f".{blake3(self.sender.encode()).hexdigest()[:16]}" if self.sender else ""
        return self.store.root / "incoming" / f"{digest}{sender}"


def read_chunks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Yield `size` bytes as `read(at_most)` returns them. Raises EOFError when they end early."""
    while size:
        chunk = read(min(size, CHUNK_BYTES))
        if not chunk:
            raise EOFError
        size -= len(chunk)
        yield chunk
