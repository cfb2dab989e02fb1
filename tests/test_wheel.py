"""The wheel and the sdist are built, and the wheel is installed and used in empty folders."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
import yaml
from onnx import TensorProto

from ndld_flow.base.extras import EXTRAS
from tests.support import pages
from tests.support.command_line import ndld_flow
from tests.support.installation import (
    Installation,
    build_distributions,
    find_python,
    install_wheel,
    install_wheel_beside,
)
from tests.support.models import GraphBuilder, make_cnn, save, tensor
from tests.support.representatives import slow_except
from tests.support.samples import fetch_sample, lend_samples

ROOT = Path(__file__).parent.parent
LIMIT_BYTES = 280_000_000
"""Limit of the base installation without bytecode, on x86-64 Linux."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "wheel"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def built(shared: Path) -> Path:
    """A folder with the wheel and the sdist."""
    return build_distributions(shared / "dist")


@pytest.fixture(scope="session")
def installed(shared: Path, built: Path) -> Installation:
    """The wheel in a virtual environment, without extras."""
    return install_wheel_beside(shared / "base", next(built.glob("*.whl")))


def work(installed: Installation, folder: Path, *arguments: str) -> str:
    """Run a command that must succeed; return what it prints."""
    done = installed.run(*arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
def test_examples_and_presets_work_from_a_wheel_in_an_empty_folder(installed: Installation, tmp_path: Path) -> None:
    used = installed.python("import ndld_flow; print(ndld_flow.__file__)", tmp_path)
    assert Path(used).is_relative_to(installed.folder)
    work(installed, tmp_path, "init", "--example", "resnet50")
    lend_samples(tmp_path / "outputs/store")
    planned = work(installed, tmp_path, "plan", "pipelines/resnet50.yaml", "profiling@steps.speed=thorough", "--json")
    assert json.loads(planned)
    assert not (tmp_path / "configs").exists()


@pytest.mark.thorough
@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="the limit is that of x86-64 Linux"
)
def test_the_base_is_small(installed: Installation) -> None:
    sizes = installed.sizes()
    assert sum(sizes.values()) <= LIMIT_BYTES, sorted(sizes.items(), key=lambda item: -item[1])
    brought = {distribution for extra in EXTRAS.values() for distribution in extra.distributions}
    assert not brought & {name.lower().replace("_", "-") for name in sizes}


@pytest.mark.slow
def test_the_first_recipe_passes_without_extras(installed: Installation, tmp_path: Path) -> None:
    work(installed, tmp_path, "init", "--example", "quickstart")
    lend_samples(tmp_path / "outputs/store")
    small = ("steps.same.samples=1", "steps.agree.samples=1", "steps.decide.when_undecided=pass")
    work(installed, tmp_path, "run", "pipelines/quickstart.yaml", *small)
    compared = installed.run("compare", "quickstart:base", "quickstart:speed", cwd=tmp_path)
    assert compared.returncode in (0, 1, 4), compared.stderr
    [page] = tmp_path.glob("outputs/**/comparison.html")
    assert not list(page.parent.glob("*.png")), "Matplotlib is not here"
    checks = {item["name"]: item for item in json.loads(installed.run("doctor", "--json", cwd=tmp_path).stdout)}
    assert checks["onnxruntime files"]["found"].startswith("onnxruntime ")
    states = {name: checks[f"extra [{name}]"]["state"] for name in EXTRAS}
    assert set(states.values()) == {"absent"}, states
    assert [name for name, check in checks.items() if check["state"] == "broken"] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("sweep_cpu", ("sweep.method=tpe",), "`method: tpe` needs Optuna"),
        (
            "resnet50",
            ("steps.rules={step: edit, operations: [{apply_rules: {rules: ['*']}}]}",),
            "operation `apply_rules` needs onnxscript",
        ),
    ],
)
def test_a_missing_extra_is_named_before_anything_runs(
    installed: Installation, tmp_path: Path, recipe: str, overrides: tuple[str, ...], message: str
) -> None:
    work(installed, tmp_path, "init", "--example", recipe)
    lend_samples(tmp_path / "outputs/store")
    done = installed.run("run", f"pipelines/{recipe}.yaml", *overrides, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert not list(tmp_path.glob("outputs/store/records/*/*")), "a step ran"


def follow_workflow(installed: Installation, folder: Path) -> None:
    """Follow the workflow for CI in an empty folder, with short measurements."""
    [block] = [block for block in pages.blocks() if block.title.endswith("latency.yml")]
    commands = [step["run"] for step in yaml.safe_load(block.text)["jobs"]["compare"]["steps"] if "run" in step]
    make_cnn(folder / "model.onnx")
    (folder / "shipped").mkdir()
    shutil.copy(folder / "model.onnx", folder / "shipped")
    work(installed, folder, "init", "--example", "ci")
    environment = {**installed.environment, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    assert commands[0] == "pip install ndld-flow"
    for command in commands:
        line = command.replace("pip install ndld-flow", f"pip install -q {installed.wheel}")
        if line.startswith("ndld-flow run"):
            line += " steps.base.budget=300ms steps.speed.budget=300ms steps.decide.rounds=4"
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        undecided = (0, 1, 4) if line.startswith("ndld-flow run") else (0,)
        assert done.returncode in undecided, (line, done.stdout, done.stderr)
    assert (folder / "summary.md").read_text().startswith("### ")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_works_on_every_python(version: str, shared: Path, built: Path, tmp_path: Path) -> None:
    installed = install_wheel(shared / version, next(built.glob("*.whl")), find_python(version))
    follow_workflow(installed, tmp_path)
    UNLIKE["fixed"](tmp_path / "fixed.onnx")
    work(installed, tmp_path, "init", "fixed.onnx")
    work(installed, tmp_path, "run", "fixed.yaml", "-o", "faster.onnx", *QUICK)


def text_model(path: Path) -> Path:
    """A model of tokens and their mask, with free sizes and an embedding table of 50 rows."""
    b = GraphBuilder()
    embedded = b.op("Gather", b.weight(50, 8), "input_ids")
    mask = b.op("Unsqueeze", b.op("Cast", "attention_mask", to=TensorProto.FLOAT), b.ints(2))
    b.op("MatMul", b.op("Mul", embedded, mask), b.weight(8, 4))
    b.nodes[-1].output[0] = "y"
    inputs = [tensor(name, ["batch", "sequence"], TensorProto.INT64) for name in ("input_ids", "attention_mask")]
    return save(b.model(inputs, [tensor("y", ["batch", "sequence", 4])]), path)


def nhwc_model(path: Path) -> Path:
    """A model of NHWC pictures of any size, and a second input."""
    b = GraphBuilder()
    image = b.op("Transpose", "picture", perm=[0, 3, 1, 2])
    b.op("Add", b.op("GlobalAveragePool", b.op("Conv", image, b.weight(4, 3, 3, 3))), "bias")
    b.nodes[-1].output[0] = "y"
    inputs = [tensor("picture", ["n", "height", "width", 3]), tensor("bias", [1, 4, 1, 1])]
    return save(b.model(inputs, [tensor("y", ["n", 4, 1, 1])]), path)


UNLIKE: dict[str, Callable[[Path], object]] = {
    "fixed": lambda path: shutil.copy(
        Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx", path
    ),
    "dynamic": make_cnn,
    "nhwc and two inputs": nhwc_model,
    "text": text_model,
    "recognition": lambda path: shutil.copy(fetch_sample("rec"), path),
    "audio": lambda path: shutil.copy(fetch_sample("silero"), path),
}

QUICK = tuple(f"steps.{step}.budget=300ms" for step in ("base", "speed"))
"""Settings of recipes by `init` for short measurements."""


def check_two_commands(command: Callable[..., subprocess.CompletedProcess[str]], folder: Path) -> None:
    begun = command("init", "model.onnx", cwd=folder)
    assert (begun.returncode, begun.stderr) == (0, "")
    done = command("run", "model.yaml", "-o", "faster.onnx", *QUICK, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("result faster.onnx (")
    onnx.checker.check_model(onnx.load(folder / "faster.onnx"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", slow_except(UNLIKE, "nhwc and two inputs", "text", "audio"))
def test_two_commands_lead_from_a_model_to_a_result(kind: str, tmp_path: Path) -> None:
    UNLIKE[kind](tmp_path / "model.onnx")
    check_two_commands(ndld_flow, tmp_path)


@pytest.mark.thorough
def test_two_commands_of_the_wheel_lead_to_a_result(installed: Installation, tmp_path: Path) -> None:
    make_cnn(tmp_path / "model.onnx")
    check_two_commands(installed.run, tmp_path)


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("twine") is None, reason="twine is not installed")
def test_an_index_would_accept_both(built: Path) -> None:
    files = [str(path) for pattern in ("*.whl", "*.tar.gz") for path in built.glob(pattern)]
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_the_sdist_holds_what_the_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert set(tracked) <= names, "not in the sdist"
    assert {"tests/test_wheel.py", "configs/profiling/quick.yaml", "pipelines/images/receipt.png"} <= names


def test_an_example_is_written_with_its_pictures(tmp_path: Path) -> None:
    done = ndld_flow("init", "--example", "quickstart", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"pipelines/quickstart.yaml", "pipelines/texts/genesis.npy"}
    recipe = tmp_path / "pipelines/quickstart.yaml"
    before = recipe.stat().st_mtime_ns
    assert ndld_flow("init", "--example", "quickstart", cwd=tmp_path).returncode == 0, "as in a clone, which has it"
    assert recipe.stat().st_mtime_ns == before
    recipe.write_text(f"{recipe.read_text()}# mine\n")
    again = ndld_flow("init", "--example", "quickstart", cwd=tmp_path)
    assert again.returncode == 2
    assert "the file exists" in again.stderr
    assert recipe.read_text().endswith("# mine\n")


def test_pictures_are_found_by_their_globs_and_folders(tmp_path: Path) -> None:
    assert ndld_flow("init", "--example", "ppocr_int8", cwd=tmp_path).returncode == 0
    assert len(list(tmp_path.glob("pipelines/images/pages/*.png"))) == 8
    assert ndld_flow("init", "--example", "ppocr_rec_int8", cwd=tmp_path).returncode == 0
    assert len(list(tmp_path.glob("pipelines/images/lines/*.png"))) == 12


def test_an_unknown_example_names_the_nearest_one(tmp_path: Path) -> None:
    done = ndld_flow("init", "--example", "quickstrat", cwd=tmp_path)
    assert done.returncode == 2
    assert 'did you mean "quickstart"?' in done.stderr
    assert not list(tmp_path.iterdir())
