"""Weights brought back into a model: by name and shape, complete, and with every mistake named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import save_file

from ndld_flow.base.errors import RequestError
from ndld_flow.export.pytorch.export_model import NAMES, export_module, write_module
from ndld_flow.steps.edit import Edit
from ndld_flow.steps.run_tool import RunTool
from ndld_flow.store.kinds import TorchModule
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.models_run import Ran, run_step

Weights = dict[str, Any]


def weights_of(path: Path) -> Weights:
    return {initializer.name: numpy_helper.to_array(initializer) for initializer in onnx.load(path).graph.initializer}


def imported(model: Path, folder: Path, **settings: Any) -> Ran:
    return run_step(Edit, model, folder, {"operations": [{"import_weights": settings}]})


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    return make_cnn(tmp_path / "cnn.onnx")


def floats_of(model: Path) -> Weights:
    return {name: weight for name, weight in weights_of(model).items() if weight.dtype == np.float32 and weight.ndim}


def test_a_state_dict_with_names_of_the_model_replaces_its_weights(cnn: Path, tmp_path: Path) -> None:
    trained = {name: item + 1 for name, item in floats_of(cnn).items()}
    save_file(trained, tmp_path / "trained.safetensors")
    ran = imported(cnn, tmp_path / "ran", weights_from=str(tmp_path / "trained.safetensors"))
    found = weights_of(ran.out / "model.onnx")
    assert all(np.array_equal(found[name], item) for name, item in trained.items())


def test_a_folder_of_npy_files_is_named_after_its_tensors_and_names_are_part_of_the_key(
    cnn: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for name, each in floats_of(cnn).items():
        np.save(folder / f"{name}.npy", each * 2)
    ran = imported(cnn, tmp_path / "ran", weights_from=str(folder))
    found = weights_of(ran.out / "model.onnx")
    assert all(np.array_equal(found[name], item * 2) for name, item in floats_of(cnn).items())
    first = min(floats_of(cnn))
    settings = json.dumps({"operations": [{"import_weights": {"weights_from": str(folder)}}]})
    before = Edit.model_validate_json(settings).model_dump_json()
    (folder / f"{first}.npy").rename(folder / "other.npy")
    after = Edit.model_validate_json(settings).model_dump_json()
    assert '"other"' in after and '"other"' not in before


def without(values: Weights, name: str) -> Weights:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        without,
        lambda values, name: values | {"surprise": np.ones(3, np.float32)},
        lambda values, name: values | {name: values[name].reshape(-1)},
        lambda values, name: values | {name: values[name].astype(np.int64)},
        lambda values, name: values | {name: values[name] * np.nan},
    ],
)
def test_every_mistake_is_named_and_nothing_is_written(
    change: Any, cnn: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    floats = floats_of(cnn)
    name = max(floats, key=lambda key: floats[key].size)
    save_file(change(floats, name), tmp_path / "trained.safetensors")
    with pytest.raises(RequestError) as error:
        imported(cnn, tmp_path / "ran", weights_from=str(tmp_path / "trained.safetensors"))
    check_message(error.value)
    assert not list((tmp_path / "ran" / "out").iterdir())


def test_weights_that_nobody_trained_are_reported(cnn: Path, tmp_path: Path) -> None:
    save_file(floats_of(cnn), tmp_path / "trained.safetensors")
    ran = imported(cnn, tmp_path / "ran", weights_from=str(tmp_path / "trained.safetensors"))
    assert ran.result.change is not None
    assert "nothing was trained" in ran.result.change.notes[-1]


def test_a_part_is_accepted_on_request_and_the_rest_is_named(cnn: Path, tmp_path: Path) -> None:
    name, value = next(iter(floats_of(cnn).items()))
    save_file({name: value + 1, "surprise": value}, tmp_path / "trained.safetensors")
    ran = imported(cnn, tmp_path / "ran", weights_from=str(tmp_path / "trained.safetensors"), partial=True)
    assert ran.result.change is not None
    notes = " ".join(ran.result.change.notes)
    assert "model has no 'surprise'" in notes and "file has nothing" in notes


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("owned"),))


def test_pickles_never_run_code(cnn: Path, in_folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.save({"w": Evil()}, in_folder / "evil.pt")
    with pytest.raises(RequestError, match=r"evil\.pt"):
        imported(cnn, in_folder / "ran", weights_from="evil.pt")
    assert not (in_folder / "owned").exists()
    torch.save({name: torch.from_numpy(item + 1) for name, item in floats_of(cnn).items()}, in_folder / "good.pt")
    ran = imported(cnn, in_folder / "good", weights_from="good.pt")
    assert "changed" not in "".join(ran.result.change.notes if ran.result.change else ())


TRAIN = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from safetensors.numpy import load_file, save_file
weights = load_file(f"{sys.argv[1]}/model.safetensors")
trained = {name: np.asarray(each + 1) if each.dtype.kind == "f" else each for name, each in weights.items()}
save_file(trained, sys.argv[2])
"""


def test_a_program_trains_the_module_and_the_result_is_the_model_with_its_weights(cnn: Path, tmp_path: Path) -> None:
    folder = tmp_path / "module"
    folder.mkdir()
    module = export_module(cnn)
    write_module(module, folder)
    (tmp_path / "train.py").write_text(TRAIN)
    ran = run_step(
        RunTool,
        cnn,
        tmp_path / "ran",
        {
            "command": [sys.executable, "$File{train.py}", "$Module", "$Weights"],
            "files": [str(tmp_path / "train.py")],
            "module": "module",
        },
        artifacts={"module": TorchModule(folder / TorchModule.main, "module", "digest")},
    )
    before, after = weights_of(cnn), weights_of(ran.out / "model.onnx")
    names = json.loads((folder / NAMES).read_text())["weights"]
    trained = [name for name in names.values() if name in before and before[name].dtype == np.float32]
    assert len(trained) >= 18
    assert all(np.array_equal(after[name], before[name] + 1) for name in trained)


@pytest.mark.parametrize(
    "settings",
    [
        {"command": ["train", "$Weights"]},
        {"command": ["train", "$Weights", "$Output"], "module": "m"},
        {"command": ["train", "$Module"], "module": "m"},
    ],
)
def test_a_program_writes_a_model_or_weights(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        RunTool.model_validate_json(json.dumps(settings))
    check_message(caught.value)
