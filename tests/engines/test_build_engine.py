"""Real engines, built ahead of time by TensorRT-RTX: this needs no GPU."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from ndld_flow.base.errors import BackendError, KilledError, ModelError, RequestError, UnknownNameError
from ndld_flow.engines.build_settings import ShapeSetting
from ndld_flow.engines.building import build_engine
from ndld_flow.inputs import InputSpec
from ndld_flow.processes import launch
from ndld_flow.profiles.read.engine_layers import read_engine_info
from ndld_flow.records.build import Build, EngineLock, ShapeRange
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.step import Reuse
from ndld_flow.steps.build_engine import BuildEngine
from ndld_flow.store.kinds import Engine
from tests.support.engine_builds import Asked, Came, build_all
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, make_cnn, make_ext, rename_output, save, tensor, tfm_model
from tests.support.models_engine import (
    BROKEN_TYPES,
    RELU,
    SEVERAL_FREE,
    SHAPE_TENSOR,
    STRINGS,
    constrain,
    make_fp8,
    make_hostile,
)
from tests.support.models_fp16 import no_half_model, quantized_model, unknown_operator_model
from tests.support.models_run import run_step, write_model

RTX: dict[str, Any] = {"backend": "tensorrt_rtx"}
HOSTILE = "a[0]\nName: z, LayerType: evil \x1b[31m模型, { Name: "
IMITATING = "a, LayerType: b, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 0, Metadata: \nName: c"

pytestmark = pytest.mark.skipif(
    not find_library("tensorrt_rtx").found, reason=f"builds with TensorRT-RTX: {find_library('tensorrt_rtx').missing}"
)


def shapes(lowest: list[int], best: list[int], highest: list[int]) -> dict[str, list[int]]:
    return {"min": lowest, "opt": best, "max": highest}


def make_unnamed(path: Path) -> Path:
    """A Conv with external weights whose dynamic dimensions all have the name `?`, as Paddle's exporters write them."""
    b = GraphBuilder()
    rename_output(b, b.op("Conv", "x", b.weight(64, 3, 3, 3), pads=[1, 1, 1, 1]), "y")
    model = b.model([tensor("x", ["?", 3, "?", "?"])], [tensor("y", ["?", 64, "?", "?"])])
    onnx.save(model, path, save_as_external_data=True, location="unnamed.data", size_threshold=0)
    return path


def ask(folder: Path) -> dict[str, Asked]:
    """Every engine that the tests look at."""
    cnn, relu = make_cnn(folder / "cnn.onnx"), write_model(folder / "relu.onnx", RELU)
    tfm = save(tfm_model(layers=1), folder / "tfm.onnx")
    free = write_model(folder / "free.onnx", SEVERAL_FREE)
    shape = write_model(folder / "shape.onnx", SHAPE_TENSOR)
    fp8 = make_fp8(folder / "fp8.onnx")
    result, eight = (shapes(*([batch, 3, 16, 16] for batch in sizes)) for sizes in ((1, 1, 2), (4, 8, 8)))
    everything = {
        **RTX,
        "compute_capabilities": ["8.6"],
        "tf32": False,
        "sparse_weights": True,
        "optimization_level": 5,
        "max_aux_streams": 2,
        "workspace": "64 MiB",
        "version_compatible": True,
        "exclude_lean_runtime": True,
        "tactic_sources": [],
        "native_instance_norm": True,
        "advanced": {
            "io_formats": {"x": {"formats": ["hwc", "linear"]}},
            "direct_io": True,
            "tiling": "moderate",
            "l2_limit": "2 MiB",
            "timing_iterations": 3,
            "max_tactics": 4,
            "memory_pools": {"tactic_shared_memory": "48 KiB"},
            "weight_streaming": True,
            "preview_features": {"RUNTIME_ACTIVATION_RESIZE_10_10": False},
            "flags": ["STRICT_NANS", "DISTRIBUTIVE_INDEPENDENCE"],
            "compilation_cache": False,
            "max_threads": 2,
            "extra_memory_target": 0.5,
        },
    }
    asked = {
        "plain": Asked(cnn, RTX),
        "again": Asked(cnn, RTX),
        "two_profiles": Asked(cnn, {**RTX, "profiles": [{"x": result}, {"x": eight}]}),
        "batch": Asked(cnn, {**RTX, "batch": {"opt": 4, "max": 8}}, {"x": {"shape": [1, 3, 16, 16]}}),
        "inputs": Asked(tfm, RTX, {"ids": {"min": [1, 4], "opt": [1, 8], "max": [2, 16]}, "mask": {"shape": [1, 8]}}),
        "free": Asked(free, RTX),
        "unnamed": Asked(
            make_unnamed(folder / "unnamed.onnx"),
            {**RTX, "profiles": [{"x": shapes([1, 3, 32, 48], [2, 3, 64, 96], [4, 3, 64, 128])}]},
        ),
        "half_a_profile": Asked(free, {**RTX, "profiles": [{"x": shapes([1, 4], [1, 8], [2, 16])}]}),
        "shape_values": Asked(
            shape, {**RTX, "profiles": [{"x": shapes([2, 4], [2, 4], [2, 4]), "shape": shapes([1, 4], [2, 4], [2, 4])}]}
        ),
        "no_shape_values": Asked(shape, RTX),
        "wrong_input": Asked(cnn, {**RTX, "profiles": [{"X": result}]}),
        "everything": Asked(cnn, everything),
        "no_names": Asked(relu, {**RTX, "verbosity": "none"}),
        "names": Asked(relu, {**RTX, "verbosity": "layer_names"}),
        "int8": Asked(save(quantized_model(13), folder / "int8.onnx"), RTX),
        "fp8": Asked(fp8, {**RTX, "compute_capabilities": ["8.9", "12.0"]}),
        "fp8_too_old": Asked(fp8, {**RTX, "compute_capabilities": ["8.6", "8.9"]}),
        "external": Asked(make_ext(folder / "ext.onnx", width=32), RTX),
        "hostile": Asked(make_hostile(folder / "hostile.onnx", HOSTILE), RTX),
        "imitating": Asked(make_hostile(folder / "imitating.onnx", IMITATING), RTX),
        "broken_types": Asked(write_model(folder / "types.onnx", BROKEN_TYPES), RTX),
        "unknown": Asked(save(unknown_operator_model(), folder / "unknown.onnx"), RTX),
        "no_runner": Asked(save(no_half_model(), folder / "nms.onnx"), RTX),
        "no_plugin": Asked(relu, {**RTX, "plugins": [str(folder / "plugin.so")]}),
        "wrong_weights": Asked(relu, {**RTX, "weights": "refit_individual", "refittable_weights": ["no such"]}),
        "wrong_tensor": Asked(relu, {**RTX, "advanced": {"io_formats": {"X": {"formats": ["linear"]}}}}),
        "refused": Asked(relu, {**RTX, "fp16": True, "int8": True, "error_on_timing_cache_miss": True}),
        "constrained": Asked(constrain(make_cnn(folder / "c.onnx"), Conv_0="fp16"), {**RTX, "typing": "obey"}),
        "disobeyed": Asked(constrain(make_cnn(folder / "d.onnx"), Conv_0="int8"), {**RTX, "typing": "obey"}),
        "preferred": Asked(constrain(make_cnn(folder / "p.onnx"), Conv_0="int8"), {**RTX, "typing": "prefer"}),
        "strings": Asked(write_model(folder / "strings.onnx", STRINGS), RTX),
        "too_large": Asked(relu, {**RTX, "profiles": [{"x": shapes([1, 4], [1, 4], [2**70, 4])}]}),
        "marked": Asked(cnn, {**RTX, "mark_outputs": ["Conv_*", "Shape_23", "/^Relu_3_out$/"]}),
        "marks_nothing": Asked(cnn, {**RTX, "mark_outputs": ["Shape_23", "y"]}),
        "marks_wrong": Asked(cnn, {**RTX, "mark_outputs": ["Conv_99"]}),
        "unheard": Asked(constrain(make_cnn(folder / "u.onnx"), Conv_0="fp16"), RTX),
    }
    return asked | {f"level_{level}": Asked(relu, {**RTX, "optimization_level": level}) for level in range(5)}


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Came]:
    folder = tmp_path_factory.mktemp("engines")
    (folder / "plugin.so").write_bytes(b"no library")
    return build_all(ask(folder), find_library("tensorrt_rtx"), folder / "built")


# What an engine comes with


def test_an_engine_comes_with_its_record_layers_and_log(came: Mapping[str, Came]) -> None:
    plain = came["plain"]
    assert {path.name for path in plain.out.iterdir()} == {
        Engine.main,
        Build.file_name,
        Engine.layers,
        Engine.log,
        EngineLock.file_name,
    }
    build = plain.build
    assert build.engine_bytes == len(plain.engine) > 10_000
    assert (build.backend, build.model_digest, build.label) == ("tensorrt_rtx", "digest", "a model")
    assert build.version == build.versions["tensorrt_rtx"] == find_library("tensorrt_rtx").version
    assert build.build_s > 0 < build.parse_s
    assert build.memory.build_peak_bytes > 2**20 < build.memory.activation_bytes
    assert build.memory.weights_bytes > 1000
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in build.inputs] == [("x", "float32", (-1, 3, 16, 16))]
    assert [(tensor.name, tensor.shape) for tensor in build.outputs] == [("y", (-1, 10))]
    assert build.options["optimization_level"] is None
    assert build.flags == ("TF32",)
    assert build.network_flags == ("STRONGLY_TYPED",)
    assert "[VERBOSE] " in plain.log
    assert "Total Weights Memory" in plain.log


def test_dimensions_named_with_a_question_mark_need_not_be_equal(came: Mapping[str, Came]) -> None:
    [x] = came["unnamed"].build.inputs
    assert (x.name, x.shape) == ("x", (-1, 3, -1, -1))
    assert came["unnamed"].build.memory.weights_bytes >= 64 * 3 * 3 * 3 * 4  # read from external data


def test_layers_are_the_compiled_ones(came: Mapping[str, Came]) -> None:
    build = came["plain"].build
    assert build.layers_basis == "build log"
    assert 5 < len(build.layers) < build.network_layer_count
    nodes = {node for layer in build.layers for node in layer.onnx_nodes}
    assert {"Conv_0", "BatchNormalization_1", "Relu_3", "MaxPool_12", "MatMul_32"} <= nodes
    first = next(layer for layer in build.layers if "Conv_0" in layer.onnx_nodes)
    assert (first.precision, first.outputs[0].shape) == ("float32", (1, 8, 16, 16))
    assert first.weight_bytes == 4 * (8 * 3 * 3 * 3 + 8 + 8)


@pytest.mark.parametrize("name", ["plain", "two_profiles", "no_names", "names", "hostile", "int8"])
def test_the_inspectors_json_is_read_by_the_reader_of_exports(came: Mapping[str, Came], name: str) -> None:
    build = came[name].build
    info = read_engine_info(came[name].out / Engine.layers)
    assert [layer.name for layer in info.layers] == [layer.name for layer in build.layers] != []
    assert info.unreadable == 0
    assert info.is_detailed
    assert info.inputs == build.inputs
    assert info.outputs == build.outputs


@pytest.mark.parametrize("name", ["no_names", "names"])
def test_without_detail_the_layers_are_the_networks(came: Mapping[str, Came], name: str) -> None:
    build = came[name].build
    assert build.layers_basis == "network as parsed"
    assert [(layer.type, layer.onnx_nodes) for layer in build.layers] == [("Activation", ("node_of_y",))]
    assert build.applied["profiling_verbosity"] == {"no_names": "NONE", "names": "LAYER_NAMES_ONLY"}[name]


def test_names_from_models_may_hold_anything(came: Mapping[str, Came]) -> None:
    build = came["hostile"].build
    assert [tensor.name for tensor in build.inputs] == [HOSTILE]
    assert build.layers_basis == "build log"
    assert [layer.inputs[0].name for layer in build.layers] == [HOSTILE]
    assert build.profiles[0].inputs[HOSTILE].opt == (1, 4)
    assert came["imitating"].build.inputs[0].name == IMITATING


def test_an_engine_is_the_same_bytes_again(came: Mapping[str, Came]) -> None:
    assert came["plain"].engine == came["again"].engine


def test_external_weights_are_read(came: Mapping[str, Came]) -> None:
    assert came["external"].build.memory.weights_bytes > 32 * 32 * 4


def test_marked_tensors_are_outputs_of_a_build_of_their_own(came: Mapping[str, Came]) -> None:
    """By patterns of nodes and of tensors; TensorRT itself computes shapes, so that their tensors are not there."""
    build, plain = came["marked"].build, came["plain"].build
    assert build.marked_outputs == ("Conv_0_out", "Relu_3_out", "Conv_4_out", "Conv_8_out", "Conv_20_out")
    assert [tensor.name for tensor in build.outputs] == ["y", *build.marked_outputs]
    assert plain.marked_outputs == ()
    assert came["marked"].engine != came["plain"].engine
    fused = [layer for layer in plain.layers if {"Conv_0", "Relu_3"} <= set(layer.onnx_nodes)]
    assert fused
    assert not [layer for layer in build.layers if {"Conv_0", "Relu_3"} <= set(layer.onnx_nodes)]
    assert any("5 tensors marked as outputs" in note for note in build.notes)
    assert any("1 selected tensor is not" in note and "Shape_23" in note for note in build.notes)
    assert "marked (Shape_23_out)" in came["marks_nothing"].error
    assert 'mark_outputs: "Conv_99" matches no' in came["marks_wrong"].error


# Shapes


def test_two_profiles_are_two_sets_of_kernels(came: Mapping[str, Came]) -> None:
    build, result = came["two_profiles"].build, came["plain"].build
    assert [profile.basis for profile in build.profiles] == ["profiles[0]", "profiles[1]"]
    assert build.profiles[1].inputs["x"] == ShapeRange(min=(4, 3, 16, 16), opt=(8, 3, 16, 16), max=(8, 3, 16, 16))
    assert build.applied["num_optimization_profiles"] == 2
    assert len(build.layers) > 1.9 * len(result.layers)


def test_a_lone_leading_wildcard_is_a_batch_of_one(came: Mapping[str, Came]) -> None:
    build = came["plain"].build
    assert [(profile.basis, profile.inputs["x"].max) for profile in build.profiles] == [
        ("inferred batch", (1, 3, 16, 16))
    ]
    assert any("batch" in note for note in build.notes)


def test_the_batch_setting_wins_over_the_recipes_shape(came: Mapping[str, Came]) -> None:
    build = came["batch"].build
    assert build.profiles[0].basis == "batch"
    assert build.profiles[0].inputs["x"] == ShapeRange(min=(1, 3, 16, 16), opt=(4, 3, 16, 16), max=(8, 3, 16, 16))


def test_the_recipes_inputs_are_a_profile(came: Mapping[str, Came]) -> None:
    build = came["inputs"].build
    assert build.profiles[0].basis == "inputs"
    assert build.profiles[0].inputs["ids"] == ShapeRange(min=(1, 4), opt=(1, 8), max=(2, 16))
    assert build.profiles[0].inputs["mask"] == ShapeRange(min=(1, 8), opt=(1, 8), max=(1, 8))


def test_a_shape_tensor_has_values(came: Mapping[str, Came]) -> None:
    given = came["shape_values"].build.profiles[0].inputs["shape"]
    assert given == ShapeRange(min=(1, 4), opt=(2, 4), max=(2, 4), values=True)


@pytest.mark.parametrize(
    ("name", "error", "facts"),
    [
        (
            "free",
            RequestError,
            ("x [batch, length] has dynamic dimensions", "mask [batch, length]", "profiles[0]", "x: {min: [1, 1]"),
        ),
        ("half_a_profile", RequestError, ("profiles[0] lacks shapes: mask [batch, length]",)),
        ("no_shape_values", RequestError, ("shape [2] is a shape tensor, whose values are missing",)),
        ("wrong_input", UnknownNameError, ('profiles[0]: "X"', 'did you mean "x"?')),
    ],
)
def test_missing_shapes_are_named(
    came: Mapping[str, Came], name: str, error: type[Exception], facts: tuple[str, ...]
) -> None:
    assert came[name].answer.error == error.__name__
    for words in facts:
        assert words in came[name].error


# Settings


def test_all_settings_are_applied_before_the_build(came: Mapping[str, Came]) -> None:
    build = came["everything"].build
    assert build.compute_capabilities == ("8.6",)
    assert set(build.flags) == {
        "SPARSE_WEIGHTS",
        "VERSION_COMPATIBLE",
        "EXCLUDE_LEAN_RUNTIME",
        "DIRECT_IO",
        "WEIGHT_STREAMING",
        "STRICT_NANS",
        "DISTRIBUTIVE_INDEPENDENCE",
        "DISABLE_COMPILATION_CACHE",
    }
    assert build.applied == {
        "avg_timing_iterations": 3,
        "build_route": "",
        "builder_optimization_level": 5,
        "compute_capabilities": ["SM86"],
        "engine_capability": "STANDARD",
        "l2_limit_for_tiling": 2 * 2**20,
        "max_aux_streams": 2,
        "max_num_tactics": 4,
        "max_threads": 2,
        "memory_pool_limits": {"WORKSPACE": 2**26, "TACTIC_DRAM": 2**36, "TACTIC_SHARED_MEMORY": 48 * 2**10},
        "num_optimization_profiles": 1,
        "parser_flags": ["NATIVE_INSTANCENORM"],
        "plugins_to_serialize": [],
        "preview_features": {"ALIASED_PLUGIN_IO_10_03": False, "RUNTIME_ACTIVATION_RESIZE_10_10": False},
        "profiling_verbosity": "DETAILED",
        "runtime_platform": "SAME_AS_BUILD",
        "tactic_sources": [],
        "tiling_optimization_level": "MODERATE",
    }


def test_tensor_formats_reach_the_engine(came: Mapping[str, Came]) -> None:
    plain, channels_last = came["plain"].build, came["everything"].build
    assert plain.layers[0].role == "reformat"
    assert channels_last.layers[0].role != "reformat", "the input comes as the first convolution wants it"


@pytest.mark.parametrize("level", range(5))
def test_every_optimization_level_builds(came: Mapping[str, Came], level: int) -> None:
    assert came[f"level_{level}"].build.applied["builder_optimization_level"] == level


def test_quantized_models_build(came: Mapping[str, Came]) -> None:
    assert came["int8"].build.layers
    assert came["fp8"].build.compute_capabilities == ("8.9", "12.0")


def test_types_that_the_gpu_lacks_are_reported_by_the_builder(came: Mapping[str, Came]) -> None:
    assert came["fp8_too_old"].answer.error == "BackendError"
    assert "compile for target(s) sm86" in came["fp8_too_old"].error
    assert "HW-specific datatypes: fp8_e4m3" in came["fp8_too_old"].error
    assert "/_src/" not in came["fp8_too_old"].error


def test_rtx_notes_that_it_keeps_no_timings(came: Mapping[str, Came]) -> None:
    use = came["plain"].build.timing_cache
    assert use is not None
    assert "no timings to keep" in use.note
    assert not (came["plain"].folder.parent.parent / "caches").exists()


def test_obeyed_precisions_are_casts_in_the_built_model(came: Mapping[str, Came]) -> None:
    constrained = came["constrained"]
    build = constrained.build
    assert build.typing == "strongly typed, constraints as Casts"
    assert [(constraint.node, constraint.precision) for constraint in build.constraints] == [("Conv_0", "fp16")]
    assert not build.constraints[0].outcome.startswith("ignored")
    assert (constrained.out / Engine.typed_model).is_file()
    assert any(tensor.dtype == "float16" for layer in build.layers for tensor in (*layer.inputs, *layer.outputs))
    assert {layer.asked_precision for layer in build.layers if "Conv_0" in layer.onnx_nodes} == {"fp16"}
    assert {layer.asked_precision for layer in build.layers if "Conv_0" not in layer.onnx_nodes} == {""}


def test_ignored_precisions_are_noted(came: Mapping[str, Came]) -> None:
    build = came["unheard"].build
    (constraint,) = build.constraints
    assert constraint.outcome.startswith("ignored: ") and "`typing: obey`" in constraint.outcome
    assert any("precision of 1 node" in note for note in build.notes)
    assert not (came["unheard"].out / Engine.typed_model).exists()


def test_an_impossible_precision_fails_the_build_unless_it_is_preferred(
    came: Mapping[str, Came],
) -> None:
    assert came["disobeyed"].answer.error == "RequestError"
    assert "`typing: obey`" in came["disobeyed"].error
    assert "int8 needs QuantizeLinear" in came["disobeyed"].error
    assert "'Conv_0'" in came["disobeyed"].error
    build = came["preferred"].build
    assert [constraint.is_ignored for constraint in build.constraints] == [True]
    assert len([note for note in build.notes if "int8 needs QuantizeLinear" in note]) == 1


# What cannot be built


@pytest.mark.parametrize(
    ("name", "error", "facts"),
    [
        ("broken_types", ModelError, ("node number 0 (Add)", "must have same input types", "Float and Half")),
        ("unknown", ModelError, ("node Magic_2 (Magic): TensorRT has no such operator", "`plugins`")),
        ("no_runner", BackendError, ("NonMaxSuppression_5",)),
        ("no_plugin", BackendError, ("plugin.so does not load", "file too short")),
        ("wrong_weights", RequestError, ('"no such" names no weights',)),
        ("strings", ModelError, ("cannot use this model: Failed to convert",)),
        ("too_large", BackendError, ("rejects these shapes", "x [1, 4]")),
        ("wrong_tensor", UnknownNameError, ('"X"', 'did you mean "x"?')),
    ],
)
def test_failed_builds_explain_the_reason(
    came: Mapping[str, Came], name: str, error: type[Exception], facts: tuple[str, ...]
) -> None:
    assert came[name].answer.error == error.__name__
    for words in facts:
        assert words in came[name].error


def test_unsupported_settings_are_refused_before_the_build(came: Mapping[str, Came]) -> None:
    assert came["refused"].answer.error == "BackendError"
    result = came["refused"].answer.message.splitlines()
    assert len(result) == 3
    assert "`fp16: true`" in result[0]
    assert not list(came["refused"].out.iterdir()), "nothing was begun"


# As a step, in a process of its own


@pytest.mark.thorough
def test_the_step_reports_summary_metrics_and_progress(tmp_path: Path) -> None:
    settings = {**RTX, "compute_capabilities": ["8.6", "8.9"]}
    ran = run_step(BuildEngine, make_cnn(tmp_path / "cnn.onnx"), tmp_path / "step", settings)
    build = read_document(Build, ran.out / Build.file_name)
    assert f"{build.engine_bytes / 1024:.0f} KiB engine for SM 8.6, 8.9" in ran.result.summary
    assert ran.result.summary.endswith(f": {len(build.layers)} layers, strongly typed")
    metrics = ran.result.metrics
    assert metrics["engine_bytes"] == build.engine_bytes
    assert metrics["layers"] == len(build.layers)
    assert {"build_s", "parse_s", "memory.activation_bytes", "memory.build_peak_bytes"} <= set(metrics)
    assert "parsing the model" in [what for _, _, what in ran.told]
    assert any(what.startswith("building: ") for _, _, what in ran.told)


@pytest.mark.thorough
def test_ignored_constraints_are_in_the_steps_own_line(tmp_path: Path) -> None:
    model = constrain(make_cnn(tmp_path / "cnn.onnx"), Conv_0="int8")
    ran = run_step(BuildEngine, model, tmp_path / "step", {**RTX, "typing": "prefer"})
    assert ran.result.summary.endswith(", 1 of 1 constraints ignored")


def test_where_an_engine_may_be_used_again() -> None:
    assert BuildEngine(backend="tensorrt_rtx").reused_where() is Reuse.ANYWHERE
    assert BuildEngine(backend="tensorrt_rtx").used_input(InputSpec()) is not None
    setting = ShapeSetting(min=(1,), opt=(1,), max=(1,))
    silent = BuildEngine(backend="tensorrt_rtx", profiles=({"x": setting},))
    assert silent.used_input(InputSpec()) is None, "profiles say all shapes"
    assert BuildEngine(backend="tensorrt_rtx").device == ""
    assert BuildEngine(backend="tensorrt").reused_where() is Reuse.THIS_MACHINE
    assert BuildEngine(backend="tensorrt", gpu=1).device == "gpu-1"
    assert BuildEngine(backend="tensorrt_rtx").library_versions()["tensorrt_rtx"]


def test_a_missing_release_is_reported(tmp_path: Path, check_message: CheckMessage) -> None:
    asked = Asked(make_cnn(tmp_path / "cnn.onnx"), {**RTX, "release": "1.2"})
    with pytest.raises(BackendError) as caught:
        build_engine(asked.request(tmp_path / "build"), lambda *_: None)
    check_message(caught.value)


@pytest.mark.thorough
def test_the_log_of_a_build_that_failed_is_kept(tmp_path: Path) -> None:
    asked = Asked(write_model(tmp_path / "types.onnx", BROKEN_TYPES), RTX)
    with pytest.raises(ModelError) as raised:
        build_engine(asked.request(tmp_path / "build"), lambda *_: None)
    kept = tmp_path / "build/caches/build-logs/a-model.log"
    assert str(raised.value).endswith(f" The builder's log is {kept}.")
    assert "same input types" in kept.read_text()


class Watched(subprocess.Popen[bytes]):
    """Remembers the process that was started last."""

    last: Watched

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        Watched.last = self


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(launch.subprocess, "Popen", Watched)  # type: ignore[attr-defined]
    return Watched


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_a_crash_is_one_paragraph(tmp_path: Path, watched: type[Watched]) -> None:
    def crash(done: int, total: int, what: str) -> None:
        if what.startswith("building"):
            watched.last.send_signal(signal.SIGSEGV)

    asked = Asked(
        save(tfm_model(layers=3), tmp_path / "m.onnx"), RTX, {"ids": {"shape": [1, 8]}, "mask": {"shape": [1, 8]}}
    )
    with pytest.raises(KilledError) as raised:
        build_engine(asked.request(tmp_path / "build"), crash)
    assert "SIGSEGV while building" in str(raised.value)
    assert "Last output: [" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "[INFO] " in (tmp_path / "build/out" / Engine.log).read_text(), "the log tells how far it was"


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_ctrl_c_ends_the_builder_too(tmp_path: Path, watched: type[Watched]) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(Asked(make_cnn(tmp_path / "cnn.onnx"), RTX).request(tmp_path / "build"), interrupt)
    assert watched.last.returncode == -signal.SIGKILL


def test_the_builder_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    asked = Asked(
        save(tfm_model(layers=8), tmp_path / "m.onnx"), RTX, {"ids": {"shape": [1, 8]}, "mask": {"shape": [1, 8]}}
    )
    asked.request(tmp_path / "build").write(tmp_path)
    code = (
        "import os, sys, subprocess, time\n"
        "from pathlib import Path\n"
        "from ndld_flow.engines.building import BuildRequest, build_engine\n"
        "def tell(*_):\n"
        "    print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read(), flush=True)\n"
        "    time.sleep(60)\n"
        "build_engine(BuildRequest.read(Path(sys.argv[1])), tell)\n"
    )
    if not Path("/proc/self/task").exists():
        pytest.skip("looks at processes in /proc")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    builder = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 60
    while _is_running(builder) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _is_running(builder)
    assert not list((tmp_path / "build/scratch").glob("*/answer.json")), "it was ended, and had not finished"


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB; skips where it cannot be mounted (not root, no Linux)."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here (needs root on Linux)")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


@pytest.mark.thorough
def test_a_full_disk_is_the_systems_error(tmp_path: Path, small_disk: Path, check_message: CheckMessage) -> None:
    asked = Asked(make_cnn(tmp_path / "cnn.onnx"), RTX)
    request = asked.request(small_disk / "build")
    with pytest.raises(OSError) as caught:
        build_engine(request, lambda *_: None)
    check_message(caught.value)


@pytest.mark.thorough
def test_concurrent_builds_do_not_interfere(tmp_path: Path) -> None:
    asked = Asked(make_cnn(tmp_path / "cnn.onnx"), RTX)
    requests = [asked.request(tmp_path / name, tmp_path / "caches") for name in ("a", "b")]
    threads = [threading.Thread(target=build_engine, args=(request, lambda *_: None)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = ((request.out / Engine.main).read_bytes() for request in requests)
    assert first == second
