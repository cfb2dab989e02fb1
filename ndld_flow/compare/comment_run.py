"""Write the result of a run for its pull request, compare it with a baseline, and post it by `gh` or `glab`.

The APIs: https://docs.github.com/rest/issues/comments and https://docs.gitlab.com/api/notes/. The variables that name
the request: https://docs.github.com/actions/reference/workflows-and-actions/variables and
https://docs.gitlab.com/ci/variables/predefined_variables/.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from ndld_flow.base.errors import RequestError, explaining_file
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.compare.compare_runs import compare_runs
from ndld_flow.execution.listener import Listener
from ndld_flow.records.document import read_bounded
from ndld_flow.records.outcomes import ENDINGS
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD, read_run, read_sweep_record
from ndld_flow.report.exports.pull_requests import (
    HEADING,
    SIGNS,
    code,
    comparison_parts,
    details,
    prose,
    run_parts,
    that_fit,
)
from ndld_flow.report.exports.spreadsheets import sweep_parts
from ndld_flow.runs.outputs import Outputs, name_folder
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.hidden_credentials import hide_credentials

_TIMEOUT_S = 120
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*/(?!\.{1,2}$)[A-Za-z0-9_.-]+")
_HOST = re.compile(r"https?://([A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?)(?:/|$)")
_STATUS = re.compile(r"HTTP ([0-9]{3})")
_PLAIN_OUTPUT = {"NO_COLOR": "1", "CLICOLOR_FORCE": "0", "GH_FORCE_TTY": "", "GH_NO_UPDATE_NOTIFIER": "1"}
"""Variables without which `gh` may colour its JSON."""
_INSTALL = {"gh": "https://cli.github.com", "glab": "https://docs.gitlab.com/cli/"}
_PERMISSIONS = {
    "gh": "Give the job `permissions: {contents: read, pull-requests: write}`, and this step `env: {GH_TOKEN: "
    "${{ github.token }}}`.",
    "glab": "Set the CI variable GITLAB_TOKEN to a project access token with the scope `api` and the role Reporter; "
    "the job's own CI_JOB_TOKEN cannot comment.",
}
"""How to let a job comment."""


@dataclass(frozen=True)
class Discussion:
    """The comments of one pull request."""

    program: Literal["gh", "glab"]
    title: str
    """The pull request in messages: `owner/name#17`."""
    host: str
    comments: str
    """Path of the list of comments, and of new ones, in the API."""
    comment: str
    """Path of a single comment, without its id."""


@dataclass(frozen=True)
class NoDiscussion:
    """The reason why a job has no pull request on which it could comment; it is no error."""

    reason: str


class _RefusedError(RequestError):
    """`gh` or `glab` failed."""

    status: int = 0
    """The HTTP status that the server answered; 0 if it is not known."""


def find_discussion(environment: Mapping[str, str], number: int | None = None) -> Discussion | NoDiscussion:
    """Return the discussion of a job's pull request, or of the one with this number.

    Raises RequestError outside of CI, and where a pull request cannot be looked up.
    """
    if environment.get("GITHUB_REPOSITORY"):
        return _on_github(environment, number)
    if environment.get("CI_API_V4_URL"):
        return _on_gitlab(environment, number)
    raise RequestError(
        "there is no pull request to comment on: neither GITHUB_REPOSITORY nor CI_API_V4_URL is set, so this is no job "
        "of GitHub or GitLab. Write the Markdown to a file with --to."
    )


def post_comment(discussion: Discussion, marker: str, body: str) -> tuple[str, bool]:
    """Post a comment, or replace the text of the one with the same marker by the same account.

    Returns its URL, or the title of the pull request where the server has none, and whether it is new. Raises
    RequestError where it cannot be posted.
    """
    update: Literal["PATCH", "PUT"] = "PATCH" if discussion.program == "gh" else "PUT"
    for existing in _find_comments(discussion, marker):
        try:
            posted, is_new = _call(discussion, update, f"{discussion.comment}/{existing}", body), False
        except _RefusedError as error:
            if error.status not in (403, 404):  # those were deleted meanwhile, or other bots own them
                raise
        else:
            break
    else:
        posted, is_new = _call(discussion, "POST", discussion.comments, body), True
    url = next((each.get("html_url") for each in posted if isinstance(each, dict)), "")  # GitLab has none
    return short_name(str(url or discussion.title), 300), is_new


def _find_comments(discussion: Discussion, marker: str) -> Iterator[int]:
    """Yield the ids of comments that begin with the marker, the oldest first.

    A comment of another account does not count, although a job may often edit it: its author could change a verdict
    after it was written there.
    """
    own = _account(discussion)
    order = "&sort=asc&order_by=created_at" if discussion.program == "glab" else ""
    for comment in _list(discussion, f"{discussion.comments}?per_page=100{order}"):
        author = comment.get("user") or comment.get("author") or {}
        name = author.get("login") or author.get("username")
        is_own = name == own if own else author.get("type") == "Bot"
        if is_own and str(comment.get("body") or "").startswith(marker):
            yield int(comment["id"])


def _account(discussion: Discussion) -> str:
    """Return the name of the token's account; empty for the token of a GitHub job or app, which is a bot's."""
    try:
        answers = _call(discussion, "GET", "user")
    except _RefusedError as error:
        if discussion.program == "gh" and error.status in (403, 404):
            return ""
        raise
    account = next((each for each in answers if isinstance(each, dict)), {})
    return str(account.get("login") or account.get("username") or "")


def _list(discussion: Discussion, path: str) -> list[dict[str, Any]]:
    """Return the items of a list with all of its pages."""
    pages = [page for page in _call(discussion, "GET", path) if isinstance(page, list)]
    return [item for page in pages for item in page if isinstance(item, dict)]


def _call(discussion: Discussion, method: str, path: str, body: str | None = None) -> list[Any]:
    """Return the JSON documents that an API answers: one for each page of a list, or all pages as one."""
    program = shutil.which(discussion.program)
    if program is None:
        raise RequestError(
            f"{discussion.title}: `{discussion.program}`, which posts the comment, is not installed: "
            f"{_INSTALL[discussion.program]}. Or write the Markdown to a file with --to, and post that."
        )
    command = [program, "api", "--hostname", discussion.host, "--method", method]
    if body is not None:
        command += ["--header", "Content-Type: application/json", "--input", "-"]  # no argument: it is long
    elif method == "GET":
        command.append("--paginate")
    try:
        done = subprocess.run(
            [*command, path],
            input=b"" if body is None else json.dumps({"body": body}).encode(),
            env={**os.environ, **_PLAIN_OUTPUT},
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise _RefusedError(f"{discussion.title}: `{discussion.program}` gave no answer in {_TIMEOUT_S} s.") from None
    except OSError as error:
        raise _RefusedError(f"{discussion.title}: {program} cannot be started ({error.strerror}).") from None
    if done.returncode:
        message = " ".join(done.stderr.decode("utf-8", "replace").split())
        status = _STATUS.search(message)
        remedy = "" if status and status[1] not in ("401", "403", "404") else f" {_PERMISSIONS[discussion.program]}"
        refused = _RefusedError(f"{discussion.title}: the comment was not posted: {short_name(message, 300)}.{remedy}")
        refused.status = int(status[1]) if status else 0
        raise refused
    try:
        return list(_documents(done.stdout.decode("utf-8", "replace")))
    except ValueError:
        raise _RefusedError(f"{discussion.title}: `{discussion.program}` printed no JSON. Update it.") from None


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a text, one after another."""
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


_URL = re.compile(r"https?://[\w.:/%?=&#~+-]+")


def describe_job(environment: Mapping[str, str]) -> str:
    """Return a line of Markdown with the commit that was tested, and a link to the job."""
    event = _read_event(environment)
    proposed, run = event.get("pull_request") or {}, event.get("workflow_run") or {}
    commit = (proposed.get("head") or {}).get("sha") or run.get("head_sha")
    commit = commit or environment.get("GITHUB_SHA") or environment.get("CI_COMMIT_SHA") or ""
    job = environment.get("CI_JOB_URL") or run.get("html_url") or ""
    if not job and environment.get("GITHUB_RUN_ID"):
        site, repository = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_REPOSITORY", "")
        job = f"{site}/{repository}/actions/runs/{environment['GITHUB_RUN_ID']}"
    of_commit = f"Commit {code(str(commit), 12)}" if re.fullmatch(r"[0-9a-f]{7,64}", str(commit)) else ""
    link = f"[log and report]({job})" if _URL.fullmatch(str(job)) else ""
    return " · ".join(filter(None, [of_commit, link]))


_FROM_A_FORK = (
    "it comes from a fork, whose jobs have no permission to comment. A workflow that runs on `workflow_run` can: see "
    "docs/how-to/ci.md"
)


def _on_github(environment: Mapping[str, str], number: int | None) -> Discussion | NoDiscussion:
    event = _read_event(environment)
    proposed = event.get("pull_request")
    if number is None and isinstance(proposed, dict) and _is_foreign(proposed):
        return NoDiscussion(f"pull request {proposed.get('number')} was not commented on: {_FROM_A_FORK}")
    found = number or _number(proposed) or _number(event.get("issue"))
    if found is None and "workflow_run" not in event:
        name = environment.get("GITHUB_EVENT_NAME", "")
        return NoDiscussion(f"nothing was posted: the event `{short_name(name, 40)}` belongs to no pull request")
    repository, host = environment["GITHUB_REPOSITORY"], _host_of(environment, "GITHUB_SERVER_URL")
    if not _REPOSITORY.fullmatch(repository):
        raise RequestError(f"GITHUB_REPOSITORY: {short_name(repository, 200)} is not written as OWNER/NAME.")

    def discussion(of: int | str) -> Discussion:
        comments = f"repos/{repository}/issues/{of}/comments"
        return Discussion("gh", f"{repository}#{of}", host, comments, f"repos/{repository}/issues/comments")

    if found is not None:
        return discussion(found)
    # The event does not list pull requests of forks, and an artifact of the run must not be trusted with the number:
    # the one whose branch and commit are those of the run is asked for.
    run = event["workflow_run"]
    head = f"{run['head_repository']['owner']['login']}:{run['head_branch']}"
    pulls = _list(discussion("?"), f"repos/{repository}/pulls?{urlencode({'state': 'open', 'head': head})}")
    numbers = [pull["number"] for pull in pulls if pull["head"]["sha"] == run["head_sha"]]
    found = int(numbers[0]) if len(numbers) == 1 else None
    if found is None:
        return NoDiscussion("nothing was posted: the workflow run belongs to no open pull request")
    return discussion(found)


def _read_event(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the event that started the job; empty if it cannot be read."""
    try:
        event = json.loads(read_bounded(Path(environment["GITHUB_EVENT_PATH"])))
    except (KeyError, OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}


def _is_foreign(proposed: Mapping[str, Any]) -> bool:
    """Return whether a pull request comes from a fork, or from one that was deleted."""
    names = [((proposed.get(side) or {}).get("repo") or {}).get("full_name") for side in ("head", "base")]
    return names[0] != names[1]


def _number(item: Any) -> int | None:  # noqa: ANN401 - parsed JSON
    """Return the number of a pull request, or of an issue that is one."""
    if not isinstance(item, dict) or ("head" not in item and "pull_request" not in item):
        return None
    number = item.get("number")
    return number if isinstance(number, int) else None


def _on_gitlab(environment: Mapping[str, str], number: int | None) -> Discussion | NoDiscussion:
    found = str(number or environment.get("CI_MERGE_REQUEST_IID") or "")
    if not found:
        return NoDiscussion("nothing was posted: the pipeline belongs to no merge request")
    project = environment.get("CI_MERGE_REQUEST_PROJECT_ID") or environment.get("CI_PROJECT_ID", "")
    if not (found.isdecimal() and project.isdecimal()):
        raise RequestError(
            f"CI_MERGE_REQUEST_IID {short_name(found, 40)!r} and the project's id {short_name(project, 40)!r} must be "
            "numbers."
        )
    path = environment.get("CI_MERGE_REQUEST_PROJECT_PATH") or environment.get("CI_PROJECT_PATH") or project
    notes = f"projects/{project}/merge_requests/{found}/notes"
    host = _host_of(environment, "CI_API_V4_URL")
    return Discussion("glab", short_name(f"{path}!{found}", 200), host, comments=notes, comment=notes)


def _host_of(environment: Mapping[str, str], name: str) -> str:
    """Return the host of the URL in a variable."""
    url = environment.get(name) or "https://github.com"
    found = _HOST.match(url)
    if found is None:
        raise RequestError(f"{name}: {short_name(url, 200)} is no URL of a server.")
    return found[1]


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
    outcome = kept.outcome(folder) or "interrupted"
    # A run that is still running, or was killed before it could record its end, has not passed.
    exit_code = ENDINGS["interrupted" if outcome == "running" else outcome].exit_code
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
    with explaining_file(path, "the summary of the job"), Path(path).open("a", encoding="utf-8") as file:
        file.write("\n".join([*filter(None, parts), ""]))


def write_markdown(result: Commented, to: Path) -> None:
    """Write a result into a file. Raises OutputsError."""
    with explaining_file(to, "the Markdown"):
        write_text_atomically(to, result.markdown)
