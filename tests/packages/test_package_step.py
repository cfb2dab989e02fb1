"""The step `package`: its contents, its layouts as ONNX Runtime and Triton read them, and measurements of others."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import zipfile
from collections.abc import Mapping
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
from ndld_flow.records.document import read_document
from ndld_flow.records.package import Package
from ndld_flow.runner.events import RunFinished
from tests.support.models import make_cnn, make_ext

QUICK = {"runs": 1, "passes": 2, "duration": 0, "warmup": 0, "warmup_passes": 1, "layer_passes": 0, "stable": "0 %"}
STEPS: Mapping[str, Any] = {
    "half": {"step": "convert_fp16", "from": "source"},
    "agree": {"step": "check_accuracy", "reference": "source", "candidate": "half"},
    "speed": {"step": "profile", "from": "half", **QUICK},
    "ship": {
        "step": "package",
        "from": "source",
        "package_version": "1.2.0",
        "license": "MIT",
        "variants": {
            "fp16": {"model": "half", "latency": "speed", "accuracy": "agree", "max_batch_size": 4},
            "fp32": {"model": "source", "provider": "cuda", "instances": 2},
        },
    },
}


def write(folder: Path, steps: Mapping[str, Any] = STEPS, model: str = "model.onnx", **more: Any) -> Path:
    path = folder / "r.yaml"
    inputs = {"x": {"shape": [1, 3, 16, 16]}} if model == "model.onnx" else {}
    path.write_text(json.dumps({"name": "toy", "model": model, "inputs": inputs, "steps": steps, **more}))
    return path


def run(recipe: Path, **options: Any) -> RunFinished:
    finished = api.run(recipe, **options)
    assert isinstance(finished, RunFinished)
    return finished


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package, exported as a zip, and unpacked."""
    folder = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_cnn(folder / "model.onnx")
        assert run(write(folder), output="toy.zip").exported == ("toy.zip",)
        with zipfile.ZipFile("toy.zip") as archive:
            archive.extractall("unpacked")
    return folder


@pytest.fixture
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package, as the current directory: runs there reuse its steps."""
    monkeypatch.chdir(made)
    return made


@pytest.fixture(scope="module")
def package(made: Path) -> Package:
    return read_document(Package, made / "unpacked/package.json")


def test_every_file_is_listed_with_its_sha256(made: Path, package: Package) -> None:
    found = {
        path.relative_to(made / "unpacked").as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (made / "unpacked").rglob("*")
        if path.is_file() and path.name != "package.json"
    }
    assert {file.path: file.sha256 for file in package.files} == found


def test_variants_have_their_measurements_and_what_is_unknown_stays_unknown(package: Package) -> None:
    fp16, fp32 = package.variants
    assert fp16.provider == "CPUExecutionProvider"
    assert fp16.latency is not None
    assert fp16.latency.median_ms > 0
    assert fp16.latency.version == fp16.version == ort.__version__
    assert fp16.accuracy is not None
    assert fp16.accuracy.passed
    assert (fp32.provider, fp32.version, fp32.latency, fp32.accuracy) == ("CUDAExecutionProvider", "", None, None)
    assert [(each.license, each.basis) for each in package.licenses] == [("MIT", "recipe")]


def test_onnx_runtime_opens_it_and_runs_the_preferred_variant(made: Path) -> None:
    if not hasattr(ort, "ModelPackageContext"):
        pytest.skip(f"ONNX Runtime {ort.__version__} has no model packages in Python")
    context = ort.ModelPackageContext(str(made / "unpacked"))
    assert context.get_variant_names("toy") == ["fp16", "fp32"]
    options = ort.ModelPackageOptions(ort.SessionOptions())
    selected = context.select_component("toy", options)
    assert selected.get_selected_variant_name() == "fp16"
    session = selected.create_session()
    (output,) = session.run(None, {"x": np.zeros((1, 3, 16, 16), session_type(session))})
    assert np.isfinite(output).all()


def session_type(session: Any) -> type[np.floating[Any]]:
    return np.float16 if "16" in session.get_inputs()[0].type else np.float32


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


def test_triton_reads_its_configurations(made: Path, schema: ModuleType) -> None:
    fp16 = config_of(schema, made / "unpacked/models/toy.fp16/config.pbtxt")
    assert (fp16.backend, fp16.max_batch_size, fp16.default_model_filename) == ("onnxruntime", 4, "model.onnx")
    assert [list(each.dims) for each in fp16.input] == [[3, 16, 16]], "the batch is Triton's"
    assert fp16.instance_group[0].kind == schema.ModelInstanceGroup.KIND_CPU
    fp32 = config_of(schema, made / "unpacked/models/toy.fp32/config.pbtxt")
    assert [list(each.dims) for each in fp32.input] == [[-1, 3, 16, 16]], "whole shapes"
    assert (fp32.instance_group[0].kind, fp32.instance_group[0].count) == (schema.ModelInstanceGroup.KIND_GPU, 2)


def hostile_model(path: Path) -> None:
    """A model with names that would end a string or a cell of a table, a scalar, and a type that Triton lacks."""
    name = 'x"] }\ninput [ { name: "y|<b>'
    nodes = [helper.make_node("Identity", [name], ["a|b"]), helper.make_node("Identity", ["s"], ["t"])]
    tensors = [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["n", 2]) for each in (name, "a|b")]
    scalars = [helper.make_tensor_value_info(each, TensorProto.INT64, []) for each in ("s", "t")]
    graph = helper.make_graph(nodes, "g", [tensors[0], scalars[0]], [tensors[1], scalars[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, {"License": "AGPL-3.0 <script>"})
    onnx.save(model, path)


def test_hostile_names_stay_names_and_licences_of_metadata_are_found(in_folder: Path, schema: ModuleType) -> None:
    hostile_model(in_folder / "hostile.onnx")
    finished = run(write(in_folder, {"ship": {"step": "package"}}, "hostile.onnx"))
    folder = Path(finished.artifacts["ship"]).parent
    package = read_document(Package, folder / "package.json")
    config = config_of(schema, folder / "models/toy.model/config.pbtxt")
    assert [each.name for each in config.input] == ['x"] }\ninput [ { name: "y|<b>', "s"]
    assert (list(config.input[1].dims), list(config.input[1].reshape.shape)) == ([1], [])
    assert config.input[1].HasField("reshape")
    assert [(each.license, each.basis) for each in package.licenses] == [
        ("AGPL-3.0 <script>", "metadata `License` of the model")
    ]
    card = (folder / "README.md").read_text()
    assert "<script>" not in card
    assert "<b>" not in card
    assert json.loads((folder / "manifest.json").read_text())["components"]["toy"]["variants"]["model"].keys() == {
        "variant_directory",
        "executor_info",
    }, "an unknown execution provider is not invented"


def test_an_unknown_licence_is_stated_as_unknown(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    finished = run(write(in_folder, {"ship": {"step": "package"}}))
    card = (Path(finished.artifacts["ship"]).parent / "README.md").read_text()
    assert "Unknown: neither the recipe nor the model's metadata state one." in card


def test_the_package_is_the_result_of_its_run(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    finished = run(write(in_folder, {"clean": {"step": "sanitize"}, "ship": {"step": "package"}}))
    assert any(line.startswith("package ship: 1 variant") for line in finished.verdict)
    result = Path(finished.report).read_text().partition('class="result-files"')[2].partition("</p>")[0]
    assert re.findall('href="([^"]+)"', result) == ["./ship/package.json"]


def test_equal_inputs_give_equal_bytes_and_variants_share_files(in_folder: Path) -> None:
    make_ext(in_folder / "model.onnx")
    steps = {"ship": {"step": "package", "variants": {name: {"model": "source"} for name in ("here", "there")}}}
    recipe = write(in_folder, steps, inputs={}, export={"a/toy.zip": "ship"})
    for outputs in ("one", "two"):
        run(recipe, outputs=in_folder / outputs)
        (in_folder / "a/toy.zip").rename(in_folder / f"{outputs}.zip")
    assert (in_folder / "one.zip").read_bytes() == (in_folder / "two.zip").read_bytes()
    with zipfile.ZipFile(in_folder / "one.zip") as archive:
        names = archive.namelist()
    assert [name for name in names if name.endswith(".onnx")] == ["models/toy.here/1/model.onnx"]
    assert len([name for name in names if name.startswith("models/toy.here/1/")]) == 2, "external data comes along"


def refused(made: Path, variants: Mapping[str, Any], **steps: Any) -> str:
    """Return the error of a package of these variants; the steps before it are reused."""
    before = {name: step for name, step in STEPS.items() if name != "ship"}
    ship = {"step": "package", "from": "source", "variants": variants}
    with pytest.raises((RequestError, RecipeError)) as error:
        run(write(made, {**before, **steps, "ship": ship}))
    return str(error.value)


@pytest.mark.thorough
def test_measurements_of_another_model_are_refused(inside: Path) -> None:
    text = refused(inside, {"fp32": {"model": "source", "latency": "speed"}})
    assert "variants.fp32.latency: speed measured another model than that of source" in text
    text = refused(inside, {"fp32": {"model": "source", "accuracy": "agree"}})
    assert "variants.fp32.accuracy: agree checked the model of half, which is not that of source" in text
    text = refused(inside, {"fp16": {"model": "half", "latency": "speed", "provider": "cuda"}})
    assert "measured on CPUExecutionProvider, and `provider` is CUDAExecutionProvider" in text


def test_a_model_compared_with_itself_shows_nothing(inside: Path) -> None:
    own = {"step": "check_accuracy", "reference": "half", "candidate": "half"}
    text = refused(inside, {"fp16": {"model": "half", "accuracy": "own"}}, own=own)
    assert "own compared the model with itself" in text


def test_a_batch_needs_a_dynamic_first_dimension(inside: Path) -> None:
    fixed = {"step": "fix_shapes", "from": "source", "shapes": {"x": [1, 3, 16, 16]}}
    text = refused(inside, {"fixed": {"model": "fixed", "max_batch_size": 4}}, fixed=fixed)
    assert "variants.fixed.max_batch_size: the first dimension of x (1x3x16x16) is not dynamic" in text


def test_wrong_recipes_are_refused_before_anything_runs(inside: Path) -> None:
    text = refused(inside, {"fp16": {"model": "haf"}})
    assert "steps.ship.variants.fp16.model" in text
    assert "half" in text
    assert "give either `model` or `engine`" in refused(inside, {"fp16": {}})
    with pytest.raises(RecipeError, match=r"a package is written as a \.zip"):
        run(write(inside, export={"toy.onnx": "ship"}))


def test_a_changed_recipe_packs_again_and_the_report_shows_the_variants(inside: Path) -> None:
    recipe = write(inside)
    assert run(recipe).nothing_to_do
    finished = run(recipe, overrides=["+description=A model"])
    record = json.loads((Path(finished.folder) / "run.json").read_text())
    assert [step["name"] for step in record["steps"] if step["outcome"] == "done"] == ["ship"]
    page = (Path(finished.folder) / "report.html").read_text()
    assert 'id="packages"' in page
