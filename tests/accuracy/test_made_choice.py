"""The choice of made samples, and what a check notices with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow.accuracy import made_choice
from ndld_flow.accuracy.made_choice import AUTO, extend_samples
from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.models.files import model_inputs
from ndld_flow.precision_search.search import SETTINGS
from ndld_flow.precision_search.trials import Judge
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.made_samples import MadeSample
from ndld_flow.samples.sample_feeds import Sample, make_samples
from ndld_flow.samples.sample_settings import MadeSettings, SampleSettings
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.store.kinds import PrecisionDocument
from tests.accuracy.test_check_accuracy import compare
from tests.support.models_run import Given, run_step, specs, write_model

TABLE = ",".join(map(str, np.random.default_rng(0).normal(size=80).round(3)))


def looking_up(table: str = TABLE) -> str:
    """Return a model whose floats become indices into a table of 40 rows."""
    weights = f"float[40, 2] w = {{{table}}}"
    return f"g (float[1, 6] x) => (float[1, 6, 2] y) <{weights}> {{ i = Cast<to=7>(x) y = Gather(w, i) }}"


MASKED = """g (float[1, 8, 16] x, int64[1, 8] attention_mask) => (float[1, 8, 16] y) <int64[1] axes = {2}> {
    m = Cast<to=1>(attention_mask)
    u = Unsqueeze(m, axes)
    y = Mul(x, u)
}"""
BLIND = "g (float[1, 8, 16] x, int64[1, 8] attention_mask) => (float[1, 8, 16] y) { y = Identity(x) }"
BRANCHING = """g (float[1, 8] x, int64 rate) => (float[1, 8] y) <int64 known = {16000}> {
    is_known = Equal(rate, known)
    y = If (is_known) <
        then_branch = t () => (float[1, 8] a) { a = Sigmoid(x) },
        else_branch = e () => (float[1, 8] b) { b = SECOND(x) }
    >
}"""


def chosen(folder: Path, graph: str, inputs: Given | None = None, made: Any = "auto", **settings: Any) -> list[Sample]:
    path = write_model(folder / "model.onnx", graph)
    samples = make_samples(model_inputs(path), specs(inputs or {}), SampleSettings(**settings), "m")
    return list(extend_samples(samples, made, path, OnnxruntimeRequest()))


def check(folder: Path, right: str, wrong: str, inputs: Given | None = None, **settings: Any) -> Accuracy:
    """Return the result for a wrong candidate; a right one and the default sample alone pass."""
    for name, candidate, choice in (("right", right, "auto"), ("alone", wrong, "off")):
        (folder / name).mkdir()
        assert compare(folder / name, right, candidate, inputs, **{**settings, "made": choice})[1].passed
    return compare(folder, right, wrong, inputs, **{"made": "auto", **settings})[1]


def test_a_table_with_a_destroyed_row_is_noticed(tmp_path: Path) -> None:
    values = TABLE.split(",")
    default = chosen(tmp_path, looking_up())[0].feeds["x"].values.astype(int)
    row = next(row for row in range(40) if row not in default)
    wrong = ",".join([*values[: 2 * row], "9.0", "-9.0", *values[2 * row + 2 :]])
    assert not check(tmp_path, looking_up(), looking_up(wrong)).passed


def test_a_candidate_that_ignores_its_mask_is_noticed(tmp_path: Path) -> None:
    assert not check(tmp_path, MASKED, BLIND).passed


def test_a_wrong_branch_is_noticed(tmp_path: Path) -> None:
    right, wrong = (BRANCHING.replace("SECOND", operator) for operator in ("Tanh", "Relu"))
    assert not check(tmp_path, right, wrong).passed


def test_a_candidate_that_works_for_one_size_is_noticed(tmp_path: Path) -> None:
    # The mean over 8 frames is a sum divided by a constant.
    right = "g (float[1, n] x) => (float[1, 1] y) { y = ReduceMean<axes=[1]>(x) }"
    wrong = (
        "g (float[1, n] x) => (float[1, 1] y) <float c = {8.0}, int64[1] a = {1}> { s = ReduceSum(x, a) y = Div(s, c) }"
    )
    assert not check(tmp_path, right, wrong, {"x": {"shape": [1, 8]}}).passed


def test_generated_inputs_get_four_samples_whose_labels_describe_them(tmp_path: Path) -> None:
    _, accuracy = compare(tmp_path, MASKED, MASKED, made="auto")
    labels = [sample.sample for sample in accuracy.samples]
    assert len(labels) == accuracy.sample_count == 1 + AUTO
    assert [label.startswith("made: ") for label in labels] == [False] + [True] * AUTO


def test_data_get_none_unless_a_number_is_given(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 16), np.float32))
    given: Given = {"x": {"data": str(tmp_path / "x.npy")}}
    assert len(chosen(tmp_path, MASKED, given)) == 2
    assert len(chosen(tmp_path, MASKED, given, made="off")) == 2
    samples = chosen(tmp_path, MASKED, given, made=3)
    assert len(samples) == 5
    assert not samples[1].feeds["x"].values.any() and samples[2].feeds["x"].values.any()


def test_equal_seeds_choose_equal_samples(tmp_path: Path) -> None:
    first, second, other = (chosen(tmp_path, MASKED, seed=seed) for seed in (0, 0, 1))
    assert [sample.label for sample in first] == [sample.label for sample in second]
    for left, right in zip(first, second, strict=True):
        assert all(np.array_equal(left.feeds[name].values, right.feeds[name].values) for name in left.feeds)
    assert not np.array_equal(first[1].feeds["x"].values, other[1].feeds["x"].values)


def test_chosen_samples_have_several_sizes_and_forms(tmp_path: Path) -> None:
    graph = "g (float[b, n] x) => (float[b, n] y) { y = Sigmoid(x) }"
    samples = chosen(tmp_path, graph, {"x": {"shape": [1, 64]}})
    assert len({sample.feeds["x"].values.shape for sample in samples}) >= 3
    assert len({sample.label.split(",")[0] for sample in samples}) == 1 + AUTO


def test_samples_that_fail_or_are_not_finite_are_not_chosen(tmp_path: Path) -> None:
    # The root of a negative number is NaN, and only 8 columns can be multiplied.
    weights = f"float[8, 1] w = {{{','.join(['1.0'] * 8)}}}"
    graph = f"g (float[b, n] x) => (float[b, 1] y) <{weights}> {{ l = Sqrt(x) y = MatMul(l, w) }}"
    samples = chosen(tmp_path, graph, {"x": {"shape": [1, 8]}})
    assert len(samples) == 1 + AUTO
    assert all(sample.feeds["x"].values.min() >= 0 and sample.feeds["x"].values.shape[1] == 8 for sample in samples)


def test_quantized_candidates_with_calibrated_ranges_get_none(tmp_path: Path) -> None:
    plain = "g (float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }"
    quantized = """g (float[1, 8] x) => (float[1, 8] y) <float s = {0.004}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d)
    }"""
    _, accuracy = compare(tmp_path, plain, quantized, made="auto")
    assert accuracy.passed and accuracy.sample_count == 1
    (tmp_path / "asked").mkdir()
    _, accuracy = compare(tmp_path / "asked", plain, quantized, made=2)
    assert accuracy.sample_count == 3 and not accuracy.passed


def test_models_that_onnx_runtime_does_not_open_get_none(tmp_path: Path) -> None:
    graph = "g (float[1, 8] x) => (float[1, 8] y) { y = unknown.Op(x) }"
    assert len(chosen(tmp_path, graph)) == 1


@pytest.mark.parametrize("opset", [9, 17, 18, 21])
def test_layers_are_observed_in_models_of_every_age(opset: int, tmp_path: Path) -> None:
    from ndld_flow.accuracy.made_choice import open_observer

    weights = ",".join(map(str, np.random.default_rng(0).normal(size=27).round(2)))
    graph = f"""g (float[b, 1, n, n] x) => (float[b, 3, m, m] y) <float[3, 1, 3, 3] w = {{{weights}}}> {{
        c = Conv(x, w) y = Relu(c)
    }}"""
    path = write_model(tmp_path / "model.onnx", graph, opset)
    observer = open_observer(path, OnnxruntimeRequest().unfused())
    seen = observer.observe({"x": np.random.default_rng(0).normal(size=(1, 1, 9, 9)).astype(np.float32)}, [])
    still = observer.observe({"x": np.zeros((1, 1, 9, 9), np.float32)}, [])
    assert seen is not None and len(seen.reached["channels"]) == 3
    assert still is not None and not still.reached["channels"]
    assert observer.observe({"x": np.zeros((1, 1, 2, 2), np.float32)}, []) is None
    infinite = observer.observe({"x": np.full((1, 1, 9, 9), np.inf, np.float32)}, [])
    assert seen.is_finite and infinite is not None and not infinite.is_finite


def test_off_is_the_false_of_yaml() -> None:
    assert MadeSettings.model_validate_json('{"made": false}').made == "off"
    assert MadeSettings.model_validate_json('{"made": 3}').made == 3
    for wrong in ("0", "true", '"all"', "-1"):
        with pytest.raises(ValueError, match="made"):
            MadeSettings.model_validate_json(f'{{"made": {wrong}}}')


def rotary() -> onnx.ModelProto:
    """Return a model that multiplies positions, whose products exceed FP16 from position 2,000 on."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[1, 6] position_ids) => (float[1, 6] y) <float c = {33.0}> {
            p = Cast<to=1>(position_ids)
            m = Mul(p, c)
            y = Sin(m)
        }
    """)


def test_the_search_for_precision_sees_large_positions(tmp_path: Path) -> None:
    onnx.save(rotary(), tmp_path / "model.onnx")
    found = {}
    for text in ("off", "auto"):
        ran = run_step(FindPrecision, tmp_path / "model.onnx", tmp_path / text, {"made": text})
        found[text] = PrecisionSearch.model_validate_json((ran.out / PrecisionDocument.main).read_text())
    assert (found["off"].sample_count, found["auto"].sample_count) == (1, 1 + AUTO)
    assert not found["off"].kept and found["auto"].kept


def test_made_samples_are_described(tmp_path: Path) -> None:
    sample = MadeSample("smooth", {"x": (1, 24)}, "24 frames", 7)
    assert sample.label == "made: smooth, 24 frames"


QUARTIC = "g (float[1, 64] x) => (float[1, 64] y) <float[1] k = {1}> { s = Mul(x, x) t = Mul(s, s) y = Mul(t, k) }"
OFF = QUARTIC.replace("y = Mul(t, k)", "a = Mul(t, k) n = Sin(x) m = Mul(n, tenth) y = Add(a, m)")
OFF = OFF.replace("k = {1}", "k = {1}, float[1] tenth = {0.1}")
"""Its errors are measured against the spread of the outputs, which made samples may widen."""


def test_a_candidate_that_fails_without_made_samples_fails(tmp_path: Path) -> None:
    for name in ("given", "made"):
        (tmp_path / name).mkdir()
    given = compare(tmp_path / "given", QUARTIC, OFF, made="off")[1]
    record = compare(tmp_path / "made", QUARTIC, OFF, made=4)[1]
    assert given.failed and record.failed
    assert record.sample_count == given.sample_count


def test_a_trial_of_a_search_that_fails_without_made_samples_fails(tmp_path: Path) -> None:
    right, wrong = write_model(tmp_path / "right.onnx", QUARTIC), write_model(tmp_path / "wrong.onnx", OFF)
    given = make_samples(model_inputs(right), {}, SampleSettings(), "m")
    samples = extend_samples(given, 4, right, OnnxruntimeRequest())
    judge = Judge(right, samples, Tolerance(), SETTINGS, SETTINGS, tmp_path)
    judged = judge.judge(wrong)
    with_made = replace(judged, outputs={"y": judged.outputs["y"]})
    assert judge.bounds.passed(with_made)
    assert not judge.bounds.passed(judged)


def test_a_model_that_cannot_be_observed_gets_no_made_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise ValueError("exceeds the maximum size of a protobuf")

    monkeypatch.setattr(made_choice, "open_observer", too_large)
    model = "g (float[1, 64] x) => (float[1, 64] y) { y = Sin(x) }"
    assert compare(tmp_path, model, model, made=4)[1].sample_count == 1
