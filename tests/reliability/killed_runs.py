"""Runs as processes that are killed, and the invariants after the next run."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from uuid import uuid4

from ndld_flow.records.run_folder import read_run_record
from tests.support.command_line import ndld_flow
from tests.support.process_runs import ProcessRun
from tests.support.worker_toys import processes_with

LIMIT_S = 120.0
_ORPHANS_END_S = 30.0


@dataclass
class Arena:
    """A folder with a recipe that is run as a process, killed, and run again."""

    folder: Path
    recipe: str
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: f"arena-{uuid4().hex}")
    """In the environment of whatever is started."""
    outputs: str = "outputs"

    def start(self) -> ProcessRun:
        command = ["run", self.recipe, "--trust", "--outputs", self.outputs, *self.arguments]
        return ProcessRun(*command, cwd=self.folder, env={"ARENA": self.mark, **self.env})

    def measure(self) -> float:
        """Return the seconds of an undisturbed run; its results are in `clean`."""
        ProcessRun("--version", cwd=self.folder, env={}).finish(LIMIT_S)  # the first one starts the server of processes
        self.outputs, begun = "clean", time.perf_counter()
        code, _, result = self.start().finish(LIMIT_S)
        assert code == 0, result
        return time.perf_counter() - begun

    def kill(self, after_s: float, which: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
        """Start a run and kill the tool's own process after a delay; return its exit code and output.

        What it had started must end by itself.
        """
        process = self.start()
        time.sleep(after_s)
        process.send_signal(which)
        code, _, result = process.finish(LIMIT_S)
        self.await_orphans()
        return code, result

    def await_orphans(self) -> None:
        """Wait until nothing of a run lives any more."""
        end = time.monotonic() + _ORPHANS_END_S
        while left := processes_with(self.mark):
            assert time.monotonic() < end, f"processes outlive their run: {left}"
            time.sleep(0.02)

    def started(self) -> list[int]:
        """Processes that a run has started and that live, but for the tool's own, which was not started by a name."""
        return processes_with(self.mark)

    def finish(self) -> None:
        """Run once more, undisturbed: it finishes, and nothing half done or left behind is seen anywhere."""
        process = self.start()
        code, result, err = process.finish(LIMIT_S)
        assert code == 0, result + err
        self.await_orphans()
        store = self.folder / self.outputs / "store"
        assert not list((store / "building").iterdir())
        for verb in (("runs",), ("verify",), ("gc", "--dry-run")):
            done = ndld_flow(*verb, "--outputs", self.outputs, cwd=self.folder)
            assert done.returncode == 0, (verb, done.stdout + done.stderr)
            assert "damaged" not in done.stdout
        strays = [path for path in (self.folder / self.outputs).glob("*s/*/.*") if path.is_dir()]
        assert not strays


def digests(folder: Path) -> dict[str, str]:
    """Step -> digest of what it made, of the newest run in an outputs folder."""
    run = read_run_record(next(iter(folder.glob("runs/*/latest"))))
    return {step.name: step.record.artifact.digest for step in run.steps if step.record is not None}


def attack(arena: Arena, rounds: int, duration_s: float, seed: int, after: Callable[[], None]) -> int:
    """Kill runs at moments drawn from all of their duration, two to four in a row, each time in an empty folder; then
    finish. How many were killed before they ended.
    """
    moments, killed = random.Random(seed), 0
    for number in range(rounds):
        arena.outputs = f"attacked-{number}"
        for _ in range(moments.choice((2, 3, 4))):
            moment = moments.uniform(0.0, duration_s)
            code, result = arena.kill(moment)
            assert code in (-signal.SIGKILL, 0), f"seed {seed}, round {number}, killed after {moment:.3f} s: {result}"
            killed += code != 0
        try:
            arena.finish()
            after()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, round {number}, last kill after {moment:.3f} s: {error}") from error
    return killed


def die_at(place: str, when: str, arguments: Sequence[str], folder: Path) -> int | None:
    """Run the tool in a process that kills itself `before` or `after` it first calls `place`, `module:Class.function`;
    its exit code.
    """
    context = multiprocessing.get_context("forkserver")
    process: ForkServerProcess = context.Process(target=_run_until, args=(place, when, tuple(arguments), folder))
    process.start()
    process.join(LIMIT_S)
    return process.exitcode


def _run_until(place: str, when: str, arguments: tuple[str, ...], folder: Path) -> None:
    import functools
    import importlib

    from tests.support.command_line import ndld_flow

    module, _, dotted = place.partition(":")
    *outer, name = dotted.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    real = getattr(owner, name)

    def dies(*given: object, **named: object) -> object:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    setattr(owner, name, dies)
    os.environ["NDLD_FLOW_IN_PROCESS"] = "1"
    ndld_flow(*arguments, cwd=folder)


def write_recipe(folder: Path, recipe: object) -> str:
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return "recipe.yaml"
