"""`export: {triton: FOLDER}`: a model repository, as Triton's own schema reads it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.execution.events import RunFinished
from ndld_flow.export.triton import describe_engine
from ndld_flow.records.document import read_document
from ndld_flow.records.run_record import ExportRecord
from tests.support.engine_samples import build, rtx_build
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_ext

CLEAN = {"clean": {"step": "sanitize"}}


def run(folder: Path, triton: object = "served", **more: Any) -> RunFinished:
    recipe = {"name": "toy", "model": "model.onnx", "steps": CLEAN, "export": {"triton": triton}, **more}
    (folder / "r.yaml").write_text(json.dumps(recipe))
    finished = api.run(folder / "r.yaml")
    assert isinstance(finished, RunFinished)
    return finished


@pytest.fixture(scope="module")
def schema() -> ModuleType:
    """Triton's own schema, from its client."""
    spec = importlib.util.find_spec("tritonclient")
    if spec is None or spec.origin is None:
        pytest.skip("tritonclient, which has the schema of Triton's configurations, is not installed")
    source = Path(spec.origin).parent / "grpc/model_config_pb2.py"  # the package itself imports gRPC
    module_spec = importlib.util.spec_from_file_location("model_config_pb2", source)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def config_of(schema: ModuleType, path: Path) -> Any:
    return text_format.Parse(path.read_text(encoding="utf-8"), schema.ModelConfig())


def test_triton_reads_the_configuration_and_the_model_runs(in_folder: Path, schema: ModuleType) -> None:
    make_cnn(in_folder / "model.onnx")
    assert run(in_folder).exported == ("served/toy",)
    config = config_of(schema, in_folder / "served/toy/config.pbtxt")
    assert (config.backend, config.platform, config.max_batch_size) == ("onnxruntime", "onnxruntime_onnx", 0)
    session = ort.InferenceSession(in_folder / "served/toy/1/model.onnx")
    for declared, found in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [item.name for item in declared] == [item.name for item in found]
        shapes = [[size if isinstance(size, int) else -1 for size in item.shape] for item in found]
        assert [list(item.dims) for item in declared] == shapes, "whole shapes, the batch included"
        assert {item.data_type for item in declared} == {schema.TYPE_FP32}
    outputs = session.run(None, {"x": np.zeros((2, 3, 16, 16), np.float32)})
    assert all(np.isfinite(output).all() for output in outputs)
    assert sorted(path.name for path in in_folder.iterdir()) == ["model.onnx", "outputs", "r.yaml", "served"]


def test_an_engine_is_described_by_the_record_of_its_build(tmp_path: Path, schema: ModuleType) -> None:
    (tmp_path / "build.json").write_text(build().to_json())
    name, text = describe_engine(tmp_path)
    config = text_format.Parse(text, schema.ModelConfig())
    assert (name, config.platform, list(config.input[0].dims)) == ("model.plan", "tensorrt_plan", [-1, 3, -1, -1])
    (tmp_path / "build.json").write_text(rtx_build().to_json())
    with pytest.raises(RequestError, match="tensorrt_rtx"):
        describe_engine(tmp_path)


def test_external_data_is_beside_the_model(in_folder: Path) -> None:
    make_ext(in_folder / "model.onnx")
    run(in_folder)
    files = {path.relative_to(in_folder).as_posix() for path in (in_folder / "served").rglob("*") if path.is_file()}
    record = read_document(ExportRecord, in_folder / "served/toy.json")
    assert {f"served/{name}" for name in record.sha256} == files - {"served/toy.json"}
    assert len(record.sha256) == 3
    ort.InferenceSession(in_folder / "served/toy/1/model.onnx")


def test_an_export_may_be_replaced_and_nothing_else(in_folder: Path, check_message: CheckMessage) -> None:
    make_cnn(in_folder / "model.onnx")
    run(in_folder)
    first = (in_folder / "served/toy.json").read_bytes()
    run(in_folder)
    assert (in_folder / "served/toy.json").read_bytes() == first, "equal results are not written again"
    run(in_folder, steps={**CLEAN, "half": {"step": "convert_fp16"}})
    model = (in_folder / "served/toy/1/model.onnx").read_bytes()
    assert read_document(ExportRecord, in_folder / "served/toy.json").step == "half"
    (in_folder / "served/toy/labels.txt").write_text("mine")
    with pytest.raises(RequestError) as caught:
        run(in_folder)
    check_message(caught.value)
    assert (in_folder / "served/toy/1/model.onnx").read_bytes() == model
    (in_folder / "served/toy/labels.txt").unlink()
    (in_folder / "served/toy/2").symlink_to(in_folder / "outputs")
    with pytest.raises(RequestError) as caught:
        run(in_folder)
    check_message(caught.value)


def hostile_model(path: Path) -> None:
    """A model with names that would end a string, and a scalar."""
    name = 'x"] }\ninput [ { name: "y|<b>'
    nodes = [helper.make_node("Identity", [name], ["a|b"]), helper.make_node("Identity", ["s"], ["t"])]
    tensors = [helper.make_tensor_value_info(item, TensorProto.FLOAT, ["n", 2]) for item in (name, "a|b")]
    scalars = [helper.make_tensor_value_info(text, TensorProto.INT64, []) for text in ("s", "t")]
    graph = helper.make_graph(nodes, "g", [tensors[0], scalars[0]], [tensors[1], scalars[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)


def test_hostile_names_stay_names(in_folder: Path, schema: ModuleType) -> None:
    hostile_model(in_folder / "model.onnx")
    run(in_folder)
    config = config_of(schema, in_folder / "served/toy/config.pbtxt")
    assert {value.name for value in config.input} == {'x"] }\ninput [ { name: "y|<b>', "s"}
    scalar = next(value for value in config.input if value.name == "s")
    assert (list(scalar.dims), list(scalar.reshape.shape), scalar.HasField("reshape")) == ([1], [], True)


def test_a_type_that_triton_lacks_is_refused_and_nothing_is_written(
    in_folder: Path, check_message: CheckMessage
) -> None:
    tensors = [helper.make_tensor_value_info(item, TensorProto.FLOAT8E4M3FN, ["n"]) for item in "ab"]
    graph = helper.make_graph([helper.make_node("Identity", ["a"], ["b"])], "g", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), "model.onnx")
    with pytest.raises(RequestError) as caught:
        run(in_folder)
    check_message(caught.value)
    assert not (in_folder / "served").exists()


@pytest.mark.parametrize(
    "triton",
    ["../served", "/tmp/served", 3],
)
def test_wrong_folders_are_mistakes_of_the_recipe(triton: object, in_folder: Path, check_message: CheckMessage) -> None:
    make_cnn(in_folder / "model.onnx")
    with pytest.raises(RecipeError) as caught:
        run(in_folder, triton=triton)
    check_message(caught.value)


def test_a_recipe_without_a_result_has_nothing_to_serve(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    with pytest.raises(RecipeError) as caught:
        run(in_folder, steps={"lint": {}})
    assert [problem.path for problem in caught.value.problems] == ["export.triton"]


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "a b"])
def test_names_that_are_no_folder_are_refused(name: str, in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    with pytest.raises(RecipeError):
        run(in_folder, name=name)
    assert not (in_folder / "served").exists()
