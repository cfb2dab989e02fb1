"""Comments on pull requests, posted to a server that answers as GitHub and GitLab do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.runner.pull_request import Discussion, NoDiscussion, describe_job, find_discussion, post_comment
from tests.support.forge import TOKEN, Fault, Forge, running_forge

SERVICES = ["GitHub", "GitLab"]
MARKER = "<!-- ndld-flow: ci -->"


@pytest.fixture
def forge() -> Iterator[Forge]:
    with running_forge() as forge:
        yield forge


def discussion_of(forge: Forge, service: str, event: dict[str, Any] | None = None, folder: Path | None = None) -> Any:
    environment = forge.environment(service)
    if folder is not None:
        (folder / "event.json").write_text(json.dumps(event))
        environment["GITHUB_EVENT_PATH"] = str(folder / "event.json")
    return find_discussion(environment, None if folder else 7)


def post(forge: Forge, service: str, text: str, waited: list[float] | None = None) -> tuple[str, bool]:
    forge.account = forge.account or ("model-bot" if service == "GitLab" else "")
    discussion = discussion_of(forge, service)
    assert isinstance(discussion, Discussion)
    return post_comment(discussion, MARKER, f"{MARKER}\n{text}", sleep=([] if waited is None else waited).append)


@pytest.mark.parametrize("service", SERVICES)
def test_a_later_result_replaces_the_comment(forge: Forge, service: str) -> None:
    assert post(forge, service, "first")[1]
    assert not post(forge, service, "second")[1]
    assert [comment["body"] for comment in forge.comments] == [f"{MARKER}\nsecond"]


@pytest.mark.parametrize("service", SERVICES)
def test_the_comment_is_found_on_a_later_page(forge: Forge, service: str) -> None:
    for number in range(230):
        forge.add(f"remark {number}")
    post(forge, service, "first")
    post(forge, service, "second")
    assert len(forge.comments) == 231
    assert forge.comments[-1]["body"] == f"{MARKER}\nsecond"


@pytest.mark.parametrize("service", SERVICES)
def test_a_comment_of_someone_else_with_the_marker_stays(forge: Forge, service: str) -> None:
    """Its author could change the verdict afterwards."""
    forge.add(f"{MARKER}\nPASSED, honestly")
    post(forge, service, "FAILED")
    assert [comment["body"] for comment in forge.comments] == [f"{MARKER}\nPASSED, honestly", f"{MARKER}\nFAILED"]


def test_other_keys_have_other_comments(forge: Forge) -> None:
    forge.add("<!-- ndld-flow: ci-gpu -->\nother", "github-actions[bot]", "Bot")
    post(forge, "GitHub", "mine")
    assert len(forge.comments) == 2


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", [Fault(500), Fault(502), Fault(429, headers={"Retry-After": "3"})])
def test_an_outage_is_waited_for(forge: Forge, service: str, fault: Fault) -> None:
    forge.faults = [Fault(fault.code, headers=fault.headers, method=method) for method in ("GET", "POST")]
    waited: list[float] = []
    post(forge, service, "here", waited)
    assert waited == ([3, 3] if fault.headers else [1, 2])
    assert len(forge.comments) == 1


def test_a_limit_of_rates_is_no_lack_of_permission(forge: Forge) -> None:
    forge.faults = [Fault(403, "secondary rate limit", {"Retry-After": "1"}, "POST")]
    post(forge, "GitHub", "here")
    assert len(forge.comments) == 1


@pytest.mark.parametrize("service", SERVICES)
def test_a_lost_answer_creates_no_second_comment(forge: Forge, service: str) -> None:
    forge.faults = [Fault(502, method="POST", after=True)]
    assert not post(forge, service, "here")[1]
    assert [comment["body"] for comment in forge.comments] == [f"{MARKER}\nhere"]


def test_a_comment_deleted_meanwhile_is_created_again(forge: Forge) -> None:
    post(forge, "GitHub", "first")
    forge.faults = [Fault(404, method="PATCH")]
    post(forge, "GitHub", "second")
    assert forge.comments[-1]["body"] == f"{MARKER}\nsecond"


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("code", "expected"),
    [(401, "wrong or has expired"), (403, "may not comment"), (404, "no such pull request"), (422, "422 (Body")],
)
def test_a_refusal_is_one_paragraph_with_the_remedy(forge: Forge, service: str, code: int, expected: str) -> None:
    forge.faults = [Fault(code, "Body is too long", method="POST")]
    with pytest.raises(RequestError, match="not posted") as caught:
        post(forge, service, "x")
    assert expected in str(caught.value)
    assert TOKEN not in str(caught.value) and "\n" not in str(caught.value)
    if code in (403, 404):
        assert ("pull-requests: write" if service == "GitHub" else "GITLAB_TOKEN") in str(caught.value)


def test_a_lasting_outage_ends(forge: Forge) -> None:
    forge.faults = [Fault(503, "maintenance") for _ in range(9)]
    waited: list[float] = []
    with pytest.raises(RequestError, match=r"503 \(maintenance\)\. Run the job again later"):
        post(forge, "GitHub", "x", waited)
    assert waited == [1, 2, 4, 8]


def test_an_hour_is_not_waited_for(forge: Forge) -> None:
    forge.faults = [Fault(429, headers={"Retry-After": "3600"})]
    waited: list[float] = []
    with pytest.raises(RequestError, match="429"):
        post(forge, "GitHub", "x", waited)
    assert waited == []


def test_no_server_is_an_error_too(forge: Forge) -> None:
    environment = {**forge.environment("GitHub"), "GITHUB_API_URL": "http://127.0.0.1:1"}
    discussion = find_discussion(environment, 7)
    assert isinstance(discussion, Discussion)
    with pytest.raises(RequestError, match="GitHub gave no answer"):
        post_comment(discussion, MARKER, MARKER, sleep=lambda _: None)


def test_the_token_does_not_follow_a_redirection(forge: Forge) -> None:
    with running_forge() as elsewhere:
        forge.faults = [Fault(307, headers={"Location": f"{elsewhere.api}/user"}, method="POST")]
        with pytest.raises(RequestError, match="has moved"):
            post(forge, "GitHub", "x")
        assert elsewhere.requests == []


PROPOSED = {
    "number": 7,
    "head": {"sha": "a" * 40, "repo": {"full_name": "team/model"}},
    "base": {"repo": {"full_name": "team/model"}},
}


def test_the_event_names_the_pull_request(forge: Forge, tmp_path: Path) -> None:
    discussion = discussion_of(forge, "GitHub", {"pull_request": PROPOSED}, tmp_path)
    assert discussion.title == "team/model#7"


@pytest.mark.parametrize("repository", [{"full_name": "stranger/model"}, None])
def test_nothing_is_posted_on_the_request_of_a_fork(forge: Forge, tmp_path: Path, repository: Any) -> None:
    foreign = {**PROPOSED, "head": {"sha": "a" * 40, "repo": repository}}
    found = discussion_of(forge, "GitHub", {"pull_request": foreign}, tmp_path)
    assert isinstance(found, NoDiscussion)
    assert "from a fork" in found.reason


def test_a_push_has_no_pull_request(forge: Forge, tmp_path: Path) -> None:
    assert isinstance(discussion_of(forge, "GitHub", {"ref": "refs/heads/main"}, tmp_path), NoDiscussion)
    environment = {**forge.environment("GitLab"), "CI_MERGE_REQUEST_IID": ""}
    assert isinstance(find_discussion(environment), NoDiscussion)


def test_an_issue_is_no_pull_request(forge: Forge, tmp_path: Path) -> None:
    assert isinstance(discussion_of(forge, "GitHub", {"issue": {"number": 7}}, tmp_path), NoDiscussion)
    of_pull = {"issue": {"number": 7, "pull_request": {}}}
    assert discussion_of(forge, "GitHub", of_pull, tmp_path).title == "team/model#7"


def test_a_workflow_run_finds_its_pull_request_by_branch_and_commit(forge: Forge, tmp_path: Path) -> None:
    run = {"head_repository": {"owner": {"login": "stranger"}}, "head_branch": "faster", "head_sha": "a" * 40}
    forge.pulls = [{"number": 6, "head": {"sha": "b" * 40}}, {"number": 7, "head": {"sha": "a" * 40}}]
    assert discussion_of(forge, "GitHub", {"workflow_run": run}, tmp_path).title == "team/model#7"
    assert "head=stranger%3Afaster" in forge.requests[-1]
    forge.pulls = forge.pulls[:1]
    assert isinstance(discussion_of(forge, "GitHub", {"workflow_run": run}, tmp_path), NoDiscussion)


@pytest.mark.parametrize("service", SERVICES)
def test_a_missing_token_is_explained(forge: Forge, service: str) -> None:
    environment = {name: value for name, value in forge.environment(service).items() if not name.endswith("TOKEN")}
    with pytest.raises(RequestError, match="no token to comment with"):
        find_discussion(environment, 7)


def test_outside_of_ci_there_is_no_pull_request() -> None:
    with pytest.raises(RequestError, match="Write the Markdown to a file with --to"):
        find_discussion({})


def test_the_comment_names_the_tested_commit(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": PROPOSED}))
    environment = {
        **forge.environment("GitHub"),
        "GITHUB_SHA": "f" * 40,
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
    }
    line = describe_job(environment)
    assert "aaaaa" in line and "fffff" not in line, "GITHUB_SHA is the merge commit"
    assert f"({forge.api}/team/model/actions/runs/99)" in line
    assert "](" not in describe_job({"CI_JOB_URL": "https://forge/1) [click](https://elsewhere"})
