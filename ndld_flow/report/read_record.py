"""Read a versioned record from its folder, or say what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.records.read_document import AnyDocument, read_document


def read_record(kind: type[AnyDocument], path: Path, absent: str, give: str, unreadable: str) -> AnyDocument:
    """Read a record from its folder.

    `absent` says what a folder without it is or lacks, `give` what to name instead, `unreadable` what a damaged file
    is. Raises a `RequestError` when there is none, it cannot be read, or a later version wrote it.
    """
    try:
        return read_document(kind, path)
    except OSError as error:
        raise RequestError(f"{path.parent} {absent}: {path.name} cannot be read ({error.strerror}). {give}") from error
    except ValidationError as error:
        raise RequestError(
            f"{path} {unreadable} this version can read: {first_problem(error)}. "
            "It was changed by something else, or is damaged."
        ) from error


def first_problem(error: OSError | ValidationError) -> str:
    """Where and what, without the value that was found."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = short_name(".".join(str(part) for part in first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
