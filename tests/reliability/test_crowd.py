"""Many processes on one store: each step is computed once, nothing in use is removed, and none waits forever."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.locks import NO_LOCKS
from ndld_flow.store.store import Store
from tests.support.process_runs import ProcessRun
from tests.support.tally import Tally
from tests.support.toys import make_toy

LIMIT_S = 240
KEEPERS = (("gc",), ("gc", "--keep", "1"), ("verify",), ("runs",), ("plan", "one.yaml", "--trust"), ("report", "one"))

STEP = '''
"""Copies a model, slowly, and tells a file of it."""

import os
import time
from pathlib import Path

from ndld_flow.store.kinds import Onnx
from ndld_flow.records.measurement import Metric
from ndld_flow.step import Context, Result, Step


class Slow(Step[Onnx, Onnx]):
    """Copy a model."""

    word: str = "x"
    """A setting that changes the key."""
    seconds: float = 0.05
    """Duration of the step."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        time.sleep(self.seconds)
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        line = f"{self.word} {source.digest[:8]}\\n".encode()
        file = os.open(os.environ["TOY_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)
        os.close(file)
        return Result(f"copied {self.word}", metrics={"letters": Metric(value=float(len(self.word)))})
'''

TURNS = '''
"""Steps that take turns: they hold several keys."""

import time
from pathlib import Path

from ndld_flow.store.kinds import Onnx
from ndld_flow.step import Context, Result, Step, Turn


class Turns(Step[Onnx, Onnx]):
    """Copy models in turns."""

    takes_turns = True
    word: str = "x"
    """A setting that changes the key."""

    @property
    def device(self):
        return "scales"

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        return self.run_together([Turn(self, source, out, context)])[0]

    @classmethod
    def run_together(cls, turns):
        time.sleep(0.05)
        for turn in turns:
            (turn.out / Onnx.main).write_bytes(turn.source.path.read_bytes())
        return [Result(f"copied {turn.step.word}") for turn in turns]
'''

HEAD = "model: model.onnx\nsteps_from: [slow.py, turns.py]\nsteps:\n"
RECIPES = {
    "one": "  a: {step: slow, word: a}\n  b: {step: slow, word: b}\n  c: {step: slow, from: a, word: c}\n",
    "two": "  c: {step: slow, word: c}\n  b: {step: slow, from: source, word: b}\n  a: {step: slow, word: a}\n",
    "three": (
        "  a: {step: slow, word: a}\n  s: {step: turns, word: s}\n  t: {step: turns, from: a, word: t}\n"
        "  u: {step: turns, from: source, word: u}\n"
    ),
    "four": (
        "  a: {step: slow, word: a}\n  u: {step: turns, from: source, word: u}\n  t: {step: turns, from: a, word: t}\n"
        "  s: {step: turns, from: a, word: s}\n"
    ),
    "many": (
        "  a: {step: slow, word: a}\n  b: {step: slow, word: b}\nsweep:\n  over: {b.word: [b, d, e]}\n"
        "  maximize: b.letters\n"
    ),
}


@dataclass
class Crowd:
    """A folder with recipes that have steps in common, and processes that run them."""

    folder: Path
    rounds: int
    seed: int = 1
    running: list[tuple[tuple[str, ...], ProcessRun]] = field(default_factory=list)

    def on_a_file_system(self, lacks: str) -> Crowd:
        """The same where it was found that the store's file system has no locks."""
        if lacks == "locks":
            folder = self.outputs.store.locks.folder
            folder.mkdir(parents=True)
            (folder / NO_LOCKS).touch()
        return self

    @property
    def outputs(self) -> Outputs:
        return Outputs(self.folder / "outputs")

    def start(self, *arguments: str) -> None:
        environment = {"TOY_LOG": str(self.folder / ".log" / "log.txt")}
        self.running.append((arguments, ProcessRun(*arguments, cwd=self.folder, env=environment)))

    def finish(self) -> list[tuple[tuple[str, ...], int, str]]:
        """Wait for all processes; return their output and exit codes."""
        ended = []
        for arguments, process in self.running:
            code, out, result = process.finish(LIMIT_S)
            ended.append((arguments, code, out + result))
        self.running.clear()
        return ended

    def worked(self) -> Counter[str]:
        return Counter((self.folder / ".log" / "log.txt").read_text().splitlines())


@pytest.fixture
def make_crowd(in_folder: Path) -> Iterator[Callable[[int], Crowd]]:
    result: list[Crowd] = []

    def make(rounds: int = 1) -> Crowd:
        make_toy(in_folder)
        (in_folder / ".log").mkdir(exist_ok=True)  # a hidden folder is in no key
        (in_folder / "slow.py").write_text(STEP)
        (in_folder / "turns.py").write_text(TURNS)
        for name, steps in RECIPES.items():
            (in_folder / f"{name}.yaml").write_text(f"name: {name}\n{HEAD}{steps}")
        result.append(Crowd(in_folder, rounds))
        return result[-1]

    yield make
    for crowd in result:
        for _, process in crowd.running:
            process.send_signal(signal.SIGKILL)


def run_command(recipe: str, *overrides: str) -> tuple[str, ...]:
    jobs = ("--jobs", "2") if recipe == "many" else ()
    return ("run", f"{recipe}.yaml", "--trust", *jobs, *overrides)


def assert_all_there(outputs: Outputs) -> None:
    """Objects of finished runs are in the store, unchanged, and their folders are complete."""
    store = Store(outputs.root / "store")
    for folder in outputs.folders():
        record = read_run_record(folder)
        if record.outcome == "running":  # its process was killed
            continue
        for step in record.steps:
            assert step.record is not None
            assert store.is_intact(step.record.artifact), (folder, step.name)
            assert (folder / step.name / "model.onnx").is_file()
        assert (folder / "report.html").is_file()
    assert not list((store.root / "damaged").glob("*"))


def assert_ended_well(ended: Sequence[tuple[tuple[str, ...], int, str]], runs: Tally, gc: Tally) -> None:
    for arguments, code, item in ended:
        if arguments[0] == "gc":
            assert code == 0, (arguments, code, item)
            gc.survived += 1
        elif arguments[0] == "report":  # of what a gc has just removed
            assert code in (0, 2), (arguments, code, item)
            assert "Traceback" not in item
        else:
            assert code == 0, (arguments, code, item)
            assert "damaged" not in item.replace("0 damaged", ""), (arguments, item)
            runs.survived += arguments[0] == "run"


with_and_without_locks = pytest.mark.parametrize("lacks", ["", "locks"])


@pytest.mark.parametrize(
    ("times", "lacks"),
    [
        pytest.param(1, "", marks=pytest.mark.thorough),
        *(pytest.param(3, lacks, marks=pytest.mark.slow) for lacks in ("", "locks")),
    ],
)
def test_concurrent_processes_run_each_step_once(
    make_crowd: Callable[[int], Crowd], tally: Callable[[str], Tally], times: int, lacks: str
) -> None:
    crowd = make_crowd(1).on_a_file_system(lacks)
    for name in [*[*RECIPES] * times, "one"]:
        crowd.start(*run_command(name))
    assert_ended_well(crowd.finish(), tally("sixteen processes on one store"), Tally(""))
    assert {line: count for line, count in crowd.worked().items() if count > 1} == {}
    assert_all_there(crowd.outputs)


@pytest.mark.slow
def test_sixteen_processes_and_gc_run_together(
    make_crowd: Callable[[int], Crowd], tally: Callable[[str], Tally]
) -> None:
    """Runs together with repeated gc, verify, plan and report."""
    runs, gc = tally("sixteen processes on one store"), tally("gc beside runs")
    crowd = make_crowd(4)
    chance = random.Random(crowd.seed)
    for round_ in range(crowd.rounds):
        for index in range(16):
            crowd.start(*run_command(chance.choice(list(RECIPES)), f"steps.a.word=a{round_}{chance.randrange(2)}"))
            if index % 2:
                crowd.start(*chance.choice(KEEPERS[: 6 if round_ else 5]))
        assert_ended_well(crowd.finish(), runs, gc)
        assert_all_there(crowd.outputs)
    assert not list((crowd.outputs.root / "store" / "building").glob("*"))


@pytest.mark.slow
@with_and_without_locks
def test_sixteen_processes_finish_although_some_are_killed(
    make_crowd: Callable[[int], Crowd], tally: Callable[[str], Tally], lacks: str
) -> None:
    """Another process computes their steps at once, and none computes them again."""
    killed, runs = tally("holder of a lock killed"), tally("sixteen processes on one store")
    crowd = make_crowd(2).on_a_file_system(lacks)
    chance = random.Random(crowd.seed)
    for round_ in range(crowd.rounds):
        for name in [*RECIPES] * 3 + ["one"]:
            crowd.start(*run_command(name, f"steps.a.word=k{round_}", "steps.a.seconds=0.3"))
        victims = chance.sample(range(16), 5)
        for victim in victims:
            time.sleep(chance.random() * 0.4)
            crowd.running[victim][1].send_signal(signal.SIGKILL)
        ended = crowd.finish()
        for index, (arguments, code, each) in enumerate(ended):
            assert code == 0 or (index in victims and code == -signal.SIGKILL), (crowd.seed, arguments, code, each)
        killed.survived += len(victims)
        runs.survived += 16 - len(victims)
        assert_all_there(crowd.outputs)
    crowd.start(*run_command("one"))
    assert_ended_well(crowd.finish(), runs, Tally(""))
    assert not list((crowd.outputs.root / "store" / "building").glob("*"))


@pytest.mark.thorough
def test_two_runs_of_one_second_have_two_folders_and_one_is_latest(make_crowd: Callable[[int], Crowd]) -> None:
    crowd = make_crowd(1)
    for word in "xy":
        crowd.start(*run_command("one", f"steps.b.word={word}"))
    ended = crowd.finish()
    assert [code for _, code, _ in ended] == [0, 0]
    folders = list(crowd.outputs.folders())
    assert len(folders) == 2
    assert crowd.outputs.latest("one") == folders[-1].resolve()
