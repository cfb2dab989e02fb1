"""The GitHub Action and the GitLab component: what they declare, and their scripts, carried out as a runner does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ndld_flow import __version__
from tests.support import pages
from tests.support.forge import TOKEN, Forge
from tests.support.job import ROOT, Job
from tests.support.models import make_cnn

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
SCRIPTS = sorted((ROOT / ".github/actions").glob("*.sh"))
QUICK = "runs: 1, passes: 2, duration: 0, stable: 0 %, warmup: 0, warmup_passes: 0, layer_passes: 2"


def test_inputs_never_become_shell() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", ""), "an input with `$(...)` would be run"
    scripts = (ROOT / "templates/run.yml").read_text().split("  script:\n")[1].split("  artifacts:")[0]
    assert "$[[" not in scripts


def test_what_the_action_refers_to_exists() -> None:
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"\binputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    known = {step["id"] for step in STEPS if "id" in step}
    assert set(re.findall(r"steps\.(\w+)\.", text)) <= known
    for script in re.findall(r"GITHUB_ACTION_PATH/(\S+\.sh)", text):
        assert (ROOT / script).is_file()
    names = {name for script in SCRIPTS for name in re.findall(r'echo "([\w-]+)=', script.read_text())}
    assert set(re.findall(r"steps\.\w+\.outputs\.([\w-]+)", text)) <= names | {"cache-hit"}


def test_the_component_uses_each_input() -> None:
    header, body = (ROOT / "templates/run.yml").read_text().split("\n---\n")
    assert set(re.findall(r"inputs\.([\w-]+)", body)) == set(yaml.safe_load(header)["spec"]["inputs"])


@pytest.mark.parametrize("path", [*SCRIPTS], ids=lambda path: path.name)
def test_scripts_can_be_parsed(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path)


class Project:
    """A repository with a recipe, and its jobs."""

    def __init__(self, folder: Path, forge: Forge, service: str) -> None:
        self.folder, self.forge, self.service = folder, forge, service
        forge.set(account="model-bot" if service == "GitLab" else "")
        self.cache = folder / "cache"
        self.count = 0

    def job(self, event: str, recipe: str = "") -> Job:
        """Return the job of a push or a pull request, in a fresh clone."""
        self.count += 1
        workspace, temporary = (self.folder / f"{name}{self.count}" for name in ("workspace", "temporary"))
        for place in (workspace, temporary):
            place.mkdir()
        make_cnn(workspace / "model.onnx")
        (workspace / "ci.yaml").write_text(
            recipe
            or f"name: ci\nmodel: model.onnx\nsteps:\n  sanitize: {{}}\n  speed: {{step: profile, {QUICK}}}\n"
            "gates: ['sanitize.nodes >= 1']\n"
        )
        variables = self.forge.environment(self.service)
        variables.pop("GH_TOKEN", None)  # a step has it only by its own `env:`
        own = {"number": 7, "pull_request": {"number": 7, "head": {}}} if event == "pull_request" else {}
        (temporary / "event.json").write_text(json.dumps(own))
        if self.service == "GitHub":
            files = {"EVENT_PATH": "event.json", "STEP_SUMMARY": "summary.md", "PATH": "path.txt"}
            variables |= {f"GITHUB_{name}": str(temporary / file) for name, file in files.items()}
            variables |= {"GITHUB_EVENT_NAME": event, "GITHUB_ACTIONS": "true"}
        elif event != "pull_request":
            variables["CI_MERGE_REQUEST_IID"] = ""
        return Job(workspace, temporary, variables, self.cache)

    def carry_out(self, job: Job, **inputs: str) -> int:
        given: dict[str, Any] = {"recipe": "ci.yaml", **inputs}
        if self.service == "GitHub":
            return job.run_action(given)
        if self.cache.exists():
            shutil.copytree(self.cache, job.workspace / "outputs", symlinks=True)
        code = job.run_component(given)
        if not job.variables["CI_MERGE_REQUEST_IID"] and not self.cache.exists():
            shutil.copytree(job.workspace / "outputs", self.cache, symlinks=True)
        return code


@pytest.fixture(params=["GitHub", "GitLab"])
def project(request: pytest.FixtureRequest, forge: Forge, tmp_path: Path) -> Project:
    return Project(tmp_path, forge, request.param)


@pytest.fixture(scope="module", params=["GitHub", "GitLab"])
def pushed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Job]:
    """The job of a push, which commented nothing, and its project."""
    folder = tmp_path_factory.mktemp("pushed")
    forge = Forge(folder)
    project = Project(folder, forge, request.param)
    job = project.job("push")
    assert project.carry_out(job) == 0, job.log
    assert forge.comments == []
    return project, job


@pytest.fixture
def after_push(pushed: tuple[Project, Job], forge: Forge, tmp_path: Path) -> Project:
    """A project whose base branch was pushed to."""
    project = Project(tmp_path, forge, pushed[0].service)
    project.cache = pushed[0].cache
    return project


GATE = {"GitHub": "gates", "GitLab": "gate"}


@pytest.mark.parametrize(
    ("pushed", "inputs"),
    [
        pytest.param(
            "GitHub",
            {"profile": "speed", "gates": "latency.median <= +900 %"},
            marks=pytest.mark.thorough,
            id="GitHub, measured",
        ),
        # Measuring again is most of the time.
        pytest.param("GitLab", {"gate": "latency.median <= 900 ms"}, marks=pytest.mark.thorough, id="GitLab"),
        pytest.param(
            "GitLab",
            {"profile": "speed", "gate": "latency.median <= +900 %"},
            marks=pytest.mark.slow,
            id="GitLab, measured",
        ),
    ],
    indirect=["pushed"],
)
def test_a_request_is_compared_with_the_base_branch(after_push: Project, forge: Forge, inputs: dict[str, str]) -> None:
    job = after_push.job("pull_request")
    assert after_push.carry_out(job, **inputs) == 0, job.log
    [comment] = forge.comments
    assert "### ✅ PASSED ci" in comment["body"], job.log
    assert "gate passed" in comment["body"] and "baseline-" in comment["body"]
    assert not job.saved
    again = after_push.job("pull_request")
    after_push.carry_out(again, **{GATE[after_push.service]: "model.bytes <= 1 B"})
    assert [comment["id"] for comment in forge.comments] == [1], "the same comment"
    assert "gate failed" in forge.comments[0]["body"]


@pytest.mark.thorough
def test_a_failed_gate_fails_the_job_after_the_comment(project: Project, forge: Forge) -> None:
    recipe = "name: ci\nmodel: model.onnx\nsteps: {sanitize: {}}\ngates: ['sanitize.nodes <= 1']\n"
    job = project.job("pull_request", recipe)
    job.starts_programs = project.service == "GitHub"
    assert project.carry_out(job) == 1, job.log
    assert "### ❌ FAILED ci" in forge.comments[0]["body"]
    if project.service == "GitHub":
        assert "FAILED ci" in (job.temporary / "summary.md").read_text()


@pytest.mark.thorough
def test_a_refused_recipe_never_shows_the_verdict_of_an_earlier_run(after_push: Project, forge: Forge) -> None:
    job = after_push.job("pull_request", recipe="name: ci\nmodel: model.onnx\nsteps: {speed: {step: profil}}\n")
    assert after_push.carry_out(job) == 2, job.log
    [comment] = forge.comments
    assert "There is no result" in comment["body"] and "PASSED" not in comment["body"]


@pytest.mark.thorough
def test_a_hostile_input_runs_nothing(project: Project) -> None:
    job = project.job("pull_request")
    hostile = "steps.speed.passes=$(touch${IFS}pwned);touch${IFS}pwned`touch${IFS}pwned`"
    assert project.carry_out(job, overrides=hostile, options="$(touch pwned)", profile="$(touch pwned)") == 2
    assert not (job.workspace / "pwned").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["", "runs/ci/20261122T101010Z-abcdef"])
@pytest.mark.parametrize("pushed", ["GitHub"], indirect=True)
def test_the_workflow_for_forks_comments(
    layout: str, pushed: tuple[Project, Job], tmp_path: Path, forge: Forge
) -> None:
    """The artifact has the run's folder itself, or, beside comparisons, below `runs/`."""
    tested, job = pushed[1], Project(tmp_path, forge, "GitHub").job("workflow_run")
    run = tested.workspace / tested.outputs["run"]["run"]
    shutil.copytree(run, job.workspace / "reports" / layout, ignore=shutil.ignore_patterns("stored"))
    event = {"head_repository": {"owner": {"login": "stranger"}}, "head_branch": "faster", "head_sha": "a" * 40}
    (job.temporary / "event.json").write_text(json.dumps({"workflow_run": event}))
    forge.set(pulls=[{"number": 7, "head": {"sha": "a" * 40}}])
    [block] = [block for block in pages.blocks() if block.title.endswith("comment.yml")]
    [step] = yaml.safe_load(block.text)["jobs"]["comment"]["steps"][2:]
    assert step["env"] == {"GH_TOKEN": "${{ github.token }}"}
    assert job.shell(step["run"], {"GH_TOKEN": TOKEN}) == 0, job.log
    assert forge.comments[0]["body"].startswith("<!-- ndld-flow: model -->\n### ✅ PASSED ci")


@pytest.mark.thorough
def test_the_action_installs_its_own_version(tmp_path: Path, forge: Forge) -> None:
    """Without dependencies, the isolation of the build and an own pip: these are the business of pip and Python."""
    job = Project(tmp_path, forge, "GitHub").job("push")
    python = forge.programs / "python3"
    python.write_text(f'#!/bin/sh\n[ "$1 $2" != "-m venv" ] || set -- "$@" --without-pip\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    offline = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    names = {"GITHUB_ACTION_PATH": str(ROOT), "PACKAGE": "", "EXTRAS": "", "PATH": path}
    assert job.shell((ROOT / ".github/actions/install.sh").read_text(), names | offline) == 0, job.log
    assert f"ndld-flow {__version__}" in job.log
    assert (job.temporary / "path.txt").read_text().strip() == str(job.temporary / "ndld-flow/bin")
