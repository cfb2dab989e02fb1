"""Write pages atomically."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

from ndld_flow.base.errors import OutputsError


class PageError(OutputsError):
    """Raised when a page cannot be written; its cause is the system's error."""


def write_page(path: Path, text: str, again: str) -> Path:
    """Write a page to a temporary file, move it into place and return its path. `again` is the command to repeat.

    Raises a `PageError` when it cannot be written.
    """
    aside = path.with_name(f".{path.name[:60]}.{uuid4().hex[:8]}")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise PageError(
            f"{path} cannot be written ({error.strerror}). "
            f"Free space or make the folder writable, then run `{again}` again."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return path
