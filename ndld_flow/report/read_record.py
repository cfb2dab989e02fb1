"""Read a versioned record from its folder, or say what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from ndld_flow.errors import RequestError

if TYPE_CHECKING:
    from ndld_flow.records.activations import Activations
    from ndld_flow.records.sweep import SweepRecord

Versioned = TypeVar("Versioned", "Activations", "SweepRecord")


def read_record(kind: type[Versioned], path: Path, absent: str, give: str, unreadable: str) -> Versioned:
    """Read a record that no other version of its format may stand for.

    `absent` says what a folder without it is or lacks, `give` what to name instead, `unreadable` what a damaged file
    is. Raises a `RequestError` when there is none, it cannot be read, or another version wrote it.
    """
    try:
        record = kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RequestError(f"{path.parent} {absent}: {path.name} cannot be read ({error.strerror}). {give}") from error
    except ValidationError as error:
        raise RequestError(
            f"{path} {unreadable} this version can read: {first_problem(error)}. "
            "Use the version of ndld-flow that wrote it."
        ) from error
    found, known = record.format_version, kind.model_fields["format_version"].default
    if found != known:
        raise RequestError(
            f"{path} has format version {found}; this version of ndld-flow reads {known}. "
            "Use the version that wrote it."
        )
    return record


def first_problem(error: OSError | ValidationError) -> str:
    """Where and what, without the value that was found."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
