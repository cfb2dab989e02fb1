"""Colours of a picture, as `#rrggbb`. All palettes are safe for colour-blind readers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.drawing.families import FAMILIES

_NEUTRAL = "#c9cdd2"

PALETTES: dict[str, tuple[str, ...]] = {
    # Paul Tol's light scheme, designed for cells with dark text.
    "tol": (
        "#77aadd",
        "#ee8866",
        "#bbcc33",
        "#44bb99",
        "#eedd88",
        _NEUTRAL,
        "#99ddff",
        "#ffaabb",
        "#aaaa00",
        "#e6e7e6",
    ),
    # Okabe and Ito's palette, the most common one, lightened by a third for text on it.
    "okabe-ito": (
        "#56b4e9",
        "#e69f00",
        "#f0e442",
        "#37b592",
        "#f2d49b",
        _NEUTRAL,
        "#a9d8f4",
        "#d894bd",
        "#e58a4d",
        "#e6e7e6",
    ),
    # For print: only prominent families are dark.
    "grey": (
        "#9a9a9a",
        "#b2b2b2",
        "#e2e2e2",
        "#d0d0d0",
        "#ececec",
        "#f7f7f7",
        "#dadada",
        "#c2c2c2",
        "#bcbcbc",
        "#f7f7f7",
    ),
}
"""Palette name -> one colour for each of `FAMILIES`."""

BACKGROUNDS = {"white": "#ffffff", "dark": "#15171a", "transparent": None}


@dataclass(frozen=True)
class Colours:
    """Every colour of one picture."""

    background: str | None
    """None for a transparent one."""
    ink: str
    quiet: str
    edge: str
    grid: str
    border: str
    paper: str
    """Fill of inputs and outputs."""
    families: tuple[str, ...]
    on_family: str
    """Colour of text on a family's fill."""

    def family(self, name: str) -> str:
        """Return the fill of a family; unknown names count as `other`."""
        places = {family: place for place, family in enumerate(FAMILIES)}
        return self.families[places.get(name, len(FAMILIES) - 1)]  # type: ignore[call-overload]


def colours_for(background: str, palette: str) -> Colours:
    """Return colours on `white`, `dark`, `transparent` or `#rrggbb`. Raises `RequestError` for anything else."""
    if palette not in PALETTES:
        raise RequestError(f"there is no palette {palette!r}: {suggest(palette, PALETTES)}")
    paper = _background(background)
    fills = PALETTES[palette]
    if _lightness(paper or "#ffffff") > 0.3:
        light = mix(paper or "#ffffff", "#ffffff", 0.6)
        return Colours(paper, "#1a1c1f", "#5c636b", "#8b929a", "#0000001a", "#00000059", light, fills, "#1a1c1f")
    assert paper is not None
    dark = tuple(_darkened(fill, paper) for fill in fills)
    return Colours(
        paper, "#e6e7e8", "#9aa2ab", "#737b85", "#ffffff14", "#ffffff4d", mix(paper, "#ffffff", 0.08), dark, "#ffffff"
    )


def _background(text: str) -> str | None:
    if text in BACKGROUNDS:
        return BACKGROUNDS[text]
    short = re.fullmatch(r"#([0-9a-fA-F])([0-9a-fA-F])([0-9a-fA-F])", text)
    if short:
        return "#" + "".join(digit * 2 for digit in short.groups()).lower()
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise RequestError(f"background {text!r}: give white, dark, transparent, or a colour such as #f7f7f5.")
    return text.lower()


def parts(colour: str) -> tuple[int, int, int, int]:
    """Return red, green, blue and opacity, 0 to 255, of `#rrggbb` or `#rrggbbaa`."""
    red, green, blue, *rest = bytes.fromhex(colour[1:])
    return red, green, blue, rest[0] if rest else 255


def mix(colour: str, other: str, part: float) -> str:
    """Return the first colour mixed with a share (`part`, 0 to 1) of the other."""
    pairs = zip(parts(colour)[:3], parts(other)[:3], strict=True)
    return "#" + "".join(f"{round(first + (second - first) * part):02x}" for first, second in pairs)


def _darkened(fill: str, paper: str) -> str:
    """Return a fill mixed with a dark background until white text on it has a contrast of 4.5, as WCAG AA requires."""
    steps = (mix(fill, paper, step / 20) for step in range(8, 20))
    return next((colour for colour in steps if 1.05 / (_lightness(colour) + 0.05) > 4.6), paper)


def _lightness(colour: str) -> float:
    """Return the approximate relative luminance as defined by WCAG."""
    weights = (0.2126, 0.7152, 0.0722)
    return sum(weight * math.pow(value / 255, 2.2) for weight, value in zip(weights, parts(colour)[:3], strict=True))
