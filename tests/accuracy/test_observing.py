"""Tensors inside a model: capture, ranges, comparison by layer, and the local error of each node."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from onnx.reference import ReferenceEvaluator

from ndld_flow.accuracy.agreement import Agreement
from ndld_flow.accuracy.inside import divergence, local_error
from ndld_flow.accuracy.inside import layer_meters as ranges
from ndld_flow.accuracy.inside import local_error as reduced_twins
from ndld_flow.accuracy.inside.capture import capture, capture_part, tensors_of
from ndld_flow.accuracy.inside.divergence import Observed, allowed_noise, diverge, first_divergent
from ndld_flow.accuracy.inside.layer_meters import FORMAT_LIMITS, LayerAgreement, RangeMeter
from ndld_flow.accuracy.inside.local_error import LocalError, local_errors
from ndld_flow.base.errors import RequestError
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from tests.support import models, models_fp16
from tests.support.fp16_checks import convert, normal
from tests.support.message_files import CheckMessage
from tests.support.models_run import write_model

Array = npt.NDArray[Any]
PLAIN = OnnxruntimeRequest()
X: dict[str, Any] = {"x": normal(1, 3, 16, 16)}


# Capturing --------------------------------------------------------------------------------------------------------


def test_tensors_are_listed_in_order_with_those_inside_bodies(tmp_path: Path) -> None:
    places = {tensor.name: tensor for tensor in tensors_of(models.make_ctrl(tmp_path / "ctrl.onnx"))}
    assert [place.position for place in places.values()] == sorted(place.position for place in places.values())
    assert places["then_Add_2_out"].in_body and not places["then_Add_2_out"].can_be_captured
    branch = places["If_8_out"]
    assert not branch.in_body and branch.can_be_captured
    assert (branch.node, branch.op_type) == ("If_8", "If")
    assert "Identity_4_out" in branch.reads  # which only its branches read
    assert places["then_Add_2_out"].position == branch.position + 8


@pytest.mark.parametrize("level", ["disabled", "all"])
def test_every_tensor_is_captured_even_if_fusion_would_remove_it(tmp_path: Path, level: Any) -> None:
    path = models.make_cnn(tmp_path / "cnn.onnx")
    names = [tensor.name for tensor in tensors_of(path)]
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    expected: Any = ReferenceEvaluator(model).run(None, X)
    (result,) = capture(path, names, [X], OnnxruntimeRequest(optimization=level), tmp_path)
    assert set(result) == set(names)
    for name, array in zip(names, expected, strict=True):
        np.testing.assert_allclose(result[name], array, rtol=1e-4, atol=1e-5)


def test_captures_larger_than_memory_use_more_runs_and_mapped_files(tmp_path: Path) -> None:
    path = models.make_cnn(tmp_path / "cnn.onnx")
    names = [tensor.name for tensor in tensors_of(path)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    samples = [{"x": normal(1, 3, 16, 16)} for _ in range(3)]
    at_once = list(capture(path, names, samples, PLAIN, scratch))
    assert not any(scratch.iterdir())
    for expected, item in zip(at_once, capture(path, names, iter(samples), PLAIN, scratch, 20_000), strict=True):
        assert any(isinstance(array, np.memmap) for array in item.values())
        assert set(item) == set(names)
        for name in names:
            np.testing.assert_allclose(item[name], expected[name], rtol=1e-4, atol=1e-5)
    assert not any(scratch.iterdir())


def test_samples_are_loaded_one_at_a_time(tmp_path: Path) -> None:
    path = models.make_cnn(tmp_path / "cnn.onnx")
    asked = []

    def samples() -> Iterator[dict[str, Array]]:
        for number in range(100):
            asked.append(number)
            yield X

    next(capture(path, ["Relu_3_out"], samples(), PLAIN, tmp_path))
    assert len(asked) <= 2


def test_bodies_and_sequences_are_left_out(tmp_path: Path) -> None:
    source = models.save(models_fp16.sequence_model(), tmp_path / "sequence.onnx")
    names = [tensor.name for tensor in tensors_of(source)]
    (result,) = capture(source, names, [{"x": normal(4, 3)}], PLAIN, tmp_path)
    assert set(names) - set(result) == {"SplitToSequence_2_out", "SequenceInsert_4_out"}
    ctrl = models.make_ctrl(tmp_path / "ctrl.onnx")
    places = tensors_of(ctrl)
    (result,) = capture(ctrl, [place.name for place in places], [{"x": normal(2, 4)}], PLAIN, tmp_path)
    assert set(result) == {place.name for place in places if not place.in_body}


def test_an_unknown_tensor_is_refused_with_the_nearest_name(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        capture(models.make_cnn(tmp_path / "cnn.onnx"), ["Relu_3_uot"], [X], PLAIN, tmp_path)
    check_message(caught.value)


def test_external_data_is_not_copied(tmp_path: Path) -> None:
    path = models.make_ext(tmp_path / "ext.onnx")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = sorted(tmp_path.rglob("*"))
    (result,) = capture(path, ["MatMul_0_out"], [{"x": np.ones((1, 256), np.float32)}], PLAIN, scratch)
    weight = np.fromfile(tmp_path / "ext.onnx.bin", np.float32)[: 256 * 256].reshape(256, 256)
    np.testing.assert_allclose(result["MatMul_0_out"][0], weight.sum(axis=0), rtol=1e-3, atol=1e-4)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_stops_after_the_requested_tensors(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "model.onnx",
        """g (float[n] x) => (float[m] y) {
            early = Relu(x)
            shape = Constant<value_ints=[7]>()
            y = Reshape(early, shape)
        }""",
    )
    (result,) = capture(path, ["early"], [{"x": np.array([-1, 2], np.float32)}], PLAIN, tmp_path)
    assert result["early"].tolist() == [0, 2]


def test_sizes_known_only_at_run_time_are_handled(tmp_path: Path) -> None:
    """NonZero gives as many as there are."""
    path = write_model(
        tmp_path / "model.onnx",
        "g (float[n] x) => (int64[1, m] y) { a = NonZero(x) b = Neg(a) y = Neg(b) }",
    )
    x = np.ones(1000, np.float32)
    (result,) = capture(path, ["a", "b", "y"], [{"x": x}], PLAIN, tmp_path, 10_000)
    assert isinstance(result["a"], np.memmap) and result["y"][0].tolist() == list(range(1000))


# Ranges -----------------------------------------------------------------------------------------------------------

LIMITS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp8e4m3": ml_dtypes.float8_e4m3fn, "fp32": np.float32}


@pytest.mark.parametrize("precision", list(LIMITS))
def test_limits_match_the_dtype(precision: str) -> None:
    limits, dtype = FORMAT_LIMITS[precision], LIMITS[precision]
    for number in (limits.largest, limits.smallest, limits.smallest_normal):
        assert float(np.float64(number).astype(dtype)) == number
    assert float(np.float64(limits.smallest / 2).astype(dtype)) == 0


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(np_st.arrays(np.float32, st.integers(0, 30), elements=FLOATS), min_size=1, max_size=4),
    st.sampled_from(sorted(LIMITS)),
)
def test_a_range_matches_numpy(samples: list[Array], precision: str) -> None:
    meter = RangeMeter("t", FORMAT_LIMITS[precision])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "CHUNK", 7)
        for sample in samples:
            meter.add(sample)
    result, everything = meter.range(), np.concatenate(samples).astype(np.float64)
    finite = everything[np.isfinite(everything)]
    other = finite[finite != 0]
    limits, count = FORMAT_LIMITS[precision], max(everything.size, 1)
    assert result.elements == everything.size
    assert (result.nan_count, result.inf_count) == (np.isnan(everything).sum(), np.isinf(everything).sum())
    assert result.minimum == finite.min(initial=np.inf) if finite.size else result.minimum == 0
    assert result.maximum == finite.max(initial=-np.inf) if finite.size else result.maximum == 0
    assert result.smallest_abs == (np.abs(other).min() if other.size else 0)
    assert result.rms == pytest.approx(math.sqrt(np.mean(finite**2)) if finite.size else 0)
    assert result.beyond_share == np.count_nonzero(np.abs(finite) > limits.largest) / count
    assert result.subnormal_share == np.count_nonzero(np.abs(other) < limits.smallest_normal) / count
    vanishing = np.count_nonzero(np.abs(other) <= limits.smallest / 2)
    assert result.vanishing_share == vanishing / count


@pytest.mark.parametrize("precision", ["fp16", "fp8e4m3"])
def test_half_of_the_smallest_number_rounds_to_zero_and_more_does_not(precision: str) -> None:
    limits = FORMAT_LIMITS[precision]
    meter = RangeMeter("t", limits)
    meter.add(np.array([0.5, 0.51, -0.75, 1, 0]) * limits.smallest)
    assert (meter.range().vanishing_share, meter.range().subnormal_share) == (0.2, 0.8)


def test_ranges_of_other_dtypes_match_numpy() -> None:
    meter = RangeMeter("t", FORMAT_LIMITS["fp16"])
    for array in (
        np.array([2**40, -3]),
        np.array([0.5, np.nan], ml_dtypes.bfloat16),
        np.array(True),
        np.array([1e-7], np.float16),
    ):
        meter.add(np.asarray(array))
    result = meter.range()
    assert (result.elements, result.minimum, result.maximum, result.nan_count) == (6, -3, 2**40, 1)
    assert [result.beyond_share, result.subnormal_share] == pytest.approx([1 / 6, 1 / 6])


# Divergence -------------------------------------------------------------------------------------------------------

MODEST = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, math.nan, math.inf])


@settings(max_examples=20, deadline=None)
@given(
    st.data(),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
def test_layers_are_compared_like_outputs(data: st.DataObject, sizes: list[int]) -> None:
    layer, output = LayerAgreement(), Agreement()
    for size in sizes:
        r, c = (data.draw(np_st.arrays(np.float32, size, elements=MODEST)) for _ in range(2))
        layer.add(r, c)
        output.add(r, c)
    metrics = output.metrics()
    assert layer.nonfinite == output.only_candidate_nonfinite
    for name, value in layer.metrics().items():
        assert value == pytest.approx(metrics[name], rel=1e-6, abs=1e-9), name
    assert layer.metrics() or not metrics.keys() & {"cosine", "relative_rms"}


def overflowing(folder: Path) -> tuple[Path, Path]:
    """A model with a hidden tensor of up to 80000, and it in emulated fp16."""
    source = write_model(
        folder / "source.onnx",
        """g (float[n] x) => (float[n] y) {
            a = Neg(x)
            big = Constant<value_float=20000.0>()
            hidden = Mul(a, big)
            b = Div(hidden, big)
            other = Sqrt(x)
            y = Add(b, other)
        }""",
    )
    half, _ = convert(source, folder, '{"keep_io": false}')
    emulated = folder / "emulated.onnx"
    assert emulate_stored(half, emulated) is not None
    return source, emulated


def test_divergence_begins_at_the_overflow(tmp_path: Path) -> None:
    source, emulated = overflowing(tmp_path)
    result: list[tuple[int, int, str]] = []
    samples = [{"x": np.array([1, 2], np.float32)}, {"x": np.array([1, 4], np.float32)}]
    layers = diverge(
        Observed(source, PLAIN),
        Observed(emulated, PLAIN),
        samples,
        precision="fp16",
        progress=lambda done, total, what: result.append((done, total, what)),
    )
    assert [layer.tensor for layer in layers] == ["a", "hidden", "b", "other", "y"]
    hidden, y = layers[1], layers[4]
    assert (hidden.nonfinite, hidden.op_type, hidden.position) == (1, "Mul", 2)
    assert hidden.range is not None and hidden.range.beyond_share == 0.25
    assert y.reads == ("b", "other") and y.nonfinite == 1
    assert first_divergent(layers, {"cosine": 0.999}) == hidden
    assert [done for done, total, _ in result] == [0, 1] and result[0][1] == 2


def test_layers_are_compared_in_parts_that_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    source = models.make_cnn(tmp_path / "cnn.onnx")
    half, _ = convert(source, tmp_path)
    emulated = tmp_path / "emulated.onnx"
    assert emulate_stored(half, emulated) is not None
    pair = Observed(source, PLAIN), Observed(emulated, PLAIN)
    at_once = diverge(*pair, [X])
    monkeypatch.setattr(divergence, "BUDGET_BYTES", 30_000)
    in_parts = diverge(*pair, [X])
    assert [layer.tensor for layer in in_parts] == [layer.tensor for layer in at_once]
    for part, other in zip(in_parts, at_once, strict=True):
        assert part.metrics["max_abs"] == pytest.approx(other.metrics["max_abs"], abs=1e-4)
    chosen = diverge(*pair, [X], ["Relu_3_out", "Conv_0_out", "Shape_23_out"])
    assert [(layer.tensor, layer.reads) for layer in chosen] == [("Conv_0_out", ()), ("Relu_3_out", ("Conv_0_out",))]
    with pytest.raises(RequestError) as caught:
        diverge(*pair, [X], ["Relu_33"])
    check_message(caught.value)


def layer(tensor: str, noise: float, *reads: str, nonfinite: int = 0) -> LayerDivergence:
    return LayerDivergence(
        position=0,
        node=tensor,
        op_type="Add",
        tensor=tensor,
        metrics={"relative_rms": noise},
        reads=reads,
        nonfinite=nonfinite,
    )


BOUND = {"cosine": 0.999}


def begins(*layers: LayerDivergence) -> str:
    layer_divergence = first_divergent(layers, BOUND)
    return layer_divergence.tensor if layer_divergence else ""


def test_transient_divergence_is_not_its_beginning() -> None:
    small = layer("small", 0.9)
    assert begins(small, layer("sum", 0.001, "small"), layer("y", 0.001, "sum")) == ""
    assert begins(small, layer("sum", 0.001, "small"), layer("far", 0.3, "sum"), layer("y", 0.2, "far")) == "far"


def test_divergence_follows_the_graph_not_the_order() -> None:
    """Layers of a correct branch are between those of a wrong one."""
    wrong = [layer("w1", 0.5), layer("r1", 0.0), layer("w2", 0.5, "w1"), layer("r2", 0.0, "r1")]
    assert begins(*wrong, layer("y", 0.2, "w2", "r2")) == "w1"
    assert begins(*wrong, layer("y", 0.01, "w2", "r2")) == ""


def test_persistent_infinities_come_first() -> None:
    noisy = [layer("a", 0.1), layer("b", 0.1, "a")]
    assert begins(*noisy, layer("c", 0.0, "b", nonfinite=3), layer("y", 0.0, "c", nonfinite=1)) == "c"
    assert begins(*noisy, layer("c", 0.0, "b", nonfinite=3), layer("y", 0.0, "c")) == ""
    assert begins(layer("c", 0.0, nonfinite=3), layer("y", 0.5, "c")) == "c"


def test_bounds_set_the_allowed_noise_of_a_layer() -> None:
    assert allowed_noise({"cosine": 0.999}) == pytest.approx(0.0447, rel=1e-2)
    assert allowed_noise({"snr_db": 40.0, "cosine": 0.9}) == pytest.approx(0.01)
    assert allowed_noise({"max_abs": 3.0}) == 0.045


# Local errors -----------------------------------------------------------------------------------------------------


def errors(path: Path, precision: str = "fp16", **feeds: Array) -> dict[str, LocalError]:
    return local_errors(path, precision, [feeds], PLAIN, path.parent)


def test_a_broken_batch_normalization_is_reported_with_its_weight(tmp_path: Path) -> None:
    path = models.save(models_fp16.sensitive_batch_norm_model(), tmp_path / "model.onnx")
    result = errors(path, x=normal(2, 3, 8, 8))
    assert [error.op_type for error in result.values()] == ["Conv", "BatchNormalization", "Sigmoid"]
    conv, worst, sigmoid = result.values()
    assert worst.relative_rms > 1 and max(conv.relative_rms, sigmoid.relative_rms) < 2e-3
    (loss,) = (loss for loss in worst.weights if loss.clamped)
    assert (loss.clamped, loss.largest) == (4, 2e7)
    assert conv.output_ranges[0] == worst.input_ranges[0]


def test_an_overflow_names_its_producer_and_its_consumer(tmp_path: Path) -> None:
    path, _ = overflowing(tmp_path)
    result = errors(path, x=np.array([1, 4], np.float32))
    assert (result["hidden"].nonfinite, result["hidden"].output_ranges[0].beyond_share) == (1, 0.5)
    assert (result["b"].nonfinite, result["b"].input_ranges[0].tensor) == (1, "hidden")
    assert result["b"].output_ranges[0].beyond_share == 0 and result["y"].nonfinite == 0
    assert result["a"].input_ranges[0].tensor == "x" and result["a"].input_ranges[0].maximum == 4


def test_local_error_excludes_earlier_nodes(tmp_path: Path) -> None:
    """A product of rounded factors, summed in fp32 and rounded, whatever came before."""
    b = models.GraphBuilder(3)
    first = b.op("Mul", "x", b.floats(1e6))  # overflows, which is not the product's fault
    small = b.op("Mul", first, b.floats(1e-6))
    weight = b.weight(16, 16)
    models.rename_output(b, b.op("MatMul", small, weight), "y")
    model = b.model([models.tensor("x", [4, 16])], [models.tensor("y", [4, 16])])
    path = models.save(model, tmp_path / "model.onnx")
    x = normal(4, 16)

    def stored(array: Array) -> Array:
        return array.astype(np.float16).astype(np.float32)

    exact = (x * np.float32(1e6)) * np.float32(1e-6)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    wrong = stored(stored(exact) @ stored(w)).astype(np.float64) - exact @ w
    expected = math.sqrt(np.mean(wrong**2) / np.mean((exact @ w).astype(np.float64) ** 2))
    assert errors(path, x=x)["y"].relative_rms == pytest.approx(expected, rel=1e-2)


def test_large_weights_are_rounded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.make_ext(tmp_path / "ext.onnx")
    data = np.fromfile(tmp_path / "ext.onnx.bin", np.float32)
    data[:3] = 1e6, 1e-9, -2e5
    data.tofile(tmp_path / "ext.onnx.bin")
    x = np.abs(normal(2, 256))
    stored = errors(path, x=x)
    monkeypatch.setattr(reduced_twins, "_STORED_BYTES", 1000)
    before = sorted(tmp_path.iterdir())
    in_graph = errors(path, x=x)
    assert sorted(tmp_path.iterdir()) == before
    assert stored.keys() == in_graph.keys()
    for name, error in stored.items():
        assert in_graph[name].relative_rms == pytest.approx(error.relative_rms, rel=1e-4)
        assert in_graph[name].weights == error.weights
    (loss,) = in_graph["MatMul_0_out"].weights
    assert (loss.clamped, loss.vanished, loss.largest) == (2, 1, 1e6)
    parts: list[list[str]] = []

    def capture_counted(path: Path, part: list[str], *rest: Any) -> Any:
        parts.append(part)
        return capture_part(path, part, *rest)

    monkeypatch.setattr(local_error, "capture_part", capture_counted)
    monkeypatch.setattr(local_error, "BUDGET_BYTES", 300_000)
    assert errors(path, x=x) == in_graph
    assert len(parts) > 2, "rounded weights, of 256 KiB each, are not all held at once"


def test_cancellation_and_masks_are_recognized(tmp_path: Path) -> None:
    """A mask of -1e9 is clamped to -65504 and does no harm; a difference of large numbers loses all."""
    path = write_model(
        tmp_path / "model.onnx",
        """g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {
            mask = Constant<value_floats=[0.0, 0.0, -1000000000.0, 0.0]>()
            masked = Add(x, mask)
            y = Softmax(masked)
            large = Constant<value_float=5000.0>()
            sum = Add(x, large)
            z = Sub(sum, large)
        }""",
    )
    result = errors(path, x=np.tanh(normal(2, 4)))
    assert result["y"].relative_rms < 1e-3 and result["masked"].weights[0].clamped == 1
    assert result["z"].relative_rms > 0.5 and not result["z"].nonfinite
    assert result["sum"].relative_rms < 1e-3


def test_nodes_without_a_reduced_precision_twin_have_no_local_error(tmp_path: Path) -> None:
    path = models.make_cnn(tmp_path / "cnn.onnx")
    kinds = {error.op_type for error in errors(path, **X).values()}
    assert {"Conv", "Softmax", "GlobalAveragePool", "MatMul"} <= kinds
    assert not kinds & {"Reshape", "Pad", "Shape", "Gather", "Identity", "Constant", "Cast", "Concat"}
    random = models.save(models_fp16.random_model(), tmp_path / "random.onnx")
    assert {error.op_type for error in errors(random, x=normal(4, 4)).values()} == {"Add", "HannWindow", "Mul"}
    ctrl = models.make_ctrl(tmp_path / "ctrl.onnx")
    assert list(errors(ctrl, x=normal(2, 4))) == ["Mul_2_out", "Mul_3_out", "ReduceSum_5_out"]


def test_fixed_ports_are_not_rounded(tmp_path: Path) -> None:
    """Scales of Resize are fp32 whatever the image is: 1e-3 more would be another size."""
    path = models.save(models_fp16.resize_model(), tmp_path / "model.onnx")
    result = errors(path, x=normal(1, 2, 4, 4))
    assert {error.op_type for error in result.values()} >= {"Resize", "Relu"}
    assert all(error.relative_rms < 1e-3 for error in result.values())


def test_tensors_in_local_functions_are_observed(tmp_path: Path) -> None:
    path = models.make_func(tmp_path / "func.onnx")
    kinds = [error.op_type for error in errors(path, x=normal(2, 8)).values()]
    assert kinds.count("MatMul") >= 2


def test_bf16_has_range_and_few_bits(tmp_path: Path) -> None:
    path, _ = overflowing(tmp_path)
    result = errors(path, "bf16", x=np.array([1.1, 4.1], np.float32))
    assert not any(error.nonfinite for error in result.values())
    assert 1e-3 < result["b"].relative_rms < 1e-2


def test_local_errors_are_computed_in_parts_that_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.make_cnn(tmp_path / "cnn.onnx")
    at_once = errors(path, **X)
    monkeypatch.setattr(local_error, "BUDGET_BYTES", 30_000)
    assert errors(path, **X) == at_once
