"""Trials of a search that was cut off, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ndld_flow.precision_search.judging import Judged
from ndld_flow.store.sharing import make_folder, share


@dataclass(frozen=True)
class Remembered:
    """One trial."""

    judged: Judged
    wall_s: float


class TrialFile:
    """A line of JSON for each trial, written as soon as it is done; a line that was cut off does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_folder(path.parent)

    def read(self) -> Mapping[frozenset[int], Remembered]:
        """Nodes kept -> what came of it."""
        if not self._path.is_file():
            return {}
        found = {}
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                told = json.loads(line)
                found[frozenset(told["kept"])] = Remembered(Judged(**told["judged"]), told["wall_s"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        return found

    def add(self, kept: frozenset[int], trial: Remembered) -> None:
        """Write a trial down."""
        line = json.dumps({"kept": sorted(kept), "judged": asdict(trial.judged), "wall_s": trial.wall_s})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
        share(self._path)

    def forget(self) -> None:
        """The search is over."""
        self._path.unlink(missing_ok=True)
