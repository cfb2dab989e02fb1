"""Parts of reports that cannot be written: a note instead, as they must not fail what has run."""

from __future__ import annotations

import html
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.text import short_name


class ReportWarning(RuntimeWarning):
    """A part of a report is missing because of a bug."""


@contextmanager
def noting(part: str, notes: list[str]) -> Iterator[None]:
    """Add a note to `notes` and warn if a part of a report fails. Errors of disks and of users, and interrupts, are
    raised."""
    try:
        yield
    except (NdldFlowError, OSError):
        raise
    except Exception as error:
        _raise_interrupt(error)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {short_name(str(error), 200)}, {Path(frame.filename).name}:{frame.lineno}"
        notes.append(
            f"{part} is missing ({reason}). This is a bug in ndld_flow: please report it with the records, which are "
            "complete."
        )
        warnings.warn(notes[-1], ReportWarning, stacklevel=3)


def _raise_interrupt(error: BaseException | None) -> None:
    """Raise the interrupt that led to an error: compiled code, as of matplotlib, raises SystemError for it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        error = error.__cause__ or error.__context__


def page_with_notes(part: str, draw: Callable[[], str]) -> str:
    """Return the text of a page; if it cannot be drawn, that of a page with only a note."""
    notes: list[str] = []
    with paused_garbage_collection(), noting(part, notes):
        return draw()
    head = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>ndld-flow</title>'
    return f"{head}\n<p>{html.escape(notes[0])}</p>\n"
