"""Ray: tasks reach the right node, and whatever dies, every record arrives once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ndld_flow.artifacts.remote_store import RemoteStore
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import BackendError, ModelError
from ndld_flow.recipe.sweep_section import Needs
from ndld_flow.runner.events import Event, ignore
from ndld_flow.runner.executors.executor import StepTimeoutError, Task
from ndld_flow.runner.executors.on_ray import OnRay
from ndld_flow.runner.executors.ray_node import find_fault
from ndld_flow.runner.executors.workers import WorkerBugError
from ndld_flow.runner.keys import fingerprint_machine, make_key
from tests.ray_toys import make_task
from tests.worker_toys import Deeds, wait_until

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'ndld-flow[ray]'")


class Cluster:
    """A Ray of several nodes on this machine, which soon notices that one is gone."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        impatient = {"period_ms": 500, "timeout_ms": 10_000, "failure_threshold": 5, "initial_delay_ms": 0}
        config = {f"health_check_{name}": value for name, value in impatient.items()}
        self._cluster = RayCluster()
        self._cluster.add_node(
            num_cpus=2, resources={"orin": 1}, include_dashboard=False, include_log_monitor=False, _system_config=config
        )
        self.address = str(self._cluster.address)
        self._nodes: list[Node] = []

    def add(self, *, hidden: Path, **resources: float) -> Node:
        """A node that does not see a folder, where a process may be given such a view."""
        before = self._living()
        node = Node(self.address, resources, hidden)
        self._nodes.append(node)
        wait_until(lambda: self._living() - before)
        return node

    def _living(self) -> set[str]:
        return {node["NodeID"] for node in self._cluster.global_state.node_table() if node["Alive"]}

    def close(self) -> None:
        for node in self._nodes:
            node.kill()
        self._cluster.shutdown()


def may_hide_folders() -> bool:
    """Whether this user may give processes a view of the file system of their own."""
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


class Node:
    """A node beside the head."""

    def __init__(self, address: str, resources: Mapping[str, float], hidden: Path) -> None:
        start = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            f"--address={address}",
            "--num-cpus=2",
            "--block",
        ]
        start += [f"--resources={json.dumps(resources)}"]
        hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)]
        command = hide + start if may_hide_folders() else start
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)

    def has(self, pid: int) -> bool:
        """Whether a process, which may just have ended, runs on this node."""
        return self._process.pid in ancestors(pid)

    def kill(self) -> None:
        """As if its plug were pulled."""
        for pid in [pid for pid in _pids() if self.has(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on; none where it has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while pid > 1:
            found.append(pid)
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def ray_worker(pid: int) -> int:
    """The Ray worker whose process does a step."""
    return next(one for one in ancestors(pid) if b"ray::" in Path(f"/proc/{one}/cmdline").read_bytes())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("XDG_CACHE_HOME", str(folder / "caches"))
        made = Cluster()
        yield made
        made.close()


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
    made = OnRay(
        cluster.address, {"there": Needs(device="A100"), "lost": Needs(device="Orin")}, HEARD.append, trust=True
    )
    yield made
    made.close()


HEARD: list[Event] = []


def with_parts(task: Task, **parts: str) -> Task:
    (work,) = task.works
    return replace(task, works=(replace(work, parts=work.parts.model_copy(update=parts)),))


def test_a_task_is_done_on_a_node(deeds: Deeds, on_ray: OnRay) -> None:
    (record,) = on_ray.submit(make_task(deeds, "word: hello"), deeds.store).result(60)
    assert record.summary == "hello"
    assert deeds.store.read_record(record.key) == record
    assert deeds.told == [("one", 1, 2, "about to do nothing")]


def test_a_task_goes_to_the_device_it_names(second: Node, deeds: Deeds, on_ray: OnRay) -> None:
    wanted = (
        r"no node with 1 CPUs and the device 'Orin' \(did you mean \"orin\"\?\). Its nodes: .*\(2 CPUs, 0 GPUs, A100\)"
    )
    with pytest.raises(BackendError, match=wanted):
        on_ray.submit(make_task(deeds, name="lost"), deeds.store).result(60)
    (record,) = on_ray.submit(make_task(deeds, "act: pid", name="there"), deeds.store).result(60)
    assert second.has(int(record.summary))


@pytest.mark.skipif(not may_hide_folders(), reason="only root may hide a folder from a process")
def test_a_node_that_does_not_see_the_folder_is_refused(
    second: Node, hidden: Path, on_ray: OnRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hidden)
    deeds = Deeds(hidden)
    with pytest.raises(BackendError, match=r"does not see the store .*: mount the outputs folder there"):
        on_ray.submit(make_task(deeds, name="there"), deeds.store).result(60)
    assert not deeds.store.record_path(make_key(make_task(deeds, name="there").works[0].parts)).exists()


def test_what_steps_raise_is_raised_here(deeds: Deeds, on_ray: OnRay) -> None:
    with pytest.raises(ModelError, match=r"step one: too big in its model.onnx"):
        on_ray.submit(make_task(deeds, "act: refuse, word: too big"), deeds.store).result(60)
    with pytest.raises(WorkerBugError, match="ValueError: a bug about x"):
        on_ray.submit(make_task(deeds, "act: bug, word: x"), deeds.store).result(60)
    assert len(deeds.done) == 2  # an error is an answer


def test_a_step_that_takes_too_long_is_stopped(deeds: Deeds, on_ray: OnRay) -> None:
    with pytest.raises(StepTimeoutError, match="step one: it took longer than 500 ms and was stopped"):
        on_ray.submit(make_task(deeds, "seconds: 60", timeout_s=0.5), deeds.store).result(60)
    assert len(deeds.done) == 1


def test_what_was_planned_for_another_machine_or_version_is_refused(deeds: Deeds, on_ray: OnRay) -> None:
    task = make_task(deeds)
    assert on_ray.machine_for(task.works[0].step, deeds.store) == fingerprint_machine()
    with pytest.raises(BackendError, match="step one: it was planned for a toaster, but Ray would do it on Linux"):
        on_ray.submit(with_parts(task, machine="a toaster"), deeds.store).result(60)
    with pytest.raises(BackendError, match=r"the step's version is 1.* instead of 7"):
        on_ray.submit(with_parts(task, version="7"), deeds.store).result(60)
    assert deeds.done == []


def test_a_killed_ray_worker_is_replaced(deeds: Deeds, on_ray: OnRay) -> None:
    answer = on_ray.submit(make_task(deeds, "seconds: 1"), deeds.store)
    wait_until(lambda: deeds.done)
    os.kill(ray_worker(deeds.done[0][1]), signal.SIGKILL)
    (record,) = answer.result(60)
    assert deeds.store.read_record(record.key) == record
    assert len(deeds.done) == 2


def test_a_task_survives_its_node(cluster: Cluster, second: Node, hidden: Path, deeds: Deeds, on_ray: OnRay) -> None:
    answer = on_ray.submit(make_task(deeds, "seconds: 2", name="there"), deeds.store)
    wait_until(lambda: deeds.done)
    second.kill()
    third = cluster.add(hidden=hidden, A100=1)
    (record,) = answer.result(90)
    assert deeds.store.read_record(record.key) == record
    assert third.has(deeds.done[-1][1])


DRIVER = """
import sys
from pathlib import Path
from ndld_flow.runner.executors.on_ray import OnRay
from ndld_flow.runner.executors.ray_node import find_fault
from ndld_flow.runner.executors.workers import WorkerBugError
from tests.ray_toys import make_task
from tests.worker_toys import Deeds

deeds = Deeds(Path.cwd())
on_ray = OnRay(sys.argv[1], {}, print, trust=True)
for settings, name in (("word: a", "first"), ("seconds: 60", "second")):
    print(on_ray.submit(make_task(deeds, settings, name=name), deeds.store).result()[0].key, flush=True)
"""


def test_what_a_killed_driver_had_done_is_done(cluster: Cluster, deeds: Deeds, on_ray: OnRay) -> None:
    command = [sys.executable, "-c", DRIVER, cluster.address]
    root = str(Path(__file__).parent.parent)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}) as driver:
        wait_until(lambda: len(deeds.done) == 2)
        driver.kill()
        assert driver.stdout is not None
        first = driver.stdout.read().decode().split()
    wait_until(lambda: not Path(f"/proc/{deeds.done[1][1]}").exists())  # nothing goes on without a driver
    again = [on_ray.submit(make_task(deeds, text), deeds.store) for text in ("word: a", "word: b")]
    assert [future.result(60)[0].key for future in again][:1] == first
    assert [name for name, _ in deeds.done] == ["first", "second", "one"]


def test_a_node_that_does_not_see_the_store_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert "does not see the store" in find_fault(store, "ray-nobody")
    with store.lease("ray", "witness"):
        assert find_fault(store, "ray-witness") == ""
    (store.root / "locks" / "ray-witness.lock").touch()  # as where locks do not reach other machines
    assert "mount it with locks" in find_fault(store, "ray-witness")


def test_without_a_shared_folder_things_go_through_a_remote_store(
    cluster: Cluster, deeds: Deeds, tmp_path: Path
) -> None:
    remote = RemoteStore((tmp_path / "remote").as_uri())
    on_ray = OnRay(cluster.address, {}, ignore, trust=True, remote_store=remote)
    try:
        (record,) = on_ray.submit(make_task(deeds, "word: a"), deeds.store).result(60)
        assert deeds.store.is_intact(record.artifact)
        assert deeds.store.read_record(record.key) == record
        # what its node has, and what has reached the remote store, is damaged: both are noticed, and made again
        for model in (*Path(os.environ["XDG_CACHE_HOME"]).rglob("model.onnx"), *tmp_path.glob("remote/**/model.onnx")):
            model.chmod(0o644)
            model.write_bytes(b"x" * model.stat().st_size)
        (other,) = on_ray.submit(make_task(deeds, "word: b"), deeds.store).result(60)
        assert deeds.store.is_intact(other.artifact)
        assert len(deeds.done) == 2
    finally:
        on_ray.close()


def test_where_nothing_answers_it_is_told() -> None:
    with pytest.raises(BackendError, match=r"Ray at 127.0.0.1:1: nothing answers: .* must be a node of the cluster"):
        OnRay("127.0.0.1:1", {}, ignore)
