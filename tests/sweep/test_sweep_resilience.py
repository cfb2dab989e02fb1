"""Sweeps that are killed, interrupted, too slow or concurrent: no result is lost or computed twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from ndld_flow.base.errors import OutputsError
from ndld_flow.execution.request import Placement
from ndld_flow.execution.workers import WorkerBugError
from ndld_flow.machine.host import fingerprint_machine
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.run_record import StepRecord
from ndld_flow.report.sweep.outcome import session_table
from tests.support.message_files import CheckMessage
from tests.support.process_runs import ProcessRun
from tests.support.sweep_toys import SweepToy, make_sweep_toy, table

LIMIT_S = 120
KILLED = "\n    tint.fails: ['', killed]"


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> SweepToy:
    (in_folder / ".log").mkdir()  # a hidden folder is in no key
    monkeypatch.setenv("TOY_LOG", str(in_folder / ".log" / "log.txt"))
    return make_sweep_toy(in_folder)


@pytest.fixture
def started(toy: SweepToy) -> Iterator[list[ProcessRun]]:
    processes: list[ProcessRun] = []
    yield processes
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.finish(LIMIT_S)


def start(toy: SweepToy, *arguments: str) -> ProcessRun:
    command = ["run", str(toy.recipe), "--trust", "--outputs", str(toy.outputs), *arguments]
    return ProcessRun(*command, cwd=toy.folder, env={"TOY_LOG": os.environ["TOY_LOG"]})


def kill_once(toy: SweepToy) -> SweepToy:
    """A sweep of which one step kills the process that does it, the first time."""
    text = toy.recipe.read_text().replace("tint: {step: dye}", f"tint: {{step: dye, once: {toy.folder / 'once'}}}")
    return toy.write(text.replace("[red, green]", f"[red, green]{KILLED}"))


def undisturbed(toy: SweepToy) -> list[tuple[object, ...]]:
    """The table of the same sweep, done from the beginning where nothing is killed."""
    toy.outputs.rename(toy.folder / "aside")
    record, _ = toy.run()
    return table(record)


def worked(toy: SweepToy) -> Counter[str]:
    """Return the number of computations of each step."""
    return Counter(line.split()[1] for line in toy.log)


def test_a_sweep_resumes_where_its_killed_driver_stopped(toy: SweepToy, started: list[ProcessRun]) -> None:
    kill_once(toy)
    started.append(start(toy))
    assert started[0].finish(LIMIT_S)[0] == -signal.SIGKILL
    assert not (toy.outputs / "sweeps").exists()
    record, _ = toy.run()
    repeated = {name: count for name, count in worked(toy).items() if count > 1}
    assert set(repeated) == {"tint#4"}  # only the one that killed it
    assert table(record) == undisturbed(toy)


@pytest.mark.thorough
def test_a_worker_that_was_killed_is_replaced(toy: SweepToy) -> None:
    kill_once(toy)
    record, _ = toy.run(place=Placement(jobs=2))
    assert all(point.outcome == "passed" for point in record.points)
    assert worked(toy)["tint#4"] == 2
    assert table(record) == undisturbed(toy)


@pytest.mark.thorough
def test_ctrl_c_keeps_finished_results(toy: SweepToy, started: list[ProcessRun]) -> None:
    text = toy.recipe.read_text().replace("tint: {step: dye}", "tint: {step: dye, seconds: 0.3}")
    toy.write(text.replace("[red, green]", "[a, b, c, d, e, f, g, h]"))
    started.append(start(toy, "--jobs", "2", "sweep.together=24"))
    deadline = time.monotonic() + 60
    while len(list((toy.outputs / "store" / "records").glob("*/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    started[0].send_signal(signal.SIGINT)
    code, _, said = started[0].finish(LIMIT_S)
    assert code == 130, said
    assert "run again to continue" in said
    kept = {record.key for record in toy.stored()}
    assert len(kept) >= 3
    assert not list((toy.outputs / "store" / "building").glob("*/*"))


@pytest.mark.thorough
def test_workers_share_the_work(toy: SweepToy) -> None:
    text = toy.recipe.read_text().replace("tint: {step: dye}", "tint: {step: dye, seconds: 0.2}")
    toy.write(text.replace("[red, green]", "[a, b, c, d, e, f]"))
    record, _ = toy.run(place=Placement(jobs=2))
    assert len({line.split()[2] for line in toy.log if line.startswith("dye tint")}) == 2
    assert record.steps_done == 1 + 6 + 18 + 6


@pytest.mark.thorough
def test_a_step_that_takes_too_long_fails_alone(toy: SweepToy) -> None:
    text = toy.recipe.read_text().replace("[red, green]", "[red, green]\n    tint.seconds: [0.0, 600.0]")
    record, _ = toy.write(text).run("sweep.timeout={tint: 8 s}")
    slow = [point for point in record.points if point.values["tint.seconds"] == 600.0]
    assert {point.outcome for point in slow} == {"failed"}
    assert "took longer than 8.0 s" in slow[0].reason
    assert sum(point.outcome == "passed" for point in record.points) == 6


def test_a_bug_of_a_step_is_not_a_failed_point(toy: SweepToy) -> None:
    text = toy.recipe.read_text().replace("[red, green]", "[red, green]\n    tint.fails: ['', bug]")
    with pytest.raises(ZeroDivisionError):
        toy.write(text).run()
    with pytest.raises(WorkerBugError):
        toy.run(place=Placement(jobs=2))


@pytest.mark.thorough
def test_two_sweeps_at_once_never_measure_together(toy: SweepToy, started: list[ProcessRun]) -> None:
    text = toy.recipe.read_text().replace("threads: 1}", "threads: 1, seconds: 0.05}")
    toy.write(text)
    started += [start(toy, "sweep.together=2"), start(toy, "sweep.together=2", "steps.speed.offset=1.0")]
    for process in started:
        code, _, said = process.finish(LIMIT_S)
        assert code == 0, said
    spans = sorted({(record.started_at, record.ended_at) for record in toy.stored() if record.parts.step == "gauge"})
    assert len(spans) == 2 * (3 + 1)
    assert not _overlapping(spans)
    sweeps = [read_sweep_record(folder) for folder in (toy.outputs / "sweeps" / "toy").iterdir() if folder.is_dir()]
    assert {len(sweep.points) for sweep in sweeps} == {6}
    # the four steps that both need were done once
    assert sum(count for name, count in worked(toy).items() if name.startswith("base#")) == 1


def _overlapping(spans: Sequence[tuple[object, object]]) -> list[tuple[object, object]]:
    return [(a, b) for a, b in combinations(spans, 2) if a[0] < b[1] and b[0] < a[1]]  # type: ignore[operator]


def test_records_hold_the_time_of_a_session(toy: SweepToy) -> None:
    record, _ = toy.run()
    by_key: dict[str, StepRecord] = {item.key: item for item in toy.stored()}
    first = record.sessions[0]
    measured = [by_key[point.steps[-1].key] for point in record.points]
    assert {(item.started_at, item.ended_at) for item in measured} == {(first.started_at, first.ended_at)}
    assert first.device == "scales"


@pytest.mark.thorough
def test_a_session_on_another_machine_names_it(toy: SweepToy, monkeypatch: pytest.MonkeyPatch) -> None:
    record, _ = toy.run()
    assert {session.machine for session in record.sessions} == {""}
    toy.outputs.rename(toy.folder / "aside")
    monkeypatch.setattr("ndld_flow.sweep.try_points.fingerprint_machine", lambda: "the driver's")
    record, _ = toy.run()
    assert {session.machine for session in record.sessions} == {fingerprint_machine()}
    assert fingerprint_machine() in str(session_table(record).rows[0][3])


def test_a_full_disk_ends_the_sweep_and_is_not_a_failed_point(toy: SweepToy, check_message: CheckMessage) -> None:
    dye = toy.folder / "steps" / "dye.py"
    dye.write_text(dye.read_text().replace("import onnx\n", "raise OSError(28, 'No space left on device')\n"))
    with pytest.raises(OutputsError) as caught:
        toy.run()
    check_message(caught.value)
    with pytest.raises(OutputsError) as caught:
        toy.run(place=Placement(jobs=2))
    check_message(caught.value)
