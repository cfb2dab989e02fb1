"""Two users share a cache on a real server of S3."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest import mock
from urllib.request import Request, urlopen

import pytest
import yaml

from ndld_flow import api
from ndld_flow.execution.events import Event, Notice, RunFinished
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.store.remote_store import RemoteStore
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.pages import blocks
from tests.support.sweep_toys import SweepToy, make_sweep_toy

pytestmark = [
    pytest.mark.skipif(not all(map(find_spec, ("moto", "s3fs"))), reason="no moto or s3fs: pip install -e '.[dev]'"),
    pytest.mark.filterwarnings("ignore"),  # of the server's libraries
]

KEY, SECRET = "AKIAOFTHETESTS000001", "a-secret-of-the-tests"
URL = "s3://team/ndld_flow"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket; the environment has its server and credentials."""
    from fsspec.core import url_to_fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    system, _ = url_to_fs(URL)
    type(system).clear_instance_cache()
    url_to_fs(URL)[0].mkdir("team")
    yield URL
    type(system).clear_instance_cache()
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    server.stop()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepToy:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".log").mkdir()  # hidden folders are in no key
    monkeypatch.setenv("TOY_LOG", str(tmp_path / ".log" / "log.txt"))
    return make_sweep_toy(tmp_path)


def run(toy: SweepToy, user: str, events: list[Event], *, push: bool = False) -> list[str]:
    """Run the recipe in a user's own outputs; return the reasons of its steps."""
    finished = api.run(
        toy.recipe,
        ("~sweep",),
        outputs=toy.folder / user,
        trust=True,
        cache=URL,
        push=push,
        listener=events.append,
    )
    assert isinstance(finished, RunFinished)
    return [step.reason for step in read_run_record(Path(finished.folder)).steps]


@pytest.mark.thorough
def test_the_second_user_computes_nothing(toy: SweepToy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    assert run(toy, "anna", events, push=True) == ["new"] * 3
    log = toy.log
    monkeypatch.setenv("TOY_LOG", str(toy.folder / "log-of-bert.txt"))
    assert run(toy, "bert", events) == ["reused from cache"] * 3
    assert toy.log == log and not (toy.folder / "log-of-bert.txt").exists()
    assert api.verify(outputs=toy.folder / "bert").all_well
    assert not [event.text for event in events if isinstance(event, Notice) and event.warning]
    written = [path for path in toy.folder.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]

    [*_, last] = (file for file in RemoteStore(bucket).list_files("records"))
    RemoteStore(bucket)._place[0].pipe_file(last.path, b"")  # S3 refuses a part of an empty file
    assert sorted(run(toy, "cecil", events)) == ["new", "reused from cache", "reused from cache"]

    freed = api.gc_cache(bucket, max_size="0 B", dry_run=True)
    assert (freed.record_count, freed.kept_record_count) == (2, 1)  # the damaged one is young


@pytest.mark.thorough
def test_the_second_job_of_the_documentation_computes_nothing(bucket: str, tmp_path: Path) -> None:
    [block] = [block for block in blocks() if block.title == ".github/workflows/shared.yml"]
    workflow = yaml.safe_load(block.text)
    assert workflow["env"]["NDLD_FLOW_CACHE"] == bucket
    printed = {
        job: run_job(tmp_path / job, workflow["jobs"][job]["steps"], workflow["env"]) for job in ("build", "check")
    }
    assert "reused" not in printed["build"] and "clean: done" in printed["build"]
    assert "done" not in printed["check"] and "(2 of 2 steps reused)" in printed["check"]


def run_job(folder: Path, steps: list[dict[str, str]], variables: dict[str, str]) -> str:
    """Run the commands of a job in a new checkout; return what they print."""
    folder.mkdir()
    make_cnn(folder / "model.onnx")
    (folder / "model.yaml").write_text("model: model.onnx\nsteps:\n  lint: {}\n  clean: {step: sanitize}\n")
    commands = [step["run"].split() for step in steps if step.get("run", "").startswith("ndld-flow ")]
    assert len(commands) == 1
    with mock.patch.dict("os.environ", variables):
        done = ndld_flow(*commands[0][1:], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
