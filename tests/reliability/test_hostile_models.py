"""Hostile models: every verb and step that reads one works, or ends with exit code 2 and a paragraph."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.store.kinds import Onnx
from tests.reliability.attacked_process import AttackedProcess, Ending
from tests.reliability.malformed_graphs import LARGE, WRONG, chain
from tests.reliability.mutants import mutant
from tests.steps.test_steps_contract import TYPES, recipe_for
from tests.support.models import cnn_model
from tests.support.process_runs import ProcessRun
from tests.support.tally import Tally

Tallying = Callable[[str], Tally]

_VERBS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "model.onnx"),
    "inspect as JSON": ("inspect", "model.onnx", "--json"),
    "nodes": ("inspect", "model.onnx", "--nodes"),
    "tensors": ("inspect", "model.onnx", "--tensors"),
    "statistics": ("inspect", "model.onnx", "--initializers", "--stats"),
    "scopes": ("inspect", "model.onnx", "--group-by", "scope"),
    "diff": ("diff", "good.onnx", "model.onnx", "--all"),
    "diff of itself": ("diff", "model.onnx", "model.onnx", "--html", "diff.html"),
    "draw": ("draw", "model.onnx", "-o", "model.svg", "--depth", "2"),
    "page": ("draw", "model.onnx", "-o", "model.html"),
    "init": ("init", "model.onnx", "begin.yaml", "--overwrite"),
    "plan": ("plan", "plan.yaml"),
}
_TAKE_SECONDS = ("lint", "profile", "compare_profiles", "build_engine", "find_precision")
_PROGRAMS = "run_tool"
"""It hands the model to a program of the user's, and reads nothing itself."""
_ENDLESS = ("Loop for ever",)
"""What runs them never ends: interrupting is what matters, see `test_native_crashes.py`."""


_HANGS_S = 240.0


class Attack:
    """A folder with a model to read, a file next to it that must stay unchanged, and a process for reading."""

    def __init__(self, folder: Path, process: AttackedProcess) -> None:
        self.folder = folder / "here"
        self.folder.mkdir(parents=True)
        (self.folder / "good.onnx").write_bytes(cnn_model().SerializeToString())
        self._beside = folder / "beside.txt"
        self._beside.write_text("mine")
        self._process = process
        for name, recipe in _recipes().items():
            (self.folder / f"{name}.yaml").write_text(json.dumps(recipe))

    def way(self, name: str) -> tuple[str, ...]:
        return _VERBS.get(name) or ("run", f"{name}.yaml")

    def make(self, data: bytes, name: str, count: Tally, what: str) -> None:
        """Put a model there and read it in this way; fails when it does not end well."""
        (self.folder / "model.onnx").write_bytes(data)
        ending = self._process.do(self.way(name), self.folder, _HANGS_S)
        if ending.is_crash and name not in _VERBS:
            ending = self._isolated(name)
        count.survived += ending.is_work
        count.refused += ending.is_refusal
        outside = sorted(path.name for path in self.folder.parent.iterdir())
        fine = (ending.is_work or ending.is_refusal) and outside == ["beside.txt", "here"]
        count.lost += not (fine and self._beside.read_text() == "mine")
        assert fine, f"{what}, read by {name}: {ending.code} after {ending.wall_s:.1f} s: {ending.said[-3000:]}"

    def _isolated(self, name: str) -> Ending:
        """Models that crash native code run again in a worker process, as for users."""
        run = ProcessRun(*self.way(name), cwd=self.folder, env={"NDLD_FLOW_IN_PROCESS": "0"})
        code, _, result = run.finish(120)
        return Ending(code, result, 0.0)


def _recipes() -> dict[str, dict[str, Any]]:
    """A recipe for each step type, without inputs, but for the steps that need their shapes."""
    recipes = {name: recipe_for(item) | {"inputs": {}} for name, item in TYPES.items()}
    for name in ("fix_shapes", "edit"):
        recipes[name]["inputs"] = {"x": {"shape": [4]}}
    recipes["edit"]["steps"]["tested"]["operations"] = [{"infer_shapes": {}}]
    recipes["plan"] = {"name": "plan", "model": "model.onnx", "steps": {"sanitize": {}}}
    return recipes


def ways(*, quick: bool) -> list[str]:
    """Every verb and step type; or those that take no second."""
    types = {name: item for name, item in TYPES.items() if name != _PROGRAMS}
    reading = [name for name, item in types.items() if item.cls.kinds()[0] is Onnx or not quick]
    return [*_VERBS, *(name for name in reading if not (quick and name in _TAKE_SECONDS))]


@pytest.fixture(scope="module")
def process() -> Iterator[AttackedProcess]:
    started = AttackedProcess()
    yield started
    started.close()


@pytest.fixture
def attack(tmp_path: Path, process: AttackedProcess) -> Attack:
    return Attack(tmp_path / "attack", process)


def _in_turn(attack: Attack, models: Iterable[tuple[str, bytes]], names: Iterable[str], count: Tally) -> None:
    """Each model in one way, the next model in the next."""
    for (what, data), name in zip(models, itertools.cycle(names), strict=False):
        attack.make(data, name, count, what)


def _made(malformed: Mapping[str, Callable[[], Any]], leave_out: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    for what, make in malformed.items():
        if what not in leave_out:
            yield what, make().SerializeToString()


def test_mutated_models_are_handled(attack: Attack, tally: Tallying) -> None:
    models = ((f"mutant({seed})", mutant(seed)) for seed in range(6))
    _in_turn(attack, models, ways(quick=True), tally("mutated models"))


def test_malformed_graphs_are_handled(attack: Attack, tally: Tallying) -> None:
    _in_turn(attack, list(_made(WRONG))[::13], ways(quick=True), tally("malformed graphs"))


@pytest.mark.thorough
def test_models_that_request_all_memory_are_refused(attack: Attack, tally: Tallying) -> None:
    models = list(_made(LARGE))[::7]
    _in_turn(attack, models, ("sanitize", "inspect", "page"), tally("protobuf and memory bombs"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_many_mutated_models_are_handled(attack: Attack, tally: Tallying, first: int) -> None:
    models = ((f"mutant({seed})", mutant(seed)) for seed in range(first, first + 100))
    _in_turn(attack, models, ways(quick=False), tally("mutated models"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ways(quick=True))
def test_malformed_graphs_are_handled_by_every_command(attack: Attack, tally: Tallying, name: str) -> None:
    _in_turn(attack, _made(WRONG), (name,), tally("malformed graphs"))
    _in_turn(attack, _made(LARGE, _ENDLESS), (name,), tally("protobuf and memory bombs"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inspect", "plan", "sanitize", "convert_fp16", "lint"])
def test_a_hundred_thousand_nodes_are_handled(attack: Attack, tally: Tallying, name: str) -> None:
    """Each takes seconds: what grows with the square of them would not end within the minutes given."""
    attack.make(chain(100_000).SerializeToString(), name, tally("malformed graphs"), "100,000 nodes")
