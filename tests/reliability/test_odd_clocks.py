"""Clocks that jump, are decades off, or differ from those of the files: the newest run stays the newest."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runs.list_runs import list_runs
from ndld_flow.runs.outputs import Outputs
from tests.reliability.attacked_process import AttackedProcess
from tests.reliability.shim import compile_shim
from tests.support.tally import Tally
from tests.support.toys import make_toy

HOUR_S = 3600
YEAR_S = 365 * 24 * HOUR_S
JUMPS_S = (2 * HOUR_S, -10 * YEAR_S)
CENTURIES = (1970, 1979, 2039, 2106, 2250)
"""Python itself ends in 2262, as 64 bits of nanoseconds do."""


class Clock:
    """The system clock of a process, which may be set while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, ahead_s: int) -> None:
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("q", ahead_s))

    def set_year(self, year: int) -> None:
        self.set(int((datetime(year, 6, 1, tzinfo=UTC) - datetime.now(UTC)).total_seconds()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(Path(__file__).with_name("odd_surroundings.c"), tmp_path_factory.mktemp("shim"))


@pytest.fixture
def clock(in_folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    make_toy(in_folder)
    clock = Clock(in_folder / "clock")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("ODD_CLOCK", str(clock.path))
    return clock


@pytest.fixture
def process() -> Iterator[AttackedProcess]:
    process = AttackedProcess(memory_bytes=2**36)
    yield process
    process.close()


def command(process: AttackedProcess, folder: Path, *arguments: str) -> None:
    ending = process.do(arguments, folder)
    assert ending.code == 0, (arguments, ending)


def run(process: AttackedProcess, folder: Path, word: str, *overrides: str) -> str:
    """Run the recipe with another word; the new run, which is now the newest however one asks."""
    outputs = Outputs(folder / "outputs")
    before = set(outputs.folders())
    command(process, folder, "run", "toy.yaml", "--trust", f"steps.second.word={word}", *overrides)
    (result,) = set(outputs.folders()) - before
    assert outputs.latest("toy") == result.resolve()
    assert list(outputs.folders())[-1] == result
    assert outputs.find("latest").resolve() == result.resolve()
    assert list_runs(outputs)[0].run == f"toy/{result.name}"
    record = read_run_record(result)
    assert 0 <= record.wall_s < 600
    for step in record.steps:
        assert step.record is not None
        assert 0 <= (step.record.ended_at - step.record.started_at).total_seconds() < 600
    return result.name


@pytest.mark.thorough
def test_a_run_after_the_clock_was_set_back_is_the_newest_and_kept(
    in_folder: Path, clock: Clock, process: AttackedProcess, tally: Callable[[str], Tally]
) -> None:
    count = tally("clock jumps")
    run(process, in_folder, "a")
    for index, jump_s in enumerate(JUMPS_S):
        clock.set(jump_s)
        newest = run(process, in_folder, f"b{index}")
        count.survived += 1
    clock.set(0)
    command(process, in_folder, "gc", "--keep", "1")
    assert [folder.name for folder in Outputs(in_folder / "outputs").folders()] == [newest]


@pytest.mark.slow
@pytest.mark.parametrize("year", CENTURIES)
def test_clocks_in_other_centuries_are_handled(
    in_folder: Path, clock: Clock, process: AttackedProcess, tally: Callable[[str], Tally], year: int
) -> None:
    clock.set_year(year)
    run(process, in_folder, "a")
    run(process, in_folder, "b")
    for arguments in (("runs",), ("report", "latest"), ("verify",), ("gc", "--keep", "1")):
        command(process, in_folder, *arguments)
    tally("clock jumps").survived += 1


@pytest.mark.slow
def test_other_time_zones_are_handled(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[[str], Tally]
) -> None:
    """Fourteen hours ahead, behind with summer time, and three quarters of an hour off."""
    make_toy(in_folder)
    for zone in ("Pacific/Kiritimati", "America/New_York", "Asia/Kathmandu"):
        monkeypatch.setenv("TZ", zone)
        with contextlib.closing(AttackedProcess(memory_bytes=2**36)) as process:
            run(process, in_folder, zone[:3])
        tally("clock jumps").survived += 1


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [-5 * HOUR_S, 5 * HOUR_S, -20 * YEAR_S, 20 * YEAR_S])
def test_a_clock_jump_during_a_run_is_handled(
    in_folder: Path, clock: Clock, process: AttackedProcess, tally: Callable[[str], Tally], jump_s: int
) -> None:
    run(process, in_folder, "a")

    def jump() -> None:
        time.sleep(0.5)
        clock.set(jump_s)

    jumping = threading.Thread(target=jump)
    jumping.start()
    run(process, in_folder, "b", "steps.second.seconds=1.0")
    jumping.join()
    run(process, in_folder, "c")
    tally("clock jumps").survived += 1
