"""Write the result of a run for its pull request, compare it with a baseline, and post it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.base.text import visible_text
from ndld_flow.records.outcomes import ENDINGS, RunOutcome
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD, read_run, read_sweep_record
from ndld_flow.report.exports.comparison_markdown import HEADING, comparison_parts, that_fit
from ndld_flow.report.exports.github_markdown import SIGNS, details, prose
from ndld_flow.report.exports.run_markdown import run_parts
from ndld_flow.report.exports.sweep_exports import sweep_parts
from ndld_flow.runner.compare_runs import compare_runs
from ndld_flow.runner.listener import Listener
from ndld_flow.runner.outputs import Outputs, name_folder
from ndld_flow.runner.pull_request import NoDiscussion, describe_job, find_discussion, post_comment
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.hidden_credentials import hide_credentials

_LOG_LINES = 20
_MOST_LOG = 100_000
_LONGEST_KEY = 100


@dataclass(frozen=True)
class Baseline:
    """The run to compare with."""

    reference: str
    """A run, or one of its profiles: `RUN:STEP`."""
    gates: tuple[str, ...] = ()
    measure: Listener | None = None
    """With a listener, both profiles are measured again, in turns."""


@dataclass(frozen=True)
class Commented:
    """A result in Markdown, and its comment."""

    markdown: str
    exit_code: int
    """That of the run, or of the comparison if the run passed; 2 for a log."""
    url: str = ""
    """The comment, or the title of its merge request; empty where none was posted."""
    note: str = ""
    """The reason why none was posted."""
    is_new: bool = False


def comment_run(run: str, outputs: Path, baseline: Baseline | None = None) -> tuple[str, Commented]:
    """Return the name of a run's or sweep's recipe, and its result as Markdown.

    Raises RequestError where there is no such run. A baseline that cannot be compared with is part of the result: it
    changes the exit code only where gates would have judged.
    """
    kept = Outputs(outputs)
    folder = kept.find_any(run, unfinished=True)
    outcome, exit_code = _outcome(kept, folder)
    if not (folder / RUN_RECORD).is_file() and (folder / SWEEP_RECORD).is_file():
        record = read_sweep_record(folder)
        name, parts = record.recipe_name, sweep_parts(record)
    else:
        documents = read_run(folder)
        name, current = documents.run.recipe_name, documents.run.model_copy(update={"outcome": outcome})
        parts = run_parts(replace(documents, run=current))
    subject = name_folder(folder) if folder.is_relative_to(outputs.resolve()) else run
    added, code_of_comparison = _compare(subject, baseline, outputs) if baseline else ([], 0)
    return name, Commented("\n".join(that_fit([*parts, *added])), exit_code or code_of_comparison)


def _outcome(kept: Outputs, folder: Path) -> tuple[RunOutcome, int]:
    """Return the outcome of a run or a sweep, and its exit code.

    A run that is still running, or was killed before it could record its end, has not passed.
    """
    outcome = kept.outcome(folder)
    if outcome in (None, "running"):
        return outcome or "interrupted", ENDINGS["interrupted"].exit_code
    return outcome, ENDINGS[outcome].exit_code


def _compare(run: str, baseline: Baseline, outputs: Path) -> tuple[list[str], int]:
    """Return the Markdown of a comparison with the baseline, and its exit code."""
    _, colon, step = baseline.reference.rpartition(":")
    candidate = f"{run}:{step}" if colon and not Path(baseline.reference).exists() else run
    try:
        compared = compare_runs(
            [baseline.reference, candidate], baseline.gates, outputs=outputs, measure=baseline.measure
        )
    except RequestError as error:
        message = prose(f"not compared with {baseline.reference}: {hide_credentials(error.message)}", 1000)
        return [f"{HEADING}{SIGNS['incomparable']} {message}\n"], RequestError.exit_code if baseline.gates else 0
    # Without gates, only a regression fails: an undecided or an impossible comparison is shown, but nobody demanded it.
    if not baseline.gates:
        exit_code = 1 if compared.comparison.verdict == "regressed" else 0
    else:
        outcomes = {gate.outcome for gate in compared.comparison.gates}
        codes = (("incomparable", 2), ("failed", 1), ("inconclusive", 4))
        exit_code = next((exit_code for outcome, exit_code in codes if outcome in outcomes), 0)
    return list(comparison_parts(compared.comparison, compared.profiles)), exit_code


def comment_log(log: Path) -> Commented:
    """Return the last lines of the log of a run that was refused, or killed before it left a record."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _MOST_LOG, 0))
            text = visible_text(file.read().decode("utf-8", "replace"))
    except OSError as error:
        raise RequestError(f"{log}: the log cannot be read ({error.strerror}).") from None
    lines = [line for line in hide_credentials(text).splitlines() if line.strip()][-_LOG_LINES:]
    body = "<br>".join(prose(line, 300) for line in lines)
    heading = f"{HEADING}{SIGNS['failed']} There is no result: the run was refused, or ended before it began\n"
    return Commented("\n".join([heading, details("Last lines of the log", f"{body}\n")]), RequestError.exit_code)


def summarize(result: Commented, environment: Mapping[str, str]) -> Commented:
    """Append a result to the job's summary, and post nothing. Raises OutputsError."""
    _summarize(environment, [result.markdown])
    return replace(result, note="nothing was posted, as requested")


def publish(key: str, result: Commented, environment: Mapping[str, str], number: int | None = None) -> Commented:
    """Append a result to the job's summary and post it on the pull request, replacing the comment of the same key.

    Raises RequestError where there is a pull request and the comment cannot be posted; the summary then says so.
    """
    marker = f"<!-- ndld-flow: {re.sub(r'[^A-Za-z0-9._/-]', '-', key)[:_LONGEST_KEY]} -->"
    body = f"{marker}\n{result.markdown}\n{describe_job(environment)}"
    try:
        discussion = find_discussion(environment, number)
        if isinstance(discussion, NoDiscussion):
            url, is_new, note = "", False, discussion.reason
        else:
            (url, is_new), note = post_comment(discussion, marker, body), ""
    except RequestError as error:
        _summarize(environment, [result.markdown, prose(hide_credentials(error.message), 1000)])
        raise
    _summarize(environment, [result.markdown, prose(note, 1000)])
    return replace(result, url=url, note=note, is_new=is_new)


def _summarize(environment: Mapping[str, str], parts: Sequence[str]) -> None:
    """Append to the summary of a GitHub job, which that shows as Markdown."""
    path = environment.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("\n".join([*filter(None, parts), ""]))
    except OSError as error:
        raise OutputsError(f"{path}: the summary of the job cannot be written ({error.strerror}).") from None


def write_markdown(result: Commented, to: Path) -> None:
    """Write a result into a file. Raises OutputsError."""
    try:
        write_text_atomically(to, result.markdown)
    except OSError as error:
        raise OutputsError(f"{to}: the Markdown cannot be written ({error.strerror}).") from None
