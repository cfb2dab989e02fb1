"""Evidence on each node before a search for int8 runs any trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ndld_flow.base.errors import ModelError
from ndld_flow.models.files import model_inputs
from ndld_flow.precision_search.evidence import Int8Error
from ndld_flow.quantize.int8_reducer import Int8Reducer
from ndld_flow.quantize.onnxruntime_quantizer import QuantizerError
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.sample_feeds import SampleArrays, make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.store.kinds import PrecisionDocument
from tests.quantize.test_quantize import SIGNED, make_convs
from tests.support.models import GraphBuilder, rename_output, save, tensor
from tests.support.models_run import run_step, specs

EVERYTHING: dict[str, Any] = {"min_intensity": 0.0}
Floats = np.ndarray[Any, np.dtype[np.float32]]


def errors_of(model: Path, given: Any, values: Floats, **settings: Any) -> Mapping[str, Int8Error]:
    scratch = model.parent / "scratch"
    scratch.mkdir()
    samples = make_samples(model_inputs(model), specs(given), SampleSettings(), "m")
    reducer = Int8Reducer(model, QuantizeSettings(**EVERYTHING, reduce_range=False, **settings), [], samples, scratch)
    return reducer.int8_errors([{"x": values}], OnnxruntimeRequest(), scratch)


def make_products(path: Path, first: Floats, second: Floats, copied: bool = True) -> Path:
    """Two matrix products of what comes out of a Neg and a Tanh: 16 features all through."""
    b = GraphBuilder(0)
    h = b.op("Tanh", b.op("MatMul", b.op("Neg", "x") if copied else "x", b.floats(first)))
    rename_output(b, b.op("MatMul", h, b.floats(second)), "y")
    return save(b.model([tensor("x", ["n", 16])], [tensor("y", ["n", 16])]), path)


def rounded(values: Floats, low: float, high: float) -> Floats:
    """Return the values as stored in uint8 with a zero point."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    zero = np.round(-low / scale)
    return np.asarray((np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale, np.float32)


def rounded_weight(weight: Floats) -> Floats:
    """Return the weights as stored in int8 with a scale for each column."""
    scale = np.abs(weight).max(axis=0, keepdims=True) / 127
    return np.asarray(np.round(weight / scale) * scale, np.float32)


def relative(reference: Floats, candidate: Floats) -> float:
    return float(np.sqrt(((candidate - reference) ** 2).sum() / (reference**2).sum()))


def test_each_node_is_quantized_alone_and_its_error_traced_to_the_output(tmp_path: Path, monkeypatch: Any) -> None:
    """The second does more wrong: its weights are larger in a row that is hardly read."""
    random = np.random.default_rng(0)
    first, second = (random.normal(0, 0.4, (16, 16)).astype(np.float32) for _ in range(2))
    first[:, 0] /= 100
    second[0] *= 30
    source = make_products(tmp_path / "m.onnx", first, second)
    np.save(tmp_path / "x.npy", values := random.normal(0, 1, (8, 16)).astype(np.float32))
    result = list(errors_of(source, {"x": {"data": str(tmp_path / "x.npy")}}, values, op_types=("MatMul",)).values())
    h = -values @ first
    y = np.tanh(h) @ second
    alone = rounded(-values, -values.max(), -values.min()) @ rounded_weight(first)
    t = np.tanh(h)
    last = rounded(t, t.min(), t.max()) @ rounded_weight(second)
    assert result[0].own == pytest.approx(relative(h, alone), rel=0.05)
    assert result[0].output_error == pytest.approx(relative(y, np.tanh(alone) @ second), rel=0.05)
    assert result[1].own == pytest.approx(relative(y, last), rel=0.05)
    assert result[1].output_error == pytest.approx(result[1].own, rel=1e-6)
    assert result[1].own > 2 * result[0].own
    assert sum(item.share for item in result) == pytest.approx(2)
    monkeypatch.setattr("ndld_flow.quantize.int8_reducer._MOST_FOLLOWED", 1)
    (tmp_path / "few").mkdir()
    source = make_products(tmp_path / "few/m.onnx", first, second)
    some = errors_of(source, {"x": {"data": str(tmp_path / "x.npy")}}, values, op_types=("MatMul",)).values()
    assert [item.output_error is None for item in some] == [True, False]


def test_evidence_without_time_has_the_first_sample_and_follows_no_node(tmp_path: Path) -> None:
    """It took 56 s of the 53 s of a search, and 66 s of the 60 s of a placement, and only ranks what is tried first."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(0, 0.4, (16, 16)).astype(np.float32) for _ in range(2))
    model, scratch = make_products(tmp_path / "m.onnx", first, second), tmp_path / "scratch"
    scratch.mkdir()
    samples = make_samples(model_inputs(model), specs({"x": {"shape": [8, 16]}}), SampleSettings(samples=5), "m")
    reducer = Int8Reducer(model, QuantizeSettings(**EVERYTHING, reduce_range=False), [], samples, scratch)
    few = SampleArrays(samples, 4, lambda: True)
    assert len([*few]) == 1 and len([*SampleArrays(samples, 4)]) == 4
    errors = reducer.int8_errors(few, OnnxruntimeRequest(), scratch, lambda: True)
    assert [error.output_error for error in errors.values()] == [None] * len(errors)
    followed = reducer.int8_errors(few, OnnxruntimeRequest(), scratch)
    assert None not in [error.output_error for error in followed.values()]


def test_a_list_of_another_length_is_wholly_wrong(tmp_path: Path) -> None:
    """As the boxes of a detector are, or the tokens of a table: INT8 moves some beyond a threshold."""
    random = np.random.default_rng(0)
    b = GraphBuilder(0)
    h = b.op("MatMul", b.op("Neg", "x"), b.floats(random.normal(0, 1, (16, 400)).astype(np.float32)))
    flat = b.op("Reshape", h, b.const([-1], np.int64))
    rename_output(b, b.op("Compress", flat, b.op("Greater", flat, b.floats(np.float32(0)))), "y")
    source = save(b.model([tensor("x", ["n", 16])], [tensor("y", ["k"])]), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", values := random.normal(0, 1, (8, 16)).astype(np.float32))
    (found,) = errors_of(source, {"x": {"data": str(tmp_path / "x.npy")}}, values, op_types=("MatMul",)).values()
    assert found.output_error == 1.0


def search(folder: Path, model: Path, given: Any, **settings: Any) -> PrecisionSearch:
    asked = {"precision": "int8", "int8": {**EVERYTHING, **settings.pop("int8", {})}, **settings}
    run_step(FindPrecision, model, folder, asked, given)
    return PrecisionSearch.model_validate_json((folder / "out" / PrecisionDocument.main).read_text())


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["cpu", "openvino"])
def test_a_trial_computes_what_the_quantizer_would(target: Literal["cpu", "openvino"], tmp_path: Path) -> None:
    """To the bit, in a session that fuses: also where a Relu is absorbed by the rounding of a layer, or is kept."""
    source = make_convs(tmp_path / "m.onnx", layers=4, loud=2)
    samples = make_samples(model_inputs(source), specs(SIGNED), SampleSettings(), "m")
    reducer = Int8Reducer(source, QuantizeSettings(**EVERYTHING, target=target), [], samples, tmp_path)
    feeds = next(iter(samples)).arrays
    some = [frozenset(each) for count in (0, 1, 2) for each in combinations(reducer.candidates, count)]
    whole = frozenset(reducer.candidates)
    for kept in (*some, *(whole - few for few in some)):
        reducer.write(kept, trial := tmp_path / "trial.onnx")
        reducer._write([node.output for node in reducer.nodes if node.position in kept], written := tmp_path / "w.onnx")
        (ours,), (theirs,) = (ort.InferenceSession(path).run(None, feeds) for path in (trial, written))
        assert np.array_equal(ours, theirs), kept


def test_layers_that_cannot_be_quantized_together_may_be_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, write = make_convs(tmp_path / "m.onnx", layers=2), Int8Reducer._write

    def fail_on_all(reducer: Int8Reducer, outputs: Sequence[str], target: Path) -> None:
        if not outputs:
            raise QuantizerError("all at once")
        write(reducer, outputs, target)

    monkeypatch.setattr(Int8Reducer, "_write", fail_on_all)
    samples = make_samples(model_inputs(source), specs(SIGNED), SampleSettings(), "m")
    reducer = Int8Reducer(source, QuantizeSettings(**EVERYTHING), [], samples, tmp_path)
    assert reducer.int8_errors([], OnnxruntimeRequest(), tmp_path) == {}
    with pytest.raises(ModelError, match="all at once"):
        reducer.write(frozenset(), tmp_path / "none_kept.onnx")
    reducer.write(frozenset(reducer.candidates[:1]), tmp_path / "one_kept.onnx")


@pytest.mark.thorough
def test_a_search_follows_the_errors(tmp_path: Path) -> None:
    """Of six convolutions, one is ruined and the last needs all 8 bits: both are kept after a few trials.

    Weights of 7 bits give the same result on every CPU: those of 8 saturate on CPUs without VNNI.
    """
    source = make_convs(tmp_path / "m.onnx", layers=6, loud=2)
    loud = [node for node in onnx.load(source).graph.node if node.op_type == "Conv"][2]
    asked = {"tolerance": {"snr_db": 20}, "samples": 2, "int8": {"reduce_range": True}}
    result = search(tmp_path / "f", source, SIGNED, **asked)
    assert result.passed, result.metrics_whole
    assert [kept.outputs for kept in result.kept] == [tuple(loud.output), ("y",)]
    assert len(result.trials) <= 8


@pytest.mark.parametrize(("copied", "said"), [(True, "it reads Neg_0_out"), (False, "it reads x")])
def test_a_range_set_by_a_few_outliers_is_reported(copied: bool, said: str, tmp_path: Path) -> None:
    """Of what a node makes, and of the model's input."""
    values = np.random.default_rng(1).normal(0, 1, (256, 16)).astype(np.float32)
    values[3, 7] = 400
    weights = np.random.default_rng(2).normal(0, 0.4, (2, 16, 16)).astype(np.float32)
    weights[0, 7] = 0
    np.save(tmp_path / "x.npy", values)
    source = make_products(tmp_path / "m.onnx", weights[0], weights[1], copied)
    given = {"x": {"data": str(tmp_path / "x.npy")}}
    result = search(tmp_path / "f", source, given, tolerance={"snr_db": 20}, int8={"op_types": ["MatMul"]})
    (kept,) = result.kept
    assert kept.cause == "range"
    assert f"{said}, whose values reach 400" in kept.evidence[0].sentence
    assert ("times their RMS" in kept.evidence[0].sentence) != copied
    assert kept.evidence[-1].cause == "sensitivity"
    assert "SQNR" in kept.evidence[-1].sentence


def test_weights_that_become_0_are_reported(tmp_path: Path) -> None:
    """With one scale for all columns, small columns are lost."""
    random = np.random.default_rng(3)
    first, second = (random.normal(0, 0.4, (16, 16)).astype(np.float32) for _ in range(2))
    first[:, 4:] /= 2000
    second[4:] *= 2000
    source = make_products(tmp_path / "m.onnx", first, second)
    np.save(tmp_path / "x.npy", values := random.normal(0, 1, (8, 16)).astype(np.float32))
    given = {"x": {"data": str(tmp_path / "x.npy")}}
    whole = {"op_types": ("MatMul",), "per_channel": False}
    lost = [error.lost_weights for error in errors_of(source, given, values, **whole).values()]
    assert lost[0] == pytest.approx(0.75, abs=0.01)
    int8 = {"op_types": ["MatMul"], "per_channel": False}
    outcome = search(tmp_path / "f", source, given, tolerance={"snr_db": 45}, int8=int8)
    result = [item.sentence for kept in outcome.kept for item in kept.evidence if item.cause == "range"]
    assert any(re.match("7[56] % of its weights", sentence) for sentence in result)
