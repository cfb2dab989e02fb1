"""Free what no kept run needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.artifacts.files import remove_folder
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import RequestError
from ndld_flow.records.base import Record
from ndld_flow.report.run_folder import read_run_record
from ndld_flow.runner.runs import Outputs


class Freed(Record):
    """What `gc` removed, or would remove."""

    runs: tuple[str, ...]
    objects: tuple[str, ...]
    record_count: int
    freed_bytes: int
    dry_run: bool


@dataclass
class _Needed:
    """Keys and digests that kept runs name."""

    keys: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)


def collect_garbage(outputs: Outputs, keep: int | None = None, *, dry_run: bool = False) -> Freed:
    """Remove objects and records that no kept run needs.

    All runs are kept unless `keep` says how many of the newest of each recipe to keep besides the tagged ones.
    Raises RequestError while a run works in the store, or when a run's record cannot be read (what it needs is then
    not known).
    """
    store = outputs.store
    with store.without_runs() as idle:
        if not idle:
            raise RequestError(f"{store.root}: a run works in this store. Wait for it to end, then run gc again.")
        dropped = _choose_runs(outputs, keep)
        needed = _find_needed(folder for folder in outputs.folders() if folder not in dropped)
        objects = [folder for folder in (store.root / "objects").glob("*/*") if folder.name not in needed.digests]
        records = [path for path in (store.root / "records").glob("*/*.json") if path.stem not in needed.keys]
        leftovers = list((store.root / "damaged").glob("*"))
        freed_bytes = sum(_size_bytes(folder) for folder in [*dropped, *objects, *leftovers])
        if not dry_run:
            for record in records:  # first, so that no record ever names an object that is gone
                record.unlink(missing_ok=True)
            for folder in [*dropped, *objects, *leftovers]:
                remove_folder(folder)
            _drop_notes(store)
    return Freed(
        runs=tuple(f"{folder.parent.name}/{folder.name}" for folder in dropped),
        objects=tuple(folder.name for folder in objects),
        record_count=len(records),
        freed_bytes=freed_bytes,
        dry_run=dry_run,
    )


def _choose_runs(outputs: Outputs, keep: int | None) -> list[Path]:
    if keep is None:
        return []
    tagged = set(outputs.tagged().values())
    recipes = sorted({folder.parent.name for folder in outputs.folders()})
    dropped = []
    for recipe in recipes:
        loose = [folder for folder in outputs.folders(recipe) if folder.resolve() not in tagged]
        dropped += loose[: max(len(loose) - keep, 0)]
    return dropped


def _find_needed(folders: Iterable[Path]) -> _Needed:
    needed = _Needed()
    for folder in folders:
        run = read_run_record(folder)
        needed.digests |= {source.artifact.digest for source in (run.source, *run.models.values())}
        records = [step.record for step in run.steps if step.record is not None]
        needed.keys |= {record.key for record in records}
        needed.digests |= {record.artifact.digest for record in records}
    return needed


def _drop_notes(store: Store) -> None:
    """Composed recipes and remembered digests are cheap to make again, and their sources may be long gone."""
    for name in ("recipes", "digests", "externals"):
        remove_folder(store.root / name)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
