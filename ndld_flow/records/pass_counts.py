"""The metrics of counts, by their names in gates, comparisons and histories, and their description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ndld_flow.records.measurement import Metric
from ndld_flow.records.profile import CountedQuantity, PassCount, Profile

COUNT_METRICS: Final[Mapping[str, CountedQuantity]] = {
    "instructions.median": "instructions",
    "allocations.median": "allocations",
    "allocations.bytes": "allocated_bytes",
}
"""Metric -> the counted quantity whose median it is."""
_UNITS: Final = {"allocations.bytes": "bytes"}


def unit_of_count(metric: str) -> str:
    """Return the unit of a metric of counts."""
    return _UNITS.get(metric, "")


def count_metrics(profile: Profile) -> dict[str, Metric]:
    """Return the metrics of the counts that a profile has."""
    return {
        metric: Metric(value=count.median, unit=unit_of_count(metric))
        for metric, quantity in COUNT_METRICS.items()
        if (count := profile.count_of(quantity)) is not None
    }


def describe_count(count: PassCount) -> str:
    """Return `913,985 instructions by Valgrind 3.19.0 on one thread, the same to ±0.16 % in 3 passes`."""
    name = count.quantity.replace("_", " ")
    threads = "one thread" if count.threads == 1 else f"{count.threads} threads"
    passes = len(count.samples)
    if passes == 1:
        spread = "in one pass"
    elif count.spread == 0:
        spread = f"the same in {passes} passes"
    else:
        spread = f"±{count.spread * 100:.2g} % over {passes} passes"
    return f"{count.median:,.0f} {name} by {count.counter} on {threads}, {spread}"


def count_behind(profile: Profile, metric: str) -> PassCount | None:
    """Return the count whose median a metric is; None if the profile has none."""
    quantity = COUNT_METRICS.get(metric)
    return None if quantity is None else profile.count_of(quantity)
