"""The scripts of the page on shards, run with the variables that Slurm, Kubernetes and GitHub set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.support import pages
from tests.support.models import make_cnn

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

HURRY = ("runs=1", "passes=2", "duration=0", "stable=0", "warmup=0", "warmup_passes=1", "layer_passes=0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_cnn(tmp_path / "model.onnx")
    recipe = yaml.safe_load(block("points.yaml").text)
    recipe["steps"]["speed"] |= {
        name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in HURRY)
    }
    (tmp_path / "points.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def block(title: str) -> pages.Block:
    [found] = [each for each in pages.blocks() if each.page.endswith("shards.md") and each.title == title]
    return found


def shell(script: str, folder: Path, outputs: str = "outputs", **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NDLD_FLOW_OUTPUTS": outputs, **variables}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )


def collect(folder: Path, **variables: str) -> None:
    done = shell("ndld-flow collect points.yaml", folder, **variables)
    assert done.returncode == 0, done.stderr
    assert list((folder / "outputs/sweeps/points").glob("*/report.html"))


def test_the_script_for_slurm_works(folder: Path) -> None:
    script = block("sweep.sbatch").text
    assert "--array=1-4" in script
    for task in range(1, 5):
        done = shell(script, folder, SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_TASK_COUNT="4")
        assert done.returncode == 0, done.stderr
    collect(folder)


def test_the_job_for_kubernetes_works(folder: Path) -> None:
    spec = yaml.safe_load(block("sweep-job.yaml").text)["spec"]
    [container] = spec["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]} | {"NDLD_FLOW_CACHE": str(folder / "cache")}
    assert (spec["completionMode"], variables["SHARDS"]) == ("Indexed", str(spec["completions"]))
    for index in range(spec["completions"]):
        where = {"JOB_COMPLETION_INDEX": str(index), **variables}
        done = shell(container["args"][0], folder, f"pod{index}", **where)
        assert done.returncode == 0, done.stderr
    collect(folder, NDLD_FLOW_CACHE=variables["NDLD_FLOW_CACHE"])


def test_the_matrix_for_github_works(folder: Path) -> None:
    jobs: Mapping[str, dict[str, object]] = yaml.safe_load(block(".github/workflows/sweep.yml").text)["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}  # type: ignore[attr-defined]
    cache = str(folder / "cache")
    shards = jobs["shard"]["strategy"]["matrix"]["shard"]  # type: ignore[index]
    assert f"/{len(shards)}" in commands["shard"][-1]
    for shard in shards:
        line = commands["shard"][-1].replace("${{ matrix.shard }}", str(shard))
        done = shell(line, folder, f"runner{shard}", NDLD_FLOW_CACHE=cache)
        assert done.returncode == 0, done.stderr
    assert commands["collect"][-1] == "ndld-flow collect points.yaml"
    collect(folder, NDLD_FLOW_CACHE=cache)
