"""Lay out the data flow between steps as rails of a list: each result has a lane down to its last reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.records.run_record import RunRecord
from ndld_flow.records.step_record import RunStep

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

    @property
    def below(self) -> tuple[int, ...]:
        """Lanes that leave the row at its lower edge."""
        return (*self.passing, self.lane) if self.continues else self.passing


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
        lane = _choose_lane(passing, ending)
        lanes.append(lane)
        incoming = tuple(lanes[p] for p in parents)
        rows.append(FlowRow(lane, incoming, tuple(passing), last_reader[row] > row))
    return tuple(rows)


def _choose_lane(passing: Sequence[int], ending: Sequence[int]) -> int:
    """Return the lane that ends here, otherwise the first free one."""
    if ending:
        return ending[-1]
    return next(lane for lane in range(len(passing) + 1) if lane not in passing)
