"""`bisect`: the recipe judges, ends are verified, skips are reported, and nothing is claimed that is not known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RecipeError, RequestError
from ndld_flow.records.bisection import Bisection
from ndld_flow.records.document import read_document
from ndld_flow.runner.bisect import bisect, releases
from ndld_flow.runner.bisect.options import BisectOptions
from ndld_flow.runner.events import Event, Notice
from ndld_flow.runtimes.pip_environment import PipError
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn

TRIAL = '''
"""Behaves as a file says."""

import json
import os
from pathlib import Path

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.records.measurement import Metric
from ndld_flow.step import Context, Result, Step
from ndld_flow.store.kinds import Onnx


class Trial(Step[Onnx, Onnx]):
    """Behave as a file says."""

    release: str = "1.0"
    """The release."""
    count: int = 0
    """A number."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        folder = Path(os.environ["TRIALS"])
        behaviours = json.loads((folder / "behaviours.json").read_text())[self.release]
        with (folder / "log.txt").open("a") as log:
            log.write(f"{self.release}\\n")
        runs = (folder / "log.txt").read_text().split().count(self.release)
        behaviour = behaviours[min(runs, len(behaviours)) - 1]
        if behaviour == "crashes":
            raise RequestError("the model is refused")
        if behaviour == "missing":
            raise BackendError("the library is missing")
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        metrics = {"error": Metric(value=0.5 if behaviour == "bad" else self.count + 0.125, unit="ms")}
        undecided = behaviour == "undecided"
        passed = behaviour in ("good", "bad")
        return Result(behaviour, passed=passed, inconclusive=undecided, metrics=metrics)
'''
RECIPE = """
name: trial
model: model.onnx
steps_from: [trial.py]
steps:
  trial: {step: trial}
gates: ["trial.error <= 250 us"]
"""
KEY = "steps.trial.release"


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, whose step behaves as `behave` says."""
    make_cnn(tmp_path / "model.onnx")
    (tmp_path / "trial.py").write_text(TRIAL)
    (tmp_path / "trial.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIALS", str(tmp_path))
    monkeypatch.setattr(bisect, "_MEASURED", ("onnx",))
    return tmp_path


def behave(folder: Path, **behaviours: str) -> tuple[str, ...]:
    """Set what each release does, by `v1="good"`; several words are those of its runs, one after another."""
    named = {f"{name.removeprefix('v')}.0": words.split() for name, words in behaviours.items()}
    (folder / "behaviours.json").write_text(json.dumps(named))
    return tuple(named)


def search(values: tuple[str, ...] = (), **options: Any) -> tuple[Bisection, list[str]]:
    notices: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Notice):
            notices.append(event.text)

    found = api.bisect("trial.yaml", KEY, options=BisectOptions(values=values, **options), trust=True, listener=listen)
    return found, notices


def verdicts(found: Bisection) -> dict[str, str]:
    return {tried.value: tried.verdict for tried in found.tried}


def test_the_first_bad_release_is_found_recorded_and_found_again_without_a_run(trials: Path) -> None:
    values = behave(trials, v1="good", v2="good", v3="good", v4="bad", v5="bad", v6="bad")
    found, notices = search(values)
    (change,) = found.changes
    assert (change.before, change.after, change.undecided) == ("3.0", "4.0", ())
    assert verdicts(found) == {"1.0": "good", "3.0": "good", "4.0": "bad", "6.0": "bad"}
    assert found.exit_code == 0
    assert found.assumes_one_change
    assert found.failures == ("gate `trial.error <= 250 us`",)
    assert found.tried[2].gates["trial.error <= 250 us"].value == 0.5
    assert found.tried[2].metrics["trial.error"].unit == "ms"
    assert "4 releases to decide between, about 3 runs" in "\n".join(notices)

    (record,) = Path("outputs/bisections").iterdir()
    assert read_document(Bisection, record) == found
    ran = (trials / "log.txt").read_text()
    again, _ = search(values)
    assert (trials / "log.txt").read_text() == ran, "results were not reused"
    assert again.changes == found.changes
    assert all(tried.run and Path(tried.report).is_file() for tried in again.tried)


@pytest.mark.thorough
def test_an_interrupted_search_continues(trials: Path) -> None:
    values = behave(trials, v1="good", v2="good", v3="bad", v4="bad")

    def interrupt(event: Event) -> None:
        if isinstance(event, Notice) and event.text.startswith("running") and "2.0" in event.text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.bisect("trial.yaml", KEY, options=BisectOptions(values=values), trust=True, listener=interrupt)
    search(values)
    assert sorted((trials / "log.txt").read_text().split()) == ["1.0", "2.0", "3.0", "4.0"]


@pytest.mark.thorough
def test_ends_that_are_not_as_claimed_are_named(trials: Path) -> None:
    values = behave(trials, v1="bad", v2="good", v3="bad")
    found, _ = search(values)
    assert found.exit_code == 2
    assert found.problem == "1.0 was to be good, and the recipe fails with it: choose an earlier good value"
    assert "`trial.error <= 250 us` fails: 500 µs" in found.tried[0].why
    assert list(verdicts(found)) == ["1.0"], "the search went on"

    values = behave(trials, v4="good", v5="good", v6="good")
    found, _ = search(values)
    assert (found.exit_code, found.changes) == (2, ())
    assert "6.0 was to be bad, and the recipe passes with it" in found.problem

    values = behave(trials, v7="undecided", v8="bad")
    found, _ = search(values)
    assert found.exit_code == 4
    assert "7.0 was to be good, and its verdict is inconclusive" in found.problem


@pytest.mark.thorough
def test_an_end_that_cannot_run_is_an_error(trials: Path) -> None:
    values = behave(trials, v1="good", v2="missing")
    with pytest.raises(BackendError, match=r"2\.0 is an end of the search, and cannot run: .*the library is missing"):
        search(values)


@pytest.mark.thorough
def test_an_inconclusive_release_is_measured_again_and_then_skipped(trials: Path) -> None:
    values = behave(trials, v1="good", v2="undecided undecided bad", v3="bad")
    found, notices = search(values)
    assert verdicts(found)["2.0"] == "bad"
    assert found.tried[1].attempts == 3
    assert found.exit_code == 0
    assert "2.0 is inconclusive: measuring again" in notices

    values = behave(trials, v4="good", v5="undecided", v6="bad", v7="bad")
    found, _ = search(values, attempts=2)
    (change,) = found.changes
    assert (change.before, change.after, change.undecided) == ("4.0", "6.0", ("5.0",))
    assert found.tried[1].attempts == 2
    assert found.exit_code == 4


def test_other_failures_are_skipped(trials: Path) -> None:
    """A release that fails before the gate is no evidence on the gate, and one without its library none at all."""
    values = behave(trials, v1="good", v2="good", v3="crashes", v4="other", v5="missing", v6="bad")
    found, _ = search(values)
    (change,) = found.changes
    assert (change.before, change.after, change.undecided) == ("2.0", "6.0", ("3.0", "4.0", "5.0"))
    why = {tried.value: tried.why for tried in found.tried}
    assert "fails in another way than the bad end: step trial: the model is refused" in why["3.0"]
    assert "fails in another way than the bad end: trial: other" in why["4.0"]
    assert "the library is missing" in why["5.0"]
    assert found.exit_code == 4


@pytest.mark.thorough
def test_a_crash_can_be_what_is_searched(trials: Path) -> None:
    values = behave(trials, v1="good", v2="bad", v3="crashes", v4="crashes")
    found, _ = search(values, gates=("trial.error <= 1 s",))
    (change,) = found.changes
    assert (change.before, change.after) == ("2.0", "3.0"), "the gate of the recipe was not replaced"


@pytest.mark.thorough
def test_every_release_shows_several_changes(trials: Path) -> None:
    values = behave(trials, v1="good", v2="bad", v3="good", v4="good", v5="bad")
    found, _ = search(values, every=True)
    assert [(each.before, each.after, each.verdict) for each in found.changes] == [
        ("1.0", "2.0", "bad"),
        ("2.0", "3.0", "good"),
        ("4.0", "5.0", "bad"),
    ]
    assert not found.assumes_one_change


@pytest.mark.thorough
def test_any_key_has_values(trials: Path) -> None:
    behave(trials, v1="good")
    found = api.bisect("trial.yaml", "steps.trial.count", options=BisectOptions(values=("0", "5", "7")), trust=True)
    assert [(each.before, each.after) for each in found.changes] == [("0", "5")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--good 1.27.0 --bad 1.31.1, or --values"),
        ({"good": "1.0"}, "--good 1.27.0 --bad 1.31.1, or --values"),
        ({"good": "1.0", "bad": "1.0"}, "are both 1.0"),
        ({"values": ("1.0",)}, "at least two different values"),
        ({"values": ("1.0", "2.0", "1.0")}, "at least two different values"),
        ({"values": ("1.0", "2.0"), "good": "1.0"}, "either --good and --bad, or --values"),
        ({"good": "1.0", "bad": "2.0"}, "Give them in order: --values"),
    ],
)
def test_values_that_are_no_range_are_refused(options: Mapping[str, Any], message: str, trials: Path) -> None:
    behave(trials, v1="good")
    with pytest.raises(RequestError, match=message):
        search(**options)
    assert not (trials / "log.txt").exists()


def test_a_wrong_key_and_a_missing_trust_are_refused_before_anything_runs(trials: Path) -> None:
    values = behave(trials, v1="good", v2="bad")
    with pytest.raises(RecipeError, match="releas"):
        api.bisect("trial.yaml", "steps.trial.releas", options=BisectOptions(values=values), trust=True)
    with pytest.raises(RecipeError, match="--trust"):
        api.bisect("trial.yaml", KEY, options=BisectOptions(values=values))
    assert not (trials / "log.txt").exists()


def test_releases_are_those_between_the_ends_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["1.9.0", "1.10.0", "1.10.1", "1.11.0", "2.0.0"]
    monkeypatch.setattr(releases, "list_releases", lambda *_, **__: listed)
    assert releases._between(releases._list("x"), "1.9.0", "1.11.0") == ["1.9.0", "1.10.0", "1.10.1", "1.11.0"]
    assert releases._between(listed, "2.0.0", "1.10.1") == ["2.0.0", "1.11.0", "1.10.1"]
    assert releases._between(listed, "1.10.0", "1.10.1") == ["1.10.0", "1.10.1"]
    with pytest.raises(RequestError, match="write exact releases"):
        releases._between(listed, "newest", "1.0")

    def fail(*_: object, **__: object) -> list[str]:
        raise PipError("no index")

    monkeypatch.setattr(releases, "list_releases", fail)
    with pytest.raises(BackendError, match=r"cannot list the releases of x \(no index\).*--values"):
        releases._list("x")


@pytest.mark.thorough
def test_the_command_prints_a_table_and_its_exit_code(trials: Path) -> None:
    values = behave(trials, v1="good", v2="good", v3="bad")
    command = ("bisect", "trial.yaml", KEY, "--values", ",".join(values), "--trust")
    done = ndld_flow(*command, cwd=trials)
    assert done.returncode == 0, done.stderr
    assert f"first bad: {KEY}=3.0; the last good one is 2.0" in done.stdout
    assert "125 µs" in done.stdout
    printed = json.loads(ndld_flow(*command, "--json", cwd=trials).stdout)
    assert printed["changes"] == [{"before": "2.0", "after": "3.0", "verdict": "bad", "undecided": []}]
    done = ndld_flow("bisect", "trial.yaml", KEY, "--values", "3.0,1.0", "--trust", cwd=trials)
    assert done.returncode == 2
    assert "3.0 was to be good, and the recipe fails with it" in done.stdout
