"""List finished runs."""

from __future__ import annotations

import json
from datetime import datetime

from ndld_flow.records.base import Record
from ndld_flow.report.run_folder import RUN_RECORD
from ndld_flow.runner.runs import Outputs


class RunSummary(Record):
    """One line of `ndld-flow runs`."""

    run: str
    """`<recipe>/<id>`."""
    started_at: datetime
    passed: bool
    wall_s: float
    tags: tuple[str, ...]
    folder: str
    command: tuple[str, ...]


def list_runs(outputs: Outputs, recipe: str = "*") -> list[RunSummary]:
    """All finished runs (of one recipe), newest first. A run whose record cannot be read is left out."""
    tags: dict[str, list[str]] = {}
    for name, folder in outputs.tagged().items():
        tags.setdefault(str(folder), []).append(name)
    found = []
    for folder in outputs.folders(recipe):
        try:
            record = json.loads((folder / RUN_RECORD).read_bytes())
            found.append(
                RunSummary(
                    run=f"{folder.parent.name}/{folder.name}",
                    started_at=record["started_at"],
                    passed=record["passed"],
                    wall_s=record["wall_s"],
                    tags=tuple(tags.get(str(folder.resolve()), ())),
                    folder=str(folder),
                    command=tuple(record["command"]),
                )
            )
        except (OSError, ValueError, KeyError):
            continue
    return found[::-1]
