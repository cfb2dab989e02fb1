"""After any process is killed, the next run finishes and delivers the result of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.recipe.step_types import StepType
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.step import Reuse
from tests.reliability.killed_runs import LIMIT_S, Arena, attack, die_at, digests, write_recipe
from tests.steps.test_steps_contract import TYPES, recipe_for, required
from tests.support.models import make_cnn
from tests.support.sweep_toys import make_sweep_toy, table
from tests.support.tally import Tally
from tests.support.toys import RECIPE, make_toy

Tallies = Callable[[str], Tally]

SEED = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "edit": {"operations": [{"set_opset": {"to": 21}}]},
    "run_tool": {
        "command": [sys.executable, "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])", "$Model", "$Output"]
    },
    "profile": {"budget": 300.0, "runs": 2, "duration": 50.0, "layer_passes": 2},
}
"""Of steps that have settings without a default, or take long."""
ALONE = {"NDLD_FLOW_IN_PROCESS": "1"}
WITH_A_WORKER = {"NDLD_FLOW_IN_PROCESS": "0"}
SLOW_TOY = RECIPE.replace("word: a", "word: a, seconds: 0.1").replace("word: b", "word: b, seconds: 0.1")


def recipe_of(step_type: StepType) -> dict[str, Any]:
    recipe = recipe_for(step_type)
    for step in recipe["steps"].values():
        step.update(SETTINGS.get(step["step"], {}))
    return recipe


def make_arena(step_type: StepType, folder: Path) -> Arena:
    if required(step_type) and step_type.name not in SETTINGS:
        pytest.skip(f"has no default for {required(step_type)}")
    make_cnn(folder / "model.onnx")
    return Arena(folder, write_recipe(folder, recipe_of(step_type)))


def attack_counted(arena: Arena, rounds: int, count: Tally, check: Callable[[], None], seed: int = SEED) -> None:
    """Count each run that was killed; where something does not hold afterwards, one is lost."""
    try:
        count.survived += attack(arena, rounds, arena.measure(), seed, check)
    except BaseException:
        count.lost += 1
        raise


def same_as_clean(arena: Arena) -> Callable[[], None]:
    def check() -> None:
        assert digests(arena.folder / arena.outputs) == digests(arena.folder / "clean")

    return check


@pytest.mark.thorough
def test_a_run_killed_at_any_moment_is_resumed(in_folder: Path, tally: Tallies) -> None:
    toy = make_toy(in_folder, SLOW_TOY)
    arena = Arena(in_folder, toy.recipe.name, env=ALONE)
    attack_counted(arena, 1, tally("kill -9 of a run"), same_as_clean(arena))


@pytest.mark.slow
@pytest.mark.parametrize("found", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("env", [ALONE, WITH_A_WORKER], ids=["alone", "with a worker"])
def test_every_step_killed_at_any_moment_is_resumed(
    found: StepType, env: dict[str, str], in_folder: Path, tally: Tallies
) -> None:
    arena = make_arena(found, in_folder)
    arena.env = env
    pure = found.cls.reuse is Reuse.ANYWHERE
    rounds = 5 if env is ALONE else 2
    attack_counted(arena, rounds, tally("kill -9 of a run"), same_as_clean(arena) if pure else lambda: None)


SWEEP_SECONDS = ("tint: {step: dye}", "tint: {step: dye, seconds: 0.05}")


def sweep_arena(folder: Path, *arguments: str) -> Arena:
    toy = make_sweep_toy(folder)
    toy.write(toy.recipe.read_text().replace(*SWEEP_SECONDS))
    return Arena(folder, toy.recipe.name, arguments, env=ALONE)


def same_table(arena: Arena) -> Callable[[], None]:
    def check() -> None:
        attacked, clean = (
            read_sweep_record(arena.folder / outputs / "sweeps" / "toy" / "latest")
            for outputs in (arena.outputs, "clean")
        )
        assert table(attacked) == table(clean)

    return check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "rounds"),
    [
        ((), 5),
        (("--jobs", "2"), 4),
    ],
)
def test_sweeps_killed_at_any_moment_are_resumed(
    arguments: tuple[str, ...], rounds: int, in_folder: Path, tally: Tallies
) -> None:
    arena = sweep_arena(in_folder, *arguments)
    attack_counted(arena, rounds, tally("kill -9 of a sweep"), same_table(arena), SEED + rounds)


@pytest.mark.slow
def test_a_sweep_survives_a_killed_child_process(in_folder: Path, tally: Tallies) -> None:
    """One of a worker, its watchdog and their children dies; the sweep computes the step again."""
    arena = sweep_arena(in_folder, "--jobs", "2")
    limit_s = arena.measure()
    count, moments = tally("kill -9 of a worker"), random.Random(SEED)
    for number in range(8):
        arena.outputs = f"attacked-{number}"
        process = arena.start()
        time.sleep(moments.uniform(0.2, limit_s))
        victims = arena.started()
        if victims:
            try:
                os.kill(moments.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                victims = []
        code, _, result = process.finish(LIMIT_S)
        count.lost += 1
        assert code == 0, f"seed {SEED}, round {number}: {result}"
        arena.finish()
        same_table(arena)()
        count.lost -= 1
        count.survived += bool(victims)


@pytest.mark.slow
def test_a_measuring_run_survives_a_killed_child_process(in_folder: Path, tally: Tallies) -> None:
    """The worker's own children measure: the run may end with a message, and the next one is whole."""
    arena = make_arena(TYPES["profile"], in_folder)
    arena.env = WITH_A_WORKER
    limit_s = arena.measure()
    count, moments = tally("kill -9 of a worker"), random.Random(SEED)
    for number in range(6):
        arena.outputs = f"attacked-{number}"
        process = arena.start()
        time.sleep(moments.uniform(0.1, limit_s))
        victims = arena.started()
        for victim in victims[-1:] if number % 2 else victims[:1]:
            os.kill(victim, signal.SIGKILL)
        code, _, result = process.finish(LIMIT_S)
        count.lost += 1
        assert code in (0, 5), f"seed {SEED}, round {number}: {result}"
        assert "Traceback" not in result
        arena.finish()
        count.lost -= 1
        count.survived += code == 0
        count.refused += code == 5


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM], ids=lambda which: which.name)
@pytest.mark.parametrize("arguments", [(), ("--jobs", "2")], ids=["run", "sweep"])
def test_a_terminated_process_cleans_up(
    which: signal.Signals, arguments: tuple[str, ...], in_folder: Path, tally: Tallies
) -> None:
    if arguments:
        arena = sweep_arena(in_folder, *arguments)
    else:
        arena = Arena(in_folder, make_toy(in_folder, SLOW_TOY).recipe.name, env=ALONE)
    limit_s = arena.measure()
    count, moments = tally("Ctrl-C and SIGTERM"), random.Random(SEED)
    for number in range(5):
        arena.outputs = f"attacked-{number}"
        moment = moments.uniform(0.15, limit_s)
        code, result = arena.kill(moment, which)
        count.lost += 1
        # Before `main` begins, and after it has ended, the system's own handlers do what is to be done.
        assert code in (130, 0), f"seed {SEED}, round {number}, after {moment:.3f} s: {code} {result}"
        building = in_folder / arena.outputs / "store" / "building"
        assert not building.is_dir() or not list(building.iterdir())
        arena.finish()
        (same_table(arena) if arguments else same_as_clean(arena))()
        count.lost -= 1
        count.survived += code == 130


PLACES = [
    ("ndld_flow.store.store:Store.keep", "before"),
    ("ndld_flow.store.store:Store.keep", "after"),
    ("ndld_flow.store.store:Store.write_record", "after"),
    ("ndld_flow.runner.run_folder:write_texts", "after"),
    ("ndld_flow.runs.outputs:place_folder", "before"),
    ("ndld_flow.runs.outputs:place_folder", "after"),
    ("ndld_flow.runs.outputs:point_to", "after"),
    ("ndld_flow.store.files:os.fsync", "after"),
]
"""Between the contents and the record, between the record and the run's folder, between this and `latest`."""


@pytest.mark.parametrize(
    ("place", "when"),
    [item if number % 2 else pytest.param(*item, marks=pytest.mark.slow) for number, item in enumerate(PLACES)],
)
def test_a_run_killed_between_two_writes_is_resumed(place: str, when: str, in_folder: Path, tally: Tallies) -> None:
    toy = make_toy(in_folder)
    arena = Arena(in_folder, toy.recipe.name, env=ALONE)
    count = tally("kill -9 of a run")
    count.lost += 1
    command = ["run", toy.recipe.name, "--trust", "-o", arena.outputs]
    assert die_at(place, when, command, in_folder) == -signal.SIGKILL
    done = toy.run()[0]
    assert (Path(done.folder) / "report.html").is_file()
    latest = in_folder / "outputs" / "runs" / "toy" / "latest"
    assert latest.resolve() == Path(done.folder).resolve()
    count.lost -= 1
    count.survived += 1
