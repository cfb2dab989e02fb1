"""Write a page whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

from ndld_flow.base.errors import OutputsError


class PageError(OutputsError):
    """A page cannot be written; its cause is the system's error."""


def write_page(path: Path, text: str, again: str) -> Path:
    """Write a page aside and put it in its place; return its path. `again` is what a person runs once there is room.

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
            f"Make room or give yourself the right to write there, then run `{again}` again."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return path
