"""List finished runs and sweeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal

from ndld_flow.records.base import Record
from ndld_flow.report.run_folder import RUN_RECORD
from ndld_flow.report.sweep.read import SWEEP_RECORD
from ndld_flow.runner.runs import Outputs, name_folder


class RunSummary(Record):
    """One line of `ndld-flow runs`."""

    run: str
    """`<recipe>/<id>`."""
    kind: Literal["run", "sweep"] = "run"
    started_at: datetime
    passed: bool
    """Of a sweep: whether any point did."""
    wall_s: float
    tags: tuple[str, ...]
    """Those of its points too, as `fast #17`."""
    folder: str
    command: tuple[str, ...]
    points: int = 0
    """Of a sweep."""
    best: int | None = None
    """Number of a sweep's best point."""


def list_runs(outputs: Outputs, recipe: str = "*") -> list[RunSummary]:
    """All finished runs and sweeps (of one recipe), newest first. One whose record cannot be read is left out."""
    tags = outputs.tagged()
    found = [
        *_read_all(((folder, folder / RUN_RECORD) for folder in outputs.folders(recipe)), tags),
        *_read_all(((folder, folder / SWEEP_RECORD) for folder in outputs.sweep_folders(recipe)), tags),
    ]
    return sorted(found, key=lambda one: one.started_at.timestamp(), reverse=True)


def _read_all(records: Iterator[tuple[Path, Path]], tags: dict[str, Path]) -> Iterator[RunSummary]:
    for folder, path in records:
        try:
            record = json.loads(path.read_bytes())
            is_sweep = path.name == SWEEP_RECORD
            yield RunSummary(
                run=name_folder(folder),
                kind="sweep" if is_sweep else "run",
                started_at=record["started_at"],
                passed=record["passed"],
                wall_s=record["wall_s"],
                tags=tuple(_tags_of(folder.resolve(), tags)),
                folder=str(folder),
                command=tuple(record["command"]),
                points=len(record["points"]) if is_sweep else 0,
                best=record["best"] if is_sweep else None,
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _tags_of(folder: Path, tags: dict[str, Path]) -> Iterator[str]:
    for name, tagged in tags.items():
        if tagged == folder:
            yield name
        elif folder in tagged.parents:
            yield f"{name} #{int(tagged.name)}"
