"""The judge and the table of `bench_rivals`: a comparison that favours its author's tool is worth nothing."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.benchmarks.bench_rivals import contest, measure, read_measured, read_outcomes, row, source_key
from tests.benchmarks.rivals.protocol import Delivery, Sample, cosine
from tests.support.models_run import write_model
from tests.support.rivalry import judging, subjects
from tests.support.rivalry.contest import Outcome, Terms, find_error
from tests.support.rivalry.judging import Judged, Times, compare, judge
from tests.support.rivalry.table import Row, breaks_promise, ends_wrongly, print_table, verdict

MODEL = "g (float[1, 4] x) => (float[1, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }"
BOUND = 0.99


@pytest.fixture
def unseen(tmp_path: Path) -> Path:
    path = tmp_path / "unseen.npz"
    np.savez(path, x=np.random.default_rng(0).normal(size=(3, 1, 4)).astype(np.float32))
    return path


@pytest.mark.parametrize(
    ("candidate", "least", "most"),
    [
        (MODEL, 1.0, 1.0),
        (MODEL.replace("{1, 2, 3, 4}", "{1, 2, 3, 3}"), 0.5, 0.999),
        (MODEL.replace("{ y = Mul(x, w) }", "{ z = Div(x, x) y = Log(z) }"), 0.0, 0.0),  # all zero
        (MODEL.replace("{ y = Mul(x, w) }", "{ z = Neg(x) a = Abs(z) b = Neg(a) y = Sqrt(b) }"), -1.0, -1.0),  # NaN
    ],
)
def test_the_judge_finds_the_worst_sample(
    tmp_path: Path, unseen: Path, candidate: str, least: float, most: float
) -> None:
    source, other = (write_model(tmp_path / f"{n}.onnx", text) for n, text in enumerate((MODEL, candidate)))
    found = judge(source, Delivery(str(other)), unseen, threads=1)
    assert found.cosine is not None
    assert least - 1e-6 <= found.cosine <= most + 1e-6


def test_a_bound_must_hold_on_the_samples_of_the_tool_too() -> None:
    assert Judged(0.995).holds(BOUND) and Judged(0.995, 0.99).holds(BOUND)
    assert not Judged(0.995, given=0.9898).holds(BOUND), "right by chance on the unseen ones"
    assert not Judged(failed="it does not run").holds(BOUND)


def test_a_model_that_does_not_load_has_failed_and_is_not_wrong(tmp_path: Path, unseen: Path) -> None:
    source = write_model(tmp_path / "source.onnx", MODEL)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    found = judge(source, Delivery(str(broken)), unseen, threads=1)
    assert found.cosine is None
    assert found.failed


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
def test_an_input_whose_cast_openvino_removes_is_fed(tmp_path: Path, unseen: Path) -> None:
    """Its port has the names of both, and a right model was said to fail."""
    text = "g (float[1, 4] x) => (float[1, 4] y) { a_cast = Cast <to = 1> (x) y = Neg(a_cast) }"
    source = write_model(tmp_path / "source.onnx", text)
    found = judge(source, Delivery(str(source), runtime="openvino"), unseen, threads=1)
    assert found.failed == ""
    assert found.cosine == pytest.approx(1.0)


def test_the_worst_output_decides() -> None:
    right, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    assert cosine([right, right], [right, right]) == pytest.approx(1)
    assert cosine([right, right], [right, zero]) == 0
    assert cosine([zero], [zero]) == 1
    assert cosine([right], [np.ones(4, np.float32)]) == -1


def _times(*values: float) -> Times:
    return Times(values, values)


def _outcome(contender: str, cosine: float | None, failed: str = "") -> Outcome:
    deliveries = () if failed else (Delivery("model.onnx"),)
    judged = () if failed else (Judged(cosine),)
    return Outcome("tiny", contender, 1.0, 1.0, failed, deliveries, judged)


def _row(rival: Outcome, times: Times | None) -> Row:
    ours = _outcome("optimize_any", 1.0)
    delivered = {"optimize_any": [(ours.deliveries[0], _times(5, 5, 5))]}
    delivered["rival"] = [(delivery, times) for delivery in rival.deliveries if times is not None]
    source = _times(10, 10, 10)
    return Row("tiny", {"optimize_any": ours, "rival": rival}, delivered, source, source)


def test_a_faster_rival_is_ahead_only_if_it_is_right() -> None:
    assert verdict(_row(_outcome("rival", 1.0), _times(4, 4, 4)), "rival") == "behind"
    assert verdict(_row(_outcome("rival", 1.0), _times(5, 5, 5)), "rival") == "level"
    assert verdict(_row(_outcome("rival", 1.0), None), "another") == "not run"
    wrong = _row(_outcome("rival", 0.83), None)
    assert verdict(wrong, "rival") == "ahead"
    assert wrong.cell("rival") == "wrong: cosine 0.8300"
    assert _row(_outcome("rival", None, "no such operator"), None).cell("rival") == "failed: no such operator"


@pytest.mark.parametrize(
    ("wall_s", "promised_s", "broken"), [(65.9, 60, False), (70.1, 60, True), (197, 180, False), (199, 180, True)]
)
def test_a_budget_is_a_promise(wall_s: float, promised_s: float, broken: bool) -> None:
    promised = replace(Delivery("model.onnx"), budget_s=promised_s)
    outcome = replace(_outcome("optimize_any", 1.0), wall_s=wall_s, deliveries=(promised,))
    assert breaks_promise(outcome) is broken
    assert not breaks_promise(replace(outcome, deliveries=(replace(promised, budget_s=None),)))


def _ending(ending: str, ours: Times, grids: Times) -> Row:
    """A row whose command says how it ended."""
    found = _row(_outcome("rival", 1.0), None)
    said = replace(found.outcomes["optimize_any"], deliveries=(replace(Delivery("model.onnx"), ending=ending),))
    times = {"optimize_any": [(said.deliveries[0], ours)], "grid": [(Delivery("best.onnx"), grids)]}
    return replace(found, outcomes={"optimize_any": said, "grid": _outcome("grid", 1.0)}, times=times)


def test_an_ending_is_wrong_if_the_times_say_something_else() -> None:
    source, fast = _times(10, 10, 10), _times(5, 5, 5)
    assert ends_wrongly(_ending("faster", source, source), "optimize_any")
    assert ends_wrongly(_ending("nothing pays", source, fast), "optimize_any")
    assert not ends_wrongly(_ending("faster", fast, fast), "optimize_any")
    assert not ends_wrongly(_ending("nothing pays", source, source), "optimize_any")
    assert not ends_wrongly(_ending("not decided", source, fast), "optimize_any")


def test_wall_time_decides_where_threads_spin() -> None:
    spinning = Times(cpu=(9.0, 9.0), wall=(5.0, 5.0))
    found = replace(_row(_outcome("rival", 1.0), None), source=Times((10.0, 10.0), (10.0, 10.0)))
    assert found.compare(found.source, spinning).median == pytest.approx(10 / 9)
    assert replace(found, clock=Terms(threads=2).clock).compare(found.source, spinning).median == pytest.approx(2)


def test_results_of_other_terms_are_apart() -> None:
    terms = [Terms(), Terms(threads=2), Terms(loaded=True), Terms(budget="60 s")]
    assert len({term.name for term in terms}) == len(terms)


def test_a_model_does_not_always_follow_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO after ONNX Runtime was slower than after itself."""
    turns: list[str] = []

    def burst(run: str, *_: object) -> tuple[float, float]:
        turns.append(run)
        return 1.0, 1.0

    monkeypatch.setattr(judging, "_open", lambda delivery, _: delivery.model)
    monkeypatch.setattr(judging, "_passes", lambda *_: 1)
    monkeypatch.setattr(judging, "_burst", burst)
    judging._time([Delivery(name) for name in "abcd"], [{}], 1, 60)
    assert {turns.count(name) for name in "abcd"} == {60}
    for name in "abcd":
        before = {item for item, other in itertools.pairwise(turns) if other == name}
        assert before >= set("abcd") - {name}


def test_rounds_are_compared_one_by_one() -> None:
    busy = [10.0, 30.0, 20.0] * 10
    found = compare(_times(*busy), _times(*(value / 2 for value in busy)))
    assert found.median == found.low == found.high == pytest.approx(2)


def test_a_process_that_was_lucky_widens_the_interval() -> None:
    base, lucky = [10.0] * 40, [10.0] * 30 + [5.0] * 10
    found = compare(Times(tuple(base), processes=4), Times(tuple(lucky), processes=4))
    assert found.low == 1
    assert found.high > 1.4


def test_a_difference_as_large_as_that_of_the_source_from_itself_is_noise() -> None:
    compared = _row(_outcome("rival", 1.0), _times(4.8, 4.8, 4.8))
    assert verdict(compared, "rival") == "behind"
    assert verdict(replace(compared, twin=_times(10.5, 10.5, 10.5)), "rival") == "level"


def test_the_cause_of_a_failure_is_shown_and_not_who_passed_it_on() -> None:
    log = "Traceback\n  File x\nValueError: the cause\nsubprocess.CalledProcessError: Command '['x']' returned 1.\n"
    assert find_error(log) == "ValueError: the cause"


def _tiny(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """Two layers, wide enough for INT8 to pay."""
    pick = np.random.default_rng(0)
    weights = [(pick.normal(size=(512, 512)) / 22).astype(np.float32) for _ in range(2)]
    text = "g (float[8, 512] x) => (float[8, 512] y) { a = MatMul(x, v) b = Relu(a) y = MatMul(b, w) }"
    proto = onnx.load(write_model(model, text))
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(weight, name) for weight, name in zip(weights, "vw", strict=True)
    )
    onnx.save(proto, model)
    for _ in range(count):
        yield {"x": pick.normal(size=(8, 512)).astype(np.float32)}


@pytest.mark.slow
def test_a_model_goes_through_the_whole_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(subjects.SUBJECTS, "tiny", _tiny)
    names = ["onnxruntime_dynamic", "optimize_onnxruntime"]
    arguments = argparse.Namespace(
        contenders=names, again=[], terms=Terms(BOUND), samples=(12, 6), rounds=2, processes=1
    )
    contest("tiny", tmp_path, arguments)
    measure("tiny", tmp_path, arguments)
    results = tmp_path / arguments.terms.name
    outcomes = {contender: outcome for (_, contender), outcome in read_outcomes(results).items()}
    assert sorted(outcomes) == names
    assert not any(outcome.failed for outcome in outcomes.values())
    measured = read_measured(results)["tiny"]
    found = row("tiny", outcomes, measured, source_key("tiny", tmp_path), arguments.terms)
    assert outcomes["optimize_onnxruntime"].right(BOUND)
    assert found.speed("optimize_onnxruntime") is not None
    before = (results / "outcomes.jsonl").read_text()
    contest("tiny", tmp_path, arguments)
    assert (results / "outcomes.jsonl").read_text() == before, "an interrupted run goes on"
    print_table([found], arguments.terms)
    assert json.loads(before.splitlines()[0])["subject"] == "tiny"
