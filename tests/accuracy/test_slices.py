"""Slices of outputs: faults that must fail, differences that must pass, and slices without evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow.accuracy.agreement import Agreement, Yardstick, find_yardstick
from ndld_flow.accuracy.slices import measure_reference, slice_error
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.base.declared_metrics import OF_WORST_SAMPLE, higher_is_better
from ndld_flow.models.tensors import Array
from ndld_flow.steps.find_precision import FindPrecision
from tests.accuracy.test_check_accuracy import compare
from tests.support import accuracy_cases as cases
from tests.support import models_precision
from tests.support.models_run import run_step
from tests.support.representatives import thorough_except

RANDOM = np.random.default_rng(0)
BOXES = RANDOM.uniform(0, 320, (4, 400))
SCORES = RANDOM.random((6, 400)) ** 30
"""Mostly near 0, some near 1."""
DETECTIONS = np.concatenate([BOXES, SCORES])[None].astype(np.float32)
"""[1, 10, 400]: four channels of boxes, six of scores."""


def judge(samples: Sequence[Array], candidate: Sequence[Array], slices: str = "default") -> list[str]:
    """Return the sentences of the bounds that do not hold."""
    yardstick = find_yardstick(lambda: samples)
    agreement = Agreement(None, yardstick)
    for r, c in zip(samples, candidate, strict=True):
        agreement.add(r, c)
    bounds = Tolerance.model_validate({"slices": slices, "top1": 0} if slices == "off" else {"slices": slices})
    return outside(agreement.metrics(), bounds.bounds(yardstick.kind), agreement.worst_slices())


def changed(array: Array, channel: int, values: Array | float) -> Array:
    """Return a copy with other values in one channel of axis 1."""
    copy = array.copy()
    copy[:, channel] = values
    return copy


def as_stored(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("every score zero", np.concatenate([BOXES, 0 * SCORES])[None]),
        ("every score raised", np.concatenate([BOXES, SCORES + 0.9])[None]),
        ("two classes swapped", DETECTIONS[:, [0, 1, 2, 3, 5, 4, 6, 7, 8, 9]]),
        ("scores permuted over the places", np.concatenate([BOXES, RANDOM.permuted(SCORES, axis=1)])[None]),
        ("scores clipped", np.concatenate([BOXES, np.minimum(SCORES, 0.6)])[None]),
        ("one box coordinate off by a tenth", changed(DETECTIONS, 2, DETECTIONS[:, 2] * 1.1)),
    ],
)
def test_a_destroyed_detector_fails(name: str, wrong: Array) -> None:
    assert judge([DETECTIONS], [wrong.astype(np.float32)]), name


def test_faults_hidden_by_whole_output_metrics_are_found() -> None:
    # The case that motivates slices: without its scores the output has a cosine of 1 and 124 dB.
    agreement = Agreement(None, Yardstick())
    metrics = agreement.add(DETECTIONS, np.concatenate([BOXES, 0 * SCORES])[None].astype(np.float32))
    assert metrics["cosine"] > 0.99999
    assert metrics["snr_db"] > 50


def test_metrics_of_the_worst_sample_are_known() -> None:
    samples = [RANDOM.normal(0, 1 + number, (1, 6, 40)) for number in range(5)]
    agreement = Agreement(None, find_yardstick(lambda: samples))
    of_each = [agreement.add(r, r + 0.01 * RANDOM.normal(0, 1, r.shape)) for r in samples]
    worst = {
        name: (min if higher_is_better(name) else max)(each[name] for each in of_each) for name in agreement.metrics()
    }
    equal = {name for name, value in agreement.metrics().items() if value == pytest.approx(worst[name], rel=1e-9)}
    assert set(OF_WORST_SAMPLE) <= equal
    assert equal.isdisjoint({"slice_rms", "position_rms", "rmse", "mean_abs"})


def test_the_worst_channel_is_named() -> None:
    assert "channel 7" in judge([DETECTIONS], [changed(DETECTIONS, 7, 0.0)])[0]


def test_half_precision_passes() -> None:
    assert judge([DETECTIONS], [as_stored(DETECTIONS)]) == []


def test_mixed_units_do_not_hide_each_other() -> None:
    angle = RANDOM.uniform(-1.57, 1.57, (1, 400))
    mixed = np.concatenate([2 * BOXES, angle])[None].astype(np.float32)
    assert judge([mixed], [as_stored(mixed)]) == []
    assert "channel 4" in judge([mixed], [changed(mixed, 4, -mixed[:, 4])])[0]


@pytest.mark.parametrize(
    "healthy",
    [
        np.full((1, 5, 50), 0.25, np.float32),
        np.array([[6.0e-4]], np.float32),
        np.array(0.7312, np.float32),
        np.array([[34.2]], np.float32),
        np.zeros((1, 8), np.float32),
        np.concatenate([np.full((1, 1, 90), 3.0), RANDOM.standard_normal((1, 7, 90))], axis=1).astype(np.float32),
        np.zeros((1, 0, 6), np.float32),
    ],
    ids=["constant", "a tiny probability", "a scalar", "one number", "zeros", "one constant channel", "empty"],
)
def test_rounding_alone_does_not_fail(healthy: Array) -> None:
    rounded = (healthy * np.float32(1 + 2**-11)).astype(np.float32)
    assert judge([healthy], [rounded]) == []
    assert judge([healthy] * 5, [rounded] * 5) == []


def test_one_number_that_is_wrong_fails() -> None:
    assert judge([np.array([[34.2]], np.float32)], [np.array([[36.0]], np.float32)])
    assert judge([np.array([[0.9]], np.float32)], [np.array([[0.8]], np.float32)])


def test_one_ruined_sample_of_many_fails() -> None:
    samples = [RANDOM.standard_normal((1, 64)).astype(np.float32) for _ in range(100)]
    ruined = RANDOM.permutation(samples[61].ravel()).reshape(samples[61].shape)
    assert judge(samples, [*samples[:61], ruined, *samples[62:]])
    assert judge(samples, [as_stored(array) for array in samples]) == []


def test_one_flipped_sign_of_many_values_fails() -> None:
    array = RANDOM.standard_normal((1, 16, 500)).astype(np.float32)
    place = np.unravel_index(np.argmax(array), array.shape)
    wrong = array.copy()
    wrong[place] = -wrong[place]
    assert judge([array], [wrong])


def test_an_edge_may_move_by_a_fraction_of_a_pixel_but_not_by_several() -> None:
    x = np.arange(320)
    letters = (np.sin(x / 9)[:, None] * np.sin(x / 7)[None, :] > 0.2).astype(np.float32)
    blurred = (letters + np.roll(letters, 1, 0) + np.roll(letters, 1, 1) + np.roll(letters, 2, 1)) / 4
    picture = blurred[None, None]
    moved = 0.96 * picture + 0.04 * np.roll(picture, 1, axis=-1)
    assert judge([picture], [moved.astype(np.float32)]) == []
    assert judge([picture], [np.roll(picture, 3, axis=-1)])
    hole = picture.copy()
    hole[..., 40:60, 30:70] = 0
    assert judge([picture], [hole])


def test_channels_that_no_sample_activates_are_not_seen() -> None:
    quiet = np.concatenate([BOXES, SCORES[:2], 1e-6 * SCORES[2:]])[None].astype(np.float32)
    reference = measure_reference(lambda: [quiet])
    assert reference is not None
    assert reference.layout.axis == 1
    assert reference.unseen == (6, 7, 8, 9)


def hidden_states() -> tuple[list[Array], list[Array]]:
    """Return a decoder's hidden states, which vary by 0.3 % of their size, and a candidate's that are 2 % off.

    A third of the channels are within [0, 1], a kind of their own that is smaller than the rest.
    """
    numbers = np.random.default_rng(5)
    common, off = numbers.standard_normal((2, 1, 1, 256))
    states = [common + 0.003 * numbers.standard_normal(common.shape) for _ in range(8)]
    return states, [state + 0.02 * off for state in states]


def test_an_output_that_hardly_varies_is_judged_against_its_own_size() -> None:
    states, candidate = hidden_states()
    yardstick = find_yardstick(lambda: states)
    agreement = Agreement(None, yardstick)
    for r, c in zip(states, candidate, strict=True):
        agreement.add(r, c)
    assert agreement.metrics()["cosine"] > 0.9997
    assert agreement.metrics()["slice_rms"] < 0.2
    assert judge(states, candidate, "loose") == []
    assert yardstick.slices is not None
    assert yardstick.slices.unseen == tuple(range(256))


@pytest.mark.parametrize("slices", ["default", "loose"])
@pytest.mark.parametrize(
    "fault",
    [
        lambda state: 1.5 * state,
        lambda state: np.roll(state, 1, axis=-1),
        lambda state: state * (np.arange(256) != np.abs(state).argmax()),
        lambda state: state * (np.arange(256) >= 32),
        lambda state: state + 0.7 * (np.arange(256) == np.abs(state).argmin()),
    ],
    ids=["scaled", "in another order", "a dead channel", "a dead part", "one channel moved"],
)
def test_a_fault_in_an_output_that_hardly_varies_fails(fault: Callable[[Array], Array], slices: str) -> None:
    states, _ = hidden_states()
    assert judge(states, [fault(state) for state in states], slices)


def test_a_small_channel_is_not_measured_finer_than_the_others_round() -> None:
    """One channel varies a little more than rounding, so the output is not constant, and its neighbour is nearly 0."""
    states, candidate = hidden_states()
    numbers = np.random.default_rng(6)
    for state, wrong in zip(states, candidate, strict=True):
        moved = 0.1 * numbers.standard_normal()
        state[..., 0] += moved
        wrong[..., 0] += moved
    rounded = [state + (wrong - state) / 40 for state, wrong in zip(states, candidate, strict=True)]
    assert judge(states, rounded) == []
    assert judge(states, [changed(state.swapaxes(1, 2), 0, 0.0).swapaxes(1, 2) for state in states])


def test_a_small_quantity_among_large_ones_that_hardly_vary_is_judged_by_its_own_spread() -> None:
    numbers = np.random.default_rng(7)
    means, spreads = np.array([[0.0, 20.0, 100.0]]), np.array([[0.7, 0.3, 0.5]])
    samples = [means + spreads * numbers.standard_normal((1, 3)) for _ in range(20)]
    assert judge(samples, [changed(sample, 0, 0.0) for sample in samples], "loose")


def test_a_few_samples_cover_the_prominent_classes() -> None:
    scores = np.full((1, 50), 1e-4, np.float32)
    scores[0, 7], scores[0, 30] = 0.8, 0.19
    reference = measure_reference(lambda: [scores])
    assert reference is not None
    assert {7, 30}.isdisjoint(reference.unseen)
    assert len(reference.unseen) == 48


@pytest.mark.parametrize("shape", [(1, 3, 40, 6), (1, 40, 3, 6), (1, 6, 40, 3)])
def test_the_axis_that_adds_up_to_one_holds_the_classes(shape: tuple[int, ...]) -> None:
    axis = shape.index(6)
    powers = np.exp(RANDOM.standard_normal(shape) * 3)
    array = (powers / powers.sum(axis=axis, keepdims=True)).astype(np.float32)
    reference = measure_reference(lambda: [array])
    assert reference is not None
    assert reference.layout.axis == axis


def test_samples_of_several_sizes_are_judged() -> None:
    samples = [np.concatenate([BOXES[:, :n], SCORES[:, :n]])[None].astype(np.float32) for n in (100, 400, 250)]
    assert judge(samples, [as_stored(array) for array in samples]) == []
    assert "channel 5" in judge(samples, [changed(array, 5, 0.0) for array in samples])[0]


def test_attention_over_sentences_of_several_lengths_has_no_classes() -> None:
    """Each row adds up to 1, and has as many values as the sentence has tokens."""
    samples = [np.exp(RANDOM.normal(0, 2, (tokens, tokens))) for tokens in (42, 39, 42)]
    samples = [(values / values.sum(axis=1, keepdims=True)).astype(np.float32) for values in samples]
    assert judge(samples, samples) == []
    assert judge(samples, [values[::-1] for values in samples])


def test_large_outputs_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    array = RANDOM.standard_normal((2, 3, 40, 40)).astype(np.float32) + np.array([0, 5, 9], np.float32)[:, None, None]
    noisy = array + 0.01 * RANDOM.standard_normal(array.shape).astype(np.float32)

    def measure() -> dict[str, float]:
        return Agreement(None, find_yardstick(lambda: [array])).add(array, noisy)

    at_once = measure()
    for module in ("ndld_flow.accuracy.slices", "ndld_flow.models.streaming_statistics"):
        monkeypatch.setattr(f"{module}.BLOCK", 1000)
    assert measure() == pytest.approx(at_once)


def test_one_tensor_is_measured_like_outputs() -> None:
    noisy = DETECTIONS + 0.01 * RANDOM.standard_normal(DETECTIONS.shape).astype(np.float32)
    metrics = Agreement(None, find_yardstick(lambda: [DETECTIONS])).add(DETECTIONS, noisy)
    worst = slice_error(DETECTIONS, noisy)
    assert worst.value == pytest.approx(metrics["slice_rms"], rel=1e-3)
    assert worst.place.startswith("channel ")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("part", [0.1, 1.0])
def test_squares_of_huge_values_do_not_overflow(dtype: type[np.floating[Any]], part: float) -> None:
    """An attention mask holds the smallest number of its type."""
    rows = np.random.default_rng(1).standard_normal((1, 4, 50))
    rows[:, 2:] = np.where(rows[:, 2:] < 0, float(np.finfo(np.float16 if dtype == np.float16 else np.float32).min), 0)
    mask = rows.astype(dtype)
    noisy = (rows * part).astype(dtype)
    judged = Agreement(None, find_yardstick(lambda: [mask]))
    metrics = judged.add(mask, noisy)
    worst = slice_error(mask, noisy)
    assert worst.value == pytest.approx(metrics["slice_rms"], rel=2e-3)
    assert worst.value < 2
    assert (worst.value > 0.5) == (part < 1)


# --- integers ---


def classes_of(height: int = 60) -> Array:
    rows, columns = np.mgrid[:height, :80]
    return np.asarray((rows // 15 + 2 * (columns // 20)) % 5, np.int64)[None]


def test_a_few_flipped_pixels_of_a_class_map_pass() -> None:
    right = classes_of()
    flipped = right.copy()
    flipped[0, ::15, ::13] = (flipped[0, ::15, ::13] + 1) % 5
    assert find_yardstick(lambda: [right]).kind == "classes"
    assert judge([right], [flipped]) == []


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_a_wrong_class_fails_and_is_named(dtype: type[np.integer]) -> None:
    right = classes_of().astype(dtype)
    assert "class 3" in judge([right], [np.where(right == 3, 4, right)])[0]


def test_a_class_that_appears_from_nowhere_fails() -> None:
    right = classes_of()
    wrong = right.copy()
    wrong[0, :12, :12] = 99
    assert judge([right], [wrong])


def test_images_of_8_bits_are_compared_as_numbers() -> None:
    picture = (127 + 100 * np.sin(np.arange(100 * 90 * 3).reshape(1, 100, 90, 3) / 50)).astype(np.uint8)
    assert find_yardstick(lambda: [picture]).kind == "numbers"
    assert judge([picture], [picture + np.uint8(1)]) == []
    assert judge([picture], [255 - picture])


@pytest.mark.parametrize("ids", [np.array([[5]]), np.arange(300)[None], np.array(["cat", "dog"])])
def test_labels_and_indices_must_be_equal(ids: Array) -> None:
    wrong = ids.copy()
    wrong.flat[0] = ids.flat[-1] if ids.size > 1 else 6
    assert judge([ids], [ids]) == []
    assert judge([ids], [wrong])


# --- through the steps ---


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    onnx.save(cases.several_tasks(), path)
    return path


def without_scores(detector: Path, target: Path) -> Path:
    """Write the detector with every score zero."""
    model = onnx.load(detector)
    scores = next(node for node in model.graph.node if node.output[0] == "objects").input[2]
    maker = next(node for node in model.graph.node if node.output[0] == scores)
    maker.op_type, zero = "Mul", onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero")
    maker.input.append("zero")
    model.graph.initializer.append(zero)
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("tolerance", [None, {"cosine": 0.999}, {"cosine": 0.999, "snr_db": 25}])
def test_the_step_fails_a_detector_without_scores(
    detector: Path, tmp_path: Path, tolerance: dict[str, float] | None
) -> None:
    wrong = without_scores(detector, tmp_path / "wrong.onnx")
    given = {} if tolerance is None else {"tolerance": tolerance}
    ran, accuracy = compare(tmp_path, detector, wrong, None, **given, samples=3)
    assert not ran.result.passed
    objects = accuracy.outputs[0]
    assert (objects.output, objects.slice_axis, objects.slice_count) == ("objects", 2, 8)
    assert objects.worst_slices["slice_rms"] in ("channel 5", "channel 6", "channel 7")
    assert objects.metrics["cosine"] > 0.9999
    assert "objects: slice_rms" in ran.result.summary
    assert ran.result.metrics["objects.slice_rms"].value > 0.5


def test_slices_can_be_switched_off(detector: Path, tmp_path: Path) -> None:
    wrong = without_scores(detector, tmp_path / "wrong.onnx")
    tolerance = {"slices": "off", "cosine": 0.999}
    ran, _ = compare(tmp_path, detector, wrong, tolerance=tolerance, samples=3)
    assert ran.result.passed


def test_channels_without_evidence_are_reported(detector: Path, tmp_path: Path) -> None:
    model = onnx.load(detector)
    subtracted = next(node for node in model.graph.node if node.op_type == "Sub")
    value = next(node for node in model.graph.node if node.output[0] == subtracted.input[1]).attribute[0].t
    value.CopyFrom(onnx.numpy_helper.from_array(np.array(12.0, np.float32)))
    onnx.save(model, tmp_path / "quiet.onnx")
    wrong = without_scores(tmp_path / "quiet.onnx", tmp_path / "wrong.onnx")
    ran, accuracy = compare(tmp_path, tmp_path / "quiet.onnx", wrong)
    assert accuracy.outputs[0].unseen == (5, 6, 7)
    assert "3 of 8 channels of objects" in ran.result.summary
    assert any("3 of 8 channels (5, 6, 7)" in note for note in accuracy.notes)


def test_the_search_for_precision_judges_by_slices(tmp_path: Path) -> None:
    # Small scores beside large boxes: cosine alone would accept scores that fp16 makes zero.
    source = tmp_path / "source.onnx"
    onnx.save(models_precision.underflowing_model(), source)
    ran = run_step(FindPrecision, source, tmp_path / "ran", {"tolerance": {}})
    assert ran.result.passed
    assert ran.result.metrics["slice_rms"] <= 0.05


@pytest.mark.parametrize(
    "name",
    thorough_except(["class map", "class probabilities", "several tasks", "transformer"], "class map"),
)
def test_conversions_of_generated_models_pass(name: str, tmp_path: Path) -> None:
    subject = next(subject for subject in cases.subjects(tmp_path, fetched=False) if subject.name == name)
    reference = subject.run()
    for candidate in cases.conversions(subject, tmp_path):
        outputs = subject.run(candidate.path, candidate.level)
        for output in reference[0]:
            mine, theirs = ([item[output] for item in run] for run in (reference, outputs))
            assert judge(mine, theirs) == [], (candidate.label, output)
