"""The stand-in for TensorRT is strict about names, and refuses what TensorRT refuses."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ndld_flow.base.extras import EngineBackend
from ndld_flow.profiles.read.engine_layers import read_engine_info, split_bindings
from ndld_flow.runtimes.tensorrt.release_names import known_releases, names_of_release
from tests.support.models import GraphBuilder
from tests.support.tensorrt_standin import write_plugin, write_standin

RELEASES: list[tuple[EngineBackend, str]] = [
    *(("tensorrt", release) for release in known_releases("tensorrt")),
    *(("tensorrt_rtx", release) for release in known_releases("tensorrt_rtx")),
]
Load = Callable[..., Any]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """`load("10.8")`: the stand-in's module; the next one does not disturb it."""
    loaded: dict[tuple[str, str], Any] = {}

    def load(release: str, backend: EngineBackend = "tensorrt") -> Any:
        if (backend, release) not in loaded:
            site = write_standin(tmp_path_factory.mktemp("standin"), release, backend)
            loaded[backend, release] = _import_from(site, backend)
        return loaded[backend, release]

    yield load


def _import_from(site: Path, name: str) -> Any:
    replaced = {key: sys.modules.pop(key) for key in list(sys.modules) if key.split(".")[0] == name}
    sys.path.insert(0, str(site))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(site))
        for key in [key for key in sys.modules if key.split(".")[0] == name]:
            del sys.modules[key]
        sys.modules.update(replaced)


def small_model(free: bool = True) -> bytes:
    """Conv, Relu, Conv, Add: `x` with a free batch and free sides."""
    graph = GraphBuilder()
    first = graph.op("Relu", graph.op("Conv", "x", graph.weight(8, 3, 3, 3), pads=[1, 1, 1, 1]))
    second = graph.op("Conv", first, graph.weight(8, 8, 1, 1))
    last = graph.op("Add", first, second)
    batch, *sides = ("n", "h", "w") if free else (1, 8, 8)
    return bytes(
        graph.model(
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, *sides])],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, [batch, 8, *sides])],
        ).SerializeToString()
    )


class Session:
    """A builder with a network of a model, and everything that was logged."""

    def __init__(self, trt: Any, model: bytes | None = None, strong: bool = False) -> None:
        self.trt = trt
        self.lines: list[tuple[str, str]] = []
        lines = self.lines

        class Logger(trt.ILogger):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                lines.append((severity.name, msg))

        self.logger = Logger()
        self.builder = trt.Builder(self.logger)
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if strong else 0
        self.network = self.builder.create_network(flags)
        self.parser = trt.OnnxParser(self.network, self.logger)
        assert self.parser.parse(model or small_model()), self.errors
        self.config = self.builder.create_builder_config()

    @property
    def errors(self) -> str:
        return "\n".join(message for severity, message in self.lines if severity == "ERROR")

    def add_profile(self, low: Any = (1, 3, 8, 8), best: Any = (2, 3, 8, 8), high: Any = (4, 3, 16, 16)) -> Any:
        profile = self.builder.create_optimization_profile()
        profile.set_shape("x", low, best, high)
        return self.config.add_optimization_profile(profile)

    def set_flags(self, *names: str) -> None:
        for name in names:
            self.config.set_flag(getattr(self.trt.BuilderFlag, name))

    def build(self) -> Any:
        return self.builder.build_serialized_network(self.network, self.config)

    def open(self, engine: Any) -> Any:
        return self.trt.Runtime(self.logger).deserialize_cuda_engine(engine)

    def layers(self, engine: Any) -> list[dict[str, Any]]:
        inspector = self.open(engine).create_engine_inspector()
        document = json.loads(inspector.get_engine_information(self.trt.LayerInformationFormat.JSON))
        result: list[dict[str, Any]] = document["Layers"]
        return result


# Names


@pytest.mark.representatives("tensorrt-10.13.3.9", "tensorrt-10.9.0.34")
@pytest.mark.parametrize(("backend", "release"), RELEASES)
def test_a_release_has_its_names_and_no_others(load: Load, backend: EngineBackend, release: str) -> None:
    trt = load(release, backend)
    names = names_of_release(backend, release)
    assert trt.__version__ == release
    every = {
        (owner, name)
        for which in RELEASES
        for owner, class_ in names_of_release(*which).classes.items()
        for name in class_
    }
    wrong = [
        f"{owner}.{name}"
        for owner, name in every
        if hasattr(getattr(trt, owner, None), name) is not names.has(owner, name) and name != "__init__"
    ]
    assert wrong == []
    for owner in {owner for owner, _ in every if not names.has(owner)}:
        with pytest.raises(AttributeError, match=owner):
            getattr(trt, owner)


@pytest.mark.representatives("tensorrt-10.8.0.43", "tensorrt-10.12.0.36")
@pytest.mark.parametrize(("backend", "release"), RELEASES)
def test_missing_names_can_be_neither_read_nor_set(load: Load, backend: EngineBackend, release: str) -> None:
    session = Session(load(release, backend))
    layer = session.network.get_layer(0)
    things = {
        "Builder": session.builder,
        "IBuilderConfig": session.config,
        "INetworkDefinition": session.network,
        "ILayer": layer,
        "ITensor": layer.get_output(0),
        "OnnxParser": session.parser,
        "BuilderFlag": session.trt.BuilderFlag,
        "TacticSource": session.trt.TacticSource,
    }
    here = names_of_release(backend, release)
    for owner, thing in things.items():
        elsewhere = {name for which in RELEASES for name in names_of_release(*which).classes[owner]}
        for name in {*elsewhere - here.classes[owner], "no_such_name"}:
            with pytest.raises(AttributeError, match=name):
                getattr(thing, name)
            with pytest.raises(AttributeError, match=name):
                setattr(thing, name, 1)


def test_integers_of_enums_move_between_releases(load: Load) -> None:
    old, new = load("10.8").BuilderFlag, load("10.9").BuilderFlag
    assert all(int(old.__members__[name]) != int(new.__members__[name]) for name in old.__members__)


def test_enums_behave_like_pybind11s(load: Load) -> None:
    flags = load("10.8").BuilderFlag
    tf32 = flags.TF32
    assert (tf32.name, str(tf32), repr(tf32)) == ("TF32", "BuilderFlag.TF32", f"<BuilderFlag.TF32: {int(tf32)}>")
    assert flags(tf32.value) == tf32 == flags.__members__["TF32"]
    assert tf32 != int(tf32)
    assert {tf32: 1}[flags.TF32] == 1
    with pytest.raises(AttributeError):
        tf32.name = "other"
    with pytest.raises(ValueError, match="99"):
        flags(99)


@pytest.mark.parametrize(("backend", "release"), [("tensorrt", "10.16"), ("tensorrt", "11.0"), ("tensorrt_rtx", "1.7")])
def test_types_of_tensors_cannot_be_set_where_typing_is_strong(
    load: Load, backend: EngineBackend, release: str
) -> None:
    session = Session(load(release, backend))
    tensor, half = session.network.get_input(0), session.trt.DataType.HALF
    if backend == "tensorrt" and release == "10.16":
        tensor.dtype = half
        assert tensor.dtype == half
    else:
        with pytest.raises(AttributeError):
            tensor.dtype = half


@pytest.mark.representatives("<lambda>7", "<lambda>6", "<lambda>10")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda session: session.config.set_flag(),
        lambda session: session.config.set_flag(3),
        lambda session: session.config.set_flag(session.trt.DeviceType.GPU),
        lambda session: session.builder.create_network("flags"),
        lambda session: session.builder.build_serialized_network(session.network),
        lambda session: setattr(session.config, "builder_optimization_level", "5"),
        lambda session: setattr(session.config, "profiling_verbosity", 2),
        lambda session: session.network.get_layer(0).set_output_type(session.trt.DataType.HALF),
        lambda session: session.trt.Builder(None),
        lambda session: session.trt.IBuilderConfig(),
        lambda session: session.config.set_timing_cache(None, False),
    ],
)
def test_wrong_arguments_are_refused(load: Load, wrong: Callable[[Session], object]) -> None:
    with pytest.raises(TypeError):
        wrong(Session(load("10.16")))


def test_a_derived_class_without_base_init_is_refused(load: Load) -> None:
    trt = load("10.16")

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            """Forgets its base."""

    with pytest.raises(TypeError, match="must be called"):
        Session(trt).config.progress_monitor = Monitor()


def test_names_without_a_stand_in_raise_when_called(load: Load) -> None:
    with pytest.raises(NotImplementedError, match=r"INetworkDefinition\.add_einsum"):
        Session(load("10.16")).network.add_einsum([], "")


def test_methods_have_the_signatures_of_the_installed_rtx(load: Load) -> None:
    ours = load("1.7", "tensorrt_rtx")
    real = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    different = [
        f"{owner}.{name}"
        for owner, kind in vars(ours).items()
        if inspect.isclass(kind)
        for name, played in vars(kind).items()
        if isinstance(played, FunctionType)
        and (theirs := _parameters(getattr(real, owner), name))
        and list(inspect.signature(played).parameters) not in theirs
    ]
    assert sorted(different) == [
        "ICudaEngine.create_execution_context",  # either of two
        "IStreamReaderV2.read",  # bytes are returned, and given
        "IStreamWriter.write",
        "Weights.__init__",  # one of three
    ]


def _parameters(kind: Any, name: str) -> list[list[str]]:
    """Of each way to call a method, as pybind11 documents them; none where it leaves parameters unnamed."""
    documented = re.findall(rf"{name}\((.*)\) ->", getattr(getattr(kind, name, None), "__doc__", "") or "")
    plain = [re.sub(r"\[[^]]*\]|<[^>]*>", "", item) for item in documented]
    return [[part.split(":")[0].strip() for part in item.split(",")] for item in plain if "arg0" not in item]


def test_properties_can_be_set_where_the_installed_rtxs_can(load: Load) -> None:
    ours = load("1.7", "tensorrt_rtx")
    real = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    for owner in (
        "IBuilderConfig",
        "INetworkDefinition",
        "ILayer",
        "ITensor",
        "Runtime",
        "IExecutionContext",
        "Builder",
    ):
        for name, played in vars(getattr(ours, owner)).items():
            theirs = inspect.getattr_static(getattr(real, owner), name, None)
            if isinstance(theirs, property):
                is_set = played.fset is not None if isinstance(played, property) else hasattr(played, "__set__")
                assert is_set is (theirs.fset is not None), f"{owner}.{name}"


# Configuration


def test_a_new_configuration_is_like_the_real_one(load: Load) -> None:
    """Checked against the installed TensorRT-RTX where it is there."""
    standins = Session(load("1.7", "tensorrt_rtx")).config
    real = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    reals = real.Builder(real.Logger(real.Logger.ERROR)).create_builder_config()
    for name in names_of_release("tensorrt_rtx", "1.7").classes["IBuilderConfig"]:
        held = getattr(reals, name)
        if not callable(held) and name not in ("flags", "algorithm_selector"):
            assert str(getattr(standins, name)) == str(held), name
    for pool, member in real.MemoryPoolType.__members__.items():
        ours = getattr(load("1.7", "tensorrt_rtx").MemoryPoolType, pool)
        assert standins.get_memory_pool_limit(ours) == reals.get_memory_pool_limit(member), pool


def test_settings_are_read_back(load: Load) -> None:
    session = Session(load("10.16"))
    trt, config = session.trt, session.config
    assert config.get_flag(trt.BuilderFlag.TF32)
    config.clear_flag(trt.BuilderFlag.TF32)
    session.set_flags("FP16", "REFIT")
    assert [name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag)] == ["FP16", "REFIT"]
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 28)
    config.builder_optimization_level = 9
    config.max_aux_streams = 2
    config.DLA_core = 1
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 28
    assert (config.builder_optimization_level, config.max_aux_streams, config.DLA_core) == (5, 2, -1)
    config.reset()
    assert config.get_flag(trt.BuilderFlag.TF32)
    assert config.max_aux_streams == -1


def test_everything_set_is_recorded(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_RECORD", str(tmp_path / "record"))
    session = Session(load("10.16"))
    session.config.builder_optimization_level = 4
    session.set_flags("FP16")
    lines = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
    assert {"class": "IBuilderConfig", "set": "builder_optimization_level", "value": "4"} in lines
    assert {"class": "IBuilderConfig", "call": "set_flag", "arguments": ["BuilderFlag.FP16"]} in lines


# Parsing


def test_a_network_has_a_layer_for_each_node(load: Load) -> None:
    network = Session(load("10.16")).network
    assert [layer.name for layer in network] == ["Conv_0", "Relu_1", "Conv_2", "Add_3"]
    assert [layer.type.name for layer in network] == ["CONVOLUTION", "ACTIVATION", "CONVOLUTION", "ELEMENTWISE"]
    assert network.get_layer(2).metadata == "[ONNX Layer: Conv_2]"
    assert network.get_input(0).shape == (-1, 3, -1, -1)
    assert network.get_layer(0).get_output(0).shape == (-1, 8, -1, -1)
    assert network.get_output(0).dtype.name == "FLOAT"
    assert (network.num_inputs, network.num_outputs, network.get_layer(99)) == (1, 1, None)


@pytest.mark.parametrize("data", [b"garbage!", b""])
def test_an_invalid_model_is_not_parsed(load: Load, data: bytes) -> None:
    session = Session(load("11.4"))
    assert not session.parser.parse(data)
    assert session.parser.num_errors == 1
    assert session.parser.get_error(0).code().name == "MODEL_DESERIALIZE_FAILED"
    assert not session.parser.parse_from_file("/nowhere.onnx")
    assert "not a regular file" in session.parser.get_error(1).desc()


def test_an_unknown_operator_needs_its_plugin(load: Load, tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("x", "y")]
    node = helper.make_node("Sparkle", ["x"], ["y"], name="shiny", domain="ours")
    model = helper.make_model(
        helper.make_graph([node], "main", value[:1], value[1:]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ours", 1)],
    ).SerializeToString()
    session = Session(load("10.16"))
    assert not session.parser.parse(model)
    error = session.parser.get_error(0)
    assert (error.node(), error.node_name(), error.node_operator()) == (0, "shiny", "Sparkle")
    assert "Plugin not found" in str(error)
    registry = session.builder.get_plugin_registry()
    assert registry.load_library(str(tmp_path / "nothing.so")) is None
    library = str(write_plugin(tmp_path / "libsparkle.so", ["Sparkle"]))
    assert registry.load_library(library) is not None
    assert registry.load_library(library) is None
    assert session.parser.parse(model)


# Building


@pytest.mark.parametrize(("backend", "release"), [("tensorrt", "10.8"), ("tensorrt", "11.4"), ("tensorrt_rtx", "1.7")])
def test_an_engine_is_built_opened_inspected_and_run(
    load: Load, tmp_path: Path, backend: EngineBackend, release: str
) -> None:
    session = Session(load(release, backend))
    trt = session.trt
    session.config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    assert session.add_profile() == 0
    data = bytes(session.build())
    engine = session.open(data)
    assert [(engine[at], engine.get_tensor_mode(engine[at]).name) for at in range(2)] == [
        ("x", "INPUT"),
        ("Add_3_out", "OUTPUT"),
    ]
    assert engine.get_tensor_profile_shape("x", 0) == [(1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 16, 16)]
    (tmp_path / "layers.json").write_text(
        engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    )
    info = read_engine_info(tmp_path / "layers.json")
    assert info.is_detailed
    assert [layer.onnx_nodes for layer in info.layers] == [("Conv_0", "Relu_1"), ("Conv_2",), ("Add_3",)]
    assert [[tensor.name for tensor in side] for side in split_bindings(info)] == [["x"], ["Add_3_out"]]
    assert bytes(engine.serialize()) == data

    times: dict[str, float] = {}
    context = engine.create_execution_context()
    assert context.infer_shapes() == ["x"]
    assert not context.execute_async_v3(0)
    assert not context.set_input_shape("x", (5, 3, 8, 8))
    assert "does not satisfy any" in session.errors
    assert context.set_input_shape("x", (3, 3, 8, 12))
    assert context.get_tensor_shape("Add_3_out") == (3, 8, 8, 12)
    assert not context.execute_async_v3(0)
    assert "no address is set" in session.errors
    for at in range(2):
        assert context.set_tensor_address(engine[at], 4096)
    context.profiler = _profiler(trt, times)
    assert context.execute_async_v3(0)
    assert list(times) == [layer.name for layer in info.layers]
    assert all(0.0001 < ms < 0.1 for ms in times.values())


def _profiler(trt: Any, times: dict[str, float]) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc, name-defined, unused-ignore]
        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name] = ms

    return Profiler()


def test_inspectors_differ_by_generation_and_know_shapes_from_a_context(load: Load) -> None:
    shown = {}
    for release in ("10.16", "11.0"):
        session = Session(load(release))
        session.config.profiling_verbosity = session.trt.ProfilingVerbosity.DETAILED
        session.add_profile()
        engine = session.open(session.build())
        inspector = engine.create_engine_inspector()
        inspector.execution_context = engine.create_execution_context()
        inspector.execution_context.set_input_shape("x", (2, 3, 8, 8))
        shown[release] = json.loads(inspector.get_engine_information(session.trt.LayerInformationFormat.JSON))
    assert shown["10.16"]["Bindings"] == ["x", "Add_3_out"]
    assert [bound["IOMode"] for bound in shown["11.0"]["I/O Tensors"]] == ["Input", "Output"]
    assert "Format/Datatype" in shown["10.16"]["Layers"][0]["Inputs"][0]
    assert {"Format", "Datatype"} <= set(shown["11.0"]["Layers"][0]["Inputs"][0])
    assert shown["10.16"]["Layers"][1]["Outputs"][0]["Dimensions"] == [2, 8, 8, 8]


@pytest.mark.parametrize("release", ["10.16", "11.4"])
def test_a_detailed_build_logs_its_layers(load: Load, release: str) -> None:
    session = Session(load(release))
    session.add_profile()
    session.build()
    assert not [message for _, message in session.lines if message.startswith("Layers:")]
    session.config.profiling_verbosity = session.trt.ProfilingVerbosity.DETAILED
    session.build()
    (result,) = [
        message for severity, message in session.lines if message.startswith("Layers:") and severity == "VERBOSE"
    ]
    lines = result.split("\n\n")[0].split("\n")[1:]
    assert len(lines) == 3
    assert "[ONNX Layer: Conv_0]" in lines[0]
    assert "[ONNX Layer: Relu_1]" in lines[0]
    assert ("Bindings:" if release == "10.16" else "I/O Tensors:") in result
    assert any(message.startswith("Total Weights Memory: ") for _, message in session.lines)


def _without_profile(session: Session) -> None:
    """Nothing is set."""


def _of_wrong_rank(session: Session) -> None:
    session.add_profile((1, 3, 8), (1, 3, 8), (1, 3, 8))


def _of_other_channels(session: Session) -> None:
    session.add_profile((1, 4, 8, 8), (1, 4, 8, 8), (1, 4, 8, 8))


def _int8_without_ranges(session: Session) -> None:
    session.add_profile()
    session.set_flags("INT8")


def _int8_and_fp8(session: Session) -> None:
    session.add_profile()
    session.set_flags("INT8", "FP8")


def _weights_that_stream(session: Session) -> None:
    session.add_profile()
    session.set_flags("WEIGHT_STREAMING")


def _on_dla(session: Session) -> None:
    session.add_profile()
    session.config.default_device_type = session.trt.DeviceType.DLA


def _obey_what_is_not_allowed(session: Session) -> None:
    session.add_profile()
    session.set_flags("OBEY_PRECISION_CONSTRAINTS")
    session.network.get_layer(0).precision = session.trt.DataType.HALF


def _miss_in_timing_cache(session: Session) -> None:
    session.add_profile()
    session.config.set_timing_cache(session.config.create_timing_cache(b""), False)
    session.set_flags("ERROR_ON_TIMING_CACHE_MISS")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (_without_profile, "no optimization profile"),
        (_of_wrong_rank, "4 dimensions but profile 0 has 3"),
        (_of_other_channels, "axis 1, profile has min=4"),
        (_int8_without_ranges, "no scaling factors detected"),
        (_int8_and_fp8, "cannot be used together"),
        (_weights_that_stream, "requires a strongly typed network"),
        (_on_dla, "device type is DLA"),
        (_obey_what_is_not_allowed, "BuilderFlag FP16 is not"),
        (_miss_in_timing_cache, "cache miss for Conv_0"),
    ],
)
def test_networks_that_tensorrt_refuses_are_not_built(load: Load, ask: Callable[[Session], None], says: str) -> None:
    session = Session(load("10.16"))
    ask(session)
    assert session.build() is None
    assert says in session.errors


def test_a_profile_out_of_order_is_not_added(load: Load) -> None:
    session = Session(load("10.16"))
    assert session.add_profile((4, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8)) == -1
    assert session.config.num_optimization_profiles == 0
    assert "MIN<=OPT<=MAX" in session.errors


@pytest.mark.parametrize("flag", ["FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"])
def test_strong_typing_refuses_precisions(load: Load, flag: str) -> None:
    session = Session(load("10.16"), strong=True)
    session.add_profile()
    layer = session.network.get_layer(0)
    layer.precision = session.trt.DataType.HALF
    assert not layer.precision_is_set
    layer.set_output_type(0, session.trt.DataType.HALF)
    assert not layer.output_type_is_set(0)
    assert "not supported for strongly" in session.errors
    session.set_flags(flag)
    assert session.build() is None
    assert f"k{flag} cannot be used" in session.errors


def test_precisions_show_in_the_layers(load: Load) -> None:
    session = Session(load("10.16"))
    session.add_profile()
    session.config.profiling_verbosity = session.trt.ProfilingVerbosity.DETAILED
    session.set_flags("FP16", "OBEY_PRECISION_CONSTRAINTS")
    session.network.get_layer(2).precision = session.trt.DataType.FLOAT
    types = {
        layer["Name"]: layer["Outputs"][0]["Format/Datatype"].split()[3] for layer in session.layers(session.build())
    }
    assert types == {
        "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1": "FP16",
        "Conv_0 + Relu_1": "FP16",
        "Reformatting CopyNode for Input Tensor 0 to Conv_2": "FP32",
        "Conv_2": "FP32",
        "Reformatting CopyNode for Input Tensor 1 to Add_3": "FP16",
        "Add_3": "FP16",
        "Reformatting CopyNode for Output Tensor 0 to Add_3_out": "FP32",
    }


@pytest.mark.parametrize(
    ("cache", "is_built", "batches"),
    [(b"TRT-101601-EntropyCalibration2\n", True, 0), (None, True, 2), (b"!", False, 0)],
)
def test_int8_takes_its_ranges_from_a_calibrator(load: Load, cache: bytes | None, is_built: bool, batches: int) -> None:
    session = Session(load("10.16"))
    trt, asked, written = session.trt, [], []

    class Calibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc, name-defined, unused-ignore]
        def get_batch(self, names: list[str]) -> list[int] | None:
            asked.append(names)
            return [4096] if len(asked) <= batches else None

        def read_calibration_cache(self) -> bytes | None:
            return cache

        def write_calibration_cache(self, cache: bytes) -> None:
            written.append(cache)

    session.add_profile()
    session.set_flags("INT8")
    session.config.int8_calibrator = Calibrator()
    assert (session.build() is not None) is is_built
    assert len(written) == (1 if cache is None else 0)


def test_dynamic_ranges_stand_for_a_calibration(load: Load) -> None:
    session = Session(load("10.16"))
    session.add_profile()
    session.set_flags("INT8")
    for layer in session.network:
        assert layer.get_output(0).set_dynamic_range(-1, 1)
    assert session.build() is None
    session.network.get_input(0).set_dynamic_range(-1, 1)
    assert session.build() is not None


def test_monitors_receive_progress_and_can_cancel(load: Load) -> None:
    session = Session(load("10.16"))
    trt, heard, go_on = session.trt, [], SimpleNamespace(value=True)

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined, unused-ignore]
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            heard.append((phase_name, parent_phase, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            return bool(go_on.value)

    session.add_profile()
    session.config.progress_monitor = Monitor()
    assert session.build() is not None
    assert heard == [("Building engine", None, 3), ("Timing graph nodes", "Building engine", 3)]
    go_on.value = False
    assert session.build() is None
    assert "Build canceled by user" in session.errors


def test_timing_caches_grow_hit_combine_and_belong_to_a_release(load: Load) -> None:
    session = Session(load("10.16"))
    session.add_profile()
    cache = session.config.create_timing_cache(b"")
    assert session.config.set_timing_cache(cache, False)
    session.build()
    kept = bytes(session.config.get_timing_cache().serialize())
    assert len(cache.queryKeys()) == 3

    again = Session(load("10.16"))
    again.add_profile()
    again.set_flags("ERROR_ON_TIMING_CACHE_MISS")
    assert again.config.set_timing_cache(again.config.create_timing_cache(kept), False)
    assert again.build() is not None
    empty = again.config.create_timing_cache(b"")
    assert empty.combine(again.config.get_timing_cache(), False)
    assert bytes(empty.serialize()) == kept

    later = Session(load("11.0"))
    assert not later.config.set_timing_cache(later.config.create_timing_cache(kept), False)
    assert not later.config.set_timing_cache(later.config.create_timing_cache(b"garbage"), False)


def test_rtx_keeps_no_timings_and_warns(load: Load) -> None:
    session = Session(load("1.7", "tensorrt_rtx"))
    session.add_profile()
    with pytest.warns(DeprecationWarning, match="no-ops"):
        cache = session.config.create_timing_cache(b"")
    session.config.set_timing_cache(cache, False)
    session.build()
    assert cache.queryKeys() == []


# Opening


def test_engines_of_others_are_not_opened(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Session(load("10.8")), Session(load("10.16"))
    for session in (old, new):
        session.add_profile()
    plain = bytes(old.build())
    assert new.open(plain) is None
    assert "expecting library version 10.16.1.11 got 10.8.0.43" in new.errors
    assert old.open(plain[:-1]) is None
    assert old.open(b"garbage") is None
    monkeypatch.setenv("STANDIN_NO_GPU", "1")
    assert old.open(plain) is None
    assert "cudaError 35" in old.errors


def test_a_version_compatible_engine_needs_trust_for_its_code_or_its_lean_runtime(load: Load, tmp_path: Path) -> None:
    old, new = Session(load("10.8")), Session(load("10.16"))
    old.add_profile()
    old.set_flags("EXCLUDE_LEAN_RUNTIME")
    assert "if kVERSION_COMPATIBLE is set" in old.errors
    old.set_flags("VERSION_COMPATIBLE")
    data = old.build()
    runtime = new.trt.Runtime(new.logger)
    assert runtime.deserialize_cuda_engine(data) is None
    runtime.engine_host_code_allowed = True
    assert runtime.deserialize_cuda_engine(data) is not None
    old.set_flags("EXCLUDE_LEAN_RUNTIME")
    without = old.build()
    assert new.open(without) is None
    lean = tmp_path / "libnvinfer_lean.so"
    lean.write_bytes(b"STANDIN_LEAN_RUNTIME:10.8.0.43;")
    assert new.trt.Runtime(new.logger).load_runtime(str(lean)).deserialize_cuda_engine(without) is not None


def test_a_stripped_engine_runs_after_refitting(load: Load) -> None:
    session = Session(load("10.16"))
    session.add_profile()
    full = session.build()
    session.set_flags("STRIP_PLAN", "REFIT")
    stripped = session.build()
    assert stripped.nbytes < full.nbytes - 1000
    engine = session.open(stripped)
    assert engine.create_execution_context() is None
    refitter = session.trt.Refitter(engine, session.logger)
    assert refitter.get_missing_weights() == ["w_0", "w_1"]
    assert not refitter.set_named_weights("w_0", np.zeros(3, np.float32))
    assert not refitter.refit_cuda_engine()
    assert session.trt.OnnxParserRefitter(refitter, session.logger).refit_from_bytes(small_model())
    assert refitter.refit_cuda_engine()
    assert engine.create_execution_context() is not None
    settings = engine.create_serialization_config()
    settings.clear_flag(session.trt.SerializationFlag.EXCLUDE_WEIGHTS)
    assert session.open(engine.serialize_with_config(settings)).create_execution_context() is not None


def test_only_refittable_engines_are_refitted(load: Load) -> None:
    session = Session(load("10.16"))
    session.add_profile()
    with pytest.raises(TypeError, match="nullptr"):
        session.trt.Refitter(session.open(session.build()), session.logger)


def test_an_rtx_engine_runs_on_its_gpus(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(load("1.7", "tensorrt_rtx"))
    session.add_profile()
    session.config.num_compute_capabilities = 1
    assert session.build() is None
    assert session.config.set_compute_capability(session.trt.ComputeCapability.SM86, 0)
    data = session.build()
    assert session.open(data) is None
    monkeypatch.setenv("STANDIN_GPU", "8.6")
    assert session.open(data) is not None


# As a package


def run_worker(site: Path, script: str, **environment: str) -> str:
    """Run a script that sees the stand-in, and nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": str(site), **environment},
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_a_package_of_a_virtual_environment(tmp_path: Path) -> None:
    site = write_standin(tmp_path / "venv", "10.9")
    assert (tmp_path / "venv/pyvenv.cfg").is_file()
    assert site.relative_to(tmp_path / "venv").parts[0] == "lib"
    script = """
import importlib.metadata, sys, tensorrt
ours = [name for name, module in sys.modules.items() if REPOSITORY in str(getattr(module, "__file__", ""))]
print(importlib.metadata.version("tensorrt"), tensorrt.__version__, "onnx" in sys.modules, ours)
"""
    worker = run_worker(site, f"REPOSITORY = {str(Path(__file__).parents[2] / 'tests')!r}\n{script}")
    assert worker == "10.9.0.34 10.9.0.34 False []\n"


def test_without_a_driver_there_is_no_builder(tmp_path: Path) -> None:
    site = write_standin(tmp_path / "venv", "11.0")
    script = "import tensorrt\ntry: tensorrt.Builder(tensorrt.Logger())\nexcept TypeError as error: print(error)"
    assert "nullptr" in run_worker(site, script, STANDIN_NO_DRIVER="1")


def test_weights_in_files_of_their_own_are_read_or_missed(load: Load, tmp_path: Path) -> None:
    model = onnx.load_model_from_string(small_model(free=False))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    session = Session(load("10.16"))
    network = session.builder.create_network(0)
    parser = session.trt.OnnxParser(network, session.logger)
    assert parser.parse_from_file(str(tmp_path / "model.onnx"))
    config = session.builder.create_builder_config()
    assert session.builder.build_serialized_network(network, config) is not None
    (tmp_path / "weights").unlink()
    assert not session.trt.OnnxParser(session.builder.create_network(0), session.logger).parse_from_file(
        str(tmp_path / "model.onnx")
    )
