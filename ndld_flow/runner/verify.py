"""Check every stored file against its digest or its seal, and the copies in the folders of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ndld_flow.base.errors import RequestError
from ndld_flow.records.base import Record
from ndld_flow.records.outcome import is_complete
from ndld_flow.report.run_folder import read_run_record
from ndld_flow.runner.check_folder import damaged_copies
from ndld_flow.runner.runs import Outputs, name_folder
from ndld_flow.store.digest import digest_file
from ndld_flow.store.store import Store


class Verified(Record):
    """What a full check of the store, and of what runs have copied from it, found."""

    object_count: int
    checked_bytes: int
    damaged: tuple[str, ...]
    """Digests of objects whose files are not what they were; they were set aside and are made again when needed."""
    damaged_records: tuple[str, ...] = ()
    """Keys of records that cannot be read; the same was done with them."""
    damaged_copies: tuple[str, ...] = ()
    """Files in the folders of runs that are not what they were, and what is wrong with each; they were left alone."""

    @property
    def all_well(self) -> bool:
        return not (self.damaged or self.damaged_records or self.damaged_copies)


def verify_outputs(outputs: Outputs, progress: Callable[[int, int, str], None]) -> Verified:
    """Hash every object and every copy anew, trusting nothing remembered, and set aside what differs in the store.

    Raises OutputsError where nothing can be written there.
    """
    outputs.prepare()
    store = outputs.store
    with store.locks.collecting():  # what gc removes meanwhile would look damaged
        folders = sorted((store.root / "objects").glob("*/*"))
        damaged, checked_bytes = [], 0
        for index, folder in enumerate(folders):
            progress(index, len(folders), folder.name[:16])
            if store.set_aside(folder.name, digest_file) is not None:
                damaged.append(folder.name)
            else:
                checked_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        progress(len(folders), len(folders), "done")
        return Verified(
            object_count=len(folders),
            checked_bytes=checked_bytes,
            damaged=tuple(damaged),
            damaged_records=tuple(_set_records_aside(store)),
            damaged_copies=tuple(_find_damaged_copies(outputs)),
        )


def _set_records_aside(store: Store) -> Iterator[str]:
    for path in sorted((store.root / "records").glob("*/*.json")):
        if store.find_broken_record(path.stem):
            store.clear(path.stem)
            yield path.stem


def _find_damaged_copies(outputs: Outputs) -> Iterator[str]:
    for folder in outputs.folders():
        try:
            run = read_run_record(folder)
        except RequestError:
            continue  # `runs` tells of it
        if not is_complete(run.outcome):
            continue  # there may have been no room, or no time, for its files
        yield from (f"{name_folder(folder)}/{said}" for said in damaged_copies(run, folder, digest_file))
