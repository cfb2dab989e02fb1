"""In which order runs and sweeps were finished: clocks, which may jump, do not tell."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.artifacts.files import write_text_atomically


@dataclass(frozen=True)
class History:
    """A file with a line for each finished folder, the newest last: `ppocr-det/20261121T093000Z-abcdef`.

    Who is not in it, as an earlier version of ndld-flow or another machine made it, counts as older than all who are.
    """

    path: Path

    def add(self, folder: Path) -> None:
        """Note that a folder is about to be the newest. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(f"\n{name_in_history(folder)}".encode())  # a line before that was cut off stays alone
            file.flush()
            os.fsync(file.fileno())

    def places(self) -> dict[str, int]:
        """Each name's place in the order; empty where there is no history."""
        try:
            return {name: place for place, name in enumerate(self.path.read_text(errors="replace").split(), 1)}
        except OSError:
            return {}

    def forget(self, folders: Collection[Path]) -> None:
        """Leave out folders that were removed. Raises OSError."""
        gone = {name_in_history(folder) for folder in folders}
        names = [name for name in self.places() if name not in gone]
        if gone and self.path.exists():
            write_text_atomically(self.path, "\n".join(names))


def name_in_history(folder: Path) -> str:
    """`<recipe>/<id>`."""
    return f"{folder.parent.name}/{folder.name}"
