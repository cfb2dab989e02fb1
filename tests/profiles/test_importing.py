"""Profiles that other tools wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_tensorrt
from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.read import sources
from ndld_flow.profiles.read.engine_layers import nodes_of_metadata, nodes_of_name
from ndld_flow.profiles.read.read_profile import read_profile, recognize
from ndld_flow.profiles.read.sources import parse_json
from ndld_flow.profiles.read.trtexec_files import read_layer_times
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, ProfileRun
from tests.support import trtexec_exports as trt
from tests.support.a100_exports import a100_exports
from tests.support.message_files import CheckMessage


def printed(value: float) -> str:
    """Format a float as C++ does, with six significant digits."""
    return f"{value:.6g}"


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_a100_summary_matches_trtexec(precision: str) -> None:
    profile = read_profile(a100_exports() / precision)
    metadata = next((a100_exports() / precision).glob("*.profile.metadata.json"))
    exported = json.loads(metadata.read_text())["performance_summary"]
    run, summary = profile.runs[0], profile.latency
    ours = [summary.min_ms, summary.max_ms, summary.mean_ms, summary.median_ms, summary.p99_ms]
    assert [printed(value) for value in ours] == [printed(value) for value in exported["Latency"]]
    assert [printed(value) for value in ours] == [printed(value) for value in exported["GPU Compute Time"]]
    # trtexec adds up in single precision.
    assert sum(run.compute_ms) / 1e3 == pytest.approx(exported["Total GPU Compute Time"], rel=5e-6)
    # trtexec's throughput is passes over the time from the first copy's begin to the last one's end.
    wall_ms = run.starts_ms[-1] + run.latency_ms[-1]
    assert len(run.latency_ms) / wall_ms * 1e3 == pytest.approx(exported["Throughput"], rel=1e-5)
    assert profile.latency.throughput_per_s == pytest.approx(exported["Throughput"], rel=0.01)
    assert any(str(exported["Throughput"]) in note for note in profile.notes)
    # An enqueue takes 5 µs and is exported to 10 µs: a median of such numbers would be wrong by half.
    assert run.enqueue_ms == ()
    assert f"enqueue took {exported['Enqueue Time'][3]:g} ms (median)" in str(profile.notes)


@pytest.mark.parametrize(("precision", "layers", "warmup"), [("fp32", 32, 100), ("fp16", 36, 230)])
def test_all_layers_of_the_a100_are_imported(precision: str, layers: int, warmup: int) -> None:
    folder = a100_exports() / precision
    profile = read_profile(folder)
    rows = json.loads(next(folder.glob("*.engine.profile.json")).read_text())[1:]
    assert recognize(folder) == "trex"
    assert [(layer.name, layer.samples_ms) for layer in profile.layers] == [
        (row["name"], (row["medianMs"],)) for row in rows
    ]
    assert profile.layers_sum_ms == pytest.approx(sum(row["timeMs"] for row in rows))
    assert len(profile.layers) == layers
    assert profile.warmup_passes == warmup
    assert profile.machine.gpus == ("NVIDIA A100 80GB PCIe",)
    assert (profile.label, profile.backend, profile.versions) == (precision, "tensorrt", {"cuda": "11.6"})
    assert [(item.name, item.dtype, item.shape) for item in profile.inputs] == [
        ("input.1", "float32", (32, 3, 224, 224))
    ]
    assert [(output.name, output.dtype, output.shape) for output in profile.outputs] == [("191", "float32", (32, 1000))]
    first = next(layer for layer in profile.layers if layer.name == "Conv_0 + Relu_1")
    assert first.onnx_nodes == ("Conv_0", "Relu_1")
    assert first.precision == ("float16" if precision == "fp16" else "float32")
    assert first.macs == 32 * 112 * 112 * 64 * 3 * 7 * 7
    # ResNet-18 takes 1.82 G multiply-accumulates an image.
    assert sum(layer.macs or 0 for layer in profile.layers) / 32 == pytest.approx(1.82e9, rel=0.01)
    assert sum(layer.role == "reformat" for layer in profile.layers) == sum(
        row["name"].startswith("Reformatting") for row in rows
    )


def test_one_file_selects_its_folder() -> None:
    whole = read_profile(a100_exports() / "fp16")
    for file in sorted((a100_exports() / "fp16").iterdir()):
        profile = read_profile(file)
        assert profile.label == "resnet"
        assert profile.model_copy(update={"label": whole.label}) == whole


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """A folder with everything that trtexec 10 writes."""
    engine = trt.small_engine()
    return trt.write_exports(
        tmp_path / "cnn",
        times=trt.times(trt.latencies(200)),
        profile=trt.layer_times(engine),
        layers=trt.layer_info(engine),
        log=trt.log(),
    )


def test_a_folder_of_trtexec_is_imported(exports: Path) -> None:
    profile = read_profile(exports)
    assert recognize(exports) == "trtexec"
    assert (profile.label, profile.backend, profile.versions) == ("cnn", "tensorrt", {"tensorrt": "10.5.0"})
    assert profile.machine.gpus == ("NVIDIA L4",)
    assert profile.latency_ms == tuple(trt.latencies(200))
    run = profile.runs[0]
    assert set(run.h2d_ms) == set(run.d2h_ms) == {0.01}
    assert run.compute_ms[0] == pytest.approx(run.latency_ms[0] - 0.02)
    assert run.starts_ms[0] == 0
    assert len(run.enqueue_ms) == len(run.starts_ms) == 200
    assert profile.options["build_options"] == {"Precision": "FP32+FP16", "Input(s)s format": "fp32:CHW"}
    assert profile.conditions["started_local_time"] == "10/01/2024-13:21:44"
    assert "reporting_options" not in profile.options  # where exports go says nothing about the measurement
    assert Profile.model_validate_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("separate", "reporting", "has_layers", "expected"),
    [
        ("Disabled", "Profile: Enabled", False, "on"),
        ("Disabled", "Export profile to JSON file: p.json", False, "on"),
        ("Disabled", "Profile: Disabled", False, "off"),
        ("Enabled", "Profile: Enabled", True, "off"),
        ("", "Profile: Enabled", True, ""),
    ],
)
def test_the_log_shows_whether_the_profiler_was_active(
    tmp_path: Path, separate: str, reporting: str, has_layers: bool, expected: str
) -> None:
    log = trt.log().replace("Data transfers: Enabled", f"Separate profiling: {separate}" if separate else "Spin: off")
    log = log.replace("Export timing to JSON file: times.json", reporting)
    layers = {"profile": trt.layer_times(trt.small_engine())} if has_layers else {}
    profile = read_profile(trt.write_exports(tmp_path / "cnn", times=trt.times([1.0, 1.1]), log=log, **layers))
    assert profile.profiler == expected


def test_layers_of_a_detailed_engine_are_imported(exports: Path) -> None:
    reformat, conv, pool, gemm = read_profile(exports).layers
    assert (reformat.role, reformat.onnx_nodes) == ("reformat", ())
    assert conv.onnx_nodes == ("/conv/Conv", "/act/Relu")
    assert (conv.precision, conv.tactic, conv.stream) == ("float16", "sm80_xmma_fprop", 0)
    assert (conv.weight_bytes, conv.macs) == (448 * 2, 2 * 16 * 8 * 8 * 3 * 3 * 3)
    assert (conv.read_bytes, conv.written_bytes) == (2 * 3 * 64 * 2 + 896, 2 * 16 * 64 * 2)
    assert (pool.macs, pool.tactic, pool.stream) == (None, "0xfffffffffffffffe", 1)
    assert (gemm.macs, gemm.tactic, gemm.onnx_nodes) == (2 * 10 * 256, "", ("/fc/Gemm",))


def test_the_timeline_has_the_median_pass_and_the_layers(exports: Path) -> None:
    profile = read_profile(exports)
    lanes = {span.lane for span in profile.timeline}
    assert lanes == {"enqueue", "H2D", "compute", "D2H", "stream 0", "stream 1", "GPU"}
    at = {span.lane: span for span in profile.timeline if span.layer is None}
    assert min(span.start_ms for span in profile.timeline) == 0
    assert at["H2D"].start_ms == pytest.approx(0.5)
    assert sum(at[lane].duration_ms for lane in ("H2D", "compute", "D2H")) == pytest.approx(
        profile.latency.median_ms, rel=1e-3
    )
    layers = [span for span in profile.timeline if span.layer is not None]
    assert [span.layer for span in layers] == [0, 1, 2, 3]
    assert layers[0].start_ms == pytest.approx(at["compute"].start_ms)
    assert layers[2].start_ms == pytest.approx(layers[1].start_ms + layers[1].duration_ms)
    assert "end to end" in profile.timeline_basis


def test_tensors_of_tensorrt_11_are_read(tmp_path: Path) -> None:
    engine = trt.small_engine(split=True)
    folder = trt.write_exports(tmp_path / "e", a=trt.layer_info_11(engine), b=trt.layer_times(engine))
    profile = read_profile(folder)
    assert [layer.precision for layer in profile.layers] == [
        "float32 to float16",
        "float16",
        "float16",
        "float16",
    ]
    assert profile.layers[3].output_precision == "float32"
    # The inspector writes -1 for a free dimension; the layers know what it was.
    assert [(item.name, item.dtype, item.shape) for item in profile.inputs] == [("x", "float32", (2, 3, 8, 8))]
    assert [(output.name, output.shape) for output in profile.outputs] == [("y", (2, 10))]
    assert profile.runs == ()


def test_an_engine_without_details_is_imported(tmp_path: Path) -> None:
    engine = trt.small_engine()
    folder = trt.write_exports(tmp_path, info=trt.layer_info(engine, detailed=False), prof=trt.layer_times(engine))
    profile = read_profile(folder)
    assert [layer.name for layer in profile.layers] == [item.name for item in engine]
    assert [layer.role for layer in profile.layers] == ["reformat", "compute", "compute", "compute"]
    assert profile.layers[1].onnx_nodes == ("/conv/Conv", "/act/Relu")
    assert any("--profilingVerbosity=detailed" in note for note in profile.notes)


def test_a_log_alone_gives_the_median(tmp_path: Path) -> None:
    folder = trt.write_exports(tmp_path / "run", log=trt.log())
    profile = read_profile(folder)
    assert profile.latency_ms == (1.01,)
    assert profile.runs[0].compute_ms == (0.99,)
    assert [(item.name, item.shape) for item in (*profile.inputs, *profile.outputs)] == [
        ("x", (2, 3, 8, 8)),
        ("y", (2, 10)),
    ]
    assert any("percentile(90%) 1.02 ms" in note for note in profile.notes)


def test_a_log_in_utf_16_from_powershell_is_read(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.write_text(trt.log(), encoding="utf-16")
    assert read_profile(file).latency_ms == (1.01,)


def test_a_log_of_tensorrt_rtx_is_recognized(tmp_path: Path) -> None:
    profile = read_profile(trt.write_exports(tmp_path, log=trt.log(version="1.2.0", rtx=True)))
    assert (profile.backend, profile.versions) == ("tensorrt_rtx", {"tensorrt-rtx": "1.2.0"})


@pytest.mark.parametrize(("number", "version"), [("8601", "8.6.1"), ("100300", "10.3.0"), ("10.3.0", "10.3.0")])
def test_versions_are_written_with_dots(tmp_path: Path, number: str, version: str) -> None:
    profile = read_profile(trt.write_exports(tmp_path, log=trt.log(version=number)))
    assert profile.versions == {"tensorrt": version}


def test_times_alone_are_imported(tmp_path: Path) -> None:
    profile = read_profile(trt.write_exports(tmp_path / "only", x=trt.times([1.0, 3.0, 2.0])))
    assert profile.latency_ms == (1.0, 3.0, 2.0)
    assert profile.layers == ()
    assert profile.layers_sum_ms == 0
    assert profile.label == "only"


@pytest.mark.parametrize(("log", "kept"), [(None, 80), (trt.log(warmup=50), 95), (trt.log(warmup=0), 100)])
def test_warm_up_passes_of_old_exports_are_recognized(tmp_path: Path, log: str | None, kept: int) -> None:
    texts = {"times": trt.times([10.0] * 100, start=0.0), **({} if log is None else {"log": log})}
    profile = read_profile(trt.write_exports(tmp_path, **texts))
    assert len(profile.latency_ms) == kept
    assert profile.warmup_passes == 100 - kept
    assert any("default" in note for note in profile.notes) == (log is None)


def test_files_of_different_measurements_are_reported(tmp_path: Path) -> None:
    profile = read_profile(trt.write_exports(tmp_path, times=trt.times([5.0] * 9), log=trt.log()))
    assert any("do they belong" in note for note in profile.notes)


def test_repeated_names_are_joined_in_order(tmp_path: Path) -> None:
    twice = [
        trt.EngineLayer("same", 0.1, {"LayerType": "first", "Inputs": [], "Outputs": []}),
        trt.EngineLayer("same", 0.2, {"LayerType": "second", "Inputs": [], "Outputs": []}),
    ]
    lonely = trt.EngineLayer("never timed", 0.0, {"LayerType": "third", "Inputs": [], "Outputs": []})
    unlisted = trt.EngineLayer("Reformatting CopyNode for Input Tensor 0 to same", 0.3)
    folder = trt.write_exports(
        tmp_path, layers=trt.layer_info([*twice, lonely]), profile=trt.layer_times([*twice, unlisted])
    )
    profile = read_profile(folder)
    assert [(layer.type, layer.samples_ms) for layer in profile.layers] == [
        ("first", (0.1,)),
        ("second", (0.2,)),
        ("Reformat", (0.3,)),
        ("third", (0.0,)),
    ]
    assert any("1 layers of the engine" in note for note in profile.notes)


def write_layer_times(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(rows))
    return path


def test_incomplete_rows_of_layer_times_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    times = read_layer_times(
        write_layer_times(
            tmp_path,
            {"count": 4},
            {"name": "median", "timeMs": 8.0, "averageMs": 2.0, "medianMs": 1.5},
            {"name": "", "timeMs": 8.0},
            {"timeMs": 8.0},
            {"name": "no time"},
            {"name": "negative", "medianMs": -0.5},
            {"name": "text", "medianMs": "fast"},
            {"name": "zero", "medianMs": 0.0, "averageMs": 1.0},
            {"name": "mean", "timeMs": 8.0, "averageMs": 2.5},
            {"name": "sum", "timeMs": 8.0},
            {"name": "layer with a count", "timeMs": 4.0, "count": 9},
        )
    )
    assert [(row.name, row.ms) for row in times.rows] == [
        ("median", 1.5),
        ("zero", 0.0),
        ("mean", 2.5),
        ("sum", 2.0),
        ("layer with a count", 1.0),
    ]
    assert (times.pass_count, times.are_medians, times.unreadable) == (4, True, 5)


@pytest.mark.parametrize("count", [0, -3, "many", None, 1e400, 1.5])
def test_an_invalid_count_leaves_sums_undivided(tmp_path: Path, count: object) -> None:
    times = read_layer_times(write_layer_times(tmp_path, {"count": count}, {"name": "a", "timeMs": 8.0}))
    assert [row.ms for row in times.rows] == [8.0]
    assert times.pass_count == 0
    assert not times.are_medians


def test_the_largest_count_of_several_holds(tmp_path: Path) -> None:
    heads = ({"count": 2}, {"count": 8}, {"count": 4})
    times = read_layer_times(write_layer_times(tmp_path, *heads, {"name": "a", "timeMs": 8.0}))
    assert ([row.ms for row in times.rows], times.pass_count) == ([1.0], 8)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": nan, "b": -inf, "c": true, "d": NaN}', {"a": None, "b": None, "c": True, "d": None}),
        ('{"a": "x\x1ey", "b": "c: nan"}', {"a": "x\x1ey", "b": "c: nan"}),
        ('{"a": nan, "b": "c: nan"}', {"a": None, "b": "c: nan"}),
    ],
)
def test_json_of_trtexec_is_read(text: str, value: object) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": nan, "b": ' + "[" * 5_000, "", "nothing", '"text"', "[1, 2"])
def test_unsupported_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|not JSON"):
        parse_json(text)


def test_impossible_numbers_are_dropped(tmp_path: Path) -> None:
    text = trt.times([1.0, 2.0, 3.0]).replace('"latencyMs" : 2 ', f'"latencyMs" : {"9" * 5_000} ')
    profile = read_profile(trt.write_exports(tmp_path, times=text))
    text = text.replace('"latencyMs" : 3 ', '"latencyMs" : 0 ')
    (tmp_path / "times.json").write_text(text)
    assert read_profile(tmp_path).latency_ms == (1.0,)
    assert profile.latency_ms == (1.0, 3.0)
    assert "1 passes of --exportTimes could" in str(profile.notes)


def test_unencodable_names_are_replaced(tmp_path: Path) -> None:
    """JSON may escape half a character of UTF-16."""
    rows = json.dumps(
        [{"count": 1}, {"name": "a\ud800b", "averageMs": 1.0}, {"name": "\ud83d\udd25", "averageMs": 2.0}]
    )
    profile = read_profile(trt.write_exports(tmp_path, profile=rows))
    assert [layer.name for layer in profile.layers] == ["a\ufffdb", "🔥"]
    assert Profile.model_validate_json(profile.to_json()) == profile


def test_a_convolution_fused_with_its_pooling_is_imported(tmp_path: Path) -> None:
    """The first layer of a quantized ResNet, as TensorRT 8 describes it."""
    info = {
        "LayerType": "ConvActPool",
        "Inputs": [trt.tensor("x", (32, 3, 224, 224), "Row major Int8 format")],
        "Outputs": [trt.tensor("y", (32, 64, 56, 56), "Thirty-two wide channel vectorized row major Int8 format")],
        "ParameterType": "ConvActPool",
        "ConvParameterType": "Convolution",
        "ConvKernel": [7, 7],
        "ConvPrePadding": [3, 3],
        "ConvPostPadding": [3, 3],
        "ConvStride": [2, 2],
        "ConvDilation": [1, 1],
        "ConvOutMaps": 64,
        "ConvGroups": 1,
        "ConvWeights": {"Type": "Int8", "Count": 9408},
        "ConvBias": {"Type": "Float", "Count": 64},
        "PoolingStride": [2, 2],
    }
    name = "conv1.weight + QuantizeLinear_7 + Conv_9 + MaxPool_12"
    folder = trt.write_exports(tmp_path, layers=trt.layer_info([trt.EngineLayer(name, 1.0, info)]))
    layer = read_profile(folder).layers[0]
    assert layer.macs == 32 * 64 * 112 * 112 * 3 * 7 * 7
    assert layer.weight_bytes == 9408 + 4 * 64
    assert layer.onnx_nodes == ("QuantizeLinear_7", "Conv_9", "MaxPool_12")
    assert layer.precision == "int8"


def test_quantization_that_runs_as_a_reformat_keeps_its_node(tmp_path: Path) -> None:
    info = {
        "LayerType": "Reformat",
        "Inputs": [trt.tensor("x", (1, 3), "Row major linear FP32")],
        "Outputs": [trt.tensor("y", (1, 3), "Row major Int8 format")],
        "Origin": "QDQ",
    }
    folder = trt.write_exports(tmp_path, layers=trt.layer_info([trt.EngineLayer("QuantizeLinear_2", 1.0, info)]))
    layer = read_profile(folder).layers[0]
    assert (layer.role, layer.onnx_nodes) == ("quantize", ("QuantizeLinear_2",))


@pytest.mark.parametrize("before", ["# ", "2024-10-01T13:21:44.1234567Z ", "2024-10-01 | INFO | Exporter | "])
def test_logs_wrapped_by_other_programs_are_read(tmp_path: Path, before: str) -> None:
    text = "".join(f"{before}{line}\n" for line in trt.log().splitlines())
    profile = read_profile(trt.write_exports(tmp_path, log=text))
    plain = read_profile(trt.write_exports(tmp_path / tmp_path.name, log=trt.log()))
    assert profile == plain


@pytest.mark.parametrize(
    ("kind", "groups", "macs"),
    # [2, 4, 8, 8] -> [2, 6, 8, 8] with windows of 3 by 3.
    [
        ("Convolution", 1, 2 * 6 * 64 * 4 * 9),
        ("Convolution", 2, 2 * 6 * 64 * 2 * 9),
        ("Deconvolution", 2, 2 * 4 * 64 * 3 * 9),
    ],
)
def test_operations_of_grouped_and_transposed_convolutions_are_counted(
    tmp_path: Path, kind: str, groups: int, macs: int
) -> None:
    info = {
        "LayerType": "CaskConvolution",
        "ParameterType": kind,
        "Kernel": [3, 3],
        "OutMaps": 6,
        "Groups": groups,
        "Inputs": [trt.tensor("x", (2, 4, 8, 8), "Half")],
        "Outputs": [trt.tensor("y", (2, 6, 8, 8), "Half")],
    }
    folder = trt.write_exports(tmp_path, layers=trt.layer_info([trt.EngineLayer("c", 1.0, info)]))
    assert read_profile(folder).layers[0].macs == macs


@pytest.mark.parametrize(("width", "macs"), [(10**9 // 72, 10**9 // 72 * 10**9 * 72), (10**9 // 72 + 1, None)])
def test_absurd_counts_of_operations_are_unknown(tmp_path: Path, width: int, macs: int | None) -> None:
    """More than 10^18 operations in one layer are no measurement but an invented shape."""
    info = {
        "LayerType": "CaskConvolution",
        "ParameterType": "Convolution",
        "Kernel": [3, 3],
        "OutMaps": 2,
        "Inputs": [trt.tensor("x", (1, 4, width, 10**9), "Half")],
        "Outputs": [trt.tensor("y", (1, 2, width, 10**9), "Half")],
    }
    folder = trt.write_exports(tmp_path, layers=trt.layer_info([trt.EngineLayer("c", 1.0, info)]))
    assert read_profile(folder).layers[0].macs == macs


def test_a_broken_file_loses_only_its_own_contents(exports: Path) -> None:
    (exports / "layers.json").write_text('{"Bindings": [], "Layers": ' + "[" * 1_000, encoding="utf-8")
    profile = read_profile(exports)
    assert len(profile.layers) == 4
    assert any("layers.json could not" in note for note in profile.notes)


def test_several_models_in_one_folder_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    for name in ("alpha", "beta"):
        engine = trt.small_engine()
        texts = {f"{name}.engine.timing": trt.times([1.0]), f"{name}.engine.profile": trt.layer_times(engine)}
        trt.write_exports(tmp_path, **texts)
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path)
    check_message(caught.value)
    profile = read_profile(tmp_path / "beta.engine.timing.json")
    assert (profile.label, len(profile.layers)) == ("beta", 4)
    assert profile.notes[0] == "read from beta.engine.profile.json, beta.engine.timing.json"


def test_several_exports_of_one_kind_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    trt.write_exports(tmp_path, times=trt.times([1.0]), timing=trt.times([2.0]), profile=trt.layer_times([]))
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path)
    check_message(caught.value)
    assert read_profile(tmp_path / "timing.json").latency_ms == (2.0,)


def own_profile(**changes: Any) -> Profile:
    machine = Machine(system="Linux", architecture="x86_64", cpu="", cpu_count=1, memory_bytes=1)
    fields: dict[str, Any] = {
        "label": "source",
        "model_digest": "d",
        "backend": "onnxruntime",
        "machine": machine,
        "versions": {},
        "options": {},
        "inputs": (),
        "outputs": (),
        "warmup_passes": 0,
        "warmup_ms": 0.0,
        "runs": (ProfileRun(latency_ms=(1.0, 2.0)),),
        "layers": (Layer(index=0, name="a", type="Conv", samples_ms=(1.0, 1.0)),),
        "layer_runs": (2,),
    }
    return Profile(**{**fields, **changes})


def test_our_profile_is_read_alone_or_in_the_folder_of_a_step(tmp_path: Path) -> None:
    profile = own_profile()
    (tmp_path / "profile.json").write_text(profile.to_json())
    trt.write_exports(tmp_path, times=trt.times([1.0]))
    assert read_profile(tmp_path) == read_profile(tmp_path / "profile.json") == profile
    assert recognize(tmp_path) == recognize(tmp_path / "profile.json") == "profile"


def test_a_damaged_profile_of_ours_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    uneven = (own_profile().layers[0], Layer(index=1, name="b", type="Conv", samples_ms=(1.0,)))
    cases = {
        own_profile(layers=uneven).to_json(): "different numbers of samples",
        own_profile(layer_runs=(3,)).to_json(): "different numbers of samples",
        own_profile(runs=(ProfileRun(latency_ms=()),)).to_json(): "has no samples",
        own_profile().to_json().replace('"format_version": 8', '"format_version": 9'): "its format is 9",
        own_profile().to_json().replace('"label": "source"', '"label": 3'): "label: Input should be a valid string",
        own_profile().to_json()[:-40]: "is not a profile that this version reads",
    }
    for text, words in cases.items():
        file.write_text(text)
        with pytest.raises(RequestError, match=re.escape(words)):
            read_profile(file)


def test_files_that_are_no_profile_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    for text in ("", "hello", "{}", "[]", '{"Layers": "are words"}', '{"nodes": []}'):
        (tmp_path / "x.json").write_text(text)
        assert recognize(tmp_path / "x.json") is None
        with pytest.raises(RequestError) as caught:
            read_profile(tmp_path / "x.json")
        check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path)
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path / "missing")
    check_message(caught.value)


def test_an_export_without_measurements_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    text = trt.log()
    folder = trt.write_exports(tmp_path, log=text[: text.index("Performance") + 20], times='[ { "latencyMs" : 0 } ]')
    with pytest.raises(RequestError) as caught:
        read_profile(folder)
    check_message(caught.value)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("Conv_0 + Relu_1", ("Conv_0", "Relu_1")),
        ("PWN(Sigmoid_3, Mul_4)", ("Sigmoid_3", "Mul_4")),
        ("PWN(PWN(/a/Sigmoid), PWN(/a/Mul))", ("/a/Sigmoid", "/a/Mul")),
        ("Conv_5 + PWN(Relu_6)", ("Conv_5", "Relu_6")),
        ("Conv_5 || Conv_7", ("Conv_5", "Conv_7")),
        ("{ForeignNode[/enc/Add.../dec/Softmax]}", ("/enc/Add", "/dec/Softmax")),
        ("Reformatting CopyNode for Output Tensor 0 to Conv_3 + Relu_4", ()),
        ("reshape_after_Gemm_48", ()),
        ("(Unnamed Layer* 13) [Shuffle] + MatMul_9", ("MatMul_9",)),
        ("onnx::MatMul_12 + (Unnamed Layer* 5) [Shuffle]", ()),
        ("__myl_FcAddRelu_myl0_3", ()),
        ("", ()),
    ],
)
def test_nodes_are_read_from_names(name: str, nodes: tuple[str, ...]) -> None:
    assert nodes_of_name(name) == nodes


def test_nodes_are_read_from_metadata() -> None:
    assert nodes_of_metadata("[ONNX Layer: a]\x1e[ONNX Layer: b[0]]\x1f[ONNX Layer: a][ONNX Layer: c]") == (
        "a",
        "b[0]",
        "c",
    )
    assert nodes_of_metadata("nothing") == ()


@pytest.mark.parametrize(
    ("text", "dtype", "bits"),
    [
        ("Row major linear FP32", "float32", 32),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8", 8),
        ("kHALF", "float16", 16),
        ("Float", "float32", 32),
        ("BFloat16", "bfloat16", 16),
        ("FP8", "float8_e4m3fn", 8),
        ("INT4", "int4", 4),
        ("N/A due to dynamic shapes", "", None),
    ],
)
def test_element_types_are_read(text: str, dtype: str, bits: int | None) -> None:
    assert dtype_of_tensorrt(text) == dtype
    assert bits_of_dtype(dtype) == bits


GOOD = {
    "times": trt.times(trt.latencies(12)),
    "profile": trt.layer_times(trt.small_engine()),
    "layers": trt.layer_info(trt.small_engine()),
    "eleven": trt.layer_info_11(trt.small_engine(split=True)),
    "log": trt.log(),
    "own": own_profile().to_json(),
}


def read_or_refuse(path: Path) -> Profile | None:
    """Read any contents: only a RequestError may be raised, and a profile must be writable."""
    try:
        profile = read_profile(path)
    except RequestError as error:
        assert len(str(error)) < 2_000
        return None
    assert profile.layers_sum_ms >= 0
    return Profile.model_validate_json(profile.to_json())


@pytest.mark.representatives("own", "profile")
@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_and_noisy_files_are_read_or_refused(tmp_path: Path, name: str, data: st.DataObject) -> None:
    text = GOOD[name]
    cut = data.draw(st.integers(0, len(text)))
    noise = data.draw(
        st.text(max_size=8) | st.sampled_from(['"', "\\", "\x1e", "[", "}", "NaN", "1e999", '\\"}', "\ud800"])
    )
    at = data.draw(st.integers(0, len(text)))
    file = tmp_path / "file.json"
    for changed in (text[:cut], text[:at] + noise + text[at:]):
        file.write_bytes(changed.encode("utf-8", "surrogatepass"))
        read_or_refuse(file)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=st.sampled_from(
        ['{"Layers":[', '[{"latencyMs":', '[{"timeMs":', '{"model_digest":"backend runs"', "&&&& RUNNING T"]
    ),
    rest=st.binary(max_size=200),
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, head: str, rest: bytes) -> None:
    file = tmp_path / "file.json"
    for raw in (rest, head.encode() + rest):
        file.write_bytes(raw)
        read_or_refuse(file)


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    (
        "Name",
        "LayerType",
        "Inputs",
        "Outputs",
        "Dimensions",
        "Format/Datatype",
        "Weights",
        "Kernel",
        "OutMaps",
        "Groups",
        "ParameterType",
        "Metadata",
        "StreamId",
        "TacticValue",
        "IOMode",
        "name",
        "timeMs",
        "medianMs",
        "count",
    )
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=st.lists(st.dictionaries(KEYS, VALUES, max_size=6) | VALUES, max_size=4), bound=VALUES)
def test_unexpected_values_are_read_or_refused(tmp_path: Path, layers: list[Any], bound: Any) -> None:
    engine = {"Layers": layers, "Bindings": bound, "I/O Tensors": bound}
    (tmp_path / "layers.json").write_text(json.dumps(engine))
    (tmp_path / "profile.json").write_text('[ {"averageMs" : 1, "name" : "kept"}, ' + json.dumps(layers)[1:])
    profile = read_or_refuse(tmp_path)
    assert profile is None or any(layer.name == "kept" for layer in profile.layers)


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_WHOLE_BYTES", 4)
    (tmp_path / "log.txt").write_text("four")
    assert sources.read_whole(tmp_path / "log.txt") == "four"
    (tmp_path / "log.txt").write_text("fiver")
    with pytest.raises(RequestError, match=r"log\.txt"):
        sources.read_whole(tmp_path / "log.txt")
