"""Read the folders of runs and sweeps: their records and the documents that their steps wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError

from ndld_flow.base.errors import FormatError, RequestError
from ndld_flow.base.text import short_name
from ndld_flow.records.document import AnyDocument, Document, read_document

if TYPE_CHECKING:
    from ndld_flow.records.run_record import RunRecord, RunStep
    from ndld_flow.records.sweep import SweepRecord

if TYPE_CHECKING:  # the documents of steps: every plan reads records of runs, and importing these takes a tenth of it
    from ndld_flow.records.accuracy import Accuracy
    from ndld_flow.records.activations import Activations
    from ndld_flow.records.build import Build
    from ndld_flow.records.comparison import Comparison
    from ndld_flow.records.inspection import Findings
    from ndld_flow.records.optimization import Optimization
    from ndld_flow.records.placement import Placement
    from ndld_flow.records.precision_search import PrecisionSearch
    from ndld_flow.records.profile import Profile
    from ndld_flow.records.received_inputs import ReceivedInputs
    from ndld_flow.records.rendered_images import RenderedImages


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


_LONGEST_MS = 1e12  # thirty years

RUN_RECORD = "run.json"
"""The run's record, in its folder."""

STORED = "stored"
"""A link in a step's folder to the stored artifact, if that was not copied."""


COMPARISON_PAGE = "comparison.html"
"""The page of a step that compares, in the step's folder."""


@dataclass(frozen=True)
class RunDocuments:
    """One run with all documents of its report. Documents are by step name, in recipe order."""

    run: RunRecord
    profiles: dict[str, Profile]
    accuracies: dict[str, Accuracy]
    findings: dict[str, Findings]
    comparisons: dict[str, Comparison]
    builds: dict[str, Build]
    """Builds of engines."""
    searches: dict[str, PrecisionSearch]
    """Nodes that must keep a higher precision."""
    activations: dict[str, Activations]
    """Captured activations of models."""
    unreadable: tuple[str, ...]
    """Sentences about damaged documents; the rest of the run can still be reported."""
    folder: Path | None = None
    """The run's folder; None if the documents were read from the store."""
    received: dict[str, ReceivedInputs] = field(default_factory=dict)
    """Images that models received."""
    images: dict[str, RenderedImages] = field(default_factory=dict)
    """Images that were drawn from tensors."""
    placements: dict[str, Placement] = field(default_factory=dict)
    """Searches for the layers to quantize by latency and accuracy."""
    optimization: Optimization | None = None
    """The record of `optimize`, if it delivered the model of this run."""

    def compared(self, step: str) -> list[list[Profile]] | None:
        """Return the profiles that a step compared, for `draw_comparison`; None if one no longer exists."""
        try:
            return [[self.profiles[name] for name in part.steps] for part in self.comparisons[step].profiles]
        except KeyError:
            return None


def read_run(folder: Path) -> RunDocuments:
    """Read `run.json` and its documents. Raises a `RequestError` as `read_run_record` does."""
    return read_documents(read_run_record(folder), folder)


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


def read_documents(run: RunRecord, folder: Path) -> RunDocuments:
    """Read the documents of a run. Damaged ones are listed in `unreadable`."""

    def read(kind: type[AnyDocument], step: RunStep, name: str) -> AnyDocument:
        return read_document(kind, find_file(folder / step.name, name))

    documents, unreadable = _gather(run, read), list[str]()
    optimization = _read_optimization(folder, unreadable)
    return replace(documents, folder=folder, optimization=optimization, unreadable=(*documents.unreadable, *unreadable))


def _read_optimization(folder: Path, unreadable: list[str]) -> Optimization | None:
    """Return the record of `optimize`; None without one, or if it cannot be described, which a sentence reports."""
    from ndld_flow.records.optimization import OPTIMIZATION_RECORD, Optimization

    try:
        found = read_document(Optimization, folder / OPTIMIZATION_RECORD)
        found.conclude_fully()  # a changed record may have ratios of zero, and lengths without an end
    except FileNotFoundError:
        return None
    except FormatError as error:
        unreadable.append(str(error))
    except (OSError, ValidationError) as error:
        unreadable.append(f"{OPTIMIZATION_RECORD} cannot be read: {first_problem(error)}.")
    except (ArithmeticError, ValueError):
        unreadable.append(f"{OPTIMIZATION_RECORD} cannot be read: it has impossible numbers.")
    else:
        return found
    return None


def read_stored_documents(run: RunRecord, object_folder: Callable[[str], Path]) -> RunDocuments:
    """Read the documents of a run from the store; `object_folder` returns an artifact's folder by its digest.

    Documents that several runs share are read once.
    """

    def read(kind: type[AnyDocument], step: RunStep, name: str) -> AnyDocument:
        if step.record is None:
            raise FileNotFoundError
        return read_stored(kind, object_folder(step.record.artifact.digest) / name)

    return _gather(run, read)


def read_stored(kind: type[AnyDocument], path: Path) -> AnyDocument:
    """Read a document of the store through a cache. Raises OSError and ValidationError."""
    document = _parse_stored(kind, path)
    assert isinstance(document, kind)
    return document


class _Reader(Protocol):
    def __call__(self, kind: type[AnyDocument], step: RunStep, name: str, /) -> AnyDocument: ...


@lru_cache(maxsize=8)
def _parse_stored(kind: type[Document], path: Path) -> Document:
    """Read and cache a document: objects of the store never change."""
    return read_document(kind, path)


def _gather(run: RunRecord, read: _Reader) -> RunDocuments:
    from ndld_flow.records.accuracy import Accuracy
    from ndld_flow.records.activations import Activations
    from ndld_flow.records.build import Build
    from ndld_flow.records.comparison import Comparison
    from ndld_flow.records.inspection import Findings
    from ndld_flow.records.placement import PLACEMENT_FILE, Placement
    from ndld_flow.records.precision_search import PrecisionSearch
    from ndld_flow.records.profile import Profile
    from ndld_flow.records.received_inputs import INPUTS_FILE, ReceivedInputs
    from ndld_flow.records.rendered_images import RenderedImages

    unreadable: list[str] = []
    return RunDocuments(
        run=run,
        profiles=_measurable(_read_all(Profile, "profile.json", run, read, unreadable)),
        accuracies=_read_all(Accuracy, "accuracy.json", run, read, unreadable),
        findings=_read_all(Findings, "findings.json", run, read, unreadable),
        comparisons=_read_all(Comparison, "comparison.json", run, read, unreadable),
        builds=_read_all(Build, "build.json", run, read, unreadable),
        searches=_read_all(PrecisionSearch, "precision.json", run, read, unreadable),
        activations=_read_all(Activations, "activations.json", run, read, unreadable),
        received=_read_all(ReceivedInputs, INPUTS_FILE, run, read, unreadable),
        images=_read_all(RenderedImages, "images.json", run, read, unreadable),
        placements=_read_all(Placement, PLACEMENT_FILE, run, read, unreadable),
        unreadable=tuple(unreadable),
    )


def _measurable(profiles: dict[str, Profile]) -> dict[str, Profile]:
    """Return profiles without impossible latencies, such as infinite ones."""
    from ndld_flow.records.profile import without_impossible_values

    return {
        step: profile
        if all(0 <= sample <= _LONGEST_MS for sample in profile.latency_ms)
        else without_impossible_values(profile)
        for step, profile in profiles.items()
    }


def _read_all(
    kind: type[AnyDocument], file_name: str, run: RunRecord, read: _Reader, unreadable: list[str]
) -> dict[str, AnyDocument]:
    documents: dict[str, AnyDocument] = {}
    for step in run.steps:
        # A record can be edited: a step's name must not lead out of the run's folder.
        leads_out = step.name in ("", ".", "..") or any(sign in step.name for sign in "/\\\0")
        if step.outcome == "skipped" or leads_out:
            continue
        try:
            documents[step.name] = read(kind, step, file_name)
        except FileNotFoundError:
            continue  # not the kind that this step produces
        except FormatError as error:
            unreadable.append(str(error))
        except (OSError, ValidationError) as error:
            unreadable.append(f"{short_name(step.name)}/{file_name} cannot be read: {first_problem(error)}.")
    return documents


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
