"""Write a page whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ndld_flow.errors import OutputsError


def write_page(path: Path, text: str, again: str) -> Path:
    """Write a page aside and put it in its place; return its path. `again` is what a person runs once there is room.

    Raises an `OutputsError` when it cannot be written.
    """
    aside = path.with_name(f".{path.stem[:100]}.{os.getpid()}.html")
    try:
        aside.write_text(text, encoding="utf-8", newline="\n")
        aside.replace(path)
    except OSError as error:
        raise OutputsError(
            f"{path} cannot be written ({error.strerror}). "
            f"Make room or give yourself the right to write there, then run `{again}` again."
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    return path
