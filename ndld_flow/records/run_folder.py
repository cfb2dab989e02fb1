"""Read the folders of runs and sweeps: their records and the documents that their steps wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ndld_flow.base.errors import FormatError, RequestError
from ndld_flow.base.text import short_name
from ndld_flow.records.document import AnyDocument, Document, find_documents, read_document

if TYPE_CHECKING:
    from ndld_flow.records.optimization import Optimization
    from ndld_flow.records.profile import Profile
    from ndld_flow.records.run_record import RunRecord, RunStep
    from ndld_flow.records.sweep import SweepRecord


def read_record(kind: type[AnyDocument], path: Path, absent: str, give: str, unreadable: str) -> AnyDocument:
    """Read a record from its folder.

    `absent` describes a folder without it, `give` the remedy, and `unreadable` a damaged file. Raises a `RequestError`
    if it is missing, cannot be read, or is of another version.
    """
    try:
        return read_document(kind, path)
    except OSError as error:
        raise RequestError(f"{path.parent} {absent}: {path.name} cannot be read ({error.strerror}). {give}") from error
    except ValidationError as error:
        raise RequestError(
            f"{path} {unreadable} this version can read: {first_problem(error)}. "
            "It was changed by another program, or is damaged."
        ) from error


def first_problem(error: OSError | ValidationError) -> str:
    """Return the location and the problem, without the invalid value."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = short_name(".".join(str(part) for part in first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


RUN_RECORD = "run.json"
"""The run's record, in its folder."""

OPTIMIZATION_RECORD = "optimization.json"
"""The record of `optimize`, in its own folder and in that of the run that proved the model."""

STORED = "stored"
"""A link in a step's folder to the stored artifact, if that was not copied."""


COMPARISON_PAGE = "comparison.html"
"""The page of a step that compares, in the step's folder."""


@dataclass(frozen=True)
class RunDocuments:
    """A run and its documents. Each kind is read from its files when it is first used."""

    run: RunRecord
    folder: Path | None = None
    """The run's folder; None if it has none."""
    object_folder: Callable[[str], Path] | None = None
    """Return an artifact's folder in the store by its digest: documents are then read from there, and documents that
    several runs share are read once."""
    known: dict[type[Document], dict[str, Any]] = field(default_factory=dict)
    """Kind -> step -> document, of the kinds that were read."""
    problems: dict[type[Document], list[str]] = field(default_factory=dict)
    """Kind -> a sentence for each damaged document, of the kinds that were read."""

    def of(self, kind: type[AnyDocument]) -> dict[str, AnyDocument]:
        """Return the documents of a kind by step name, in recipe order, without those that cannot be read."""
        if kind not in self.known:
            documents, problems = self.known.setdefault(kind, {}), self.problems.setdefault(kind, [])
            for step in self.run.steps:
                # A record can be edited: a step's name must not lead out of the run's folder.
                leads_out = step.name in ("", ".", "..") or any(sign in step.name for sign in "/\\\0")
                if step.outcome != "skipped" and not leads_out:
                    with _listing_problem(f"{short_name(step.name)}/{kind.file_name}", problems):
                        documents[step.name] = self._read(kind, step).usable()
        return self.known[kind]

    def _read(self, kind: type[AnyDocument], step: RunStep) -> AnyDocument:
        if self.object_folder is not None and step.record is not None:
            return read_stored(kind, self.object_folder(step.record.artifact.digest) / kind.file_name)
        if self.object_folder is not None or self.folder is None:
            raise FileNotFoundError
        return read_document(kind, find_file(self.folder / step.name, kind.file_name))

    @cached_property
    def optimization(self) -> Optimization | None:
        """Return the record of `optimize`, if it delivered the model of this run."""
        from ndld_flow.records.optimization import Optimization

        problems = self.problems[Optimization] = []
        if self.folder is not None:
            with _listing_problem(OPTIMIZATION_RECORD, problems):
                return read_document(Optimization, self.folder / OPTIMIZATION_RECORD).usable()
        return None

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return sentences about damaged documents of all kinds; the rest of the run can still be reported."""
        kinds = find_documents()
        for kind in kinds:
            if kind.file_name:
                self.of(kind)
        _ = self.optimization
        return tuple(sentence for kind in kinds for sentence in self.problems.get(kind, ()))

    def compared(self, step: str) -> list[list[Profile]] | None:
        """Return the profiles that a step compared, for `draw_comparison`; None if one no longer exists."""
        from ndld_flow.records.comparison import Comparison
        from ndld_flow.records.profile import Profile

        try:
            return [[self.of(Profile)[name] for name in part.steps] for part in self.of(Comparison)[step].profiles]
        except KeyError:
            return None


@contextlib.contextmanager
def _listing_problem(name: str, problems: list[str]) -> Iterator[None]:
    """Add a sentence to a list if the block cannot read the document of this name; none if there is no such file."""
    try:
        yield
    except FileNotFoundError:
        pass
    except FormatError as error:
        problems.append(str(error))
    except (OSError, ValidationError) as error:
        problems.append(f"{name} cannot be read: {first_problem(error)}.")
    except (ArithmeticError, ValueError):
        problems.append(f"{name} cannot be read: it has impossible numbers.")


def read_run(folder: Path) -> RunDocuments:
    """Read `run.json`. Raises a `RequestError` as `read_run_record` does."""
    return RunDocuments(read_run_record(folder), folder)


def read_run_record(folder: Path) -> RunRecord:
    """Read `run.json`.

    Raises a `RequestError` if the folder is not that of a run, or its record cannot be read.
    """
    from ndld_flow.records.run_record import RunRecord

    return read_record(
        RunRecord,
        folder / RUN_RECORD,
        absent="is not the folder of a run",
        give="Give a folder that `ndld-flow runs` lists.",
        unreadable="is not a run's record",
    )


def read_stored(kind: type[AnyDocument], path: Path) -> AnyDocument:
    """Read a document of the store through a cache. Raises OSError, ValidationError and FormatError."""
    document = _parse_stored(kind, path)
    assert isinstance(document, kind)
    return document


@lru_cache(maxsize=8)
def _parse_stored(kind: type[Document], path: Path) -> Document:
    """Read and cache a document: objects of the store never change."""
    return read_document(kind, path)


def find_file(step_folder: Path, name: str) -> Path:
    """Return a file of a step's artifact, copied into its folder or behind the link there."""
    copied = step_folder / name
    return copied if copied.exists() else step_folder / STORED / name


SWEEP_RECORD = "sweep.json"
"""The sweep's record, in its folder."""


def read_sweep_record(folder: Path) -> SweepRecord:
    """Read `sweep.json`.

    Raises a `RequestError` if the folder is not that of a sweep, or its record cannot be read.
    """
    from ndld_flow.records.sweep import SweepRecord

    return read_record(
        SweepRecord,
        folder / SWEEP_RECORD,
        absent="is not the folder of a sweep",
        give="Give a folder in outputs/sweeps.",
        unreadable="is not a sweep's record",
    )
