"""Write a run's folder: while it runs, at its end, and when an error has ended it.

A run that computes something creates its folder when it starts, with a record of its progress; at its end the rest is
written, and the final record last, so that a finished record is never in an incomplete folder. The folder of a run that
computes nothing is built in a temporary folder and renamed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RecipeError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.text import visible_name
from ndld_flow.execution.events import Notice, RunFailed
from ndld_flow.recipe.recipe import SOURCE
from ndld_flow.recipe.resolved import write_yaml
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.outcomes import is_complete, outcome_of_code
from ndld_flow.records.run_folder import (
    COMPARISON_PAGE,
    OPTIMIZATION_RECORD,
    RUN_RECORD,
    STORED,
    RunDocuments,
    read_run,
)
from ndld_flow.records.run_record import RunRecord, RunStep, StepRecord
from ndld_flow.runner.run_record import describe_failure, describe_unfinished
from ndld_flow.runner.run_state import RunState
from ndld_flow.runs.outputs import FOLDER_LEASE, Outputs
from ndld_flow.store.files import (
    copy_file,
    copy_folder,
    make_folder,
    remove_folder,
    share,
    share_blocks,
    share_tree,
    sync_folder,
    temporary_folder,
    write_bytes_atomically,
    write_text_atomically,
)
from ndld_flow.store.hidden_credentials import find_redacted
from ndld_flow.store.kinds import LOG_FILE, RECORD_FILE
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.records.comparison import Comparison
    from ndld_flow.records.optimization import Optimization
    from ndld_flow.records.profile import Profile
    from ndld_flow.records.sweep import SweepRecord

PICTURE = "comparison.png"
COPIED_BYTES = 2**28
"""Size in bytes above which artifacts are not copied into run folders if the file system cannot share blocks."""


def note_progress(run: RunState) -> None:
    """Write the progress of a run, so that its folder exists whatever happens to this process. Raises OSError.

    Does nothing for a run that keeps no folder.
    """
    if not run.keeps_folder:
        return
    if not run.opened:
        run.held.enter_context(run.outputs.store.locks.lease(FOLDER_LEASE, run.id))
    write_progress(describe_unfinished(run, "running"), run.outputs, opened=run.opened)
    run.opened = True


@contextlib.contextmanager
def recording_failure(run: RunState) -> Iterator[None]:
    """Write the folder of a run that an error ends, with record, log and report. The error is raised again.

    A recipe that is refused before anything is computed leaves no folder.
    """
    with run.held:
        try:
            yield
        except BaseException as error:
            if isinstance(error, RecipeError) and not run.opened:
                raise
            _leave_folder(run, error)
            raise


def _leave_folder(run: RunState, error: BaseException) -> None:
    """Write the folder of a failed run; if that is impossible, report the reason and leave the folder as it is."""
    failure = describe_failure(run, error)
    outcome = outcome_of_code(failure.exit_code)
    with contextlib.suppress(BrokenPipeError):  # nobody reads the output
        try:
            record = describe_unfinished(run, outcome, failure)
            folder = run.outputs.run_folder(write_run_folder(record, run.outputs, opened=run.opened))
            run.listener(
                RunFailed(
                    outcome=outcome,
                    steps=failure.steps,
                    message=failure.message,
                    exit_code=failure.exit_code,
                    run=f"{record.recipe_name}/{record.id}",
                    folder=str(folder),
                    report=str(folder / "report.html"),
                )
            )
        except BrokenPipeError:
            raise
        except Exception as problem:  # it must not replace the error that ended the run
            place = f"; its files so far are in {run.outputs.runs / run.recipe.name / run.id}" if run.opened else ""
            notice = f"the report of this failure cannot be written ({visible_name(str(problem))}){place}"
            run.listener(Notice(text=notice, warning=True))


def write_run_folder(run: RunRecord, outputs: Outputs, *, opened: bool) -> RunRecord:
    """Write reports, tables and artifacts into `runs/<recipe>/<id>/`, and let `latest` point to it.

    `opened`: its folder exists already. Returns the record as written, with the lines for a terminal.
    """
    from ndld_flow.runs.run_lines import note_run

    folder = outputs.run_folder(run)
    if opened:
        if not is_complete(run.outcome):  # the reason first: there may be no space for the rest
            write_progress(run, outputs, opened=True)
        record = _fill(run, folder, folder, outputs.store)
        share_tree(folder, folder.parent)
        sync_folder(folder)
        write_text_atomically(folder / RUN_RECORD, record.to_json())
        outputs.publish(folder, folder)
        note_run(outputs, folder)
        return record
    make_folder(folder.parent)
    with outputs.store.building() as aside:
        built = aside / run.id
        built.mkdir()
        record = _fill(run, built, folder, outputs.store)
        write_text_atomically(built / RUN_RECORD, record.to_json())
        outputs.publish(built, folder)
    note_run(outputs, folder)
    return record


def write_progress(run: RunRecord, outputs: Outputs, *, opened: bool) -> None:
    """Write record, recipe, command and log of a running run; the first call creates its folder."""
    folder = outputs.run_folder(run)
    if opened:
        (folder / LOG_FILE).write_text(_join_logs(run), encoding="utf-8")
        write_text_atomically(folder / RUN_RECORD, run.to_json())
        return
    make_folder(folder.parent)
    with outputs.store.building() as aside:
        built = aside / run.id
        built.mkdir()
        write_texts(run, built, folder)
        (built / RUN_RECORD).write_text(run.to_json(), encoding="utf-8")
        outputs.publish(built, folder)


def _fill(run: RunRecord, built: Path, folder: Path, store: Store) -> RunRecord:
    """Write everything but the record: artifacts, texts, tables and pages; return the record with its verdict."""
    from ndld_flow.report.noted_failures import noting
    from ndld_flow.report.run_page import draw_documents
    from ndld_flow.report.verdict import describe_results, summarize_run

    for step in run.steps:
        _write_step(step, built, folder, store)
    write_texts(run, built, folder)
    documents = RunDocuments(run, built)
    notes = _write_exports(documents, built)  # first: the report links to existing files
    draw_documents(documents, built, notes)
    draw_inspected(documents, built, store)
    verdict, results = list[str](), dict[str, str]()
    with noting("The verdict", notes):
        verdict = summarize_run(documents)
        results = describe_results(documents)
    return run.model_copy(update={"verdict": tuple(verdict or notes), "results": results})


def _write_step(step: RunStep, built: Path, folder: Path, store: Store) -> None:
    if step.record is None:
        return
    target = built / step.name
    if target.exists():  # from an earlier, incomplete attempt
        remove_folder(target)
    target.mkdir()
    kept = store.object_folder(step.record.artifact.digest)
    if not write_artifact(step.record.artifact, kept, target):
        link_stored(kept, target, folder / step.name)
    write_step_texts(step.record, target)


def draw_inspected(documents: RunDocuments, built: Path, store: Store) -> None:
    """Draw the page of each step that captured activations. Its maps are read from the store."""
    from ndld_flow.records.activations import Activations
    from ndld_flow.report.activations.page import draw_activations

    for step in documents.run.steps:
        if step.name in documents.of(Activations) and step.record is not None:
            draw_activations(built / step.name, store.object_folder(step.record.artifact.digest))


def link_stored(kept: Path, target: Path, folder: Path) -> None:
    """Link from a step's folder to its artifact in the store, or copy it if links are not possible.

    The link is relative to the final path of the folder, so that all outputs can be moved together.
    """
    relative = os.path.relpath(kept.resolve(), folder.resolve())  # the folder of runs, or the store, may be a link
    try:
        (target / STORED).symlink_to(relative, target_is_directory=True)
    except OSError:  # no links here
        copy_folder(kept, target)


def write_step_texts(record: StepRecord, target: Path) -> None:
    """Write a step's record and its log into its folder."""
    (target / RECORD_FILE).write_text(record.to_json(), encoding="utf-8")
    (target / LOG_FILE).write_text(record.log + "\n", encoding="utf-8")


def write_artifact(artifact: ArtifactRecord, kept: Path, target: Path) -> bool:
    """Copy an artifact's files; False if it is too large to be copied for every run.

    Then the caller links to the folder, not to the files: onnx refuses external data that are links or hard links.
    """
    if sum(file.size_bytes for file in artifact.files) <= COPIED_BYTES:
        for file in artifact.files:
            copy_file(kept / file.path, target / file.path)
        return True
    shared = all(share_blocks(kept / file.path, target / file.path) for file in artifact.files)
    for file in artifact.files if not shared else ():
        (target / file.path).unlink(missing_ok=True)
    return shared


def _write_exports(documents: RunDocuments, built: Path) -> list[str]:
    """Write tables and traces of each profile, those and Markdown of each comparison, and Markdown of the run; return
    notes on those that fail.
    """
    from ndld_flow.records.build import Build
    from ndld_flow.records.comparison import Comparison
    from ndld_flow.records.profile import Profile
    from ndld_flow.report.exports.ci_formats import chrome_trace
    from ndld_flow.report.exports.pull_requests import RUN_SUMMARY, run_markdown
    from ndld_flow.report.noted_failures import noting

    texts: dict[str, Callable[[], str]] = {RUN_SUMMARY: partial(run_markdown, documents)}
    # Spreadsheets are imported where they are written: the message of a refused run, which has none, does not wait.
    for step, profile in documents.of(Profile).items():
        labelled = [(profile.label, profile)]
        if profile.layers:
            from ndld_flow.report.exports.spreadsheets import layers_csv

            texts[f"{step}/layers.csv"] = partial(layers_csv, labelled)
        if profile.timeline:
            texts[f"{step}/trace.json"] = partial(chrome_trace, labelled)
    for step, build in documents.of(Build).items():
        from ndld_flow.report.exports.spreadsheets import engine_layers_csv

        texts[f"{step}/layers.csv"] = partial(engine_layers_csv, build.label, build.layers)
    notes: list[str] = []
    for name, text in texts.items():
        with noting(name, notes):
            (built / name).write_text(text(), encoding="utf-8", newline="")
    for step, comparison in documents.of(Comparison).items():
        profiles = documents.compared(step)
        if profiles is not None:
            # The record stays the artifact's own, byte for byte: a later run checks the folder against it.
            write_comparison(_with_models(comparison, documents.run), profiles, built / step)
    return notes


def _with_models(comparison: Comparison, run: RunRecord) -> Comparison:
    """Return a step's comparison whose subjects name the measured models: their files, or the steps that made them."""
    given, subjects = {SOURCE: run.source, **run.models}, []
    [compared] = comparison.profiles
    for subject, step in zip(comparison.subjects, compared.steps, strict=True):
        name = run.records[step].parents["from"]
        model = given[name].location if name in given else name
        subjects.append(subject.model_copy(update={"location": f"{subject.location} of {model}"}))
    return comparison.model_copy(update={"subjects": tuple(subjects)})


def write_optimization(found: Optimization, folder: Path) -> None:
    """Write the record of `optimize` into the folder of the run that proved its model, and draw its page again.

    Raises a `RequestError` if the folder holds no readable run, and an `OutputsError` if a file cannot be written.
    """
    from ndld_flow.report.exports.pull_requests import RUN_SUMMARY, run_markdown
    from ndld_flow.report.run_page import draw_documents

    write_text_atomically(folder / OPTIMIZATION_RECORD, found.to_json())
    documents = read_run(folder)
    write_text_atomically(folder / RUN_SUMMARY, run_markdown(documents))
    share(draw_documents(documents, folder))


def write_texts(run: RunRecord, built: Path, folder: Path) -> None:
    """Write recipe, command and log of a run whose final path is `folder`."""
    write_recipe_and_command(run, "run", built, folder)
    (built / LOG_FILE).write_text(_join_logs(run), encoding="utf-8")


def write_recipe_and_command(record: RunRecord | SweepRecord, kind: str, built: Path, folder: Path) -> None:
    """Write the recipe and the command that repeat a run or a sweep (`kind`) whose final path is `folder`."""
    trust = " --trust" if "--trust" in record.command else ""
    repeat = f"ndld-flow run {shlex.quote(str(folder.absolute() / 'recipe.yaml'))}{trust}"
    keys = [place for place in find_redacted(record.recipe) if not place.endswith(".source")]
    removed = f" after the removed credentials have been restored ({', '.join(keys)})" if keys else ""
    heading = f"Resolved recipe of {kind} {record.id}. It repeats the {kind} from any folder{removed}:\n{repeat}"
    (built / "recipe.yaml").write_text(write_yaml(record.recipe, heading), encoding="utf-8")
    command = f"cd {shlex.quote(record.directory)}\n{shlex.join(record.command)}\n"
    (built / "command.txt").write_text(command, encoding="utf-8")


def _join_logs(run: RunRecord) -> str:
    parts = [f"run {run.id} of {run.recipe_name}, {run.started_at.isoformat()}, {run.wall_s:.3f} s: {run.outcome}"]
    failure = run.failure
    if failure is not None:
        parts += [failure.message, *(["", failure.traceback] if failure.traceback else [])]
    for step in run.steps:
        parts.append(f"\n== {step.name} ({step.step}): {step.outcome}, {step.reason} {step.detail}".rstrip())
        if step.record is not None:
            parts += [step.record.summary, step.record.log]
        elif failure is not None:
            parts += failure.log_lines.get(step.name, ())
    return "\n".join(part for part in parts if part) + "\n"


def write_comparison(comparison: Comparison, profiles: Sequence[Sequence[Profile]], folder: Path) -> None:
    """Write report, tables and picture of a comparison into the folder of its record, each file atomically.

    `profiles[i][j]` is the profile that `comparison.profiles[i]` has at position j of its subjects.
    """
    from ndld_flow.report.comparison.page import draw_comparison
    from ndld_flow.report.exports.ci_formats import chrome_trace, comparison_benchmark_json, comparison_junit
    from ndld_flow.report.exports.pull_requests import comparison_markdown
    from ndld_flow.report.exports.spreadsheets import comparison_csv
    from ndld_flow.report.noted_failures import noting

    texts: dict[str, Callable[[], str]] = {
        "comparison.md": partial(comparison_markdown, comparison, profiles),
        "junit.xml": partial(comparison_junit, comparison),
        "benchmark.json": partial(comparison_benchmark_json, comparison),
        "layers.csv": partial(comparison_csv, comparison, profiles),
        "trace.json": lambda: chrome_trace(_labelled(comparison, profiles)),
    }
    notes: list[str] = []
    for name, text in texts.items():
        with noting(name, notes):
            write_text_atomically(folder / name, text())
    with noting(PICTURE, notes):
        _write_picture(comparison, profiles, folder / PICTURE)
    draw_comparison(comparison, profiles, folder / COMPARISON_PAGE, notes)


def _labelled(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> list[tuple[str, Profile]]:
    several = len(comparison.profiles) > 1
    return [
        (f"{comparison.subjects[subject].label}{f' {compared.name}' if several else ''}", profile)
        for compared, members in zip(comparison.profiles, profiles, strict=True)
        for subject, profile in zip(compared.subjects, members, strict=True)
    ]


def _write_picture(comparison: Comparison, profiles: Sequence[Sequence[Profile]], path: Path) -> None:
    if not EXTRAS["plots"].is_installed:
        path.unlink(missing_ok=True)  # a picture of an earlier comparison
        return
    # Imported here, as matplotlib takes half a second.
    from ndld_flow.report.exports.pictures import comparison_picture

    with temporary_folder() as aside:
        picture = comparison_picture(comparison, profiles, aside / path.name)
        write_bytes_atomically(path, picture.read_bytes())
