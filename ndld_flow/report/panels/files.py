"""Links to the files of a run, in its folder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ndld_flow.base.text import short_name
from ndld_flow.records.document import is_inner_path
from ndld_flow.records.run_folder import OPTIMIZATION_RECORD, RunDocuments, find_file
from ndld_flow.records.run_record import RunStep
from ndld_flow.report.panel import Panel

_OF_RUN = ("run.json", "recipe.yaml", "command.txt", "log.txt", "summary.md")
_RESULTS = {"onnx": "model.onnx", "engine": "model.engine"}
"""Kind of an artifact that is a result -> its main file."""
_SHOWN = 30
"""Files of a step that are listed; activations may have hundreds."""


@dataclass(frozen=True)
class FileLink:
    """A file of the run."""

    name: str
    link: str
    """Relative to the report."""
    size_bytes: int | None = None


@dataclass(frozen=True)
class FolderView:
    """The files of a step, or of the run itself."""

    step: str
    """Empty for the run's own files."""
    files: tuple[FileLink, ...]
    more: int
    """Number of files that are not listed."""


def collect_files(documents: RunDocuments) -> tuple[FolderView, ...]:
    """Return links to the files of the run and of each finished step; none if the run has no folder."""
    if documents.folder is None:
        return ()
    names = (*_OF_RUN, OPTIMIZATION_RECORD) if documents.optimization is not None else _OF_RUN
    own = FolderView("", tuple(FileLink(name, f"./{name}") for name in names), 0)
    return (own, *(_folder_of(step, documents.folder) for step in documents.run.steps if step.record is not None))


def result_of(documents: RunDocuments, step: str) -> FileLink | None:
    """Return the model with the size of its weights, the engine, or the list of the package with the size of all files.

    None for other steps, and if the run has no folder.
    """
    finished = next((each for each in documents.run.steps if each.name == step and each.record is not None), None)
    if finished is None or finished.record is None or documents.folder is None or not is_inner_path(step):
        return None
    artifact = finished.record.artifact
    main = _RESULTS.get(artifact.kind)
    if main is None:
        return None
    relative = find_file(documents.folder / step, main).relative_to(documents.folder)
    engine_bytes = next((file.size_bytes for file in artifact.files if file.path == "model.engine"), None)
    return FileLink(main, f"./{quote(relative.as_posix())}", engine_bytes or artifact.size_bytes)


def _folder_of(step: RunStep, folder: Path) -> FolderView:
    assert step.record is not None
    listed = step.record.artifact.files if is_inner_path(step.name) else ()
    links = []
    for file in listed[:_SHOWN]:
        relative = find_file(folder / step.name, file.path).relative_to(folder)
        links.append(FileLink(short_name(file.path), f"./{quote(relative.as_posix())}", file.size_bytes))
    known = {file.path for file in listed}
    others: list[str] = []  # the step's record, its log, and what was drawn from its artifact
    if is_inner_path(step.name):
        with contextlib.suppress(OSError):
            others = sorted(path.name for path in (folder / step.name).iterdir() if path.is_file())[:_SHOWN]
    links += [FileLink(short_name(name), f"./{quote(step.name)}/{quote(name)}") for name in others if name not in known]
    return FolderView(short_name(step.name), tuple(links), len(listed) - _SHOWN if len(listed) > _SHOWN else 0)


PANEL = Panel("Files", collect_files, after="repeat", closed=True)
