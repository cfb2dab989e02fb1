"""Parts of building that need no library: which shapes are allowed, and what a builder's log says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.base.errors import BackendError, RequestError, UnknownNameError
from ndld_flow.engines.build_settings import BatchSetting, BuildSettings, ShapeSetting
from ndld_flow.engines.building import see_one_gpu
from ndld_flow.engines.network import read_compiled_layers
from ndld_flow.engines.optimization_profiles import NetworkInput, choose_profiles
from ndld_flow.inputs import InputSpec
from ndld_flow.records.build import ShapeRange
from ndld_flow.runtimes.tensorrt.build_log import BuildLog, join_reasons, reason_of
from tests.support.message_files import CheckMessage

IMAGE = NetworkInput("x", (-1, 3, -1, -1), ("n", "", "h", "w"))
BATCHED = NetworkInput("x", (-1, 4))
FIXED = NetworkInput("x", (2, 4))
SCALAR = NetworkInput("s", (), is_shape_tensor=True)
SHAPE_TENSOR = NetworkInput("s", (2,), is_shape_tensor=True)


def fixed(*shape: int, values: bool = False) -> ShapeRange:
    return ShapeRange(min=shape, opt=shape, max=shape, values=values)


def choose(given: NetworkInput, settings: BuildSettings | None = None, **recipe: InputSpec) -> tuple[ShapeRange, str]:
    (profile,) = choose_profiles([given], settings or BuildSettings(), recipe)
    return profile.inputs[given.name], profile.basis


# Where shapes come from


def test_the_first_source_with_shapes_is_used() -> None:
    setting = ShapeSetting(min=(2, 4), opt=(2, 4), max=(2, 4))
    run_at = InputSpec(shape=(5, 4))
    batch = BuildSettings(batch=BatchSetting(min=2, opt=3, max=4))
    assert choose(BATCHED, BuildSettings(profiles=({"x": setting},)), x=run_at) == (fixed(2, 4), "profiles[0]")
    assert choose(BATCHED, batch, x=run_at) == (ShapeRange(min=(2, 4), opt=(3, 4), max=(4, 4)), "batch")
    assert choose(BATCHED, x=run_at) == (fixed(5, 4), "inputs")
    assert choose(BATCHED) == (fixed(1, 4), "inferred batch")
    assert choose(FIXED) == (fixed(2, 4), "fixed shapes")
    assert choose(FIXED, batch) == (fixed(2, 4), "fixed shapes")


def test_missing_bounds_are_the_optimal_shape() -> None:
    assert choose(BATCHED, x=InputSpec(opt=(2, 4)))[0] == fixed(2, 4)
    assert choose(BATCHED, x=InputSpec(opt=(2, 4), max=(8, 4)))[0] == ShapeRange(min=(2, 4), opt=(2, 4), max=(8, 4))
    assert choose(BATCHED, x=InputSpec(min=(2, 4), max=(8, 4)))[0] == ShapeRange(min=(2, 4), opt=(8, 4), max=(8, 4))


def test_a_number_in_the_recipe_is_the_value_of_a_shape_tensor(check_message: CheckMessage) -> None:
    assert choose(SHAPE_TENSOR, s=InputSpec(data=3))[0] == fixed(3, 3, values=True)
    assert choose(SCALAR, s=InputSpec(data=3))[0] == fixed(3, values=True)
    with pytest.raises(RequestError) as caught:
        choose(SHAPE_TENSOR, s=InputSpec(shape=(2,)))
    check_message(caught.value)


@pytest.mark.parametrize(
    ("network_input", "shape"),
    [(FIXED, (3, 4)), (BATCHED, (1, 4, 1)), (SHAPE_TENSOR, (1, 2, 3))],
)
def test_shapes_that_do_not_fit_are_refused(
    network_input: NetworkInput, shape: tuple[int, ...], check_message: CheckMessage
) -> None:
    setting = ShapeSetting(min=shape, opt=shape, max=shape)
    with pytest.raises(RequestError) as caught:
        choose(network_input, BuildSettings(profiles=({network_input.name: setting},)))
    check_message(caught.value)


def test_missing_shapes_are_named_with_dimensions_and_a_remedy(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as raised:
        choose_profiles([IMAGE, NetworkInput("b", (-1, 4)), NetworkInput("y", (-1, -1))], BuildSettings(), {})
    check_message(raised.value)


def test_an_input_that_the_model_lacks_is_an_error() -> None:
    with pytest.raises(UnknownNameError) as caught:
        choose_profiles([IMAGE], BuildSettings(), {"X": InputSpec(shape=(1, 3, 8, 8))})
    assert caught.value.name == "X"


def test_the_builder_sees_only_the_requested_gpu(monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert see_one_gpu(1) == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8f2a")
    assert see_one_gpu(1) == {"CUDA_VISIBLE_DEVICES": "GPU-8f2a"}
    with pytest.raises(BackendError) as caught:
        see_one_gpu(2)
    check_message(caught.value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert see_one_gpu(0) == {}


dims = st.integers(0, 5)
network_inputs = st.builds(
    NetworkInput,
    name=st.sampled_from("abc"),
    shape=st.lists(st.one_of(st.just(-1), dims), max_size=3).map(tuple),
    is_shape_tensor=st.booleans(),
)
shape_tuples = st.lists(dims, max_size=3).map(tuple)


@st.composite
def shape_settings(draw: st.DrawFn) -> ShapeSetting:
    rows = draw(st.lists(st.tuples(dims, dims, dims).map(sorted), max_size=3))
    low, best, high = (tuple(row[index] for row in rows) for index in range(3))
    return ShapeSetting(min=low, opt=best, max=high)


@given(
    inputs=st.lists(network_inputs, max_size=3, unique_by=lambda each: each.name),
    profiles=st.lists(st.dictionaries(st.sampled_from("abcd"), shape_settings(), max_size=3), max_size=2),
    recipe=st.dictionaries(st.sampled_from("abcd"), st.builds(InputSpec, shape=shape_tuples), max_size=3),
    batch=st.none() | st.just(BatchSetting(min=1, opt=2, max=3)),
)
def test_profiles_are_complete_or_refused(
    inputs: list[NetworkInput], profiles: list[dict[str, ShapeSetting]], recipe: dict[str, InputSpec], batch: Any
) -> None:
    settings = BuildSettings(profiles=tuple(profiles), batch=None if profiles else batch)
    try:
        chosen = choose_profiles(inputs, settings, recipe)
    except RequestError as error:
        assert "\n" not in str(error)
        return
    assert len(chosen) == max(1, len(profiles))
    for profile in chosen:
        assert list(profile.inputs) == [item.name for item in inputs]
        for each in inputs:
            shapes = profile.inputs[each.name]
            assert all(
                0 <= low <= best <= high for low, best, high in zip(shapes.min, shapes.opt, shapes.max, strict=True)
            )
            if not each.is_shape_tensor:
                assert all(own in (-1, size) for own, size in zip(each.shape, shapes.opt, strict=True))


# What a builder says


def logged_tensor(name: str, shape: list[int]) -> str:
    text = ",".join(map(str, shape))
    return (
        f"{{ Name: {name}, Dimensions: [{text}], Strides: [{text}], StrideOrder: [{text}], Datatype: Float, "
        "Format: (Linear) Row major linear format }"
    )


def logged_list(names: list[str]) -> str:
    return f"[ {', '.join(logged_tensor(name, [2, -1]) for name in names)}]" if names else "[]"


# What separates the parts of a line may stand in a name too, but then nobody could tell it from the real thing.
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: not any(mark in text for mark in (", Dimensions: [", "], ", ", LayerType: ", " }", "{ Name: ", "\n"))
)
layers = st.fixed_dictionaries(
    {
        "name": names,
        "inputs": st.lists(names, max_size=3),
        "constants": st.lists(names, max_size=2),
        "outputs": st.lists(names, max_size=2),
    }
)


@given(st.lists(layers, min_size=1, max_size=5))
def test_compiled_layers_are_read_from_the_log(said: list[dict[str, Any]]) -> None:
    lines = [
        f"Name: {layer['name']}, LayerType: kgen, Inputs: {logged_list(layer['inputs'])}, "
        f"Constants: {logged_list(layer['constants'])}, Outputs: {logged_list(layer['outputs'])}, TacticName: t0x1, "
        f"StreamId: {number}, JumpTargetThen: a, Metadata: [ONNX Layer: n]\x1f[ONNX Layer: m]"
        for number, layer in enumerate(said)
    ]
    tail = "\n\nI/O Tensors:\n Name: x, IOMode: Input, DataType: Float\n\nEngine Metadata:\n Multi-Device: Disabled\n"
    read = read_compiled_layers("\n".join(lines) + tail)
    assert [entry["Name"] for entry in read] == [layer["name"] for layer in said]
    for number, (entry, layer) in enumerate(zip(read, said, strict=True)):
        for key in ("inputs", "constants", "outputs"):
            tensors: Any = entry[key.capitalize()]
            assert [(tensor["Name"], tensor["Dimensions"]) for tensor in tensors] == [(n, [2, -1]) for n in layer[key]]
        assert (entry["StreamId"], entry["TacticName"]) == (number, "t0x1")
        assert entry["Metadata"] == "[ONNX Layer: n]\x1f[ONNX Layer: m]"


@given(st.text())
def test_any_message_can_be_read(text: str) -> None:
    read_compiled_layers(text)
    read_compiled_layers(f"Name: {text}, LayerType: kgen, Inputs: [{text}], Constants: []")
    assert "\n" not in reason_of(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:1500: run_passes] Cannot compile for "
            "target(s) sm86, because the model contains HW-specific datatypes: fp8_e4m3. In compileGraph at "
            "/_src/optimizer/myelin/codeGenerator.cpp:2012)",
            "Cannot compile for target(s) sm86, because the model contains HW-specific datatypes: fp8_e4m3",
        ),
        (
            "[tacticSupply.cpp::getSupportedFormats::48] Error Code 2: Internal Error (Assertion !layerImpls.empty() "
            "failed. a_0 has no runners that implement it In getSupportedFormats at /_src/a/tacticSupply.cpp:48)",
            "Assertion !layerImpls.empty() failed. a_0 has no runners that implement it",
        ),
        ("something\n  else", "something else"),
    ],
)
def test_reasons_leave_out_positions_in_source_files(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_reasons_caused_by_the_model_come_first(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "build.log")
    log.take("ERROR", "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (cudaError 35)")
    log.take("WARNING", "be careful")
    log.take("ERROR", "the model is wrong")
    log.take("ERROR", "the model is wrong")
    log.take("WARNING", "be careful")
    assert log.errors == ("the model is wrong",)
    assert log.warnings == ("be careful",)
    assert (tmp_path / "build.log").read_text().count("[ERROR] the model is wrong\n") == 2
    log.close()


def test_the_size_of_the_log_is_limited(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "build.log")
    for number in range(70):
        log.take("VERBOSE", f"{number}" + "x" * 2**20)
    log.take("INFO", "Total Weights Memory: 7 bytes")
    for number in range(5000):
        log.take("WARNING", f"careful {number}")
    log.take("ERROR", "the model is wrong")
    log.close()
    written = (tmp_path / "build.log").read_text()
    assert len(written) < 50 * 2**20
    assert written.count("[VERBOSE] the log is long") == 1
    assert "[INFO] Total Weights Memory" in written
    assert written.endswith("[ERROR] the model is wrong\n")
    assert len(log.warnings) == 1000


def test_messages_after_the_build_are_not_kept(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "build.log")
    log.is_listening = False
    log.take("ERROR", "cannot open the engine here")
    log.close()
    assert (log.errors, (tmp_path / "build.log").read_text()) == ((), "")


def test_memory_is_that_of_the_largest_profile(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "build.log")
    for activation in (10, 30, 20):
        log.take("INFO", f"Total Activation Memory: {activation} bytes")
    log.take("INFO", "Total Weights Memory: 7 bytes")
    log.take("INFO", "Total Scratch Memory: 5 bytes")
    memory = log.memory(100)
    assert (memory.activation_bytes, memory.weights_bytes, memory.scratch_bytes) == (30, 7, 5)
    assert memory.build_peak_bytes == 100
    log.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_log_that_cannot_be_written_raises_when_it_is_closed(check_message: CheckMessage) -> None:
    log = BuildLog(Path("/dev/full"))
    log.take("INFO", "Total Weights Memory: 7 bytes")
    assert log.memory(0).weights_bytes == 7
    with pytest.raises(OSError) as caught:
        log.close()
    check_message(caught.value)


def test_many_reasons_are_shortened_to_the_first_and_a_count() -> None:
    assert join_reasons(["a.", "b"]) == "a; b"
    assert "0; 1; 2; 3; and 2" in join_reasons([str(number) for number in range(6)])


@pytest.mark.parametrize(
    "written", ['{"workspace": %d}', '{"max_aux_streams": %d}', '{"advanced": {"max_threads": %d}}']
)
def test_numbers_outside_the_bindings_range_are_refused(written: str, check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        BuildSettings.model_validate_json(written % 2**64)
    check_message(caught.value)
