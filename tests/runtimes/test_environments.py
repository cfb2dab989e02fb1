"""Releases of a runtime side by side: created once, kept by digest, part of the key, and measured in turns."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base import users
from ndld_flow.base.errors import BackendError, RecipeError, RequestError
from ndld_flow.execution.doctor import examine
from ndld_flow.execution.events import RunFinished
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.runs.collect_garbage import collect_libraries, find_kept_libraries
from ndld_flow.runtimes import environments
from ndld_flow.runtimes.environments import Environment, find_environment, provide_environment
from tests.support.environments import write_environment, write_wheel
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.typed_api import plan_once, run_once

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the folders that are made here are Linux's")

SHORT = {"runs": 1, "passes": 2, "duration": 1, "warmup": 0, "warmup_passes": 1, "stable": 0, "layer_passes": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty, and no leases."""
    monkeypatch.setattr(users, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def recipe(tmp_path: Path, **named: Any) -> dict[str, Any]:
    """A recipe that profiles and compares a model in two environments."""
    model = make_cnn(tmp_path / "model.onnx")
    return {
        "name": "upgrade",
        "model": {"source": str(model)},
        "environments": named,
        "steps": {
            "now": {"step": "profile", "from": "source", "environment": "now", **SHORT},
            "next": {"step": "profile", "from": "source", "environment": "next", **SHORT},
            "outputs": {
                "step": "check_accuracy",
                "candidate": "source",
                "samples": 2,
                "reference_environment": "now",
                "environment": "next",
            },
        },
    }


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_steps_run_in_their_environments(tmp_path: Path) -> None:
    now = write_environment(tmp_path / "now", "1.90.0")
    after = write_environment(tmp_path / "next", "1.91.0", add=0.5)
    wanted, outputs = recipe(tmp_path, now=str(now), next=str(after)), tmp_path / "outputs"
    wanted["steps"]["latency"] = {
        "step": "compare_profiles",
        "base": "now",
        "from": "next",
        "allow": ["versions"],
        "rounds": 0,
    }
    plan = plan_once(wanted, outputs=outputs, trust=True)
    assert plan[0].step.step.foresee().notes[0] == f"environment {now}"

    run = Path(run_once(wanted, outputs=outputs, trust=True).folder)
    profiles = {name: read_document(Profile, run / name / "profile.json") for name in ("now", "next")}
    assert [profiles[name].versions["onnxruntime"] for name in profiles] == ["1.90.0", "1.91.0"]
    assert profiles["now"].session == profiles["next"].session, "they were not measured in turns"
    assert profiles["next"].layers
    assert read_run_record(run).outcome == "failed"
    accuracy = read_document(Accuracy, run / "outputs" / "accuracy.json")
    assert accuracy.outputs[0].metrics["max_abs"] == pytest.approx(0.5, rel=1e-3)
    assert any("1.90.0" in note for note in accuracy.notes)
    graphs = read_document(Comparison, run / "latency" / "comparison.json").profiles[0].graphs
    assert graphs is not None
    assert graphs.diff is not None
    assert graphs.diff.one_line == "no differences"
    assert graphs.notes[1].startswith(f"next ({after}): ")
    assert (run / "next" / "optimized.onnx").is_file()
    for page in (run / "report.html", run / "latency" / "comparison.html"):
        assert "same operators, connected" in page.read_text(encoding="utf-8")

    assert run_once(wanted, outputs=outputs, trust=True).nothing_to_do
    write_environment(tmp_path / "now", "1.90.0", add=0.5)  # another build of the same release
    rebuilt = run_once(wanted, outputs=outputs, trust=True)
    assert outcomes(rebuilt) == dict.fromkeys(wanted["steps"], "done")
    assert rebuilt.passed


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_a_sweep_over_environments_shows_the_release_that_changed_the_outputs(tmp_path: Path) -> None:
    folders = {
        f"1.9{minor}.0": str(write_environment(tmp_path / f"r{minor}", f"1.9{minor}.0", add=0.5 * (minor == 2)))
        for minor in range(4)
    }
    wanted = recipe(tmp_path, **folders)
    del wanted["steps"]["now"], wanted["steps"]["next"]
    wanted["steps"]["outputs"] |= {"reference_environment": "1.90.0", "environment": "1.91.0"}
    wanted["sweep"] = {"over": {"outputs.environment": ["1.91.0", "1.92.0", "1.93.0"]}}
    folder = Path(api.run(wanted, outputs=tmp_path / "outputs", trust=True).folder)
    points = read_document(SweepRecord, folder / "sweep.json").points
    assert {point.values["outputs.environment"]: point.outcome for point in points} == {
        "1.91.0": "passed",
        "1.92.0": "refused",
        "1.93.0": "passed",
    }


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_the_reason_is_shown_why_graphs_are_not_known(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, next=str(write_environment(tmp_path / "next", "1.91.0")))
    decide = {"step": "compare_profiles", "base": "now", "from": "next", "allow": ["versions"], "rounds": 0}
    wanted["steps"] = {"now": {"step": "profile", "from": "source", **SHORT}, "next": wanted["steps"]["next"]}
    wanted["steps"]["decide"] = decide
    run = Path(run_once(wanted, outputs=tmp_path / "outputs", trust=True).folder)
    (compared,) = read_document(Comparison, run / "decide" / "comparison.json").profiles
    assert compared.graphs is None
    assert compared.graphs_missing.startswith("now is not ")
    assert f"Not known: <bdi>{compared.graphs_missing}</bdi>" in (run / "report.html").read_text(encoding="utf-8")


def outcomes(run: RunFinished) -> dict[str, str]:
    return {step.name: step.outcome for step in read_run_record(Path(run.folder)).steps}


def test_environments_need_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage) -> None:
    monkeypatch.setattr(environments, "create_environment", lambda *_: pytest.fail("pip ran without trust"))
    wanted = recipe(tmp_path, now={"onnxruntime": "1.90.0"}, next={"onnxruntime": "1.91.0"})
    with pytest.raises(RecipeError) as caught:
        api.run(wanted, outputs=tmp_path / "outputs")
    check_message(caught.value)
    plan = plan_once(wanted, outputs=tmp_path / "outputs", trust=True)
    assert plan[1].step.step.foresee().notes[0].startswith("environment onnxruntime 1.91.0, ")


@pytest.mark.representatives("environment8", "environment9", "environment7")
@pytest.mark.parametrize(
    "environment",
    [
        {"onnxruntime": ">=1.27"},
        {"onnxruntime": "1.27.*"},
        {"onnxruntime": "1.27.0 --index-url=https://evil.example"},
        {"onnxruntime": "1.27.0; python_version > '3'"},
        {"onnxruntime": "@ https://evil.example/x.whl"},
        {"--index-url=https://evil.example": "1.0"},
        {"git+https://evil.example/x": "1.0"},
        {"./local": "1.0"},
        {"a b": "1.0"},
        {"-r": "1.0"},
        {"onnxruntime[extra]": "1.0"},
        {"onnxruntime": 1.27},
        {},
    ],
)
def test_only_exact_releases_of_packages_are_accepted(environment: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        api.plan(recipe(tmp_path, now=environment, next=environment), outputs=tmp_path / "outputs", trust=True)


def test_an_unknown_environment_is_named(tmp_path: Path, check_message: CheckMessage) -> None:
    wanted = recipe(tmp_path, now={"onnxruntime": "1.90.0"})
    with pytest.raises(RecipeError) as caught:
        api.plan(wanted, outputs=tmp_path / "outputs", trust=True)
    check_message(caught.value)


def test_a_step_on_a_target_has_no_environment(tmp_path: Path, check_message: CheckMessage) -> None:
    wanted = recipe(tmp_path, now=str(write_environment(tmp_path / "now", "1.90.0")))
    wanted["steps"] = {"now": wanted["steps"]["now"] | {"on": "ssh://nowhere.invalid"}}
    with pytest.raises(RequestError) as caught:
        api.plan(wanted, outputs=tmp_path / "outputs", trust=True)
    check_message(caught.value)


def test_a_folder_without_an_environment_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    wanted = recipe(tmp_path, now=str(tmp_path / "nothing"), next=str(tmp_path / "nothing"))
    with pytest.raises(BackendError) as caught:
        api.run(wanted, outputs=tmp_path / "outputs", trust=True)
    check_message(caught.value)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip finds packages: a folder of wheels."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.mark.thorough
def test_pip_creates_an_environment_once_and_gc_spares_it_while_in_use(
    index: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    write_wheel(index, "1.90.0")
    missing = Environment(packages={"onnxruntime": "1.99.0"})
    with pytest.raises(BackendError) as caught:
        provide_environment(missing, lambda _: None)
    check_message(caught.value)

    environment, lines = Environment(packages={"onnxruntime": "1.90.0"}), list[str]()
    created = provide_environment(environment, lines.append)
    assert lines == ["creating the environment onnxruntime 1.90.0"]
    assert created.lock["onnxruntime"]["version"] == "1.90.0"
    assert len(created.lock["onnxruntime"]["sha256"]) == 64
    assert find_environment(environment) == created
    assert provide_environment(environment, lines.append) == created
    assert len(lines) == 1

    (check,) = [check for check in examine(tmp_path / "outputs") if check.name == "private environments"]
    assert "onnxruntime 1.90.0" in check.found
    (kept,) = [library for library in find_kept_libraries() if library.label]
    old = time.time() - 1e7
    os.utime(kept.folder, (old, old))
    assert kept.in_use
    assert not collect_libraries().libraries, "gc removed an environment in use"
    environments._LEASES.close()
    environments._LEASED.clear()
    assert collect_libraries().libraries == (str(kept.folder),)
    assert find_environment(environment) is None
