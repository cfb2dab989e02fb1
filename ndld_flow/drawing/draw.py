"""Draw a graph as a picture file."""

from __future__ import annotations

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import number
from ndld_flow.drawing.compose import Style, compose
from ndld_flow.drawing.graph import DrawnGraph, Look
from ndld_flow.drawing.palettes import colours_for
from ndld_flow.drawing.picture import svg_text
from ndld_flow.drawing.raster import raster_bytes

FORMATS = {".svg": "SVG", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_ASPECT = 1.6
"""Width over height, similar to a screen."""
_LARGEST_SCALE = 20.0


def check_look(suffix: str, look: Look) -> None:
    """Raise `RequestError` for an impossible format, background or scale, before a model is read."""
    if suffix.lower() not in FORMATS:
        raise RequestError(
            f"a picture cannot be written as {suffix or 'a file without suffix'!r}: "
            f"end its name with one of {', '.join(FORMATS)}, or .html for a page."
        )
    if FORMATS[suffix.lower()] == "JPEG" and look.background == "transparent":
        raise RequestError("JPEG does not support transparency: choose another background, or write a .png.")
    if not 0 < look.scale <= _LARGEST_SCALE:
        raise RequestError(f"scale {number(look.scale)}: give one above 0 and up to {_LARGEST_SCALE:.0f}.")
    colours_for(look.background, look.palette)


def picture_bytes(graph: DrawnGraph, suffix: str, look: Look) -> bytes:
    """Return the file's bytes for a suffix of `FORMATS`. Raises `RequestError` as `check_look` does, and for too many
    pixels.
    """
    check_look(suffix, look)
    colours = colours_for(look.background, look.palette)
    style = Style(colours, look.direction, _ASPECT if look.columns else None, look.grid, look.legend)
    picture = compose(graph, style)
    file_format = FORMATS[suffix.lower()]
    if file_format == "SVG":
        return svg_text(picture, look.scale).encode()
    return raster_bytes(picture, file_format, look.scale)
