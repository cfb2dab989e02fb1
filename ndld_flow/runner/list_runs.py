"""List runs and sweeps, each with its outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.records.document import Record, read_tree
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD
from ndld_flow.records.run_record import RunOutcome
from ndld_flow.runner.outputs import POINTS, Outputs, name_folder, outcome_in

Tags = Mapping[Path, Sequence[str]]
"""Folder of a run or a sweep -> its tags, as displayed."""


class RunSummary(Record):
    """One line of `ndld-flow runs`."""

    run: str
    """`<recipe>/<id>`."""
    kind: Literal["run", "sweep"] = "run"
    started_at: datetime
    passed: bool
    """For a sweep, true if any point passed."""
    outcome: RunOutcome
    """`interrupted` also if the process was killed before it could record its end."""
    failed_in: tuple[str, ...] = ()
    """The steps that failed."""
    wall_s: float
    tags: tuple[str, ...]
    """Tags, including those of its points, such as `fast #17`."""
    folder: str
    command: tuple[str, ...]
    points: int = 0
    """Number of a sweep's points."""
    best: int | None = None
    """Number of a sweep's best point."""
    damage: str = ""
    """The damage of its folder, and the remedy; the other fields are then unknown."""


def list_runs(outputs: Outputs, recipe: str = "*") -> list[RunSummary]:
    """Return all runs and sweeps (of one recipe), newest first, with the damage of damaged ones."""
    tags = _tags_by_folder(outputs)
    if not recipe or "/" in recipe or "\0" in recipe:
        raise RequestError(f"runs of {recipe!r}: give a recipe, or a pattern such as `ppocr-*`.")
    summaries = [
        *_read_all(((folder, folder / RUN_RECORD) for folder in outputs.folders(recipe)), tags, outputs),
        *_read_all(((folder, folder / SWEEP_RECORD) for folder in outputs.sweep_folders(recipe)), tags, outputs),
        *(_describe_damage(folder, folder / record, tags) for folder, record in outputs.damaged_folders(recipe)),
    ]
    order = outputs.history.read()
    return sorted(
        summaries, key=lambda summary: (order.place(summary.run), summary.started_at.timestamp()), reverse=True
    )


def _read_all(records: Iterator[tuple[Path, Path]], tags: Tags, outputs: Outputs) -> Iterator[RunSummary]:
    for folder, path in records:
        try:
            record = read_tree(path)
            is_sweep = path.name == SWEEP_RECORD
            yield RunSummary(
                run=name_folder(folder),
                kind="sweep" if is_sweep else "run",
                started_at=record["started_at"],
                passed=record["passed"],
                outcome=outputs.outcome_now(outcome_in(record), folder),
                failed_in=tuple((record.get("failure") or {}).get("steps", ())),
                wall_s=record["wall_s"],
                tags=tuple(tags.get(folder.resolve(), ())),
                folder=str(folder),
                command=tuple(record["command"]),
                points=len(record["points"]) if is_sweep else 0,
                best=record["best"] if is_sweep else None,
            )
        except (OSError, ValueError, KeyError, TypeError):
            yield _describe_damage(folder, path, tags)


def _describe_damage(folder: Path, record: Path, tags: Tags) -> RunSummary:
    return RunSummary(
        run=name_folder(folder),
        kind="sweep" if record.name == SWEEP_RECORD else "run",
        started_at=datetime.fromtimestamp(folder.stat().st_mtime, UTC),
        passed=False,
        outcome="bug",
        wall_s=0.0,
        tags=tuple(tags.get(folder.resolve(), ())),
        folder=str(folder),
        command=(),
        damage=f"{record.name} {'cannot be read' if record.exists() else 'is missing'}. Its other files are unchanged: "
        f"run its recipe again, then remove {folder}.",
    )


def _tags_by_folder(outputs: Outputs) -> Tags:
    tags: dict[Path, list[str]] = {}
    for name, tagged in outputs.tagged().items():
        tags.setdefault(tagged, []).append(name)
        if tagged.parent.name == POINTS:
            tags.setdefault(tagged.parent.parent, []).append(f"{name} #{int(tagged.name)}")
    return tags
