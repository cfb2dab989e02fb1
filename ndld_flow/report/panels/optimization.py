"""The conclusion of `optimize` and its variants, on the page of the run that proved the delivered one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ndld_flow.base.quantities import ABSENT, counted, quantity, seconds
from ndld_flow.base.text import short_name
from ndld_flow.records.optimization import Optimization, Speed, TriedVariant, VariantOutcome, describe_runtime
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.comparison.verdicts import IntervalScale
from ndld_flow.report.panel import Panel

_OUTCOMES: dict[VariantOutcome, tuple[int, str]] = {
    "delivered": (0, "passed"),
    "on the front": (1, "passed"),
    "not proved": (2, "inconclusive"),
    "not faster": (2, "skipped"),
    "not the best": (2, "skipped"),
    "the same": (2, "skipped"),
    "near the bound": (3, "warning"),
    "not judged": (3, "inconclusive"),
    "not found": (3, "inconclusive"),
    "not right on held-out data": (4, "failed"),
    "not right": (4, "failed"),
    "failed": (5, "failed"),
    "not tried": (6, "not-reached"),
    "cannot win": (7, "not-reached"),
}
"""Outcome -> its place in the table, and the class of its sign and colour."""
_ENDINGS = {"faster": "passed", "nothing pays": "skipped", "not decided": "inconclusive"}
"""Ending -> the class of its sign and colour."""
_RIGHT = 2
"""The last place of those that are right."""
_METRIC = re.compile(r"[\w.]+")
"""The metric of a condition of `--keep`."""
_SHOWN_METRICS = 5
"""Values of a variant in one cell."""
_SHOWN = 200
"""Rows of the table: a record of other people may have any number."""
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
_LINE = 2000
"""Characters of a line; commands of many options are long."""


@dataclass(frozen=True)
class SpeedPlot:
    """How many times as fast as the source, with the interval, in percent of the axis' width."""

    source: float
    low: float
    point: float
    high: float


@dataclass(frozen=True)
class VariantRow:
    """A variant of the table."""

    name: str
    runtime: str
    times: str
    """How many times as fast as the source, `2.32x`; without it, its objectives in the search."""
    interval: str
    """`2.20x to 2.45x, proved`; empty without a speed."""
    plot: SpeedPlot | None
    mark: str
    """The class of the interval's colour."""
    accuracy: tuple[str, ...]
    """The metrics of the conditions; empty if it was not judged."""
    outcome: str
    sign: str
    """The class of the outcome's sign and colour."""
    why: str
    took: str
    """Empty if it is unknown, or it was not tried."""


@dataclass(frozen=True)
class OptimizationView:
    """The conclusion and the variants."""

    ending: str
    sign: str
    """The class of the ending's sign and colour."""
    wall_s: float
    """Seconds of the whole optimization."""
    gain: str
    """How many times as fast; only that nothing pays or is decided, whose reason is the first line."""
    lines: tuple[str, ...]
    """Cost in accuracy, what to ship, and what was tried."""
    command: str
    """The command that repeats the result."""
    front: tuple[str, ...]
    rows: tuple[VariantRow, ...]
    more: int
    """Number of variants that the table leaves out."""
    ticks: tuple[tuple[float, str], ...]
    """(position in percent, text) of the ticks of the intervals' axis; empty without an interval."""
    keep: str
    """The conditions; empty for the judgement of `check_accuracy`."""
    samples: str
    """`24 samples`, of the search."""
    not_tried: tuple[str, ...]


def collect(documents: RunDocuments) -> OptimizationView | None:
    """Return the conclusion of `optimize` if it delivered the model of this run."""
    found = documents.optimization
    if found is None:
        return None
    gain, lines = found.conclude_page(_LINE)
    ordered = sorted(found.variants, key=_rank)
    speeds = [speed for each in ordered[:_SHOWN] if (speed := _speed(each)) is not None]
    # The source is at 1x, with a margin.
    ends = [1 / 1.05, 1.05, *(1 / end for speed in speeds for end in (speed.low, speed.ratio, speed.high))]
    scale = IntervalScale.covering(min(max(end, _TICKS[0]), _TICKS[-1]) for end in ends)
    return OptimizationView(
        ending=found.ending,
        sign=_ENDINGS[found.ending],
        wall_s=found.wall_s,
        gain=gain,
        lines=lines,
        command=short_name(found.command, _LINE),
        front=tuple(short_name(line, _LINE) for line in found.describe_front()[:_SHOWN]),
        rows=tuple(_row(each, found, scale) for each in ordered[:_SHOWN]),
        more=max(len(ordered) - _SHOWN, 0),
        ticks=scale.spaced({tick: f"{tick:g}x" for tick in _TICKS}) if speeds else (),
        keep=short_name(" and ".join(found.keep), 400),
        samples=counted(found.search_samples, "random sample" if found.random_inputs else "sample"),
        not_tried=tuple(short_name(sentence, 400) for sentence in found.not_tried[:_SHOWN]),
    )


def _speed(variant: TriedVariant) -> Speed | None:
    """Return the speed of a variant in the race; None if it is unknown or impossible."""
    return variant.speed if variant.speed is not None and variant.speed.is_possible else None


def _rank(variant: TriedVariant) -> tuple[int, float, float]:
    """Return the key of the order: by the outcome, and the fastest first."""
    speed, latency = _speed(variant), variant.latency
    return (
        _OUTCOMES[variant.outcome][0],
        speed.ratio if speed is not None else math.inf,
        latency.value if latency is not None and math.isfinite(latency.value) else math.inf,
    )


def _row(variant: TriedVariant, found: Optimization, scale: IntervalScale) -> VariantRow:
    speed, (place, sign) = _speed(variant), _OUTCOMES[variant.outcome]
    took_s = variant.took_s if variant.is_tried else None
    measured = variant.objectives or ({"latency": variant.latency} if variant.latency is not None else {})
    shown = list(measured.values())[:_SHOWN_METRICS]
    times = ", ".join(short_name(quantity(each.value, each.unit), 40) for each in shown) or ABSENT
    interval, plot, mark = "", None, ""
    if speed is not None:
        times, interval = speed.describe()
        interval += ", proved" if speed.proved else ""
        ends = (1, 1 / speed.high, 1 / speed.ratio, 1 / speed.low)
        plot = SpeedPlot(*(round(scale.place(end), 2) for end in ends))
        if place <= _RIGHT:  # a wrong model may be fast, which is no improvement
            mark = "improved" if speed.high < 1 else "regressed" if speed.low > 1 else "inconclusive"
    return VariantRow(
        name=short_name(variant.name, 120),
        runtime=describe_runtime(variant.runtime),
        times=times,
        interval=interval,
        plot=plot,
        mark=mark,
        accuracy=variant.describe_accuracy([match[0] for each in found.keep if (match := _METRIC.match(each))]),
        outcome=variant.outcome,
        sign=sign,
        why=short_name(variant.why, 1000),
        took=seconds(took_s) if took_s is not None and 0 <= took_s < math.inf else "",
    )


PANEL = Panel("Optimization", collect, leads=True)
