"""The events of a run. The terminal, plain lines and JSON are all written from these."""

from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.document import Record
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import TriedVariant
from ndld_flow.records.outcomes import Outcome, PointOutcome, RunOutcome
from ndld_flow.records.run_record import GateResult
from ndld_flow.store.locks import WAITS

RACE = "the race"
"""The name of the race of `optimize` in events about its progress and its waits."""
RaceStage = Literal["building", "judging", "measuring", "ended"]


class RunStarted(Record):
    """A run has started."""

    event: Literal["run_started"] = "run_started"
    recipe: str
    steps: tuple[str, ...]


class Notice(Record):
    """A message to the user, such as about a result that was damaged."""

    event: Literal["notice"] = "notice"
    text: str
    warning: bool = False
    """True for a problem that does not stop the run."""
    waits: bool = False
    """True for a wait for another process, which the text names."""


class Fetching(Record):
    """A model is fetched: its size, as soon as that is known, and its progress."""

    event: Literal["fetching"] = "fetching"
    source: str
    """The model's source without credentials."""
    done_bytes: int
    size_bytes: int | None
    """None if the server does not say."""
    finished: bool = False


class StepStarted(Record):
    """A step has started to compute, for this reason."""

    event: Literal["step_started"] = "step_started"
    name: str
    step: str
    reason: str
    detail: str
    expected_s: float | None = None
    """Seconds that comparable work of this step took in an earlier run on this machine; None if there was none."""
    remaining_s: float | None = None
    """Expected seconds of this step and all later ones; None if that of any is unknown, and in sweeps."""
    target: str = ""
    """Name of the target on which it runs, `Ray` for a node of a cluster; empty for this machine."""


class StepWaits(Record):
    """A step waits for another run: for the device that it measures on, or for the result of the same step."""

    event: Literal["step_waits"] = "step_waits"
    name: str
    waits_for: str
    """`cpu 0-1, held by step speed of ppocr-det (user ann, pid 123) since 10:42:07`."""


class StepProgressed(Record):
    """The progress of a step."""

    event: Literal["step_progressed"] = "step_progressed"
    name: str
    done: int
    total: int
    """0 if unknown."""
    what: str


class StepLogged(Record):
    """A line of the log of a running step."""

    event: Literal["step_logged"] = "step_logged"
    name: str
    text: str


def describe_progress(name: str, done: int, total: int, what: str) -> StepProgressed | StepWaits:
    """Return the event for the progress of a step; a worker reports its waits as progress, too."""
    if what.startswith(WAITS) and not total:
        return StepWaits(name=name, waits_for=what.removeprefix(WAITS))
    return StepProgressed(name=name, done=done, total=total, what=what)


def wait_for_other_run(step: str, holder: str) -> StepWaits:
    """Return the event for a step that another process, which is described, is computing."""
    return StepWaits(name=step, waits_for=f"{holder}, which computes the same step")


class StepFinished(Record):
    """A step has finished, was reused or was skipped."""

    event: Literal["step_finished"] = "step_finished"
    name: str
    step: str
    outcome: Outcome
    reason: str
    detail: str
    summary: str
    wall_s: float
    metrics: dict[str, Metric]


class RunFinished(Record):
    """A run has finished, with its verdict and results."""

    event: Literal["run_finished"] = "run_finished"
    passed: bool
    exit_code: int
    nothing_to_do: bool
    """All results exist already; `run` is an earlier run."""
    run: str
    folder: str
    report: str
    verdict: tuple[str, ...]
    """Five lines of text."""
    gates: tuple[GateResult, ...]
    metrics: dict[str, Metric] = {}
    """`STEP.METRIC` -> value with its unit."""
    artifacts: dict[str, str] = {}
    """Step -> path of the main file of its artifact."""
    exported: tuple[str, ...] = ()
    """Paths of the exported results."""
    shipped: tuple[str, ...] = ()
    """For each of them, the files of its weights, its size, and how much faster than the source it was proved to be."""
    wall_s: float

    def _repr_html_(self) -> str:
        from ndld_flow.report.exports.notebook_html import verdict_html

        return verdict_html(self.verdict, self.report)


class RunFailed(Record):
    """The run failed, and its folder has the reason. The error is raised afterwards."""

    event: Literal["run_failed"] = "run_failed"
    outcome: RunOutcome
    steps: tuple[str, ...]
    """The steps that failed, or were running."""
    message: str
    exit_code: int
    run: str
    folder: str
    report: str


class Problem(Record):
    """One of the problems of a recipe."""

    where: str
    """`file:line` or `override "a=b"`."""
    path: str
    """Dotted path in the recipe, such as `steps.half.keep_io`; empty for the whole."""
    what: str
    hint: str


class Failure(Record):
    """A verb ended with an error: of its request, its model or this machine. It is the last line of the output."""

    event: Literal["error"] = "error"
    kind: str
    """The error's class in `ndld_flow.base.errors`, such as `RecipeError`; `UsageError` for arguments that the verb
    does not have, `Bug` for an error of this program."""
    message: str
    step: str = ""
    """The step that failed; empty if no step did."""
    exit_code: int
    problems: tuple[Problem, ...] = ()
    """For a RecipeError, all problems of the recipe."""


class SweepStarted(Record):
    """A sweep has started."""

    event: Literal["sweep_started"] = "sweep_started"
    recipe: str
    method: str
    point_count: int | None
    """Upper bound of the points to try; None if it is unknown."""


class VariantTried(Record):
    """`optimize` knows the outcome of a variant, or a change of it."""

    event: Literal["variant_tried"] = "variant_tried"
    variant: TriedVariant
    leads: bool = False
    """True if it is the best so far."""


class VariantProgressed(Record):
    """`optimize` builds, judges or measures a variant in its race."""

    event: Literal["variant_progressed"] = "variant_progressed"
    variant: str
    """Empty while those that may be the best are measured in turns, and at the end of the race."""
    doing: RaceStage
    left_s: float
    """Seconds left of the budget."""


class PointFinished(Record):
    """A point of a sweep has finished; the events of its steps were named `STEP#NUMBER`."""

    event: Literal["point_finished"] = "point_finished"
    number: int
    values: dict[str, JsonValue]
    """Axis -> value."""
    outcome: PointOutcome
    reason: str
    objectives: dict[str, Metric]
    """Objective -> value, without those that were not reached."""
    again: bool = False
    """True for a winner that was measured again."""


class SweepFinished(Record):
    """A sweep has finished, with the results of its best point."""

    event: Literal["sweep_finished"] = "sweep_finished"
    passed: bool
    """True if any point passed."""
    exit_code: int
    nothing_to_do: bool
    """All results exist already; `sweep` is an earlier sweep."""
    sweep: str
    folder: str
    report: str
    verdict: tuple[str, ...]
    """Lines of text."""
    best: int | None
    """Number of the best point."""
    too_noisy: bool = False
    """Points passed, but their measurements do not rank them."""
    applied: str = ""
    """Path of the recipe that was written from the best point; empty without one."""
    outcomes: dict[PointOutcome, int]
    metrics: dict[str, Metric] = {}
    """`STEP.METRIC` -> value with its unit, of the best point."""
    artifacts: dict[str, str] = {}
    """Step -> path of the main file of its artifact, of the best point."""
    wall_s: float

    def _repr_html_(self) -> str:
        from ndld_flow.report.exports.notebook_html import sentences_html

        return sentences_html(self.verdict, self.report)


Event = (
    RunStarted
    | Notice
    | Fetching
    | StepStarted
    | StepWaits
    | StepProgressed
    | StepLogged
    | StepFinished
    | RunFinished
    | RunFailed
    | Failure
    | SweepStarted
    | VariantProgressed
    | VariantTried
    | PointFinished
    | SweepFinished
)
