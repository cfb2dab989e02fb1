"""One measured or counted number with its unit."""

from __future__ import annotations

from ndld_flow.records.base import Record


class Metric(Record):
    """A number that gates and reports may name, such as `latency.median` in ms."""

    value: float
    unit: str = ""
    """`ms`, `bytes`, `1/s`; empty for a count or a ratio."""
