"""OpenVINO, where it is installed: outputs, layers, precisions that are used rather than requested, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("openvino", reason="needs the extra [openvino]")

from ndld_flow.base.errors import BackendError, ModelError, RequestError, UnknownNameError
from ndld_flow.models.files import model_inputs
from ndld_flow.precision_search.search import rounds_to
from ndld_flow.profiles.compare.differences import circumstances_of, find_differences
from ndld_flow.quantize.settings import cpu_saturates
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.profile import Profile
from ndld_flow.report.run_page import draw_profile
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.openvino.openvino_session import describe_devices
from ndld_flow.runtimes.openvino.request import OpenvinoRequest
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.steps.inspect_activations import InspectActivations
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.steps.quantize import Quantize
from ndld_flow.store.kinds import AccuracyDocument, ActivationsDocument, Onnx, ProfileDocument
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_func, make_tfm
from tests.support.models_people_have import practical_models
from tests.support.models_run import Given, run_step, write_model

QUICK = {"runs": 1, "stable": 0, "passes": 4, "duration": 0, "warmup": 0, "warmup_passes": 1, "layer_passes": 3}
HOSTILE = "a,b#1</script><img src=x onerror=alert(1)>\"'\n, #2"
NARROW = next((name for name in ("BF16", "FP16") if name in describe_devices()), "")
F32 = OpenvinoRequest(inference_precision="f32", dynamic_quantization=0)

Arrays = dict[str, Any]


def run(request: SessionRequest, model: Path, feeds: Arrays) -> Arrays:
    binding = request.open(model).bind(feeds)
    binding.run()
    outputs = binding.outputs()
    shapes = {name: (value.dtype.name, value.shape) for name, value in outputs.items() if value is not None}
    assert binding.output_shapes() == shapes
    return outputs


def feeds_of(model: Path, **shapes: tuple[int, ...]) -> Arrays:
    feeds = {name: feed.values for name, feed in make_feeds(model_inputs(model), {}, 0, "m").items()}
    generator = np.random.default_rng(0)
    return feeds | {name: generator.random(shape, np.float32) for name, shape in shapes.items()}


def largest_difference(model: Path, feeds: Arrays, request: SessionRequest = F32) -> float:
    """Return the largest difference to ONNX Runtime, relative to the largest value of that output."""
    expected, found = run(OnnxruntimeRequest(), model, feeds), run(request, model, feeds)
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        name: (value.dtype, value.shape) for name, value in expected.items()
    }
    return max(
        float(np.max(np.abs(value.astype(np.float64) - found[name].astype(np.float64))) / np.max(np.abs(value)))
        for name, value in expected.items()
    )


def profile(model: Path, folder: Path, inputs: Given | None = None, **settings: Any) -> tuple[Any, Profile]:
    ran = run_step(ProfileModel, model, folder, QUICK | {"backend": "openvino"} | settings, inputs)
    return ran, Profile.model_validate_json((ran.out / ProfileDocument.main).read_text())


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cnn(tmp_path_factory.mktemp("models") / "cnn.onnx")


@pytest.fixture(scope="module")
def int8(cnn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ran = run_step(Quantize, cnn, tmp_path_factory.mktemp("int8"), {}, {"x": {"shape": [1, 3, 16, 16]}})
    return ran.out / "model.onnx"


@pytest.mark.parametrize("batch", [1, 3])
def test_outputs_are_those_of_onnx_runtime_for_several_sizes(batch: int, cnn: Path, tmp_path: Path) -> None:
    assert largest_difference(cnn, feeds_of(cnn, x=(batch, 3, 16, 16))) < 1e-6
    transformer = make_tfm(tmp_path / "m.onnx")
    assert largest_difference(transformer, feeds_of(transformer)) < 1e-6


def test_a_model_with_q_dq_runs_in_int8(int8: Path) -> None:
    # Rounding differs by at most one of 255 steps in each of the few quantized layers.
    assert largest_difference(int8, feeds_of(int8, x=(2, 3, 16, 16))) < 0.01
    assert "int8" in str(F32.open(int8).describe().facts["inference_precision"])


@pytest.mark.representatives("bool", "float16")
@pytest.mark.parametrize(
    "values",
    [
        np.array([[1.5, -2, 3]], ml_dtypes.bfloat16),
        np.array([[1.5, -2, 3]], np.float16),
        np.array([[7, -8, 3]], np.int64),
        np.array([[True, False, True]]),
        np.zeros((2, 0, 3), np.float32),
    ],
    ids=lambda values: values.dtype.name,
)
def test_elements_of_any_type_arrive(values: Any, tmp_path: Path) -> None:
    element = helper.np_dtype_to_tensor_dtype(values.dtype)
    infos = [helper.make_tensor_value_info(name, element, values.shape) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        "g",
        infos[:1],
        [helper.make_tensor_value_info("y", element, [2 * values.shape[0], *values.shape[1:]])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    output = run(OpenvinoRequest(), path, {"x": values})["y"]
    assert output.dtype == values.dtype
    assert output.tolist() == np.concatenate([values, values]).tolist()


def test_layers_have_their_nodes_times_and_types(cnn: Path, tmp_path: Path) -> None:
    ran, result = profile(cnn, tmp_path)
    assert "CPU in OpenVINO, float32," in ran.result.summary
    assert result.providers == ("CPU",)
    assert result.versions["openvino"]
    assert not result.may_use_gpu
    assert result.device_fact("inference_precision") == "float32"
    named = {node.name for node in onnx.load(cnn).graph.node if node.op_type != "Constant"}
    covered = [name for layer in result.layers for name in layer.onnx_nodes]
    assert set(covered) <= named
    assert len(set(covered)) > 0.9 * len(named)
    convolution = result.layers[next(i for i, layer in enumerate(result.layers) if layer.type == "Convolution")]
    assert convolution.onnx_nodes == ("Conv_0", "BatchNormalization_1", "Identity_2", "Relu_3")
    assert convolution.precision == "float32"
    assert (convolution.activation, dict(convolution.attributes)["kernel_shape"]) == ("relu", (3, 3))
    assert convolution.macs == 16 * 16 * 8 * 3 * 9
    assert convolution.weights
    assert result.layer_runs == (1,)
    assert all(len(layer.samples_ms) == 1 for layer in result.layers)
    # OpenVINO's means include the first pass of a process, which takes ten times as long as the sum of the layers.
    assert 0 < result.layers_sum_ms <= result.layer_pass_ms[0]


def test_a_transposition_of_the_model_is_no_reformat(tmp_path: Path) -> None:
    """As in ONNX Runtime's layers, with which these are compared: only what the runtime inserts is one."""
    graph = "g (float[8, 64, 64] x) => (float[64, 8, 64] z) { y = Relu(x) z = Transpose <perm = [1, 0, 2]> (y) }"
    _, result = profile(write_model(tmp_path / "m.onnx", graph), tmp_path / "ran")
    assert {layer.role for layer in result.layers if layer.type == "Transpose"} == {"compute"}


@pytest.mark.skipif(not NARROW, reason="OpenVINO uses float32 on this CPU")
def test_the_precision_that_layers_used_is_shown(cnn: Path, tmp_path: Path) -> None:
    _, default = profile(cnn, tmp_path / "default", layer_passes=0, inference_precision="default")
    _, full = profile(cnn, tmp_path / "full", layer_passes=0)
    _, onnxruntime = profile(cnn, tmp_path / "onnxruntime", layer_passes=0, backend="onnxruntime")
    assert str(default.device_fact("inference_precision")).startswith(("bfloat16", "float16"))
    for other, expected in ((full, "float32"), (onnxruntime, "as in the model")):
        differences = {
            difference.detail: difference.values for difference in find_differences((other, default), frozenset())
        }
        assert differences["precision of layers"] == (expected, default.device_fact("inference_precision"))
        assert "precision of layers" in circumstances_of(other, default, frozenset()).causes
    request = OpenvinoRequest(inference_precision="default")
    assert largest_difference(cnn, feeds_of(cnn), request) > 1e-5, "the record is true"


def test_a_precision_that_the_cpu_lacks_is_refused(cnn: Path) -> None:
    lacking = next((name for kind, name in (("FP16", "f16"), ("BF16", "bf16")) if kind not in describe_devices()), "")
    if not lacking:
        pytest.skip("this CPU has every precision")
    with pytest.raises(BackendError, match=f"`inference_precision: {lacking}`: OpenVINO .* computes in \\w+"):
        OpenvinoRequest(inference_precision=lacking).open(cnn)


def test_hidden_quantization_of_activations_is_not_called_float(tmp_path: Path) -> None:
    """OpenVINO's records are equal with and without it; only the outputs differ."""
    [(_, model)] = practical_models(tmp_path, ["quantized_decoder"])
    assert largest_difference(model.path, model.feeds) < 1e-5
    hidden = largest_difference(model.path, model.feeds, OpenvinoRequest(inference_precision="f32"))
    facts = OpenvinoRequest(inference_precision="f32").open(model.path).describe().facts
    if not facts["dynamic_quantization"] or cpu_saturates():
        pytest.skip("OpenVINO does not quantize activations on this CPU: it has no VNNI")
    assert hidden > 1e-3
    assert "int8 or float32" in str(facts["inference_precision"])
    assert "int8" not in str(F32.open(model.path).describe().facts["inference_precision"])


def test_concurrent_inferences_have_no_layer_times(cnn: Path, tmp_path: Path) -> None:
    ran, result = profile(cnn, tmp_path, hint="throughput", requests=3)
    assert result.concurrent_inferences == 3
    assert result.layers == ()
    assert "layers.sum" not in ran.result.metrics
    expected = 3e3 / result.latency.median_ms
    assert ran.result.metrics["throughput.median"].value == pytest.approx(expected)
    assert any("3 concurrent inferences" in note and "layers are not timed" in note for note in result.notes)
    forbidding = [
        difference.detail
        for difference in find_differences((result, profile(cnn, tmp_path / "b")[1]), frozenset())
        if difference.forbids
    ]
    assert "inferences in a pass" in forbidding


def test_names_of_strangers_are_neither_split_nor_run(tmp_path: Path) -> None:
    infos = [helper.make_tensor_value_info(f"{name}{HOSTILE}", TensorProto.FLOAT, ["n" + HOSTILE, 3]) for name in "xy"]
    nodes = [
        helper.make_node("Relu", [infos[0].name], ["h,1"], name=HOSTILE),
        helper.make_node("MatMul", ["h,1", "w"], [infos[1].name], name="#1,#2"),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3], [*map(float, range(9))])
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    _, result = profile(path, tmp_path / "ran", free_dimensions={"n" + HOSTILE: 4}, inference_precision="f32")
    assert {name for layer in result.layers for name in layer.onnx_nodes} == {HOSTILE, "#1,#2"}
    assert result.inputs[0].shape == (4, 3)
    assert [layer.macs for layer in result.layers if layer.macs] == [4 * 3 * 3]
    assert "<img src=x" not in draw_profile(result, HOSTILE, tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "graph",
    [
        "g (string[2] x) => (string[2] y) { y = Identity(x) }",
        "g (float[2] x) => (float[2] y) { y = my.Own (x) }",
    ],
)
def test_refusals_name_their_reason(graph: str, tmp_path: Path, check_message: CheckMessage) -> None:
    path = tmp_path / "m.onnx"
    text = f'<ir_version: 8, opset_import: ["" : 17, "my" : 1]>\n{graph}'
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(ModelError) as caught:
        OpenvinoRequest().open(path)
    check_message(caught.value)


def test_refusals_of_files_and_feeds(cnn: Path, tmp_path: Path, check_message: CheckMessage) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError) as broken:
        OpenvinoRequest().open(tmp_path / "bad.onnx")
    check_message(broken.value)
    with pytest.raises(ModelError) as broken:
        OpenvinoRequest().open(tmp_path / "missing.onnx")
    check_message(broken.value)
    with pytest.raises(ModelError, match=r"local\.Block.*inline_functions"):
        OpenvinoRequest().open(make_func(tmp_path / "func.onnx"))
    session = F32.open(cnn)
    with pytest.raises(RequestError, match='"x"'):
        session.bind({})
    with pytest.raises(RequestError) as refused:
        session.bind({"x": np.zeros((1, 3, 16, 16), np.int64)})
    check_message(refused.value)
    fixed = write_model(tmp_path / "fixed.onnx", "g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }")
    with pytest.raises(UnknownNameError) as unknown:
        OpenvinoRequest(free_dimensions={"m": 3}).open(fixed)
    assert unknown.value.name == "m"


@pytest.mark.parametrize(("precision", "computed"), [("f32", "computed in float32"), ("default", "computed in ")])
def test_accuracy_is_checked_between_runtimes(precision: str, computed: str, cnn: Path, tmp_path: Path) -> None:
    runtime = {"backend": "openvino", "inference_precision": precision}
    ran = run_step(
        CheckAccuracy, cnn, tmp_path, {"runtime": runtime}, artifacts={"reference": Onnx(cnn, "source", "digest")}
    )
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_text())
    assert (accuracy.provider_reference, accuracy.provider_candidate) == ("CPUExecutionProvider", "OpenVINO CPU")
    assert f"CPU, whose layers {computed}" in accuracy.notes[0]
    assert f", whose layers {computed}" in ran.result.summary
    error = ran.result.metrics["max_abs"].value
    assert 0 < error < 1e-6 if precision == "f32" or not NARROW else error > 1e-6


def test_code_in_the_runtime_of_a_check_needs_a_trusted_recipe() -> None:
    check = CheckAccuracy.model_validate_json('{"runtime": {"backend": "onnxruntime", "custom_ops": ["x.so"]}}')
    assert [held.dotted for held in check.named_code()] == ["runtime.custom_ops"]
    versions = CheckAccuracy.model_validate_json('{"runtime": {"backend": "openvino"}}').library_versions()
    assert versions["openvino"]
    assert "openvino" not in CheckAccuracy().library_versions()


SAMPLES = {"x": {"shape": [1, 3, 16, 16]}}
F32_SETTINGS = {"backend": "openvino", "inference_precision": "f32"}


def test_layers_of_a_check_are_those_of_the_runtime(cnn: Path, tmp_path: Path) -> None:
    settings = {"runtime": F32_SETTINGS, "layers": True, "tolerance": {"max_abs": 1e-4}}
    artifacts = {"reference": Onnx(cnn, "source", "digest")}
    ran = run_step(CheckAccuracy, cnn, tmp_path, settings, SAMPLES, artifacts=artifacts)
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_text())
    errors = [layer.metrics["max_abs"] for layer in accuracy.layers]
    assert len(errors) > 5
    assert 0 < max(errors) < 1e-5  # zero if ONNX Runtime ran both


def test_activations_are_inspected_in_the_runtime(cnn: Path, tmp_path: Path) -> None:
    settings = {"runtime": F32_SETTINGS, "reference": "source", "every": 2}
    artifacts = {"reference": Onnx(cnn, "source", "digest")}
    ran = run_step(InspectActivations, cnn, tmp_path, settings, SAMPLES, artifacts=artifacts)
    activations = Activations.model_validate_json((ran.out / ActivationsDocument.main).read_text())
    assert activations.provider == "OpenVINO CPU"
    assert any("ran in OpenVINO" in note for note in activations.notes)
    assert 0 < max(layer.metrics["max_abs"] for layer in activations.divergence) < 1e-5


def test_trials_of_a_search_run_in_the_runtime(cnn: Path, tmp_path: Path) -> None:
    searched = {"runtime": F32_SETTINGS, "precision": "int8", "trials": 2, "tolerance": {"cosine": 0.5}}
    ran = run_step(FindPrecision, cnn, tmp_path / "openvino", searched, SAMPLES)
    here = run_step(FindPrecision, cnn, tmp_path / "onnxruntime", searched | {"runtime": None}, SAMPLES)
    assert ran.result.passed
    # Kernels for int8 round differently, so equal figures would mean that the same runtime ran.
    assert 0 < abs(ran.result.metrics["cosine"] - here.result.metrics["cosine"]) < 1e-3


def test_a_search_is_refused_where_its_rounding_is_removed(
    cnn: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    assert rounds_to(OnnxruntimeRequest(), "fp16")
    assert rounds_to(OnnxruntimeRequest(), "bf16")
    import openvino

    # Where the CPU has no bfloat16, OpenVINO removes those Casts too.
    assert rounds_to(F32, "bf16") == ("BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    assert not rounds_to(F32, "fp16")  # OpenVINO removes the Casts: every trial would pass
    with pytest.raises(RequestError) as caught:
        run_step(FindPrecision, cnn, tmp_path, {"runtime": F32_SETTINGS, "precision": "fp16"}, SAMPLES)
    check_message(caught.value)


def test_calibration_runs_in_the_runtime(cnn: Path, tmp_path: Path) -> None:
    here = run_step(Quantize, cnn, tmp_path / "here", {}, SAMPLES)
    there = run_step(Quantize, cnn, tmp_path / "there", {"runtime": F32_SETTINGS}, SAMPLES)
    found, expected = (
        {
            initializer.name: onnx.numpy_helper.to_array(initializer)
            for initializer in onnx.load(ran.out / "model.onnx").graph.initializer
        }
        for ran in (there, here)
    )
    assert found.keys() == expected.keys()
    scales = [name for name, value in expected.items() if name.endswith("scale") and value.ndim == 0]
    assert scales
    for name in scales:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
