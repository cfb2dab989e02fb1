"""No result is lost when any write fails once or permanently, or when the power fails at any write."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.reliability.attacked import FaultServer
from tests.reliability.fault_plan import (
    FAIL_ON,
    FAIL_ONCE,
    NO_SPACE,
    NO_SPACE_ONCE,
    POWER_CUTS,
    SHORT_WRITES,
    Fault,
    FaultPlan,
    refusals,
)
from tests.reliability.scenes import Scene
from tests.support.tally import Tally
from tests.support.toys import STAMP, make_toy

Counting = Callable[[str], Tally]

ALL_FAULTS = (*refusals(FAIL_ONCE), *refusals(FAIL_ON), *SHORT_WRITES, *POWER_CUTS)
HEAD = "name: toy\nmodel: model.onnx\n"
TOY = f"""{HEAD}steps_from: [steps/stamp.py]
steps:
  first: {{step: stamp, word: a}}
gates: [first.length >= 2]
"""
SWEEP = f"{TOY}sweep: {{over: {{first.word: [a, bb, ccc]}}, minimize: first.length}}\n"
REAL = f"""{HEAD}steps:
  lint: {{}}
  sanitize: {{}}
  half: {{step: convert_fp16}}
  agree: {{step: check_accuracy, reference: source, candidate: half, tolerance: {{cosine: 0.9}}}}
"""
MEASURED = f"{HEAD}steps:\n  speed: {{step: profile, runs: 1, passes: 3, warmup: 1, duration: 0, stable: 0}}\n"
USERS_OWN = "what a person has written\n"
VERBS = {
    "gc": ("gc", "--keep", "0"),
    "tag": ("tag", "toy", "kept"),
    "untag": ("tag", "kept", "--delete"),
    "report": ("report", "earlier"),
    "verify": ("verify",),
    "plan": ("plan", "toy.yaml", "--trust"),
    "schema": ("schema", "mine/own"),
    "init": ("init", "model.onnx", "mine/own", "--overwrite"),
    "draw": ("draw", "model.onnx", "--output", "mine/own.svg"),
    "page": ("draw", "model.onnx", "--output", "mine/own.html"),
}


@pytest.fixture
def folder(tmp_path: Path, server: FaultServer) -> Path:
    """A folder with a recipe, an earlier run of another, its tag, and files of a person: what must not be lost."""
    folder = tmp_path / "work"
    (folder / "mine").mkdir(parents=True)
    for name in ("own", "own.svg", "own.html"):
        (folder / "mine" / name).write_text(USERS_OWN)
    make_toy(folder, TOY)
    (folder / "earlier.yaml").write_text(TOY.replace("name: toy", "name: earlier").replace("word: a", "word: z"))
    do(folder, server, "run", "earlier.yaml", "--trust")
    do(folder, server, "tag", "earlier", "kept")
    return folder


def do(folder: Path, server: FaultServer, *arguments: str) -> None:
    """The scenes without faults."""
    done = server.run(*arguments, folder=folder, plan=FaultPlan(folder / "outputs"))
    assert done.code == 0, done.err


def attack_some(scene: Scene, faults: Sequence[Fault], tally: Counting, every: int = 1) -> None:
    """Every so many-th write; with each fault others, so that several faults come to each write."""
    for index, fault in enumerate(faults, 1):
        count = tally(fault.attack)
        for at in range(1 + index * 7 % every, scene.count(fault) + 1, every):
            scene.attack(fault, at, count)


def test_some_writes_of_a_run(folder: Path, server: FaultServer, tally: Counting) -> None:
    scene = Scene(folder, ("run", "toy.yaml", "--trust"), server)
    attack_some(scene, (NO_SPACE, POWER_CUTS[0], NO_SPACE_ONCE), tally, every=220)
    scene.check_gc()


@pytest.mark.slow
def test_every_write_of_a_run(folder: Path, server: FaultServer, tally: Counting) -> None:
    """Each write goes wrong in one way or another, each way comes to each part of a run."""
    scene = Scene(folder, ("run", "toy.yaml", "--trust"), server)
    attack_some(scene, ALL_FAULTS, tally, every=16)
    scene.check_gc()


@pytest.mark.slow
def test_writes_of_a_run_and_its_worker(folder: Path, server: FaultServer, tally: Counting) -> None:
    scene = Scene(folder, ("run", "toy.yaml", "--trust"), server, has_worker=True)
    attack_some(scene, (NO_SPACE, *refusals(FAIL_ONCE), POWER_CUTS[0]), tally, every=71)
    scene.check_gc()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [SWEEP, REAL], ids=["sweep", "onnx"])
def test_writes_of_other_runs(recipe: str, folder: Path, server: FaultServer, tally: Counting) -> None:
    (folder / "toy.yaml").write_text(recipe)
    scene = Scene(folder, ("run", "toy.yaml", "--trust"), server)
    attack_some(scene, ALL_FAULTS, tally, every=239)
    scene.check_gc()


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_writes_of_other_verbs(verb: str, folder: Path, server: FaultServer, tally: Counting) -> None:
    do(folder, server, "run", "toy.yaml", "--trust")
    below = "mine" if any(item.startswith("mine/") for item in VERBS[verb]) else "outputs"
    scene = Scene(folder, VERBS[verb], server, below)
    attack_some(scene, ALL_FAULTS, tally, every=7)
    scene.check_gc()


@pytest.mark.slow
def test_writes_of_measuring_and_comparing(folder: Path, server: FaultServer, tally: Counting) -> None:
    (folder / "toy.yaml").write_text(MEASURED)
    do(folder, server, "run", "toy.yaml")
    attack_some(Scene(folder, ("compare", "toy", "toy"), server), ALL_FAULTS, tally, every=31)


@pytest.mark.slow
def test_writes_of_profile(folder: Path, server: FaultServer, tally: Counting) -> None:
    settings = ("runs=1", "passes=3", "warmup=1", "duration=0", "stable=0", "layer_passes=1")
    scene = Scene(folder, ("profile", "model.onnx", *settings), server, is_measured=True)
    attack_some(scene, (NO_SPACE, POWER_CUTS[0]), tally, every=53)


@pytest.mark.thorough
def test_files_that_the_user_names(folder: Path, server: FaultServer, tally: Counting) -> None:
    """They hold what was there, or the whole of what is to be there."""
    attack_some(Scene(folder, VERBS["init"], server, "mine"), (NO_SPACE_ONCE, POWER_CUTS[1]), tally, every=6)


@pytest.mark.slow
def test_temporary_files(folder: Path, server: FaultServer, tally: Counting) -> None:
    (folder / "temporary").mkdir()
    scene = Scene(folder, ("run", "toy.yaml", "--trust"), server, "temporary", "temporary")
    # Python's TemporaryDirectory, which filelock uses, recurses without end where it may not remove what it made.
    lasting = [fault for fault in refusals(FAIL_ON) if fault.number != errno.EACCES]
    attack_some(scene, (*refusals(FAIL_ONCE), *lasting), tally, every=2)


def test_a_bug_is_reported_where_nothing_can_be_written(folder: Path, server: FaultServer, tally: Counting) -> None:
    (folder / "temporary").mkdir()
    (folder / "steps" / "stamp.py").write_text(STAMP.replace("import onnx\n", "raise ValueError('a bug')\n", 1))
    count = tally("bug file cannot be written")
    count.lost += 1
    environment = {"TMPDIR": str(folder / "temporary")}
    arguments = ("run", "toy.yaml", "--trust", "steps.first.word=q")
    for _ in range(2):  # the first one composes the recipe, which takes temporary files
        plan = FaultPlan(folder / "temporary")
        counted = server.run(*arguments, folder=folder, plan=plan, environment=environment)
    [at] = [index for index, (_, path) in enumerate(counted.calls, 1) if "ndld-flow-bug" in path][:1]
    plan = FaultPlan(folder / "temporary", refusals(FAIL_ON)[2], at)
    attacked = server.run(*arguments, folder=folder, plan=plan, environment=environment)
    assert attacked.code == 3
    assert attacked.struck
    assert "a bug" in attacked.err
    assert "No details could" in attacked.err
    assert "Traceback" not in attacked.err
    count.lost -= 1
    count.refused += 1
