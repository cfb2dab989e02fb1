"""`mlflow`: a run is found in a real tracking server as it was, once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runs import mlflow_export
from tests.support.message_files import CheckMessage
from tests.support.metric_runs import Course, courses, run_id, write_runs

WAITS_S = 240.0


def test_without_the_client_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    write_runs(tmp_path, courses([10.0]))
    monkeypatch.setitem(EXTRAS, "mlflow", replace(EXTRAS["mlflow"], modules=("no_mlflow",)))
    with pytest.raises(BackendError) as caught:
        api.log_to_mlflow(["nightly"], outputs=tmp_path)
    check_message(caught.value)
    with pytest.raises(RequestError, match="'nigtly'"):
        api.log_to_mlflow(["nigtly"], every=True, outputs=tmp_path)


def test_names_and_values_are_those_that_a_server_accepts(tmp_path: Path) -> None:
    outputs = write_runs(tmp_path, [Course(10.0, settings={"long": "x" * 9000}, commit="c" * 40)])
    run = read_run_record(next(outputs.folders()))
    settings = dict(mlflow_export._settings(run))
    assert settings["speed.provider"] == "cuda" and settings["half.step"] == "convert_fp16"
    assert len(mlflow_export._shortened(settings["speed.long"], 500)) == 500
    assert mlflow_export._name("speed[b=8]:p99%") == "speed_b_8__p99_"
    tags = mlflow_export._tags(run, "nightly/x")
    assert tags["mlflow.source.git.commit"] == "c" * 40
    assert "speed.latency.median: ms" in tags["ndld_flow.units"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real tracking server with a new database."""
    if find_spec("mlflow") is None or find_spec("mlflow.server") is None:
        pytest.skip("MLflow and its server are not installed: pip install mlflow")
    root = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    places = ["--backend-store-uri", f"sqlite:///{root}/db.sqlite", "--artifacts-destination", str(root / "files")]
    with (root / "log.txt").open("w") as log:
        process = subprocess.Popen([*command, *places], cwd=root, stdout=log, stderr=log, start_new_session=True)
    uri, ends_at = f"http://127.0.0.1:{port}", time.monotonic() + WAITS_S
    try:
        while True:
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=5).close()  # noqa: S310
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < ends_at, (root / "log.txt").read_text()[-2000:]
                time.sleep(0.3)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait(timeout=30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_are_logged_once_with_all_that_they_have(server: str, tmp_path: Path) -> None:
    runs = [*courses([10.0, 11.0], gates=("speed.latency.median <= 20 ms",)), Course(12.0, failed=True)]
    write_runs(tmp_path, runs)
    (tmp_path / "runs/nightly" / run_id(0) / "report.html").write_text("<p>report</p>")
    logged = api.log_to_mlflow(["nightly"], every=True, uri=server, outputs=tmp_path)
    assert [(item.run, item.outcome) for item in logged] == [(f"nightly/{run_id(n)}", "logged") for n in range(3)]
    again = api.log_to_mlflow(["nightly"], every=True, uri=server, outputs=tmp_path)
    assert [(item.mlflow_run, item.outcome) for item in again] == [(item.mlflow_run, "unchanged") for item in logged]

    from mlflow.tracking import MlflowClient

    client = MlflowClient(server)
    first, _, failed = (client.get_run(item.mlflow_run) for item in logged)
    assert first.data.metrics == {"half.nodes": 120, "speed.latency.median": 10.0, "speed.throughput.median": 100.0}
    assert first.data.params["speed.provider"] == "cuda"
    assert (first.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert first.info.run_name == run_id(0)
    assert first.info.end_time - first.info.start_time == 1000
    assert [file.path for file in client.list_artifacts(first.info.run_id)] == ["report.html", "run.json"]

    client.set_tag(logged[1].mlflow_run, "ndld_flow.outcome", "")  # as if the program had been killed
    mended = api.log_to_mlflow(["nightly"], every=True, uri=server, outputs=tmp_path)
    assert [item.outcome for item in mended] == ["unchanged", "logged", "unchanged"]
    experiment = client.get_experiment_by_name("nightly")
    assert len(client.search_runs([experiment.experiment_id])) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_server_that_cannot_be_reached_is_named(server: str, tmp_path: Path) -> None:
    write_runs(tmp_path, courses([10.0]))
    with pytest.raises(RequestError, match=r"http://127\.0\.0\.1:9 cannot be used"):
        api.log_to_mlflow(["nightly"], uri="http://127.0.0.1:9", outputs=tmp_path)
