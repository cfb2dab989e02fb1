"""Read the record of a sweep from its folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from ndld_flow.errors import RequestError
from ndld_flow.records.sweep import SweepRecord

SWEEP_RECORD = "sweep.json"
"""The sweep's record, in its folder."""


def read_sweep_record(folder: Path) -> SweepRecord:
    """Read `sweep.json`.

    Raises a `RequestError` when the folder holds no sweep, its record cannot be read, or another version wrote it.
    """
    path = folder / SWEEP_RECORD
    try:
        record = SweepRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RequestError(
            f"{folder} is not the folder of a sweep: {path.name} cannot be read ({error.strerror}). "
            "Give a folder below outputs/sweeps."
        ) from error
    except ValidationError as error:
        raise RequestError(
            f"{path} is not a sweep's record this version can read: {_first_problem(error)}. "
            "Use the version of ndld-flow that wrote it."
        ) from error
    known = SweepRecord.model_fields["format_version"].default
    if record.format_version != known:
        raise RequestError(
            f"{path} has format version {record.format_version}; this version of ndld-flow reads {known}. "
            "Use the version that wrote it."
        )
    return record


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
