"""`history`: what a series is, what is attributed to a step, and accepted changes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.history.series import differing
from ndld_flow.records.history import MetricHistory, MetricSeries
from ndld_flow.runner import run_state
from ndld_flow.runner.run_state import read_commit
from ndld_flow.runs import metric_history, run_lines
from ndld_flow.runs.run_lines import LINES
from tests.support.message_files import CheckMessage
from tests.support.metric_runs import MACHINE, Course, changed, courses, run_id, write_runs
from tests.support.simulated_series import simulate

LATENCY = "speed.latency.median"


def course(length: int = 40, step: int = 24, ratio: float = 1.1) -> list[Course]:
    """Latencies with a step."""
    noise = simulate("normal 1 %", length, 3)
    return courses([value * (ratio if index >= step else 1.0) for index, value in enumerate(noise)])


def history(root: Path, metric: str = LATENCY) -> list[MetricSeries]:
    return list(api.history("nightly", [metric], outputs=root).series)


def test_a_step_is_attributed_to_what_differed(tmp_path: Path) -> None:
    write_runs(tmp_path, changed(course(), 24, libraries={"onnxruntime": "onnxruntime 1.32.0"}))
    (series,) = history(tmp_path)
    (step,) = series.steps
    assert (step.place, step.verdict, step.run) == (24, "regressed", run_id(24))
    assert [(cause.fact, cause.before, cause.after) for cause in step.causes] == [
        ("library onnxruntime", "1.31.0", "1.32.0")
    ]
    assert "changed together" not in step.why


def test_facts_that_changed_together_are_said_to(tmp_path: Path) -> None:
    driver = MACHINE.replace("570.1", "575.0")
    write_runs(tmp_path, changed(course(), 24, settings={"threads": 4}, machine=driver, model="b" * 64))
    (step,) = history(tmp_path)[0].steps
    assert [cause.fact for cause in step.causes] == ["model", "driver", "setting speed.threads"]
    assert step.why.startswith("3 facts changed together: ")


def test_all_facts_of_a_step_that_was_added_are_one() -> None:
    before = {"step half": "convert_fp16, version 1", "model": "a"}
    search = {"step search": "find_precision, version 1", "setting search.bound": "0.1", "library onnx of search": "1"}
    added = {**search, "setting half.found_by": "search"}
    for item, other in ((before, before | added), (before | added, before)):
        assert [cause.fact for cause in differing(item, other)] == ["step search", "setting half.found_by"]
    assert len(differing(before | search, before | search | {"setting search.bound": "0.2"})) == 1


def test_a_step_without_a_known_cause_has_none(tmp_path: Path) -> None:
    write_runs(tmp_path, course())
    (step,) = history(tmp_path)[0].steps
    assert step.causes == ()
    assert "nothing that is recorded" in step.why


def test_an_exact_metric_has_its_step_at_once_with_its_cause(tmp_path: Path) -> None:
    write_runs(tmp_path, changed(courses([10.0, 10.1, 10.2]), 2, nodes=118))
    (series,) = history(tmp_path, "half.nodes")
    assert [(step.before, step.after) for step in series.steps] == [(120, 118)]
    assert [point.runs for point in series.points] == [2, 1]
    assert [cause.fact for cause in series.steps[0].causes] == ["step half"]


@pytest.mark.representatives("others1", "others0")
@pytest.mark.parametrize(
    "others",
    [
        {"machine": MACHINE.replace("RTX 4090", "L4")},
        {"machine": "Linux 6.12 aarch64, Cortex x 8, no GPU"},
        {"settings": {"backend": "tensorrt"}},
        {"settings": {"provider": "cpu"}},
        {"settings": {"streams": 4}},
        {"inputs": {"x": {"shape": [8, 3, 640, 640]}}},
    ],
)
def test_what_cannot_be_compared_is_another_series(tmp_path: Path, others: dict[str, object]) -> None:
    write_runs(tmp_path, changed(course(), 24, **others))
    newest, older = history(tmp_path)
    assert (len(newest.points), len(older.points)) == (16, 24)
    assert not newest.steps and not older.steps


def test_the_driver_and_the_host_are_causes_within_one_series(tmp_path: Path) -> None:
    elsewhere = (
        MACHINE.replace("570.1", "575.0").replace("lab (1a2b)", "den (3c4d)").replace("Linux 6.12", "Linux 6.13")
    )
    write_runs(tmp_path, changed(course(), 24, machine=elsewhere))
    (series,) = history(tmp_path)
    assert {cause.fact for cause in series.steps[0].causes} == {"driver", "host", "system"}


def test_a_measurement_that_several_runs_reuse_counts_once(tmp_path: Path) -> None:
    runs = [*course(30, 99), *courses([12.5] * 20, key="same")]
    write_runs(tmp_path, runs)
    (series,) = history(tmp_path)
    assert len(series.points) == 31
    assert series.points[-1].runs == 20
    assert not series.steps, "one slow measurement is no evidence of a step, however often it is shown"


def test_disturbed_and_failed_measurements_are_no_baseline(tmp_path: Path) -> None:
    fast = courses([5.0] * 3, concurrent=("step half of other",))
    broken = courses([4.0] * 2, failed=True)
    write_runs(tmp_path, [*course(20, 99), *fast, *broken])
    (series,) = history(tmp_path)
    usual, *beside, fifth, sixth = (point.doubt for point in series.points[19:])
    assert usual == "" and len(beside) == 3 and fifth == sixth == "half failed"
    assert all(doubt.endswith("step half of other") for doubt in beside)
    assert series.best == pytest.approx(10.0, rel=0.02)
    assert not series.steps


def test_a_step_is_found_although_its_runs_failed(tmp_path: Path) -> None:
    write_runs(tmp_path, changed(course(), 24, failed=True))
    (series,) = history(tmp_path)
    assert [step.verdict for step in series.steps] == ["regressed"]
    assert series.level == pytest.approx(11.0, rel=0.02)
    assert series.best == pytest.approx(10.0, rel=0.02)


def test_an_accepted_step_is_a_new_baseline(tmp_path: Path, check_message: CheckMessage) -> None:
    write_runs(tmp_path, course())
    change = api.accept("nightly", LATENCY, "larger input", outputs=tmp_path)
    assert (change.run, change.note) == (run_id(24), "larger input")
    (series,) = history(tmp_path)
    assert series.steps[0].accepted == change
    assert series.best == pytest.approx(11.0, rel=0.02)
    api.accept("nightly", LATENCY, "better words", at=run_id(24), outputs=tmp_path)
    assert (tmp_path / "accepted.json").read_text().count('"note"') == 1
    with pytest.raises(RequestError) as caught:
        api.accept("nightly", LATENCY, "x", at="2020", outputs=tmp_path)
    check_message(caught.value)


def test_an_acceptance_holds_where_its_run_does_not_exist(tmp_path: Path) -> None:
    """The file is committed, and used with the outputs of another machine of the same kind."""
    write_runs(tmp_path / "here", course())
    api.accept("nightly", LATENCY, "larger input", outputs=tmp_path / "here")
    write_runs(tmp_path / "there", course()[:-1])
    for folder in (tmp_path / "there" / "runs" / "nightly").iterdir():
        if folder.name == run_id(24):
            (folder / "run.json").unlink()
            folder.rmdir()
    (tmp_path / "there" / "accepted.json").write_text((tmp_path / "here" / "accepted.json").read_text())
    assert history(tmp_path / "there")[0].steps[0].accepted is not None


def test_a_damaged_file_of_accepted_changes_is_an_error(tmp_path: Path, check_message: CheckMessage) -> None:
    write_runs(tmp_path, course(5))
    (tmp_path / "accepted.json").write_text('{"document": "accepted changes", "format_version": 1, "changes": [{}]}')
    with pytest.raises(RequestError) as caught:
        history(tmp_path)
    check_message(caught.value)


def test_the_history_follows_the_records(tmp_path: Path) -> None:
    write_runs(tmp_path, course(20, 99))
    assert len(history(tmp_path)[0].points) == 20
    write_runs(tmp_path, courses([10.0]), first=20)
    assert len(history(tmp_path)[0].points) == 21
    record = tmp_path / "runs" / "nightly" / run_id(3) / "run.json"
    record.write_text(record.read_text().replace('"latency.median"', '"latency.mean"'))
    assert len(history(tmp_path)[0].points) == 20
    record.write_text("{")
    assert api.history("nightly", outputs=tmp_path).unreadable == (run_id(3),)
    record.unlink()
    assert len(history(tmp_path)[0].points) == 20


def test_a_step_whose_records_cannot_be_read_has_an_unknown_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs(tmp_path, changed(course(), 24, libraries={"onnxruntime": "onnxruntime 1.32.0"}))
    (known,) = history(tmp_path)

    def refuse(path: Path) -> object:
        raise FileNotFoundError(path)  # `gc` has just removed it

    monkeypatch.setattr(metric_history, "read_tree", refuse)
    (step,) = history(tmp_path)[0].steps
    assert (step.place, step.causes, step.near) == (known.steps[0].place, (), ())
    assert known.steps[0].causes
    assert "unknown" in step.why


def test_a_folder_that_is_read_only_needs_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs(tmp_path, course())
    expected = history(tmp_path)
    (tmp_path / LINES).unlink()

    def refuse(path: Path, flags: int) -> BinaryIO:
        raise PermissionError(path)

    monkeypatch.setattr(run_lines, "_open", refuse)
    assert history(tmp_path) == expected
    assert not (tmp_path / LINES).exists()


@pytest.mark.thorough
def test_two_processes_write_lines_at_once(tmp_path: Path) -> None:
    write_runs(tmp_path, course(60))
    command = [sys.executable, "-m", "ndld_flow", "history", "nightly", "--json", "--outputs", str(tmp_path)]
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert printed[0] == printed[1]
    assert len(MetricHistory.model_validate_json(printed[0]).series) == 3


def test_unknown_recipes_and_metrics_are_named(tmp_path: Path, check_message: CheckMessage) -> None:
    write_runs(tmp_path, course(5))
    with pytest.raises(RequestError) as caught:
        api.history("nighty", outputs=tmp_path)
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        history(tmp_path, "latency.media")
    check_message(caught.value)
    write_runs(tmp_path, course(5), recipe="weekly")
    with pytest.raises(RequestError) as caught:
        api.history(outputs=tmp_path)
    check_message(caught.value)


def test_the_commit_of_a_working_tree_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str, cwd: Path = tmp_path) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        return subprocess.run(
            ["git", *identity, *words], cwd=cwd, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert read_commit(tmp_path) == "", "no working tree"
    git("init")
    assert read_commit(tmp_path / ".") == "", "no commit yet"
    git("commit", "--allow-empty", "-m", "first")
    (tmp_path / "inner").mkdir()
    first = git("rev-parse", "HEAD")
    assert read_commit(tmp_path / "inner") == first
    git("worktree", "add", "-q", "linked", "-b", "other")
    assert read_commit(tmp_path / "linked") == first
    git("commit", "--allow-empty", "-m", "second")
    assert read_commit(tmp_path) == git("rev-parse", "HEAD") != first, "a commit between two runs of one process"
    assert read_commit(tmp_path / "linked") == first
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "linked" / ".git"))
    assert read_commit(tmp_path) != first, "the variable of a hook"
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit(tmp_path) == "", "no git"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    write_program(tmp_path / "git", "touch started")
    assert read_commit(tmp_path) == "", "a file of the project"
    assert not (tmp_path / "started").exists()


def test_a_repository_starts_no_program_and_may_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    write_program(tmp_path / "evil", "touch started")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        write_program(hooks / hook, f"touch {tmp_path}/started")
    evil = str(tmp_path / "evil")
    keys = ("core.fsmonitor", "core.sshCommand", "core.pager", "alias.rev-parse", "diff.external", "core.editor")
    for key in keys:
        value = f"!{evil}" if key.startswith("alias") else evil
        subprocess.run(["git", "config", key, value], cwd=tmp_path, check=True)
    subprocess.run(["git", "config", "core.hooksPath", str(hooks)], cwd=tmp_path, check=True)
    assert read_commit(tmp_path) == ""
    assert not (tmp_path / "started").exists()

    write_program(tmp_path / "bin" / "git", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(run_state, "_TIMEOUT_S", 0.2)
    assert read_commit(tmp_path) == "", "git does not answer"


def write_program(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("gate", "limit"),
    [
        (f"{LATENCY} <= 12 ms", 12.0),
        (f"{LATENCY} <= history.best + 10 %", 11.0),
        (f"{LATENCY} / 2 <= 12 ms", None),
        (f"{LATENCY} <= {LATENCY} * 2", None),
        (f"{LATENCY} <= 64 MiB", None),
    ],
)
def test_a_series_has_the_limit_of_the_gate_on_it_alone(tmp_path: Path, gate: str, limit: float | None) -> None:
    write_runs(tmp_path, [replace(course, gates=(gate,)) for course in courses([10.0] * 5)])
    (series,) = history(tmp_path)
    assert series.limit == pytest.approx(limit)
