"""`runs`: what is shown of runs, filters, and runs that cannot be read."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from unittest import mock

import pytest
import yaml

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.base.users import name_me
from ndld_flow.execution.events import RunFinished
from ndld_flow.records.document import read_tree
from ndld_flow.runs.outputs import Outputs
from tests.support.command_line import ndld_flow
from tests.support.long_history import lengthen_history
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import SweepToy, make_sweep_toy


@pytest.fixture
def toy(in_folder: Path) -> SweepToy:
    toy = make_sweep_toy(in_folder)
    toy.write(toy.recipe.read_text() + "gates: [speed.ms <= 20 ms]\n")
    for threads in (1, 2, 4):
        finished = api.run(toy.recipe, ("~sweep", f"steps.speed.threads={threads}"), trust=True)
        assert isinstance(finished, RunFinished)
    return toy


def latencies(*where: str, **others: str) -> list[float]:
    return [run.metrics["speed.ms"].value for run in api.runs(where=where, **others)]  # type: ignore[arg-type]


def test_a_run_has_its_user_machine_model_and_main_metrics(toy: SweepToy) -> None:
    run = api.runs()[0]
    assert (run.user, run.host) == (name_me(), platform.node())
    assert run.machine
    assert run.model == "model.onnx"
    assert {name: (metric.value, metric.unit) for name, metric in run.metrics.items()} == {"speed.ms": (4.0, "ms")}
    shown = ndld_flow("runs", cwd=toy.folder).stdout.splitlines()
    assert len(shown) == 3
    assert f"{name_me()}@{platform.node()}  model.onnx  speed.ms 4.00 ms" in shown[0]


@pytest.mark.thorough
def test_a_sweep_shows_the_objectives_of_its_best_point(toy: SweepToy) -> None:
    toy.run()
    sweep = api.runs()[0]
    assert (sweep.kind, sweep.user, Path(sweep.model).name) == ("sweep", name_me(), "model.onnx")
    assert sweep.metrics["speed.ms"].value == 4.0
    assert api.runs(where=["speed.ms < 4.5 ms"])[0].kind == "sweep"
    assert all(run.kind == "run" for run in api.runs(where=["speed.ms > 4.5 ms"]))


@pytest.mark.thorough
def test_runs_and_sweeps_of_a_recipe_named_points_are_no_points(toy: SweepToy) -> None:
    finished = api.sweep({**yaml.safe_load(toy.recipe.read_text()), "name": "points"}, trust=True)
    single = api.run({"name": "points", "model": "model.onnx", "steps": {"sanitize": {}}})
    api.tag(finished.folder, "kept")
    assert {(run.run, run.tags) for run in api.runs("points")} == {
        (f"points/{Path(finished.folder).name}", ("kept",)),
        (f"points/{Path(single.folder).name}", ()),
    }


def test_conditions_are_those_of_gates(toy: SweepToy) -> None:
    assert latencies() == [4.0, 7.0, 13.0]
    assert latencies("speed.ms < 8 ms") == [4.0, 7.0]
    assert latencies("speed.ms < 0.008 s", "speed.ms >= 5 ms") == [7.0]
    assert latencies("2 * speed.ms <= 14") == [4.0, 7.0]
    assert latencies("ms < 8 ms") == [4.0, 7.0], "of any step"
    assert latencies("ms < 1 ns") == []


def test_a_metric_without_its_step_is_that_of_one_step(toy: SweepToy, check_message: CheckMessage) -> None:
    assert len(api.runs(where=["weight >= 1 B"])) == 3
    listed = api.runs(where=["weight * 1 == 1"])
    assert list(listed[0].metrics) == ["base.weight", "speed.ms"]
    assert api.runs(where=["weight >= 1 B", "ms > 12 ms"])[0].metrics.keys() == {"base.weight", "speed.ms"}
    with pytest.raises(RequestError) as caught:
        api.runs(where=["other.weight >= 1 B"])
    check_message(caught.value)


WRONG = (
    ("speed.msec < 1 ms", 'no run has a metric `speed.msec`; did you mean "speed.ms"'),
    ("speed.ms < 64 MiB", "cannot be compared with"),
    ("speed.ms", "compares two sides|not a comparison"),
    ("1 < 2", "names at least one metric"),
    ("__import__('os').system('true') < 1", "a gate consists of metrics"),
    ("speed.ms < 1 ms; speed.ms", "not a comparison"),
    ("", "not a comparison"),
)


def test_wrong_conditions_are_refused(toy: SweepToy) -> None:
    for condition, message in WRONG:
        with pytest.raises(RequestError, match=message):
            api.runs(where=[condition])
        done = ndld_flow("runs", "--where", condition, cwd=toy.folder)
        assert done.returncode == 2


def test_runs_are_filtered_by_tag_model_and_user(toy: SweepToy) -> None:
    newest = api.runs()[0]
    api.tag(newest.run, "release-1")
    assert latencies(tag="release-*") == latencies(tag="release-1") == [4.0]
    assert latencies(tag="other") == []
    assert latencies(model="model.onnx") == latencies(model="*.onnx") == [4.0, 7.0, 13.0]
    record = json.loads((Path(newest.folder) / "run.json").read_text())
    assert len(latencies(model=record["source"]["artifact"]["digest"][:8])) == 3
    assert latencies(model="model") == latencies(model="")[:0]
    assert len(latencies(user=name_me())) == 3
    assert latencies(user="nobody-else") == []
    assert "no run matches" in ndld_flow("runs", "--user", "nobody-else", cwd=toy.folder).stdout


def test_only_the_records_that_are_shown_are_read(toy: SweepToy, check_message: CheckMessage) -> None:
    lengthen_history(Outputs(Path("outputs")), "toy", range(1, 80), [])
    with mock.patch("ndld_flow.runs.list_runs.read_tree", side_effect=read_tree) as read:
        assert len(api.runs(limit=5)) == 5
        assert read.call_count == 5
        assert latencies(tag="none") == []
        assert read.call_count == 5
    done = ndld_flow("runs", cwd=toy.folder)
    assert len(done.stdout.splitlines()) == 50
    check_message(done.stderr)
    assert len(ndld_flow("runs", "--all", cwd=toy.folder).stdout.splitlines()) == 82
    assert len(json.loads(ndld_flow("runs", "--json", cwd=toy.folder).stdout)) == 82
    assert len(json.loads(ndld_flow("runs", "--json", "-n", "3", cwd=toy.folder).stdout)) == 3


def test_runs_that_cannot_be_read_are_skipped_and_named(toy: SweepToy, check_message: CheckMessage) -> None:
    newest, second, _ = api.runs()
    (Path(newest.folder) / "run.json").write_text("{")
    (Path(second.folder) / "run.json").unlink()
    listed = api.runs(where=["speed.ms > 1 ms"])
    assert [bool(run.damage) for run in listed] == [True, True, False]
    assert "run.json cannot be read" in listed[0].damage
    assert "run.json is missing" in listed[1].damage
    done = ndld_flow("runs", "--where", "speed.ms > 1 ms", "-n", "1", cwd=toy.folder)
    assert done.returncode == 0
    assert newest.run in done.stdout
    check_message(done.stderr)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to become another user")
def test_runs_of_another_user_who_keeps_them_private_are_named_with_the_remedy(toy: SweepToy) -> None:
    newest = api.runs()[0]
    shutil.copytree("outputs/runs/toy", "outputs/runs/hidden")
    Path(newest.folder, "run.json").chmod(0o600)
    Path("outputs/runs/hidden").chmod(0o700)
    for folder in (toy.folder, *toy.folder.parents[:2]):
        folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os.write(writer, json.dumps([(run.run, run.damage) for run in api.runs()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        listed = json.load(pipe)
    damage = dict(listed)
    assert len(listed) == 4
    assert "belongs to root" in damage[newest.run]
    assert "chmod" in damage["hidden"]
