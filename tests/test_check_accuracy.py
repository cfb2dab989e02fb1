"""Comparing two models' outputs: the metrics, the tolerances, and what cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.transformers.float16 import convert_float_to_float16
from pydantic import ValidationError

from ndld_flow.artifacts.kinds import AccuracyDocument, Onnx
from ndld_flow.backends.comparing.agreement import SAME_DB, Agreement
from ndld_flow.backends.comparing.model_matching import pair_names
from ndld_flow.errors import BackendError, ModelError, RequestError
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.metric import Metric
from ndld_flow.steps.check_accuracy import CheckAccuracy
from tests.models_run import Given, Ran, run_step, write_model

SAME = "g (float[n, 4] x) => (float[n, 4] y) { y = Sigmoid(x) }"


def compare(
    folder: Path, reference: Path | str, candidate: Path | str, inputs: Given | None = None, **settings: Any
) -> tuple[Ran, Accuracy]:
    left = write_model(folder / "reference.onnx", reference) if isinstance(reference, str) else reference
    right = write_model(folder / "candidate.onnx", candidate) if isinstance(candidate, str) else candidate
    artifacts = {"reference": Onnx(left, "source", "digest")}
    ran = run_step(CheckAccuracy, right, folder / "ran", settings, inputs, artifacts=artifacts)
    text = (ran.out / AccuracyDocument.main).read_text()
    return ran, Accuracy.model_validate_json(text)


def test_equal_models_agree(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, SAME, SAME, {"x": {"shape": [3, 4]}})
    assert ran.result.passed
    assert accuracy.passed
    assert ran.result.summary == "cosine 1, max abs 0: within tolerance"
    assert ran.result.metrics["max_abs"] == Metric(value=0.0)
    assert ran.result.metrics["cosine"] == Metric(value=1.0)
    assert ran.result.metrics["snr_db"] == Metric(value=SAME_DB, unit="dB")
    assert accuracy.inputs == {"x": "random uniform [0, 1), seed 0, float32 3x4"}
    assert accuracy.notes == ()
    assert (accuracy.reference, accuracy.candidate) == ("source", "candidate")
    assert accuracy.provider_candidate == "CPUExecutionProvider"
    assert accuracy.outputs[0].shape == (3, 4)
    assert ran.told[-1][:2] == (1, 2)


def test_a_wrong_scale_fails_though_its_cosine_is_one(tmp_path: Path) -> None:
    doubled = "g (float[n, 4] x) => (float[n, 4] y) <float two = {2}> { s = Sigmoid(x) y = Mul(s, two) }"
    ran, accuracy = compare(tmp_path, SAME, doubled)
    assert not ran.result.passed
    assert accuracy.outputs[0].metrics["cosine"] == pytest.approx(1.0)
    assert accuracy.outputs[0].failed == ("snr_db 0 is less than 25",)
    assert ran.result.summary.startswith("outside tolerance: cosine 1, max abs 0.6")


@pytest.mark.parametrize(
    ("tolerance", "passed"),
    [
        ({"max_abs": 0.02}, True),
        ({"max_abs": 0.005}, False),
        ({"mean_abs": 0.0101}, True),
        ({"mean_abs": 0.0099}, False),
        ({"cosine": 0.99, "max_abs": 0.005}, False),
        ({"atol": 0.011}, True),
        ({"atol": 0.009}, False),
        ({"rtol": 1.0}, True),
        ({"rtol": 1e-4, "mismatched": "100 %"}, True),
        ({"snr_db": 20}, True),
        ({"snr_db": 90}, False),
        ({"top1": 1}, True),
        ({"max_rel": 1.0}, True),
        ({"max_rel": 1e-5}, False),
    ],
)
def test_each_tolerance_says_yes_and_no(tolerance: dict[str, Any], passed: bool, tmp_path: Path) -> None:
    off = "g (float[n, 4] x) => (float[n, 4] y) <float d = {0.01}> { s = Sigmoid(x) y = Add(s, d) }"
    ran, _ = compare(tmp_path, SAME, off, {"x": {"shape": [8, 4]}}, tolerance=tolerance)
    assert ran.result.passed is passed


@pytest.mark.parametrize("tolerance", [{}, {"cosine": 1.5}, {"max_abs": -1}, {"cosin": 0.9}, {"cosine": "high"}])
def test_wrong_tolerances_are_refused(tolerance: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CheckAccuracy.model_validate({"tolerance": tolerance})


def test_nan_in_the_candidate_only_fails_and_is_said(tmp_path: Path) -> None:
    # log of what is below 0 for half of the inputs
    reference = "g (float[n] x) => (float[n] y) { y = Identity(x) }"
    candidate = (
        "g (float[n] x) => (float[n] y) <float h = {0.5}> { a = Sub(x, h) b = Log(a) c = Sub(b, b) y = Add(x, c) }"
    )
    ran, accuracy = compare(tmp_path, reference, candidate, {"x": {"shape": [64]}}, tolerance={"max_abs": 1})
    assert not ran.result.passed
    assert "elements are NaN or infinite where the reference is not" in ran.result.summary
    assert accuracy.outputs[0].metrics["max_abs"] == 0  # of the elements that are numbers in both
    other = tmp_path / "other"
    other.mkdir()
    ran, accuracy = compare(other, candidate, reference, {"x": {"shape": [64]}}, tolerance={"max_abs": 1})
    assert "are not the NaN or infinity that the reference has there" in accuracy.outputs[0].failed[0]


def test_the_same_infinities_agree(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (float[n] y) <float h = {0.5}> { a = Sub(x, h) b = Relu(a) y = Log(b) }"
    ran, _ = compare(tmp_path, graph, graph, {"x": {"shape": [64]}})
    assert ran.result.passed


def test_fp16_inputs_and_outputs_are_compared_with_fp32(tmp_path: Path) -> None:
    half = "g (float16[n, 4] x) => (float16[n, 4] y) { y = Sigmoid(x) }"
    ran, accuracy = compare(tmp_path, SAME, half, {"x": {"shape": [16, 4]}})
    assert ran.result.passed
    assert 0 < accuracy.outputs[0].metrics["max_abs"] < 1e-3
    assert accuracy.outputs[0].dtype == "float16"
    assert accuracy.inputs["x"].endswith("float32 16x4")


def test_bfloat16_outputs(tmp_path: Path) -> None:
    bf16 = "g (bfloat16[n, 4] x) => (bfloat16[n, 4] y) { y = Identity(x) }"
    fp32 = "g (float[n, 4] x) => (float[n, 4] y) { y = Identity(x) }"
    ran, accuracy = compare(tmp_path, fp32, bf16, {"x": {"shape": [16, 4]}})
    assert ran.result.passed
    assert accuracy.outputs[0].dtype == "bfloat16"
    assert 1e-4 < accuracy.outputs[0].metrics["max_abs"] < 4e-3


def test_integers_and_bools_must_be_equal_unless_told(tmp_path: Path) -> None:
    head = "g (float[n] x) => (int64[n] i, bool[n] b, float[n] f) <float h = {0.5}>"
    rest = "b = Less(x, h) f = Relu(x)"
    floor = f"{head} {{ i = Cast<to = 7>(x) {rest} }}"
    other = f"{head} {{ r = Round(x) i = Cast<to = 7>(r) {rest} }}"
    given: Given = {"x": {"shape": [100], "range": [0, 10]}}
    ran, accuracy = compare(tmp_path, floor, other, given, tolerance={"cosine": 0.5})
    failed = {output.output: output.failed for output in accuracy.outputs}
    assert not ran.result.passed
    assert "is more than 0" in failed["i"][0]
    assert failed["b"] == failed["f"] == ()
    again = tmp_path / "again"
    again.mkdir()
    own = {"i": {"max_abs": 1}}
    ran, accuracy = compare(again, floor, other, given, tolerance={"cosine": 0.5}, output_tolerance=own)
    assert ran.result.passed
    assert accuracy.output_tolerance == {"i": {"max_abs": 1.0}}


def test_unknown_output_in_the_tolerances(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match='no output "yy"; did you mean "y"'):
        compare(tmp_path, SAME, SAME, output_tolerance={"yy": {"max_abs": 1}})


@pytest.mark.parametrize(
    ("reference", "candidate", "said"),
    [
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "g (float[4] x) => (float[a, b] y) <int64[2] s = {2, 2}> { y = Reshape(x, s) }",
            "its shape is 2x2 where the reference has 4",
        ),
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }",
            "it is int64 where the reference has float32",
        ),
        (
            "g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Exp(x) }",
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "only the reference has this output",
        ),
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Exp(x) }",
            "only the candidate has this output",
        ),
        (
            "g (float[4] x) => (seq(float[n]) y) { y = SplitToSequence(x) }",
            "g (float[4] x) => (seq(float[n]) y) { y = SplitToSequence(x) }",
            "it is no tensor",
        ),
    ],
)
def test_outputs_that_cannot_be_compared_fail(reference: str, candidate: str, said: str, tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, reference, candidate)
    assert not ran.result.passed
    assert any(said in sentence for output in accuracy.outputs for sentence in output.failed)


def test_agreement_on_a_constant_output_says_little(tmp_path: Path) -> None:
    # A softmax over equal numbers, as generated weights give it.
    flat = "g (float[n, 4] x) => (float[n, 4] y) <float z = {0}> { a = Mul(x, z) y = Softmax(a) }"
    other = "g (float[n, 4] x) => (float[n, 4] y) <float z = {0}> { e = Exp(x) a = Mul(e, z) y = Softmax(a) }"
    ran, accuracy = compare(tmp_path, flat, other)
    assert ran.result.passed
    assert accuracy.notes[-1] == "the reference gives the same number everywhere in y, so agreement says little"
    assert ran.result.summary.endswith(
        "within tolerance (the reference gives the same number everywhere in y, so agreement says little)"
    )


def test_renamed_inputs_and_outputs_are_matched_by_order(tmp_path: Path) -> None:
    reference = "g (float[n] a, float[n] b) => (float[n] y, float[n] z) { y = Sub(a, b) z = Exp(a) }"
    candidate = "g (float[n] in_a, float[n] b) => (float[n] out_y, float[n] z) { out_y = Sub(in_a, b) z = Exp(in_a) }"
    ran, accuracy = compare(tmp_path, reference, candidate, {"in_a": {"shape": [5]}, "b": {"shape": [5]}})
    assert ran.result.passed
    assert [output.output for output in accuracy.outputs] == ["y", "z"]
    assert accuracy.inputs["a"].endswith("float32 5")


def test_models_with_other_inputs_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the reference has the inputs x, the candidate has a, b"):
        compare(tmp_path, SAME, "g (float[n] a, float[n] b) => (float[n] y) { y = Sub(a, b) }")


def test_a_dynamic_reference_runs_at_the_candidates_fixed_shape(tmp_path: Path) -> None:
    fixed = "g (float[6, 4] x) => (float[6, 4] y) { y = Sigmoid(x) }"
    ran, accuracy = compare(tmp_path, SAME, fixed)
    assert ran.result.passed
    assert accuracy.outputs[0].shape == (6, 4)


def test_several_samples_tell_the_worst(tmp_path: Path) -> None:
    # The error grows with the input, and every sample has other inputs.
    off = "g (float[n, 4] x) => (float[n, 4] y) <float d = {0.01}> { s = Sigmoid(x) e = Mul(x, d) y = Add(s, e) }"
    worst = []
    for samples in (1, 2, 8):
        folder = tmp_path / str(samples)
        folder.mkdir()
        ran, accuracy = compare(folder, SAME, off, samples=samples)
        assert accuracy.sample_count == samples
        worst.append(ran.result.metrics["max_abs"].value)
    assert worst[0] < worst[2]
    assert worst == sorted(worst)
    assert len(list((folder / "ran" / "scratch").iterdir())) == 8


def test_models_that_cannot_run_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Nonsense"):
        compare(tmp_path, SAME, "g (float[n, 4] x) => (float[n, 4] y) { y = Nonsense(x) }")


@pytest.mark.parametrize("setting", ["provider", "reference_provider"])
def test_each_model_runs_on_the_provider_asked_for(setting: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match='"warp" is no execution provider'):
        compare(tmp_path, SAME, SAME, None, **{setting: "warp"})


def test_silently_broken_fp16_of_a_real_model(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = sample_model("det")
    half = tmp_path / "half.onnx"
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), half)
    ran, _ = compare(tmp_path, source, half, {"x": {"shape": [1, 3, 320, 320]}})
    assert not ran.result.passed
    assert ran.result.metrics["cosine"].value < 0.5
    assert ran.result.metrics["max_abs"].value == pytest.approx(1.0, abs=1e-3)


def test_state_inputs_of_a_real_model(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    silero = sample_model("silero")
    given: Given = {"input": {"shape": [1, 512]}, "state": {"data": "zeros"}, "sr": {"range": [16000, 16001]}}
    ran, accuracy = compare(tmp_path, silero, silero, given, samples=2)
    assert ran.result.passed
    assert {output.output for output in accuracy.outputs} == {"output", "stateN"}
    assert accuracy.inputs["sr"] == "random integers [16000, 16001), seed 0, int64 scalar"


FLOATS = st.floats(-1e3, 1e3, width=32)


@settings(deadline=None)
@given(data=st.data(), shape=hnp.array_shapes(max_dims=3, max_side=6))
def test_metrics_are_what_numpy_says(data: st.DataObject, shape: tuple[int, ...]) -> None:
    r = data.draw(hnp.arrays(np.float32, shape, elements=FLOATS)).astype(np.float64)
    c = data.draw(hnp.arrays(np.float32, shape, elements=FLOATS)).astype(np.float64)
    agreement = Agreement(rtol=0.1, atol=0.5)
    agreement.add(r, c)
    found = agreement.metrics()
    assert found["max_abs"] == pytest.approx(np.abs(c - r).max())
    assert found["mean_abs"] == pytest.approx(np.abs(c - r).mean())
    assert found["mismatched"] == np.mean(~np.isclose(c, r, rtol=0.1, atol=0.5))
    if np.linalg.norm(r) > 1e-9 and np.linalg.norm(c) > 1e-9:
        cosine = np.vdot(r, c) / np.linalg.norm(r) / np.linalg.norm(c)
        assert found["cosine"] == pytest.approx(cosine, abs=1e-9)
    if np.abs(r).min() > 1e-6:
        assert found["max_rel"] == pytest.approx((np.abs(c - r) / np.abs(r)).max())
    noise, signal = np.sum((c - r) ** 2), np.sum(r**2)
    if noise > 1e-9 and signal > 1e-9:
        assert found["snr_db"] == pytest.approx(10 * math.log10(signal / noise))
    if shape[-1] > 1:
        assert found["top1"] == pytest.approx(np.mean(r.argmax(-1) == c.argmax(-1)))


def test_zeros_have_a_direction_of_their_own() -> None:
    zeros, ones = np.zeros(4), np.ones(4)
    for reference, candidate, cosine, snr in (
        (zeros, zeros, 1, SAME_DB),
        (zeros, ones, 0, -SAME_DB),
        (ones, zeros, 0, 0),
    ):
        agreement = Agreement()
        agreement.add(reference, candidate)
        assert agreement.metrics()["cosine"] == cosine
        assert agreement.metrics()["snr_db"] == snr


def test_extremes_stay_finite_and_empty_outputs_agree() -> None:
    huge = Agreement()
    huge.add(np.array([0.0, 1e308]), np.array([1e308, -1e308]))
    assert all(math.isfinite(value) for value in huge.metrics().values())
    empty = Agreement()
    empty.add(np.zeros((0, 4)), np.zeros((0, 4)))
    assert empty.metrics() == {}


def test_large_integers_are_not_rounded_away() -> None:
    agreement = Agreement()
    agreement.add(np.array([2**53], np.int64), np.array([2**53 + 1], np.int64))
    assert agreement.metrics()["mismatched"] == 1.0


def test_many_chunks_are_one_output() -> None:
    r = np.random.default_rng(0).random(2_500_000, dtype=np.float32)
    agreement = Agreement()
    agreement.add(r, r.astype(ml_dtypes.bfloat16).astype(np.float32))
    rounded = np.abs(r.astype(ml_dtypes.bfloat16).astype(np.float64) - r)
    assert agreement.metrics()["max_abs"] == rounded.max()
    assert agreement.metrics()["mean_abs"] == pytest.approx(rounded.mean())


def test_names_are_paired_by_name_then_by_order() -> None:
    assert pair_names(["a", "b", "c"], ["c", "x", "a"]) == (("a", "a"), ("b", "x"), ("c", "c"))
    assert pair_names(["a", "b"], ["a"]) == (("a", "a"), ("b", None))
    assert pair_names(["a"], ["b", "c"]) == (("a", None), (None, "b"), (None, "c"))
