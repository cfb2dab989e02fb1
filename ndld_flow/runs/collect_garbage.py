"""Remove everything that no kept run or sweep needs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base import users
from ndld_flow.base.errors import RequestError
from ndld_flow.records.document import Record
from ndld_flow.records.run_folder import RUN_RECORD, read_run_record, read_sweep_record
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import POINTS, Outputs, folder_names, name_folder, name_in_history
from ndld_flow.runs.run_lines import Needs, read_runs
from ndld_flow.store.files import find_leftovers, move_aside, remove_any, remove_folder
from ndld_flow.store.locks import WAITS
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.runtimes.environments import KeptLibrary

_BATCH = 100
_LIBRARY_KEPT_S = 24 * 3600.0
_DAMAGE_KEPT_S = 24 * 3600.0
"""Minimum age at which damaged files are removed while a run is active: the user has just read their path."""


class Freed(Record):
    """Everything that `gc` removed, or would remove."""

    runs: tuple[str, ...]
    sweeps: tuple[str, ...] = ()
    objects: tuple[str, ...]
    record_count: int
    freed_bytes: int
    dry_run: bool
    runs_at_work: int = 0
    """Runs, sweeps and plans that were active in the store when `gc` started."""
    in_use: tuple[str, ...] = ()
    """Objects that no finished run needs, and that were kept because an active run uses them."""
    in_use_bytes: int = 0
    keeps_libraries: bool = False
    """True if the user's cache folder has libraries that runs have created. `gc --libraries` measures them: counting
    their files would take most of the time here."""


class LibrariesFreed(Record):
    """Libraries that `gc --libraries` removed, or would remove."""

    libraries: tuple[str, ...]
    """Their folders."""
    freed_bytes: int
    kept_bytes: int
    """Size of the libraries that were used lately."""
    dry_run: bool


@dataclass
class _Needed:
    """Keys and digests that kept runs and sweeps name."""

    keys: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)

    def add(self, needs: Needs) -> None:
        """Add the keys and digests that a run needs."""
        self.keys |= needs[0]
        self.digests |= needs[1]

    def add_folder_of_sweep(self, folder: Path, store: Store) -> None:
        """Add what a sweep and its points need. Raises RequestError if a record cannot be read."""
        for point in sorted((folder / POINTS).glob(f"*/{RUN_RECORD}")):
            self.add(read_run_record(point.parent).needs())
        # The results that no point's record names: those of failed points, and of repeated measurements.
        keys = {step.key for point in read_sweep_record(folder).points for step in point.steps if step.key}
        for key in keys - self.keys:
            record = store.read_record(key)
            if record is not None:
                self.keys.add(key)
                self.digests.add(record.artifact.digest)


def collect_garbage(
    outputs: Outputs, keep: int | None = None, *, dry_run: bool = False, report: Callable[[str], None] = lambda _: None
) -> Freed:
    """Remove objects and records that neither a kept run or sweep nor an active run needs.

    All runs are kept unless `keep` is given: the number of the newest runs, and of the newest sweeps, of each recipe to
    keep in addition to tagged ones, and as many newer ones that did not finish. A sweep with a tagged point is kept.
    `report` is called when it waits for another `gc` or `verify`.
    Raises RequestError if the record of a run or sweep is missing or unreadable, because its results are then
    unknown; OutputsError if something may not be removed.
    """
    outputs.prepare()
    store = outputs.store
    waits = lambda holder: report(f"{WAITS}{holder}")  # noqa: E731
    with explaining_disk("gc", outputs.root), store.locks.collecting("gc", waits):
        active = len(store.locks.leased("run"))
        for folder, name in outputs.damaged_folders():
            raise RequestError(
                f"{folder}: its {name} is missing, so its results are unknown. Run its recipe again if you need it, "
                "remove the folder, then run gc again."
            )
        dropped_runs, dropped_sweeps, dropped_bytes = _drop_folders(outputs, keep, dry_run=dry_run)
        needed = _read_runs(outputs, {*outputs.folders()} - {*dropped_runs}, by_lines=dry_run)
        for folder in {*outputs.sweep_folders()} - {*dropped_sweeps}:
            needed.add_folder_of_sweep(folder, store)
        records = _remove_records(
            store, needed, dry_run=dry_run
        )  # first, so that no record names an object that is gone
        removed, in_use = _remove_objects(store, needed, dry_run=dry_run)
        leftovers = [
            *_find_damage(store, older_than_s=_DAMAGE_KEPT_S if active else 0.0),
            *find_leftovers(outputs.root, is_result(outputs)),
        ]
        leftover_bytes = sum(map(_size_bytes, leftovers))
        if not dry_run:
            for path in leftovers:
                remove_any(path)
            for name in ("digests", "externals"):  # cheap to rebuild, and their sources may be gone
                remove_folder(store.root / name)
            store.locks.remove_unheld()
    return Freed(
        runs=tuple(map(name_folder, dropped_runs)),
        sweeps=tuple(map(name_folder, dropped_sweeps)),
        objects=tuple(removed),
        record_count=records,
        freed_bytes=dropped_bytes + sum(removed.values()) + leftover_bytes,
        dry_run=dry_run,
        runs_at_work=active,
        in_use=tuple(in_use),
        in_use_bytes=sum(in_use.values()),
        keeps_libraries=_may_keep_libraries() and bool(find_kept_libraries()),
    )


def _may_keep_libraries() -> bool:
    """Return whether the user's cache folder may have libraries: importing all runtimes takes a tenth of a second."""
    try:
        with os.scandir(users.cache_folder()) as entries:
            return any(entry.name != "commands" and any(Path(entry.path).glob("*/*")) for entry in entries)
    except (OSError, RuntimeError):
        return False


def find_kept_libraries() -> list[KeptLibrary]:
    """Return the environments and libraries that runs have created in the user's cache folder, of all runtimes."""
    from ndld_flow.runtimes.environments import find_kept_environments
    from ndld_flow.runtimes.registry import find_runtimes

    return [*find_kept_environments(), *(each for runtime in find_runtimes() for each in runtime.kept_libraries())]


def collect_libraries(max_age_s: float = 0.0, *, dry_run: bool = False) -> LibrariesFreed:
    """Remove the libraries that runs have created in the user's cache folder and not used for `max_age_s`.

    Those of the last day stay: a run may be using them. They are created again when a recipe needs them. Raises
    OutputsError if something may not be removed.
    """
    removed, freed_bytes, kept_bytes = [], 0, 0
    for library in find_kept_libraries():
        with explaining_disk("gc --libraries", library.folder), contextlib.suppress(FileNotFoundError):
            size_bytes = library.size_bytes
            if library.in_use or time.time() - library.used_at < max(max_age_s, _LIBRARY_KEPT_S):
                kept_bytes += size_bytes
                continue
            if not dry_run:
                library.remove()
            removed.append(str(library.folder))
            freed_bytes += size_bytes
    return LibrariesFreed(libraries=tuple(removed), freed_bytes=freed_bytes, kept_bytes=kept_bytes, dry_run=dry_run)


def _drop_folders(outputs: Outputs, keep: int | None, *, dry_run: bool) -> tuple[list[Path], list[Path], int]:
    """Remove the runs and sweeps that are not kept; return them, and their size.

    They are renamed while no process publishes or tags, and deleted afterwards.
    """
    if keep is None:
        return [], [], 0
    with outputs.store.locks.hold("publish"):
        runs, sweeps = (_choose(list(found), keep, outputs) for found in (outputs.folders(), outputs.sweep_folders()))
        dropped_bytes = sum(map(_size_bytes, (*runs, *sweeps)))
        moved = [] if dry_run else [move_aside(folder, folder.parent) for folder in (*runs, *sweeps)]
        if not dry_run:
            outputs.history.forget((*runs, *sweeps))
    for folder in filter(None, moved):
        remove_folder(folder)
    return runs, sweeps, dropped_bytes


def _remove_records(store: Store, needed: _Needed, *, dry_run: bool) -> int:
    """Remove the records of keys that no run needs; return their number."""
    files = _names_below(store.root / "records")
    paths = [
        Path(path) for name, path in files if name.endswith(".json") and name.removesuffix(".json") not in needed.keys
    ]
    count = 0
    for batch in _batches(paths):
        with store.locks.used() as used:
            unused = [path for path in batch if path.stem not in used]
            for path in () if dry_run else unused:
                path.unlink(missing_ok=True)
        count += len(unused)
    return count


def _remove_objects(store: Store, needed: _Needed, *, dry_run: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Remove the objects that no run needs; return the size of each, and that of each which is in use."""
    folders = [Path(path) for name, path in _names_below(store.root / "objects") if name not in needed.digests]
    removed, kept, named = dict[str, int](), dict[str, int](), dict[str, str]()
    for batch in _batches(folders):
        sizes = {folder: _size_bytes(folder) for folder in batch}
        with store.locks.used() as used:
            # A worker lists a digest until it has written the record; its run has listed the record's key before.
            for key in used - named.keys():
                record = store.read_record(key)
                if record is not None:
                    named[key] = record.artifact.digest
            in_use = used.union(named[key] for key in used & named.keys())
            unused = [folder for folder in batch if folder.name not in in_use]
            moved = [] if dry_run else [move_aside(folder, store.root) for folder in unused]
        for folder in filter(None, moved):
            remove_folder(folder)
        for folder in batch:
            (kept if folder.name in in_use else removed)[folder.name] = sizes[folder]
    return removed, kept


def _names_below(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of everything in the folders of a folder."""
    for name in folder_names(folder, links=True):
        with contextlib.suppress(OSError), os.scandir(folder / name) as entries:
            yield from ((entry.name, entry.path) for entry in entries)


def _batches(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Split paths into batches: runs wait only while a batch is removed."""
    return (paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH))


def _find_damage(store: Store, older_than_s: float) -> list[Path]:
    """Return damaged files that were set aside at least `older_than_s` seconds ago."""
    damaged = []
    for path in (store.root / "damaged").glob("*"):
        with contextlib.suppress(OSError):
            if not older_than_s or time.time() - path.lstat().st_ctime > older_than_s:
                damaged.append(path)
    return damaged


def _choose(folders: Sequence[Path], keep: int, outputs: Outputs) -> list[Path]:
    """Return the folders of each recipe that are neither tagged nor among the newest; `folders` has the oldest
    first."""
    tagged = {kept for folder in outputs.tagged().values() for kept in (folder, *folder.parents)}
    loose: dict[str, list[Path]] = {}
    for folder in folders:
        if folder.resolve() not in tagged and not outputs.is_alive(folder):
            loose.setdefault(folder.parent.name, []).append(folder)
    return [folder for name in sorted(loose) for folder in _older(loose[name], keep, outputs)]


def _older(folders: Sequence[Path], keep: int, outputs: Outputs) -> list[Path]:
    """Return the folders before the newest `keep` finished ones, without the newest `keep` unfinished ones.

    Failures therefore never displace results.
    """
    older, complete, failed = [], 0, 0
    for folder in reversed(folders):
        if complete >= keep:
            older.append(folder)  # without reading their records: there may be thousands
        elif outputs.is_complete(folder):
            complete += 1
        elif failed < keep:
            failed += 1
        else:
            older.append(folder)
    return older[::-1]


def _read_runs(outputs: Outputs, folders: Iterable[Path], *, by_lines: bool) -> _Needed:
    """Return what runs need: from their records, because whoever may write the lines could have results deleted.

    With `by_lines`, for a look only, from the lines.
    """
    needed, known = _Needed(), dict[str, Needs | None]()
    if by_lines:
        known = read_runs(outputs, folder_names(outputs.runs), lambda _, line: line.needs())
    for folder in folders:
        needed.add(known.get(name_in_history(folder)) or read_run_record(folder).needs())
    return needed


def is_result(outputs: Outputs) -> Callable[[str], bool]:
    """Return whether a path is the folder of a stored artifact, or of a step in a run: their files may have any
    names."""
    depths = {outputs.store.root / "objects": 1, outputs.runs: 2, outputs.sweeps: 4}
    starts = [(f"{folder}{os.sep}", depth) for folder, depth in depths.items()]
    return lambda path: any(path.startswith(start) and path.count(os.sep, len(start)) == at for start, at in starts)


def _size_bytes(path: Path) -> int:
    below = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(each.lstat().st_size for each in below if each.is_file())
