"""A model's graph as a page."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.drawing.choices import Look, Reading
from ndld_flow.profiles.read.read_profile import recognise
from ndld_flow.report.collector_at_rest import collector_at_rest
from ndld_flow.report.model_page import write_model_page

SUFFIXES = (".html", ".htm")


def draw_page(model: Path, target: Path, reading: Reading, look: Look) -> Path:
    """Write the page of a model and return its path.

    Raises `RequestError` for choices that a page does not have, and for what is no model; `ModelError` and
    `OutputsError` where it cannot be read or written.
    """
    _check(reading, look)
    if model.exists() and recognise(model) is not None:
        raise RequestError(f"{model} holds layers: `ndld-flow report {model}` draws their page.")
    from ndld_flow.models.model_document import read_document

    with collector_at_rest():
        document = read_document(model, reading)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputsError(f"{target}: the page cannot be written ({error.strerror}).") from None
    return write_model_page(document, target)


def _check(reading: Reading, look: Look) -> None:
    """Raises `RequestError` for what only a picture has."""
    usual = Look()
    asked = [field.name for field in fields(Look) if getattr(look, field.name) != getattr(usual, field.name)]
    asked += ["depth"] if reading.depth else []
    if asked:
        raise RequestError(
            f"{' and '.join(asked)}: that is for pictures. A page is light or dark, zooms, and opens bodies by itself."
        )
