"""Sessions on the provider that was asked for, and errors a person can act on."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.runtimes.native_output import catch_native_output
from ndld_flow.runtimes.onnxruntime import onnxruntime_session
from ndld_flow.runtimes.onnxruntime.execution_providers import full_name, memory_of, short_name, with_fallbacks
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import (
    OnnxruntimeSession,
    SessionSettings,
    _entries,
    open_model,
)
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.onnxruntime.settings import OnnxruntimeSettings
from ndld_flow.store.kinds import Artifact, Onnx
from tests.support.message_files import CheckMessage
from tests.support.models_run import write_model

RELU = "g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }"
HAS_CUDA_PROVIDER = "CUDAExecutionProvider" in ort.get_available_providers()
HAS_GPU = Path("/dev/nvidiactl").exists()


def test_runs_on_the_cpu(tmp_path: Path) -> None:
    model = open_model(write_model(tmp_path / "m.onnx", RELU), SessionSettings())
    assert model.providers == ("CPUExecutionProvider",)
    assert model.load_ms > 0
    binding = model.bind({"x": np.array([[-1, 2]], np.float32)})
    binding.run()
    outputs = binding.outputs()
    assert outputs["y"] is not None
    assert outputs["y"].tolist() == [[0, 2]]
    assert binding.output_shapes() == {"y": ("float32", (1, 2))}


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "layout", "all"])
def test_every_setting_is_accepted(level: Any, tmp_path: Path) -> None:
    settings = SessionSettings(
        provider="CPUExecutionProvider",
        optimization=level,
        threads=1,
        inter_op_threads=2,
        execution="parallel",
        memory_arena=False,
        free_dimensions={"n": 4},
    )
    model = open_model(write_model(tmp_path / "m.onnx", RELU), settings)
    options = model.session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.inter_op_num_threads == 2
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert model.session.get_inputs()[0].shape == [4, 2]


@pytest.mark.skipif(not HAS_CUDA_PROVIDER, reason="this ONNX Runtime is built without CUDA")
@pytest.mark.skipif(HAS_GPU, reason="there is a GPU, so CUDA may load")
@pytest.mark.parametrize(
    ("provider", "full"),
    [("cuda", "CUDAExecutionProvider"), ("TensorrtExecutionProvider", "TensorrtExecutionProvider")],
)
def test_a_provider_that_does_not_load_is_an_error(
    provider: str, full: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path / "m.onnx", RELU)
    with pytest.raises(BackendError) as error:
        open_model(path, SessionSettings(provider=provider))
    message = str(error.value)
    assert full in message
    assert "Failed to load" in message or "Failed to create" in message
    assert "provider: cpu" in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_unknown_providers_name_the_nearest() -> None:
    with pytest.raises(BackendError, match='"cudda" is not'):
        full_name("cudda")
    missing = next(p for p in ort.get_all_providers() if p not in ort.get_available_providers())
    with pytest.raises(BackendError, match=f"no {missing}; it has .*cpu"):
        full_name(missing)
    assert full_name("cpuexecutionprovider") == full_name("CPU") == "CPUExecutionProvider"
    assert short_name("CUDAExecutionProvider") == "cuda"


def test_fallbacks_of_providers(monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage) -> None:
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: available)
    chain = with_fallbacks("TensorrtExecutionProvider", {"device_id": "1", "trt_fp16_enable": "1"})
    assert [name for name, _ in chain] == available
    assert chain[1][1] == {"device_id": "1"}
    assert memory_of("CUDAExecutionProvider", {"device_id": "1"}) == ("cuda", 1)
    assert memory_of("CPUExecutionProvider", {}) == ("cpu", 0)
    with pytest.raises(BackendError) as caught:
        memory_of("CUDAExecutionProvider", {"device_id": "first"})
    check_message(caught.value)


def test_models_that_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model at all")
    with pytest.raises(ModelError) as caught:
        open_model(broken, SessionSettings())
    check_message(caught.value)
    with pytest.raises(ModelError) as caught:
        open_model(tmp_path / "missing.onnx", SessionSettings())
    check_message(caught.value)
    unknown = write_model(tmp_path / "unknown.onnx", "g (float[n] x) => (float[n] y) { y = Nonsense(x) }")
    with pytest.raises(ModelError, match="Nonsense") as error:
        open_model(unknown, SessionSettings())
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_models_that_fail_when_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], check_message: CheckMessage
) -> None:
    graph = "g (float[n] x) => (float[m] y) <int64[1] s = {7}> { y = Reshape(x, s) }"
    model = open_model(write_model(tmp_path / "m.onnx", graph), SessionSettings())
    with pytest.raises(ModelError) as caught:
        model.bind({"x": np.zeros(3, np.float32)}).run()
    check_message(caught.value)
    with pytest.raises(ModelError) as caught:
        model.bind({"x": np.zeros(7, np.float64)}).run()
    check_message(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double", "bool", "uint8", "int64", "float8e4m3fn"])
def test_all_dtypes_are_accepted_and_returned(dtype: str, tmp_path: Path) -> None:
    graph = f"g ({dtype}[n, 2] x) => ({dtype}[n, 2] y) {{ y = Identity(x) }}"
    model = open_model(write_model(tmp_path / "m.onnx", graph, opset=19), SessionSettings())
    names = {"double": np.float64, "bfloat16": ml_dtypes.bfloat16, "float8e4m3fn": ml_dtypes.float8_e4m3fn}
    given = np.array([[0, 1], [1, 1], [0, 0]]).astype(names.get(dtype, dtype))
    binding = model.bind({"x": given.T.copy().T})  # not contiguous
    binding.run()
    returned = binding.outputs()["y"]
    assert returned is not None
    assert returned.dtype == given.dtype
    assert np.array_equal(returned.astype(np.float32), given.astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_elements_of_less_than_a_byte_keep_their_values(dtype: str, count: int, tmp_path: Path) -> None:
    """ONNX Runtime packs them; numpy has a byte for each."""
    element = onnx.TensorProto.DataType.Value(dtype.upper())
    graph = f"g ({dtype}[n] x) => (float[n] y, {dtype}[n] z) {{ y = Cast<to = 1>(x) z = Cast<to = {element}>(y) }}"
    info = ml_dtypes.iinfo(dtype)
    given = np.resize(np.arange(info.min, info.max + 1)[::-1], count)
    binding = open_model(write_model(tmp_path / "m.onnx", graph, opset=25), SessionSettings()).bind(
        {"x": given.astype(getattr(ml_dtypes, dtype))}
    )
    binding.run()
    outputs = binding.outputs()
    assert outputs["y"] is not None and outputs["z"] is not None
    assert outputs["y"].tolist() == given.tolist()
    assert outputs["z"].dtype == dtype
    assert outputs["z"].astype(np.int8).tolist() == given.tolist()


def test_outputs_of_scales_without_mantissa(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (float8e8m0[n] y) { y = Cast<to = 24>(x) }"
    binding = open_model(write_model(tmp_path / "m.onnx", graph, opset=25), SessionSettings()).bind(
        {"x": np.array([1, 2, 0.25], np.float32)}
    )
    binding.run()
    outputs = binding.outputs()
    assert outputs["y"] is not None
    assert outputs["y"].astype(np.float32).tolist() == [1, 2, 0.25]


def test_outputs_of_strings_and_non_tensors(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (seq(float[m]) s, string[n] t) { s = SplitToSequence(x) t = Cast <to = 8> (x) }"
    model = open_model(write_model(tmp_path / "m.onnx", graph), SessionSettings())
    timed = model.bind({"x": np.ones(2, np.float32)}, on_device=True)
    timed.run()
    assert timed.outputs()["s"] is None
    binding = model.bind({"x": np.ones(2, np.float32)})
    binding.run()
    outputs = binding.outputs()
    assert {name: None if value is None else value.tolist() for name, value in outputs.items()} == {
        "s[0]": [1.0],
        "s[1]": [1.0],
        "t": ["1", "1"],
    }
    assert binding.output_shapes() == {"s": ("seq(tensor(float))", ()), "t": ("string", (2,))}


@pytest.mark.parametrize("declared", ["2, 2", "1, 2, 3", "n", "1, 2, 2"])
def test_outputs_whose_declared_shape_is_wrong(declared: str, tmp_path: Path) -> None:
    text = f"g (float[4] x, int64[m] s) => (float[{declared}] y) {{ y = Reshape(x, s) }}"
    binding = open_model(write_model(tmp_path / "m.onnx", text), SessionSettings()).bind(
        {"x": np.arange(4, dtype=np.float32), "s": np.array([1, 2, 2])}
    )
    for _ in range(3):
        binding.run()
        assert binding.output_shapes() == {"y": ("float32", (1, 2, 2))}
        outputs = binding.outputs()
        assert outputs["y"] is not None
        assert outputs["y"].tolist() == [[[0, 1], [2, 3]]]


def test_the_optimized_model_has_external_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.onnx", RELU)
    written = tmp_path / "optimized.onnx"
    open_model(path, SessionSettings(optimized_model=written))
    assert written.is_file()
    assert capfd.readouterr() == ("", "")  # ONNX Runtime warns that it is for this machine only


def test_native_output_is_caught_and_python_keeps_its_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with catch_native_output() as caught:
        os.write(2, b"\x1b[1;31mfrom C++\x1b[m\n")
        sys.stderr.write("from Python\n")
    os.write(2, b"after\n")
    assert caught.text == "from C++\n"
    assert "after" in capfd.readouterr().err


def test_a_replaced_stream_stays_in_its_place() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as replaced, catch_native_output() as caught:
        sys.stderr.write("from Python\n")
    assert (replaced.getvalue(), caught.text) == ("from Python\n", "")


def test_native_output_is_restored_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), catch_native_output() as caught:
        os.write(2, b"inside\n")
        _ = 1 / 0
    os.write(2, b"after\n")
    assert caught.text == "inside\n"
    assert capfd.readouterr().err == "after\n"


def test_threads_catch_output_in_turn() -> None:
    texts: list[str] = []

    def work(word: str) -> None:
        with catch_native_output() as caught:
            for _ in range(20):
                os.write(2, word.encode())
        texts.append(caught.text)

    threads = [threading.Thread(target=work, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == [word * 20 for word in "abcd"]


def test_a_plugin_that_does_not_load_is_refused_with_the_reason(tmp_path: Path, check_message: CheckMessage) -> None:
    model = write_model(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    missing = str(tmp_path / "missing.so")
    with pytest.raises(BackendError) as caught:
        open_model(model, SessionSettings(provider="own", provider_library=missing))
    check_message(caught.value)
    no_plugin = onnx.onnx_cpp2py_export.__file__
    with pytest.raises(BackendError, match="CreateEpFactories"):
        open_model(model, SessionSettings(provider="own", provider_library=no_plugin))


def test_a_plugin_that_lacks_the_driver_names_it(tmp_path: Path, check_message: CheckMessage) -> None:
    """As that of TensorRT-RTX 0.5 on a machine without an NVIDIA driver."""
    if HAS_GPU or shutil.which("cc") is None:
        pytest.skip("needs a C compiler, and no GPU")
    plugin, source = tmp_path / "plugin.so", tmp_path / "empty.c"
    source.touch()
    # A driver to link against, which is gone when the plugin is loaded.
    for target, more in ((tmp_path / "libcuda.so.1", []), (plugin, ["-Wl,--no-as-needed", "-L.", "-l:libcuda.so.1"])):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source, *more], check=True, cwd=tmp_path)
    (tmp_path / "libcuda.so.1").unlink()
    model = write_model(tmp_path / "m.onnx", RELU)
    with pytest.raises(BackendError) as caught:
        open_model(model, SessionSettings(provider="own", provider_library=str(plugin)))
    check_message(caught.value)


def test_a_plugin_without_a_device_is_refused(tmp_path: Path) -> None:
    """OpenVINO's plugin 1.8.1 loads on any x86-64 CPU, and supports those of Intel."""
    plugin = pytest.importorskip("onnxruntime_ep_openvino", reason="needs the plugin of OpenVINO")
    [library] = Path(plugin.__file__).parent.glob("libonnxruntime_providers_openvino_plugin.so")
    model = write_model(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    settings = SessionSettings(provider="OpenVINOExecutionProvider", provider_library=str(library))
    try:
        assert open_model(model, settings).providers[0] == "OpenVINOExecutionProvider"
    except BackendError as error:
        assert "loads, but offers no" in str(error)


def test_settings_of_a_session_reach_onnx_runtime(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", RELU)
    settings = OnnxruntimeSettings(memory_pattern=False, spinning=False, threads=2, affinity="1")
    session = settings.request(Onnx(model, "m", "digest"), dict[str, Artifact]().__getitem__).open(model)
    assert isinstance(session, OnnxruntimeSession)
    options = session.session.get_session_options()
    assert not options.enable_mem_pattern
    entries = ("intra_op.allow_spinning", "inter_op.allow_spinning", "intra_op_thread_affinities")
    assert [options.get_session_config_entry(f"session.{entry}") for entry in entries] == ["0", "0", "1"]


def test_only_threads_of_measured_sessions_busy_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, comparing the outputs of two models took twice as long as with threads that sleep."""
    model = write_model(tmp_path / "m.onnx", RELU)

    def request_of(settings: OnnxruntimeSettings) -> OnnxruntimeRequest:
        request = settings.request(Onnx(model, "m", "digest"), dict[str, Artifact]().__getitem__)
        assert isinstance(request, OnnxruntimeRequest)
        return request

    request = request_of(OnnxruntimeSettings(spin_duration=100))
    sleeping = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
    spinning = {"session.intra_op.spin_duration_us": "100", "session.inter_op.spin_duration_us": "100"}
    assert _entries(request) == sleeping
    assert _entries(request.timed()) == spinning
    assert _entries(request.in_turns()) == spinning
    assert _entries(request_of(OnnxruntimeSettings()).timed()) == {}
    bounded = {f"session.{pool}_op.spin_duration_us": "1000" for pool in ("intra", "inter")}
    for settings in (OnnxruntimeSettings(), OnnxruntimeSettings(spin_duration=5000)):
        assert _entries(request_of(settings).in_turns()) == bounded, "longer would slow down the next turn"
    monkeypatch.setattr(onnxruntime_session, "version", lambda: "1.25.0")
    assert _entries(request_of(OnnxruntimeSettings()).in_turns()) == {"session.force_spinning_stop": "1"}
    assert _entries(request_of(OnnxruntimeSettings(spinning=False)).timed()) == sleeping


def test_affinities_must_fit_the_threads(check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        OnnxruntimeSettings(affinity="1;2-3", threads=2)
    check_message(caught.value)
    with pytest.raises(ValidationError, match="affinity"):
        OnnxruntimeSettings(affinity="1;rm -rf", threads=3)


@pytest.mark.parametrize(
    ("changed", "entry"),
    [
        ({"prepacking": False}, ("session.disable_prepacking", "1")),
        ({"integer_kernels": False}, ("session.disable_quant_qdq", "1")),
        ({"flush_denormals": True}, ("session.set_denormal_as_zero", "1")),
        ({"block_base": 4}, ("session.dynamic_block_base", "4")),
        ({"gelu_approximation": True}, ("optimization.enable_gelu_approximation", "1")),
        ({"affinity": "1"}, ("session.intra_op_thread_affinities", "1")),
    ],
)
def test_a_setting_that_is_changed_is_the_only_entry(changed: dict[str, Any], entry: tuple[str, str]) -> None:
    assert _entries(SessionSettings(spins="always")) == {}
    assert _entries(SessionSettings(spins="always", **changed)) == dict([entry])


def test_a_runtime_lacks_nothing_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OnnxruntimeSettings.lack("a step") == ""
    monkeypatch.setattr(OnnxruntimeSettings, "libraries", ("onnxruntime", "no-such-library"))
    assert "pip install no-such-library" in OnnxruntimeSettings.lack("a step")
