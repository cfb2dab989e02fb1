"""Compare the engines of two references without running them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from ndld_flow.base.errors import RequestError
from ndld_flow.engines.engine_lock import compare_engines, read_lock
from ndld_flow.profiles.compare.engines import (
    EngineSide,
    compare_sides,
    describe_rows,
    match_engines,
    pair_equal_engines,
    side_of_lock,
)
from ndld_flow.profiles.read.read_profile import read_build, read_profile, recognize
from ndld_flow.profiles.read.sources import find_source, read_ends
from ndld_flow.records.build import Build, EngineComparison, EngineLock
from ndld_flow.records.document import read_document
from ndld_flow.records.run_folder import COMPARISON_PAGE, find_file, read_run_record
from ndld_flow.report.engines_page import draw_engines
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import LATEST, Outputs, has_record
from ndld_flow.store.digest import digest_file
from ndld_flow.store.files import point_to, write_text_atomically
from ndld_flow.store.kinds import ComparisonDocument, Engine, Onnx, ProfileDocument


def diff_engines(before: str, after: str, outputs: Outputs, page: Path | None = None) -> EngineComparison | None:
    """Compare two engines, each `RUN:STEP`, an `engine.lock`, its folder, the engine's file beside it, or an export of
    its layers; `page` is the path of an HTML page.

    Returns None if neither reference is an engine. Raises RequestError if only one is, or if its lock cannot be read.
    """
    sides = [find_engine(reference, outputs) for reference in (before, after)]
    if not any(sides):
        return None
    for reference, side in zip((before, after), sides, strict=True):
        if side is None:
            other = after if reference is before else before
            raise RequestError(f"{other} is an engine, and {reference} is not: name two engines, or two models.")
    found = _with_short_labels([side for side in sides if side is not None])
    compared = compare_found(*found)
    if page is not None:
        draw_engines(compared, found[0], found[1], page)
    return compared


def _with_short_labels(sides: Sequence[EngineSide]) -> list[EngineSide]:
    """Label files by their folder and name, if these differ."""
    labels = ["/".join(Path(side.label).parts[-2:]) if Path(side.label).exists() else side.label for side in sides]
    if len(set(labels)) < len(labels):
        return list(sides)
    return [replace(side, label=label) for side, label in zip(sides, labels, strict=True)]


def compare_found(before: EngineSide, after: EngineSide) -> EngineComparison:
    """Compare two engines: by their locks if both have one, and else by their layers."""
    if before.lock is None or after.lock is None:
        return compare_sides(before, after)
    compared = compare_engines(before.lock, after.lock)
    are_equal = compared.verdict in ("identical", "equal")
    rows = pair_equal_engines(before, after) if are_equal else match_engines(before, after)
    found = tuple(describe_rows(before, after, rows)) if compared.verdict == "different" else ()
    # Locks compare layers by their names; where these were matched better, the differences are those of the matches.
    differences = (*found, compared.differences[-1]) if found else compared.differences
    return compared.model_copy(update={"rows": rows, "differences": differences})


def find_engine(reference: str, outputs: Outputs) -> EngineSide | None:
    """Return the engine that a reference names; None if it names no engine."""
    lock = find_lock(reference, outputs)
    if lock is not None:
        return _with_build(reference, lock)
    path = Path(reference)
    if has_record(path) or not _may_be_export(path):
        return None
    kind = recognize(path)
    if kind == "build":
        build = read_build(path)
        return EngineSide(reference, build.as_profile(), build=build)
    return EngineSide(reference, read_profile(path)) if kind in ("trtexec", "trex") else None


def _with_build(reference: str, path: Path) -> EngineSide:
    lock = read_lock(path)
    file = Path(reference)
    is_engine = file.is_file() and file.name not in (EngineLock.file_name, Build.file_name, Engine.layers)
    if is_engine and digest_file(file) != lock.engine_digest:
        raise RequestError(f"{reference}: it is not the engine of the {path.name} beside it, which has another digest.")
    try:
        build = read_document(Build, path.with_name(Build.file_name))
    except (OSError, ValueError):
        return side_of_lock(reference, lock)  # a lock that was copied
    if build.engine_digest != lock.engine_digest:
        return side_of_lock(reference, lock)  # the record of another build
    return EngineSide(reference, build.as_profile(), lock, build)


def _may_be_export(path: Path) -> bool:
    """Return whether a path may have the layers of an engine; models, which may be large, are not searched for them."""
    if path.is_dir():
        return not (path / Onnx.main).is_file()
    return path.is_file() and path.suffix != Path(Onnx.main).suffix and bool(read_ends(path).strip("\0 \n"))


def find_lock(reference: str, outputs: Outputs) -> Path | None:
    """Return the lock of the engine that a reference names; None if it names no engine."""
    path = Path(reference)
    if path.is_file():
        lock = path if path.suffix == Path(EngineLock.file_name).suffix else path.with_name(EngineLock.file_name)
        return lock if lock.is_file() and path.suffix != ".onnx" else None
    if (path / EngineLock.file_name).is_file():
        return path / EngineLock.file_name
    head, colon, step = reference.rpartition(":")
    if not colon:
        return None
    try:
        folder = outputs.find(head)
    except RequestError:  # the path of a model, or a run that is reported as missing where models are compared
        return None
    records = {each.name: each.record for each in read_run_record(folder).steps}
    record = records.get(step)
    is_engine = record is not None and record.artifact.kind == Engine.kind
    return find_file(folder / step, EngineLock.file_name) if is_engine else None


@dataclass(frozen=True)
class ComparedEngines:
    """A comparison of two engines without times, and its folder."""

    comparison: EngineComparison
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / COMPARISON_PAGE


def compare_untimed(references: Sequence[str], outputs: Outputs, to: Path | None = None) -> ComparedEngines | None:
    """Compare two engines that were not measured, and write page and record into a folder: `to`, or a new one.

    Returns None unless there are two, and neither has times. A run means its only engine. Raises RequestError for a
    subject that cannot be found or read, and OutputsError if the folder cannot be written.
    """
    if len(references) != 2:
        return None
    named = [_name_untimed(reference, outputs) for reference in references]
    if not all(named):
        return None
    sides = [side for name in named if (side := find_engine(name, outputs)) is not None]
    if len(sides) < len(named):
        return None
    before, after = _with_short_labels(sides)
    compared = compare_found(before, after)
    folder = to or outputs.root / "comparisons" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}"
    with explaining_disk(f"comparison of {before.label} and {after.label}", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder / ComparisonDocument.main, compared.to_json())
        draw_engines(compared, before, after, folder / COMPARISON_PAGE)
        if to is None:
            point_to(folder.parent / LATEST, folder)
    return ComparedEngines(compared, folder)


def _name_untimed(reference: str, outputs: Outputs) -> str:
    """Return the reference of an engine without times; empty for anything else, which `compare` reads and reports."""
    if find_lock(reference, outputs) is not None:
        return reference
    path = Path(reference)
    if path.exists() and not has_record(path):
        return reference if _is_untimed_export(path) else ""
    if ":" in reference and not path.exists():
        return ""
    try:
        steps = read_run_record(outputs.find(reference)).steps
    except RequestError:
        return ""
    kinds = {step.name: step.record.artifact.kind for step in steps if step.record is not None}
    names = [f"{reference}:{name}" for name, kind in kinds.items() if kind == Engine.kind]
    if not names or ProfileDocument.kind in kinds.values():
        return ""
    if len(names) > 1:
        raise RequestError(f"{reference} has several engines, and no times. Name one: {', '.join(names)}.")
    return names[0]


def _is_untimed_export(path: Path) -> bool:
    """Return whether a file or folder has the layers of an engine and no times, without reading all of it."""
    try:
        source = find_source(path)
    except RequestError:
        return False
    is_engine = source.kind in ("build", "trtexec", "trex") and bool(source.of("build", "engine"))
    return is_engine and not source.of("times", "layer times")
