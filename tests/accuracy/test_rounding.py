"""Bounds by what rounding does to the reference, for changes that keep all values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ndld_flow.accuracy import rounding
from ndld_flow.records.accuracy import Accuracy
from tests.accuracy.test_check_accuracy import compare
from tests.accuracy.test_power import LAYERS, weights
from tests.support.models_run import write_model
from tests.support.recipes import load_recipe

DRAWN = np.random.default_rng(0).normal(size=(16, 8)).round(3)
SIZES = [1.0, 1.0, 2.5, 2.5]
RESIZE = f"""g (float[1, 8, 12, 12] x) => (float[1, 16, 30, 30] y) <{weights(k=DRAWN.reshape(16, 8, 1, 1), s=SIZES)}> {{
    c = Conv (x, k)
    y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (c, , s)
}}"""
CANCELLING = f"""g (float[4, 8] x) => (float[4, 8] y) <{weights(one=[1000.123], other=[1000.125])}> {{
    a = Mul(x, one)
    b = Mul(x, other)
    y = Sub(a, b)
}}"""
PAIR = f"""g (float[4, 8] x) => (float[4, 16] low, float[4, 16] high) <{weights(w=DRAWN.T, up=[1.02])}> {{
    low = MatMul(x, w)
    high = Mul(low, up)
}}"""


def judged(folder: Path, reference: Path | str, candidate: Path | str, **settings: Any) -> Accuracy:
    return compare(folder, reference, candidate, **{"tolerance": "rounding", **settings})[1]


def with_gain(path: Path, weight: str, gain: float) -> Path:
    """Write the model with a weight multiplied by a factor."""
    model = onnx.load(path)
    (tensor,) = (initializer for initializer in model.graph.initializer if initializer.name == weight)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(gain), weight))
    onnx.save(model, path.with_suffix(".changed.onnx"))
    return path.with_suffix(".changed.onnx")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ('"half_pixel"', '"align_corners"'),
        ('mode = "linear"', 'mode = "nearest"'),
    ],
)
def test_another_mode_of_resize_fails(tmp_path: Path, wrong: str, right: str) -> None:
    accuracy = judged(tmp_path, RESIZE, RESIZE.replace(wrong, right))
    assert accuracy.by_rounding
    assert accuracy.failed


@pytest.mark.parametrize("gain", [1.03, 1.001, 0.96])
def test_a_gain_of_a_weight_fails(tmp_path: Path, gain: float) -> None:
    model = write_model(tmp_path / "model.onnx", LAYERS)
    assert judged(tmp_path, model, with_gain(model, "w", gain)).failed
    (tmp_path / "default").mkdir()
    usual = judged(tmp_path / "default", model, with_gain(model, "w", gain), tolerance={})
    assert not usual.by_rounding
    assert usual.passed or gain != 1.001


def test_two_outputs_that_are_swapped_fail(tmp_path: Path) -> None:
    swapped = PAIR.replace("low = MatMul", "p = MatMul").replace(
        "high = Mul(low, up)", "low = Mul(p, up) high = Identity(p)"
    )
    assert judged(tmp_path, PAIR, swapped).failed


@pytest.mark.parametrize("model", [RESIZE, LAYERS, CANCELLING, PAIR])
def test_the_same_model_in_another_order_passes(tmp_path: Path, model: str) -> None:
    left = write_model(tmp_path / "left.onnx", model)
    proto = onnx.load(left)
    for node in proto.graph.node:
        if node.op_type in ("Add", "Mul"):
            node.input[:] = reversed(node.input)
        if node.op_type == "MatMul":  # as one column after another
            node.op_type = "Gemm"
    onnx.save(proto, tmp_path / "right.onnx")
    accuracy = judged(tmp_path, left, tmp_path / "right.onnx", optimization="basic")
    assert accuracy.by_rounding
    assert accuracy.passed


def test_an_output_that_hangs_on_cancellation_may_differ_more(tmp_path: Path) -> None:
    accuracy = judged(tmp_path, CANCELLING, CANCELLING)
    assert accuracy.output_tolerance["y"]["slice_rms"] > 1e-3
    (tmp_path / "layers").mkdir()
    assert judged(tmp_path / "layers", LAYERS, LAYERS).output_tolerance["y"]["slice_rms"] < 1e-4


def test_a_limit_that_is_a_value_of_a_table_is_not_moved(tmp_path: Path) -> None:
    held = weights(w=DRAWN[:4].T, grid=[0.1, 0.2, 0.3, 0.4], least=[0.2])
    limited = f"""g (float[64, 8] x) => (float[64, 4] y) <{held}> {{
        h = MatMul(x, w)
        shown = GreaterOrEqual(grid, least)
        mask = Cast <to = 1> (shown)
        y = Mul(h, mask)
    }}"""
    assert judged(tmp_path, limited, limited).output_tolerance["y"]["slice_rms"] < 1e-4


def test_a_weight_that_is_only_compared_is_not_moved(tmp_path: Path) -> None:
    """Values on the limit would change sides, which is no rounding."""
    limits = [round(0.1 * (1 + i), 1) for i in range(9)]
    model = f"""g (float[1, 9] x) => (float[1, 9] y) <{weights(t=limits, w=limits)}> {{
        above = Greater(x, t)
        ones = Cast <to = 1> (above)
        y = Add(ones, w)
    }}"""
    accuracy = judged(tmp_path, model, model, inputs={"x": {"values": [limits]}})
    assert accuracy.output_tolerance["y"]["slice_max"] < 1e-3


def test_no_bound_is_looser_than_the_default(tmp_path: Path) -> None:
    steep = f"""g (float[64, 8] x) => (float[64, 16] y) <{weights(w=DRAWN.T, steep=[1e8])}> {{
        h = MatMul(x, w)
        s = Mul(h, steep)
        y = Sin(s)
    }}"""
    assert judged(tmp_path, steep, steep).output_tolerance["y"]["slice_rms"] == 0.05


def test_a_reference_that_cannot_be_changed_is_judged_by_the_default_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: object) -> None:
        raise ValueError("exceeds the maximum size of a protobuf")

    monkeypatch.setattr(rounding, "load_model", too_large)
    accuracy = judged(tmp_path, LAYERS, LAYERS)
    assert accuracy.passed and not accuracy.by_rounding
    assert accuracy.tolerance["slice_rms"] == 0.05
    assert any("maximum size" in note for note in accuracy.notes)


def test_integers_must_be_equal(tmp_path: Path) -> None:
    counts = "g (float[4, 8] x) => (int64[2] y) { y = Shape(x) }"
    accuracy = judged(tmp_path, counts, counts)
    assert accuracy.output_tolerance == {"y": {"mismatched": 0.0}}
    assert accuracy.passed


def test_another_runtime_is_judged_by_the_default_bounds(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    accuracy = judged(tmp_path, LAYERS, LAYERS, runtime={"backend": "openvino"})
    assert not accuracy.by_rounding
    assert accuracy.tolerance["slice_rms"] == 0.05


RECIPE = """
name: chain
model: model.onnx
steps:
  clean: {{step: sanitize, from: source}}
  up: {{step: edit, from: source, operations: [{operation}]}}
  half: {{step: convert_fp16, from: clean}}
  agree: {{step: check_accuracy, {check}}}
"""


@pytest.mark.parametrize(
    ("check", "operation", "is_rounding"),
    [
        ("candidate: clean", "{set_opset: {to: 20}}", True),
        ("candidate: up", "{set_opset: {to: 20}}", True),
        ("candidate: up, reference: clean", "{set_opset: {to: 20}}", True),
        ("candidate: up", "{set_attributes: {select: {op_type: Add}, attributes: {axis: 0}}}", False),
        ("candidate: half", "{set_opset: {to: 20}}", False),
        ("candidate: half, reference: clean", "{set_opset: {to: 20}}", False),
        ("candidate: source", "{set_opset: {to: 20}}", False),
        ("candidate: clean, tolerance: {cosine: 0.9}", "{set_opset: {to: 20}}", False),
        ("candidate: half, tolerance: rounding", "{set_opset: {to: 20}}", True),
    ],
)
def test_only_steps_that_keep_values_are_judged_by_rounding(
    tmp_path: Path, check: str, operation: str, is_rounding: bool
) -> None:
    write_model(tmp_path / "model.onnx", LAYERS)
    (tmp_path / "r.yaml").write_text(RECIPE.format(check=check, operation=operation))
    (agree,) = (step for step in load_recipe(tmp_path / "r.yaml").steps if step.name == "agree")
    assert (getattr(agree.step, "tolerance", None) == "rounding") is is_rounding
