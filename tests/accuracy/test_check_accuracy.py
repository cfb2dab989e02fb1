"""Comparison of two models' outputs: metrics, tolerances, and outputs that cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16
from pydantic import ValidationError

from ndld_flow.accuracy.accuracy_record import remark_on_unseen, summarize, worst_sample
from ndld_flow.accuracy.model_comparison import CONSTANT
from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.errors import BackendError, ModelError, RequestError, UnknownNameError
from ndld_flow.records.accuracy import SAME_DB, Accuracy, OutputAgreement
from ndld_flow.records.measurement import Metric
from ndld_flow.samples.feeds import pair_names
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.store.kinds import AccuracyDocument, Onnx
from tests.support.message_files import CheckMessage
from tests.support.models_run import Given, Ran, run_step, write_model
from tests.support.text_facts import numbers_in
from tests.support.typed_api import run_once

SAME = "g (float[n, 4] x) => (float[n, 4] y) { y = Sigmoid(x) }"


def compare(
    folder: Path, reference: Path | str, candidate: Path | str, inputs: Given | None = None, **settings: Any
) -> tuple[Ran, Accuracy]:
    left = write_model(folder / "reference.onnx", reference) if isinstance(reference, str) else reference
    right = write_model(folder / "candidate.onnx", candidate) if isinstance(candidate, str) else candidate
    artifacts = {"reference": Onnx(left, "source", "digest")}
    settings = {"power": "off", "made": "off", **settings}
    ran = run_step(CheckAccuracy, right, folder / "ran", settings, inputs, artifacts=artifacts)
    text = (ran.out / AccuracyDocument.main).read_text()
    return ran, Accuracy.model_validate_json(text)


def test_equal_models_agree(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, SAME, SAME, {"x": {"shape": [3, 4]}})
    assert ran.result.passed
    assert accuracy.passed
    assert "cosine 1, max abs 0: within" in ran.result.summary
    assert ran.result.metrics["max_abs"] == Metric(value=0.0)
    assert ran.result.metrics["cosine"] == Metric(value=1.0)
    assert ran.result.metrics["snr_db"] == Metric(value=SAME_DB, unit="dB")
    assert not [name for name in ran.result.metrics if "." in name]
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
    assert "slice_rms" in accuracy.outputs[0].failed[0]
    assert ran.result.summary.startswith("outside tolerance: slice_rms")


@pytest.mark.parametrize(("size", "shown"), [(1, False), (4, True)])
def test_a_cosine_of_single_values_is_not_shown(tmp_path: Path, size: int, shown: bool) -> None:
    """`cosine 1` beside an error of 2 % read as if the values were the same; of positive numbers it is always 1."""
    model = f"g (float[n, {size}] x) => (float[n, {size}] y) {{ y = Sigmoid(x) }}"
    ran, accuracy = compare(tmp_path, model, model)
    assert "cosine" in accuracy.outputs[0].metrics, "gates may name it"
    assert ("cosine" in ran.result.summary) is shown


@pytest.mark.parametrize(
    ("tolerance", "judged", "unjudged"),
    [
        ({"slices": "off", "cosine": 0.99}, ["cosine"], ["worst slice", "max abs"]),
        ({"slices": "off", "rmse": 9}, [], ["worst slice", "cosine", "max abs"]),
        ({"slice_rms": 99, "slice_max": 99, "position_rms": 99}, ["worst slice", "cosine"], []),
        (None, [], ["worst slice", "cosine", "max abs"]),
    ],
)
def test_only_figures_with_a_bound_are_within_tolerance(
    tmp_path: Path, tolerance: dict[str, Any] | None, judged: list[str], unjudged: list[str]
) -> None:
    doubled = "g (float[n, 4] x) => (float[n, 4] y) <float two = {2}> { s = Sigmoid(x) y = Mul(s, two) }"
    ran, accuracy = compare(tmp_path, SAME, doubled, tolerance=tolerance)
    assert ran.result.passed
    gated = summarize(accuracy, {"max_abs"})
    assert gated.startswith("max abs") is ("max abs" in unjudged)
    assert ("without a bound" in gated) is any(figure != "max abs" for figure in unjudged)
    within, _, rest = ran.result.summary.rpartition(": within tolerance")
    assert [figure for figure in ("worst slice", "cosine", "max abs") if figure in within and judged] == [
        figure for figure in ("worst slice", "cosine", "max abs") if figure not in unjudged and judged
    ]
    assert all(figure in rest for figure in unjudged)
    assert rest.endswith(": without a bound") is bool(unjudged)


def test_the_worst_output_decides_whether_a_figure_has_a_bound(tmp_path: Path) -> None:
    two = "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) <float two = {2}> { y = Sigmoid(x) z = Sigmoid(x) }"
    doubled = two.replace("z = Sigmoid(x)", "s = Sigmoid(x) z = Mul(s, two)")
    ran, _ = compare(tmp_path, two, doubled, output_tolerance={"z": {"slices": "off", "cosine": 0.9}})
    assert ran.result.passed
    assert "worst slice" in ran.result.summary.partition("within tolerance; ")[2]


@pytest.mark.representatives("tolerance8-True", "tolerance0-True", "tolerance18-True")
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
        ({"rmse": 0.0101}, True),
        ({"rmse": 0.0099}, False),
        ({"relative_rms": "2 %"}, True),
        ({"relative_rms": "1 %"}, False),
        ({"psnr_db": 20}, True),
        ({"psnr_db": 90}, False),
    ],
)
def test_each_tolerance_passes_and_fails(tolerance: dict[str, Any], passed: bool, tmp_path: Path) -> None:
    off = "g (float[n, 4] x) => (float[n, 4] y) <float d = {0.01}> { s = Sigmoid(x) y = Add(s, d) }"
    ran, _ = compare(tmp_path, SAME, off, {"x": {"shape": [8, 4]}}, tolerance={"slices": "off", **tolerance})
    assert ran.result.passed is passed


@pytest.mark.parametrize(
    "tolerance",
    [{"slices": "off"}, {"slices": "none"}, {"cosine": 1.5}, {"max_abs": -1}, {"cosin": 0.9}, {"cosine": "high"}],
)
def test_wrong_tolerances_are_refused(tolerance: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CheckAccuracy.model_validate({"tolerance": tolerance})


def test_nan_only_in_the_candidate_fails_and_is_reported(tmp_path: Path) -> None:
    # log of what is below 0 for half of the inputs
    reference = "g (float[n] x) => (float[n] y) { y = Identity(x) }"
    candidate = (
        "g (float[n] x) => (float[n] y) <float h = {0.5}> { a = Sub(x, h) b = Log(a) c = Sub(b, b) y = Add(x, c) }"
    )
    ran, accuracy = compare(tmp_path, reference, candidate, {"x": {"shape": [64]}}, tolerance={"max_abs": 1})
    assert not ran.result.passed
    assert "NaN or infinite where" in ran.result.summary
    assert accuracy.outputs[0].metrics["max_abs"] == 0  # of the elements that are numbers in both
    other = tmp_path / "other"
    other.mkdir()
    ran, accuracy = compare(other, candidate, reference, {"x": {"shape": [64]}}, tolerance={"max_abs": 1})
    assert "differ from the NaN" in accuracy.outputs[0].failed[0]


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


def test_integers_and_bools_must_be_equal_by_default(tmp_path: Path) -> None:
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
    assert accuracy.output_tolerance["i"]["max_abs"] == 1.0


def test_tolerance_for_an_unknown_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        compare(tmp_path, SAME, SAME, output_tolerance={"yy": {"max_abs": 1}})
    assert (caught.value.name, caught.value.nearest) == ("yy", "y")
    assert not (tmp_path / "ran" / "scratch" / "reference").exists()  # before anything ran


@pytest.mark.parametrize(
    ("reference", "candidate", "message"),
    [
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "g (float[4] x) => (float[a, b] y) <int64[2] s = {2, 2}> { y = Reshape(x, s) }",
            "2x2, and 4 in the reference",
        ),
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }",
            "int64, and float32",
        ),
        (
            "g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Exp(x) }",
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "candidate does not",
        ),
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x) }",
            "g (float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Exp(x) }",
            "reference does not",
        ),
    ],
)
def test_outputs_that_cannot_be_compared_fail(reference: str, candidate: str, message: str, tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, reference, candidate)
    assert not ran.result.passed
    assert any(message in sentence for output in accuracy.outputs for sentence in output.failed)


def test_agreement_on_a_constant_output_is_weak_evidence(tmp_path: Path) -> None:
    # A softmax over equal numbers, as generated weights give it.
    flat = "g (float[n, 4] x) => (float[n, 4] y) <float z = {0}> { a = Mul(x, z) y = Softmax(a) }"
    other = "g (float[n, 4] x) => (float[n, 4] y) <float z = {0}> { e = Exp(x) a = Mul(e, z) y = Softmax(a) }"
    ran, accuracy = compare(tmp_path, flat, other)
    assert ran.result.passed
    assert any(f"{CONSTANT} y" in note for note in accuracy.notes)
    assert f"within tolerance ({CONSTANT} y" in ran.result.summary


@pytest.mark.parametrize(("declared", "axis"), [("1, frames", None), ("1, n", None), ("1, 64", 1), ("n, m", 1)])
def test_dynamic_sizes_beside_fixed_ones_are_no_channels(declared: str, axis: int | None, tmp_path: Path) -> None:
    """A pitch that jumps from frame to frame: its frames differ as channels do."""
    given: Given = {"x": {"shape": [1, 64]}}
    graph = f"g (float[{declared}] x) => (float[{declared}] y) {{ y = Neg(x) }}"
    _, accuracy = compare(tmp_path, graph, graph, given)
    assert accuracy.outputs[0].slice_axis == axis


def test_channels_that_are_all_alike_on_the_samples_are_not_called_unseen(tmp_path: Path) -> None:
    """Each is measured, so that the worst one has a name."""
    weights = ",".join(str(1 + i % 7) for i in range(32))
    head = f"g (float[n, 4] x) => (float[n, 8] y) <float[4,8] w = {{{weights}}}, float f = {{1.001}}>"
    graph, off = f"{head} {{ y = MatMul(x, w) }}", f"{head} {{ h = MatMul(x, w) y = Mul(h, f) }}"
    given: Given = {"x": {"shape": [1, 4], "data": "ones"}}
    ran, accuracy = compare(tmp_path, graph, off, given, samples=8)
    assert accuracy.outputs[0].unseen_count == accuracy.outputs[0].slice_count == 8
    assert " channels of " not in ran.result.summary
    assert "varies on the samples" in ran.result.summary


@pytest.mark.parametrize(("off", "outcome"), [(1e-4, "passed"), (1e-3, "inconclusive"), (0.3, "failed")])
def test_an_output_that_hardly_varies_fails_only_by_what_is_certain(tmp_path: Path, off: float, outcome: str) -> None:
    """The first value may be a quantity of its own, or one like the others, whose rounding moves it as far."""
    head = f"g (float[n, 3] x) => (float[n, 3] y) <float[3] means = {{0.001,0.5,0.9}}, float[3] off = {{{off},0,0}}>"
    given: Given = {"x": {"shape": [64, 3], "range": [0, 1e-5]}}
    right, wrong = f"{head} {{ y = Add(x, means) }}", f"{head} {{ a = Add(x, means) y = Add(a, off) }}"
    ran, accuracy = compare(tmp_path, right, wrong, given, made="off")
    assert accuracy.outcome == outcome
    assert ("hardly vary" in ran.result.summary) == (outcome == "inconclusive")
    assert accuracy.outputs[0].unseen_count == 3


def test_a_class_map_of_one_class_is_weak_evidence(tmp_path: Path) -> None:
    graph = "g (float[1, 9, 9] x) => (int64[1, 9, 9] y) { a = Floor(x) y = Cast<to = 7>(a) }"
    ran, accuracy = compare(tmp_path, graph, graph)
    assert accuracy.outputs[0].judged_as == "classes"
    assert f"{CONSTANT} y" in ran.result.summary


def test_renamed_inputs_and_outputs_are_matched_by_order(tmp_path: Path) -> None:
    reference = "g (float[n] a, float[n] b) => (float[n] y, float[n] z) { y = Sub(a, b) z = Exp(a) }"
    candidate = "g (float[n] in_a, float[n] b) => (float[n] out_y, float[n] z) { out_y = Sub(in_a, b) z = Exp(in_a) }"
    ran, accuracy = compare(tmp_path, reference, candidate, {"in_a": {"shape": [5]}, "b": {"shape": [5]}})
    assert ran.result.passed
    assert [output.output for output in accuracy.outputs] == ["y", "z"]
    assert accuracy.inputs["a"].endswith("float32 5")


def test_models_with_other_inputs_cannot_be_compared(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        compare(tmp_path, SAME, "g (float[n] a, float[n] b) => (float[n] y) { y = Sub(a, b) }")
    check_message(caught.value)


def test_a_dynamic_reference_runs_at_the_candidates_fixed_shape(tmp_path: Path) -> None:
    fixed = "g (float[6, 4] x) => (float[6, 4] y) { y = Sigmoid(x) }"
    ran, accuracy = compare(tmp_path, SAME, fixed)
    assert ran.result.passed
    assert accuracy.outputs[0].shape == (6, 4)


def test_the_worst_of_several_samples_is_reported(tmp_path: Path) -> None:
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
    assert [sample.sample for sample in accuracy.samples] == [f"random, seed {i}" for i in range(8)]
    errors = {sample.sample: sample.outputs["y"]["max_abs"] for sample in accuracy.samples}
    assert max(errors.values()) == accuracy.outputs[0].metrics["max_abs"]
    assert accuracy.outputs[0].worst_samples["max_abs"] == max(errors, key=lambda sample: errors[sample])
    assert accuracy.worst_sample == accuracy.outputs[0].worst_samples["slice_rms"]
    assert f"(worst of 8 samples: {accuracy.worst_sample})" in ran.result.summary


def test_models_that_cannot_run_are_reported(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        compare(tmp_path, SAME, "g (float[n, 4] x) => (float[n, 4] y) { y = Nonsense(x) }")
    check_message(caught.value)


@pytest.mark.parametrize("setting", ["provider", "reference_provider"])
def test_each_model_runs_on_the_requested_provider(setting: str, tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(BackendError) as caught:
        compare(tmp_path, SAME, SAME, None, **{setting: "warp"})
    check_message(caught.value)


@pytest.mark.thorough
def test_silent_fp16_damage_of_a_real_model_is_found(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = sample_model("det")
    half = tmp_path / "half.onnx"
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), half)
    ran, _ = compare(tmp_path, source, half, {"x": {"shape": [1, 3, 320, 320]}})
    assert not ran.result.passed
    assert ran.result.metrics["cosine"].value < 0.5
    assert ran.result.metrics["max_abs"].value == pytest.approx(1.0, abs=1e-3)


@pytest.mark.thorough
def test_a_real_model_with_state_inputs_is_compared(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    silero = sample_model("silero")
    given: Given = {"input": {"shape": [1, 512]}, "state": {"data": "zeros"}, "sr": {"range": [16000, 16001]}}
    ran, accuracy = compare(tmp_path, silero, silero, given, samples=2)
    assert ran.result.passed
    assert {output.output for output in accuracy.outputs} == {"output", "stateN"}
    assert accuracy.inputs["sr"] == "random integers [16000, 16001), seed 0, int64 scalar"


OVERFLOWS = """g (float[n, 4] x) => (float[n, 4] y) <float k = {30000}, float down = {0.0000152587890625}> {
    h = Cast<to = 10>(x) hk = Cast<to = 10>(k) hdown = Cast<to = 10>(down)
    big = Mul(h, hk) bigger = Add(big, big) small = Mul(bigger, hdown) y = Cast<to = 1>(small) }"""
EXACT = """g (float[n, 4] x) => (float[n, 4] y) <float k = {30000}, float down = {0.0000152587890625}> {
    big = Mul(x, k) bigger = Add(big, big) small = Mul(bigger, down) y = Identity(small) }"""
"""The sum in the middle is up to 120000, which fp16 cannot hold."""
TO_TWO: Given = {"x": {"shape": [8, 4], "range": [0, 2]}}


def test_emulated_storage_reveals_an_overflow_that_native_execution_hides(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    ran, accuracy = compare(tmp_path / "native", EXACT, OVERFLOWS, TO_TWO, arithmetic="native")
    assert ran.result.passed
    assert (accuracy.arithmetic, accuracy.emulated) == ("native", ())
    assert "emulated" not in ran.result.summary
    (note,) = accuracy.notes
    assert "candidate" in note and "`arithmetic: stored`" in note
    ran, accuracy = compare(tmp_path, EXACT, OVERFLOWS, TO_TWO)
    assert not ran.result.passed
    assert (accuracy.arithmetic, accuracy.emulated) == ("stored", ("candidate",))
    assert "NaN or infinite where" in accuracy.outputs[0].failed[0]
    assert "(stored precision emulated)" in ran.result.summary


def test_emulated_storage_rounds_the_reference_too(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, OVERFLOWS, OVERFLOWS, TO_TWO)
    assert ran.result.passed
    assert accuracy.emulated == ("reference", "candidate")


def test_layers_show_where_values_diverge(tmp_path: Path, check_message: CheckMessage) -> None:
    ran, accuracy = compare(tmp_path, EXACT, OVERFLOWS, TO_TWO, layers=True)
    assert accuracy.first_divergent is not None
    assert (accuracy.first_divergent.tensor, accuracy.first_divergent.op_type) == ("bigger", "Add")
    assert "values diverge at bigger" in ran.result.summary
    assert {"big", "bigger", "small"} <= {layer.tensor for layer in accuracy.layers}
    assert accuracy.first_divergent.range is not None
    assert accuracy.first_divergent.range.beyond_share == pytest.approx(0.45, abs=0.25)  # 60000 x is beyond 65504
    assert accuracy.layers_compared == len(accuracy.layers)
    assert accuracy.divergence_bounds == Tolerance().bounds()
    again = tmp_path / "again"
    again.mkdir()
    ran, accuracy = compare(again, EXACT, OVERFLOWS, TO_TWO, layers=["big*"])
    assert [layer.tensor for layer in accuracy.layers] == ["big", "bigger"]
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(RequestError) as caught:
        compare(other, EXACT, OVERFLOWS, TO_TWO, layers=["bigg"])
    check_message(caught.value)
    assert not (other / "ran" / "scratch" / "reference").exists()  # before anything ran


def test_only_the_worst_layers_of_a_huge_model_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndld_flow.accuracy.accuracy_record.MOST_LAYERS", 2)
    _, accuracy = compare(tmp_path, EXACT, OVERFLOWS, TO_TWO, layers=True)
    assert "bigger" in {layer.tensor for layer in accuracy.layers}
    assert len(accuracy.layers) < accuracy.layers_compared
    assert "compared layers" in accuracy.notes[-1]


def test_divergence_of_logits_is_that_of_their_softmax(tmp_path: Path, check_message: CheckMessage) -> None:
    logits = "g (float[n, 8] x) => (float[n, 8] scores, float[n, 8] boxes) { scores = Exp(x) boxes = Relu(x) }"
    off = """g (float[n, 8] x) => (float[n, 8] scores, float[n, 8] boxes) <float d = {0.5}> {
        e = Exp(x) m = Mul(x, d) scores = Add(e, m) boxes = Relu(x) }"""
    given: Given = {"x": {"shape": [16, 8]}}
    own = {"scores": {"kl": 1e-6, "topk": 1, "top1": "1 %"}}
    ran, accuracy = compare(tmp_path, logits, off, given, output_tolerance=own, softmax=["score*"], topk=3)
    assert {"kl": 1e-6, "top1": 0.01, "top3": 1.0}.items() <= accuracy.output_tolerance["scores"].items()
    failed = {output.output: output.failed for output in accuracy.outputs}
    assert failed["boxes"] == ()
    assert any(sentence.startswith("kl 0.0") for sentence in failed["scores"])
    assert not ran.result.passed
    # Of several outputs gates may name one, or none and mean the worst.
    assert ran.result.metrics["scores.kl"] == ran.result.metrics["kl"]
    assert ran.result.metrics["boxes.cosine"] == Metric(value=1.0)
    assert ran.result.metrics["boxes.psnr_db"] == Metric(value=SAME_DB, unit="dB")
    assert "boxes.kl" not in ran.result.metrics
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(RequestError) as caught:
        compare(other, logits, off, given, softmax=["score"])
    check_message(caught.value)


def test_without_tolerances_only_nan_and_infinity_fail(tmp_path: Path) -> None:
    other = "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }"
    ran, accuracy = compare(tmp_path, SAME, other, tolerance=None)
    assert ran.result.passed
    assert accuracy.tolerance == {}
    assert accuracy.outputs[0].metrics["cosine"] < 0


def test_samples_from_files_are_all_compared(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"row{i}.npy", np.full((1, 4), 10.0 * i, np.float32))
    off = "g (float[n, 4] x) => (float[n, 4] y) <float d = {0.01}> { s = Sigmoid(x) e = Mul(x, d) y = Add(s, e) }"
    data = {"x": str(tmp_path / "*.npy")}
    ran, accuracy = compare(tmp_path, SAME, off, {"x": {"shape": [1, 4]}}, data=data, tolerance={"max_abs": 0.1})
    assert [sample.sample for sample in accuracy.samples] == ["row0.npy", "row1.npy", "row2.npy"]
    assert accuracy.worst_sample == "row2.npy"
    assert accuracy.sample_count == 3
    assert "worst of 3 samples: row2.npy" in ran.result.summary


def test_the_worst_sample_is_chosen_by_the_first_bounded_metric() -> None:
    def output(name: str, cosine: float, max_abs: float) -> OutputAgreement:
        metrics = {"cosine": cosine, "max_abs": max_abs}
        worst = {metric: f"{metric} of {name}" for metric in metrics}
        return OutputAgreement(
            output=name, dtype="float32", shape=(), judged_as="numbers", metrics=metrics, worst_samples=worst
        )

    outputs = (output("y", 0.5, 1.0), output("z", 0.9, 2.0))
    assert worst_sample(outputs, ["max_abs", "cosine"]) == "max_abs of z"
    assert worst_sample(outputs, []) == worst_sample(outputs, ["kl"]) == "cosine of y"
    assert worst_sample((), ["cosine"]) is None


def test_channels_that_were_not_seen_are_counted_over_all_outputs() -> None:
    def output(name: str, unseen: int) -> OutputAgreement:
        return OutputAgreement(
            output=name, dtype="float32", shape=(), judged_as="numbers", metrics={}, unseen_count=unseen, slice_count=10
        )

    whole, parts = remark_on_unseen([output("a", 6), output("b", 1), output("c", 10)])
    assert whole.startswith('output "c" ') and numbers_in(parts) == [7, 20, 2]


def test_empty_outputs_are_undecided(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, SAME, SAME, {"x": {"shape": [0, 4]}})
    assert (ran.result.passed, ran.result.inconclusive) == (False, True)
    assert accuracy.outputs[0].metrics == {}


def test_outputs_are_paired_by_name_then_by_order() -> None:
    assert pair_names(["a", "b", "c"], ["c", "x", "a"]) == (("a", "a"), ("b", "x"), ("c", "c"))
    assert pair_names(["a", "b"], ["a"]) == (("a", "a"), ("b", None))
    assert pair_names(["a"], ["b", "c"]) == (("a", None), (None, "b"), (None, "c"))


NO_VALUES = {
    "NaN": ("right.onnx", "g (float[2] x) => (float[2] y) { z = Sub(x, x) \n y = Div(z, z) }"),
    "infinity": ("right.onnx", "g (float[2] x) => (float[2] y) { z = Sub(x, x) \n e = Exp(z) \n y = Div(e, z) }"),
    "nothing": ("right.onnx", "g (float[2] x) => (int64[1, N] y) { z = Sub(x, x) \n y = NonZero(z) }"),
}


@pytest.mark.parametrize("values", NO_VALUES)
def test_outputs_without_values_are_undecided(in_folder: Path, values: str) -> None:
    """A model that is ruined already, or samples without a detection, show nothing about the candidate."""
    name, text = NO_VALUES[values]
    write_model(Path(name), text)
    Path("recipe.yaml").write_text(
        "name: nan\nmodel: right.onnx\nsteps:\n  clean: {step: sanitize}\n"
        "  agree: {step: check_accuracy, candidate: clean, reference: source}\n"
    )
    done = run_once("recipe.yaml")
    assert done.exit_code == 4
    assert any(line.startswith("accuracy (undecided: no value") for line in done.verdict)
    page = Path(done.report).read_text()
    assert "no value" in page


def test_a_gate_on_an_output_of_only_nan_fails(in_folder: Path) -> None:
    write_model(Path("right.onnx"), "g (float[2] x) => (float[2] y) { y = Identity(x) }")
    write_model(Path("ruined.onnx"), "g (float[2] x) => (float[2] y) { z = Sub(x, x) \n y = Div(z, z) }")
    Path("recipe.yaml").write_text(
        "name: nan\nmodel: right.onnx\nmodels: {ruined: ruined.onnx}\n"
        "steps: {agree: {step: check_accuracy, candidate: ruined}}\n"
        "gates: [agree.cosine >= 0.9, agree.max_abs <= 1, agree.snr_db >= 20]\n"
    )
    done = run_once("recipe.yaml")
    assert [gate.passed for gate in done.gates] == [False] * 3


def test_slices_are_turned_off_as_the_documentation_writes_it(in_folder: Path) -> None:
    """YAML 1.1, as PyYAML reads it, makes `off` a boolean."""
    write_model(Path("right.onnx"), "g (float[2] x) => (float[2] y) { y = Identity(x) }")
    Path("recipe.yaml").write_text(
        "name: sliced\nmodel: right.onnx\nsteps:\n"
        "  agree: {step: check_accuracy, candidate: source, tolerance: {slices: off, cosine: 0.999}}\n"
    )
    assert run_once("recipe.yaml").passed
