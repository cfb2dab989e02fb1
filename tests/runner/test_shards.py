"""Shards of a sweep: together they try each point once, and `collect` joins them into the sweep of one process."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import MissingPointsError, RequestError
from ndld_flow.machine import reuse
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.runner.events import Event, Notice, ShardFinished, SweepFinished
from ndld_flow.runner.request import Placement, parse_shard
from tests.support.process_runs import ProcessRun
from tests.support.sweep_toys import SweepToy, make_sweep_toy

LIMIT_S = 120


@dataclass
class Machine:
    """A machine with outputs of its own, or those of another machine."""

    toy: SweepToy
    outputs: Path
    cache: str = ""
    push: bool | None = None
    events: list[Event] = field(default_factory=list)

    def shard(self, shard: str, *overrides: str) -> ShardFinished:
        return api.run_shard(
            self.toy.recipe, shard, overrides, outputs=self.outputs, trust=True, cache=self.cache, push=self.push
        )

    def collect(
        self, *overrides: str, partial: bool = False, measure: bool = False, shards: int | None = None
    ) -> SweepFinished:
        self.events.clear()
        return api.collect(
            self.toy.recipe,
            overrides,
            partial=partial,
            measure=measure,
            shards=shards,
            outputs=self.outputs,
            trust=True,
            cache=self.cache,
            push=self.push,
            listener=self.events.append,
        )

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice) and event.warning]


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> SweepToy:
    monkeypatch.setenv("TOY_LOG", str(in_folder / "log.txt"))
    return make_sweep_toy(in_folder)


@pytest.fixture
def here(toy: SweepToy) -> Machine:
    return Machine(toy, toy.outputs)


def record_of(finished: SweepFinished) -> SweepRecord:
    return read_sweep_record(Path(finished.folder))


def worked(toy: SweepToy) -> Counter[str]:
    """Return the number of computations of each kind of step."""
    return Counter(line.split()[0] for line in toy.log)


def results(record: SweepRecord) -> list[tuple[object, ...]]:
    return [(point.values, point.outcome, point.reason, point.metrics, point.failed_step) for point in record.points]


def test_collect_joins_shards_into_the_sweep_of_one_process(here: Machine, toy: SweepToy) -> None:
    tried = [here.shard(f"{index}/3") for index in (2, 3, 1)]
    assert [shard.tried for shard in tried] == [2, 2, 2]
    assert not (toy.outputs / "sweeps").exists()
    log = toy.log
    finished = here.collect()
    assert toy.log == log  # nothing was computed
    joined = record_of(finished)
    assert joined.stopped_because == "all 6 points tried"
    assert (joined.steps_done, len(joined.sittings)) == (0, 3)
    assert (Path(finished.folder) / "report.html").is_file()
    assert (Path(finished.folder) / "points/0005/report.html").is_file()
    assert here.collect().nothing_to_do
    whole, _ = toy.run("sweep.winners=0")
    assert results(joined) == results(whole)
    assert joined.best == whole.best


def test_the_plan_of_a_shard_has_its_points(here: Machine, toy: SweepToy) -> None:
    planned = [api.plan(toy.recipe, outputs=toy.outputs, trust=True, shard=f"{index}/3") for index in range(1, 4)]
    numbers = []
    for index, plan in enumerate(planned, 1):
        assert isinstance(plan, api.SweepPlan)
        assert plan.point_count == len(plan.points) == here.shard(f"{index}/3").tried
        assert plan.points[0].waiting
        numbers += [point.number for point in plan.points]
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
    done = api.plan(toy.recipe, outputs=toy.outputs, trust=True, shard="2/3")
    assert isinstance(done, api.SweepPlan)
    assert not any(point.waiting for point in done.points)
    with pytest.raises(RequestError, match="no shard knows its points"):
        api.plan(toy.recipe, ["sweep.method=tpe"], outputs=toy.outputs, trust=True, shard="1/2")


def test_shared_steps_run_once_and_each_point_in_one_shard(here: Machine, toy: SweepToy) -> None:
    for index in range(1, 5):
        here.shard(f"{index}/4")
    names = Counter(name for line in toy.log if line.startswith("gauge") for name in line.split()[1].split("+"))
    assert names == Counter({f"speed#{number}": 1 for number in range(1, 7)})
    assert worked(toy)["dye"] == 3


def test_more_shards_than_points(here: Machine) -> None:
    assert [here.shard(f"{index}/9").tried for index in range(1, 10)] == [1] * 6 + [0] * 3
    assert here.collect().passed


def test_without_measurements_points_are_shared_too(here: Machine, toy: SweepToy) -> None:
    text = (
        toy.recipe.read_text()
        .replace("  speed: {step: gauge, threads: 1}\n", "")
        .replace("speed.threads", "tint.weight")
    )
    toy.write(text.replace("speed.ms", "tint.weight").replace("[1, 2, 4]", "[1.0, 2.0, 4.0]"))
    assert [here.shard(f"{index}/2").tried for index in (1, 2)] == [3, 3]
    assert here.collect().best is not None


def test_missing_points_are_named_with_their_shards(here: Machine, toy: SweepToy) -> None:
    here.shard("1/3")
    with pytest.raises(MissingPointsError, match="4 points are missing") as caught:
        here.collect()
    text = str(caught.value)
    assert "shard 2/3: points" in text
    assert "shard 3/3: points" in text
    assert text.count("it has not started") == 2
    assert "shard 1/3" not in text
    assert caught.value.exit_code == 4
    assert not (toy.outputs / "sweeps").exists()
    finished = here.collect(partial=True)
    assert len(record_of(finished).points) == 2
    assert record_of(finished).stopped_because == "4 points of 6 missing: collected with --partial"
    assert "4 points are missing" in here.warnings[0]
    here.shard("2/3")
    here.shard("3/3")
    assert len(record_of(here.collect()).points) == 6  # the partial one is not taken for the whole


def test_nothing_collected_is_an_error_even_if_partial_is_allowed(here: Machine) -> None:
    with pytest.raises(RequestError, match="no shard of this sweep has started"):
        here.collect(partial=True)
    with pytest.raises(MissingPointsError, match="6 points are missing"):
        here.collect(partial=True, shards=2)


@pytest.fixture
def started(toy: SweepToy) -> Iterator[list[ProcessRun]]:
    processes: list[ProcessRun] = []
    yield processes
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.finish(LIMIT_S)


def start(toy: SweepToy, shard: str) -> ProcessRun:
    command = ["run", str(toy.recipe), "--trust", "--outputs", str(toy.outputs), "--shard", shard]
    return ProcessRun(*command, cwd=toy.folder, env={"TOY_LOG": os.environ["TOY_LOG"]})


@pytest.mark.thorough
def test_a_killed_shard_loses_nothing(here: Machine, toy: SweepToy, started: list[ProcessRun]) -> None:
    once = toy.folder / "once"
    text = toy.recipe.read_text().replace("tint: {step: dye}", f"tint: {{step: dye, once: {once}}}")
    text = text.replace("[red, green]", "[red, green]\n    tint.fails: ['', killed]")
    toy.write(text)
    started.append(start(toy, "2/2"))
    assert started[0].finish(LIMIT_S)[0] == -signal.SIGKILL
    here.shard("1/2")  # does not wait for the other
    with pytest.raises(MissingPointsError) as caught:
        here.collect()
    assert "shard 2/2: point" in str(caught.value)
    assert "not finished: 0 of 6 points tried by user" in str(caught.value)
    done = Counter(line.rpartition(" ")[0] for line in toy.log)
    here.shard("2/2")
    again = Counter(line.rpartition(" ")[0] for line in toy.log) - done
    assert (
        sum(count for name, count in again.items() if name.startswith("dye")) <= 2
    )  # the one that killed it, and later ones
    joined = record_of(here.collect())
    assert all(point.outcome == "passed" for point in joined.points)
    assert len(joined.points) == 12


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_shards_killed_at_random_moments_lose_nothing(
    here: Machine, toy: SweepToy, started: list[ProcessRun], seed: int
) -> None:
    dice = random.Random(seed)
    text = toy.recipe.read_text().replace("tint: {step: dye}", "tint: {step: dye, seconds: 0.05}")
    toy.write(text.replace("threads: 1}", "threads: 1, seconds: 0.05}").replace("[red, green]", "[a, b, c, d]"))
    for _ in range(4):
        processes = [start(toy, f"{index}/3") for index in (1, 2, 3)]
        started += processes
        time.sleep(dice.uniform(0.8, 2.5))
        for process in dice.sample(processes, 3):
            process.send_signal(signal.SIGKILL)
            process.finish(LIMIT_S)
    finished = [here.shard(f"{index}/3") for index in (1, 2, 3)]
    assert [shard.tried for shard in finished] == [4, 4, 4]
    joined = record_of(here.collect())
    assert [point.outcome for point in joined.points] == ["passed"] * 12
    finished_twice = [name for name, count in Counter(record.key for record in toy.stored()).items() if count > 1]
    assert not finished_twice
    assert not list((toy.outputs / "store/building").glob("*/*"))


@pytest.mark.thorough
def test_failed_points_are_collected_with_their_errors(here: Machine, toy: SweepToy) -> None:
    text = toy.recipe.read_text().replace("[red, green]", "[red, green]\n    tint.fails: ['', model]")
    toy.write(text)
    for index in (1, 2, 3):
        assert here.shard(f"{index}/3").exit_code == 0
    joined = record_of(here.collect())
    whole, _ = toy.run("sweep.winners=0")
    assert results(joined) == results(whole)
    assert sum(point.reason.startswith("step tint: this model takes no") for point in joined.points) == 6


@pytest.mark.parametrize("blames", [True, False])
def test_failures_of_measurement_sessions_are_collected(here: Machine, toy: SweepToy, blames: bool) -> None:
    text = toy.recipe.read_text().replace("threads: 1}", f"threads: 1, limit: 3, blames: {str(blames).lower()}}}")
    toy.write(text)
    for index in (1, 2):
        here.shard(f"{index}/2")
    log = toy.log
    joined = record_of(here.collect())
    assert toy.log == log
    assert Counter(point.outcome for point in joined.points) == {"passed": 4, "failed": 2}
    assert {point.reason for point in joined.points if point.failed_step} == {"step speed: there are no 4 threads"}


def test_points_that_a_machine_cannot_run_are_collected_with_the_reason(here: Machine, toy: SweepToy) -> None:
    quick = "layer_passes: 0, runs: 1, passes: 1, duration: 0 ms, warmup: 0 ms, stable: 0 %"
    text = toy.recipe.read_text().replace("{step: gauge, threads: 1}", f"{{step: profile, {quick}}}")
    axes = "speed.provider: [cpu, cuda]\n    speed.threads: [1, 2]"
    text = text.replace("tint.colour: [red, green]", axes).replace("    speed.threads: [1, 2, 4]\n", "")
    toy.write(text.replace("speed.ms", "speed.latency.min"))
    here.shard("1/2", "sweep.together=1")
    here.shard("2/2", "sweep.together=1")
    points = record_of(here.collect("sweep.together=1")).points
    assert [point.outcome for point in points] == ["passed", "passed", "failed", "failed"]
    assert points[2].reason.startswith("step speed: ")
    assert "cuda" in points[2].reason
    assert not points[2].steps


def test_constraints_are_judged_when_shards_are_joined(here: Machine, toy: SweepToy) -> None:
    toy.write(toy.recipe.read_text() + "  subject_to: speed.ms <= 7 ms\n")
    for index in (1, 2):
        here.shard(f"{index}/2")
    whole, _ = toy.run("sweep.winners=0")
    assert results(record_of(here.collect())) == results(whole)


def test_shards_exchange_results_through_a_cache(toy: SweepToy, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    for index in (1, 2, 3):
        Machine(toy, tmp_path / f"machine{index}", cache, push=True).shard(f"{index}/3")
    log = toy.log
    collector = Machine(toy, tmp_path / "collector", cache)
    assert len(record_of(collector.collect()).points) == 6
    assert toy.log == log
    assert worked(toy)["dye"] == 3  # the shared step was computed by the first shard only


def test_a_shard_whose_results_stayed_on_its_disk_is_named(toy: SweepToy, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    Machine(toy, tmp_path / "one", cache, push=True).shard("1/2")
    Machine(toy, tmp_path / "two", cache, push=True).shard("2/2")
    for path in (tmp_path / "cache/records").rglob("*.json"):
        path.unlink()
    with pytest.raises(MissingPointsError, match="share --outputs, or a cache with --push"):
        Machine(toy, tmp_path / "collector", cache).collect()


def test_measurements_of_other_machines_are_found_and_never_compared_across_kinds(
    here: Machine, toy: SweepToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.shard("1/2")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(reuse, "fingerprint_machine", lambda: "Linux x86_64, another CPU x 8, no GPU")
        here.shard("2/2")
    with pytest.raises(RequestError, match=r"measured on 2 kinds of machines .*another CPU"):
        here.collect()
    finished = here.collect(measure=True)
    assert record_of(finished).sittings[-1].again
    assert here.collect().nothing_to_do  # the winners that were measured here are found


def test_all_points_of_another_machine_are_collected_here(
    here: Machine, toy: SweepToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(reuse, "fingerprint_machine", lambda: "Linux x86_64, another CPU x 8, no GPU")
        for index in (1, 2):
            here.shard(f"{index}/2")
    log = toy.log
    assert {session.machine for session in record_of(here.collect()).sittings} == {
        "Linux x86_64, another CPU x 8, no GPU"
    }
    assert toy.log == log


def test_other_settings_are_another_sweep(here: Machine) -> None:
    here.shard("1/1", "steps.speed.offset=1.0")
    with pytest.raises(RequestError, match="no shard of this sweep has started"):
        here.collect()
    assert here.collect("steps.speed.offset=1.0").passed


def test_a_choice_between_numbers_of_shards_is_asked_for(here: Machine) -> None:
    here.shard("1/1")
    here.shard("1/2")
    with pytest.raises(RequestError, match=r"started in 1 and 2 shards\. Choose with --shards 2"):
        here.collect()
    assert here.collect(shards=1).passed


def test_gc_keeps_the_results_of_shards_until_they_are_old(
    here: Machine, toy: SweepToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.shard("1/2")
    here.shard("2/2")
    api.gc(outputs=toy.outputs)
    assert here.collect().passed
    api.gc(outputs=toy.outputs, keep=0)
    assert here.collect().passed
    monkeypatch.setattr("ndld_flow.runner.collect_garbage.SHARDS_KEPT_S", 0.0)
    api.gc(outputs=toy.outputs, keep=0)
    assert not list((toy.outputs / "shards").rglob("*.json"))


def test_damaged_records_of_shards_count_as_missing(here: Machine, toy: SweepToy) -> None:
    here.shard("1/1")
    (path,) = (toy.outputs / "shards").rglob("*.json")
    path.write_text("{")
    with pytest.raises(RequestError, match="no shard"):
        here.collect()
    assert here.collect(shards=1).passed  # computed on this machine: its keys are known


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("method: tpe\n  points: 4", "with `method: tpe`, each point depends"),
        ("method: hill_climb", "with `method: hill_climb`, each point depends"),
        ("saturation: {gain: 0.1}", "with `saturation`, each point depends"),
    ],
)
def test_searches_that_learn_are_refused(here: Machine, toy: SweepToy, sweep: str, message: str) -> None:
    toy.write(f"{toy.recipe.read_text()}  {sweep}\n")
    with pytest.raises(RequestError, match=message):
        here.shard("1/2")
    with pytest.raises(RequestError, match=message):
        here.collect()


def test_requests_that_make_no_sense_are_refused(here: Machine, toy: SweepToy, tmp_path: Path) -> None:
    for text in ("0/4", "5/4", "4", "1/0", "a/b", "1/99999", "-1/4", ""):
        with pytest.raises(RequestError, match="--shard"):
            parse_shard(text)
    with pytest.raises(RequestError, match="numbers from 0, as in Kubernetes: 1/4"):
        parse_shard("0/4")
    with pytest.raises(RequestError, match="runs once, so there are no points"):
        here.shard("1/2", "~sweep")
    with pytest.raises(RequestError, match="has no `sweep:`"):
        here.collect("~sweep")
    with pytest.raises(RequestError, match="choose one of them"):
        api.run_shard(toy.recipe, "1/2", outputs=toy.outputs, trust=True, place=Placement(ray="local"))
    with pytest.raises(RequestError, match="collect --apply"):
        api.run_shard(toy.recipe, "1/2", outputs=toy.outputs, trust=True, apply=tmp_path / "best.yaml")


def test_a_shard_out_of_time_says_so(here: Machine, toy: SweepToy) -> None:
    finished = here.shard("1/1", "sweep.time=1 ms", "sweep.together=2")
    assert (finished.passed, finished.exit_code, finished.tried) == (False, 4, 2)
    with pytest.raises(MissingPointsError, match=r"the time limit of .* was reached"):
        here.collect("sweep.together=2")  # the time limit is no part of the sweep
