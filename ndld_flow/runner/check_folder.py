"""Whether the folder of a finished run or sweep is as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from ndld_flow.records.run_record import RunRecord
from ndld_flow.records.step_record import RunStep
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.run_folder import RUN_RECORD, STORED
from ndld_flow.store.digest import find_damage
from ndld_flow.store.kinds import LOG_FILE

_PAGE = "report.html"
_TEXTS = ("recipe.yaml", "command.txt", LOG_FILE)
_END = b"</html>"
_END_BYTES = 64


def find_run_damage(run: RunRecord, folder: Path, digest: Callable[[Path], str]) -> str:
    """What is wrong with a run's folder, in a few words; empty where it is whole.

    Its report must have its end, its texts must be there, and its artifacts be what they were, each by its `digest`.
    """
    return next(chain(_damaged_texts(folder), damaged_copies(run, folder, digest)), "")


def find_sweep_damage(sweep: SweepRecord, folder: Path) -> str:
    """What is wrong with a sweep's folder, in a few words; empty where it is whole. Its artifacts are the store's."""
    points = [folder / point.folder for point in sweep.points if point.folder]
    lacking = (f"{point.name}/{RUN_RECORD}: it is gone" for point in points if not (point / RUN_RECORD).is_file())
    torn = (f"{point.name}/{said}" for point in points for said in _damaged_texts(point))
    return next(chain(_damaged_texts(folder), lacking, torn), "")


def damaged_copies(run: RunRecord, folder: Path, digest: Callable[[Path], str]) -> Iterator[str]:
    """The artifacts' files in a run's folder that are not what they were: `half/model.onnx: 812 of 1,204 bytes`."""
    for step in run.steps:
        if not (folder / step.name / STORED).is_symlink():
            yield from _damaged_files(step, folder / step.name, digest)


def _damaged_files(step: RunStep, folder: Path, digest: Callable[[Path], str]) -> Iterator[str]:
    for file in step.record.artifact.files if step.record is not None else ():
        damage = find_damage(folder / file.path, file, digest)
        if damage:
            yield f"{step.name}/{file.path}: {damage}"


def _damaged_texts(folder: Path) -> Iterator[str]:
    for name in _TEXTS:
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0:
            yield f"{name}: it is gone"
    if not _ends_whole(folder / _PAGE):
        yield f"{_PAGE}: its end is missing"


def _ends_whole(page: Path) -> bool:
    try:
        with page.open("rb") as file:
            file.seek(-min(_END_BYTES, page.stat().st_size), 2)
            return _END in file.read()
    except OSError:
        return False
