"""Read the record of a sweep from its folder."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.read_record import read_record

SWEEP_RECORD = "sweep.json"
"""The sweep's record, in its folder."""


def read_sweep_record(folder: Path) -> SweepRecord:
    """Read `sweep.json`.

    Raises a `RequestError` when the folder holds no sweep, its record cannot be read, or another version wrote it.
    """
    return read_record(
        SweepRecord,
        folder / SWEEP_RECORD,
        absent="is not the folder of a sweep",
        give="Give a folder below outputs/sweeps.",
        unreadable="is not a sweep's record",
    )
