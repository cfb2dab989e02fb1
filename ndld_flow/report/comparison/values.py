"""The values of a metric displayed with a verdict."""

from __future__ import annotations

from ndld_flow.base.quantities import apart, quantity
from ndld_flow.records.comparison import ComparedMetric, MetricVerdict

ABSENT = "\N{EN DASH}"


def values_beside(metric: ComparedMetric, verdict: MetricVerdict | None, pair: tuple[int, int]) -> tuple[str, ...]:
    """Return the base's and the candidate's values with the verdict's ratio.

    The medians of each side may contradict the ratio of pairs if the machine drifted.
    """
    if verdict is None or verdict.base_value is None or verdict.candidate_value is None:
        values = (metric.values[place] for place in pair)
        return tuple(ABSENT if value is None else quantity(value, metric.unit) for value in values)
    return apart((verdict.base_value, verdict.candidate_value), metric.unit)


def agrees(metric: ComparedMetric, verdict: MetricVerdict) -> bool:
    """Return whether the medians of both sides have the verdict's ratio, within a tenth of the threshold."""
    before, after = metric.values[verdict.base], metric.values[verdict.candidate]
    if not before or after is None:
        return True
    return abs(after / before / verdict.ratio - 1) <= max(verdict.threshold / 10, 1e-6)
