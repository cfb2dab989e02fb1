"""Scores of trials: every output against its bounds, and the distance of the worst."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.models.files import check_model, load_model
from ndld_flow.precision_search.observations import write_with_taken_branches
from ndld_flow.precision_search.trials import Bounds, FinishedTrial, TrialFile, TrialResult
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from tests.support import models, models_precision

BOUNDS = Bounds(Tolerance(cosine=0.999, snr_db=25.0), {"y": "numbers", "a": "numbers", "b": "numbers", "ids": "exact"})


def test_the_score_counts_decades_of_error_and_is_0_at_the_bound() -> None:
    at, worse = ({"y": {"cosine": cosine, "snr_db": 30.0}} for cosine in (0.999, 0.9))
    assert BOUNDS.score(TrialResult(at)) == pytest.approx(0.0, abs=1e-9)
    assert BOUNDS.score(TrialResult(worse)) == pytest.approx(-2.0)
    assert BOUNDS.score(TrialResult({"y": {"cosine": 1.0, "snr_db": 5.0}})) == pytest.approx(-1.0), "20 dB are a decade"
    assert BOUNDS.passed(TrialResult(at))
    assert not BOUNDS.passed(TrialResult(worse))


def test_the_worst_output_decides() -> None:
    judged = TrialResult({"a": {"cosine": 1.0, "snr_db": 60.0}, "b": {"cosine": 0.5, "snr_db": 60.0}})
    assert not BOUNDS.passed(judged)
    assert BOUNDS.worst(judged)["cosine"] == 0.5


def test_integers_must_be_equal() -> None:
    fine = {"cosine": 1.0, "snr_db": 60.0}
    assert BOUNDS.passed(TrialResult({"y": fine, "ids": {"mismatched": 0.0}}))
    assert not BOUNDS.passed(TrialResult({"y": fine, "ids": {"mismatched": 0.01}}))


def test_nan_is_worse_than_any_number_and_less_of_it_is_better() -> None:
    fine = {"y": {"cosine": 1.0, "snr_db": 60.0}}
    many, few, wrong = (
        TrialResult(fine, {"y": 900}),
        TrialResult(fine, {"y": 9}),
        TrialResult({"y": {"cosine": -1.0, "snr_db": -99.0}}),
    )
    assert BOUNDS.score(many) < BOUNDS.score(few) < BOUNDS.score(wrong)
    assert BOUNDS.score(TrialResult(trouble="it does not run")) < BOUNDS.score(many)
    assert not BOUNDS.passed(few)
    assert BOUNDS.worst(few)["nonfinite"] == 9


def test_complete_trials_are_read_back_and_truncated_ones_are_not(tmp_path: Path) -> None:
    file = TrialFile(tmp_path / "deep" / "trials.jsonl")
    assert file.read() == {}
    trials = {
        frozenset({1, 5}): FinishedTrial(TrialResult({"y": {"cosine": 0.5}}, {"y": 2}), 0.25),
        frozenset[int](): FinishedTrial(TrialResult(trouble="no kernel"), 1.5),
    }
    for kept, trial in trials.items():
        file.add(kept, trial)
    whole = (tmp_path / "deep" / "trials.jsonl").read_text()
    (tmp_path / "deep" / "trials.jsonl").write_bytes((whole + whole[: len(whole) // 3]).encode() + b"\xff\xfe")
    file.add(frozenset({7}), trials[frozenset()])
    assert file.read() == {**trials, frozenset({7}): trials[frozenset()]}
    file.delete()
    assert file.read() == {}


@pytest.mark.parametrize(("flags", "taken"), [((1.0, 2.0), "then"), ((-1.0,), "else"), ((1.0, -1.0), "")])
def test_a_branch_that_all_samples_take_replaces_its_if(tmp_path: Path, flags: tuple[float, ...], taken: str) -> None:
    source = models.save(models_precision.branching_model(), tmp_path / "model.onnx")
    x = np.random.default_rng(0).random((8, 16), dtype=np.float32)
    samples = [{"x": x, "flag": np.array(flag, np.float32)} for flag in flags]
    written = write_with_taken_branches(source, tmp_path / "taken.onnx", samples, OnnxruntimeRequest())
    graph = load_model(written).graph
    # A graph network of pymupdf-layout was refused: a shape after an If was that of its other branch.
    inner = [value for node in graph for value in node.outputs if not value.is_graph_output()]
    assert not taken or all(value.shape is None for value in inner)
    names = [node.name or "" for node in graph]
    assert [name for name in names if name.endswith("_loud")] == ([f"{taken}_branch_loud"] if taken else [])
    check_model(written, full_check=True)
    before, after = (ort.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in (source, written))
    for sample in samples:
        np.testing.assert_allclose(before.run(None, sample)[0], after.run(None, sample)[0], rtol=1e-4)
