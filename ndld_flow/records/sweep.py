"""The record of a sweep: its points and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.document import PLAIN_VERSIONS, Digest, Document, InnerPath, Record, Time
from ndld_flow.records.measurement import Metric
from ndld_flow.records.outcomes import Outcome, PointOutcome
from ndld_flow.records.run_record import GateResult, Invocation


class SweepAxis(Record):
    """An axis of the sweep."""

    name: str
    """As written in the recipe: `speed.threads`, or the name of an axis of variants."""
    keys: tuple[str, ...]
    """The keys that it sets, from the recipe's root: `steps.speed.threads`."""
    values: tuple[JsonValue, ...]
    """The values of its points, in the axis' order: listed values as listed, numbers ascending."""
    numeric: bool = False
    """True if all values are numbers."""
    log: bool = False


class SweepObjective(Record):
    """An objective of the sweep."""

    text: str
    """`speed.latency.median`, or arithmetic over metrics."""
    direction: Literal["minimize", "maximize"]
    unit: str = ""


class PointStep(Record):
    """A step of one point."""

    name: str
    step: str
    outcome: Outcome
    reason: str
    key: Digest | Literal[""] = ""
    """Key of its record in the store; empty if it was skipped or failed."""
    wall_s: float = 0.0
    """Seconds that this sweep spent on it; 0 if it was reused, or computed for another point."""


WinnerVerdict = Literal["best", "tie", "worse", "inconclusive"]


class MeasuredAgain(Record):
    """A winner's final measurement, in turns with the other winners, which decides between them."""

    metrics: dict[str, Metric]
    """All of the point's metrics, as measured again."""
    objectives: tuple[float | None, ...]
    verdict: WinnerVerdict
    """Against the best: `tie` if the difference is within the noise of this machine."""
    ratio: float | None = None
    """First objective divided by that of the best; the following are its 95 % interval, if process runs were kept."""
    ratio_low: float | None = None
    ratio_high: float | None = None


class SweepPoint(Record):
    """One point."""

    number: int
    """From 1, in the order in which points were tried."""
    values: dict[str, JsonValue]
    """Axis -> value."""
    changes: dict[str, JsonValue]
    """Recipe key -> value that gives the recipe this point: `steps.speed.threads` -> 2."""
    outcome: PointOutcome
    reason: str = ""
    """The reason why it was refused or failed, as one short paragraph."""
    failed_step: str = ""
    metrics: dict[str, Metric] = {}
    """`STEP.METRIC` -> value, as first measured."""
    objectives: tuple[float | None, ...] = ()
    """In the sweep's order, as first measured; None if it was not reached."""
    constraints: tuple[GateResult, ...] = ()
    """Those that could be decided."""
    steps: tuple[PointStep, ...] = ()
    session: int | None = None
    """Number of its first measurement session; None if nothing was measured."""
    again: MeasuredAgain | None = None
    rank: int | None = None
    """1 is the best; None if it did not pass, or without objectives."""
    tied: bool = False
    """True if it is not the best, but the difference is within the noise."""
    on_front: bool = False
    """True if no other point is better in one objective and not worse in any (with more than one objective)."""
    wall_s: float = 0.0
    """Seconds that this sweep spent only on this point."""
    folder: InnerPath | Literal[""] = ""
    """Its run folder, relative to the sweep's: `points/0001`; empty if there is none."""


class MeasurementSession(Record):
    """A measurement session: points measured in turns on one exclusively locked device."""

    number: int
    """From 1."""
    points: tuple[int, ...]
    steps: tuple[str, ...]
    """Names of the recipe's steps that were measured."""
    device: str
    again: bool = False
    """True if it measured winners again."""
    reused: bool = False
    """True if its results were reused."""
    started_at: Time
    ended_at: Time
    concurrent: tuple[str, ...] = ()
    """Descriptions of other ndld-flow steps that ran on its machine at the same time."""
    machine: str = ""
    """Fingerprint of the measuring machine, if it is not the one that ran the sweep."""
    load: float | None = None
    """The load average over the last minute, at its end; None if results were reused, or another machine measured."""


class NoisyPoint(Record):
    """The point whose two measurements of the first objective differ most."""

    number: int
    first: float
    again: float


class SweepRecord(Invocation, Document):
    """One sweep of one recipe, with everything needed to repeat it: `sweep.json` in its folder."""

    document: Literal["sweep"] = "sweep"
    format_version: int = PLAIN_VERSIONS["sweep"]
    description: str = ""
    own_s: float
    """Seconds of `wall_s` outside of steps: the tool's own overhead."""
    method: str
    seed: int
    axes: tuple[SweepAxis, ...]
    objectives: tuple[SweepObjective, ...]
    constraints: tuple[str, ...]
    points: tuple[SweepPoint, ...]
    sessions: tuple[MeasurementSession, ...]
    best: int | None
    """Number of the best point."""
    chosen_on: tuple[str, ...] = ()
    """Checks of accuracy on whose samples the best was chosen: it may do worse on others, as none were held out."""
    stopped_because: str
    """`all 24 points tried`, `40 of 512 points: the budget`, `time`, `saturated: ...`."""
    excluded_count: int = 0
    steps_done: int
    """Number of computed steps; each distinct one counts once."""
    steps_shared: int
    """Number of steps of points that were computed for another point of this sweep."""
    steps_reused: int
    """Number of steps whose results existed before."""
    passed: bool
    """False if no point passed."""

    @property
    def too_noisy(self) -> NoisyPoint | None:
        """The point whose two measurements differ more than any two points do, so that they cannot be ranked; None if
        there is none. Of its values the one nearer to the other points counts as its own.
        """
        ranked = [point for point in self.points if point.rank is not None]
        twice = [
            NoisyPoint(number=point.number, first=first, again=again)
            for point in ranked
            if point.again is not None and point.objectives and point.again.objectives
            if (first := point.objectives[0]) is not None and (again := point.again.objectives[0]) is not None
            if min(first, again) > 0
        ]
        if len(ranked) < 2 or not twice:
            return None
        noisiest = max(twice, key=lambda point: _spread((point.first, point.again)))
        others = [point.objectives[0] for point in ranked if point.number != noisiest.number and point.objectives]
        spread = min(_spread([*others, value]) for value in (noisiest.first, noisiest.again))
        return noisiest if _spread((noisiest.first, noisiest.again)) > max(spread, _LEAST_NOISE) else None

    @property
    def inconclusive(self) -> bool:
        """True if no point passed, but at least one could not be decided."""
        return not self.passed and any(point.outcome == "inconclusive" for point in self.points)


_LEAST_NOISE = 1.03
"""Ratio up to which repeated measurements of one point agree, as those of two points tie."""


def _spread(values: Sequence[float | None]) -> float:
    """Return the largest over the smallest of the positive values; 1 if there are none."""
    known = [value for value in values if value is not None and value > 0]
    return max(known) / min(known) if known else 1.0
