"""The README's commands are run, and what it says of steps and verbs is compared with the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
import yaml

from ndld_flow import api
from ndld_flow.cli.app import VERBS
from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from ndld_flow.graph.edit.operation import Heading
from ndld_flow.steps.edit import Edit
from ndld_flow.steps.run_tool import RunTool
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.samples import lend_samples

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FENCES = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in FENCES if language == "bash" for line in text.splitlines()]


def block(language: str, start: str) -> str:
    """The README's block of a language that begins with a line."""
    texts: list[str] = [text for found, text in FENCES if found == language and text.startswith(start)]
    return texts[0]


@pytest.fixture
def reader(isolated_steps: None) -> dict[str, str]:
    """The environment of someone who reads the page."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


def test_the_first_screen_holds_the_two_commands() -> None:
    first = README.split("```")[1].strip().splitlines()
    assert first == [
        "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/ndld-flow run pipelines/quickstart.yaml",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest",
    ]
    assert first[1] in (ROOT / ".ci/run").read_text()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it: the recipes, the configs, and the files that the README tells to write."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("pipelines", "configs"):
        shutil.copytree(ROOT / name, folder / name)
    lend_samples(folder / "outputs/store")
    make_cnn(folder / "model.onnx")
    (folder / "stamp.py").write_text(block("python", "from pathlib import Path"))
    (folder / "stamped.yaml").write_text(block("yaml", "name: stamped"))
    return folder


def endings(line: str) -> tuple[int, ...]:
    """How a command may end: what a comparison says is for the machine to decide, as long as it decides."""
    return (0, 1, 4) if line.startswith("ndld-flow compare") else (0,)


def can_run(line: str) -> bool:
    """Engines need a TensorRT-RTX, which `[dev]` brings where there is one."""
    return find_spec("tensorrt_rtx") is not None or not line.startswith("ndld-flow run pipelines/ppocr_det_rtx.yaml")


HURRY = ("runs=1", "passes=2", "duration=0", "stable=0", "warmup=0", "warmup_passes=1", "layer_passes=1")
"""Settings of `profile` for those who want to see it work, not what it measures."""
MEASURES = re.compile(r"ndld-flow run (model|pipelines/(?P<recipe>(?!ppocr_det_rtx|edit_|inspect_)\w+))\.yaml")
SMALLER = {
    "quickstart": ("inputs.x.shape=[1,3,96,96]", "steps.sanitize.input_shapes.x=[1,3,96,96]"),
}
"""Smaller inputs, where a recipe's own take seconds."""


def hurried(line: str) -> str:
    """The command with the smallest budget for measuring; what the README sets itself comes later, and wins."""
    if line.startswith("ndld-flow profile"):
        return " ".join([line, *HURRY])
    if line.startswith("ndld-flow noise"):
        return f"{line} passes=2 duration=0 warmup=0 warmup_passes=1"
    if line.startswith("ndld-flow run pipelines/ppocr_det_rtx.yaml"):
        return f"{line} steps.engine.compute_capabilities=['8.6'] inputs.x.opt=[1,3,320,320]"
    if found := MEASURES.match(line):
        steps = ("speed",) if "sweep_" in found[0] else ("base", "speed")
        small = [f"steps.{step}.{setting}" for step in steps for setting in HURRY]
        return " ".join([found[0], *small, *SMALLER.get(found["recipe"], ())]) + line[found.end() :]
    return line


@pytest.mark.thorough
def test_the_first_command_works(checkout: Path, reader: dict[str, str]) -> None:
    first = shlex.split(hurried("ndld-flow run pipelines/quickstart.yaml"))
    subprocess.run(first, cwd=checkout, env=reader, check=True, capture_output=True)


def test_every_command_is_understood(checkout: Path) -> None:
    """Runs are planned instead; what needs a run that was made is for the thorough tests."""
    for line in COMMANDS:
        _, verb, *arguments = shlex.split(re.sub(r"\s#.*", "", line.partition(" --apply")[0]))
        if verb == "run" and arguments[0].startswith("pipelines/"):
            verb = "plan"
        if verb in ("plan", "init", "steps", "schema", "inspect", "draw", "ops"):
            done = ndld_flow(verb, *arguments, cwd=checkout)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_every_command_works(checkout: Path) -> None:
    """In the order of the page, as later ones use what earlier ones left."""
    assert len(COMMANDS) > 15
    for line in filter(can_run, COMMANDS):
        # Not `comments=True`: to a shell, the `#` of `sweep-cpu#1` begins no comment.
        program, *arguments = shlex.split(re.sub(r"\s#.*", "", hurried(line)))
        assert program == "ndld-flow"
        done = ndld_flow(*arguments, cwd=checkout)
        assert done.returncode in endings(line), f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.thorough
def test_the_workflow_is_sound_and_its_commands_work(checkout: Path, reader: dict[str, str]) -> None:
    workflow = yaml.safe_load(block("yaml", "# .github/workflows"))
    commands = [step["run"] for step in workflow["jobs"]["compare"]["steps"] if "run" in step]
    assert commands[0] == "pip install ndld-flow"
    (checkout / "shipped").mkdir()
    shutil.copy(checkout / "model.onnx", checkout / "shipped")
    summary = checkout / "summary.md"
    environment = {**reader, "GITHUB_STEP_SUMMARY": str(summary)}
    for line in commands[1:]:
        shell = ["bash", "-c", hurried(line)]
        done = subprocess.run(shell, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 4), f"{line}\n{done.stdout}\n{done.stderr}"
    assert summary.read_text().startswith("### ")


@pytest.mark.thorough
def test_the_python_example_works(checkout: Path, reader: dict[str, str]) -> None:
    small = [f"steps.{step}.{setting}" for step in ("base", "speed") for setting in HURRY]
    code = block("python", "from ndld_flow import api").replace('["', f'[*{small}, "')
    assert str(small) in code
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=checkout, env=reader, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True outputs/runs/resnet50/")


def test_every_step_and_every_verb_is_told() -> None:
    steps = README.split("\n## Steps\n")[1].split("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", steps, re.MULTILINE)) == {found.name for found in api.steps()}
    for verb in VERBS:
        assert re.search(rf"ndld-flow {verb}\b", README), verb


def test_every_operation_is_told_under_its_heading() -> None:
    table = README.split("\n## Graph edits\n")[1].split("\n|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    told = {word: heading.strip() for heading, words in rows for word in re.findall(r"`(\w+)`", words)}
    assert told == {word: operation.heading for word in operation_names() if (operation := find_operation(word))}
    assert [*(heading.strip() for heading, _ in rows), "others"] == list(get_args(Heading))


def test_the_edit_of_the_page_is_a_sound_recipe() -> None:
    recipe = yaml.safe_load(block("yaml", "model: detector.onnx"))
    Edit.model_validate_json(json.dumps({"operations": recipe["steps"]["camera"]["operations"]}))
    tool = yaml.safe_load(block("yaml", "steps:\n  pruned:"))["steps"]["pruned"]
    RunTool.model_validate_json(json.dumps({name: value for name, value in tool.items() if name != "step"}))


def test_the_step_of_ones_own_is_ten_lines() -> None:
    code = block("python", "from pathlib import Path")
    body = [line for line in code.splitlines() if line.strip() and not line.startswith(("from", "import"))]
    assert len(body) <= 10
