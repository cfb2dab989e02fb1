"""Accuracy over sequences: states that are fed back, errors at single steps, and attempts to hide them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from pydantic import ValidationError

from ndld_flow.accuracy.sequence_runs import UnrolledSamples
from ndld_flow.base.errors import ModelError, RecipeError, RequestError, UnknownNameError
from ndld_flow.models.files import model_inputs
from ndld_flow.records.accuracy import Accuracy, SequenceAgreement
from ndld_flow.records.activations import Activations
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import make_sequences
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.steps.inspect_activations import InspectActivations
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.steps.quantize import Quantize
from ndld_flow.store.kinds import AccuracyDocument, ActivationsDocument, Onnx, ProfileDocument
from tests.support.message_files import CheckMessage
from tests.support.models_run import Given, Ran, run_step, specs, write_model
from tests.support.text_facts import numbers_in
from tests.support.typed_api import plan_once, run_once

INTERFACE = "(float[1, 2] x, float[1, 2] s, float n) => (float[1, 2] y, float[1, 2] sN, float nN)"
WEIGHTS = "<float one = {1}, float half = {0.5}, float four = {4}, float at = {60}, float some = {0.3}>"
STATE = "d = Mul(s, half) sN = Add(d, x) nN = Add(n, one)"
PLAIN = f"g {INTERFACE} {WEIGHTS} {{ {STATE} c = Sub(sN, one) v = Mul(c, four) y = Sigmoid(v) }}"
INPUTS: Given = {"x": {"data": "random"}, "s": {"from": "sN"}, "n": {"from": "nN"}}


def perturbed(change: str) -> str:
    """Return the model with `y` computed from `clean` by further nodes; `n` counts the steps from 0."""
    return PLAIN.replace("y = Sigmoid(v)", f"clean = Sigmoid(v) {change}")


AT_ONE_STEP = "hit = Equal(nN, at) is = Cast<to=1>(hit) e = Mul(is, some) y = Add(clean, e)"


def compare(
    folder: Path, candidate: str, inputs: Given = INPUTS, reference: str = PLAIN, **settings: Any
) -> tuple[Ran, Accuracy, SequenceAgreement]:
    folder.mkdir(exist_ok=True)
    left, right = write_model(folder / "reference.onnx", reference), write_model(folder / "candidate.onnx", candidate)
    artifacts = {"reference": Onnx(left, "source", "digest")}
    settings = {"steps": 80, **settings}
    ran = run_step(CheckAccuracy, right, folder / "ran", settings, inputs, artifacts=artifacts)
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_text())
    assert accuracy.sequence is not None
    return ran, accuracy, accuracy.sequence


def test_equal_models_agree_at_every_step(tmp_path: Path) -> None:
    ran, accuracy, sequence = compare(tmp_path, PLAIN)
    assert ran.result.passed
    assert "80 steps" in ran.result.summary
    assert sequence.lengths == (80,)
    assert sequence.feedback == {"s": "sN", "n": "nN"}
    assert sequence.first_divergent is None
    assert [steps.state for steps in sequence.outputs] == ["", "s", "n"]
    assert set(sequence.outputs[0].errors) == {0.0}
    assert accuracy.samples == ()
    assert ran.result.metrics["steps"].value == 80
    assert ran.result.metrics["divergent_steps"].value == 0
    assert accuracy.inputs["s"] == "zeros, float32 1x2"


def test_each_step_reads_the_state_of_the_one_before(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "sum.onnx", "g (float[1] x, float[1] s) => (float[1] y, float[1] t) { t = Add(s, x) y = Neg(t) }"
    )
    np.save(tmp_path / "x.npy", np.arange(1, 41, dtype=np.float32)[:, None])
    given = specs({"x": {"data": str(tmp_path / "x.npy")}, "s": {"from": "t", "data": 7}})
    unrolled = UnrolledSamples(make_sequences(model_inputs(model), given, SampleSettings(), "m"), model)
    states = [float(sample.feeds["s"].values[0]) for sample in unrolled]
    assert states == [7 + sum(range(1, step)) for step in range(1, 41)]
    assert [sample.label for sample in unrolled][::39] == ["step 1", "step 40"]


def test_an_error_that_grows_from_nothing_fails_and_names_the_step(tmp_path: Path) -> None:
    drifting = perturbed(
        "w = Constant<value_float=0.0004>() grow = Mul(n, w) up = Mul(grow, grow) m = Mul(up, four) "
        "a = Mul(m, four) b = Mul(a, four) e = Mul(b, four) y = Add(clean, e)"
    )
    ran, accuracy, sequence = compare(tmp_path, drifting, steps=100)
    assert not ran.result.passed
    assert sequence.outputs[0].errors[0] == 0.0
    first = sequence.outputs[0].first_divergent
    assert first is not None
    assert 12 < first < 99
    assert f"diverges at step {first + 1}" in accuracy.outputs[0].failed[0]
    assert f"diverges at step {first + 1}" in ran.result.summary
    assert ran.result.metrics["first_divergent_step"].value == first + 1
    early, late = sequence.outputs[0].early_error, sequence.outputs[0].late_error
    assert early is not None
    assert late is not None
    assert late > 10 * early


def test_an_error_at_one_step_in_the_middle_fails(tmp_path: Path) -> None:
    ran, accuracy, sequence = compare(tmp_path, perturbed(AT_ONE_STEP))
    assert not ran.result.passed
    assert sequence.outputs[0].first_divergent == 59
    assert sequence.outputs[0].divergent_count == 1
    assert numbers_in(accuracy.outputs[0].failed[0]) == [60, 1, 80]


def test_nan_at_one_step_fails_and_names_it(tmp_path: Path) -> None:
    once = "hit = Equal(nN, at) is = Cast<to=1>(hit) zero = Sub(one, is) z = Div(zero, zero) y = Mul(clean, z)"
    ran, accuracy, sequence = compare(tmp_path, perturbed(once))
    assert not ran.result.passed
    assert "2 elements are NaN" in ran.result.summary
    assert "it diverges at step 60 " in ran.result.summary
    assert sequence.outputs[0].first_divergent == 59
    assert sequence.outputs[0].errors[59] is None
    assert accuracy.outputs[0].failed


def test_steps_without_a_finite_value_in_either_model_cannot_pass(tmp_path: Path) -> None:
    """Both are NaN from step 61 on: nothing is compared there."""
    late = perturbed("left = Sub(at, n) r = Sqrt(left) z = Div(r, r) y = Mul(clean, z)")
    ran, _, sequence = compare(tmp_path, late, reference=late)
    assert not ran.result.passed
    assert "20 of 80 steps have no" in ran.result.summary
    assert sequence.outputs[0].first_divergent == 60


def test_a_transient_does_not_hide_later_errors(tmp_path: Path) -> None:
    """The reference's first steps are a hundred times larger than the rest, against which an error of half vanishes."""
    shape = "p = Constant<value_float=-1.0>() k = Mul(n, p) q = Exp(k) big = Mul(q, at) "
    reference = perturbed(f"{shape} y = Add(clean, big)")
    wrong = perturbed(f"{shape} flat = Mul(clean, half) y = Add(flat, big)")
    ran, accuracy, sequence = compare(tmp_path, wrong, reference=reference)
    assert not ran.result.passed
    assert any("of the spread there" in sentence for sentence in accuracy.outputs[0].failed)
    assert sequence.outputs[0].first_divergent is not None


def test_a_state_that_saturates_does_not_hide_its_own_error(tmp_path: Path) -> None:
    """The outputs of both are 1 from early on, while the candidate's state runs away."""
    saturated = "y = Clip(v, half, one)"
    reference = PLAIN.replace("y = Sigmoid(v)", saturated)
    candidate = reference.replace("sN = Add(d, x)", "t = Add(d, x) sN = Add(t, some)")
    given = {**INPUTS, "x": {"data": "random", "range": [3, 4]}}
    ran, accuracy, sequence = compare(tmp_path, candidate, given, reference)
    assert not ran.result.passed
    assert not accuracy.outputs[0].failed
    assert sequence.outputs[1].first_divergent is not None


def test_constant_outputs_are_weak_evidence_and_a_constant_candidate_fails(tmp_path: Path) -> None:
    constant = perturbed("z = Mul(clean, at) b = Clip(z, half, half) y = Identity(b)")
    ran, _, _ = compare(tmp_path / "both", constant, reference=constant)
    assert ran.result.passed
    assert re.search(r"weak: .*\by\b", ran.result.summary)
    ran, _, _ = compare(tmp_path / "one", constant)
    assert not ran.result.passed


def test_a_state_that_never_changes_is_weak_evidence(tmp_path: Path) -> None:
    still = "g (float[1, 2] x, float[1, 2] s) => (float[1, 2] y, float[1, 2] sN) { sN = Identity(s) y = Sigmoid(x) }"
    ran, _, _ = compare(tmp_path, still, {"s": {"from": "sN"}}, still)
    assert ran.result.passed
    assert "no state ever changes" in ran.result.summary


def test_few_steps_are_weak_evidence(tmp_path: Path, check_message: CheckMessage) -> None:
    ran, accuracy, _ = compare(tmp_path, perturbed(AT_ONE_STEP), steps=20)
    assert ran.result.passed
    assert "agreement over 20 steps" in ran.result.summary
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((60, 1, 2), np.float32))
    given = {**INPUTS, "x": {"data": str(tmp_path / "x.npy")}}
    _, accuracy, _ = compare(tmp_path / "data", PLAIN, given, steps=50)
    assert "50 of the 60 steps" in str(accuracy.notes)
    with pytest.raises(RequestError) as caught:
        compare(tmp_path / "many", PLAIN, given, steps=61)
    check_message(caught.value)


def test_an_error_that_still_grows_is_noted(tmp_path: Path) -> None:
    small = perturbed("w = Constant<value_float=0.00002>() e = Mul(n, w) y = Add(clean, e)")
    ran, _, _ = compare(tmp_path, small)
    assert ran.result.passed
    assert "error of y grows" in ran.result.summary


def test_flipped_decisions_are_counted(tmp_path: Path) -> None:
    scalar = PLAIN.replace("y = Sigmoid(v)", "p = Sigmoid(v) i = Constant<value_ints=[1]>() y = ReduceMean(p, i)")
    scalar = scalar.replace("float[1, 2] y", "float[1, 1] y").replace("ReduceMean(p, i)", "ReduceMean<axes=[1]>(p)")
    shifted = scalar.replace("y = ReduceMean", "m = ReduceMean").replace(
        "(p) }", "(p) w = Constant<value_float=0.02>() y = Sub(m, w) }"
    )
    ran, _, sequence = compare(tmp_path, shifted, reference=scalar, tolerance={"slices": "loose"})
    steps = sequence.outputs[0]
    assert steps.decision == "more than 0.5"
    assert steps.flipped_count == len(steps.flipped) > 0
    assert ran.result.metrics["flipped_steps"].value == steps.flipped_count
    assert "of y flipped" in ran.result.summary
    _, _, own = compare(tmp_path / "own", shifted, reference=scalar, thresholds={"y": 2.0})
    assert own.outputs[0].flipped_count == 0
    assert own.outputs[0].decision == "more than 2"
    with pytest.raises(UnknownNameError) as caught:
        compare(tmp_path / "wrong", scalar, reference=scalar, thresholds={"z": 0.5})
    assert caught.value.name == "z"


def test_the_references_states_show_the_error_of_a_single_step(tmp_path: Path) -> None:
    off = PLAIN.replace("sN = Add(d, x)", "w = Constant<value_float=0.02>() t = Add(d, x) sN = Add(t, w)")
    _, _, own = compare(tmp_path / "own", off, tolerance={"max_abs": 1, "slices": "off"})
    _, _, forced = compare(tmp_path / "forced", off, states="reference", tolerance={"max_abs": 1, "slices": "off"})
    assert forced.states == "reference"
    assert own.outputs[1].errors[-1] == pytest.approx(0.04, abs=1e-3)
    assert forced.outputs[1].errors[-1] == pytest.approx(0.02, abs=1e-3)


def test_each_file_is_a_sequence_that_starts_anew(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((30, 1, 2), np.float32)
    for name, part in {"a": values, "b": values[:20]}.items():
        np.save(tmp_path / f"{name}.npy", part)
    given = {**INPUTS, "x": {"data": [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]}}
    late = perturbed(AT_ONE_STEP).replace("at = {60}", "at = {25}")
    _, accuracy, sequence = compare(tmp_path / "run", late, given, steps=None)
    assert sequence.lengths == (30, 20)
    failed = accuracy.outputs[0].failed[0]
    assert "a.npy" in failed and numbers_in(failed) == [25, 1, 50]
    assert sequence.step_name(30) == "b.npy, step 1"
    _, _, single = compare(tmp_path / "one", late, given, steps=22, samples=1)
    assert single.lengths == (22,)


def test_files_of_one_item_are_the_steps_of_one_sequence(tmp_path: Path) -> None:
    for number in range(40):
        np.save(tmp_path / f"{number:02}.npy", np.full((1, 2), number % 3, np.float32))
    given = {**INPUTS, "x": {"data": str(tmp_path / "*.npy")}}
    _, _, sequence = compare(tmp_path / "run", PLAIN, given, steps=None)
    assert sequence.lengths == (40,)


CACHE = "(float[1, 1, 4] x, float[1, past, 4] k) => (float[1, 1, 4] y, float[1, total, 4] kN)"
ATTEND = f"g {CACHE} {{ kN = Concat<axis=1>(k, x) t = Transpose<perm=[0, 2, 1]>(kN) w = MatMul(x, t) "
ATTEND += "p = Softmax<axis=-1>(w) y = MatMul(p, kN) }"


def test_a_cache_that_grows_is_fed_back_and_judged_by_what_each_step_appends(tmp_path: Path) -> None:
    given = {"k": {"from": "kN", "shape": [1, 0, 4]}}
    ran, accuracy, sequence = compare(tmp_path / "same", ATTEND, given, ATTEND, steps=64)
    assert ran.result.passed
    assert accuracy.outputs[1].shape == (1, 1, 4)
    assert not any("never changes" in note for note in accuracy.notes)
    stale = ATTEND.replace(
        "kN = Concat<axis=1>(k, x)", "h = Constant<value_float=0.5>() z = Mul(x, h) kN = Concat<axis=1>(k, z)"
    )
    ran, _, sequence = compare(tmp_path / "stale", stale, given, ATTEND, steps=64)
    assert not ran.result.passed
    assert sequence.first_divergent is not None
    rewriting = ATTEND.replace(
        "kN = Concat<axis=1>(k, x)", "h = Constant<value_float=0.5>() z = Mul(k, h) kN = Concat<axis=1>(z, x)"
    )
    ran, accuracy, _ = compare(tmp_path / "rewriting", rewriting, given, ATTEND, steps=64)
    assert not ran.result.passed
    assert "its shape is" in accuracy.outputs[1].failed[0]


def test_outputs_that_cannot_be_states_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        compare(tmp_path / "name", PLAIN, {**INPUTS, "s": {"from": "sM"}})
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        compare(tmp_path / "shape", PLAIN, {**INPUTS, "s": {"from": "nN"}})
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        compare(tmp_path / "steps", PLAIN, steps=None)
    check_message(refused.value)
    changing = (
        "g (float[1, m] x, float[1, k] s) => (float[1, m] y, float[1, j] sN) { sN = Concat<axis=1>(s, x) y = Relu(x) }"
    )
    fixed = changing.replace("float[1, k] s", "float[1, 2] s")
    with pytest.raises(ModelError) as broken:
        compare(tmp_path / "grows", fixed, {"s": {"from": "sN"}}, fixed, steps=4)
    check_message(broken.value)


RECIPE = """
model: model.onnx
inputs:
  x: {data: random}
  s: {from: sN}
  n: {from: nN}
steps:
  half: {step: convert_fp16}
  agree: {step: check_accuracy, candidate: half, steps: 40}
"""


def plan(folder: Path, recipe: str) -> None:
    write_model(folder / "model.onnx", PLAIN)
    (folder / "recipe.yaml").write_text(recipe.replace("model.onnx", str(folder / "model.onnx")))
    plan_once(folder / "recipe.yaml", outputs=folder / "outputs")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from: sN", "from: sM"),
        ("from: sN", "from: nN"),
        ("from: sN", "from: x"),
        ("from: sN", "from: sN, data: random"),
        ("steps: 40}", "steps: 40, inputs: {x: 1, n: {from: nN}, s: {from: sN, data: random}}}"),
        (", steps: 40", ""),
        ("steps: 40", "steps: 1"),
        ("  s: {from: sN}\n  n: {from: nN}\n", ""),
        ("check_accuracy, candidate: half, steps: 40", "run_tool, command: [cp, $Model, $Output, '$Input{x}']"),
    ],
)
def test_sequences_are_checked_before_anything_runs(
    before: str, after: str, tmp_path: Path, check_message: CheckMessage
) -> None:
    assert before in RECIPE
    with pytest.raises(RecipeError) as caught:
        plan(tmp_path, RECIPE.replace(before, after))
    check_message(caught.value)


def test_a_recipe_runs_sequences_and_reuses_them(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", PLAIN)
    text = RECIPE.replace("model.onnx", str(tmp_path / "model.onnx")).replace("x: {data: random}", "x: 0.25")
    (tmp_path / "recipe.yaml").write_text(text)
    finished = run_once(tmp_path / "recipe.yaml", outputs=tmp_path / "outputs")
    record = read_run_record(Path(finished.folder))
    agree = next(step.record for step in record.steps if step.name == "agree")
    assert agree is not None
    assert agree.metrics["steps"].value == 40
    state = agree.parts.inputs["s"]
    assert isinstance(state, dict)
    assert state["fed_from"] == "sN"
    assert run_once(tmp_path / "recipe.yaml", outputs=tmp_path / "outputs").nothing_to_do


def test_calibration_and_inspection_read_the_steps_with_their_states(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    """The state grows to 40, which a single step from zeros does not show."""
    weights = "<float[2, 2] w = {1, 2, 3, 4}, float[1, 2] one = {1, 1}>"
    graph = f"g (float[1, 2] s) => (float[1, 2] y, float[1, 2] sN) {weights} {{ sN = Add(s, one) y = MatMul(sN, w) }}"
    model = write_model(tmp_path / "model.onnx", graph)
    given = {"s": {"from": "sN"}}
    ran = run_step(InspectActivations, model, tmp_path / "inspected", {"steps": 40, "tensors": ["sN"]}, given)
    record = Activations.model_validate_json((ran.out / ActivationsDocument.main).read_text())
    assert record.tensors[0].range.maximum == 40
    assert record.samples[39].label == "step 40"
    ran = run_step(Quantize, model, tmp_path / "quantized", {"steps": 40, "mode": "static", "min_intensity": 0}, given)
    assert ran.result.metrics["layers"] == 1
    scales = [numpy_helper.to_array(initializer) for initializer in onnx.load(ran.out / Onnx.main).graph.initializer]
    assert any(scale.size == 1 and scale.dtype == np.float32 and 0.14 < float(scale) < 0.33 for scale in scales)
    found = run_step(FindPrecision, model, tmp_path / "found", {"steps": 40}, given)
    assert found.result.passed
    with pytest.raises(RequestError) as caught:
        run_step(
            Quantize,
            model,
            tmp_path / "wrong",
            {"steps": 40, "mode": "static", "min_intensity": 0},
            {"s": {"from": "t"}},
        )
    check_message(caught.value)


@pytest.mark.thorough
def test_a_profile_measures_the_steps_of_a_sequence(tmp_path: Path, check_message: CheckMessage) -> None:
    """The cache grows from nothing to seven entries, and starts again."""
    model = write_model(tmp_path / "model.onnx", ATTEND)
    settings = {"steps": 8, "runs": 2, "passes": 20, "duration": 0, "warmup_passes": 3, "warmup": 0, "stable": 0}
    settings["budget"] = 600_000  # processes that start slowly on a busy machine would use up the default
    given = {"k": {"from": "kN", "shape": [1, 0, 4]}}
    ran = run_step(ProfileModel, model, tmp_path / "ran", {**settings, "layer_passes": 0}, given)
    profile = Profile.model_validate_json((ran.out / ProfileDocument.main).read_text())
    assert profile.sequence_steps == 8
    assert [len(run.latency_ms) for run in profile.runs] == [16, 16]  # whole sequences
    assert profile.first_step is not None
    assert profile.later_steps is not None
    assert (profile.first_step.sample_count, profile.later_steps.sample_count) == (4, 28)
    assert profile.outputs[1].shape == (1, 8, 4)  # of the last step: each read the cache of the one before
    assert ran.result.metrics["later_steps.latency.median"].unit == "ms"
    assert "later steps" in ran.result.summary
    with pytest.raises(RequestError) as caught:
        run_step(ProfileModel, model, tmp_path / "batches", {**settings, "batches": [1]}, given)
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        run_step(ProfileModel, model, tmp_path / "wrong", settings, {"k": {"from": "kM", "shape": [1, 0, 4]}})
    check_message(caught.value)


@pytest.mark.thorough
def test_a_real_model_with_a_state_that_leaks_is_right_at_the_first_step_only(
    sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """silero-vad, whose state loses a tenth at every step: the state is zeros at first, which hides it."""
    source = sample_model("silero")
    model = onnx.load(source)
    for node in model.graph.node:
        node.output[:] = ["whole" if name == "stateN" else name for name in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.9, np.float32), "kept"))
    model.graph.node.append(onnx.helper.make_node("Mul", ["whole", "kept"], ["stateN"]))
    onnx.save(model, tmp_path / "leaking.onnx")
    given: Given = {
        "input": {"shape": [1, 576], "range": [-0.5, 0.5]},
        "state": {"from": "stateN", "shape": [2, 1, 128]},
        "sr": {"data": 16000},
    }
    artifacts = {"reference": Onnx(source, "source", "digest")}
    for name, passes in ((source, True), (tmp_path / "leaking.onnx", False)):
        ran = run_step(
            CheckAccuracy, name, tmp_path / name.stem, {"steps": 60, "threads": 1}, given, artifacts=artifacts
        )
        record = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_text())
        assert ran.result.passed is passes
        assert record.sequence is not None
        output = next(steps for steps in record.sequence.outputs if steps.output == "output")
        assert output.errors[0] == 0.0
        assert (output.first_divergent is None) is passes


def test_a_decoder_reads_a_prompt_and_then_one_token_with_a_mask_that_grows(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    """A step with a mask of another length than its cache would not run."""
    masked = (
        "g (float[1, n, 4] x, float[1, total] mask, float[1, past, 4] k) => (float[1, n, 4] y, float[1, t, 4] kN) "
        "{ kN = Concat<axis=1>(k, x) t = Transpose<perm=[0, 2, 1]>(kN) w = MatMul(x, t) m = Mul(w, mask) "
        "p = Softmax<axis=-1>(m) y = MatMul(p, kN) }"
    )
    given: Given = {
        "x": {"shape": [1, 1, 4], "first_shape": [1, 5, 4]},
        "mask": {"shape": [1, 5], "grow": [0, 1], "data": "ones"},
        "k": {"from": "kN", "shape": [1, 0, 4]},
    }
    ran, accuracy, _ = compare(tmp_path / "run", masked, given, masked, steps=40)
    assert ran.result.passed
    assert accuracy.outputs[0].shape == (1, 5, 4)
    assert accuracy.inputs["mask"] == "ones, float32 1x5"
    for wrong in ({"data": "x.npy"}, {"grow": [1]}, {"shape": None}):
        with pytest.raises(ValidationError) as caught:
            specs({"mask": {**given["mask"], **wrong}})
        check_message(caught.value)
