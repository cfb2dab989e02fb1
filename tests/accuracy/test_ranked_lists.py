"""Lists that a model sorts by a score: rows in another order are right, other rows are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from ndld_flow.accuracy.agreement import Agreement
from ndld_flow.accuracy.model_comparison import StoredOutputs, storable
from ndld_flow.accuracy.ranked_lists import Outputs
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.models.tensors import Array
from tests.accuracy.test_check_accuracy import compare
from tests.support.models_run import write_model

ROWS, OBJECTS, SAMPLES = 40, 5, 12
SELECTS = """g (float[1, 40] x) => (float[1, 10] v, int64[1, 10] i) {
    k = Constant <value = int64[1] {10}> () v, i = TopK(x, k) }"""
PLAIN = "g (float[1, 40] x) => (float[1, 40] y) { y = Sigmoid(x) }"


@dataclass
class Detections:
    """Sorted by score: boxes, scores, labels of one image."""

    boxes: Array
    scores: Array
    labels: Array

    def in_order(self) -> Detections:
        order = np.argsort(-self.scores, kind="stable")
        return Detections(self.boxes[order], self.scores[order], self.labels[order])

    def one_output(self) -> Outputs:
        columns = (self.boxes, self.scores[:, None], self.labels[:, None].astype(np.float32))
        return {"y": np.concatenate(columns, axis=1)[None].astype(np.float32)}

    def three_outputs(self) -> Outputs:
        return {"boxes": self.boxes[None], "scores": self.scores[None], "labels": self.labels[None]}


Layout = Callable[[Detections], Outputs]
LAYOUTS = pytest.mark.parametrize("layout", [Detections.one_output, Detections.three_outputs])


def detect(seed: int) -> Detections:
    """Five objects, and rows without an object, whose scores are almost 0."""
    stream = np.random.default_rng(seed)
    scores = np.concatenate([stream.uniform(0.3, 0.95, OBJECTS), stream.uniform(0.001, 0.01, ROWS - OBJECTS)])
    boxes = stream.uniform(0, 640, (ROWS, 4)).astype(np.float32)
    return Detections(boxes, scores.astype(np.float32), stream.integers(0, 80, ROWS)).in_order()


def rounded(found: Detections, seed: int) -> Detections:
    """The same, as another runtime rounds it: the rows without an object are in another order, and some are others."""
    stream = np.random.default_rng(100 + seed)
    scores = found.scores + stream.normal(0, 1e-3, ROWS).astype(np.float32)
    boxes = found.boxes + stream.normal(0, 0.05, (ROWS, 4)).astype(np.float32)
    boxes[-10:] = stream.uniform(0, 640, (10, 4))
    return Detections(boxes, scores, found.labels).in_order()


def broken_bounds(
    folder: Path, layout: Layout, change: Callable[[Detections, int], Detections], model: str = SELECTS
) -> list[str]:
    """Return the bounds that the changed detections break, of all outputs."""
    kept = StoredOutputs(folder / "kept")
    right = [detect(seed) for seed in range(SAMPLES)]
    for each in right:
        kept.add(layout(each))
    found = []
    for name, yardstick in kept.yardsticks(write_model(folder / "m.onnx", model), {}).items():
        agreement = Agreement(yardstick=yardstick)
        for seed, each in enumerate(right):
            r, c = yardstick.pair(name, kept[seed], layout(change(rounded(each, seed), seed)))
            assert r is not None
            assert c is not None
            agreement.add(r, storable(c))
        found += outside(agreement.metrics(), Tolerance().bounds(yardstick.kind))
    return found


@LAYOUTS
def test_rows_in_another_order_agree(layout: Layout, tmp_path: Path) -> None:
    assert broken_bounds(tmp_path, layout, lambda found, _: found) == []


@LAYOUTS
def test_without_an_operator_that_selects_rows_keep_their_places(layout: Layout, tmp_path: Path) -> None:
    assert broken_bounds(tmp_path, layout, lambda found, _: found, model=PLAIN)


def lose_one(found: Detections, seed: int) -> Detections:
    return found if seed else Detections(found.boxes, np.where(np.arange(ROWS) == 2, 0.0, found.scores), found.labels)


def invent_one(found: Detections, seed: int) -> Detections:
    return found if seed else Detections(found.boxes, np.where(np.arange(ROWS) == 20, 0.9, found.scores), found.labels)


def relabel_one(found: Detections, seed: int) -> Detections:
    return found if seed else Detections(found.boxes, found.scores, (found.labels + 40 * (np.arange(ROWS) == 1)) % 80)


def shift_boxes(found: Detections, _: int) -> Detections:
    return Detections(found.boxes + np.float32(60), found.scores, found.labels)


def scale_scores(found: Detections, _: int) -> Detections:
    return Detections(found.boxes, found.scores * np.float32(0.8), found.labels)


def exchange_boxes(found: Detections, _: int) -> Detections:
    return Detections(np.concatenate([found.boxes[1::-1], found.boxes[2:]]), found.scores, found.labels)


def unsort(found: Detections, _: int) -> Detections:
    return Detections(found.boxes[::-1], found.scores[::-1], found.labels[::-1])


@LAYOUTS
@pytest.mark.parametrize(
    "change", [lose_one, invent_one, relabel_one, shift_boxes, scale_scores, exchange_boxes, unsort]
)
def test_wrong_detections_break_a_bound(
    layout: Layout, change: Callable[[Detections, int], Detections], tmp_path: Path
) -> None:
    ordered = lambda found, seed: change(found, seed) if change is unsort else change(found, seed).in_order()  # noqa: E731
    assert broken_bounds(tmp_path, layout, ordered)


def test_a_sample_without_rows_is_no_error(tmp_path: Path) -> None:
    """The number of rows that a NonMaxSuppression leaves differs from sample to sample."""
    kept = StoredOutputs(tmp_path / "kept")
    for count in (40, 0, 3):
        kept.add({"scores": np.linspace(1, 0.5, count, dtype=np.float32), "boxes": np.ones((count, 4), np.float32)})
    yardsticks = kept.yardsticks(write_model(tmp_path / "m.onnx", SELECTS), {})
    assert {name: each.rows is not None for name, each in yardsticks.items()} == {"scores": True, "boxes": True}
    shapes = [[array.shape for array in yardsticks["boxes"].pair("boxes", o, o) if array is not None] for o in kept]
    assert [each[0] for each in shapes] == [(38, 4), (0, 4), (2, 4)]


def test_a_check_matches_the_rows_of_a_real_selection(tmp_path: Path) -> None:
    """Scores that differ by less than rounding are selected in the other order by the candidate."""
    text = """g (float[1, 40] x) => (float[1, 10] v, int64[1, 10] i) {
        k = Constant <value = int64[1] {10}> () noise = Constant <value = float[40] {NOISE}> ()
        s = Sigmoid(x) t = Add(s, noise) v, i = TopK(t, k) }"""
    noises = [np.zeros(40), np.where(np.arange(40) % 2, 2e-6, -2e-6)]
    right, wrong = (text.replace("NOISE", ", ".join(f"{value:.7f}" for value in noise)) for noise in noises)
    values = np.repeat(np.random.default_rng(0).normal(0, 3, (12, 1, 20)), 2, axis=2).astype(np.float32)
    np.save(tmp_path / "x.npy", values + np.tile(np.array([1e-6, 0], np.float32), 20))
    inputs = {"x": {"shape": [1, 40], "data": str(tmp_path / "x.npy")}}
    ran, accuracy = compare(tmp_path, right, wrong, inputs)
    assert ran.result.passed, accuracy.outputs
    assert [note for note in accuracy.notes if "v and i" in note and "column 0 of v" in note]
    raw = np.array([each.metrics.get("mismatched", 0.0) for each in accuracy.outputs])
    assert raw.max() == 0.0
    assert onnx.load(tmp_path / "candidate.onnx").graph.output[1].name == "i"
