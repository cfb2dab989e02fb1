"""Quantities with units in settings: `64 MiB`, `200 ms`, `5 %`.

`Bytes`, `Milliseconds` and `Fraction` are types for settings. They accept such strings and plain numbers, also in
strict models, hold a plain number, and are described in the JSON schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.+-]*)\s*")

_BYTES = {"": 1, "b": 1, "byte": 1, "bytes": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for unit, base in (("b", 1000), ("ib", 1024))
}
_MILLISECONDS = {"": 1.0, "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3, "h": 3600e3}
_FRACTION = {"": 1.0, "%": 0.01}


def parse_bytes(text: str) -> int:
    """Parse a size: `64 MiB` -> 67108864, `1.5 GB` -> 1500000000, bytes if there is no unit. Raises ValueError."""
    return round(_parse(text, _BYTES, "64 MiB", ("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")))


def parse_duration_ms(text: str) -> float:
    """Parse a duration: `200 ms` -> 200.0, `2 min` -> 120000.0, in ms if there is no unit. Raises ValueError."""
    return _parse(text, _MILLISECONDS, "200 ms", ("ns", "us", "ms", "s", "min", "h"))


def parse_percent(text: str) -> float:
    """Parse a fraction: `5 %` -> 0.05, `0.05` -> 0.05. Raises ValueError."""
    return _parse(text, _FRACTION, "5 %", ("%",))


def format_setting(value: float, quantity: str) -> str:
    """Format a setting as a recipe writes it: `1 h`, `64 MiB`, `5 %`; `quantity` is the one in its JSON schema."""
    parse, units = _QUANTITIES[quantity]
    texts = [f"{value:g} {units[0]}"]
    for unit in units:
        scale = parse(f"1 {unit}")
        if value >= scale:
            texts.append(f"{value / scale:g} {unit}")
    exact = [text for text in texts if parse(text) == value]
    return min(exact, key=len) if exact else str(value)


def _parse(text: str, units: Mapping[str, float], example: str, names: tuple[str, ...]) -> float:
    match = _QUANTITY.fullmatch(text)
    scale = units.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise ValueError(f"{text!r} is not a quantity such as `{example}` (units: {', '.join(names)})")
    value = float(match[1])
    # Division keeps decimals exact where multiplication by 0.01 does not: 7 % is 0.07, not 0.07000000000000001.
    value = value * scale if scale >= 1 else value / round(1 / scale)
    if value < 0 or not math.isfinite(value):
        raise ValueError(f"{text!r} must be zero or more, and finite")
    return value


def _reads(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that parses strings and passes everything else to the type's own check."""
    return BeforeValidator(lambda given: parse(given) if isinstance(given, str) else given)


_QUANTITIES: dict[str, tuple[Callable[[str], float], tuple[str, ...]]] = {
    "size": (parse_bytes, ("B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB")),
    "duration": (parse_duration_ms, ("ms", "s", "min", "h")),
    "share": (parse_percent, ("%",)),
}
QUANTITY = "x-quantity"
"""Key of a JSON schema for the quantity of a setting: `size`, `duration` or `share`."""


def _schema(number: str, quantity: str, description: str, example: str) -> WithJsonSchema:
    either: list[dict[str, Any]] = [{"type": number, "minimum": 0}, {"type": "string", "examples": [example]}]
    return WithJsonSchema({"anyOf": either, "description": description, "examples": [example], QUANTITY: quantity})


Bytes = Annotated[
    int,
    Field(ge=0),
    _reads(parse_bytes),
    _schema("integer", "size", "Bytes: a number, or text such as `64 MiB`.", "64 MiB"),
]
"""A setting in bytes: `64 MiB`, `1.5 GB` or a number."""

Milliseconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _reads(parse_duration_ms),
    _schema("number", "duration", "Milliseconds: a number, or text such as `200 ms` or `2 s`.", "200 ms"),
]
"""A setting in milliseconds: `200 ms`, `2 s` or a number."""

Fraction = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _reads(parse_percent),
    _schema("number", "share", "A fraction: a number, or text such as `5 %`.", "5 %"),
]
"""A setting that is a fraction: `5 %` or `0.05`."""
