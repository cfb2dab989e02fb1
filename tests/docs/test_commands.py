"""The commands of the README and of the pages in `docs/`, run in the order of each page."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support import pages
from tests.support.command_line import ndld_flow
from tests.support.job import run_with_stand_in
from tests.support.models import make_cnn
from tests.support.recipes import LITTLE_WORTH, cheaper
from tests.support.samples import lend_samples

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800), pytest.mark.usefixtures("fewest_rounds")]

HURRY = ("runs=1", "passes=2", "duration=0", "stable=0", "warmup=0", "warmup_passes=1", "layer_passes=1")
"""Settings of `profile` that show that it works, and measure nothing."""
NO_ROUNDS = ("rounds=0",)
"""The same of `compare_profiles`, whose rounds take a quarter of a minute each."""
SMALLER = {
    "det.yaml": ("inputs.x.shape=[1,3,96,96]",),
    "pipelines/quickstart.yaml": ("steps.decide.gates=[]", "steps.same.samples=1", "steps.agree.samples=1"),
    "pipelines/inspect_activations.yaml": ("inputs.x.shape=[1,3,96,96]",),
    "pipelines/render_images.yaml": ("steps.pictures.samples=1",),
    "pipelines/sweep_cpu.yaml": ("inputs.x.shape=[1,3,96,96]",),
    "pipelines/ppocr_det_rtx.yaml": ("steps.engine.compute_capabilities=['8.6']", "inputs.x.opt=[1,3,320,320]"),
}
"""Smaller inputs, fewer images and fewer GPUs, where a recipe's own take seconds."""
MEASURED_ANEW = ("ndld-flow compare model.onnx", "ndld-flow optimize", "ndld-flow noise")
"""Commands that reuse nothing; three pages begin with the same ones, which run once."""
PAGES = sorted({block.page for block in pages.blocks() if block.commands()})
EXIT_CODES = re.compile(r"# exit code (\d[\d, or]*)")
UNDECIDED = (0, 1, 4)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of the folders `outputs` and `elsewhere`."""
    folder = tmp_path_factory.mktemp("stores")
    for name in ("outputs", "elsewhere"):
        lend_samples(folder / name)
    return folder


@pytest.fixture(scope="module")
def measured() -> set[str]:
    """The commands of `MEASURED_ANEW` that have run."""
    return set()


@pytest.fixture
def checkout(stores: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A clone's recipes, presets and samples, and a model; its runs are new, and reuse the results of earlier ones."""
    # No run has marked a lent store as results yet: unless it is in `outputs`, it is part of the key of a step whose
    # code is next to it, and more than 200 MB are refused.
    lent = [store for store in stores.iterdir() if store.name == "outputs" or "how-to/cache.md" in request.node.name]
    folder = tmp_path / "checkout"
    for name in ("pipelines", "configs"):
        shutil.copytree(pages.ROOT / name, folder / name)
    shutil.copytree(pages.ROOT / "pipelines/images/pages", folder / "photos")
    for name in ("model.onnx", "detector.onnx"):
        make_cnn(folder / name)
    for store in lent:
        (folder / store.name).mkdir()
        store.rename(folder / store.name / "store")
    yield folder
    for store in lent:
        (folder / store.name / "store").rename(store)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of someone who reads the page."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def hurried(command: str, folder: Path) -> str:
    """Return a command with the smallest budget for measuring; what the page sets itself comes later, and wins."""
    words = command.split(" ")
    if words[1] == "profile":
        return " ".join([command, *HURRY])
    if words[1] == "noise":
        return f"{command} passes=2 duration=0 warmup=0 warmup_passes=1"
    if words[1] == "optimize":  # one variant
        return f"{pages.without_comment(command)} --budget '1 ms'"
    if words[1] == "run":
        return " ".join([*words[:3], *(shlex.quote(item) for item in cheap(words[2], folder)), *words[3:]])
    return command


def cheap(recipe: str, folder: Path) -> list[str]:
    """Return overrides that make a recipe cheap."""
    settings = {"profile": HURRY, "compare_profiles": NO_ROUNDS, **LITTLE_WORTH}
    return [*cheaper(folder / recipe, settings), *SMALLER.get(recipe, ())]


def exit_codes(command: str, folder: Path) -> tuple[int, ...]:
    """Return the exit codes that a page announces, or those of a comparison, which the machine decides."""
    if announced := EXIT_CODES.search(command):
        return tuple(map(int, re.findall(r"\d+", announced[1])))
    words = shlex.split(pages.without_comment(command))
    compares = words[1] == "run" and "compare_profiles" in (folder / words[2]).read_text()
    return UNDECIDED if compares or words[1] in ("compare", "comment") else (0,)


def can_run(command: str) -> bool:
    """Return whether the library is there: `[dev]` brings TensorRT-RTX and OpenVINO where they exist."""
    words = {"tensorrt_rtx": ("_rtx",), "openvino": ("openvino", "runtimes_cpu")}
    lacking = [word for module, needing in words.items() if find_spec(module) is None for word in needing]
    return not any(word in command for word in lacking)


def trouble_of(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command; return what was wrong with it, or nothing."""
    if not command.startswith("ndld-flow"):
        line = re.sub(r"^(pip|python) ", lambda match: f"{sys.executable} {'-m pip ' * (match[1] == 'pip')}", command)
        shell = ["bash", "-c", line]
        done = subprocess.run(shell, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        return done.stderr if done.returncode else ""
    words = shlex.split(pages.without_comment(hurried(command, folder)))
    if words[1] == "init" and "--example" not in words:
        words.append("--overwrite")
    done = ndld_flow(*words[1:], cwd=folder)
    expected = exit_codes(command, folder)
    return "" if done.returncode in expected else f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_works(page: str, checkout: Path, environment: dict[str, str], measured: set[str]) -> None:
    """From top to bottom, in a clone in which no other page's commands ran."""
    troubles = []
    for block in pages.blocks():
        if block.page != page:
            continue
        if block.title and not block.is_for_ci:
            (checkout / block.title).parent.mkdir(parents=True, exist_ok=True)
            (checkout / block.title).write_text(block.text)
        for command in filter(can_run, block.commands()):
            bare = pages.without_comment(command).rstrip()
            if bare in measured:
                continue
            if bare.startswith(MEASURED_ANEW):
                measured.add(bare)
            if trouble := trouble_of(command, checkout, environment):
                troubles.append(f"{command}\n{trouble}")
    assert not troubles, "\n\n".join(troubles)


def test_python_examples_work(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    for block in pages.blocks():
        if block.page.endswith("python.md") or block.title == "look.py":
            code = block.text.replace('["steps', f'[*{cheap("pipelines/resnet50.yaml", checkout)}, "steps')
            exec(compile(code, block.title, "exec"), {"__name__": "__main__"})  # noqa: S102 - our own pages


def test_the_workflow_works(checkout: Path, environment: dict[str, str]) -> None:
    [block] = [block for block in pages.blocks() if block.title.endswith("latency.yml")]
    commands = [step["run"] for step in yaml.safe_load(block.text)["jobs"]["compare"]["steps"] if "run" in step]
    assert commands[0] == 'pip install "ndld-flow @ git+URL"'
    (checkout / "shipped").mkdir()
    shutil.copy(checkout / "model.onnx", checkout / "shipped")
    summary = checkout / "summary.md"
    for command in commands[1:]:
        line = hurried(command, checkout) if command.startswith("ndld-flow") else command
        done = run_with_stand_in(["bash", "-c", line], checkout, {**environment, "GITHUB_STEP_SUMMARY": str(summary)})
        assert done.returncode in UNDECIDED, (line, done.stdout)
    assert summary.read_text().startswith("### ")
