"""Write the folder of one point of a sweep: a run's folder in which nothing is copied."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.run_record import RunRecord
from ndld_flow.records.step_record import StepRecord
from ndld_flow.report.draw import draw_documents
from ndld_flow.report.run_folder import RUN_RECORD, read_stored_documents
from ndld_flow.runner.run_folder import draw_inspected, link_stored, write_artifact, write_step_texts, write_texts
from ndld_flow.store.store import Store


def write_point(run: RunRecord, built: Path, folder: Path, store: Store) -> None:
    """Put a point's record, report, recipe and log into `built`, and each step's record with a link to its artifact in
    the store; `folder` is where it will be in the end, which is what the links are relative to.

    Raises OSError when it cannot be written.
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
    except OSError:  # a system that refuses links
        write_artifact(record.artifact, kept, target)
    write_step_texts(record, target)
