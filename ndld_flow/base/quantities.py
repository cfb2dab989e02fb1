"""Numbers with units: formatted for people, and parsed from settings such as `64 MiB`, `200 ms`, `5 %`.

`Bytes`, `Milliseconds` and `Fraction` are types for settings. They accept such strings and plain numbers, also in
strict models, become a plain number, and are described in the JSON schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from ndld_flow.base.text import lazy_pattern

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
ABSENT = "\N{EN DASH}"
"""Displayed for values that are not known."""

_SHORT_S = 3.0
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def three_digits(value: float) -> str:
    """Format a number with three significant digits: `1234.5` -> `1,234`, `12.34` -> `12.3`, `0.1234` -> `0.123`."""
    if not math.isfinite(value):
        return str(value)
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.9995 or magnitude == 0 else f"{value:.3g}"


def milliseconds(value: float) -> str:
    """Format a duration in ms: `0`, `870 µs`, `12.1 ms`, `1.24 s`."""
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    if magnitude < 0.9995:
        return f"{three_digits(value * 1000)} µs"
    return f"{three_digits(value)} ms" if magnitude < 10_000 else seconds(value / 1000)


def seconds(value: float) -> str:
    """Format a duration in s: `12 ms`, `8.2 s`, `1 min 12 s`, `2 h 05 min`, `3 days`."""
    if not math.isfinite(value):
        return str(value)
    if value < 0.95:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 2 * 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{round(whole / 86_400)} days"


def rounded_seconds(left_s: float) -> str:
    """Return an estimate without digits that it does not have: `40 s`, `3 min`."""
    if left_s < 10:
        return f"{max(round(left_s), 1)} s"
    if left_s < 120:
        return f"{round(left_s / 5) * 5} s"
    return f"{round(left_s / 60)} min" if left_s < 5400 else seconds(left_s)


def with_time_left(what: str, left_s: float) -> str:
    """Add a time that is worth mentioning to a progress message: `pass 3 of 100, 40 s or more left at this pace`."""
    return what if left_s < _SHORT_S else f"{what}, {rounded_seconds(left_s)} or more left at this pace"


def _as_float(value: float) -> float:
    """Return a number as a float: infinite for an integer beyond all floats, which an untrusted record may contain."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def binary_unit(value: float) -> tuple[float, str]:
    """Return the factor and the name of the binary unit that fits this number of bytes."""
    value = _as_float(value)
    power = 0
    while abs(value) >= 1024 and power < len(_BINARY_UNITS) - 1:
        value /= 1024
        power += 1
    return float(1024**power), _BINARY_UNITS[power]


def size(value: float) -> str:
    """Format a number of bytes: `512 B`, `4.49 MiB`."""
    value = _as_float(value)
    factor, unit = binary_unit(value)
    return f"{value:,.0f} B" if unit == "B" else f"{three_digits(value / factor)} {unit}"


def size_change(before: float, after: float) -> str:
    """Format a change of size, `4.49 -> 2.36 MiB`, in the unit of the larger unless the smaller would round to 0."""
    before, after = _as_float(before), _as_float(after)
    factor, unit = binary_unit(max(before, after))
    if min(before, after) < 0.01 * factor or unit == "B":
        return f"{size(before)} -> {size(after)}"
    larger = max(before, after) / factor
    decimals = 0 if larger >= 99.95 else 1 if larger >= 9.995 else 2
    return f"{before / factor:,.{decimals}f} -> {after / factor:,.{decimals}f} {unit}"


_MOST_DIGITS = 17
"""Significant digits of a float."""


def apart(values: Sequence[float], unit: str) -> tuple[str, ...]:
    """Format metrics with enough digits to show that they differ: `1 -> 1` would look unchanged."""
    texts = tuple(quantity(value, unit) for value in values)
    if len(set(texts)) == len(set(values)) or not all(map(math.isfinite, values)):
        return texts
    digits = 4
    while digits < _MOST_DIGITS and len({f"{value:.{digits}g}" for value in values}) < len(set(values)):
        digits += 1
    longer = []
    for value in values:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits
        longer.append(f"{value:,.{decimals}f} {unit}".rstrip())
    return tuple(longer)


def count(value: float) -> str:
    """Format a count: `4,712,345`."""
    return f"{_as_float(value):,.0f}"


def finite(value: float | None) -> float | None:
    """Return a number; None for NaN and infinity, and for None."""
    return value if value is not None and math.isfinite(value) else None


def counted(value: float, noun: str) -> str:
    """Format a count with its noun: `1 node`, `4,712 nodes`."""
    plural = "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}{plural}"


def signed(value: float) -> str:
    """Format a difference with its sign, `+3`, using a real minus sign; zero has none."""
    return "0" if value == 0 else f"{'+' if value > 0 else MINUS}{abs(value):,.0f}"


def share(fraction: float) -> str:
    """Format a fraction with one decimal: `0.1234` -> `12.3 %`."""
    return f"{fraction * 100:.1f} %"


def percent(fraction: float) -> str:
    """Format a fraction with two digits, or all before the point: `0.0049` -> `0.49 %`, `1.44` -> `144 %`."""
    value = 100 * fraction
    return f"{value:.2g} %" if value < 99.5 else f"{value:,.0f} %"


def change(before: float, after: float) -> str:
    """Format a relative change: `-52 %`; empty if the base is 0."""
    return ratio_change(after / before) if before else ""


def ratio_change(ratio: float) -> str:
    """Format a ratio as a change: `+4.2 %`, `-50 %` or `±0 %`; `from nothing` for an infinite one."""
    if not math.isfinite(ratio):
        return "from nothing"
    percent = (ratio - 1) * 100
    if abs(percent) < 0.05:
        return "±0 %"
    digits = f"{abs(percent):.1f}" if abs(percent) < 9.95 else f"{abs(percent):,.0f}"
    return f"{'+' if percent > 0 else MINUS}{digits} %"


def times_as_fast(ratio: float) -> str:
    """Format a ratio of times, after over before, as a speedup: `2.00x` takes half the time, `0.80x` a quarter more."""
    speed = 1 / ratio if ratio else math.inf
    if not 0.1 <= speed < 10:
        return f"{three_digits(speed)}x"
    return f"{speed:.2f}x" if abs(speed - 1) >= 0.005 else f"{speed:.3f}x"


def speedup_interval(low: float, high: float) -> str:
    """Format an interval of ratios of times as one of speedups: `1.92x to 2.08x`, or `2.00x` if both ends read so."""
    return " to ".join(dict.fromkeys(map(times_as_fast, (high, low))))


def relative_change(before: float, after: float) -> str:
    """Describe a relative change in a sentence: `-50 %`, or `as before`."""
    return "as before" if before == after else change(before, after)


def number(value: float) -> str:
    """Format a number without a unit: `0.9999998` keeps its nines, tiny and huge numbers are scientific."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if 0.999 < value < 1:
        nines = math.ceil(-math.log10(1 - value))
        return f"{value:.{nines + 1}f}" if nines < 9 else "1"  # the rest is rounding in the last bits
    magnitude = abs(value)
    if magnitude < 1e-3 or magnitude >= 1e6:
        return f"{value:.2g}"
    return f"{value:,.4g}" if magnitude < 1000 else f"{value:,.1f}"


def quantity(value: float, unit: str) -> str:
    """Format a metric with its unit, scaled if the unit allows it."""
    scaled = {"ms": milliseconds, "bytes": size, "s": seconds}.get(unit)
    if scaled is not None:
        return scaled(value)
    if unit == "1/s":
        return f"{three_digits(value)} /s"
    return f"{number(value)} {unit}".rstrip()


_QUANTITY = lazy_pattern(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.+-]*)\s*")

_BYTES = {"": 1, "b": 1, "byte": 1, "bytes": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for unit, base in (("b", 1000), ("ib", 1024))
}
_MILLISECONDS = {"": 1.0, "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3, "h": 3600e3}
_MILLISECONDS |= dict.fromkeys(("d", "day", "days"), 24 * 3600e3)
_FRACTION = {"": 1.0, "%": 0.01}


def parse_bytes(text: str) -> int:
    """Parse a size: `64 MiB` -> 67108864, `1.5 GB` -> 1500000000, bytes if there is no unit. Raises ValueError."""
    return round(_parse(text, _BYTES, "64 MiB", ("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")))


def parse_duration_ms(text: str) -> float:
    """Parse a duration: `200 ms` -> 200.0, `2 min` -> 120000.0, in ms if there is no unit. Raises ValueError."""
    return _parse(text, _MILLISECONDS, "200 ms", ("ns", "us", "ms", "s", "min", "h", "days"))


def parse_percent(text: str) -> float:
    """Parse a fraction: `5 %` -> 0.05, `0.05` -> 0.05. Raises ValueError."""
    return _parse(text, _FRACTION, "5 %", ("%",))


def format_setting(value: float, quantity: str) -> str:
    """Format a setting as it is written in recipes: `1 h`, `64 MiB`, `5 %`; `quantity` is the one in its JSON
    schema."""
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
    _schema("integer", "size", "Bytes: a number, or a string such as `64 MiB`.", "64 MiB"),
]
"""A setting in bytes: `64 MiB`, `1.5 GB` or a number."""

Milliseconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _reads(parse_duration_ms),
    _schema("number", "duration", "Milliseconds: a number, or a string such as `200 ms` or `2 s`.", "200 ms"),
]
"""A setting in milliseconds: `200 ms`, `2 s` or a number."""

Fraction = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _reads(parse_percent),
    _schema("number", "share", "A fraction: a number, or a string such as `5 %`.", "5 %"),
]
"""A setting that is a fraction: `5 %` or `0.05`."""
