"""The history of metrics as it is printed and drawn, and the changes that people have accepted."""

from __future__ import annotations

from typing import Literal

from ndld_flow.base.declared_metrics import Better
from ndld_flow.records.document import Document, Record, Time


class AcceptedChange(Record):
    """A step that a person has accepted, with the reason. Baselines start anew there."""

    recipe: str
    metric: str
    """`STEP.METRIC`."""
    machine: str
    """The kind of machine of its series."""
    run: str
    """Id of the first run at the new level."""
    started_at: Time
    """Start of that run, by which the change is found where other runs exist."""
    note: str
    user: str
    accepted_at: Time


class AcceptedChanges(Document):
    """Accepted changes of measurements: `accepted.json` in an outputs folder, which may be committed."""

    document: Literal["accepted changes"] = "accepted changes"
    format_version: int = 1
    changes: tuple[AcceptedChange, ...] = ()


class HistoryPoint(Record):
    """One measurement."""

    run: str
    """Id of the first run that shows it."""
    started_at: Time
    value: float
    commit: str = ""
    """Git commit of that run's working tree; empty if it was not recorded."""
    runs: int = 1
    """Number of runs that show it: a reused result is one measurement."""
    doubt: str = ""
    """The reason why it is no baseline; empty for a good measurement."""


class Cause(Record):
    """Something that differed between the measurements before and after a step."""

    fact: str
    """`library onnxruntime`, `setting half.block`, `model`, `driver`."""
    before: str
    """Empty if it did not apply, as after."""
    after: str


class HistoryStep(Record):
    """A step of a series: from a point on, its values are at another level."""

    place: int
    """Position of the first point at the new level."""
    run: str
    """Id of the run of that point."""
    started_at: Time
    before: float
    """Median of the level before."""
    after: float
    ratio: float | None
    """After over before; None if a value is zero or negative."""
    low: float
    """With `high` the 95 % interval of the ratio; of the difference where there is no ratio."""
    high: float
    verdict: Literal["improved", "regressed", "changed"]
    earliest: int
    """With `latest` the positions between which the step is at 95 % confidence."""
    latest: int
    causes: tuple[Cause, ...]
    """What differed between the last point before it and the first point after it."""
    near: tuple[Cause, ...] = ()
    """What else differed between `earliest` and `latest`."""
    commits: tuple[str, str] = ("", "")
    """Git commits before and after, if they were recorded and differ."""
    why: str
    """The attribution in one sentence."""
    accepted: AcceptedChange | None = None


class Trend(Record):
    """A slow change within the present level of a series."""

    change: float
    """Relative change from the first to the last point of the level: 0.04 is 4 %; a difference if values may be 0."""
    points: int


class MetricSeries(Record):
    """The measurements of one metric that may be compared, oldest first."""

    recipe: str
    metric: str
    """`STEP.METRIC`."""
    unit: str
    better: Better
    machine: str
    """The kind of machine; `any machine` where the result is the same on all."""
    settings: str
    """The runtime, and settings that change what is measured."""
    inputs: str
    """The recipe's inputs that the step reads, as JSON; empty without."""
    exact: bool
    """The metric has no noise: every change is a step."""
    least_change: float
    """The smallest relative change that is a step."""
    noise: str
    """Where that is from."""
    points: tuple[HistoryPoint, ...]
    steps: tuple[HistoryStep, ...]
    trend: Trend | None
    level: float | None
    """Median of the good measurements since the last step; None without one."""
    good_level: float | None
    """As `level`, without measurements that are no baseline."""
    best: float | None
    """Median of the best level since the last accepted change."""
    limit: float | None = None
    """The bound of the newest run's gate on this metric alone; None without one."""
    remark: str = ""
    """The reason why nothing can be concluded, such as too few points."""


class MetricHistory(Record):
    """The history of a recipe's metrics."""

    recipe: str
    series: tuple[MetricSeries, ...]
    run_count: int
    """Number of finished runs that were read."""
    unreadable: tuple[str, ...] = ()
    """Runs whose record cannot be read, and are left out."""
    main: tuple[str, ...] = ()
    """The metrics that the gates name; without gates, the median latencies."""
    metrics: tuple[str, ...] = ()
    """All metrics that the recipe has, with those that were not asked for."""
