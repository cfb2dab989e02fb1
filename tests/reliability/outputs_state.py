"""Invariants of an outputs folder after any attack on its writers: every visible file is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.outcomes import is_complete
from ndld_flow.records.run_folder import COMPARISON_PAGE, read_run_record, read_sweep_record
from ndld_flow.records.run_record import RunStep
from ndld_flow.runs.collect_garbage import is_result
from ndld_flow.runs.outputs import LATEST, POINTS, Outputs
from ndld_flow.store.digest import describe_folder
from ndld_flow.store.files import find_leftovers, follow

_TEXTS = ("recipe.yaml", "command.txt", "log.txt")
_PAGE_END = "</html>"


def find_halves(outputs: Outputs) -> Iterator[str]:
    """Return the incomplete or damaged files of an outputs folder, in words."""
    for folder in outputs.folders():
        yield from _find_in_run(folder)
    for folder in outputs.sweep_folders():
        yield from _find_in_sweep(folder)
    yield from _find_unlisted(outputs)
    for folder in outputs.store.root.glob("objects/*/*"):
        if describe_folder("any", folder).digest != folder.name:
            yield f"{folder} is not what its digest says"
    for link in (*outputs.root.glob(f"*/*/{LATEST}"), *_seen(outputs.root, "tags/*")):
        if follow(link) is None:
            yield f"{link} points nowhere"


def _find_unlisted(outputs: Outputs) -> Iterator[str]:
    listed = {*outputs.folders(), *outputs.sweep_folders()}
    for folder in _seen(outputs.root, "runs/*/*", "sweeps/*/*"):
        if folder not in listed:
            yield f"{folder} is there and has no record"
    for folder in _seen(outputs.root, "comparisons/*"):
        if not _is_page(folder / COMPARISON_PAGE):
            yield f"{folder} has no whole page"


def _seen(root: Path, *patterns: str) -> Iterator[Path]:
    """Return the visible files, without hidden ones and links to them."""
    result = (path for pattern in patterns for path in root.glob(pattern))
    return (path for path in result if not path.name.startswith(".") and path.name != LATEST)


def _find_in_run(folder: Path) -> Iterator[str]:
    try:
        run = read_run_record(folder)
    except RequestError as error:
        yield str(error)
        return
    yield from (f"{folder / name} is not there" for name in _TEXTS if not (folder / name).is_file())
    if not is_complete(run.outcome):
        return  # there was no room, or no time, for the rest
    if not _is_page(folder / "report.html"):
        yield f"{folder}: its report is not whole"
    for step in run.steps:
        yield from _find_in_step(step, folder / step.name)


def _find_in_step(step: RunStep, folder: Path) -> Iterator[str]:
    if step.record is None:
        return
    if not (folder / "record.json").is_file() or (folder / "record.json").read_text() != step.record.to_json():
        yield f"{folder}: its record is not whole"
    kept = folder if any((folder / file.path).exists() for file in step.record.artifact.files) else folder / "stored"
    if not _holds(kept, step.record.artifact):
        yield f"{folder}: its files are not whole"


def _holds(folder: Path, artifact: ArtifactRecord) -> bool:
    result = (
        {file.path: file.digest for file in describe_folder(artifact.kind, folder).files} if folder.exists() else {}
    )
    return all(result.get(file.path) == file.digest for file in artifact.files)


def _find_in_sweep(folder: Path) -> Iterator[str]:
    try:
        record = read_sweep_record(folder)
    except RequestError as error:
        yield str(error)
        return
    if not _is_page(folder / "report.html"):
        yield f"{folder}: its report is not whole"
    for point in record.points:
        if point.folder:
            yield from _find_in_run(folder / point.folder)
    if len(list((folder / POINTS).glob("*"))) != sum(bool(point.folder) for point in record.points):
        yield f"{folder}: a point is missing"


def _is_page(path: Path) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8").rstrip().endswith(_PAGE_END)


def find_unfinished(outputs: Outputs) -> Iterator[str]:
    """Return leftovers of an earlier run that the next run must remove; `gc` removes temporary files after an hour."""
    yield from map(str, outputs.store.root.glob("building/*"))
    yield from map(str, outputs.store.root.glob("locks/building-*"))
    yield from (str(path) for path in outputs.root.glob(".*") if path.is_dir())


def age_leftovers(folder: Path) -> None:
    """Make the hidden files below a folder two hours older."""
    for path in folder.rglob(".*"):
        then = path.lstat().st_mtime - 7200
        os.utime(path, (then, then), follow_symlinks=False)


def list_leftovers(folder: Path) -> list[str]:
    """Return the files that `gc` must remove: temporary files, and the locks of dead runs."""
    return [
        str(path) for path in (*find_leftovers(folder, is_result(Outputs(folder))), *folder.glob("store/locks/run-*"))
    ]


def take_stock(folder: Path) -> dict[str, bytes]:
    """Return the contents of each file below a folder, and the target of each link."""
    stock = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            stock[path.relative_to(folder).as_posix()] = str(path.readlink()).encode()
        elif path.is_file():
            stock[path.relative_to(folder).as_posix()] = path.read_bytes()
    return stock
