"""The layer pass: times that add up, the work of layers, their kernels, and the timeline."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.profiles.read import onnxruntime_profile as onnxruntime_timeline
from ndld_flow.profiles.read.onnxruntime_profile import read_one_pass, read_passes
from ndld_flow.records.profile import Layer
from ndld_flow.runtimes.onnxruntime import layer_recording
from ndld_flow.runtimes.onnxruntime import request as onnxruntime_request
from ndld_flow.runtimes.onnxruntime.layer_pass import count_events, read_layers
from ndld_flow.runtimes.onnxruntime.layer_recording import OPTIMIZED, WARMUP_PASSES, record_layers
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.protocol import LayerPass, RecordingPlan
from tests.support.layer_passes import measure_layers
from tests.support.models import make_ctrl, make_func, make_tfm
from tests.support.models_engine import constrain
from tests.support.models_run import write_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
Feeds = Mapping[str, "np.ndarray[Any, Any]"]

NESTED = """g (float[n] x) => (float[n] y) {
  trips = Constant <value = int64 {4}> ()
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, x) <body = b (int64 i, bool keep, float[n] h) => (bool next, float[n] out) {
    next = Identity (keep)
    two = Constant <value = int64 {2}> ()
    odd = Mod (i, two)
    is_odd = Cast <to = 9> (odd)
    out = If (is_odd) <
      then_branch = t () => (float[n] a) { a1 = Exp (h) a = Tanh (a1) },
      else_branch = e () => (float[n] c) { c = Sin (h) }
    >
  }>
}"""
SCAN = """g (float[5, 64] x, float[64] start) => (float[64] last, float[5, 64] all) {
  last, all = Scan <num_scan_inputs = 1, body = b (float[64] s, float[64] row) => (float[64] next, float[64] out) {
    sum = Add (s, row)
    next = Tanh (sum)
    out = Exp (next)
  }> (start, x)
}"""
VAD = {"input": np.zeros((1, 512), np.float32), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}


def fed(**shapes: tuple[int, ...]) -> Feeds:
    return {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}


def nothing(done: int, total: int) -> None:
    """Takes progress and tells nobody."""


def layers_of(path: Path, folder: Path, feeds: Feeds, passes: int = 3, **settings: Any) -> LayerPass:
    folder.mkdir(exist_ok=True)
    return measure_layers(path, SessionSettings(**settings), feeds, passes, folder)


def by_type(layer_pass: LayerPass) -> dict[str, Layer]:
    return {layer.type: layer for layer in layer_pass.layers}


def check_sums(path: Path, feeds: Feeds, folder: Path) -> None:
    """In every pass, self times and the pauses between nodes make up the executor's time."""
    folder.mkdir(exist_ok=True)
    recording = record_layers(path, SessionSettings(), feeds, RecordingPlan(5, 100), folder)
    measured = read_passes(recording, skip=WARMUP_PASSES)
    assert len(measured.pass_ms) == 5
    for number, offset in enumerate(measured.offsets):
        run = read_one_pass(recording, offset)
        nodes = run.nodes
        pauses = sum(b.ts - a.ts - a.dur for a, b in pairwise(nodes))
        executor = run.inner[0]
        pauses += nodes[0].ts - executor.ts + executor.ts + executor.dur - nodes[-1].ts - nodes[-1].dur
        self_us = sum(node.self_us[number] for node in measured.nodes.values())
        # A microsecond may be lost in each execution where whole microseconds do not add up.
        resolution = sum(node.calls for node in measured.nodes.values()) / len(measured.pass_ms)
        executor_us = sum(item.dur for item in run.inner)
        assert abs(self_us + pauses - executor_us) <= resolution
        assert executor_us <= measured.pass_ms[number] * 1e3
    assert min(sample for node in measured.nodes.values() for sample in node.self_us) >= 0


@pytest.mark.parametrize(
    ("make", "feeds"),
    [
        (make_ctrl, fed(x=(64, 4))),
        (make_func, fed(x=(4, 8))),
        (lambda path: write_model(path, NESTED), fed(x=(4096,))),
        (lambda path: write_model(path, SCAN), fed(x=(5, 64), start=(64,))),
    ],
    ids=["if and loop", "local functions", "if in loop", "scan"],
)
def test_self_times_add_up(make: Callable[[Path], Path], feeds: Feeds, tmp_path: Path) -> None:
    check_sums(make(tmp_path / "m.onnx"), feeds, tmp_path)


@pytest.mark.thorough
def test_self_times_of_a_real_model_with_if_bodies_add_up(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    silero = sample_model("silero")
    check_sums(silero, VAD, tmp_path)
    layer_pass = layers_of(silero, tmp_path / "again", VAD, 5)
    assert max(layer.depth for layer in layer_pass.layers) == 3
    for number, whole in enumerate(layer_pass.pass_ms):
        assert 0.5 * whole < sum(layer.samples_ms[number] for layer in layer_pass.layers) <= whole


def test_layers_of_bodies_run_once_or_many_times(tmp_path: Path) -> None:
    layer_pass = layers_of(write_model(tmp_path / "m.onnx", NESTED), tmp_path, fed(x=(1000,)))
    depths = {layer.type: layer.depth for layer in layer_pass.layers}
    assert (depths["Loop"], depths["If"], depths["Tanh"], depths["Sin"]) == (0, 1, 2, 2)
    assert {layer.type for layer in layer_pass.layers if layer.role == "control"} == {"Loop", "If"}
    # Four times round, twice into each branch, 4,000 bytes a time.
    assert by_type(layer_pass)["Tanh"].read_bytes == by_type(layer_pass)["Sin"].written_bytes == 8000
    assert by_type(layer_pass)["Cast"].role == "cast"
    spans = [span for span in layer_pass.timeline if span.name == by_type(layer_pass)["Sin"].name]
    assert [span.depth for span in spans] == [2, 2]


def test_several_process_runs_are_one_after_another(tmp_path: Path) -> None:
    """What one run lacks took no time in it."""
    model = write_model(
        tmp_path / "m.onnx",
        """g (float[n] x, bool c) => (float[n] y) {
          h = Exp (x)
          y = If (c) <then_branch = t () => (float[n] a) { a = Tanh (h) },
                      else_branch = e () => (float[n] b) { b = Sin (h) }>
        }""",
    )
    recordings = []
    for number, (passes, condition) in enumerate([(4, True), (3, False)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = RecordingPlan(passes, 10, keep_optimized=number == 0)
        feeds = {**fed(x=(64,)), "c": np.array(condition)}
        recordings.append(record_layers(model, SessionSettings(), feeds, plan, folder))
    layer_pass = read_layers(model, recordings, tmp_path / "0" / OPTIMIZED, RecordingPlan(4))
    assert layer_pass.layer_runs == (4, 3)
    assert len(layer_pass.pass_ms) == 7
    assert all(len(layer.samples_ms) == 7 for layer in layer_pass.layers)
    layers = by_type(layer_pass)
    assert [layer.type for layer in layer_pass.layers] == ["Exp", "If", "Tanh", "Sin"]
    assert layers["Tanh"].samples_ms[4:] == (0, 0, 0)
    assert layers["Sin"].samples_ms[:4] == (0, 0, 0, 0)
    assert layers["Exp"].onnx_nodes == ("h",)
    assert any(note.startswith("7 layer passes instead of 8") for note in layer_pass.notes)
    assert not (tmp_path / "1" / OPTIMIZED).exists()
    assert not any(recording.exists() for recording in recordings)


def test_products_in_a_loop_count_each_time(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m.onnx",
        """g (float[4,4] x) => (float[4,4] y) {
          trips = Constant <value = int64 {5}> ()
          go = Constant <value = bool {1}> ()
          y = Loop (trips, go, x) <body = b (int64 i, bool keep, float[4,4] h) => (bool next, float[4,4] out) {
            next = Identity (keep)
            out = MatMul (h, x)
          }>
        }""",
    )
    assert by_type(layers_of(model, tmp_path, fed(x=(4, 4))))["MatMul"].macs == 5 * 4 * 4 * 4


def test_the_timeline_may_come_from_any_process_run(tmp_path: Path) -> None:
    model = make_ctrl(tmp_path / "m.onnx")
    recordings = []
    for number, passes in enumerate([1, 1, 8]):
        folder = tmp_path / str(number)
        folder.mkdir()
        recordings.append(
            record_layers(model, SessionSettings(), fed(x=(64, 4)), RecordingPlan(passes, 50, number == 0), folder)
        )
    layer_pass = read_layers(model, recordings, tmp_path / "0" / OPTIMIZED, RecordingPlan(10))
    number = int(layer_pass.timeline_basis.split()[1]) - 1
    result = {
        span.layer: span.duration_ms for span in layer_pass.timeline if span.layer is not None and span.depth == 0
    }
    plain = [position for position in result if layer_pass.layers[position].role != "control"]
    assert len(plain) >= 2
    assert all(layer_pass.layers[position].samples_ms[number] == result[position] for position in plain)
    whole = max(span.start_ms + span.duration_ms for span in layer_pass.timeline)
    assert whole == pytest.approx(layer_pass.pass_ms[number], abs=0.0031)


def test_the_timeline_is_the_median_pass(tmp_path: Path) -> None:
    layer_pass = layers_of(make_tfm(tmp_path / "m.onnx"), tmp_path, ids_of_tfm(), 5)
    assert layer_pass.timeline_basis.startswith("pass ")
    number = int(layer_pass.timeline_basis.split()[1]) - 1
    assert layer_pass.pass_ms[number] == statistics.median(layer_pass.pass_ms)
    layers = [span for span in layer_pass.timeline if span.kind == "layer"]
    assert {span.lane for span in layer_pass.timeline} == {"CPU"}
    assert len(layers) == len(layer_pass.layers)
    assert {span.layer for span in layers} == set(range(len(layer_pass.layers)))
    for span in layers:
        assert span.layer is not None
        assert layer_pass.layers[span.layer].name == span.name
        assert layer_pass.layers[span.layer].samples_ms[number] == span.duration_ms
    ends = 0.0
    for span in layer_pass.timeline:  # one after another, no pause counted twice
        assert span.start_ms >= ends - 1e-9
        ends = span.start_ms + span.duration_ms
    assert ends <= layer_pass.pass_ms[number] + 1e-9
    assert ends > 0.9 * layer_pass.pass_ms[number]
    assert all(
        span.duration_ms > 0.003 and span.layer is None for span in layer_pass.timeline if span.kind == "overhead"
    )
    names = {span.name for span in layer_pass.timeline if span.kind == "overhead"}
    assert names <= {"before the first layer", "between layers", "after the last layer"}


def ids_of_tfm() -> Feeds:
    return {"ids": np.ones((1, 16), np.int64), "mask": np.ones((1, 16), np.int64)}


@pytest.mark.parametrize(("most", "depth"), [(1000, 2), (40, 1), (10, 0)])
def test_a_timeline_too_long_loses_its_innermost_bodies(
    most: int, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of eight rounds: 32 nodes in its body and 12 in branches."""
    monkeypatch.setattr(onnxruntime_timeline, "_MOST_SPANS", most)
    monkeypatch.setattr(onnxruntime_timeline, "_SHORTEST_PAUSE_US", 10**9)  # how many there are is chance
    model = write_model(tmp_path / "m.onnx", NESTED.replace("int64 {4}", "int64 {8}"))
    layer_pass = layers_of(model, tmp_path, fed(x=(2,)), 1)
    spans = [span for span in layer_pass.timeline if span.kind == "layer"]
    assert 0 < len(layer_pass.timeline) <= most
    assert max(span.depth for span in spans) == depth


def test_parallel_nodes_have_lanes(tmp_path: Path) -> None:
    chains = " ".join(f"a{i} = Exp (x) b{i} = Tanh (a{i}) c{i} = Erf (b{i})" for i in range(4))
    graph = f"g (float[n] x) => (float[n] y) {{ {chains} y = Sum (c0, c1, c2, c3) }}"
    layer_pass = layers_of(
        write_model(tmp_path / "m.onnx", graph),
        tmp_path,
        fed(x=(200_000,)),
        execution="parallel",
        inter_op_threads=2,
        optimization="disabled",
    )
    assert {span.lane for span in layer_pass.timeline} <= {"CPU", "CPU thread 2", "CPU thread 3"}
    assert len(layer_pass.layers) == 13
    assert any("parallel" in note for note in layer_pass.notes)


@pytest.mark.parametrize(
    ("graph", "shapes", "kind", "macs"),
    [
        ("g (float[2,3,9,9] x, float[8,3,3,3] w) => (float[2,8,4,4] y) { y = Conv<strides=[2,2]>(x, w) }",
         {"x": (2, 3, 9, 9), "w": (8, 3, 3, 3)}, "Conv", 2 * 8 * 4 * 4 * 3 * 9),
        ("g (float[1,6,5] x, float[6,1,3] w) => (float[1,6,3] y) { y = Conv<group=6>(x, w) }",
         {"x": (1, 6, 5), "w": (6, 1, 3)}, "Conv", 6 * 3 * 3),
        ("g (float[1,4,5,5] x, float[4,2,2,2] w) => (float[1,2,10,10] y) { y = ConvTranspose<strides=[2,2]>(x, w) }",
         {"x": (1, 4, 5, 5), "w": (4, 2, 2, 2)}, "ConvTranspose", 4 * 25 * 2 * 4),
        ("g (float[7,5] x, float[7,3] w) => (float[5,3] y) { y = Gemm<transA=1>(x, w) }",
         {"x": (7, 5), "w": (7, 3)}, "Gemm", 5 * 3 * 7),
        ("g (float[2,4,6] x, float[6,3] w) => (float[2,4,3] y) { y = MatMul(x, w) }",
         {"x": (2, 4, 6), "w": (6, 3)}, "MatMul", 2 * 4 * 3 * 6),
        ("g (float[2,6,4] x, float[2,6,3] w) => (float[2,4,3] y) { t = Transpose<perm=[0,2,1]>(x) y = MatMul(t, w) }",
         {"x": (2, 6, 4), "w": (2, 6, 3)}, "FusedMatMul", 2 * 4 * 3 * 6),
        ("g (float[3,2,5] x, float[1,16,5] w, float[1,16,4] r) => (float[3,1,2,4] y) "
         "{ y = LSTM<hidden_size=4>(x, w, r) }",
         {"x": (3, 2, 5), "w": (1, 16, 5), "r": (1, 16, 4)}, "LSTM", 3 * 2 * 16 * (5 + 4)),
        ("g (float[2,3,4] x, float[2,4,5] w) => (float[2,3,5] y) { y = Einsum<equation=\"bij,bjk->bik\">(x, w) }",
         {"x": (2, 3, 4), "w": (2, 4, 5)}, "Einsum", 2 * 3 * 4 * 5),
    ],
)  # fmt: skip
def test_macs_of_operators(
    graph: str, shapes: dict[str, tuple[int, ...]], kind: str, macs: int, tmp_path: Path
) -> None:
    layer_pass = layers_of(write_model(tmp_path / "m.onnx", graph), tmp_path, fed(**shapes))
    layers = [layer for layer in layer_pass.layers if layer.macs is not None]
    assert [(layer.type, layer.macs) for layer in layers] == [(kind, macs)]


@pytest.mark.thorough
def test_macs_of_resnet_50(tmp_path: Path) -> None:
    """4.09 GMACs at 224x224 (He et al. 2015 count 3.8 for the variant that strides in 1x1 convolutions)."""
    feeds = {"gpu_0/data_0": np.zeros((1, 3, 224, 224), np.float32)}
    layer_pass = layers_of(LIGHT / "light_resnet50.onnx", tmp_path, feeds, 1)
    assert sum(layer.macs or 0 for layer in layer_pass.layers) == 4_089_184_256
    # 25.5 million parameters of four bytes.
    assert sum(layer.weight_bytes for layer in layer_pass.layers) == pytest.approx(25.5e6 * 4, rel=0.01)


def test_padded_channels_do_no_work(tmp_path: Path) -> None:
    """ONNX Runtime fills up 20 output channels to a whole number of blocks; the model asks for 20."""
    graph = "g (float[1,32,10,10] x) => (float[1,20,10,10] y) { y = Conv(x, w) }"
    model = with_weight(tmp_path / "m.onnx", graph, (20, 32, 1, 1))
    layer_pass = layers_of(model, tmp_path, fed(x=(1, 32, 10, 10)))
    convolution = by_type(layer_pass)["Conv"]
    assert convolution.macs == 20 * 100 * 32
    if "nchwc" not in convolution.tactic:
        pytest.skip("this CPU has no kernel for blocked layouts")
    assert convolution.outputs[0].shape[1] in (24, 32)
    assert convolution.written_bytes == convolution.outputs[0].shape[1] * 100 * 4
    assert {layer.type for layer in layer_pass.layers if layer.role == "reformat"} == {"ReorderInput", "ReorderOutput"}


def test_a_fused_activation_belongs_to_the_convolution_before_it(tmp_path: Path) -> None:
    """ONNX Runtime names a convolution on blocked channels after what it wrote before HardSwish was fused into it."""
    graph = """g (float[1,32,10,10] x) => (float[1,32,10,10] y) {
        [first] a = Conv(x, w) [swish] b = HardSwish(a)
        [second] c = Conv(b, w) [relu] d = Relu(c) [again] y = Conv(d, w)
    }"""
    model = with_weight(tmp_path / "m.onnx", graph, (32, 32, 1, 1))
    layers = layers_of(model, tmp_path, fed(x=(1, 32, 10, 10))).layers
    convolutions = [layer for layer in layers if layer.type == "Conv" and "nchwc" in layer.tactic]
    if len(convolutions) != 3:
        pytest.skip("this CPU has no kernel for blocked layouts")
    assert [layer.onnx_nodes for layer in convolutions] == [("first", "swish"), ("second", "relu"), ("again",)]


def test_packed_weights_are_counted(tmp_path: Path) -> None:
    """ONNX Runtime's profile does not list weights that it packed for its kernels."""
    model = with_weight(tmp_path / "m.onnx", "g (float[n,64] x) => (float[n,48] y) { y = MatMul(x, w) }", (64, 48))
    layer_pass = layers_of(model, tmp_path, fed(x=(4, 64)))
    product = by_type(layer_pass)["MatMul"]
    assert product.tactic == "packed weights"
    assert [tensor.name for tensor in product.inputs] == ["x", "w"]
    assert product.macs == 4 * 64 * 48
    assert product.weight_bytes == 64 * 48 * 4
    assert product.read_bytes == product.weight_bytes + 4 * 64 * 4
    assert product.written_bytes == 4 * 48 * 4


def with_weight(path: Path, graph: str, shape: tuple[int, ...]) -> Path:
    """A model in ONNX's text form, with an initializer `w`."""
    model = onnx.load(write_model(path, graph))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), "w"))
    onnx.save(model, path)
    return path


def test_kernels_are_described(tmp_path: Path) -> None:
    graph = "g (float[1,32,10,10] x) => (float[1,32,10,10] y) { a = Conv(x, w) y = Relu(a) }"
    model = with_weight(tmp_path / "m.onnx", graph, (32, 32, 1, 1))
    extended = layers_of(model, tmp_path, fed(x=(1, 32, 10, 10)), optimization="extended")
    assert [layer.tactic for layer in extended.layers] == ["microsoft.FusedConv(Relu)"]
    plain = layers_of(model, tmp_path, fed(x=(1, 32, 10, 10)), optimization="disabled")
    assert [layer.tactic for layer in plain.layers] == ["", ""]


def test_requested_precisions_come_from_the_origins_of_layers(tmp_path: Path) -> None:
    nodes = "[conv] a = Conv(x, w) [relu] b = Relu(a) [exp] y = Exp(b)"
    graph = f"g (float[1,32,10,10] x) => (float[1,32,10,10] y) {{ {nodes} }}"
    model = constrain(with_weight(tmp_path / "m.onnx", graph, (32, 32, 1, 1)), conv="fp16", exp="fp32")
    layer_pass = layers_of(model, tmp_path, fed(x=(1, 32, 10, 10)), optimization="extended")
    assert [(layer.onnx_nodes, layer.asked_precision) for layer in layer_pass.layers] == [
        (("conv", "relu"), "fp16"),
        (("exp",), "fp32"),
    ]


def test_events_are_counted_or_tried(tmp_path: Path) -> None:
    assert count_events(write_model(tmp_path / "a.onnx", "g (float[n] x) => (float[n] y) { y = Exp(x) }")) == 3
    assert count_events(write_model(tmp_path / "b.onnx", NESTED)) is None
    assert count_events(make_func(tmp_path / "c.onnx")) is None


def test_loops_are_tried_before_they_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "m.onnx", NESTED)
    once = layers_of(model, tmp_path / "once", fed(x=(4,)), 50)
    assert len(once.pass_ms) == 50
    monkeypatch.setattr(layer_recording, "_EVENT_BUDGET", 300)
    layer_pass = layers_of(model, tmp_path / "again", fed(x=(4,)), 50)
    assert 1 < len(layer_pass.pass_ms) < 15
    assert any("layer passes instead of 50" in note for note in layer_pass.notes)
    assert {path.name for path in (tmp_path / "again").iterdir()} <= {OPTIMIZED, f"{OPTIMIZED}.data"}


def test_a_profile_with_broken_lines_is_read(tmp_path: Path) -> None:
    model = make_ctrl(tmp_path / "m.onnx")
    recording = record_layers(model, SessionSettings(), fed(x=(8, 4)), RecordingPlan(4, 50), tmp_path)
    lines = recording.read_text().splitlines(keepends=True)
    broken = ['{"cat"\n', "[1, 2],\n", '"text",\n', '{"name": "x", "ts": 1e400, "dur": 1, "args": {}},\n']
    broken.append(json.dumps({"name": "n_kernel_time", "ts": 1, "dur": 1, "args": ["op_name"]}) + ",\n")
    recording.write_text("".join([lines[0], *broken, *lines[1:]]))
    layer_pass = read_layers(model, [recording], None, RecordingPlan(4))
    assert len(layer_pass.pass_ms) == 4
    assert f"{len(broken)} lines of ONNX Runtime's" in str(layer_pass.notes)
    assert any("not traced back" in note for note in layer_pass.notes)


def test_times_on_a_device_are_noted_as_host_times(tmp_path: Path) -> None:
    """What another provider's profile looks like, without having one."""
    model = make_ctrl(tmp_path / "m.onnx")
    recording = record_layers(model, SessionSettings(), fed(x=(8, 4)), RecordingPlan(3, 50), tmp_path)
    recording.write_text(recording.read_text().replace('"CPUExecutionProvider"', '"CUDAExecutionProvider"'))
    layer_pass = read_layers(model, [recording], tmp_path / OPTIMIZED, RecordingPlan(3))
    assert any("layers on CUDAExecutionProvider" in note for note in layer_pass.notes)
    again = layers_of(model, tmp_path / "again", fed(x=(8, 4)))
    assert not any("host" in note for note in again.notes)


def test_roofs_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_request, "_measured", {})
    monkeypatch.setattr(onnxruntime_request, "_ENOUGH_S", 0.0)
    monkeypatch.setattr(onnxruntime_request, "_ROWS", (256,))
    monkeypatch.setattr(onnxruntime_request, "_COLUMNS", 256)
    settings = SessionSettings(threads=1, free_dimensions={"n": 3})
    roofs = onnxruntime_request.measure_roofs(settings)
    assert roofs is not None
    # Between a very slow machine and the fastest device of these years.
    assert 1e8 < roofs.macs_per_s < 1e16
    assert 1e8 < roofs.bytes_per_s < 1e14
    assert "float32" in roofs.how
    half = Layer(index=0, name="y", type="MatMul", precision="float16", macs=100, samples_ms=(1.0,))
    assert onnxruntime_request.measure_roofs(SessionSettings(threads=1), [half]) is roofs


def test_roofs_are_left_out_where_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_request, "_measured", {})

    def refuse(path: Path, settings: SessionSettings) -> None:
        raise BackendError("no kernel")

    monkeypatch.setattr(onnxruntime_request, "open_model", refuse)
    assert onnxruntime_request.measure_roofs(SessionSettings()) is None
