"""In which order runs and sweeps were finished: clocks, which may jump, do not tell."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from ndld_flow.records.read_document import read_bounded
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.sharing import make_folder, share


@dataclass(frozen=True)
class Order:
    """The place of each finished folder, from 1 on, the newest last.

    Who was not noted, as an earlier version of ndld-flow or another machine made it, or as the file lost its end,
    comes after those who were noted and whose names do not tell a later second.
    """

    noted: Mapping[str, int]
    """By name; it may name folders that are gone."""

    def place(self, name: str) -> int:
        return self.noted.get(name) or self._place_by_time(_second(name))

    def _place_by_time(self, second: str) -> int:
        seconds, places = self._by_time
        return places[bisect_right(seconds, second)]

    @cached_property
    def _by_time(self) -> tuple[list[str], list[int]]:
        """The seconds of all who were noted, sorted, and the last place among so many of the first."""
        timed = sorted((_second(name), place) for name, place in self.noted.items())
        return [second for second, _ in timed], list(accumulate((place for _, place in timed), max, initial=0))


@dataclass(frozen=True)
class History:
    """A file with a line for each finished folder, the newest last: `ppocr-det/20261121T093000Z-abcdef`."""

    path: Path

    def add(self, folder: Path) -> None:
        """Note that a folder is about to be the newest. Raises OSError."""
        make_folder(self.path.parent)
        with self.path.open("ab") as file:
            file.write(f"\n{name_in_history(folder)}".encode())  # a line before that was cut off stays alone
            file.flush()
            os.fsync(file.fileno())
        share(self.path)

    def read(self) -> Order:
        """The order; where there is no history, nobody was noted."""
        return Order({name: place for place, name in enumerate(self._names(), 1)})

    def forget(self, folders: Collection[Path]) -> None:
        """Leave out folders that were removed. Raises OSError."""
        gone = {name_in_history(folder) for folder in folders}
        names = [name for name in self._names() if name not in gone]
        if gone and self.path.exists():
            write_text_atomically(self.path, "\n".join(names))

    def _names(self) -> list[str]:
        try:
            return read_bounded(self.path).decode("utf-8", "replace").split()
        except OSError:
            return []


def name_in_history(folder: Path) -> str:
    """`<recipe>/<id>`."""
    return f"{folder.parent.name}/{folder.name}"


def _second(name: str) -> str:
    """`20261121T093000Z`, when a run was started."""
    return name.rpartition("/")[2].partition("-")[0]
