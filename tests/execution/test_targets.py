"""Steps on targets: real OpenSSH servers on loopback, each with a home of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, NdldFlowError, RecipeError, RequestError
from ndld_flow.execution.devices import FOLDER_VARIABLE
from ndld_flow.execution.doctor import NEEDED
from ndld_flow.execution.events import Event, Notice, RunFinished
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.ssh.connection import SSH_VARIABLE, Connection, explain_failure
from ndld_flow.execution.ssh.deploy import refuse_unfit
from ndld_flow.execution.ssh.host import Host
from ndld_flow.execution.ssh.messages import Incoming, New
from ndld_flow.recipe.targets import Target
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import RunStep
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.ssh_servers import REASON, Network, available, processes_in, serving
from tests.support.sweep_toys import make_sweep_toy
from tests.support.toys import started
from tests.support.typed_api import plan_once, run_once

pytestmark = pytest.mark.skipif(not available(), reason=REASON)

needs_cpus = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or not shutil.which("taskset"), reason="needs two CPUs and taskset"
)

FAST = "passes: 2, warmup_passes: 1, warmup: 0, duration: 0, runs: 1, stable: 0, layer_passes: 1"
RECIPE = f"""
name: far
model: model.onnx
targets:
  alpha: {{host: ssh://alpha, python: {sys.executable}}}
  gamma: {{host: ssh://gamma, python: {sys.executable}}}
steps:
  clean: {{step: sanitize}}
  half: {{step: convert_fp16, from: clean, on: alpha}}
  speed: {{step: profile, from: half, on: gamma, {FAST}}}
  check: {{step: check_accuracy, candidate: half, samples: 2, tolerance: {{cosine: 0.9}}}}
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Three machines; `gamma` is reached through `beta`."""
    folder = tmp_path_factory.mktemp("network")
    (folder / "locks").mkdir()
    environment = {FOLDER_VARIABLE: str(folder / "locks")}
    with serving(folder, "alpha", "beta", "gamma", behind={"gamma": "beta"}, environment=environment) as network:
        yield network


@pytest.fixture
def here(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe whose steps run on two targets, which have nothing yet."""
    for server in network.servers.values():
        shutil.rmtree(server.home / ".ndld_flow", ignore_errors=True)
    monkeypatch.setenv(SSH_VARIABLE, network.command)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    make_cnn(tmp_path / "model.onnx")
    (tmp_path / "far.yaml").write_text(RECIPE)
    return tmp_path


def steps_of(finished: RunFinished) -> dict[str, RunStep]:
    return {step.name: step for step in read_run_record(Path(finished.folder)).steps}


def store_of(network: Network, name: str) -> Store:
    return Store(network.servers[name].home / ".ndld_flow" / "store")


def wait_until_gone(network: Network) -> list[str]:
    """Return the processes on the targets that are still there after some seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [process for server in network.servers.values() for process in processes_in(server.home)]
        if not left:
            return []
        time.sleep(0.1)
    return left


@pytest.mark.thorough
def test_steps_run_on_their_targets_and_results_return(network: Network, here: Path) -> None:
    finished = run_once("far.yaml", trust=True)
    steps = steps_of(finished)
    assert finished.passed
    assert {name: step.target for name, step in steps.items()} == {
        "clean": "", "half": "alpha", "speed": "gamma", "check": ""
    }  # fmt: skip
    for name, server in (("half", "alpha"), ("speed", "gamma")):
        record = steps[name].record
        assert record is not None
        assert Store(here / "outputs" / "store").is_intact(record.artifact)
        assert store_of(network, server).read_record(record.key) == record
    assert not (network.servers["beta"].home / ".ndld_flow").exists(), "it is only passed through"
    page = Path(finished.report).read_text()
    assert "on <bdi>alpha</bdi>" in page
    assert "on <bdi>gamma</bdi>" in page
    events: list[Event] = []
    again = run_once("far.yaml", trust=True, listener=events.append)
    assert again.nothing_to_do
    assert started(events) == []
    assert wait_until_gone(network) == []


def test_a_plan_describes_the_target_not_this_machine(here: Path) -> None:
    recipe = RECIPE.replace(f"profile, from: half, on: gamma, {FAST}", "build_engine, from: half, on: gamma")
    (here / "far.yaml").write_text(recipe)
    planned = {decision.step.name: decision.foresee() for decision in plan_once("far.yaml", trust=True)}
    described = (*planned["speed"].notes, *planned["speed"].obstacles)
    assert described
    assert all(text.startswith("on gamma: ") for text in described)


@pytest.mark.thorough
def test_steps_from_files_run_here_only(here: Path, check_message: CheckMessage) -> None:
    toy = make_sweep_toy(here).recipe
    targets = f"targets: {{alpha: {{host: ssh://alpha, python: {sys.executable}}}}}\n"
    toy.write_text(targets + toy.read_text().replace("tint: {step: dye}", "tint: {step: dye, on: alpha}"))
    (lack,) = plan_once("toy.yaml", ["~sweep"], trust=True)[1].foresee().lacks
    assert "no step type 'dye'" in lack
    with pytest.raises(BackendError) as caught:
        api.run("toy.yaml", ["~sweep"], trust=True)
    check_message(caught.value)


def test_a_target_of_a_strangers_recipe_needs_trust(network: Network, here: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as error:
        api.run("far.yaml")
    check_message(error.value)
    assert not (network.servers["alpha"].home / ".ndld_flow").exists()
    (here / ".ndld_flow.yaml").write_text("targets: {alpha: ssh://evil}\n")
    with pytest.raises(RequestError) as caught:
        api.run("far.yaml")
    check_message(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        ("on: gamma", "on: gama"),
        ("on: gamma", "on: [1]"),
        ("ssh://gamma", "ssh://-oProxyCommand=id"),
        ("ssh://gamma", "http://gamma"),
        ("ssh://gamma, ", "ssh://gamma, folder: ../up, "),
    ],
)
def test_mistakes_in_targets_are_found_before_anything_runs(
    changed: tuple[str, str], here: Path, check_message: CheckMessage
) -> None:
    (here / "far.yaml").write_text(RECIPE.replace(*changed))
    events: list[Event] = []
    with pytest.raises(RecipeError) as error:
        api.run("far.yaml", trust=True, listener=events.append)
    check_message(error.value)
    assert started(events) == []


def refusal(target: Target) -> str:
    """Return why a target cannot be used."""
    host = Host("box", target, ignore)
    with pytest.raises(BackendError) as error:
        host.examine()
    host.close()
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_a_host_that_cannot_be_used_is_explained(
    network: Network, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    target = Target(host="ssh://alpha", python=sys.executable)

    def change(old: str, new: str) -> None:
        (tmp_path / "ssh_config").write_text(network.config.read_text().replace(old, new))
        monkeypatch.setenv(SSH_VARIABLE, f"ssh -F {tmp_path / 'ssh_config'}")

    known = network.config.parent / "known_hosts"
    (tmp_path / "empty").touch()
    change(str(known), str(tmp_path / "empty"))
    check_message(refusal(target))
    lines = known.read_text().split("\n")
    (tmp_path / "swapped").write_text(f"{lines[0].split(' ')[0]} {' '.join(lines[1].split(' ')[1:])}\n")
    change(str(known), str(tmp_path / "swapped"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    change(str(network.key), str(tmp_path / "other"))
    monkeypatch.setenv(SSH_VARIABLE, network.command)
    check_message(refusal(Target(host="ssh://nowhere.invalid")))
    check_message(refusal(Target(host="ssh://127.0.0.1:1")))
    check_message(refusal(Target(host="ssh://alpha", python="/nowhere/python")))
    (network.servers["alpha"].home / "mine").mkdir(exist_ok=True)
    (network.servers["alpha"].home / "mine" / "file").touch()
    check_message(refusal(Target(host="ssh://alpha", folder="~/mine", python=sys.executable)))


def test_a_host_without_a_new_enough_python_is_explained(network: Network, here: Path) -> None:
    python = network.servers["alpha"].folder / "bin" / "python3"
    kept = python.resolve()
    python.unlink()
    try:
        python.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.8.2 || exit 1\n')
        python.chmod(0o755)
        if not shutil.which("python3.11", path="/usr/bin:/bin:/usr/local/bin"):
            assert "Python 3.8.2, and ndld-flow needs 3.11" in refusal(Target(host="ssh://alpha"))
    finally:
        python.unlink()
        python.symlink_to(kept)


FACTS = {
    "system": "Linux", "architecture": "aarch64", "python": [3, 11], "libc": ["glibc", "2.35"], "free_bytes": 10**10,
    "folder": "/home/me/.ndld_flow",
}  # fmt: skip


@pytest.mark.parametrize(
    "facts",
    [
        {"system": "Darwin"},
        {"architecture": "armv7l"},
        {"libc": ["glibc", "2.17"]},
        {"libc": ["glibc", "2.9"]},
        {"libc": ["", ""]},
        {"free_bytes": 10**9},
    ],
)
def test_a_machine_on_which_nothing_can_be_installed_is_refused(
    facts: dict[str, Any], check_message: CheckMessage
) -> None:
    refuse_unfit(New.model_validate_json(json.dumps({"kind": "new", **FACTS})), "box", 0)
    with pytest.raises(BackendError) as error:
        refuse_unfit(New.model_validate_json(json.dumps({"kind": "new", **FACTS, **facts})), "box", 0)
    check_message(error.value)


@pytest.mark.parametrize(
    ("printed", "code", "words"),
    [
        ("'exec' is not recognized as an internal or external command,\r\noperable program", 1, "a Windows machine"),
        ("exec : The term 'exec' is not recognized as the name of a cmdlet", 1, "a Windows machine"),
        ("sh: not found", 127, "no POSIX shell"),
        ("Python: sh: python3: not found", 94, "it has no Python"),
        ("client_loop: send disconnect: Broken pipe", 255, ""),
        ("", 255, ""),
    ],
)
def test_failures_of_ssh_that_stay_are_explained(printed: str, code: int, words: str) -> None:
    explained = explain_failure(printed, code)
    assert words in explained
    assert bool(explained) == bool(words)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("index", [True, False])
def test_an_environment_is_installed_and_used_again(
    index: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the index of packages, and by a host that reaches none."""
    monkeypatch.chdir(tmp_path)
    make_cnn(tmp_path / "model.onnx")
    environment = {} if index else {"PIP_NO_INDEX": "1"}
    with serving(tmp_path / "network", "alpha", environment=environment) as network:
        monkeypatch.setenv(SSH_VARIABLE, network.command)
        quick = [word.replace(": ", "=") for word in FAST.split(", ")]
        profiled = api.profile("model.onnx", quick, on="ssh://alpha")
        assert profiled.finished is not None
        record = steps_of(profiled.finished)["profile"].record
        assert record is not None
        (marker,) = (network.servers["alpha"].home / ".ndld_flow" / "environments").glob("*/complete")
        before = marker.stat().st_mtime_ns
        notices: list[str] = []
        api.doctor(on="ssh://alpha", listener=lambda event: notices.append(str(event)))
        assert marker.stat().st_mtime_ns == before
        assert notices == []
        here = {check.name: check.found for check in api.doctor() if check.name in NEEDED}
        there = {check.name: check.found for check in api.doctor(on="ssh://alpha") if check.name in NEEDED}
        assert there == here, "the same versions"


class Dropper:
    """A listener that drops all connections of a server when a step reports progress, once."""

    def __init__(self, network: Network, name: str) -> None:
        self._server, self._dropped = network.servers[name], 0
        self.notices: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)
        if event.event == "step_progressed" and not self._dropped:
            self._dropped = self._server.drop_connections()


@pytest.mark.thorough
def test_a_dropped_connection_is_reported_and_resumed(network: Network, here: Path) -> None:
    """Whatever the node has printed: only `ssh` itself explains why a connection cannot be opened."""
    python = here / "python"
    python.write_text(f'#!/bin/sh\necho "x: Permission denied (publickey)." >&2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (here / "far.yaml").write_text(RECIPE.replace(sys.executable, str(python)))
    dropper = Dropper(network, "gamma")
    finished = run_once("far.yaml", trust=True, listener=dropper)
    assert finished.passed
    assert any("gamma (ssh://gamma) was lost" in text for text in dropper.notices)
    assert wait_until_gone(network) == []


@pytest.mark.thorough
def test_a_host_that_vanishes_ends_the_run_with_the_reason(
    here: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr("ndld_flow.execution.ssh.host.MAX_LOSSES", 2)
    (here / "far.yaml").write_text(RECIPE.replace("on: gamma", "on: alpha"))
    with serving(here / "network", "alpha") as own:
        monkeypatch.setenv(SSH_VARIABLE, own.command)
        server = own.servers["alpha"]

        def stop(event: Event) -> None:
            if event.event == "step_progressed":
                server.stop()

        with pytest.raises(NdldFlowError) as error:
            api.run("far.yaml", trust=True, listener=stop)
        check_message(error.value)
        (folder,) = (here / "outputs" / "runs" / "far").glob("2*")
        assert read_run_record(folder).outcome == "error"
        server.start()
        assert run_once("far.yaml", trust=True).passed


@pytest.mark.thorough
def test_a_transfer_continues_where_it_broke_off(network: Network, here: Path) -> None:
    run_once("far.yaml", ["~steps.speed", "~steps.check"], trust=True)
    artifact = steps_of(run_once("far.yaml", ["~steps.speed", "~steps.check"], trust=True))["clean"].record.artifact  # type: ignore[union-attr]
    there = store_of(network, "alpha")
    shutil.rmtree(there.object_folder(artifact.digest))
    (file,) = artifact.files
    incoming = Incoming(there)
    data = (Store(here / "outputs" / "store").object_folder(artifact.digest) / file.path).read_bytes()
    incoming.write(file.digest, 0, iter([b"\0" * 100, data[100:200]]))  # its beginning is damaged
    shutil.rmtree(there.root / "records")
    finished = run_once("far.yaml", ["~steps.speed", "~steps.check"], trust=True, force=["half"])
    assert finished.passed, "what arrived damaged is sent again"
    assert there.is_intact(artifact)
    assert not list((there.root / "incoming").iterdir())


@pytest.mark.slow
def test_a_damaged_result_on_a_target_is_never_taken(network: Network, here: Path) -> None:
    first = steps_of(run_once("far.yaml", trust=True))["half"].record
    assert first is not None
    shutil.rmtree(here / "outputs")
    path = store_of(network, "alpha").object_folder(first.artifact.digest) / "model.onnx"
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)
    again = steps_of(run_once("far.yaml", trust=True))["half"].record
    assert again is not None
    assert again.artifact == first.artifact
    assert Store(here / "outputs" / "store").is_intact(again.artifact)


@pytest.mark.slow
def test_what_a_target_has_is_neither_sent_nor_computed_again(network: Network, here: Path) -> None:
    first = steps_of(run_once("far.yaml", trust=True))
    shutil.rmtree(here / "outputs")
    again = steps_of(run_once("far.yaml", trust=True))
    for name in ("half", "speed"):
        assert again[name].record == first[name].record
    forced = steps_of(run_once("far.yaml", trust=True, force=["speed"]))
    assert forced["speed"].record != first["speed"].record


@pytest.mark.thorough
def test_on_sends_the_steps_that_need_a_device(network: Network, here: Path, check_message: CheckMessage) -> None:
    (here / "far.yaml").write_text(RECIPE.replace(", on: alpha", "").replace(", on: gamma", ""))
    finished = run_once("far.yaml", trust=True, on="alpha")
    targets = {name: step.target for name, step in steps_of(finished).items()}
    assert targets == {"clean": "", "half": "", "speed": "alpha", "check": "alpha"}
    with pytest.raises(RecipeError) as caught:
        api.run("far.yaml", on="nowhere", trust=True)
    check_message(caught.value)
    settings = here / "config" / "ndld_flow" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"targets:\n  box: {{host: ssh://beta, python: {sys.executable}}}\n")
    quick = [word.replace(": ", "=") for word in FAST.split(", ")]
    profiled = api.profile("model.onnx", quick, on="box")
    assert profiled.finished is not None
    assert steps_of(profiled.finished)["profile"].target == "box"
    assert {check.name for check in api.doctor(on="box")} >= {"python", "onnxruntime"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_of_two_gigabytes_crosses_once(network: Network, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the connection breaks off on the way: only what had not left yet is sent again."""
    size_bytes = 2 * 10**9
    make_large(here / "large.onnx", size_bytes)
    (here / "far.yaml").write_text(
        f"model: large.onnx\ntargets: {{alpha: {{host: ssh://alpha, python: {sys.executable}}}}}\n"
        "steps:\n  check: {step: lint, checks: [missing_name], on: alpha}\n"
    )
    sent: list[int] = []
    drops: list[int] = []
    server = network.servers["alpha"]

    def count(chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            sent.append(len(chunk))
            if not drops and sum(sent) > size_bytes / 2:
                drops.append(server.drop_connections())

    plain_send = Connection.send
    monkeypatch.setattr(Connection, "send", lambda self, line, data=(): plain_send(self, line, count(data)))
    assert run_once("far.yaml", trust=True).passed
    assert drops[0] > 0
    assert size_bytes <= sum(sent) < 1.1 * size_bytes
    sent.clear()
    assert run_once("far.yaml", ["steps.check.checks=[unknown_op]"], trust=True).passed
    assert sum(sent) < size_bytes / 100, "the target has it"


@pytest.mark.slow
def test_points_of_a_sweep_run_on_targets(network: Network, here: Path) -> None:
    finished = api.run("far.yaml", ["steps.speed.threads=1,2"], multirun=True, trust=True)
    assert finished.passed
    assert len(list((store_of(network, "gamma").root / "records").rglob("*.json"))) == 2


def another_machine(here: Path, name: str) -> None:
    """Give a target of the recipe fewer CPUs than this machine, so that its measurements have other keys."""
    python = here / f"python_of_{name}"
    python.write_text(f'#!/bin/sh\nexec taskset -c 0 {sys.executable} "$@"\n')
    python.chmod(0o755)
    recipe = here / "far.yaml"
    recipe.write_text(
        recipe.read_text().replace(f"ssh://{name}, python: {sys.executable}", f"ssh://{name}, python: {python}")
    )


def make_large(path: Path, size_bytes: int) -> None:
    """Write a model whose weights, in a file of their own, have this size."""
    import onnx
    from onnx import TensorProto, helper

    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size_bytes // 4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(size_bytes))):
        weight.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size_bytes // 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "large", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with (path.parent / "weights.bin").open("wb") as file:
        for number in range(size_bytes // 10**7):
            file.write(number.to_bytes(4, "little") * (10**7 // 4))


def tried_on(network: Network, name: str) -> int:
    """Return the number of results that a target has computed."""
    return len(list((store_of(network, name).root / "records").rglob("*.json")))


@needs_cpus
@pytest.mark.thorough
def test_a_sweep_over_targets_measures_each_point_on_its_own(
    network: Network, here: Path, check_message: CheckMessage
) -> None:
    (here / "far.yaml").write_text(RECIPE.replace(", on: alpha", "").replace(", on: gamma", ""))
    another_machine(here, "gamma")
    with pytest.raises(RecipeError) as caught:
        api.run("far.yaml", ["+steps.speed.on=alpha,gamma"], multirun=True)
    check_message(caught.value)
    with pytest.raises(RecipeError) as caught:
        api.run("far.yaml", ["+steps.speed.on=alpha,gama"], multirun=True, trust=True)
    check_message(caught.value)
    assert api.run("far.yaml", ["+steps.speed.on=alpha,gamma"], multirun=True, trust=True).passed
    assert (tried_on(network, "alpha"), tried_on(network, "gamma")) == (1, 1)


@pytest.mark.thorough
def test_errors_of_steps_on_targets_are_those_of_steps_here(here: Path) -> None:
    np.save(here / "x.npy", np.zeros((1, 7), np.float32))
    texts = []
    for text in ("here", "gamma"):
        with pytest.raises(NdldFlowError) as error:
            api.run("far.yaml", ["+inputs.x.data=x.npy", f"steps.speed.on={text}", "~steps.check"], trust=True)
        texts.append(str(error.value).replace(str(here), ""))
    assert texts[0] == texts[1]


RUN = """
import sys, json
from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError
try:
    sys.exit(api.run('far.yaml', **json.loads(sys.argv[1])).exit_code)
except NdldFlowError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def start_run(**options: Any) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", RUN, json.dumps(options)], start_new_session=True)


@pytest.mark.thorough
def test_a_killed_driver_leaves_nothing_on_its_targets(network: Network, here: Path) -> None:
    (here / "far.yaml").write_text(RECIPE.replace("passes: 2, warmup_passes: 1", "passes: 2000000, warmup_passes: 1"))
    run = start_run(trust=True)
    wait_for(lambda: any("execution.worker" in item for item in processes_in(network.servers["gamma"].home)))
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert wait_until_gone(network) == []


def wait_for(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_kills_lose_nothing_and_leave_nothing(network: Network, here: Path) -> None:
    """Kill drivers, connections, nodes and workers at random moments; in the end, the run passes."""
    random = np.random.default_rng(2026)
    kills = 0
    while kills < 50:
        run = start_run(trust=True, force=["speed", "half"])
        time.sleep(float(random.uniform(0.2, 6)))
        for _ in range(int(random.integers(1, 4))):
            kills += kill_something(network, run, random)
            time.sleep(float(random.uniform(0, 1)))
        try:
            run.wait(120)
        except subprocess.TimeoutExpired:
            run.kill()
            raise
        assert run.returncode in (0, 2, 5, -9), run.returncode
        assert api.verify(outputs="outputs").all_well
    assert wait_until_gone(network) == []
    finished = run_once("far.yaml", trust=True)
    assert finished.passed
    for name in ("alpha", "gamma"):
        folder = network.servers[name].home / ".ndld_flow"
        assert api.verify(outputs=folder).all_well
        assert not list((folder / "store" / "building").glob("*"))
        assert not list((folder / "store" / "incoming").glob("*"))


def kill_something(network: Network, run: subprocess.Popen[bytes], random: np.random.Generator) -> int:
    """Kill a driver, a connection, or a process on a target; return whether there was one."""
    choice = int(random.integers(0, 3))
    server = network.servers[str(random.choice(["alpha", "gamma"]))]
    if choice == 0 and run.poll() is None:
        run.kill()
        return 1
    if choice == 1:
        return int(server.drop_connections() > 0)
    there = processes_in(server.home)
    if there:
        try:
            os.kill(int(str(random.choice(there)).split(" ", 1)[0]), signal.SIGKILL)
        except ProcessLookupError:
            return 0
    return int(bool(there))


@pytest.mark.thorough
def test_two_clients_measure_on_one_host_one_at_a_time(network: Network, here: Path) -> None:
    """Their measurements do not overlap, and both finish."""
    runs = [start_run(overrides=[f"steps.speed.passes={300 + i}"], outputs=f"outputs{i}", trust=True) for i in range(2)]
    assert [run.wait(120) for run in runs] == [0, 0]
    folders = [here / f"outputs{number}" / "runs" / "far" / "latest" for number in range(2)]
    records = [step.record for folder in folders for step in read_run_record(folder).steps if step.name == "speed"]
    first, second = sorted((record for record in records if record is not None), key=lambda record: record.started_at)
    assert first.ended_at <= second.started_at
    assert not first.concurrent
    assert not second.shared_device
