"""Comments on pull requests of GitHub and merge requests of GitLab, found by the environment of a CI job.

The APIs: https://docs.github.com/rest/issues/comments and https://docs.gitlab.com/api/notes/. The variables:
https://docs.github.com/actions/reference/workflows-and-actions/variables and
https://docs.gitlab.com/ci/variables/predefined_variables/.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.records.document import read_bounded
from ndld_flow.report.exports.github_markdown import code

_TIMEOUT_S = 30
_ATTEMPTS = 5
_LONGEST_WAIT_S = 120
"""A server that asks for a longer pause is treated as one that refuses."""
_MOST_PAGES = 100
_MOST_BYTES = 20_000_000
_NEXT = re.compile(r'<([^>]+)>\s*;[^,]*rel="?next"?')
"""The next page in a `Link` header (RFC 8288)."""


@dataclass(frozen=True)
class Discussion:
    """The comments of one pull request."""

    service: str
    """`GitHub` or `GitLab`."""
    title: str
    """The pull request in messages: `owner/name#17`."""
    comments: str
    """URL of the list of comments, and of new ones."""
    comment: str
    """URL of a single comment, without its id."""
    user: str
    """URL of the account to which the token belongs."""
    update: str
    """The HTTP method that changes a comment."""
    headers: Mapping[str, str]
    permission: str
    """How to give a job the permission to comment."""


@dataclass(frozen=True)
class NoDiscussion:
    """The reason why a job has no pull request on which it could comment; it is no error."""

    reason: str


class _TransientError(Exception):
    """A failure that may pass: a limit of rates, an outage, a comment that was deleted meanwhile."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """The pause that the server asks for."""


def find_discussion(environment: Mapping[str, str], number: int | None = None) -> Discussion | NoDiscussion:
    """Return the discussion of a job's pull request, or of the one with this number.

    Raises RequestError outside of CI, without a token, and where the server refuses to look up the pull request.
    """
    if environment.get("GITHUB_REPOSITORY"):
        return _on_github(environment, number)
    if environment.get("CI_API_V4_URL"):
        return _on_gitlab(environment, number)
    raise RequestError(
        "there is no pull request to comment on: neither GITHUB_REPOSITORY nor CI_API_V4_URL is set, so this is no job "
        "of GitHub or GitLab. Write the Markdown to a file with --to."
    )


def post_comment(
    discussion: Discussion, marker: str, body: str, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, bool]:
    """Post a comment, or replace the text of the one with the same marker by the same account.

    Returns its URL, or the title of the pull request where the server has none, and whether it is new. Raises
    RequestError where the server refuses, or does not answer after several attempts. Each attempt begins with the
    search for the comment: one that was created although its answer was lost is not created again.
    """
    message = ""
    for attempt in range(_ATTEMPTS):
        try:
            return _post(discussion, marker, body)
        except _TransientError as error:
            message, wait_s = str(error), error.wait_s if error.wait_s is not None else 2.0**attempt
            if wait_s > _LONGEST_WAIT_S:
                break
            if attempt < _ATTEMPTS - 1:
                sleep(wait_s)
    raise RequestError(f"{discussion.title}: the comment was not posted: {message}. Run the job again later.")


def _post(discussion: Discussion, marker: str, body: str) -> tuple[str, bool]:
    existing = _find_comment(discussion, marker)
    if existing is None:
        posted, _ = _request(discussion, "POST", discussion.comments, body)
    else:
        posted, _ = _request(discussion, discussion.update, f"{discussion.comment}/{existing}", body)
    url = posted.get("html_url") if isinstance(posted, dict) else None  # GitLab has none
    return short_name(str(url or discussion.title), 300), existing is None


def _find_comment(discussion: Discussion, marker: str) -> int | None:
    """Return the id of the oldest comment that begins with the marker.

    A comment of another account does not count: its author could change a verdict after it was written there.
    """
    own = _account(discussion)
    for comment in _comments(discussion):
        author = comment.get("user") or comment.get("author") or {}
        name = author.get("login") or author.get("username")
        is_own = name == own if own else author.get("type") == "Bot"
        if is_own and str(comment.get("body") or "").startswith(marker):
            return int(comment["id"])
    return None


def _account(discussion: Discussion) -> str:
    """Return the name of the token's account; empty for the token of a GitHub job or app, which is a bot's."""
    try:
        account, _ = _request(discussion, "GET", discussion.user)
    except RequestError:
        if discussion.service == "GitHub":
            return ""
        raise
    return str(account.get("login") or account.get("username") or "") if isinstance(account, dict) else ""


def _comments(discussion: Discussion) -> Iterator[dict[str, Any]]:
    url = f"{discussion.comments}?per_page=100" + ("&sort=asc&order_by=created_at" * (discussion.service == "GitLab"))
    for _ in range(_MOST_PAGES):
        page, following = _request(discussion, "GET", url)
        yield from (comment for comment in page if isinstance(comment, dict)) if isinstance(page, list) else ()
        if not following.startswith(discussion.comments.partition("/repos/")[0].partition("/projects/")[0]):
            return
        url = following


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, which would carry the token to another server."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401 - as the library's
        return None


def _request(discussion: Discussion, method: str, url: str, body: str | None = None) -> tuple[Any, str]:
    """Return the JSON of an answer, and the URL of the next page."""
    data = None if body is None else json.dumps({"body": body}).encode()
    headers = {"User-Agent": "ndld-flow", "Accept": "application/json", **discussion.headers}
    if data is not None:
        headers["Content-Type"] = "application/json"
    if not url.startswith(("https://", "http://")):
        raise RequestError(f"{discussion.service}: {short_name(url)} is no address of an API.")
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the scheme is checked
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read(_MOST_BYTES)
            following = _NEXT.search(answer.headers.get("Link") or "")
            return json.loads(text), following[1] if following else ""
    except urllib.error.HTTPError as error:
        raise _refusal(discussion, error, method) from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # no connection, a cut-off answer, no JSON
        raise _TransientError(f"{discussion.service} gave no answer ({short_name(str(error))})") from None


def _refusal(discussion: Discussion, error: urllib.error.HTTPError, method: str) -> Exception:
    """Return the error for an answer other than success."""
    code, wait_s = error.code, _seconds(error.headers.get("Retry-After"))
    answer = f"{discussion.service} answered {code}{_message(error)}"
    limited = wait_s is not None or error.headers.get("X-RateLimit-Remaining") == "0"
    if code == 429 or code >= 500 or (code == 403 and limited):
        return _TransientError(answer, wait_s)
    if code == 404 and method not in ("GET", "POST"):
        return _TransientError("the comment was deleted meanwhile", 0)
    remedies = {
        401: "The token is wrong or has expired.",
        403: f"The token may not comment. {discussion.permission}",
        404: f"There is no such pull request, or the token may not see it. {discussion.permission}",
    }
    if 300 <= code < 400:
        return RequestError(
            f"{discussion.title}: {answer}: the repository has moved. Run the job in its new place; the token is not "
            "sent to another address."
        )
    return RequestError(f"{discussion.title}: the comment was not posted: {answer}. {remedies.get(code, '')}".strip())


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and re.fullmatch(r"\d{1,9}", header.strip()) else None


def _message(error: urllib.error.HTTPError) -> str:
    """Return the server's message in parentheses, or nothing."""
    try:
        message = json.loads(error.read(100_000))["message"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    return f" ({short_name(str(message), 200)})"


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


_GITHUB_PERMISSION = "Give the job `permissions: {contents: read, pull-requests: write}`."
_GITLAB_PERMISSION = (
    "Set the CI variable GITLAB_TOKEN to a project access token with the scope `api` and the role Reporter; the job's "
    "own CI_JOB_TOKEN cannot comment."
)
_FROM_A_FORK = (
    "it comes from a fork, whose jobs have no permission to comment. A workflow that runs on `workflow_run` can: see "
    "docs/how-to/ci.md"
)


def _on_github(environment: Mapping[str, str], number: int | None) -> Discussion | NoDiscussion:
    api = environment.get("GITHUB_API_URL") or "https://api.github.com"
    event = _read_event(environment)
    proposed = event.get("pull_request")
    if number is None and isinstance(proposed, dict) and _is_foreign(proposed):
        return NoDiscussion(f"pull request {proposed.get('number')} was not commented on: {_FROM_A_FORK}")
    token = environment.get("GITHUB_TOKEN")
    found = number or _number(proposed) or _number(event.get("issue"))
    if found is None and "workflow_run" not in event:
        name = environment.get("GITHUB_EVENT_NAME", "")
        return NoDiscussion(f"nothing was posted: the event `{short_name(name, 40)}` belongs to no pull request")
    if not token:
        raise RequestError(
            f"no token to comment with: set GITHUB_TOKEN, as `env: {{GITHUB_TOKEN: ${{{{ github.token }}}}}}`. "
            f"{_GITHUB_PERMISSION}"
        )
    repository = f"{api}/repos/{quote(environment['GITHUB_REPOSITORY'])}"

    def discussion(of: int | str) -> Discussion:
        return Discussion(
            service="GitHub",
            title=f"{environment['GITHUB_REPOSITORY']}#{of}",
            comments=f"{repository}/issues/{of}/comments",
            comment=f"{repository}/issues/comments",
            user=f"{api}/user",
            update="PATCH",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"},
            permission=_GITHUB_PERMISSION,
        )

    if found is not None:
        return discussion(found)
    found = _of_workflow_run(event["workflow_run"], repository, discussion("?"))
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


def _of_workflow_run(run: Any, repository: str, asked: Discussion) -> int | None:  # noqa: ANN401 - parsed JSON
    """Return the open pull request that a workflow run tested.

    The event does not list pull requests of forks, and an artifact of the run must not be trusted with the number: the
    one whose branch and commit are those of the run is asked for.
    """
    head = f"{run['head_repository']['owner']['login']}:{run['head_branch']}"
    try:
        found, _ = _request(asked, "GET", f"{repository}/pulls?{urlencode({'state': 'open', 'head': head})}")
    except _TransientError as error:
        raise RequestError(f"{short_name(head)}: its pull request was not found: {error}. Run the job again.") from None
    numbers = [pull["number"] for pull in found if pull["head"]["sha"] == run["head_sha"]]
    return int(numbers[0]) if len(numbers) == 1 else None


def _on_gitlab(environment: Mapping[str, str], number: int | None) -> Discussion | NoDiscussion:
    found = number or environment.get("CI_MERGE_REQUEST_IID")
    if not found:
        return NoDiscussion("nothing was posted: the pipeline belongs to no merge request")
    token = environment.get("GITLAB_TOKEN")
    if not token:
        raise RequestError(f"no token to comment with. {_GITLAB_PERMISSION}")
    project = environment.get("CI_MERGE_REQUEST_PROJECT_ID") or environment.get("CI_PROJECT_ID", "")
    api = environment["CI_API_V4_URL"]
    path = environment.get("CI_MERGE_REQUEST_PROJECT_PATH") or environment.get("CI_PROJECT_PATH") or project
    notes = f"{api}/projects/{quote(project, safe='')}/merge_requests/{quote(str(found), safe='')}/notes"
    return Discussion(
        service="GitLab",
        title=f"{path}!{found}",
        comments=notes,
        comment=notes,
        user=f"{api}/user",
        update="PUT",
        headers={"PRIVATE-TOKEN": token},
        permission=_GITLAB_PERMISSION,
    )
