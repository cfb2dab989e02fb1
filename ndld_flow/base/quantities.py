"""Numbers for people: three significant digits and a fitting unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"

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
    """Format a duration in ms: `870 µs`, `12.1 ms`, `1.24 s`."""
    magnitude = abs(value)
    if 0 < magnitude < 0.9995:
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


def binary_unit(value: float) -> tuple[float, str]:
    """Return the factor and the name of the binary unit that fits this number of bytes."""
    power = 0
    while abs(value) >= 1024 and power < len(_BINARY_UNITS) - 1:
        value /= 1024
        power += 1
    return float(1024**power), _BINARY_UNITS[power]


def size(value: float) -> str:
    """Format a number of bytes: `512 B`, `4.49 MiB`."""
    factor, unit = binary_unit(value)
    return f"{value:,.0f} B" if unit == "B" else f"{three_digits(value / factor)} {unit}"


def size_change(before: float, after: float) -> str:
    """Format a change of size, `4.49 -> 2.36 MiB`, in the unit of the larger unless the smaller would round to 0."""
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
    return tuple(f"{value:,.{_decimals(value, digits)}f} {unit}".rstrip() for value in values)


def _decimals(value: float, digits: int) -> int:
    """Return the number of decimals that leaves `digits` significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits


def count(value: float) -> str:
    """Format a count: `4,712,345`."""
    return f"{value:,.0f}"


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
    if before == 0:
        return ""
    percent = (after / before - 1) * 100
    if abs(percent) < 0.05:
        return "±0 %"
    text = f"{abs(percent):.0f}" if abs(percent) >= 9.95 else f"{abs(percent):.1f}"
    return f"{'+' if percent > 0 else MINUS}{text} %"


def relative_speed(ratio: float) -> str:
    """Describe a ratio of times: `27 % slower`, `29 % faster` (takes 29 % less time), `as fast`."""
    text = change(1, ratio)
    return "as fast" if text == "±0 %" else f"{text[1:]} {'slower' if ratio > 1 else 'faster'}"


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
