"""What only a machine with an NVIDIA GPU can show, by recipes; each test skips with the reason where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.execution.ssh.connection import SSH_VARIABLE
from ndld_flow.machine.host import describe_machine
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.build import Build
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_record import RunRecord
from tests.support.gpu_machine import require_clocks, require_engines, require_gpu, require_provider
from tests.support.models import make_cnn
from tests.support.ssh_servers import REASON, available, serving

pytestmark = pytest.mark.gpu

QUICK = {"runs": 1, "stable": "0 %", "passes": 20, "duration": 0, "warmup": 50, "layer_passes": 6}
"""Enough to see everything a profile has; speed is not judged here."""
BATCH = {"x": {"min": [1, 3, 16, 16], "opt": [4, 3, 16, 16], "max": [8, 3, 16, 16]}}
Steps = Mapping[str, Mapping[str, Any]]

both_backends = pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_rtx"])


@dataclass(frozen=True)
class Bench:
    """A folder with a model, in which recipes run."""

    folder: Path

    def run(self, steps: Steps, *, force: Sequence[str] = (), **recipe: Any) -> Path:
        """The folder of a run that passed; `recipe` has other keys of the recipe."""
        whole = {"name": "gpu", "model": "model.onnx", "inputs": BATCH, "steps": steps, **recipe}
        (self.folder / "gpu.yaml").write_text(json.dumps(whole))  # JSON is YAML
        done = api.run(self.folder / "gpu.yaml", outputs=self.folder / "outputs", force=force, trust=True)
        assert done.passed, done.verdict
        return Path(done.folder)


@pytest.fixture
def bench(in_folder: Path) -> Bench:
    make_cnn(in_folder / "model.onnx")
    return Bench(in_folder)


def read_build(run: Path, step: str = "engine") -> Build:
    return Build.model_validate_json((run / step / "build.json").read_bytes())


def read_measured(run: Path, step: str = "speed") -> Profile:
    return Profile.model_validate_json((run / step / "profile.json").read_bytes())


def engine_steps(backend: EngineBackend, speed: Mapping[str, Any] | None = None, **engine: Any) -> Steps:
    """Build an engine of the model, and measure it."""
    measured = {"step": "profile", "from": "source", "backend": backend, "engine": "engine", **QUICK, **(speed or {})}
    return {"engine": {"step": "build_engine", "backend": backend, **engine}, "speed": measured}


def check_times(profile: Profile) -> None:
    """Every pass has its four parts, and layers were timed."""
    for run in profile.runs:
        parts = (run.enqueue_ms, run.h2d_ms, run.compute_ms, run.d2h_ms)
        assert [len(part) for part in parts] == [len(run.latency_ms)] * 4
        assert all(min(part) >= 0 for part in parts)
        assert min(run.compute_ms) > 0
    assert profile.layers
    assert {len(layer.samples_ms) for layer in profile.layers} == {len(profile.layer_pass_ms)}
    assert profile.layers_sum_ms > 0


def test_this_machine_reports_its_gpu() -> None:
    require_gpu()
    checks = {check.name: check for check in api.doctor()}
    assert checks["gpu"].state == "ok"
    assert "compute capability" in checks["gpu"].found
    assert "CUDA up to" in checks["gpu"].found


def test_the_cuda_provider_is_measured_with_its_copies(bench: Bench) -> None:
    provider = require_provider("cuda")
    run = bench.run({"speed": {"step": "profile", "from": "source", "provider": "cuda", **QUICK}})
    profile = read_measured(run)
    assert profile.providers[0] == provider == "CUDAExecutionProvider"
    for item in profile.runs:
        assert len(item.h2d_ms) == len(item.d2h_ms) == len(item.latency_ms)
    assert "CUDAExecutionProvider" in {layer.provider for layer in profile.layers}
    assert profile.layers_wait_for_device
    assert profile.machine.gpus


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_computes_what_the_cpu_does(bench: Bench, provider: str) -> None:
    name = require_provider(provider)
    check = {
        "step": "check_accuracy",
        "reference": "source",
        "candidate": "source",
        "provider": provider,
        "reference_provider": "cpu",
        "tolerance": {"cosine": 0.999, "snr_db": 40},
    }
    run = bench.run({"agree": check})
    accuracy = Accuracy.model_validate_json((run / "agree/accuracy.json").read_bytes())
    assert (accuracy.provider_reference, accuracy.provider_candidate) == ("CPUExecutionProvider", name)


def test_the_tensorrt_provider_is_measured(bench: Bench) -> None:
    provider = require_provider("tensorrt")
    profile = read_measured(
        bench.run({"speed": {"step": "profile", "from": "source", "provider": "tensorrt", **QUICK}})
    )
    assert profile.providers[0] == provider
    assert profile.latency.median_ms > 0


def test_the_cuda_provider_in_fewer_bits(bench: Bench) -> None:
    """A converted and a quantized model, judged on the GPU; TF32 is further from the CPU than FP32, if it is there."""
    require_provider("cuda")
    check = {"step": "check_accuracy", "reference": "source", "provider": "cuda", "reference_provider": "cpu"}
    exact = {**check, "candidate": "source", "provider_options": {"use_tf32": 0}, "tolerance": {"cosine": 0.9999}}
    steps: dict[str, dict[str, Any]] = {
        "half": {"step": "convert_fp16", "from": "source"},
        "small": {"step": "quantize", "from": "source"},
        "agree": exact,
        "tf32": {**exact, "provider_options": {"use_tf32": 1}},
        "agree_half": {**check, "candidate": "half"},
        "agree_small": {**check, "candidate": "small", "tolerance": {"cosine": 0.9}},
    }
    run = bench.run(steps)
    exactly, roughly = (
        read_document(Accuracy, run / name / "accuracy.json").outputs[0].metrics["max_abs"]
        for name in ("agree", "tf32")
    )
    assert exactly <= roughly


def test_a_cuda_graph_of_the_provider_and_the_same_twice(bench: Bench, record_property: Callable[..., None]) -> None:
    """The same model twice is no regression."""
    require_provider("cuda")
    plain = {"step": "profile", "from": "source", "provider": "cuda", "runs": 3, "layer_passes": 0}
    run = bench.run(
        {
            "one": plain,
            "two": plain,
            "graph": {**plain, "provider_options": {"enable_cuda_graph": 1}},
            "decide": {"step": "compare_profiles", "base": "one", "from": "two"},
        }
    )
    (compared,) = read_document(Comparison, run / "decide/comparison.json").profiles
    (verdict,) = compared.deciding
    assert verdict.verdict != "regressed"
    for name in ("one", "two", "graph"):
        record_property(f"ms of {name}", round(read_measured(run, name).latency.median_ms, 4))


def test_a_gpu_that_does_not_exist_is_refused(bench: Bench) -> None:
    require_provider("cuda")
    wrong = {"step": "profile", "from": "source", "provider": "cuda", "provider_options": {"device_id": 99}, **QUICK}
    with pytest.raises(BackendError, match="99"):
        bench.run({"speed": wrong})


@both_backends
def test_an_engine_for_this_gpu_is_inspected_and_measured(bench: Bench, backend: EngineBackend) -> None:
    library = require_engines(backend)
    run = bench.run(engine_steps(backend))
    build = read_build(run)
    assert build.version.startswith(library.version)
    assert build.layers_basis == "engine inspector"
    assert [(tensor.name, tensor.shape) for tensor in build.inputs] == [("x", (-1, 3, 16, 16))]
    inspected = read_profile(run / "engine/model.trt.json")
    assert [layer.name for layer in inspected.layers] == [layer.name for layer in build.layers]
    assert any(layer.onnx_nodes for layer in build.layers), "layers know the nodes that they came from"
    profile = read_measured(run)
    assert profile.backend == backend
    assert profile.inputs[0].shape == (4, 3, 16, 16)
    check_times(profile)
    assert {layer.name for layer in profile.layers} <= {layer.name for layer in build.layers}


@both_backends
def test_each_way_to_run_an_engine(bench: Bench, backend: EngineBackend) -> None:
    require_engines(backend)
    steps = engine_steps(backend)
    ways: dict[str, dict[str, Any]] = {
        "captured": {"cuda_graph": True},
        "side_by_side": {"streams": 2},
        "copied": {"transfers": True},
        "queued": {"queue": 1},
        "sleeping": {"spin_wait": False},
        "watched": {"sample_gpu": True},
    }
    run = bench.run({"engine": steps["engine"], **{name: {**steps["speed"], **way} for name, way in ways.items()}})
    for name, way in ways.items():
        profile = read_measured(run, name)
        assert profile.options.items() >= way.items()
        assert profile.latency.median_ms > 0


@both_backends
def test_an_engine_is_measured_at_other_batches(bench: Bench, backend: EngineBackend) -> None:
    require_engines(backend)
    profile = read_measured(bench.run(engine_steps(backend, {"batches": [1, 8]})))
    assert [point.batch for point in profile.batches] == [1, 8]
    with pytest.raises(RequestError, match="9"):
        bench.run(engine_steps(backend, {"batches": [9]}))


@both_backends
@pytest.mark.parametrize("weights", ["refit", "strip"])
def test_an_engine_gets_its_weights_before_it_runs(bench: Bench, backend: EngineBackend, weights: str) -> None:
    require_engines(backend)
    fixed = read_build(bench.run(engine_steps(backend)))
    run = bench.run(engine_steps(backend, weights=weights))
    build = read_build(run)
    assert any(flag.startswith("REFIT") or flag == "STRIP_PLAN" for flag in build.flags)
    if weights == "strip":
        assert build.engine_bytes < fixed.engine_bytes
    check_times(read_measured(run))


@both_backends
def test_a_prebuilt_engine_is_measured(bench: Bench, backend: EngineBackend) -> None:
    require_engines(backend)
    built = bench.run({"engine": engine_steps(backend)["engine"]}) / "engine/model.engine"
    speed = {name: value for name, value in engine_steps(backend)["speed"].items() if name != "engine"}
    check_times(read_measured(bench.run({"speed": {**speed, "engine_file": str(built)}})))


def engine_check(backend: EngineBackend, engine: str = "engine", **settings: Any) -> dict[str, Any]:
    """Compare an engine with its model in ONNX Runtime on the CPU."""
    runtime = {"backend": backend, "engine": engine}
    return {"step": "check_accuracy", "reference": "source", "candidate": "source", "runtime": runtime, **settings}


def read_accuracy(run: Path) -> Accuracy:
    return Accuracy.model_validate_json((run / "agree/accuracy.json").read_bytes())


@both_backends
def test_an_engine_agrees_with_its_model(bench: Bench, backend: EngineBackend) -> None:
    """In several shapes and, for a prebuilt engine, without a record of its build."""
    library = require_engines(backend)
    engine = engine_steps(backend)["engine"]
    run = bench.run({"engine": engine, "agree": engine_check(backend, samples=3)})
    accuracy = read_accuracy(run)
    assert accuracy.sample_count == 3
    assert accuracy.outputs[0].metrics["cosine"] > 0.999
    execution = accuracy.execution_candidate
    assert execution is not None
    assert library.version in execution.library
    assert execution.device in " ".join(read_build(run).machine.gpus)
    assert execution.built is not None
    assert execution.built.digest == read_build(run).engine_digest
    prebuilt = engine_check(backend) | {
        "runtime": {"backend": backend, "engine_file": str(run / "engine/model.engine")}
    }
    [note] = [note for note in read_accuracy(bench.run({"agree": prebuilt})).notes if " ran as " in note]
    assert "of unknown source" in note
    with pytest.raises(RequestError, match="what the engine allows"):
        bench.run({"engine": engine, "agree": engine_check(backend, inputs={"x": {"shape": [9, 3, 16, 16]}})})


@both_backends
def test_layers_of_a_marked_engine_are_compared(bench: Bench, backend: EngineBackend) -> None:
    require_engines(backend)
    engine = engine_steps(backend)["engine"]
    marked = {**engine, "mark_outputs": ["Conv_*"]}
    check = engine_check(backend, layers=True, layers_engine="marked")
    accuracy = read_accuracy(bench.run({"engine": engine, "marked": marked, "agree": check}))
    assert [layer.node for layer in accuracy.layers] == ["Conv_0", "Conv_4", "Conv_8", "Conv_20"]
    assert all(layer.metrics["cosine"] > 0.999 for layer in accuracy.layers)
    assert accuracy.layers_built is not None
    assert accuracy.layers_built.name == "marked"


@both_backends
@pytest.mark.parametrize("debug_tensors", ["unfused", ["Conv_*"]], ids=["unfused", "named"])
def test_layers_of_the_engine_itself_are_compared(
    bench: Bench, backend: EngineBackend, debug_tensors: str | list[str], record_property: Callable[[str, object], None]
) -> None:
    require_engines(backend)
    engine = {**engine_steps(backend)["engine"], "debug_tensors": debug_tensors}
    check = engine_check(backend, layers=True, layers_engine="engine")
    accuracy = read_accuracy(bench.run({"engine": engine, "agree": check}))
    if debug_tensors != "unfused":
        assert [layer.node for layer in accuracy.layers] == ["Conv_0", "Conv_4", "Conv_8", "Conv_20"]
    assert all(layer.metrics["cosine"] > 0.999 for layer in accuracy.layers)
    record_property("layers compared", len(accuracy.layers))


@both_backends
def test_the_tensors_of_a_marked_engine_are_inspected(bench: Bench, backend: EngineBackend) -> None:
    """Those of a prebuilt engine too, whose marked tensors no record names."""
    require_engines(backend)
    marked = {**engine_steps(backend)["engine"], "mark_outputs": ["Conv_*"]}
    inside = {"step": "inspect_activations", "from": "source", "reference": "source"}
    run = bench.run({"marked": marked, "inside": {**inside, "runtime": {"backend": backend, "engine": "marked"}}})
    first = Activations.model_validate_json((run / "inside/activations.json").read_bytes())
    assert {"Conv_0", "Conv_4", "Conv_8", "Conv_20"} <= {tensor.node for tensor in first.tensors}
    assert all(layer.metrics["cosine"] > 0.999 for layer in first.divergence)
    prebuilt = {"backend": backend, "engine_file": str(run / "marked/model.engine")}
    again = bench.run({"inside": {**inside, "runtime": prebuilt}})
    second = Activations.model_validate_json((again / "inside/activations.json").read_bytes())
    assert [tensor.tensor for tensor in second.tensors] == [tensor.tensor for tensor in first.tensors]


@both_backends
def test_trials_and_calibration_run_in_engines(bench: Bench, backend: EngineBackend) -> None:
    """Rounding on the GPU differs from the CPU's, by little."""
    require_engines(backend)
    search = {
        "step": "find_precision",
        "from": "source",
        "precision": "int8",
        "trials": 3,
        "tolerance": {"cosine": 0.5},
    }
    run = bench.run({"search": {**search, "runtime": backend}, "here": search})
    there, here = (read_document(PrecisionSearch, run / name / "precision.json") for name in ("search", "here"))
    assert 0 < abs(there.metrics_found["cosine"] - here.metrics_found["cosine"]) < 0.05
    calibrated = bench.run({"small": {"step": "quantize", "from": "source", "target": "tensorrt", "runtime": backend}})
    assert (calibrated / "small/model.onnx").is_file()


@both_backends
def test_a_check_of_an_engine_is_a_script_for_polygraphy(bench: Bench, backend: EngineBackend) -> None:
    require_engines(backend)
    run = bench.run({"engine": engine_steps(backend)["engine"], "agree": engine_check(backend, polygraphy=True)})
    script, rtx = run / "agree/polygraphy/check.py", str(int(backend == "tensorrt_rtx"))
    program = [sys.executable, str(script), str(bench.folder / "model.onnx"), str(run / "engine/model.engine")]
    environment = {**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": rtx}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


COPIED = """
import tensorrt.plugin as trtp
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import open_cuda_runtime

@trtp.register("acme::Copied")
def describe(x: trtp.TensorDesc) -> trtp.TensorDesc:
    return x.like()
"""
"""A layer that copies six values on the device, so that its kernel needs no other library."""
CALLED = """
CUDA = open_cuda_runtime()

@trtp.impl("acme::Copied")
def compute(x: trtp.Tensor, outputs: tuple[trtp.Tensor], stream: int) -> None:
    CUDA.copy(outputs[0].data_ptr, x.data_ptr, 4 * 6, 3, stream)
"""
COMPILED = """
PTX = '''
.version 7.0
.target sm_70
.address_size 64
.visible .entry copied(.param .u64 x, .param .u32 n, .param .u64 y)
{
    .reg .pred %out;
    .reg .b32 %i, %n;
    .reg .b64 %from, %to, %at;
    .reg .f32 %value;
    mov.u32 %i, %tid.x;
    ld.param.u32 %n, [n];
    setp.ge.u32 %out, %i, %n;
    @%out ret;
    ld.param.u64 %from, [x];
    ld.param.u64 %to, [y];
    cvta.to.global.u64 %from, %from;
    cvta.to.global.u64 %to, %to;
    mul.wide.u32 %at, %i, 4;
    add.s64 %from, %from, %at;
    add.s64 %to, %to, %at;
    ld.global.f32 %value, [%from];
    st.global.f32 [%to], %value;
    ret;
}
'''

@trtp.aot_impl("acme::Copied")
def compile_kernel(
    x: trtp.TensorDesc, outputs: tuple[trtp.TensorDesc], tactic: int
) -> tuple[str, str, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    launch, extra = trtp.KernelLaunchParams(), trtp.SymIntExprs(1)
    launch.grid_x, launch.block_x, launch.shared_mem = 1, 32, 0
    extra[0] = trtp.SymInt32(6)
    return "copied", PTX, launch, extra
"""


@pytest.mark.parametrize("kernel", [CALLED, COMPILED], ids=["called", "compiled"])
def test_a_layer_in_python_runs_in_an_engine(bench: Bench, kernel: str) -> None:
    require_engines("tensorrt")
    (bench.folder / "kernels").mkdir()
    (bench.folder / "kernels/copied.py").write_text(COPIED + kernel)
    x, h, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xhy")
    for name, node in {
        "plain": helper.make_node("Identity", ["x"], ["h"]),
        "custom": helper.make_node("Copied", ["x"], ["h"], domain="acme", plugin_namespace="acme"),
    }.items():
        graph = helper.make_graph([node, helper.make_node("Tanh", ["h"], ["y"])], name, [x], [y], value_info=[h])
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("acme", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), bench.folder / f"{name}.onnx")
    backend = {"backend": "tensorrt", "engine": "engine"}
    steps: Steps = {
        "engine": {"step": "build_engine", "backend": "tensorrt", "plugins": ["kernels/copied.py"]},
        "agree": {"step": "check_accuracy", "reference": "plain", "candidate": "source", "runtime": backend},
        "speed": {"step": "profile", "from": "source", **backend, **QUICK},
    }
    run = bench.run(steps, model="custom.onnx", models={"plain": "plain.onnx"}, inputs={"x": {"shape": [2, 3]}})
    assert read_measured(run).latency.median_ms > 0


def measured_in_turn(bench: Bench, settings: Mapping[str, Any]) -> int:
    """The number of points that a sweep with two jobs measured: in turns, or one after another."""
    speed = {"step": "profile", "from": "source", **QUICK, **settings}
    sweep = {"over": {"speed.passes": [20, 21, 22]}}
    whole = {"name": "swept", "model": "model.onnx", "inputs": BATCH, "steps": {"speed": speed}, "sweep": sweep}
    (bench.folder / "swept.yaml").write_text(json.dumps(whole))
    done = api.run(bench.folder / "swept.yaml", outputs=bench.folder / "outputs", place=api.Placement(jobs=2))
    assert isinstance(done, api.SweepFinished)
    assert done.outcomes == {"passed": 3}
    runs = [read_document(RunRecord, path) for path in Path(done.folder).glob("points/*/run.json")]
    found = [step.record for run in runs for step in run.steps if step.record is not None]
    spans = sorted({(record.started_at, record.ended_at) for record in found})
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
    return len(found)


def test_a_sweep_measures_one_point_at_a_time(bench: Bench) -> None:
    require_provider("cuda")
    assert measured_in_turn(bench, {"provider": "cuda"}) == 3


def test_an_engine_ruined_by_int8_fails(bench: Bench) -> None:
    """Placeholder ranges are for measuring speed only: whoever ships such an engine must hear of it."""
    library = require_engines("tensorrt")
    if int(library.version.split(".")[0]) > 10:
        pytest.skip(f"TensorRT {library.version} builds no weakly typed INT8 engines")
    engine = engine_steps("tensorrt", int8=True, fp16=True, placeholder_ranges=True)["engine"]
    with pytest.raises(AssertionError, match="agree"):
        bench.run({"engine": engine, "agree": engine_check("tensorrt")})
    run = bench.run({"engine": engine, "agree": engine_check("tensorrt", tolerance=None)})
    good = bench.run({"engine": engine_steps("tensorrt", fp16=True)["engine"], "agree": engine_check("tensorrt")})
    errors = [read_accuracy(item).outputs[0].metrics["relative_rms"] for item in (run, good)]
    assert errors[0] > 5 * errors[1]


@pytest.mark.parametrize("mode", ["strong", "obey"])
def test_constrained_layers_are_built_and_run(bench: Bench, mode: str) -> None:
    require_engines("tensorrt")
    engine = engine_steps("tensorrt", typing=mode)
    constrained = {"precise": {"step": "constrain_precision", "op_types": {"Conv": "fp32"}}}
    speed = {**engine["speed"], "from": "precise"}
    run = bench.run({**constrained, "engine": {**engine["engine"], "from": "precise"}, "speed": speed})
    build = read_build(run)
    assert build.constraints
    check_times(read_measured(run))


def test_the_second_build_takes_its_timings_from_the_cache(bench: Bench) -> None:
    require_engines("tensorrt")  # TensorRT-RTX times nothing while it builds
    steps = {"engine": engine_steps("tensorrt")["engine"]}
    first = read_build(bench.run(steps)).timing_cache
    assert first is not None
    assert (first.loaded_bytes, first.saved_bytes > 0) == (0, True), first
    second = read_build(bench.run(steps, force=["engine"])).timing_cache
    assert second is not None
    assert second.loaded_bytes == first.saved_bytes
    # Every tactic is a hit: a miss would end this build.
    sure = {"engine": {**steps["engine"], "error_on_timing_cache_miss": True}}
    assert read_build(bench.run(sure)).engine_bytes > 0


def test_an_engine_built_ahead_of_time_runs_here(bench: Bench) -> None:
    require_engines("tensorrt_rtx")
    everywhere = ["7.5", "8.0", "8.6", "8.9", "12.0"]
    check_times(read_measured(bench.run(engine_steps("tensorrt_rtx", compute_capabilities=everywhere))))


@both_backends
def test_clocks_are_locked_while_measuring_and_unlocked_after(bench: Bench, backend: EngineBackend) -> None:
    require_engines(backend)
    require_clocks()
    steps = engine_steps(backend, {"lock_clocks": True, "sample_gpu": True})
    try:
        locked = read_measured(bench.run(steps)).conditions
    except BackendError as error:  # root of a container may not either
        pytest.skip(str(error))
    assert locked["locked_clocks"]
    free = read_measured(bench.run(engine_steps(backend, {"sample_gpu": True}))).conditions
    assert "locked_clocks" not in free
    assert "gpu_samples" in locked
    assert "gpu_samples" in free


def compare_work(
    bench: Bench, size: int, layers: tuple[int, int], settings: Mapping[str, Any]
) -> tuple[str, str, float]:
    """The verdicts on the same model twice and on one with more layers, and the ratio of the times of the two.

    Of engines these are the times on the GPU, else latencies. `settings` are those of `profile`.
    """
    for name, count in zip(("model", "more"), layers, strict=True):
        make_layers(bench.folder / f"{name}.onnx", size, count)
    measured = {"step": "profile", "layer_passes": 0, "runs": 3, "duration": 300, **settings}
    steps: dict[str, dict[str, Any]] = {}
    for name, model in {"one": "source", "two": "source", "three": "more"}.items():
        steps[name] = {**measured, "from": model}
        if "backend" in settings:
            engine = f"engine_{model}"
            steps = {engine: {"step": "build_engine", "backend": settings["backend"], "from": model}, **steps}
            steps[name]["engine"] = engine
    for name, slower in {"same": "two", "slower": "three"}.items():
        steps[name] = {"step": "compare_profiles", "base": "one", "from": slower, "gates": [], "when_undecided": "pass"}
    run = bench.run(steps, models={"more": "more.onnx"}, inputs={})
    verdicts = []
    for name in ("same", "slower"):
        (compared,) = read_document(Comparison, run / name / "comparison.json").profiles
        verdicts.append(compared.deciding[0].verdict)
    times = [
        median([ms for item in read_measured(run, name).runs for ms in (item.compute_ms or item.latency_ms)])
        for name in ("one", "three")
    ]
    return verdicts[0], verdicts[1], times[1] / times[0]


def make_layers(path: Path, size: int, count: int) -> None:
    """Write a chain of equal matrix products, which no runtime can join."""
    weights = numpy_helper.from_array(np.eye(size, dtype=np.float32) * np.float32(1.5), "w")
    nodes, name = [], "x"
    for index in range(count):
        nodes.append(helper.make_node("MatMul", [name, "w"], [f"m{index}"]))
        name = "y" if index == count - 1 else f"t{index}"
        nodes.append(helper.make_node("Tanh", [f"m{index}"], [name]))
    x, y = (helper.make_tensor_value_info(text, TensorProto.FLOAT, [size, size]) for text in ("x", "y"))
    graph = helper.make_graph(nodes, "layers", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


@pytest.mark.parametrize("runtime", ["cuda", "tensorrt", "tensorrt_rtx"])
def test_ten_percent_more_work_is_slower_and_the_same_is_not(
    bench: Bench, runtime: Any, record_property: Callable[[str, object], None]
) -> None:
    if runtime == "cuda":
        require_provider(runtime)
        settings = {"provider": runtime}
    else:
        require_engines(runtime)
        settings = {"backend": runtime}
    same, slower, ratio = compare_work(bench, 2048, (20, 22), settings)
    record_property("times as long", round(ratio, 3))
    assert same != "regressed"
    assert slower == "regressed"
    assert 1.05 < ratio < 1.15


def profile_near(bench: Bench, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any]) -> Profile:
    """The profile of a step on a target by SSH, which is this machine with another home."""
    if not available():
        pytest.skip(REASON)
    found = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    with serving(bench.folder / "network", "near", environment=found) as network:
        monkeypatch.setenv(SSH_VARIABLE, network.command)
        target = {"host": "ssh://near", "python": sys.executable}
        speed = {"step": "profile", "from": "source", "on": "near", **QUICK, **settings}
        return read_measured(bench.run({"speed": speed}, targets={"near": target}))


def test_a_target_by_ssh_measures_on_its_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = require_provider("cuda")
    profile = profile_near(bench, monkeypatch, {"provider": "cuda"})
    assert profile.providers[0] == provider
    assert [*profile.machine.gpus] == [*describe_machine().gpus]
