"""The best points measured again, in turns with each other: that decides between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ndld_flow.records.metric import Metric
from ndld_flow.runner.sweep.advance import advance_points
from ndld_flow.runner.sweep.desk import Desk
from ndld_flow.runner.sweep.judge import Judgement, judge_point
from ndld_flow.runner.sweep.point_run import PointRun


@dataclass(frozen=True)
class Finalist:
    """A winner, measured again."""

    point: PointRun
    """A run of its own: the first one's records stay."""
    judgement: Judgement

    @property
    def metrics(self) -> dict[str, Metric]:
        return self.point.metrics


def measure_again(winners: Sequence[PointRun], desk: Desk) -> Mapping[int, Finalist]:
    """Measure these points again in one sitting; their other steps are there. Number -> what it came to.

    Points that nothing was measured for are left out.
    """
    measured = [point for point in winners if point.sitting is not None]
    if len(measured) < 2:
        return {}  # nobody to take turns with: it would only be another number
    finals = replace(desk, again="again")
    copies = [PointRun.begin(p.number, p.point, p.changes, desk.open_run(p.run.recipe)) for p in measured]
    advance_points(copies, finals)
    return {point.number: Finalist(point, judge_point(point, desk.goals)) for point in copies}
