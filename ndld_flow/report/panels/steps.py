"""Steps of a run, and the data flow between them as rails of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.run_record import RunRecord, RunStep, SourceRecord
from ndld_flow.report.collect_summary import has_failed_check
from ndld_flow.report.diff_rows import ChangeView, DiffRow, collect_change
from ndld_flow.report.measured import Fact, settings_of
from ndld_flow.report.panel import Panel

SOURCE = "source"


@dataclass(frozen=True)
class FlowRow:
    """The rails at one row. Lanes count from 0 at the left."""

    lane: int
    """Lane of the row's dot."""
    incoming: tuple[int, ...]
    """Lanes that lead into the dot from above."""
    passing: tuple[int, ...]
    """Lanes that pass the row, or continue after feeding it."""
    continues: bool
    """True if a later row reads this one's result."""


def collect_flow(run: RunRecord) -> tuple[FlowRow, ...]:
    """Return the rails of the source (first row) and each step, in recipe order."""
    place = {SOURCE: 0} | {step.name: row for row, step in enumerate(run.steps, start=1)}
    given = run.recipe.get("steps")
    settings = given if isinstance(given, dict) else {}
    reads: list[tuple[int, ...]] = [()]
    for row, step in enumerate(run.steps, start=1):
        names = parent_names(step, settings.get(step.name)).values()
        reads.append(tuple(sorted({place[name] for name in names if place.get(name, row) < row})))
    return lay_out(reads)


def parent_names(step: RunStep, given: JsonValue) -> dict[str, str]:
    """Return input name -> step that it was read from. A skipped step has no record, so the recipe is used."""
    if step.record is not None:
        return step.record.parents
    asked = given if isinstance(given, dict) else {}
    named = {key: asked.get(key) for key in ("from", "reference", "candidate", "base", "found_by")}
    return {key: name for key, name in named.items() if isinstance(name, str)}


def lay_out(reads: Sequence[Sequence[int]]) -> tuple[FlowRow, ...]:
    """Give each row a lane. `reads[row]` holds the earlier rows that it reads."""
    last_reader = list(range(len(reads)))
    for row, parents in enumerate(reads):
        for parent in parents:
            last_reader[parent] = row
    lanes: list[int] = []
    rows: list[FlowRow] = []
    for row, parents in enumerate(reads):
        passing = [lanes[p] for p in range(row) if last_reader[p] > row]
        ending = [lanes[p] for p in parents if last_reader[p] == row]
        # The lane that ends here, otherwise the first free one.
        lane = ending[-1] if ending else next(free for free in range(len(passing) + 1) if free not in passing)
        lanes.append(lane)
        incoming = tuple(lanes[p] for p in parents)
        rows.append(FlowRow(lane, incoming, tuple(passing), last_reader[row] > row))
    return tuple(rows)


# The page shows the beginning of a log; the run's folder has all of it.
_LOG_LIMIT = 200_000


@dataclass(frozen=True)
class StepView:
    """One step of the run."""

    run_step: RunStep
    has_failed_check: bool
    wall_share: float
    """Time relative to the longest step, 0 to 1."""
    reuse: str
    """For a reused result: its age and original duration; otherwise empty."""
    summary: str
    reads: tuple[tuple[str, str], ...]
    """(input, step that it was read from)"""
    change: ChangeView | None
    settings: tuple[Fact, ...]
    metrics: tuple[Fact, ...]
    log: str
    flow: FlowRow
    machine: str
    """Description of its target, as in the key of the result; empty for the machine of the run."""


@dataclass(frozen=True)
class StepsView:
    """All steps of a run, in recipe order."""

    source: SourceRecord
    source_flow: FlowRow
    steps: tuple[StepView, ...]

    @property
    def lanes(self) -> int:
        """Number of lanes of the flow."""
        return 1 + max([self.source_flow.lane, *(step.flow.lane for step in self.steps)])


def collect_steps(run: RunRecord) -> StepsView:
    """Return the source and all steps in recipe order."""
    longest = max((step.wall_s for step in run.steps), default=0.0) or 1.0
    given = run.recipe.get("steps")
    recipe_steps = given if isinstance(given, dict) else {}
    source_flow, *flow = collect_flow(run)
    return StepsView(
        source=run.source,
        source_flow=source_flow,
        steps=tuple(
            _step_view(step, recipe_steps.get(step.name), run, longest, row)
            for step, row in zip(run.steps, flow, strict=True)
        ),
    )


def _step_view(step: RunStep, given: JsonValue, run: RunRecord, longest: float, row: FlowRow) -> StepView:
    record = step.record
    text = record.log if record else ""
    if len(text) > _LOG_LIMIT:
        text = f"{text[:_LOG_LIMIT]}\n… {len(text) - _LOG_LIMIT:,} more characters in the run's folder"
    if step.reason not in ("reused", "reused from cache") or step.record is None:
        reuse = ""
    else:
        age = (run.started_at - step.record.started_at).total_seconds()
        origin = "" if step.reason == "reused" else "; taken from the shared cache"
        reuse = f"computed {seconds(max(age, 0))} before this run, in {seconds(step.record.wall_s)}{origin}"
    return StepView(
        run_step=step,
        has_failed_check=has_failed_check(step),
        wall_share=step.wall_s / longest,
        reuse=reuse,
        summary=short_name(record.summary, 400) if record else "",
        reads=tuple((short_name(name), short_name(parent)) for name, parent in parent_names(step, given).items()),
        change=collect_change(record.change) if record and record.change else None,
        settings=settings_of(record.parts.settings if record else given, given),
        metrics=tuple(
            Fact(short_name(name), metric_text(name, metric.value, short_name(metric.unit, 20)))
            for name, metric in (record.metrics if record else {}).items()
        ),
        log=visible_text(text).rstrip(),
        flow=row,
        machine=short_name(record.parts.machine.partition(";")[0], 400) if record is not None and step.target else "",
    )


def diffs_of(view: StepsView) -> list[tuple[DiffRow, ...] | None]:
    """Return the differences that each step made."""
    return [step.change.diff.rows if step.change and step.change.diff else None for step in view.steps]


PANEL = Panel("Steps", lambda documents: collect_steps(documents.run), after="gates", data=diffs_of)
