"""Judgements of points whose steps fail or do not record a needed metric."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.execution.events import Event, PointFinished, StepFinished, StepStarted
from ndld_flow.execution.request import Placement, Request
from ndld_flow.sweep.run_request import run_request
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import GAUGE, RECIPE, SweepToy, count_by_type, make_sweep_toy

QUICK = "{step: profile, layer_passes: 0, runs: 1, passes: 1, duration: 0 ms, warmup: 0 ms, stable: 0 %}"
FLAKY = GAUGE.replace("class Gauge", "class Flaky").replace(
    "            results.append",
    """            again = Path(os.environ["TOY_LOG"]).read_text().count("gauge") == 2
            if again and turn.context.name in os.environ["FAILS"]:
                raise BackendError("it is no more", step=turn.context.name)
            ms += 100 if again and turn.context.name in os.environ["SLOW"] else 0
            results.append""",
)


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> SweepToy:
    (in_folder / ".log").mkdir()  # a hidden folder is in no key
    monkeypatch.setenv("TOY_LOG", str(in_folder / ".log" / "log.txt"))
    return make_sweep_toy(in_folder)


def measured(toy: SweepToy) -> list[str]:
    return [line.split()[1] for line in toy.log if line.startswith("gauge")]


@pytest.mark.parametrize("line", ["gates: ['speed.mss <= 3']", "  subject_to: ['speed.mss <= 3']"])
def test_a_bound_on_a_metric_that_no_step_reports_ends_the_sweep(
    toy: SweepToy, line: str, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        toy.write(f"{RECIPE}{line}\n").run()
    check_message(caught.value)
    assert len(toy.log) == 4


@pytest.mark.representatives("none", "gate")
@pytest.mark.parametrize(
    ("condition", "chosen_on"),
    [
        ("minimize: speed.ms", ()),  # the check passes all: it chose none
        ("minimize: agree.max_abs", ("agree",)),
        ("minimize: speed.ms\n  subject_to: ['agree.max_abs <= 0']", ("agree",)),
        ("minimize: speed.ms\ngates: ['agree.max_abs <= 0']", ("agree",)),
    ],
    ids=["none", "objective", "constraint", "gate"],
)
def test_a_sweep_reports_the_checks_by_whose_samples_its_best_was_chosen(
    toy: SweepToy, condition: str, chosen_on: tuple[str, ...]
) -> None:
    agree = "agree: {step: check_accuracy, reference: source, candidate: tint, tolerance: {cosine: 0.9}, power: off}"
    text = RECIPE.replace("sweep:", f"  half: {{step: convert_fp16, from: source}}\n  {agree}\nsweep:")
    text = text.replace("tint.colour: [red, green]", "agree.candidate: [tint, half]").replace("[1, 2, 4]", "[1]")
    finished = toy.write(text.replace("minimize: speed.ms", condition)).finish()
    assert toy.record(finished).chosen_on == chosen_on
    assert ("samples of agree" in finished.verdict[0]) == bool(chosen_on)
    assert ("samples of agree" in Path(finished.report).read_text()) == bool(chosen_on)


def test_points_without_the_bounded_metric_fail_alone(toy: SweepToy) -> None:
    record, _ = toy.write(RECIPE + "gates: ['speed.ms / (speed.ms - 13) >= -100']\n").run()
    assert [point.outcome for point in record.points] == ["failed", "passed", "passed"] * 2
    assert "divides by zero" in record.points[0].reason
    assert record.points[0].folder == ""


def test_missing_requirements_of_later_points_do_not_end_the_sweep(toy: SweepToy) -> None:
    text = RECIPE.replace("{step: gauge, threads: 1}", QUICK).replace("speed.ms", "speed.latency.min")
    text = text.replace("tint.colour: [red, green]", "speed.provider: [cpu, cuda]").replace("[1, 2, 4]", "[1]")
    record, _ = toy.write(text + "  together: 1\n").run()
    assert [point.outcome for point in record.points] == ["passed", "failed"]


def test_a_check_that_stops_every_point_is_a_result(toy: SweepToy) -> None:
    text = RECIPE.replace("  speed: {", "  lint: {step: stop, from: base}\n  speed: {from: tint, ")
    stop = GAUGE.replace("class Gauge", "class Stop").replace("takes_turns = True", "stops_run = True")
    (toy.folder / "stop.py").write_text(stop.replace('Result(f"{ms:g} ms"', 'Result("it looks bad", passed=False'))
    record, _ = toy.write(text.replace("gauge.py]", "gauge.py, stop.py]")).run()
    assert {point.outcome for point in record.points} == {"refused"}
    assert "lint failed: it looks" in record.points[0].reason
    assert record.points[0].steps[-1].outcome == "skipped"
    assert not record.passed


def test_a_missing_model_is_reported_before_the_sweep(toy: SweepToy) -> None:
    text = RECIPE.replace("model: model.onnx", "model: gone.onnx").replace("tint.colour: [red, green]", "model: [A]")
    with pytest.raises(ModelError, match=r"gone\.onnx"):
        toy.write(text.replace("[A]", "[model.onnx]")).run()
    with pytest.raises(ModelError, match=r"gone\.onnx"):
        toy.plan()
    assert not toy.log


def test_a_model_that_changes_meanwhile_ends_the_sweep(toy: SweepToy, check_message: CheckMessage) -> None:
    def change(event: Event) -> None:
        if isinstance(event, PointFinished):
            model = onnx.load("model.onnx")
            model.doc_string = "another"
            onnx.save(model, "model.onnx")

    with pytest.raises(ModelError) as caught:
        run_request(Request(toy.recipe, ("sweep.together=2",), toy.outputs, trust=True), change)
    check_message(caught.value)
    assert len(measured(toy)) == 1
    record, _ = toy.run("sweep.together=2")
    assert record.passed


def test_a_changed_gate_makes_another_sweep(toy: SweepToy) -> None:
    first = toy.finish()
    toy.write(RECIPE + "gates: ['speed.ms <= 100']\n")
    second = toy.finish()
    assert (second.nothing_to_do, second.sweep == first.sweep) == (False, False)
    assert toy.finish().nothing_to_do


@pytest.mark.parametrize("blames", ["true", "false"])
def test_a_failing_shared_step_runs_once(toy: SweepToy, blames: str) -> None:
    plain = f"  plain: {{step: gauge, from: base, threads: 200, blames: {blames}}}\n"
    record, events = toy.write(RECIPE.replace("  speed: {", f"{plain}  speed: {{")).run()
    assert measured(toy) == ["plain#1"]
    assert {(point.outcome, point.reason) for point in record.points} == {
        ("failed", "step plain: there are no 200 threads")
    }
    assert [event.name for event in events if isinstance(event, StepFinished)][-1] == "plain#1"


def test_base_and_variant_in_one_session_are_each_measured_once(toy: SweepToy) -> None:
    text = RECIPE.replace("  speed: {", "  plain: {step: gauge, from: base}\n  speed: {from: tint, ")
    record, _ = toy.write(text).run("sweep.together=3")
    assert [len(names.split("+")) for names in measured(toy)[:2]] == [4, 4]
    reasons = [point.steps[2].reason for point in record.points]
    assert sorted(reasons) == ["measured in turns"] * 2 + ["shared"] * 4
    # one of a session's steps says how many there were beside it
    assert toy.point_run(record, 1).steps[-1].detail in ("with 3 others", "with 4 others")


def test_points_measured_alone_are_not_interleaved(toy: SweepToy) -> None:
    record, events = toy.run("sweep.together=1", "sweep.winners=0")
    assert {point.steps[-1].reason for point in record.points} == {"new"}
    assert {event.reason for event in events if isinstance(event, StepStarted)} == {"new"}


def test_a_winner_that_fails_its_second_measurement_has_not_passed(
    toy: SweepToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (toy.folder / "steps" / "flaky.py").write_text(FLAKY)
    monkeypatch.setenv("FAILS", "speed#3")
    monkeypatch.setenv("SLOW", "")
    text = RECIPE.replace("step: gauge", "step: flaky").replace("gauge.py", "flaky.py")
    record, _ = toy.write(text + "gates: ['speed.ms <= 50']\n").run()
    failed = record.points[2]
    assert (failed.outcome, failed.rank) == ("failed", None)
    assert failed.reason.startswith("measured again: step speed: ")
    assert record.best == 6
    assert toy.point_run(record, 3).passed  # as it was first measured


def test_a_winner_that_fails_a_gate_in_its_second_measurement_has_not_passed(
    toy: SweepToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (toy.folder / "steps" / "flaky.py").write_text(FLAKY)
    monkeypatch.setenv("FAILS", "")
    monkeypatch.setenv("SLOW", "speed#3 speed#6")
    text = RECIPE.replace("step: gauge", "step: flaky").replace("gauge.py", "flaky.py")
    record, _ = toy.write(text + "gates: ['speed.ms <= 50']\n").run()
    assert [point.outcome for point in record.points] == ["passed", "passed", "refused"] * 2
    assert "measured again: speed.ms <= 50 failed: 104" in record.points[2].reason
    assert record.best == 2
    assert not toy.point_run(record, 3).passed


@pytest.mark.thorough
def test_the_time_limit_of_a_session_is_the_sum_of_its_steps(toy: SweepToy) -> None:
    text = RECIPE.replace("  speed: {", "  plain: {step: gauge, from: base}\n  speed: {from: tint, ")
    text = text.replace("tint.colour: [red, green]", "speed.seconds: [60.0]").replace("[1, 2, 4]", "[1]")
    record, _ = toy.write(text).run("sweep.timeout={plain: 2 s, speed: 1 s}")
    assert " 3.0 s" in record.points[0].reason


@pytest.mark.thorough
def test_many_points_run_each_shared_step_once(toy: SweepToy) -> None:
    text = RECIPE.replace("[red, green]", str([f"c{number}" for number in range(6)]))
    text = text.replace("[1, 2, 4]", str([*range(1, 7)])).replace("seconds: 0.0", "")
    record, _ = toy.write(text).run(place=Placement(jobs=2))
    assert len(record.points) == 36
    dyes = [line for line in toy.log if line.startswith("dye")]
    assert len(dyes) == 1 + 6
    assert count_by_type(toy.stored())["dye"] == len(dyes)
    first = [name for line in measured(toy)[:-1] for name in line.split("+")]
    assert Counter(first) == Counter(f"speed#{number}" for number in range(1, 37))
    again = len(measured(toy)[-1].split("+"))
    assert record.steps_done == len(dyes) + 36 + again == len(toy.stored())
    assert (record.steps_shared, record.steps_reused) == (35 + 30, 0)
    more, _ = toy.write(text + "  winners: 0\n").run()
    assert (more.steps_done, more.steps_shared, more.steps_reused) == (0, 0, len(dyes) + 36)
