"""The result of a run as a comment: the verdict, the comparison with a baseline, exit codes, and the job's summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.compare.comment_run import Commented
from ndld_flow.records.run_folder import RUN_RECORD
from ndld_flow.report.exports.pull_requests import HEADING, that_fit
from ndld_flow.runs.outputs import Outputs
from tests.support.command_line import ndld_flow
from tests.support.forge import Fault, Forge
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

QUICK = "runs: 1, passes: 2, duration: 0, stable: 0 %, warmup: 0, warmup_passes: 0, layer_passes: 0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that passes, `good`, and one whose gate fails, `bad`."""
    place = tmp_path_factory.mktemp("comment")
    make_cnn(place / "model.onnx")
    for name, gate in (("good", "sanitize.nodes >= 1"), ("bad", "sanitize.nodes <= 1")):
        (place / f"{name}.yaml").write_text(
            f"name: {name}\nmodel: {place}/model.onnx\nsteps:\n  sanitize: {{}}\n"
            f"  speed: {{step: profile, {QUICK}}}\ngates: [{gate}]\n"
        )
        api.run(place / f"{name}.yaml", outputs=place / "outputs")
    return place


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Forge:
    """Stand-ins of `gh` and `glab`, and the environment of a job."""
    forge = Forge(tmp_path)
    (tmp_path / "event.json").write_text(json.dumps({"number": 7, "pull_request": {"number": 7, "head": {}}}))
    paths = {"GITHUB_EVENT_PATH": tmp_path / "event.json", "GITHUB_STEP_SUMMARY": tmp_path / "summary.md"}
    for name, value in {**forge.environment("GitHub"), **paths}.items():
        monkeypatch.setenv(name, str(value))
    return forge


def comment(folder: Path, run: str | None, **options: Any) -> Commented:
    return api.comment(run, outputs=folder / "outputs", **options)


def test_the_comment_begins_with_the_outcome_and_updates(folder: Path, forge: Forge, tmp_path: Path) -> None:
    done = ndld_flow("comment", "good", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "posted https://forge/1\n")
    done = ndld_flow("comment", "good", cwd=folder)
    assert done.stdout == "updated https://forge/1\n"
    lines = forge.comments[0]["body"].splitlines()
    assert lines[0] == "<!-- ndld-flow: good -->"
    assert lines[1].startswith("### ✅ PASSED good")
    assert "actions/runs/99" in lines[-1]
    assert (tmp_path / "summary.md").read_text().count("### ✅ PASSED good") == 2


def test_a_failed_run_fails_the_job_after_the_comment(folder: Path, forge: Forge) -> None:
    assert ndld_flow("comment", "bad", "--key", "mine", cwd=folder).returncode == 1
    assert "### ❌ FAILED bad" in forge.comments[0]["body"]
    assert forge.comments[0]["body"].startswith("<!-- ndld-flow: mine -->")


def test_a_passed_run_whose_comment_is_refused_does_not_pass(
    folder: Path, forge: Forge, tmp_path: Path, check_message: CheckMessage
) -> None:
    forge.set(faults=[Fault(403, "Resource not accessible by integration", method="POST")])
    done = ndld_flow("comment", "good", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    check_message(done.stderr)
    assert "was not posted" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(("alive", "heading"), [(False, "### ❌ INTERRUPTED good"), (True, "### ❔ RUNNING good")])
def test_a_run_without_an_end_has_not_passed(
    alive: bool, heading: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / "outputs"
    path = Path(api.run(folder / "good.yaml", outputs=outputs).folder)
    record = json.loads((path / RUN_RECORD).read_text())
    (path / RUN_RECORD).chmod(0o644)
    (path / RUN_RECORD).write_text(json.dumps(record | {"outcome": "running"}))
    monkeypatch.setattr(Outputs, "is_alive", lambda *_: alive)
    result = api.comment(str(path), outputs=outputs, to=tmp_path / "comment.md")
    assert (result.exit_code, result.markdown.startswith(heading)) == (130, True), result.markdown


def test_a_baseline_is_compared_with(folder: Path, tmp_path: Path) -> None:
    result = comment(folder, "good", against="bad:speed", to=tmp_path / "comment.md")
    markdown = (tmp_path / "comment.md").read_text()
    assert markdown == result.markdown
    first, second = [line for line in markdown.splitlines() if line.startswith("### ")]
    assert "PASSED good" in first
    assert any(word in second for word in ("improved", "regressed", "unchanged", "inconclusive"))
    assert "<code>good&#58;speed</code>" in markdown and "<code>bad&#58;speed</code>" in markdown


@pytest.mark.parametrize(("gate", "expected"), [("latency.median <= +100000 %", 0), ("model.bytes <= 1 B", 1)])
def test_gates_of_the_comparison_decide(folder: Path, tmp_path: Path, gate: str, expected: int) -> None:
    result = comment(folder, "good", against="bad", gates=(gate,), to=tmp_path / "comment.md")
    assert result.exit_code == expected


def test_a_missing_baseline_is_shown_and_fails_only_a_gate(folder: Path, tmp_path: Path) -> None:
    result = comment(folder, "good", against="nothing", to=tmp_path / "comment.md")
    assert (result.exit_code, "not compared with nothing" in result.markdown) == (0, True)
    gated = comment(folder, "good", against="nothing", gates=("latency.median <= +5 %",), to=tmp_path / "comment.md")
    assert gated.exit_code == 2


def test_a_refused_run_replaces_an_earlier_verdict(folder: Path, forge: Forge, tmp_path: Path) -> None:
    comment(folder, "good", key="ci")
    (tmp_path / "run.txt").write_text("error: my.yaml:3: steps.speed.passes: `x` @team <b>|\n")
    assert comment(folder, None, log=tmp_path / "run.txt", key="ci").exit_code == 2
    [posted] = forge.comments
    assert "PASSED" not in posted["body"]
    assert "There is no result" in posted["body"]
    assert "@team" not in posted["body"] and "<b>" not in posted["body"]


def test_a_log_is_no_command_of_gitlab(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("/merge\n/close\n")
    result = comment(folder, None, log=tmp_path / "run.txt", to=tmp_path / "comment.md")
    assert "merge" in result.markdown
    assert not [line for line in result.markdown.splitlines() if line.lstrip().startswith("/")]


def test_a_sweep_has_a_comment(folder: Path, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    (tmp_path / "sweep.yaml").write_text(
        f"name: threads\nmodel: {folder}/model.onnx\nsteps:\n  sanitize: {{}}\n"
        "sweep: {over: {sanitize.passes: [1, 2]}, minimize: sanitize.nodes}\n"
    )
    api.run(tmp_path / "sweep.yaml", outputs=outputs)
    result = api.comment("threads", outputs=outputs, to=tmp_path / "comment.md")
    assert (result.exit_code, result.markdown.startswith("### ✅ <code>threads</code>")) == (0, True)


def test_the_folder_of_a_run_is_enough(folder: Path, tmp_path: Path) -> None:
    """As where a second workflow comments on what the workflow of a fork uploaded."""
    run = next((folder / "outputs/runs/good").glob("2*"))
    result = api.comment(str(run), outputs=tmp_path / "none", to=tmp_path / "comment.md")
    assert "PASSED good" in result.markdown


def test_the_summary_alone(folder: Path, forge: Forge, tmp_path: Path) -> None:
    done = ndld_flow("comment", "good", "--summary-only", cwd=folder)
    assert (done.returncode, forge.calls) == (0, [])
    assert "PASSED good" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("arguments", [[], ["good", "--log", "good.yaml"], ["good", "--measure"]])
def test_contradictions_are_refused(folder: Path, arguments: list[str]) -> None:
    assert ndld_flow("comment", *arguments, cwd=folder).returncode == 2


def test_without_a_pull_request_the_error_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_REPOSITORY", "CI_API_V4_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError, match="--to"):
        comment(folder, "good")


def test_verdicts_have_precedence_where_not_all_fits() -> None:
    parts = ["### first\n", "x" * 59_000, "y" * 30_000, "### second\n"]
    kept = list(that_fit(parts))
    assert kept[:3] == ["### first\n", "x" * 59_000, "### second\n"]
    assert "maximum length" in kept[-1]
    assert len("\n".join(that_fit([f"{HEADING}{'v' * 1000}\n"] * 200))) < 61_000
