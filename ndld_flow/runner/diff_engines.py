"""Compare the engines of two references without running them."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.engines.engine_lock import compare_engines, read_lock
from ndld_flow.records.engine_lock import EngineComparison
from ndld_flow.records.run_folder import find_file, read_run_record
from ndld_flow.runner.outputs import Outputs
from ndld_flow.store.kinds import Engine


def diff_engines(before: str, after: str, outputs: Outputs) -> EngineComparison | None:
    """Compare two engines, each `RUN:STEP`, an `engine.lock`, its folder, or the engine's file beside it.

    Returns None if neither reference is an engine. Raises RequestError if only one is, or if its lock cannot be read.
    """
    locks = [find_lock(reference, outputs) for reference in (before, after)]
    if not any(locks):
        return None
    for reference, lock in zip((before, after), locks, strict=True):
        if lock is None:
            other = after if reference is before else before
            raise RequestError(f"{other} is an engine, and {reference} is not: name two engines, or two models.")
    return compare_engines(*(read_lock(lock) for lock in locks if lock is not None))


def find_lock(reference: str, outputs: Outputs) -> Path | None:
    """Return the lock of the engine that a reference names; None if it names no engine."""
    path = Path(reference)
    if path.is_file():
        beside = path if path.suffix == Path(Engine.lock).suffix else path.with_name(Engine.lock)
        return beside if beside.is_file() and path.suffix != ".onnx" else None
    if (path / Engine.lock).is_file():
        return path / Engine.lock
    head, colon, step = reference.rpartition(":")
    if not colon:
        return None
    try:
        folder = outputs.find(head)
    except RequestError:  # the path of a model, or a run that is reported as missing where models are compared
        return None
    records = {each.name: each.record for each in read_run_record(folder).steps}
    record = records.get(step)
    return find_file(folder / step, Engine.lock) if record is not None and record.artifact.kind == Engine.kind else None
