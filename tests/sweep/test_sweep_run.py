"""Complete sweeps with toy steps: the computed steps, their number, and the reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.execution.events import PointFinished, RunFinished, SweepFinished, SweepStarted
from ndld_flow.execution.request import Placement, Request
from ndld_flow.records.run_record import metrics_of
from ndld_flow.sweep.run_request import run_request
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import SweepToy, count_by_type, make_sweep_toy, table


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> SweepToy:
    (in_folder / ".log").mkdir()  # a hidden folder is in no key
    monkeypatch.setenv("TOY_LOG", str(in_folder / ".log" / "log.txt"))
    return make_sweep_toy(in_folder)


def test_shared_steps_run_once(toy: SweepToy) -> None:
    record, _ = toy.run()
    assert [point.values for point in record.points] == [
        {"tint.colour": colour, "speed.threads": threads} for colour in ("red", "green") for threads in (1, 2, 4)
    ]
    dyes = [line.split()[1] for line in toy.log if line.startswith("dye")]
    assert dyes == ["base#1", "tint#1", "tint#4"]
    # six points, and three winners again
    assert count_by_type(toy.stored()) == {"dye": 3, "gauge": 9}
    assert record.steps_done == 12
    assert record.steps_shared == 5 + 4


def test_points_are_interleaved_and_the_best_measured_again(toy: SweepToy) -> None:
    record, _ = toy.run()
    gauges = [line.split()[1] for line in toy.log if line.startswith("gauge")]
    assert gauges == ["+".join(f"speed#{number}" for number in range(1, 7)), "speed#2+speed#3+speed#6"]
    first, again = record.sessions
    assert first.points == (1, 2, 3, 4, 5, 6)
    assert not first.again
    assert again.again
    assert again.points == (2, 3, 6)
    assert record.best == 3
    best, equal, slower = (record.points[number - 1] for number in (3, 6, 2))
    assert best.rank == 1
    assert best.again is not None
    assert best.again.verdict == "best"
    assert (equal.rank, equal.tied) == (2, True)
    assert (slower.rank, slower.tied) == (3, False)


def test_the_first_measurements_are_short_and_the_best_are_measured_in_full(toy: SweepToy) -> None:
    toy.write(toy.recipe.read_text() + "  winners: 2\n  short: {speed.offset: 100}\n")
    record, _ = toy.run()
    assert [point.objectives for point in record.points] == [(113,), (107,), (104,), (113,), (107,), (104,)]
    again = {point.number: point.again.objectives for point in record.points if point.again is not None}
    assert again[3] == (4,) and again[6] == (4,)
    assert record.best == 3
    assert all("offset" not in "".join(point.changes) for point in record.points), "the point is the recipe's own"
    assert metrics_of(toy.point_run(record, 3).steps)["speed.ms"].value == 4
    single = toy.recipe.read_text().replace("winners: 2", "winners: 1").replace("[1, 2, 4]", "[4]")
    toy.write(single.replace("[red, green]", "[red]"))
    alone, _ = toy.run()
    assert alone.points[0].again is not None, "a single best point is measured in full too"


@pytest.mark.parametrize(
    "short",
    [
        "{sped.offset: 1}",
        "{speed.threads: 1}",
        "{speed.offset: much}",
        "{speed.offset: 1}\n  winners: 0",
    ],
)
def test_wrong_settings_of_short_measurements_are_refused(
    toy: SweepToy, short: str, check_message: CheckMessage
) -> None:
    toy.write(toy.recipe.read_text() + f"  short: {short}\n")
    with pytest.raises(api.RecipeError) as caught:
        toy.plan()
    check_message(caught.value)


def test_points_are_tried_as_listed_without_mixing(toy: SweepToy) -> None:
    record, _ = toy.run("sweep.together=2", "+sweep.mixed=false")
    assert [session.points for session in record.sessions[:3]] == [(1, 2), (3, 4), (5, 6)]


def test_a_violated_constraint_ends_a_point_before_its_next_step(toy: SweepToy) -> None:
    text = (
        toy.recipe.read_text()
        .replace("steps:", "steps:\n  check: {step: dye}")
        .replace("tint.colour: [red, green]", "check.weight: [1, 5]")
    )
    toy.write(text + "  subject_to: check.weight <= 2 B\n")
    record, _ = toy.run()
    assert [point.outcome for point in record.points] == ["passed"] * 3 + ["refused"] * 3
    assert not any(line.startswith(("dye base#4", "dye tint#4")) for line in toy.log)


def test_a_sweep_reports_its_progress(toy: SweepToy) -> None:
    _, events = toy.run()
    begun = [event for event in events if isinstance(event, SweepStarted)]
    assert [event.point_count for event in begun] == [6]
    ended = [event for event in events if isinstance(event, PointFinished) and not event.again]
    assert [event.number for event in ended] == [1, 2, 3, 4, 5, 6]
    assert ended[0].objectives["speed.ms"].value == 13
    assert isinstance(events[-1], SweepFinished)
    assert events[-1].passed


def test_the_same_sweep_again_does_nothing_and_names_the_first(toy: SweepToy) -> None:
    first = toy.finish()
    worked = len(toy.log)
    second = toy.finish()
    assert second.nothing_to_do
    assert second.sweep == first.sweep
    assert len(toy.log) == worked


@pytest.mark.thorough
def test_a_wider_sweep_runs_only_new_steps(toy: SweepToy) -> None:
    toy.run("sweep.together=3")
    worked = len(toy.log)
    toy.write(toy.recipe.read_text().replace("[red, green]", "[red, green, blue]"))
    record, _ = toy.run("sweep.together=3")
    new = toy.log[worked:]
    assert [line.split()[:2] for line in new if line.startswith("dye")] == [["dye", "tint#7"]]
    assert sorted(number for session in record.sessions[:3] for number in session.points) == list(range(1, 10))


@pytest.mark.thorough
def test_sessions_mix_points_of_the_grid(toy: SweepToy) -> None:
    record, _ = toy.run("sweep.together=3")
    again, _ = toy.run("sweep.together=3", "sweep.winners=2")
    first, second = record.sessions[:2]
    assert first.points not in ((1, 2, 3), (4, 5, 6))  # else colour and time could not be told apart
    assert sorted((*first.points, *second.points)) == [1, 2, 3, 4, 5, 6]
    assert [session.reused for session in again.sessions[:2]] == [True, True]
    assert [point.number for point in record.points] == [1, 2, 3, 4, 5, 6]


def test_a_failing_point_is_recorded_and_others_continue(toy: SweepToy) -> None:
    toy.write(toy.recipe.read_text().replace("[red, green]", "[red, green]\n    tint.fails: ['', model]"))
    record, _ = toy.run()
    failed = [point for point in record.points if point.values["tint.fails"] == "model"]
    assert len(record.points) == 12
    assert {point.outcome for point in failed} == {"failed"}
    assert "model takes no red" in failed[0].reason
    assert failed[0].failed_step == "tint"
    assert [(step.name, step.outcome) for step in failed[0].steps] == [
        ("base", "reused"),
        ("tint", "skipped"),
        ("speed", "skipped"),
    ]
    assert record.passed
    assert sum(point.outcome == "passed" for point in record.points) == 6


@pytest.mark.parametrize("blames", ["true", "false"])
def test_a_point_that_fails_while_measured_fails_alone(toy: SweepToy, blames: str) -> None:
    record, _ = toy.run("steps.speed.limit=2", f"steps.speed.blames={blames}")
    assert [point.outcome for point in record.points] == ["passed", "passed", "failed"] * 2
    assert "there are no 4 threads" in record.points[2].reason
    assert record.best in (2, 5)


def test_a_failed_constraint_skips_the_measurement(toy: SweepToy) -> None:
    text = toy.recipe.read_text().replace("tint.colour: [red, green]", "tint.weight: [1.0, 5.0]")
    toy.write(text + "  subject_to: ['tint.weight <= 2']\n")
    record, _ = toy.run()
    assert [point.outcome for point in record.points] == ["passed"] * 3 + ["refused"] * 3
    assert record.points[3].session is None
    assert "tint.weight <= 2" in record.points[3].reason
    assert record.points[3].steps[-1].outcome == "skipped"
    assert "speed#4" not in " ".join(toy.log)


def test_an_objective_that_no_step_reports_ends_the_sweep_early(toy: SweepToy) -> None:
    with pytest.raises(RequestError, match=r"speed\.latency.*speed\.ms"):
        toy.run("sweep.minimize=speed.latency")


@pytest.mark.usefixtures("pictures_of_sweeps")
def test_each_point_has_its_own_folder(toy: SweepToy) -> None:
    record, _ = toy.run()
    run = toy.point_run(record, 5)
    assert run.id == f"{record.id}#5"
    assert run.recipe["steps"]["speed"]["threads"] == 2  # type: ignore[index, call-overload]
    assert "sweep" not in run.recipe
    folder = toy.outputs / "sweeps" / "toy" / record.id / "points" / "0005"
    assert (folder / "report.html").is_file()
    assert (folder / "tint" / "stored" / "model.onnx").is_file()
    names = {path.name for path in folder.parent.parent.iterdir()}
    assert names >= {"sweep.json", "report.html", "points.csv", "summary.md", "recipe.yaml", "command.txt", "log.txt"}
    again = api.run(folder / "recipe.yaml", outputs=toy.outputs, trust=True)
    assert again.passed


def test_the_recipe_alone_is_run_without_its_sweep(toy: SweepToy) -> None:
    assert isinstance(api.run(toy.recipe, outputs=toy.outputs, trust=True), SweepFinished)
    finished = api.run(toy.recipe, ["~sweep"], outputs=toy.outputs, trust=True)
    assert isinstance(finished, RunFinished)
    assert finished.passed


@pytest.mark.thorough
def test_two_sweeps_report_the_same(toy: SweepToy, tmp_path: Path) -> None:
    record, _ = toy.run()
    (toy.folder / "outputs").rename(tmp_path / "elsewhere")
    other, _ = toy.run()
    assert table(other) == table(record)
    assert other.id != record.id


def test_a_failed_step_skips_the_measurement(toy: SweepToy) -> None:
    text = toy.recipe.read_text().replace("tint.colour: [red, green]", "tint.passed: [true, false]")
    record, _ = toy.write(text).run()
    assert [point.outcome for point in record.points] == ["passed"] * 3 + ["refused"] * 3
    assert record.points[3].reason == "tint failed: dyed red"
    assert "speed#4" not in " ".join(toy.log)


def test_the_best_point_is_written_as_a_recipe(toy: SweepToy) -> None:
    toy.write("# A comment that stays.\n" + toy.recipe.read_text())
    best = toy.folder / "best.yaml"
    finished = toy.apply(best)
    assert finished.applied == str(best)
    text = best.read_text()
    assert "best of sweep toy/" in text
    assert "# A comment that stays." in text
    assert "speed: {step: gauge, threads: 4}" in text
    assert "sweep:" not in text
    assert api.run(best, outputs=toy.outputs, trust=True).passed
    assert toy.apply(best).nothing_to_do  # a file of ours may be written anew


def test_user_files_are_not_overwritten(toy: SweepToy, check_message: CheckMessage) -> None:
    (toy.folder / "mine.yaml").write_text("name: mine\n")
    with pytest.raises(RequestError) as caught:
        toy.apply(toy.folder / "mine.yaml")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        toy.apply(toy.folder / "aside" / "best.yaml")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        run_request(Request(toy.recipe, ("~sweep",), toy.outputs, trust=True, apply=Path("x.yaml")), lambda _: None)
    check_message(caught.value)
    assert not toy.log


def test_the_best_point_is_written_only_where_its_presets_are_found(toy: SweepToy, check_message: CheckMessage) -> None:
    (toy.folder / "base.yaml").write_text(toy.recipe.read_text())
    toy.write("defaults: [base, _self_]\n")
    with pytest.raises(RequestError) as caught:
        toy.apply(toy.folder / "aside" / "best.yaml")
    check_message(caught.value)


def test_a_plan_reports_shared_and_stored_steps(toy: SweepToy) -> None:
    before = toy.plan()
    assert before.point_count == 6
    assert {step.name: (step.uses, step.distinct, step.stored) for step in before.steps} == {
        "base": (6, 1, 0),
        "tint": (6, 2, 0),
        "speed": (6, 6, 0),
    }
    assert before.points[4].waiting == ("base", "tint", "speed")
    assert not toy.log
    toy.run()
    after = toy.plan()
    assert [(step.distinct, step.stored) for step in after.steps] == [(1, 1), (2, 2), (6, 6)]
    toy.write(toy.recipe.read_text().replace("[1, 2, 4]", "[1, 2, 4, 8]"))
    wider = toy.plan()
    assert [(step.distinct, step.stored) for step in wider.steps] == [(1, 1), (2, 2), (8, 0)]
    assert wider.estimate is not None


def test_missing_requirements_are_reported_before_the_sweep(toy: SweepToy) -> None:
    engine = "  engine: {step: build_engine, backend: tensorrt, from: tint}\n"
    toy.write(toy.recipe.read_text().replace("sweep:", f"{engine}sweep:"))
    with pytest.raises(RequestError, match="TensorRT"):
        toy.run()
    assert not toy.log


def test_impossible_points_are_reported_with_the_reason(toy: SweepToy) -> None:
    quick = "layer_passes: 0, runs: 1, passes: 1, duration: 0 ms, warmup: 0 ms, stable: 0 %"
    text = toy.recipe.read_text().replace("{step: gauge, threads: 1}", f"{{step: profile, {quick}}}")
    axes = "speed.provider: [cpu, cuda]\n    speed.threads: [1, 2]"
    text = text.replace("tint.colour: [red, green]", axes).replace("    speed.threads: [1, 2, 4]\n", "")
    record, _ = toy.write(text.replace("speed.ms", "speed.latency.min")).run()
    assert [point.outcome for point in record.points] == ["passed", "passed", "failed", "failed"]
    assert "cuda" in record.points[2].reason
    assert not record.points[2].steps


def test_sweep_options_are_refused_for_a_single_run(toy: SweepToy, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        run_request(Request(toy.recipe, ("~sweep",), toy.outputs, trust=True, place=Placement(jobs=2)), lambda _: None)
    check_message(caught.value)
