"""The wheel and the sdist are built, and the wheel is used in an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import onnx
import pytest
from onnx import TensorProto

from tests.support.command_line import ndld_flow
from tests.support.models import GraphBuilder, make_cnn, save, tensor
from tests.support.samples import fetch_sample

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, unpacked as pip does it, and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "installed")  # noqa: S202
    return folder


@pytest.mark.thorough
def test_examples_and_presets_work_from_a_wheel_in_an_empty_folder(built: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(built / "installed")}

    def installed(*arguments: str) -> str:
        command = [sys.executable, "-m", "ndld_flow", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = [sys.executable, "-c", "import ndld_flow; print(ndld_flow.__file__)"]
    used = subprocess.run(code, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert used.startswith(str(built))
    installed("init", "--example", "resnet50")
    planned = installed("plan", "pipelines/resnet50.yaml", "profiling@steps.speed=thorough", "--json")
    assert json.loads(planned)
    assert not (tmp_path / "configs").exists()


LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


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


@pytest.mark.thorough
@pytest.mark.parametrize("kind", UNLIKE)
def test_two_commands_lead_from_a_model_to_a_result(kind: str, tmp_path: Path) -> None:
    UNLIKE[kind](tmp_path / "model.onnx")
    begun = ndld_flow("init", "model.onnx", cwd=tmp_path)
    assert (begun.returncode, begun.stderr) == (0, "")
    quick = [f"steps.{step}.budget=300ms" for step in ("base", "speed")]
    done = ndld_flow("run", "model.yaml", "-o", "faster.onnx", *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "result faster.onnx"
    onnx.checker.check_model(onnx.load(tmp_path / "faster.onnx"))


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
    assert written == {"pipelines/quickstart.yaml", "pipelines/images/receipt.png"}
    again = ndld_flow("init", "--example", "quickstart", cwd=tmp_path)
    assert again.returncode == 2
    assert "the file exists" in again.stderr


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
