"""The step convert_fp16: correct types, few Casts, outputs close to fp32, clear errors."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.steps.convert_fp16 import ConvertFp16
from tests.support import models, models_fp16
from tests.support.fp16_checks import (
    LIGHT,
    RANDOM,
    Feeds,
    agree,
    all_nodes,
    check,
    convert,
    count,
    has_half,
    kinds,
    normal,
    run,
    session,
)
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, rename_output, tensor
from tests.support.representatives import thorough_except

# Every builder ----------------------------------------------------------------------------------------------------

Case = tuple[Callable[[], onnx.ModelProto], Feeds, float]
CASES: dict[str, Case] = {
    "cnn": (models.cnn_model, {"x": normal(2, 3, 16, 16)}, 2e-3),
    "tfm": (
        models.tfm_model,
        {"ids": RANDOM.integers(0, models.TFM_VOCABULARY, (2, 7)), "mask": np.array([[1] * 7, [1] * 4 + [0] * 3])},
        1e-2,
    ),
    "ctrl": (models.ctrl_model, {"x": normal(3, 4)}, 1e-2),
    "func": (models.func_model, {"x": normal(3, 8)}, 2e-3),
    "sparse": (models.sparse_model, {"x": normal(3, 4)}, 2e-3),
    "resize": (models_fp16.resize_model, {"x": normal(1, 2, 4, 6)}, 2e-3),
    "shared_constant": (models_fp16.shared_constant_model, {"x": normal(3, 4)}, 1e-2),
    "sequence": (models_fp16.sequence_model, {"x": normal(4, 3)}, 1e-2),
    "scan": (models_fp16.scan_model, {"x": normal(5, 3)}, 1e-2),
    "lstm": (models_fp16.lstm_model, {"x": normal(6, 2, 4), "h0": normal(1, 2, 5), "c0": normal(1, 2, 5)}, 5e-3),
    "quantized_17": (lambda: models_fp16.quantized_model(17), {"x": np.eye(4, dtype=np.float32) * 3}, 5e-3),
    "quantized_21": (lambda: models_fp16.quantized_model(21), {"x": np.eye(4, dtype=np.float32) * 3}, 5e-3),
    "no_half": (models_fp16.no_half_model, {"boxes": normal(1, 6, 4), "scores": normal(1, 1, 6)}, 2e-3),
    "random": (models_fp16.random_model, {"x": normal(4, 4)}, 2e-3),
    "island": (models_fp16.island_model, {"x": normal(3, 4)}, 5e-3),
    "contrib": (models_fp16.contrib_model, {"x": normal(2, 3, 8)}, 1e-2),
    "mask": (models_fp16.mask_model, {"x": normal(2, 4), "mask": np.array([[1, 1, 1, 0], [1, 0, 0, 0]])}, 2e-3),
    "old": (models_fp16.old_model, {"x": normal(3, 4)}, 2e-3),
}
NOT_STRICT = {"sparse"}
"""onnx's shape inference refuses dense operators on sparse initializers, in fp32 as in fp16."""


@pytest.mark.representatives("cnn-false", "lstm-false", "sparse-false")
@pytest.mark.parametrize("keep_io", [pytest.param("true", marks=pytest.mark.thorough), "false"])
@pytest.mark.parametrize("name", CASES)
def test_converted_model_is_valid_and_agrees(name: str, keep_io: str, tmp_path: Path) -> None:
    build, feeds, tolerance = CASES[name]
    path, result = convert(build(), tmp_path, f'{{"keep_io": {keep_io}}}')
    converted, source = check(path, strict=name not in NOT_STRICT), onnx.load(tmp_path / "source.onnx")
    assert [i.name for i in converted.graph.input] == [i.name for i in source.graph.input]
    wanted = TensorProto.FLOAT if keep_io == "true" else TensorProto.FLOAT16
    for before, after in zip(source.graph.output, converted.graph.output, strict=True):
        float_ = before.type.tensor_type.elem_type == TensorProto.FLOAT
        assert after.type.tensor_type.elem_type == (wanted if float_ else before.type.tensor_type.elem_type)
    assert result.change is not None
    assert result.change.after.node_count == len(all_nodes(converted.graph))
    assert result.metrics["casts_added"] == result.change.casts_added
    # Without ORT's fallback an output may be a weight: those have no session output to compare beyond rounding.
    agree(tmp_path / "source.onnx", path, feeds, tolerance)


@pytest.mark.parametrize("name", thorough_except(CASES, "random", "mask", "contrib"))
def test_converting_twice_changes_nothing(name: str, tmp_path: Path) -> None:
    once, _ = convert(CASES[name][0](), tmp_path)
    (tmp_path / "again").mkdir()
    twice, result = convert(once, tmp_path / "again")
    assert result.change is not None
    assert result.change.casts_added == 0
    first, second = onnx.load(once), onnx.load(twice)
    assert second.graph.node == first.graph.node
    assert list(second.graph.initializer) == list(first.graph.initializer)
    assert second.graph.value_info == first.graph.value_info


@pytest.mark.representatives("cnn", "ctrl", "lstm")
@pytest.mark.parametrize("name", [n for n in CASES if n not in NOT_STRICT])
def test_inferred_types_match_onnx(name: str, tmp_path: Path) -> None:
    """Every type we write into value_info agrees with strict inference, and all compute is fp16 where it may be."""
    path, _ = convert(CASES[name][0](), tmp_path)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), check_type=True, strict_mode=True, data_prop=True)
    result = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    for node in inferred.graph.node:
        if node.op_type in ("MatMul", "Conv", "Softmax", "Tanh", "Mul") and "resize" not in name:
            assert {result.get(o, TensorProto.FLOAT16) for o in node.output} == {TensorProto.FLOAT16}, node.name


def test_nodes_stay_fp32_only_with_a_reason(tmp_path: Path) -> None:
    path, result = convert(models.cnn_model(), tmp_path)
    converted = check(path)
    assert count(converted, "Cast") == 2  # in and out; the model's own has become idle and is gone
    assert {i.data_type for i in converted.graph.initializer} == {TensorProto.FLOAT16}
    assert result.metrics["kept_fp32"] == 0
    assert result.change is not None
    assert result.change.after.initializer_bytes < 0.51 * result.change.before.initializer_bytes
    assert "39 nodes, 0 kept in fp32, 2" in result.summary


def test_no_casts_when_inputs_and_outputs_become_fp16(tmp_path: Path) -> None:
    path, result = convert(models.cnn_model(), tmp_path, '{"keep_io": false}')
    converted = check(path)
    assert count(converted, "Cast") == 0
    assert kinds(converted.graph.input) == kinds(converted.graph.output) == [TensorProto.FLOAT16]
    assert result.metrics["casts_added"] == 0


def test_symbolic_shapes_and_node_names_are_kept(tmp_path: Path) -> None:
    path, _ = convert(models.cnn_model(), tmp_path)
    source, converted = onnx.load(tmp_path / "source.onnx"), check(path)
    assert converted.graph.input[0] == source.graph.input[0]
    assert converted.graph.output[0] == source.graph.output[0]
    kept = [n.name for n in source.graph.node if n.op_type != "Cast"]
    assert [n.name for n in converted.graph.node if n.op_type != "Cast"] == kept


def test_duplicate_node_names_are_made_unique(tmp_path: Path) -> None:
    path, result = convert(models_fp16.doubled_names_model(), tmp_path)
    check(path)
    assert result.change is not None
    assert "renamed 1 node with duplicate" in str(result.change.notes)
    np.testing.assert_allclose(run(path, {"x": np.ones((1, 4), np.float32)})["y"], np.tanh(1), atol=1e-3)


# Casts ------------------------------------------------------------------------------------------------------------


def test_one_cast_serves_all_readers(tmp_path: Path) -> None:
    b = GraphBuilder()
    h = b.op("Exp", "x")
    h = b.op("Sum", b.op("Tanh", h), b.op("Sigmoid", h), b.op("Neg", h))
    rename_output(b, h, "y")
    model = b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    path, result = convert(model, tmp_path, '{"block": {"op_types": ["Exp"]}}')
    assert result.metrics["casts_added"] == 2  # after Exp, and before y
    agree(tmp_path / "source.onnx", path, {"x": normal(3, 4)}, 5e-3)


def test_data_movement_between_fp32_nodes_stays_fp32(tmp_path: Path) -> None:
    path, result = convert(models_fp16.island_model(), tmp_path, '{"block": {"op_types": ["Exp", "Log"]}}')
    assert result.metrics["kept_fp32"] == 4
    assert count(check(path), "Cast") == 4  # around Relu, around Neg: none around Reshape and Transpose
    agree(tmp_path / "source.onnx", path, {"x": normal(3, 4)}, 5e-3)


@pytest.mark.thorough
def test_no_cast_reads_a_cast(tmp_path: Path) -> None:
    for name, (build, _, _) in CASES.items():
        (tmp_path / name).mkdir()
        path, _ = convert(build(), tmp_path / name, '{"block": {"op_types": ["Softmax", "Relu", "Add"]}}')
        converted = onnx.load(path)
        makers = {o: n for n in all_nodes(converted.graph) for o in n.output}
        pairs = [n.name for n in all_nodes(converted.graph) if n.op_type == "Cast" and n.input[0] in makers]
        floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
        for cast in (n for n in all_nodes(converted.graph) if n.name in pairs):
            maker = makers[cast.input[0]]
            if maker.op_type == "Cast" and name != "tfm":  # tfm casts through bool
                assert not (maker.attribute[0].i in floats and cast.attribute[0].i in floats), cast.name


def test_casts_of_constants_are_folded(tmp_path: Path) -> None:
    block = '{"block": {"op_types": ["Elu", "Softmax"], "nodes": ["Mul_1"]}}'
    path, _ = convert(models_fp16.shared_constant_model(), tmp_path, block)
    converted = check(path)
    made_by_cast = {n.input[0] for n in converted.graph.node if n.op_type == "Cast"}
    constants = {i.name for i in converted.graph.initializer}
    constants |= {o for n in converted.graph.node if n.op_type == "Constant" for o in n.output}
    assert not made_by_cast & constants
    agree(tmp_path / "source.onnx", path, {"x": normal(3, 4)}, 1e-2)


def test_shape_arithmetic_stays_exact(tmp_path: Path) -> None:
    """4098 * 1.5 is no fp16 number: in fp16 the image would get another size."""
    path, result = convert(models_fp16.resize_model(), tmp_path)
    check(path)
    assert result.metrics["kept_fp32"] == 1
    feeds: Feeds = {"x": np.zeros((1, 2, 1, 2049), np.float32)}
    assert run(path, feeds)["y"].shape == run(tmp_path / "source.onnx", feeds)["y"].shape == (1, 2, 3, 6147)


# Blocks -----------------------------------------------------------------------------------------------------------


def fp32_nodes(path: Path) -> set[str]:
    """Names of the nodes whose outputs are fp32, Casts and Constants left out."""
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
    result = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.output)}
    skipped = ("Cast", "Constant")
    nodes = [n for n in inferred.graph.node if n.op_type not in skipped]
    return {n.name for n in nodes if result.get(n.output[0]) == TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("block", "op_types"),
    [
        ('{"op_types": ["Softmax"]}', {"Softmax"}),
        ('{"nodes": ["MaxPool_*"]}', {"MaxPool"}),
        ('{"nodes": ["/^(MatMul|Mul)_[0-9]+$/"]}', {"Mul", "MatMul"}),
        ('{"nodes": ["Softmax_35"], "op_types": ["GlobalAveragePool"]}', {"Softmax", "GlobalAveragePool", "Reshape"}),
    ],
)
def test_excluded_nodes_stay_fp32(block: str, op_types: set[str], tmp_path: Path) -> None:
    path, result = convert(models.cnn_model(), tmp_path, f'{{"block": {block}}}')
    check(path)
    kept = fp32_nodes(path)
    assert result.metrics["kept_fp32"] == len(kept) > 0
    assert {name.split("_")[0] for name in kept} == op_types
    agree(tmp_path / "source.onnx", path, CASES["cnn"][1], 2e-3)


def test_excluding_a_control_flow_node_keeps_its_body_fp32(tmp_path: Path) -> None:
    path, _ = convert(models.ctrl_model(), tmp_path, '{"block": {"op_types": ["Loop"]}}')
    (loop,) = [n for n in check(path).graph.node if n.op_type == "Loop"]
    assert not has_half(onnx.helper.make_model(loop.attribute[0].g))
    agree(tmp_path / "source.onnx", path, CASES["ctrl"][1], 1e-2)


def test_exclusion_applies_inside_bodies(tmp_path: Path) -> None:
    path, result = convert(models.ctrl_model(), tmp_path, '{"block": {"nodes": ["then_*"]}}')
    check(path)
    assert result.metrics["kept_fp32"] >= 3
    agree(tmp_path / "source.onnx", path, CASES["ctrl"][1], 1e-2)


def test_values_outside_the_fp16_range_stay_fp32(tmp_path: Path) -> None:
    model = models_fp16.sensitive_batch_norm_model()
    feeds: Feeds = {"x": normal(2, 3, 8, 8) * 0.1}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    broken, result = convert(model, tmp_path / "a")
    assert result.change is not None
    notes = " ".join(result.change.notes)
    assert "BatchNormalization 'BatchNormalization_1'" in notes and "scales a channel by 17.5" in notes
    assert "4 weight values beyond fp16's 65504" in notes
    good, result = convert(model, tmp_path / "b", '{"block": {"values_outside": {}}}')
    assert result.metrics["kept_fp32"] == 1
    exact = run(tmp_path / "b/source.onnx", feeds)["y"]
    assert np.max(np.abs(run(broken, feeds)["y"] - exact)) > 0.1
    assert np.max(np.abs(run(good, feeds)["y"] - exact)) < 2e-3


def test_substitutes_for_infinity_are_not_out_of_range(tmp_path: Path) -> None:
    """Kept in fp32, a mask would become -infinity in the Cast behind it, and a wholly masked row NaN."""
    path, result = convert(models_fp16.mask_model(), tmp_path, '{"block": {"values_outside": {}}}')
    assert result.metrics["kept_fp32"] == 0
    assert np.isfinite(run(path, {"x": normal(1, 4), "mask": np.zeros((1, 4), np.int64)})["y"]).all()


def test_small_values_are_counted_against_their_share(tmp_path: Path) -> None:
    b = GraphBuilder()
    small = b.initializer(np.array([1e-9, 1e-9, 1.0, 0.0], np.float32))
    rename_output(b, b.op("Tanh", b.op("Mul", "x", small)), "y")
    model = b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    for share, kept in ((0.5, 1), (0.7, 0)):
        (folder := tmp_path / str(share)).mkdir()
        outside = f'{{"min_abs": 1e-6, "share": {share}}}'
        _, result = convert(model, folder, f'{{"block": {{"values_outside": {outside}}}}}')
        assert result.metrics["kept_fp32"] == kept


def test_operators_too_coarse_in_fp16_stay_fp32_by_default(tmp_path: Path) -> None:
    b = GraphBuilder()
    rename_output(b, b.op("Relu", b.op("CumSum", b.op("Relu", "x"), b.const(1, np.int64))), "y")
    model = b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    for setting, kept in (("true", 1), ("false", 0)):
        (tmp_path / setting).mkdir()
        path, result = convert(model, tmp_path / setting, f'{{"block": {{"sensitive": {setting}}}}}')
        assert result.metrics["kept_fp32"] == kept
        agree(tmp_path / setting / "source.onnx", path, {"x": normal(3, 4)}, 5e-3)


def test_log_and_record_list_fp32_nodes_with_reasons(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "test.convert_fp16"):
        _, result = convert(models_fp16.no_half_model(), tmp_path)
    assert re.search(r"fp32: Range 'Range_\d+': .*fp16 at opset 17", caplog.text)
    assert "casts added" in caplog.text.lower()
    assert result.change is not None
    assert "1 node kept in fp32" in str(result.change.notes)


# Numbers ----------------------------------------------------------------------------------------------------------


def test_clamped_and_nonfinite_values_are_counted(tmp_path: Path) -> None:
    values = np.array([1e6, -1e6, np.inf, -np.inf, 65504.0, 65519.0, 1e-12, -1e-12, 0.0, 1.0], np.float32)
    b = GraphBuilder()
    rename_output(b, b.op("Max", "x", b.initializer(values)), "y")
    path, result = convert(b.model([tensor("x", [10])], [tensor("y", [10])]), tmp_path)
    (weight,) = [numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer]
    tiny = float(np.finfo(np.float16).smallest_subnormal)
    assert weight.tolist() == [65504, -65504, np.inf, -np.inf, 65504, 65504, tiny, -tiny, 0, 1]
    assert result.change is not None
    assert any("3 weight values" in note and "1e+06" in note for note in result.change.notes)


def test_weights_that_round_to_zero_are_counted(tmp_path: Path) -> None:
    b = GraphBuilder()
    tiny = b.initializer(np.full((4, 4), 1e-9, np.float32))
    rename_output(b, b.op("MatMul", "x", tiny), "y")
    path, result = convert(b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])]), tmp_path)
    assert not numpy_helper.to_array(onnx.load(path).graph.initializer[0]).any()
    assert result.change is not None
    assert any("(16 of 16)" in note for note in result.change.notes)


@given(st.lists(st.floats(width=32), min_size=1, max_size=50), st.booleans())
def test_rounding_matches_numpy_within_range(values: list[float], vector: bool) -> None:
    from ndld_flow.models.lazy_tensors import Loss, rounded

    array = np.array(values, np.float32)
    half = rounded(array, vector, Loss("w", array.size))
    with np.errstate(over="ignore"):
        plain = array.astype(np.float16)
    ordinary = np.isnan(array) | np.isinf(array) | ((np.abs(array) <= 65504) & ((plain != 0) | (array == 0)))
    np.testing.assert_array_equal(half[ordinary], plain[ordinary])
    assert np.isfinite(half[np.isfinite(array)]).all()
    if vector:
        assert ((half == 0) == (array == 0)).all()


# External data ----------------------------------------------------------------------------------------------------


def test_external_data_is_halved_on_disk(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "source.onnx")
    path, result = convert(source, tmp_path)
    check(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert (path.parent / "model.onnx.data").stat().st_size == 3 * 256 * 256 * 2
    assert path.stat().st_size < 4096
    agree(source, path, {"x": normal(2, 256)}, 5e-3)
    assert result.summary.endswith(" casts added, 769 -> 385 KiB")


# Real models ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_full_fp16_breaks_detection_and_range_exclusion_repairs_it(
    sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """One running variance (9.8e7) is beyond fp16's 65504: clamped, its channel grows 39-fold and saturates."""
    source = sample_model("det")
    feeds: Feeds = {"x": np.random.default_rng(0).random((1, 3, 320, 320), dtype=np.float32)}
    exact = run(source, feeds)
    blocks = {
        "full": ("{}", 0, 0.5, 1.1),
        "range": ('{"block": {"values_outside": {}}}', 1, 0.0, 1e-5),
        "types": ('{"block": {"op_types": ["BatchNormalization"]}}', 3, 0.0, 1e-5),
    }
    for name, (block, kept, low, high) in blocks.items():
        (tmp_path / name).mkdir()
        path, result = convert(source, tmp_path / name, block)
        check(path)
        assert result.metrics["kept_fp32"] == kept
        (output,) = exact
        assert low <= np.max(np.abs(run(path, feeds)[output] - exact[output])) <= high
    assert result.change is not None
    assert any("'p2o.Conv.61' may overflow fp16" in note for note in result.change.notes)


def narrow_before_normalization() -> onnx.ModelProto:
    """Two convolutions, each before a BatchNormalization with a mean so large that fp16 has little room above it."""
    b = GraphBuilder(3)
    h = "x"
    for _ in range(2):
        mean = b.initializer(np.array([100.0, 60000.0, 0.0, -1.0], np.float32))
        variance = b.initializer(np.array([4.0, 1e6, 9.0, 1.0], np.float32))
        h = b.op("Conv", h, b.weight(4, 4, 1, 1))
        h = b.op("BatchNormalization", h, b.weight(4), b.weight(4), mean, variance)
    rename_output(b, h, "y")
    return b.model([tensor("x", [1, 4, 8, 8])], [tensor("y", [1, 4, 8, 8])])


def test_layers_kept_in_fp32_are_not_reported_to_overflow(tmp_path: Path) -> None:
    source = models.save(narrow_before_normalization(), tmp_path / "model.onnx")
    convolutions = [node.name for node in onnx.load(source).graph.node if node.op_type == "Conv"]
    for kept in ([], convolutions[:1], convolutions[1:], convolutions):
        (tmp_path / str(kept)).mkdir()
        _, result = convert(source, tmp_path / str(kept), json.dumps({"block": {"nodes": kept}}))
        assert result.change is not None
        notes = [note for note in result.change.notes if "may overflow fp16" in note]
        assert len(notes) == 2 - len(kept)
        assert all("1000, so 65504 is 5.5 standard deviations" in note for note in notes)
        assert not any(f"{name!r}" in note for name in kept for note in notes)


@pytest.mark.thorough
def test_recognition_model_stays_accurate(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = sample_model("rec")
    path, _ = convert(source, tmp_path)
    check(path)
    feeds: Feeds = {"x": np.random.default_rng(0).random((1, 3, 48, 320), dtype=np.float32)}
    agree(source, path, feeds, 2e-2)


@pytest.mark.parametrize("rate", thorough_except([8000, 16000], 16000))
def test_voice_activity_model_with_branches_and_state_stays_accurate(
    rate: int, sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = sample_model("silero")
    path, _ = convert(source, tmp_path)
    assert count(check(path), "If") == 25
    feeds: Feeds = {
        "input": (normal(2, rate // 31) * 0.1),
        "state": normal(2, 2, 128) * 0.1,
        "sr": np.array(rate, np.int64),
    }
    agree(source, path, feeds, 2e-2)


@pytest.mark.thorough
def test_light_resnet50_stays_accurate(tmp_path: Path) -> None:
    source = LIGHT / "light_resnet50.onnx"
    path, result = convert(source, tmp_path)
    check(path)
    assert result.metrics["casts_added"] == 2
    (name,) = [i.name for i in session(source).get_inputs() if "data" in i.name]
    agree(source, path, {name: np.random.default_rng(0).random((1, 3, 224, 224), dtype=np.float32)}, 1e-2)


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        '{"op_types": ["softmax"]}',
        '{"nodes": ["Softmax_98"]}',
        '{"nodes": ["/nothing/"]}',
    ],
)
def test_selectors_without_a_match_are_refused(block: str, tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as raised:
        convert(models.cnn_model(), tmp_path, f'{{"block": {block}}}')
    check_message(raised.value)


def test_a_known_operator_that_the_model_lacks_is_a_note(tmp_path: Path) -> None:
    _, result = convert(models.cnn_model(), tmp_path, '{"block": {"op_types": ["LSTM"]}}')
    assert result.change is not None
    assert "model has no LSTM" in str(result.change.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        '{"block": {"nodes": ["/(/"]}}',
        '{"keep_io": 1}',
        '{"block": {"optypes": []}}',
        '{"block": {"values_outside": {"share": 2}}}',
    ],
)
def test_invalid_settings_are_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        ConvertFp16.model_validate_json(wrong)


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"source\.onnx"):
        convert(tmp_path / "source.onnx", tmp_path)


def test_functions_that_call_each_other_in_a_cycle_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [
        helper.make_function("f", a, ["x"], ["y"], [helper.make_node(b, ["x"], ["y"], domain="f")], opset)
        for a, b in pairwise(["A", "B", "A"])
    ]
    graph = helper.make_graph(
        [helper.make_node("A", ["x"], ["y"], domain="f")], "g", [tensor("x", [1])], [tensor("y", [1])]
    )
    model = helper.make_model(graph, functions=functions, opset_imports=opset, ir_version=8)
    with pytest.raises(ModelError) as caught:
        convert(model, tmp_path)
    check_message(caught.value)


def test_unknown_operators_stay_fp32(tmp_path: Path) -> None:
    path, result = convert(models_fp16.unknown_operator_model(), tmp_path)
    (magic,) = [n for n in onnx.load(path).graph.node if n.op_type == "Magic"]
    makers = {o: n for n in onnx.load(path).graph.node for o in n.output}
    assert makers[magic.input[0]].op_type == "Cast"
    assert result.metrics["kept_fp32"] == 1
    assert result.change is not None
    assert "1 node kept in fp32" in str(result.change.notes)
