"""`init` writes valid recipes for each runtime and precision, with input sizes that the model accepted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from PIL import Image

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.execution.events import RunFinished
from ndld_flow.measure import trial_pass
from ndld_flow.recipe import write_recipe as write_recipe_module
from ndld_flow.recipe.write_recipe import RecipeOptions, WrittenRecipe, parse_shape, write_recipe
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, save, tensor
from tests.support.models_run import write_model
from tests.support.recipes import load_recipe


def picky_model(path: Path, side: int = 64) -> Path:
    """A model of pictures whose declared sizes are free, but which runs at one side only."""
    b = GraphBuilder()
    flat = b.op("Reshape", "x", b.ints(1, 3 * side * side))
    b.op("MatMul", flat, b.weight(3 * side * side, 4))
    b.nodes[-1].output[0] = "y"
    return save(b.model([tensor("x", ["n", 3, "h", "w"])], [tensor("y", [1, 4])]), path)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(options: RecipeOptions | None = None, name: str = "model", **arguments: object) -> WrittenRecipe:
    return write_recipe(Path(f"{name}.onnx"), None, options, overwrite=True, **arguments)  # type: ignore[arg-type]


def test_the_sizes_are_accepted_by_the_model(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx", 64)
    written = write()
    assert not written.trial.error
    assert load_recipe(written.path).file.inputs["x"].run_shape == (1, 3, 64, 64)


def test_the_first_run_is_estimated_from_the_pass_of_the_trial(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx", 64)
    written = write()
    slow = replace(written, trial=replace(written.trial, pass_ms=written.trial.pass_ms + 100))
    assert slow.first_run_s > written.first_run_s + 10
    assert replace(written, decides=True).first_run_s > written.first_run_s + 5


def test_two_recipes_for_a_model_have_two_names(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx", 64)
    names = [load_recipe(write_recipe(Path("model.onnx"), path).path).name for path in (None, Path("small.yaml"))]
    assert names == ["model", "small"]


def test_sizes_that_no_trial_finds_are_asked_for(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx", 17)
    asked = []

    def ask(name: str, declared: str) -> Sequence[int]:
        asked.append((name, declared))
        return (1, 3, 17, 17)

    written = write(ask=ask)
    assert asked == [("x", "nx3xhxw")]
    assert not written.trial.error
    assert load_recipe(written.path).file.inputs["x"].run_shape == (1, 3, 17, 17)


def test_sizes_that_the_data_have_are_neither_tried_first_nor_asked_for(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky_model(in_folder / "model.onnx", 17)
    np.save(in_folder / "x.npy", np.zeros((5, 3, 17, 17), np.float32))
    run = Mock(side_effect=trial_pass.try_inputs)
    monkeypatch.setattr(trial_pass, "try_inputs", run)
    written = write(RecipeOptions(data=("x.npy",)), ask=lambda *_: pytest.fail("the data have the sizes"))
    assert load_recipe(written.path).file.inputs["x"].run_shape == (1, 3, 17, 17)
    assert run.call_count == 1 and not written.trial.error


def test_without_an_answer_the_recipe_notes_that_the_model_was_not_run(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx", 17)
    written = write()
    assert "Reshape" in written.trial.error
    assert "not at the sizes" in written.path.read_text()
    load_recipe(written.path)


def without_shape(path: Path, op_type: str, *weights: str) -> None:
    write_model(path, f"g (float[n] x) => (float[n] y) <{', '.join(weights)}> {{ y = {op_type} }}")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, path)


def test_an_unknown_number_of_dimensions_is_decided_by_the_model_alone(in_folder: Path) -> None:
    numbers = ",".join(["0.1"] * 27)
    without_shape(in_folder / "model.onnx", "Conv(x, w)", f"float[1,3,3,3] w = {{{numbers}}}")
    written = write()
    assert not written.trial.error
    assert load_recipe(written.path).file.inputs["x"].run_shape == (1, 3, 224, 224)
    assert "0 to 5 dimensions, the model" in written.path.read_text()


def test_an_unknown_number_of_dimensions_that_nothing_decides_is_asked_for_and_never_guessed(in_folder: Path) -> None:
    without_shape(in_folder / "model.onnx", "Relu(x)")
    written = write()
    assert "0 and with 1" in written.trial.error
    assert load_recipe(written.path).file.inputs["x"].run_shape is None
    assert "add `shape: [...]`" in written.path.read_text()
    asked = write(ask=lambda name, declared: (2, 5) if (name, declared) == ("x", "unknown shape") else None)
    assert not asked.trial.error
    assert load_recipe(asked.path).file.inputs["x"].run_shape == (2, 5)
    assert not write(RecipeOptions(shapes={"x": (3,)})).trial.error


@pytest.mark.usefixtures("executed_workers")
def test_a_model_that_kills_its_process_is_an_error_of_the_trial(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky_model(in_folder / "model.onnx")
    monkeypatch.setenv("PYTHONPATH", str(in_folder))
    (in_folder / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "SIGSEGV" in write().trial.error


@pytest.mark.usefixtures("executed_workers")
def test_a_trial_that_does_not_end_is_stopped(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picky_model(in_folder / "model.onnx")
    monkeypatch.setattr(trial_pass, "_TIME_S", 0.2)
    monkeypatch.setenv("PYTHONPATH", str(in_folder))
    (in_folder / "sitecustomize.py").write_text("import time; time.sleep(60)")
    assert "took longer than" in write().trial.error


@pytest.mark.representatives("fp16-openvino", "None-tensorrt_rtx")
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt_rtx", "tensorrt"])
@pytest.mark.parametrize("precision", [None, "fp16", "int8"])
def test_every_kind_of_recipe_is_valid(runtime: str, precision: str | None, in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx")
    recipe = load_recipe(write(RecipeOptions(runtime, precision)).path)  # type: ignore[arg-type]
    steps = {step.name for step in recipe.steps}
    assert {"lint", "sanitize", "agree"} <= steps
    runs_models = runtime in ("onnxruntime", "openvino")
    assert ("engine" in steps) != runs_models
    assert getattr(recipe.file.runtime, "backend", None) == (runtime if runs_models else None)
    assert ("half" in steps, "small" in steps) == (precision == "fp16", precision == "int8")


def test_an_unknown_runtime_is_refused_with_the_nearest_before_the_model_is_read(
    in_folder: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        write(RecipeOptions("tensort_rtx"))
    check_message(caught.value)


def test_help_loads_no_runtime_which_a_broken_package_may_have() -> None:
    code = "import ndld_flow.verbs.init, sys; assert 'ndld_flow.runtimes.openvino' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_recipe_for_engines_checks_them(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a comment on a machine that cannot run them."""
    picky_model(in_folder / "model.onnx")
    line = "shipped: {step: check_accuracy, candidate: half, runtime: {backend: tensorrt, engine: engine}}"
    assert f"  # {line}" in write(RecipeOptions("tensorrt", "fp16")).path.read_text()
    monkeypatch.setattr(write_recipe_module, "has_nvidia_gpu", lambda: True)
    recipe = write(RecipeOptions("tensorrt", "fp16")).path
    assert f"\n  {line}" in recipe.read_text()
    assert "shipped" in {step.name for step in load_recipe(recipe).steps}


def test_images_are_assigned_to_the_matching_input(in_folder: Path) -> None:
    b = GraphBuilder()
    b.op("Add", b.op("ReduceMean", "picture", keepdims=0, axes=[1, 2, 3]), "bias")
    b.nodes[-1].output[0] = "y"
    model = b.model([tensor("bias", [1]), tensor("picture", [1, 8, 8, 3])], [tensor("y", [1])])
    save(model, in_folder / "model.onnx")
    photos(in_folder, 1)
    text = write(RecipeOptions(data=("photos",))).path.read_text()
    assert '"picture": {shape: [1, 8, 8, 3], data' in text
    assert '"bias": {shape: [1], data: random}' in text


def photos(folder: Path, count: int) -> None:
    (folder / "photos").mkdir()
    for number in range(count):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"photos/{number:03}.png")


@pytest.mark.parametrize(
    ("data", "dtype", "has_layout", "is_scaled"),
    [
        ("photos", TensorProto.FLOAT, True, True),
        ("photos", TensorProto.UINT8, True, False),  # pixels remain 0 to 255
        ("arrays", TensorProto.FLOAT, False, False),
    ],
)
def test_settings_of_pixels_are_for_images_alone(
    data: str, dtype: TensorProto.DataType, has_layout: bool, is_scaled: bool, in_folder: Path
) -> None:
    b = GraphBuilder()
    b.op("Shape", "picture")
    b.nodes[-1].output[0] = "y"
    pictures = tensor("picture", [1, 8, 8, 3], dtype)
    save(b.model([pictures], [tensor("y", [4], TensorProto.INT64)]), in_folder / "model.onnx")
    photos(in_folder, 1)
    (in_folder / "arrays").mkdir()
    np.save(in_folder / "arrays/0.npy", np.zeros((1, 8, 8, 3), np.float32))
    text = write(RecipeOptions(data=(data,))).path.read_text()
    assert f'data: "{data}"' in text
    assert (", layout: NHWC" in text, "`mean:`" in text, "`resize:`" in text) == (has_layout, is_scaled, has_layout)


@pytest.mark.parametrize(("count", "calibrated", "judged"), [(2, 1, 1), (3, 2, 1), (9, 6, 3), (300, 50, 25)])
def test_int8_is_judged_on_other_images_than_it_is_calibrated_on(
    count: int, calibrated: int, judged: int, in_folder: Path
) -> None:
    picky_model(in_folder / "model.onnx")
    photos(in_folder, count)
    recipe = load_recipe(write(RecipeOptions(precision="int8", data=(str(in_folder / "photos"),))).path)
    steps = {step.name: getattr(step.step, "data", {}).get("x", ()) for step in recipe.steps}
    assert (len(steps["small"]), len(steps["agree"])) == (calibrated, judged)
    assert set(steps["small"]).isdisjoint(steps["agree"])
    assert all(Path(name).exists() for name in (*steps["small"], *steps["agree"]))


def test_int8_is_judged_on_other_random_values_than_it_is_calibrated_on(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx")
    recipe = load_recipe(write(RecipeOptions(precision="int8")).path)
    steps: dict[str, Any] = {step.name: step.step for step in recipe.steps}
    seeds = [{steps[name].seed + i for i in range(steps[name].samples)} for name in ("small", "agree")]
    assert seeds[0].isdisjoint(seeds[1])
    assert min(map(len, seeds)) >= 8


def test_int8_and_fp16_for_a_gpu_have_a_gate_for_the_speed(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picky_model(in_folder / "model.onnx")

    def has_gate(precision: Literal["fp16", "int8"] | None) -> bool:
        return "decide" in {step.name for step in load_recipe(write(RecipeOptions(precision=precision)).path).steps}

    assert (has_gate("int8"), has_gate(None)) == (True, False)
    for gpu in (False, True):
        monkeypatch.setattr(write_recipe_module, "has_nvidia_gpu", lambda gpu=gpu: gpu)
        assert has_gate("fp16") == gpu, "a CPU computes FP16 in FP32"


def test_a_result_is_never_called_faster_before_it_ran(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx")
    names = {None: "model.clean.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}
    for precision, name in names.items():
        assert write(RecipeOptions(precision=precision)).command == f"ndld-flow run model.yaml -o {name}"  # type: ignore[arg-type]
    assert write(RecipeOptions("tensorrt")).command == "ndld-flow run model.yaml -o model.engine"


def test_int8_is_advised_where_it_may_pay(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx")
    assert "--int8" in write().advice
    advice = write(RecipeOptions(precision="int8")).advice
    assert "ndld-flow optimize" in advice and "--int8" not in advice, "static INT8 was 1.25x where dynamic was 1.43x"
    save(GraphBuilder().model([tensor("x", [4])], [tensor("x", [4])]), in_folder / "model.onnx")
    assert "no weights" in write().advice
    assert not write(RecipeOptions("tensorrt")).advice, "its engines have no choice of threads"


def test_an_array_that_does_not_fit_is_named(in_folder: Path) -> None:
    picky_model(in_folder / "model.onnx")
    np.save("photos.npy", np.zeros((1, 64, 64, 3), np.float32))
    with pytest.raises(RequestError, match=r"photos\.npy.*64, 64, 3"):
        write(RecipeOptions(data=("photos.npy",)))


def test_int8_of_an_lstm_has_the_mode_that_quantizes_it(in_folder: Path) -> None:
    """The mode of convolutions quantized nothing, and the recipe ended with an error."""
    b = GraphBuilder()
    b.op("LSTM", "x", b.weight(1, 64, 8), b.weight(1, 64, 16), hidden_size=16)
    b.nodes[-1].output[0] = "y"
    save(b.model([tensor("x", [5, 1, 8])], [tensor("y", [5, 1, 1, 16])]), in_folder / "model.onnx")
    assert "--int8" in write().advice
    recipe = load_recipe(write(RecipeOptions(precision="int8")).path)
    assert [getattr(step.step, "mode", "") for step in recipe.steps if step.name == "small"] == ["dynamic"]


def test_weights_that_are_int8_already_are_recognised(in_folder: Path, check_message: CheckMessage) -> None:
    b = GraphBuilder()
    b.op("MatMul", "x", b.op("DequantizeLinear", b.const(np.ones((64, 64), np.int8)), b.const(np.float32(0.1))))
    b.nodes[-1].output[0] = "y"
    save(b.model([tensor("x", [4, 64])], [tensor("y", [4, 64])]), in_folder / "model.onnx")
    assert "quantized already" in write().advice
    with pytest.raises(RequestError) as caught:
        write(RecipeOptions(precision="int8"))
    check_message(caught.value)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_that_are_inputs_become_constants_before_they_are_quantized(ir_version: int, in_folder: Path) -> None:
    """As PyTorch exported them before 1.4, and with `keep_initializers_as_inputs`."""
    b = GraphBuilder()
    b.op("MatMul", "x", b.weight(64, 64))
    b.nodes[-1].output[0] = "y"
    model = b.model([tensor("x", [4, 64])], [tensor("y", [4, 64])])
    model.graph.input.extend(
        tensor(initializer.name, list(initializer.dims)) for initializer in model.graph.initializer
    )
    model.ir_version = ir_version
    save(model, in_folder / "model.onnx")
    written = write(RecipeOptions(precision="int8"))
    assert [item.spec.name for item in written.trial.inputs] == ["x"]
    names = [step.name for step in load_recipe(written.path).steps]
    assert (names[0] == "own") == (ir_version > 3)
    assert "own" not in [step.name for step in load_recipe(write().path).steps]
    written = write(RecipeOptions(precision="int8"))
    finished = api.run(written.path, ["+steps.small.min_intensity=0", "~steps.base", "~steps.speed", "~steps.decide"])
    assert isinstance(finished, RunFinished)
    assert finished.metrics["small.layers"].value == 1


def test_images_for_a_model_without_image_inputs_are_refused(in_folder: Path, check_message: CheckMessage) -> None:
    save(GraphBuilder().model([tensor("x", [4])], []), in_folder / "model.onnx")
    photos(in_folder, 1)
    with pytest.raises(RequestError) as caught:
        write(RecipeOptions(data=("photos",)))
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        write(RecipeOptions(data=("nowhere",)))
    check_message(caught.value)


def test_a_shape_of_an_unknown_input_names_the_nearest(in_folder: Path, check_message: CheckMessage) -> None:
    picky_model(in_folder / "model.onnx")
    with pytest.raises(RequestError) as caught:
        write(RecipeOptions(shapes={"X": (1,)}))
    check_message(caught.value)


def test_names_of_dimensions_cannot_inject_settings(in_folder: Path) -> None:
    model = onnx.load(picky_model(in_folder / "model.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h\nsteps: {evil: {step: run_tool}}"
    onnx.save(model, in_folder / "model.onnx")
    assert "evil" not in {step.name for step in load_recipe(write().path).steps}


def test_shapes_are_set_on_the_command_line(check_message: CheckMessage) -> None:
    assert parse_shape("a=b=1x3x640") == ("a=b", (1, 3, 640))
    assert parse_shape("x=5,6") == ("x", (5, 6))
    assert parse_shape("x=scalar") == ("x", ())
    for wrong in ("x", "x=", "=scalar", "=1x2", "x=1x-2", "x=axb", "x=1x"):
        with pytest.raises(RequestError) as caught:
            parse_shape(wrong)
        check_message(caught.value)


def test_generated_tokens_are_within_the_vocabulary(in_folder: Path) -> None:
    b = GraphBuilder()
    b.op("Gather", b.initializer(np.zeros((5, 2), np.float32)), "ids")
    b.nodes[-1].output[0] = "y"
    model = b.model([tensor("ids", ["n", "seq"], TensorProto.INT64)], [tensor("y", None)])
    save(model, in_folder / "model.onnx")
    written = write()
    assert not written.trial.error
    assert load_recipe(written.path).file.inputs["ids"].range == (0, 5)
