"""The workflow of the page on caches: jobs that compute a part of a sweep each, and one that finds their results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import pages
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn

pytestmark = pytest.mark.thorough


def block(title: str) -> str:
    [found] = [block for block in pages.blocks() if block.page.endswith("cache.md") and block.title == title]
    return found.text


def run(command: str, folder: Path, outputs: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a job's command in a folder of outputs of its own; return the record of its run or sweep."""
    patch.setenv("NDLD_FLOW_OUTPUTS", outputs)
    patch.setenv("NDLD_FLOW_CACHE", str(folder / "cache"))
    program, *words = shlex.split(command)
    assert program == "ndld-flow"
    done = ndld_flow(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    [*_, record] = sorted((folder / outputs).glob("[rs]*/points/latest/[rs]*.json"))
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def test_the_last_job_finds_what_the_others_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cnn(tmp_path / "model.onnx")
    recipe = yaml.safe_load(block("points.yaml"))
    recipe["steps"]["speed"] |= {"runs": 1, "passes": 2, "duration": 0, "stable": 0, "warmup": 0, "layer_passes": 0}
    (tmp_path / "points.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    jobs: Mapping[str, Any] = yaml.safe_load(block(".github/workflows/sweep.yml"))["jobs"]
    methods = jobs["part"]["strategy"]["matrix"]["method"]
    assert methods == recipe["sweep"]["over"]["int8.method"]
    for method in methods:
        run(
            jobs["part"]["steps"][2]["run"].replace("${{ matrix.method }}", method),
            tmp_path,
            f"part-{method}",
            monkeypatch,
        )
    sweep = run(jobs["sweep"]["steps"][2]["run"], tmp_path, "whole", monkeypatch)
    steps = [step for point in sweep["points"] for step in point["steps"]]
    assert [step["reason"] for step in steps if step["name"] == "int8"] == ["reused from cache"] * len(methods)
    assert {step["name"] for step in steps if step["outcome"] == "done"} == {"speed"}
