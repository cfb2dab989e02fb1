"""Write a sweep's folder and those of its points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ndld_flow.recipe.compose import WITHOUT_SWEEP
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD, read_stored_documents
from ndld_flow.records.run_record import RunFailure, RunRecord, StepRecord, outcome_of_code
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.exports.sweep_exports import write_sweep_exports
from ndld_flow.report.run_page import draw_documents
from ndld_flow.report.sweep.page import draw_sweep
from ndld_flow.runner.run_folder import (
    draw_inspected,
    link_stored,
    write_artifact,
    write_recipe_and_command,
    write_step_texts,
    write_texts,
)
from ndld_flow.runner.run_record import Ended as EndedRun
from ndld_flow.runner.run_record import decide_gates, describe_ended, describe_run, log_line
from ndld_flow.runner.sweep.conclude_sweep import Ended
from ndld_flow.runner.sweep.judge import describe_failure
from ndld_flow.runner.sweep.point_command import NoOverrideError, point_overrides
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.store.files import make_folder, write_text_atomically
from ndld_flow.store.kinds import LOG_FILE
from ndld_flow.store.store import Store


def write_point(run: RunRecord, built: Path, folder: Path, store: Store) -> None:
    """Write a point's record, report, recipe and log into `built`, and each step's record with a link to its artifact.

    Nothing is copied. `folder` is the final path of `built`, to which links are relative. Raises OSError.
    """
    built.mkdir(parents=True)
    for step in run.steps:
        if step.record is not None:
            _write_step(step.record, built / step.name, folder / step.name, store)
    write_texts(run, built, folder)
    (built / RUN_RECORD).write_text(run.to_json(), encoding="utf-8")
    documents = read_stored_documents(run, store.object_folder)
    draw_documents(documents, built)
    draw_inspected(documents, built, store)


def _write_step(record: StepRecord, target: Path, folder: Path, store: Store) -> None:
    target.mkdir()
    kept = store.object_folder(record.artifact.digest)
    try:
        link_stored(kept, target, folder)
    except OSError:  # a system without links
        write_artifact(record.artifact, kept, target)
    write_step_texts(record, target)


def write_sweep_folder(record: SweepRecord, ended: Ended) -> Path:
    """Write all reports and tables into `sweeps/<recipe>/<id>/`, and let `latest` point to it."""
    outputs = ended.state.outputs
    parent = outputs.sweeps / record.recipe_name
    make_folder(parent)
    folder = parent / record.id
    with outputs.store.building() as aside:
        built = aside / record.id
        built.mkdir()
        for point, run in zip(record.points, ended.tried.points, strict=True):
            if point.folder:
                final = ended.finalists.get(point.number)
                command = _repeat_point(record, point, ended, folder)
                ended_well = final is not None and final.judgement.outcome != "failed"
                shown = final.point if final and ended_well else run
                described = _describe_point(shown, f"{record.id}#{point.number}", command)
                write_point(described, built / point.folder, folder / point.folder, outputs.store)
        _write_texts(record, built, folder)
        draw_sweep(record, built, outputs.store.object_folder)
        write_sweep_exports(record, built)
        outputs.publish(built, folder)
    return folder


def _describe_point(point: PointRun, run_id: str, command: tuple[str, ...]) -> RunRecord:
    """Return the record of a point's run, finished or failed."""
    run, error = replace(point.run, id=run_id, command=command), point.failure
    if error is None:
        return describe_run(run)
    lines = tuple(map(log_line, run.logs.get(point.failed_step, ())))
    failure = RunFailure(
        steps=(point.failed_step,),
        message=describe_failure(point),
        exit_code=error.exit_code,
        log_lines={point.failed_step: lines} if lines else {},
    )
    steps = tuple(
        step.model_copy(update={"outcome": "failed", "reason": "failed"}) if step.name == point.failed_step else step
        for step in run.steps
    )
    gates = decide_gates(run, as_far_as_known=True)
    return describe_ended(run, EndedRun(steps, gates, outcome_of_code(error.exit_code), failure))


def _repeat_point(sweep: SweepRecord, point: SweepPoint, ended: Ended, folder: Path) -> tuple[str, ...]:
    """Return the command that runs a point alone: with overrides, or its own recipe where Hydra cannot write a key."""
    own_recipe = (str(folder.absolute() / point.folder / "recipe.yaml"),)
    try:
        changes = point_overrides(point.changes, sweep.recipe)
        has_file = ended.sweep.variations.composed.file.has_file
        plain = (str(ended.sweep.base.path), WITHOUT_SWEEP, *ended.sweep.plain_overrides)
        repeated = (*plain, *changes) if has_file else own_recipe
    except NoOverrideError:
        repeated = own_recipe
    outputs = ended.state.outputs.root
    elsewhere = ("--outputs", str(outputs)) if outputs != Path("outputs") else ()
    trust = ("--trust",) if "--trust" in sweep.command else ()
    return ("ndld-flow", "run", *repeated, *elsewhere, *trust)


def _write_texts(sweep: SweepRecord, built: Path, folder: Path) -> None:
    write_recipe_and_command(sweep, "sweep", built, folder)
    (built / LOG_FILE).write_text("\n".join(_log_lines(sweep)) + "\n", encoding="utf-8")
    write_text_atomically(built / SWEEP_RECORD, sweep.to_json())


def _log_lines(sweep: SweepRecord) -> list[str]:
    lines = [f"sweep {sweep.id} of {sweep.recipe_name}, {sweep.started_at.isoformat()}, {sweep.wall_s:.3f} s"]
    for point in sweep.points:
        values = ", ".join(f"{name} {value}" for name, value in point.values.items())
        lines.append(f"point {point.number} ({values}): {point.outcome} {point.reason}".rstrip())
    for session in sweep.sittings:
        began, ended = session.started_at.isoformat(), session.ended_at.isoformat()
        points = ", ".join(map(str, session.points))
        lines.append(
            f"session {session.number} on {session.device or 'no device'}: {began} to {ended}: points {points}"
        )
    return [*lines, f"stopped: {sweep.stopped_because}"]
