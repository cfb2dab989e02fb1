"""Comments on pull requests, posted by stand-ins that behave as `gh api` and `glab api` do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.compare import comment_run
from ndld_flow.compare.comment_run import Discussion, NoDiscussion, describe_job, find_discussion, post_comment
from tests.support.forge import TOKEN, Fault, Forge
from tests.support.message_files import CheckMessage

SERVICES = ["GitHub", "GitLab"]
MARKER = "<!-- ndld-flow: ci -->"


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    forge = Forge(tmp_path)
    for name, value in {**forge.environment("GitLab"), **forge.environment("GitHub")}.items():
        if name in ("PATH", "GH_TOKEN", "GITLAB_TOKEN"):
            monkeypatch.setenv(name, value)
    return forge


def discussion_of(forge: Forge, service: str, event: dict[str, Any] | None = None, folder: Path | None = None) -> Any:
    environment = forge.environment(service)
    if folder is not None:
        (folder / "event.json").write_text(json.dumps(event))
        environment["GITHUB_EVENT_PATH"] = str(folder / "event.json")
    return find_discussion(environment, None if folder else 7)


def post(forge: Forge, service: str, text: str) -> tuple[str, bool]:
    if service == "GitLab":
        forge.set(account="model-bot")
    discussion = discussion_of(forge, service)
    assert isinstance(discussion, Discussion)
    return post_comment(discussion, MARKER, f"{MARKER}\n{text}")


@pytest.mark.parametrize("service", SERVICES)
def test_a_later_result_replaces_the_comment(forge: Forge, service: str) -> None:
    assert post(forge, service, "first") == ("https://forge/1" if service == "GitHub" else "team/model!7", True)
    assert not post(forge, service, "second")[1]
    assert [comment["body"] for comment in forge.comments] == [f"{MARKER}\nsecond"]
    host = "github.example" if service == "GitHub" else "gitlab.example:8443"
    assert {call[call.index("--hostname") + 1] for call in forge.calls} == {host}


@pytest.mark.parametrize("service", SERVICES)
def test_the_comment_is_found_on_a_later_page(forge: Forge, service: str) -> None:
    forge.add("a remark", count=230)
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
def test_any_text_is_posted_as_it_is(forge: Forge, service: str) -> None:
    """As an argument, `gh` would read `@file` and replace `{owner}`, and the system would refuse 130 kB."""
    text = "@/etc/passwd {owner} :id $(id) \u20ac \"'\\ " + "x" * 60_000
    post(forge, service, text)
    assert forge.comments[0]["body"] == f"{MARKER}\n{text}"
    assert not any("passwd" in word for call in forge.calls for word in call)


def test_a_lost_answer_creates_no_second_comment(forge: Forge) -> None:
    forge.set(faults=[Fault(502, "Bad Gateway", "POST", after=True)])
    with pytest.raises(RequestError):
        post(forge, "GitHub", "first")
    assert not post(forge, "GitHub", "second")[1]
    assert [comment["body"] for comment in forge.comments] == [f"{MARKER}\nsecond"]


@pytest.mark.parametrize("status", [403, 404])
def test_a_comment_that_cannot_be_changed_is_posted_anew(forge: Forge, status: int) -> None:
    """It was deleted meanwhile, or is that of another bot."""
    forge.add(f"{MARKER}\nof another bot", "another[bot]", "Bot")
    forge.set(faults=[Fault(status, "Resource not accessible", "PATCH")])
    assert post(forge, "GitHub", "second") == ("https://forge/2", True)
    forge.set(faults=[Fault(status, "Resource not accessible", "PATCH")])
    assert post(forge, "GitHub", "third") == ("https://forge/2", False)
    assert [comment["body"] for comment in forge.comments] == [f"{MARKER}\nof another bot", f"{MARKER}\nthird"]


def test_an_outage_creates_no_second_comment(forge: Forge) -> None:
    post(forge, "GitHub", "first")
    forge.set(faults=[Fault(503, "maintenance", "PATCH")])
    with pytest.raises(RequestError):
        post(forge, "GitHub", "second")
    assert len(forge.comments) == 1


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(("status", "has_remedy"), [(401, True), (403, True), (404, True), (422, False), (503, False)])
def test_a_refusal_is_one_paragraph_with_the_remedy(
    forge: Forge, service: str, status: int, has_remedy: bool, check_message: CheckMessage
) -> None:
    forge.set(faults=[Fault(status, "so it is\nand not otherwise", "POST")])
    with pytest.raises(RequestError) as caught:
        post(forge, service, "x")
    text = str(caught.value)
    check_message(text)
    assert TOKEN not in text and "\n" not in text
    assert (("pull-requests: write" if service == "GitHub" else "GITLAB_TOKEN") in text) == has_remedy


@pytest.mark.parametrize("service", SERVICES)
def test_a_missing_token_is_explained(forge: Forge, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "GH_TOKEN" if service == "GitHub" else "GITLAB_TOKEN"
    monkeypatch.delenv(name)
    with pytest.raises(RequestError, match=name):
        post(forge, service, "x")


@pytest.mark.parametrize(("service", "program"), [("GitHub", "gh"), ("GitLab", "glab")])
def test_a_missing_program_is_named_with_the_remedies(
    forge: Forge, service: str, program: str, check_message: CheckMessage
) -> None:
    (forge.programs / program).unlink()
    if shutil.which(program):
        pytest.skip(f"{program} is installed")
    with pytest.raises(RequestError) as caught:
        post(forge, service, "x")
    check_message(caught.value)


def test_a_program_that_hangs_is_ended(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    (forge.programs / "gh").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(comment_run, "_TIMEOUT_S", 0.1)
    with pytest.raises(RequestError) as caught:
        post(forge, "GitHub", "x")
    check_message(caught.value)


def test_other_output_than_json_is_an_error(forge: Forge, check_message: CheckMessage) -> None:
    (forge.programs / "gh").write_text("#!/bin/sh\necho welcome\n")
    with pytest.raises(RequestError) as caught:
        post(forge, "GitHub", "x")
    check_message(caught.value)


@pytest.mark.parametrize(
    ("service", "name", "value"),
    [
        ("GitHub", "GITHUB_REPOSITORY", "team/../../user"),
        ("GitHub", "GITHUB_REPOSITORY", "team/.."),
        ("GitHub", "GITHUB_REPOSITORY", "--input/x"),
        ("GitHub", "GITHUB_REPOSITORY", "team/model/issues"),
        ("GitHub", "GITHUB_SERVER_URL", "https://user@elsewhere"),
        ("GitHub", "GITHUB_SERVER_URL", "https://-x"),
        ("GitLab", "CI_MERGE_REQUEST_IID", "7/../8"),
        ("GitLab", "CI_MERGE_REQUEST_PROJECT_ID", "12/x"),
        ("GitLab", "CI_API_V4_URL", "file:///etc"),
    ],
)
def test_a_hostile_variable_reaches_no_command_line(forge: Forge, service: str, name: str, value: str) -> None:
    number = None if name == "CI_MERGE_REQUEST_IID" else 7
    with pytest.raises(RequestError, match=name if service == "GitHub" else "CI_"):
        find_discussion({**forge.environment(service), name: value}, number)
    assert forge.calls == []


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
    pulls = [{"number": 6, "head": {"sha": "b" * 40}}, {"number": 7, "head": {"sha": "a" * 40}}]
    forge.set(pulls=pulls)
    assert discussion_of(forge, "GitHub", {"workflow_run": run}, tmp_path).title == "team/model#7"
    assert "head=stranger%3Afaster" in forge.calls[-1][-1]
    forge.set(pulls=pulls[:1])
    assert isinstance(discussion_of(forge, "GitHub", {"workflow_run": run}, tmp_path), NoDiscussion)


def test_outside_of_ci_there_is_no_pull_request(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        find_discussion({})
    check_message(caught.value)


def test_the_comment_names_the_tested_commit(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": PROPOSED}))
    environment = {
        **forge.environment("GitHub"),
        "GITHUB_SHA": "f" * 40,
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
    }
    line = describe_job(environment)
    assert "aaaaa" in line and "fffff" not in line, "GITHUB_SHA is the merge commit"
    assert "(https://github.example/team/model/actions/runs/99)" in line
    assert "](" not in describe_job({"CI_JOB_URL": "https://forge/1) [click](https://elsewhere"})
