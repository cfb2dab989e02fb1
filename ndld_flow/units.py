"""Quantities as people write them: `64 MiB`, `200 ms`, `5 %`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

NUMBER = re.compile(r"\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-zµ%]*)\s*")

BYTES = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    "kB": 1000,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
DURATIONS_MS = {"": 1.0, "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}
FRACTIONS = {"": 1.0, "%": 0.01}


def _parse(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = NUMBER.fullmatch(text)
    if match is None or match["unit"] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is no quantity such as `{example}` (units: {known})")
    return float(match["number"]) * units[match["unit"]]


def parse_bytes(text: str) -> int:
    """`64 MiB` -> 67108864. Raises ValueError for anything else, negative sizes among it."""
    size = _parse(text, BYTES, "64 MiB")
    if size < 0:
        raise ValueError(f"{text!r}: a size is not negative")
    return round(size)


def parse_duration_ms(text: str) -> float:
    """`200 ms` -> 200.0, `1.5 s` -> 1500.0; a bare number is in ms. Raises ValueError for anything else."""
    duration = _parse(text, DURATIONS_MS, "200 ms")
    if duration < 0:
        raise ValueError(f"{text!r}: a duration is not negative")
    return duration


def parse_percent(text: str) -> float:
    """`5 %` -> 0.05; a bare number is a fraction already. Raises ValueError for anything else."""
    return _parse(text, FRACTIONS, "5 %")


def _text_as(parse: Any) -> BeforeValidator:  # noqa: ANN401 - any of the three above
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _schema(number: dict[str, Any], example: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [number, {"type": "string", "examples": [example]}]})


Bytes = Annotated[int, _text_as(parse_bytes), _schema({"type": "integer", "minimum": 0}, "64 MiB")]
"""A size in bytes: a whole number, or text with a unit."""
Milliseconds = Annotated[float, _text_as(parse_duration_ms), _schema({"type": "number", "minimum": 0}, "200 ms")]
"""A duration in ms: a number, or text with a unit."""
Fraction = Annotated[float, _text_as(parse_percent), _schema({"type": "number"}, "5 %")]
"""A fraction: a number, or text with `%`."""
