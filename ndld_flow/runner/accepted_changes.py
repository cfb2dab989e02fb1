"""Changes of metrics that people have accepted: a small file in the outputs folder, which may be committed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.users import name_me
from ndld_flow.records.document import read_document
from ndld_flow.records.history import AcceptedChange, AcceptedChanges, HistoryStep, MetricSeries
from ndld_flow.records.run_folder import first_problem
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.outputs import ACCEPTED, Outputs
from ndld_flow.store.files import share, write_text_atomically


def read_accepted(outputs: Outputs) -> AcceptedChanges:
    """Return the accepted changes. Raises RequestError for a damaged file, FormatError for one of another version."""
    path = outputs.root / ACCEPTED
    try:
        return read_document(AcceptedChanges, path)
    except FileNotFoundError:
        return AcceptedChanges()
    except (OSError, ValidationError) as error:
        raise RequestError(
            f"{path} cannot be read: {first_problem(error)}. Restore it from version control, or remove it to accept "
            "changes anew."
        ) from None


def accept_change(outputs: Outputs, series: MetricSeries, step: HistoryStep, note: str) -> AcceptedChange:
    """Note a step as accepted, and return the note; an earlier note about it is replaced.

    Raises RequestError for a note that is not UTF-8, and OutputsError if the file cannot be written.
    """
    try:
        note.encode()
    except UnicodeEncodeError:
        raise RequestError("the note is not UTF-8: write it again with other characters.") from None
    change = AcceptedChange(
        recipe=series.recipe,
        metric=series.metric,
        machine=series.machine,
        run=step.run,
        started_at=step.started_at,
        note=note,
        user=name_me(),
        accepted_at=datetime.now(UTC),
    )
    with explaining_disk("history accept", outputs.root), outputs.store.locks.hold("publish"):
        others = [each for each in read_accepted(outputs).changes if each != step.accepted]
        text = AcceptedChanges(changes=(*others, change)).to_json()
        write_text_atomically(outputs.root / ACCEPTED, text)
        share(outputs.root / ACCEPTED)
    return change


def find_step(series: Sequence[MetricSeries], metric: str, run: str) -> tuple[MetricSeries, HistoryStep]:
    """Return the step to accept: the newest of a metric, or that at a run.

    Raises RequestError if there is none, and if several series have one and no run is named.
    """
    found = [
        (each, step) for each in series for step in each.steps if not run or step.run.endswith(run) or run in step.run
    ]
    if not found:
        at = f" at run {run}" if run else ""
        raise RequestError(f"history accept: {metric} has no step{at}. `ndld-flow history` lists the steps.")
    newest = [(each, step) for each, step in found if step is each.steps[-1]] if not run else found
    if len(newest) > 1:
        shown = ", ".join(f"{step.run} ({each.machine})" for each, step in newest[:6])
        raise RequestError(
            f"history accept: {len(newest)} series of {metric} have a step. Name its run with --at: {shown}."
        )
    return newest[0]
