"""Reader for `trtexec --exportProfile`: the time of each layer over all passes with the profiler on.

`[{"count": N}, {"name", "timeMs" (sum over N passes), "averageMs", "medianMs", "percentage"}, ...]`; before 8.4 without
the median. Names are not escaped and may repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.profiles.read.json_values import number_of, objects_in, text_of, whole_of
from ndld_flow.profiles.read.text_files import read_whole
from ndld_flow.profiles.read.tolerant_json import Parsed, parse_tolerantly


@dataclass(frozen=True)
class LayerTime:
    """One row: a layer, in execution order."""

    name: str
    ms: float
    """The median over the passes, or the mean if there is no median."""


@dataclass(frozen=True)
class LayerTimes:
    """The rows of an export."""

    rows: tuple[LayerTime, ...]
    pass_count: int
    """Number of passes; 0 if not recorded."""
    are_medians: bool
    unreadable: int
    """Rows without a layer or a time."""
    parsed: Parsed


def read_layer_times(path: Path) -> LayerTimes:
    """Read an export. Raises RequestError when the file cannot be read, ValueError when it is empty."""
    parsed = parse_tolerantly(read_whole(path))
    entries = list(objects_in(parsed.value))
    heads = [entry for entry in entries if "count" in entry and "name" not in entry]
    count = max([0, *(whole_of(head["count"]) or 0 for head in heads)])
    rows = [entry for entry in entries if entry not in heads]
    found = [row for row in (_row(entry, count) for entry in rows) if row is not None]
    return LayerTimes(
        rows=tuple(found),
        pass_count=count,
        are_medians=any("medianMs" in row for row in rows),
        unreadable=len(rows) - len(found),
        parsed=parsed,
    )


def _row(entry: Mapping[str, object], count: int) -> LayerTime | None:
    name = text_of(entry.get("name"))
    total = number_of(entry.get("timeMs"))
    candidates = (
        number_of(entry.get("medianMs")),
        number_of(entry.get("averageMs")),
        None if total is None else total / max(count, 1),
    )
    ms = next((value for value in candidates if value is not None), None)
    return LayerTime(name, ms) if name and ms is not None and ms >= 0 else None
