"""A shared cache: the second user computes nothing, and nothing that a cache contains or does harms a run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ndld_flow import api
from ndld_flow.base.errors import ModelError, NdldFlowError
from ndld_flow.execution.events import Event, Notice, RunFinished, SweepFinished
from ndld_flow.machine import host
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.records.run_record import RunRecord, StepRecord
from ndld_flow.runner.plan import Decision
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import seal
from ndld_flow.store.store import Store
from ndld_flow.sweep.plan_sweep import SweepPlan
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import SweepToy, make_sweep_toy, table

ONE = "~sweep"


@dataclass
class User:
    """A user with outputs of their own, who shares the recipe."""

    toy: SweepToy
    outputs: Path
    cache: str
    events: list[Event] = field(default_factory=list)

    def run(self, *overrides: str, push: bool = False, force: Sequence[str] = ()) -> RunRecord:
        self.events.clear()
        finished = api.run(
            self.toy.recipe,
            (ONE, *overrides),
            outputs=self.outputs,
            trust=True,
            cache=self.cache,
            push=push,
            force=force,
            listener=self.events.append,
        )
        assert isinstance(finished, RunFinished)
        return read_run_record(Path(finished.folder))

    def sweep(self, *overrides: str, push: bool = False) -> SweepFinished:
        self.events.clear()
        finished = api.run(
            self.toy.recipe,
            overrides,
            outputs=self.outputs,
            trust=True,
            cache=self.cache,
            push=push,
            listener=self.events.append,
        )
        assert isinstance(finished, SweepFinished)
        return finished

    def plan(self, *overrides: str) -> list[Decision]:
        planned = api.plan(self.toy.recipe, (ONE, *overrides), outputs=self.outputs, trust=True, cache=self.cache)
        assert isinstance(planned, list)
        return planned

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice) and event.warning]


@dataclass
class Team:
    """Two users of one cache."""

    toy: SweepToy
    anna: User
    bert: User
    place: Path
    """The cache's folder."""

    def computed(self) -> list[str]:
        return self.toy.log

    def records(self) -> list[Path]:
        return sorted(self.place.glob("records/*/*.json"))


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    toy = make_sweep_toy(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".log").mkdir()  # hidden folders are in no key
    monkeypatch.setenv("TOY_LOG", str(tmp_path / ".log" / "log.txt"))
    path = tmp_path / ".cache"
    anna, bert = (User(toy, tmp_path / name, str(path)) for name in ("anna", "bert"))
    return Team(toy, anna, bert, path)


@pytest.fixture
def memory(team: Team) -> Iterator[Team]:
    """The same with a cache whose file system tests can disturb."""
    team.anna.cache = team.bert.cache = "memory://team"
    yield team
    MemoryFileSystem.store.clear()


def reasons(run: RunRecord) -> list[str]:
    return [step.reason for step in run.steps]


def test_the_second_user_computes_nothing(team: Team) -> None:
    first = team.anna.run(push=True)
    log = team.computed()
    assert len(log) == 3 and not team.anna.warnings
    second = team.bert.run()
    assert team.computed() == log
    assert reasons(second) == ["reused from cache"] * 3
    assert [step.record for step in second.steps] == [step.record for step in first.steps]
    assert (team.bert.outputs / "runs/toy/latest/tint/model.onnx").is_file()
    assert api.verify(outputs=team.bert.outputs).all_well
    team.bert.run()
    assert isinstance(team.bert.events[-1], RunFinished) and team.bert.events[-1].nothing_to_do


def test_results_are_pushed_only_on_request(team: Team) -> None:
    team.anna.run()
    assert not team.place.exists()
    team.anna.run(push=True)  # also what an earlier run computed
    assert len(team.records()) == 3
    before = team.records()
    team.bert.run("steps.tint.colour=green")
    assert team.records() == before


def test_results_before_a_failure_are_pushed(team: Team) -> None:
    with pytest.raises(ModelError):
        team.anna.run("+steps.tint.fails=model", push=True)
    assert len(team.records()) == 1
    assert reasons(team.bert.run())[0] == "reused from cache"


def test_a_plan_names_what_the_cache_has(team: Team) -> None:
    team.anna.run("~steps.speed", push=True)
    planned = team.bert.plan("steps.tint.colour=green")
    assert [decision.reason.text for decision in planned] == ["reused from cache", "new", "new"]
    assert "cache is asked then" in planned[2].detail
    assert not (team.bert.outputs / "store/objects").exists()
    [*_, tint, _] = team.bert.plan()
    assert tint.reason.text == "reused from cache"


def test_a_forced_step_runs(team: Team) -> None:
    team.anna.run(push=True)
    log = team.computed()
    assert reasons(team.bert.run(force=["tint"])) == ["reused from cache", "forced", "reused from cache"]
    assert len(team.computed()) == len(log) + 1


@pytest.mark.thorough
def test_a_sweep_computes_nothing_that_the_cache_has(team: Team) -> None:
    team.toy.write(team.toy.recipe.read_text() + "  winners: 2\n")
    first = read_sweep_record(Path(team.anna.sweep(push=True).folder))
    log = team.computed()
    planned = api.plan(team.toy.recipe, (), outputs=team.bert.outputs, trust=True, cache=team.bert.cache)
    assert isinstance(planned, SweepPlan)
    assert {step.name: (step.distinct, step.cached) for step in planned.steps} == {
        "base": (1, 1),
        "tint": (2, 2),
        "speed": (6, 6),
    }
    assert planned.remeasured == ()
    second = read_sweep_record(Path(team.bert.sweep().folder))
    assert team.computed() == log
    assert table(second) == table(first) and second.best == first.best
    assert second.steps_done == 0


@pytest.mark.thorough
def test_look_ups_of_many_points_run_at_once(memory: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve points of two steps each take two round trips, not twenty-four."""
    recipe = memory.toy.recipe.read_text().replace("[1, 2, 4]", "[1]")
    memory.toy.write(recipe.replace("[red, green]", str([f"c{n}" for n in range(12)])))
    read, at_once, now = MemoryFileSystem.cat_file, [0], [0]
    guard = threading.Lock()

    def slowly(self: Any, path: str, **limits: Any) -> Any:
        with guard:
            now[0] += 1
            at_once[0] = max(at_once[0], now[0])
        deadline = time.monotonic() + 0.2
        while at_once[0] < 8 and time.monotonic() < deadline:  # the first ones wait for each other
            time.sleep(0.01)
        with guard:
            now[0] -= 1
        return read(self, path, **limits)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", slowly)
    memory.bert.sweep()
    assert at_once[0] == 8  # the points of a session
    assert not memory.bert.warnings


# --- attacks ---------------------------------------------------------------------------------------------------------


def record_of(team: Team, path: Path) -> StepRecord:
    record = Store(team.anna.outputs / "store").read_record(path.stem)
    assert record is not None
    return record


def swap_records(team: Team) -> None:
    """Move each record to the key of the next."""
    texts = [path.read_text() for path in team.records()]
    for path, text in zip(team.records(), [*texts[1:], texts[0]], strict=True):
        path.write_text(text)


def rename_keys(team: Team) -> None:
    """Give each record the key of the next, which its parts do not have."""
    records = [record_of(team, path) for path in team.records()]
    for path, record in zip(team.records(), [*records[1:], records[0]], strict=True):
        path.write_text(seal(record.model_copy(update={"key": path.stem}).to_json()))


def claim_another_machine(team: Team) -> None:
    """A measurement of a faster machine under the key that this machine would have."""
    for path in team.records():
        record = record_of(team, path)
        parts = record.parts.model_copy(update={"machine": "a supercomputer"})
        path.write_text(seal(record.model_copy(update={"parts": parts}).to_json()))


def truncate_objects(team: Team) -> None:
    for path in team.place.glob("objects/*/*/model.onnx"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:10])


def replace_objects(team: Team) -> None:
    for path in team.place.glob("objects/*/*/model.onnx"):
        path.chmod(0o644)
        path.write_bytes(bytes(path.stat().st_size))


def link_objects(team: Team) -> None:
    for path in team.place.glob("objects/*/*/model.onnx"):
        path.unlink()
        path.symlink_to("/etc/passwd")


def lead_outside(team: Team) -> None:
    _rewrite_files(team, ["../../../../escaped.txt"])


def nest_files(team: Team) -> None:
    _rewrite_files(team, ["model.onnx", "model.onnx/data"])


def _rewrite_files(team: Team, names: list[str]) -> None:
    for path in team.records():
        record = record_of(team, path)
        [file] = record.artifact.files
        files = [{**file.model_dump(), "path": name} for name in names]
        digest = digest_json([[file["path"], file["digest"], file["size_bytes"]] for file in files])
        tree = json.loads(record.to_json())
        tree["artifact"] = {"kind": "onnx", "digest": digest, "files": files}
        path.write_text(seal(json.dumps(tree)))
        for name in names:
            target = team.place / "objects" / digest[:2] / digest / name
            if not target.parent.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(b"0" * file.size_bytes)


def empty_artifacts(team: Team) -> None:
    _rewrite_files(team, [])


def swap_kinds(team: Team) -> None:
    """Give each record an artifact of another kind, whose digests are right."""
    for path in team.records():
        record = record_of(team, path)
        tree = json.loads(record.to_json())
        tree["artifact"]["kind"] = "no kind of this step"
        path.write_text(seal(json.dumps(tree)))


def control_the_terminal(team: Team) -> None:
    for path in team.records():
        record = record_of(team, path)
        path.write_text(seal(record.model_copy(update={"summary": "\x1b[2J passed"}).to_json()))


def empty_records(team: Team) -> None:
    for path in team.records():
        path.write_text("")


def change_versions(team: Team, version: int = 99) -> None:
    for path in team.records():
        record = record_of(team, path)
        path.write_text(seal(json.dumps({**json.loads(record.to_json()), "format_version": version})))


ATTACKS = [
    swap_records,
    replace_objects,
    lead_outside,
    empty_artifacts,
    swap_kinds,
    control_the_terminal,
    *(
        pytest.param(attack, marks=pytest.mark.thorough)
        for attack in (
            rename_keys,
            claim_another_machine,
            truncate_objects,
            link_objects,
            nest_files,
            empty_records,
            change_versions,
        )
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_foreign_and_damaged_entries_are_not_used(team: Team, attack: Any) -> None:
    first = team.anna.run(push=True)
    log = team.computed()
    attack(team)
    second = team.bert.run()
    assert team.computed() == log + log  # all of it is computed again
    assert "reused from cache" not in reasons(second)
    assert [step.record.artifact for step in second.steps if step.record] == [
        step.record.artifact for step in first.steps if step.record
    ]
    assert api.verify(outputs=team.bert.outputs).all_well
    assert not list(team.bert.outputs.parent.rglob("escaped.txt")) or attack is lead_outside
    assert not (team.bert.outputs / "escaped.txt").exists() and not (team.bert.outputs / "store/escaped.txt").exists()


@pytest.mark.parametrize("version", [1, 99])
def test_results_of_another_version_cost_one_warning_and_stay(team: Team, version: int) -> None:
    team.anna.run(push=True)
    change_versions(team, version)
    before = {path: path.read_bytes() for path in team.records()}
    assert reasons(team.bert.run(push=True)) == ["new"] * 3
    assert len(team.bert.warnings) == 1
    assert "another version" in team.bert.warnings[0]
    assert {path: path.read_bytes() for path in team.records()} == before


def test_a_foreign_record_in_the_store_is_found_and_computed_again(team: Team) -> None:
    first = team.anna.run()
    log = team.computed()
    store = Store(team.anna.outputs / "store")
    for path in (store.root / "records").glob("*/*.json"):
        tree = json.loads(path.read_text())
        tree.pop("seal", None)
        tree["artifact"] = {"kind": "onnx", "digest": digest_json([]), "files": []}
        path.write_text(seal(json.dumps(tree)))
    again = team.anna.run()
    assert team.computed() == log + log
    assert [step.record.artifact for step in again.steps if step.record] == [
        step.record.artifact for step in first.steps if step.record
    ]
    path = next((store.root / "records").glob("*/*.json"))
    tree = json.loads(path.read_text())
    tree.pop("seal", None)
    path.write_text(seal(json.dumps(tree | {"artifact": {"kind": "onnx", "digest": digest_json([]), "files": []}})))
    verified = api.verify(outputs=team.anna.outputs)
    assert verified.damaged_records == (path.stem,) and not path.exists()


def test_a_damaged_entry_is_repaired_by_a_push(team: Team) -> None:
    team.anna.run(push=True)
    truncate_objects(team)
    team.bert.run(push=True)
    log = team.computed()
    cecil = User(team.toy, team.bert.outputs.with_name("cecil"), team.bert.cache)
    cecil.run()
    assert team.computed() == log


# --- a cache that does not answer ------------------------------------------------------------------------------------


def test_a_cache_that_never_answers_costs_one_warning(memory: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *_, **__: time.sleep(1000))
    (Path(".ndld_flow.yaml")).write_text("cache: {url: 'memory://other', wait: 200 ms}\n")
    began = time.monotonic()
    assert reasons(memory.bert.run()) == ["new"] * 3
    assert time.monotonic() - began < 30
    assert len(memory.bert.warnings) == 1 and "helps within 200 ms" in memory.bert.warnings[0]


def test_transfers_that_never_end_are_given_up(memory: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.anna.run(push=True)
    monkeypatch.setattr(MemoryFileSystem, "get_file", lambda *_, **__: time.sleep(1000))
    (Path(".ndld_flow.yaml")).write_text("cache: {url: 'memory://other', wait: 1 s}\n")  # enough for the look-ups
    assert reasons(memory.bert.run()) == ["new"] * 3
    assert len(memory.bert.warnings) == 1 and "sends less than 1 MB" in memory.bert.warnings[0]


def test_an_unreachable_cache_does_not_fail_a_run(team: Team) -> None:
    Path("file").write_text("not a folder")
    team.bert.cache = str(Path("file").absolute() / "cache")
    assert reasons(team.bert.run(push=True)) == ["new"] * 3
    assert len(team.bert.warnings) == 1 and "cannot be read" in team.bert.warnings[0]


def test_a_read_only_cache_is_read(memory: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.anna.run(push=True)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("access denied")

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    run = memory.bert.run("steps.tint.colour=green", push=True)
    assert reasons(run) == ["reused from cache", "new", "new"]
    assert len(memory.bert.warnings) == 1 and "Results were not pushed" in memory.bert.warnings[0]


# --- machines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def measuring(team: Team) -> Team:
    """The same with a step whose results are valid on this host only."""
    gauge = team.toy.folder / "steps" / "gauge.py"
    gauge.write_text(gauge.read_text().replace("Reuse.THIS_MACHINE", "Reuse.THIS_HOST").replace('"scales"', '"cpu"'))
    team.anna.run(push=True)
    return team


def reason_of_measurement(team: Team) -> str:
    host._describe.cache_clear()
    return team.bert.plan()[-1].reason.text


def test_measurements_are_used_on_their_own_machine(measuring: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason_of_measurement(measuring) == "reused from cache"
    monkeypatch.setattr(host, "identify_host", lambda: "another (123)")
    assert reason_of_measurement(measuring) == "new"


def test_measurements_of_machines_of_one_kind_are_used_by_choice(
    measuring: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".ndld_flow.yaml").write_text("cache: {url: cache, machines: same_kind}\n")
    assert reason_of_measurement(measuring) == "new"  # that one was measured for its own host only
    measuring.anna.run(push=True)
    monkeypatch.setattr(host, "identify_host", lambda: "another (123)")
    assert reason_of_measurement(measuring) == "reused from cache"
    monkeypatch.setattr(host, "fingerprint_machine", lambda: "another kind")
    assert reason_of_measurement(measuring) == "new"


# --- settings --------------------------------------------------------------------------------------------------------


def is_used(team: Team, **options: Any) -> bool:
    planned = api.plan(team.toy.recipe, (ONE,), outputs=team.bert.outputs, trust=True, **options)
    assert isinstance(planned, list)
    return planned[0].reason.text == "reused from cache"


def test_a_cache_is_named_by_project_user_environment_or_option(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.anna.run(push=True)
    assert not is_used(team)
    assert is_used(team, cache=str(team.place))
    settings = tmp_path / "home" / "ndld_flow" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"cache: {team.place}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert is_used(team)
    Path(".ndld_flow.yaml").write_text("cache: other\n")
    assert not is_used(team)
    monkeypatch.setenv("NDLD_FLOW_CACHE", str(team.place))
    assert is_used(team)
    assert not is_used(team, cache="")


@pytest.mark.representatives(
    "cache: {url: s3://b, wait: soon}",
    "cach: s3://b",
    "cache: s3://b::file://x",
)
@pytest.mark.parametrize(
    "text",
    [
        "cache: {url: s3://b, push: true}",
        "cache: {ulr: s3://b}",
        "cach: s3://b",
        "cache: ftp://joe:secret-word@host/x",
        "cache: https://host/x?token=abcdef123456",
        "cache: reference://x",
        "cache: s3://b::file://x",
        "cache: {url: s3://b, wait: soon}",
    ],
)
def test_settings_with_mistakes_are_refused(team: Team, text: str, check_message: CheckMessage) -> None:
    Path(".ndld_flow.yaml").write_text(text)
    with pytest.raises(NdldFlowError) as caught:
        is_used(team)
    check_message(caught.value)
    assert "secret-word" not in str(caught.value) and "abcdef123456" not in str(caught.value)
    api.plan(team.toy.recipe, (ONE,), outputs=team.bert.outputs, trust=True, cache="")


def test_a_cache_in_a_folder_with_an_odd_name_is_that_folder(team: Team, tmp_path: Path) -> None:
    path = tmp_path / "a b%20 [1] #ü"
    api.run(team.toy.recipe, (ONE,), outputs=team.bert.outputs, trust=True, cache=str(path), push=True)
    assert list(path.glob("records/*/*.json"))


def test_pushing_by_the_users_settings_concerns_their_own_cache(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "home" / "ndld_flow" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"cache: {{url: '{team.place}', push: true}}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    Path(".ndld_flow.yaml").write_text("cache: other\n")
    api.run(team.toy.recipe, (ONE,), outputs=team.anna.outputs, trust=True)
    assert not Path("other").exists() and not team.records()
    Path(".ndld_flow.yaml").unlink()
    api.run(team.toy.recipe, (ONE,), outputs=team.anna.outputs, trust=True, push=False)
    assert not team.records()
    api.run(team.toy.recipe, (ONE,), outputs=team.anna.outputs, trust=True)
    assert len(team.records()) == 3
