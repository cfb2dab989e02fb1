"""Free what no kept run or sweep needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.artifacts.files import discard_folder, find_leftovers, remove_any, remove_folder
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import RequestError
from ndld_flow.records.base import Record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.run_folder import RUN_RECORD, read_run_record
from ndld_flow.report.sweep.read import read_sweep_record
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.runs import POINTS, Outputs, name_folder


class Freed(Record):
    """What `gc` removed, or would remove."""

    runs: tuple[str, ...]
    sweeps: tuple[str, ...] = ()
    objects: tuple[str, ...]
    record_count: int
    freed_bytes: int
    dry_run: bool


@dataclass
class _Needed:
    """Keys and digests that kept runs and sweeps name."""

    keys: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)

    def add_run(self, run: RunRecord) -> None:
        self.digests |= {source.artifact.digest for source in (run.source, *run.models.values())}
        records = [step.record for step in run.steps if step.record is not None]
        self.keys |= {record.key for record in records}
        self.digests |= {record.artifact.digest for record in records}

    def add_sweep(self, sweep: SweepRecord, store: Store) -> None:
        """What its points' own records do not name: of points that failed, and of what was measured twice."""
        for key in {step.key for point in sweep.points for step in point.steps if step.key} - self.keys:
            record = store.read_record(key)
            if record is not None:
                self.keys.add(key)
                self.digests.add(record.artifact.digest)


def collect_garbage(outputs: Outputs, keep: int | None = None, *, dry_run: bool = False) -> Freed:
    """Remove objects and records that no kept run or sweep needs.

    All are kept unless `keep` says how many of the newest runs, and of the newest sweeps, of each recipe to keep
    besides the tagged ones; a sweep of which a point is tagged is kept whole.
    Raises RequestError while a run, a plan or a check works in the store, or when the record of a run or sweep is gone
    or cannot be read (what it needs is then not known); OutputsError when something may not be removed.
    """
    outputs.prepare()
    store = outputs.store
    with explaining_disk("gc", outputs.root), store.locks.without_runs() as idle:
        if not idle:
            raise RequestError(
                f"{store.root}: a run works in this store, or plan or verify. Wait for it to end, then run gc again."
            )
        _refuse_lost_records(outputs)
        runs, sweeps = list(outputs.folders()), list(outputs.sweep_folders())
        dropped_runs, dropped_sweeps = (_choose(folders, keep, outputs) for folders in (runs, sweeps))
        dropped = [*dropped_runs, *dropped_sweeps]
        needed = _find_needed({*runs, *sweeps} - {*dropped}, store)
        objects = [folder for folder in (store.root / "objects").glob("*/*") if folder.name not in needed.digests]
        records = [path for path in (store.root / "records").glob("*/*.json") if path.stem not in needed.keys]
        leftovers = [*(store.root / "damaged").glob("*"), *find_leftovers(outputs.root)]
        freed_bytes = sum(map(_size_bytes, [*dropped, *objects, *leftovers]))
        if not dry_run:
            for record in records:  # first, so that no record ever names an object that is gone
                record.unlink(missing_ok=True)
            for folder in dropped:
                discard_folder(folder, folder.parent)
            for folder in objects:
                discard_folder(folder, store.root)
            for path in leftovers:
                remove_any(path)
            outputs.history.forget(dropped)
            _drop_notes(store)
            store.locks.remove_unheld()
    return Freed(
        runs=tuple(map(name_folder, dropped_runs)),
        sweeps=tuple(map(name_folder, dropped_sweeps)),
        objects=tuple(folder.name for folder in objects),
        record_count=len(records),
        freed_bytes=freed_bytes,
        dry_run=dry_run,
    )


def _refuse_lost_records(outputs: Outputs) -> None:
    for folder, record in outputs.damaged_folders():
        raise RequestError(
            f"{folder}: its {record} is gone, so that nobody knows which results it needs. Run its recipe again if it "
            "is wanted, remove the folder, then run gc again."
        )


def _choose(folders: Sequence[Path], keep: int | None, outputs: Outputs) -> list[Path]:
    """Of each recipe those that are neither tagged nor among the newest; folders come oldest first."""
    if keep is None:
        return []
    tagged = {kept for folder in outputs.tagged().values() for kept in (folder, *folder.parents)}
    loose: dict[str, list[Path]] = {}
    for folder in folders:
        if folder.resolve() not in tagged:
            loose.setdefault(folder.parent.name, []).append(folder)
    return [folder for name in sorted(loose) for folder in loose[name][: max(len(loose[name]) - keep, 0)]]


def _find_needed(folders: Iterable[Path], store: Store) -> _Needed:
    needed = _Needed()
    for folder in folders:
        if (folder / RUN_RECORD).is_file():
            needed.add_run(read_run_record(folder))
            continue
        for point in sorted((folder / POINTS).glob(f"*/{RUN_RECORD}")):
            needed.add_run(read_run_record(point.parent))
        needed.add_sweep(read_sweep_record(folder), store)
    return needed


def _drop_notes(store: Store) -> None:
    """Composed recipes and remembered digests are cheap to make again, and their sources may be long gone."""
    for name in ("recipes", "digests", "externals"):
        remove_folder(store.root / name)


def _size_bytes(path: Path) -> int:
    below = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(each.lstat().st_size for each in below if each.is_file())
