"""The README's first screen. `tests/docs/` runs its commands and plans its recipe, with those of the pages."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ndld_flow.cli.app import program
from tests.support.command_line import ndld_flow
from tests.support.samples import lend_samples

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
QUICK = (
    *(
        f"steps.{step}.{setting}"
        for step in ("base", "speed")
        for setting in ("runs=1", "passes=2", "duration=0", "stable=0", "warmup=0", "warmup_passes=1", "layer_passes=1")
    ),
    "~steps.decide",
)
"""The quickstart as something that works, not something that is measured."""


def test_the_first_screen_holds_the_two_commands() -> None:
    first = README.split("```")[1].strip().splitlines()
    assert first == [
        "python3 -m venv .venv && .venv/bin/pip install -e '.[openvino]' "
        "&& .venv/bin/ndld-flow run pipelines/quickstart.yaml",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest",
    ]
    in_ci = (ROOT / ".ci/run").read_text()
    assert all(command in in_ci for command in first[1].split(" && "))


def test_every_beginning_shows_the_same_three_ways_in() -> None:
    """The commands in their order, in the README, on the start page, in the tutorial and in the help."""
    ways = [
        "ndld-flow optimize model.onnx --data photos/ -o fast.onnx",
        "ndld-flow init model.onnx",
        "ndld-flow run model.yaml",
        "ndld-flow compare model.onnx fast.onnx",
    ]
    texts = [README, *((ROOT / name).read_text() for name in ("docs/index.md", "docs/tutorial.md"))]
    for text in (*texts, program.help or "", ndld_flow(cwd=ROOT).stderr):
        places = [text.index(way) for way in ways]
        assert places == sorted(places)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.slow  # `.ci/run` runs it with other Pythons, and `tests/docs` in a process that runs all commands
def test_the_first_command_works(tmp_path: Path, isolated_steps: None) -> None:
    for name in ("pipelines", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    lend_samples(tmp_path / "outputs/store")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [*shlex.split("ndld-flow run pipelines/quickstart.yaml"), *QUICK]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, capture_output=True)
    assert (tmp_path / "faster.onnx").is_file()
