"""Ray: tasks reach the right node, and every record arrives once, whichever processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, ModelError, RecipeError, RequestError
from ndld_flow.execution.events import Event
from ndld_flow.execution.executor import StepTimeoutError, Task
from ndld_flow.execution.keys import make_key
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.ray.executor import OnRay
from ndld_flow.execution.ray.node import find_fault
from ndld_flow.execution.request import Placement
from ndld_flow.execution.workers import WorkerBugError
from ndld_flow.machine.host import fingerprint_machine
from ndld_flow.recipe.targets import Needs
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.store.store import Store
from tests.support.ray_clusters import Cluster, Node, may_hide_folders, ray_worker
from tests.support.ray_toys import make_task
from tests.support.sweep_toys import RECIPE, SweepToy, make_sweep_toy, table
from tests.support.typed_api import run_once
from tests.support.worker_toys import Deeds, wait_until

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'ndld-flow[ray]'")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("XDG_CACHE_HOME", str(folder / "caches"))
        patch.setenv("TOY_LOG", str(folder / "toys.txt"))  # nodes have the environment that they are started in
        started = Cluster()
        yield started
        started.close()


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the second node does not see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def second(cluster: Cluster, hidden: Path) -> Node:
    return cluster.add(hidden=hidden, A100=1)


@pytest.fixture
def deeds(in_folder: Path) -> Deeds:
    return Deeds(in_folder)


@pytest.fixture(scope="module")
def on_ray(cluster: Cluster) -> Iterator[OnRay]:
    executor = OnRay(
        cluster.address, {"there": Needs(device="A100"), "lost": Needs(device="Orin")}, HEARD.append, trust=True
    )
    yield executor
    executor.close()


HEARD: list[Event] = []


def with_parts(task: Task, **parts: str) -> Task:
    (work,) = task.works
    return replace(task, works=(replace(work, parts=work.parts.model_copy(update=parts)),))


@pytest.mark.thorough
def test_a_task_runs_on_a_node(deeds: Deeds, on_ray: OnRay) -> None:
    (record,) = on_ray.submit(make_task(deeds, "word: hello"), deeds.store).result(60)
    assert record.summary == "hello"
    assert deeds.store.read_record(record.key) == record
    assert deeds.told == [("one", 1, 2, "about to do nothing")]


@pytest.mark.thorough
def test_a_task_runs_on_the_device_it_names(second: Node, deeds: Deeds, on_ray: OnRay) -> None:
    wanted = (
        r"no node with 1 CPUs and the device 'Orin' \(did you mean \"orin\"\?\). Its nodes: .*\(2 CPUs, 0 GPUs, A100\)"
    )
    with pytest.raises(BackendError, match=wanted):
        on_ray.submit(make_task(deeds, name="lost"), deeds.store).result(60)
    (record,) = on_ray.submit(make_task(deeds, "act: pid", name="there"), deeds.store).result(60)
    assert second.has(int(record.summary))


@pytest.mark.thorough
@pytest.mark.skipif(not may_hide_folders(), reason="only root may hide a folder from a process")
def test_a_node_that_does_not_see_the_folder_is_refused(
    second: Node, hidden: Path, on_ray: OnRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hidden)
    deeds = Deeds(hidden)
    with pytest.raises(BackendError, match="does not see"):
        on_ray.submit(make_task(deeds, name="there"), deeds.store).result(60)
    assert not deeds.store.record_path(make_key(make_task(deeds, name="there").works[0].parts)).exists()


@pytest.mark.thorough
def test_exceptions_of_steps_are_raised_in_the_driver(deeds: Deeds, on_ray: OnRay) -> None:
    with pytest.raises(ModelError, match=r"big in its model.onnx"):
        on_ray.submit(make_task(deeds, "act: refuse, word: too big"), deeds.store).result(60)
    with pytest.raises(WorkerBugError, match="ValueError: a bug about x"):
        on_ray.submit(make_task(deeds, "act: bug, word: x"), deeds.store).result(60)
    assert len(deeds.done) == 2  # an error is an answer


@pytest.mark.thorough
def test_a_step_that_takes_too_long_is_stopped(deeds: Deeds, on_ray: OnRay) -> None:
    with pytest.raises(StepTimeoutError, match="took longer than 500 ms"):
        on_ray.submit(make_task(deeds, "seconds: 60", timeout_s=0.5), deeds.store).result(60)
    assert len(deeds.done) == 1


@pytest.mark.thorough
def test_tasks_planned_for_another_machine_or_version_are_refused(deeds: Deeds, on_ray: OnRay) -> None:
    task = make_task(deeds)
    assert on_ray.machine_for(task.works[0].step, deeds.store).startswith(fingerprint_machine())
    with pytest.raises(BackendError, match="toaster, but Ray would"):
        on_ray.submit(with_parts(task, machine="a toaster"), deeds.store).result(60)
    with pytest.raises(BackendError, match=r"version is 1.* instead of 7"):
        on_ray.submit(with_parts(task, version="7"), deeds.store).result(60)
    assert deeds.done == []


def test_a_node_that_does_not_see_the_store_is_reported(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert "does not see" in find_fault(store, "ray-nobody")
    with store.locks.lease("ray", "witness"):
        assert find_fault(store, "ray-witness") == ""
    (store.root / "locks" / "ray-witness.lock").touch()  # as where locks do not reach other machines
    assert "mount it with locks" in find_fault(store, "ray-witness")


def test_an_unreachable_cluster_is_reported() -> None:
    with pytest.raises(BackendError, match=r"Ray at 127.0.0.1:1: nothing answers"):
        OnRay("127.0.0.1:1", {}, ignore)


SWEEP = RECIPE.replace("tint: {step: dye}", "tint: {step: dye, seconds: 1}") + "needs: {tint: {device: A100}}\n"


@pytest.fixture
def toy(cluster: Cluster, in_folder: Path) -> SweepToy:
    Path(os.environ["TOY_LOG"]).write_text("")
    return make_sweep_toy(in_folder, SWEEP)


def undisturbed(toy: SweepToy, *overrides: str) -> list[tuple[object, ...]]:
    """The table of the same sweep, done from the beginning in this process."""
    toy.outputs.rename(toy.folder / "aside")
    record, _ = toy.run("steps.tint.seconds=0", *overrides)
    return table(record)


def dyed() -> list[tuple[str, int]]:
    """Step and process, for each time that one began to dye."""
    lines = [line.split() for line in Path(os.environ["TOY_LOG"]).read_text().splitlines()]
    return [(line[1], int(line[2])) for line in lines if line[0] == "dye"]


def pids(step: str) -> list[int]:
    return [pid for name, pid in dyed() if name == step]


def gauged() -> list[str]:
    """Return the groups of steps that were measured together."""
    lines = Path(os.environ["TOY_LOG"]).read_text().splitlines()
    return [line.removeprefix("gauge ") for line in lines if line.startswith("gauge ")]


@pytest.mark.slow
def test_a_sweep_survives_its_workers_and_nodes(cluster: Cluster, second: Node, hidden: Path, toy: SweepToy) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(toy.run, place=Placement(ray=cluster.address))
        wait_until(lambda: pids("tint#1"))
        os.kill(ray_worker(pids("tint#1")[0]), signal.SIGKILL)
        wait_until(lambda: len(pids("tint#1")) == 2)
        os.kill(pids("tint#1")[1], signal.SIGSTOP)  # it must not end before its node does
        assert second.has(pids("tint#1")[1])  # as it needs
        second.kill()
        cluster.add(hidden=hidden, A100=1)
        record, _ = running.result(120)
    assert len(pids("base#1")) == 1
    assert len(pids("tint#1")) == 3  # cut off twice
    assert len(gauged()) == 2  # once, and the winners again
    assert {session.machine for session in record.sessions} == {""}
    assert table(record) == undisturbed(toy)


def start(toy: SweepToy, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "ndld_flow",
        "run",
        str(toy.recipe),
        "--trust",
        "--outputs",
        str(toy.outputs),
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_sweep_resumes_after_its_driver_was_killed(cluster: Cluster, second: Node, toy: SweepToy) -> None:
    ray = ["--ray", cluster.address, "sweep.together=2", "steps.tint.seconds=2"]
    with start(toy, *ray) as driver:  # whose sessions are of points 4 and 6, 1 and 3, 2 and 5
        wait_until(lambda: pids("tint#1"))
        driver.kill()
    wait_until(lambda: not Path(f"/proc/{pids('tint#1')[0]}").exists())  # nothing goes on without a driver
    measured = gauged()
    with start(toy, *ray) as other:  # and two at once do not disturb each other
        record, _ = toy.run(*ray[2:], place=Placement(ray=cluster.address))
        said, _ = other.communicate(timeout=120)
        assert other.returncode == 0, said
    assert Counter(name for name, _ in dyed()) == {"base#4": 1, "tint#4": 1, "tint#1": 2}
    assert measured == ["speed#4+speed#6"]
    assert Counter(gauged())["speed#4+speed#6"] == 1
    assert len(gauged()) == 3 + 1
    assert table(record) == undisturbed(toy, "sweep.together=2")


@pytest.mark.thorough
def test_a_plain_run_is_computed_by_the_nodes_that_it_needs(cluster: Cluster, second: Node, toy: SweepToy) -> None:
    places: dict[str, bool] = {}

    def look(event: Event) -> None:
        if event.event == "step_started":
            places[event.name] = event.target == "Ray"
        elif event.event == "step_finished" and event.name == "tint":
            places["on the second node"] = second.has(pids("tint")[0])

    options: dict[str, Any] = {"outputs": toy.outputs, "trust": True, "place": Placement(ray=cluster.address)}
    finished = run_once(toy.recipe, ["~sweep"], listener=look, **options)
    assert finished.passed
    assert places == {"base": True, "tint": True, "on the second node": True, "speed": True}
    steps = read_run_record(Path(finished.folder)).steps
    assert [(step.name, step.outcome, step.target) for step in steps] == [
        ("base", "done", "Ray"), ("tint", "done", "Ray"), ("speed", "done", "Ray")
    ]  # fmt: skip
    assert steps[2].record is not None
    assert steps[2].record.parts.machine == fingerprint_machine()
    assert run_once(toy.recipe, ["~sweep"], **options).nothing_to_do
    assert run_once(toy.recipe, ["~sweep"], outputs=toy.outputs, trust=True).nothing_to_do, "the same kind of machine"
    assert len(dyed()) == 2
    with pytest.raises(BackendError, match=r"node with .*the device 'H100'"):
        run_once(toy.recipe, ["~sweep", "needs.tint.device=H100"], force=["tint"], **options)
    with pytest.raises(ModelError, match=r"step tint: .* takes no"):
        run_once(toy.recipe, ["~sweep", "steps.tint.fails=model"], **options)


def test_options_that_contradict_ray_are_refused(in_folder: Path) -> None:
    toy = make_sweep_toy(in_folder, RECIPE)
    options: dict[str, Any] = {"outputs": toy.outputs, "trust": True}
    with pytest.raises(RequestError, match="--ray computes all steps"):
        api.run(toy.recipe, ["~sweep"], on="ssh://nowhere", place=Placement(ray="127.0.0.1:1"), **options)
    with pytest.raises(RequestError, match="--jobs distributes the points"):
        api.run(toy.recipe, ["~sweep"], place=Placement(jobs=2, ray="127.0.0.1:1"), **options)
    with pytest.raises(BackendError, match="nothing answers"):
        api.run(toy.recipe, ["~sweep"], place=Placement(ray="127.0.0.1:1"), **options)
    with pytest.raises(RecipeError, match=r"no step `tnt`\n.*tint"):
        api.run(toy.recipe, ["~sweep", "+needs.tnt.gpus=1"], **options)
