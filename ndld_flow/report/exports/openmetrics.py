"""Metrics of runs in OpenMetrics' text format, which Prometheus, GitLab's metrics reports and others read.

https://prometheus.io/docs/specs/om/open_metrics_spec/: a line for each value, with the names of the recipe, of the
metric and of its unit as labels, because metrics of recipes have names of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.measurement import Metric

_FAMILIES = {
    "ndld_flow_metric": "Value of a metric in the newest finished run of a recipe.",
    "ndld_flow_passed": "1 if the newest finished run of a recipe passed, otherwise 0.",
    "ndld_flow_started_timestamp_seconds": "Start of the newest finished run of a recipe.",
}


@dataclass(frozen=True)
class Sample:
    """The newest finished run of a recipe."""

    recipe: str
    machine: str
    passed: bool
    started_s: float
    """Seconds since 1970."""
    metrics: Mapping[str, Metric]


def openmetrics(samples: Iterable[Sample]) -> str:
    """Return the text of samples, each family in one block as the format demands."""
    known = list(samples)
    lines: list[str] = []
    for family, help_text in _FAMILIES.items():
        lines += (f"# TYPE {family} gauge", f"# HELP {family} {help_text}")
        lines += (f"{family}{{{labels}}} {value}" for sample in known for labels, value in _values(family, sample))
    return "\n".join((*lines, "# EOF", ""))


def _values(family: str, sample: Sample) -> Iterator[tuple[str, str]]:
    base = {"recipe": sample.recipe, "machine": sample.machine}
    if family == "ndld_flow_passed":
        yield _labels(base), str(int(sample.passed))
    elif family == "ndld_flow_started_timestamp_seconds":
        yield _labels(base), f"{sample.started_s:.0f}"
    else:
        for name, metric in sorted(sample.metrics.items()):
            if math.isfinite(metric.value):
                yield _labels({**base, "metric": name, "unit": metric.unit}), repr(float(metric.value))


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value)


def _escaped(text: str) -> str:
    return short_name(text, 200).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
