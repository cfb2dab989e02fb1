"""Check stored files against their digests and seals, and the copies in the folders of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import FormatError, RequestError
from ndld_flow.execution.keys import find_misfit
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.records.document import Record
from ndld_flow.records.outcomes import is_complete
from ndld_flow.records.run_folder import RUN_RECORD, STORED, read_run_record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runs.outputs import Outputs, name_folder
from ndld_flow.store.digest import digest_file, find_damage
from ndld_flow.store.kinds import LOG_FILE
from ndld_flow.store.locks import WAITS
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.records.sweep import SweepRecord

_PAGE = "report.html"
_TEXTS = ("recipe.yaml", "command.txt", LOG_FILE)
_END = b"</html>"
_END_BYTES = 64


def find_run_damage(run: RunRecord, folder: Path, digest: Callable[[Path], str]) -> str:
    """Return the first damage of a run's folder, in a few words; empty if there is none.

    Its report must be complete, its texts must exist, and its artifacts must match their digests by `digest`.
    """
    return next(chain(_damaged_texts(folder), damaged_copies(run, folder, digest)), "")


def find_sweep_damage(sweep: SweepRecord, folder: Path) -> str:
    """Return the first damage of a sweep's folder, in a few words; empty if there is none."""
    points = [folder / point.folder for point in sweep.points if point.folder]
    missing = (f"{point.name}/{RUN_RECORD}: it is missing" for point in points if not (point / RUN_RECORD).is_file())
    damaged = (f"{point.name}/{damage}" for point in points for damage in _damaged_texts(point))
    return next(chain(_damaged_texts(folder), missing, damaged), "")


def damaged_copies(run: RunRecord, folder: Path, digest: Callable[[Path], str]) -> Iterator[str]:
    """Yield the damaged files of artifacts in a run's folder: `half/model.onnx: 812 of 1,204 bytes`."""
    for step in run.steps:
        if not (folder / step.name / STORED).is_symlink():
            for file in step.record.artifact.files if step.record is not None else ():
                damage = find_damage(folder / step.name / file.path, file, digest)
                if damage:
                    yield f"{step.name}/{file.path}: {damage}"


def _damaged_texts(folder: Path) -> Iterator[str]:
    for name in _TEXTS:
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0:
            yield f"{name}: it is missing"
    if not _is_complete_page(folder / _PAGE):
        yield f"{_PAGE}: its end is missing"


def _is_complete_page(page: Path) -> bool:
    try:
        with page.open("rb") as file:
            file.seek(-min(_END_BYTES, page.stat().st_size), 2)
            return _END in file.read()
    except OSError:
        return False


class Verified(Record):
    """The result of a full check of the store, and of the copies in the folders of runs."""

    object_count: int
    checked_bytes: int
    damaged: tuple[str, ...]
    """Digests of damaged objects; they were set aside and are recomputed when needed."""
    damaged_records: tuple[str, ...] = ()
    """Keys of records that cannot be read; they were set aside too."""
    damaged_copies: tuple[str, ...] = ()
    """Damaged files in the folders of runs, with the damage; they were left as they are."""
    other_versions: tuple[str, ...] = ()
    """Paths of records of another version of ndld-flow: they were not checked, nor the copies that they name."""

    @property
    def is_damaged(self) -> bool:
        return bool(self.damaged or self.damaged_records or self.damaged_copies)

    @property
    def all_well(self) -> bool:
        """True if everything was checked and nothing is damaged."""
        return not (self.is_damaged or self.other_versions)


def verify_outputs(outputs: Outputs, report: Callable[[str], None] = lambda _: None) -> Verified:
    """Hash every object and every copy, without remembered digests, and set damaged objects of the store aside.

    `report` is called when it waits for another `gc` or `verify`. Raises OutputsError if nothing can be written there.
    """
    outputs.prepare()
    store = outputs.store
    wait = lambda holder: report(f"{WAITS}{holder}")  # noqa: E731
    with store.locks.collecting("verify", wait):  # objects that gc removes at the same time would seem damaged
        folders = sorted((store.root / "objects").glob("*/*"))
        damaged, checked_bytes = [], 0
        for folder in folders:
            if store.set_aside(folder.name, digest_file) is not None:
                damaged.append(folder.name)
            else:
                checked_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        others = list[Path]()
        return Verified(
            object_count=len(folders),
            checked_bytes=checked_bytes,
            damaged=tuple(damaged),
            damaged_records=tuple(_clear_damaged_records(store, others)),
            damaged_copies=tuple(_find_damaged_copies(outputs, others)),
            other_versions=tuple(map(str, others)),
        )


def _clear_damaged_records(store: Store, others: list[Path]) -> Iterator[str]:
    """Set the damaged records of the store aside, and yield their keys; those of another version come to `others`."""
    types = StepTypes()
    for path in sorted((store.root / "records").glob("*/*.json")):
        try:
            fault = _find_record_fault(path.stem, store, types)
        except FormatError:
            others.append(path)
            continue
        if fault:
            store.clear(path.stem, fault)
            yield path.stem


def _find_record_fault(key: str, store: Store, types: StepTypes) -> str:
    """Return why a record of the store cannot be that of its key, in a few words; empty if it can."""
    fault = store.find_broken_record(key)
    record = None if fault else store.read_record(key)
    step_type = types.find(record.parts.step) if record is not None else None
    if record is None or step_type is None:  # the code of a user's step is not here
        return fault
    return find_misfit(record, step_type.cls.kinds()[1])


def _find_damaged_copies(outputs: Outputs, others: list[Path]) -> Iterator[str]:
    """Yield the damaged copies in the folders of runs; records of another version come to `others`."""
    for folder in outputs.folders():
        try:
            run = read_run_record(folder)
        except FormatError:
            others.append(folder / RUN_RECORD)
            continue
        except RequestError:
            continue  # `runs` lists it as damaged
        if not is_complete(run.outcome):
            continue  # its files may be incomplete
        yield from (f"{name_folder(folder)}/{damage}" for damage in damaged_copies(run, folder, digest_file))
