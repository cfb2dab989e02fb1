"""Commands whose writes are attacked: the state before, the command, and the conditions afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.processes.worker import IN_PROCESS
from ndld_flow.records.outcomes import is_complete
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.runs.outputs import Outputs
from tests.reliability.attacked import Attacked, FaultServer
from tests.reliability.fault_plan import CUT_TO_NOTHING, Fault, FaultPlan
from tests.reliability.outputs_state import age_leftovers, find_halves, find_unfinished, list_leftovers, take_stock
from tests.support.tally import Tally

_NO_MATTER = ("outputs/store/locks/", "outputs/store/externals/", "outputs/store/digests/", "outputs/runs.jsonl")
"""Locks, and what can be found out anew: they may come and go."""
_GROWS = "outputs/order.txt"
"""In which order runs were finished."""


@dataclass
class Scene:
    """A command in a folder, tried once without faults, and then with."""

    folder: Path
    """Where it is run; each time it is made anew, as it is now."""
    arguments: tuple[str, ...]
    server: FaultServer
    below: str = "outputs"
    """Where writes are attacked, in the folder."""
    temporary: str = ""
    """The folder for temporary files, where it is one in the folder."""
    ends_with: int = 0
    """The exit code without faults."""
    is_measured: bool = False
    """Its results are others each time."""
    has_worker: bool = False
    """Steps are computed in a worker process, as they are for users; its writes are attacked, too."""
    _template: Path = field(init=False)
    _before: dict[str, bytes] = field(init=False)
    _after: dict[str, bytes] = field(init=False)
    _clean: Attacked = field(init=False)
    _results: object = field(init=False)

    def __post_init__(self) -> None:
        self._template = self.folder.with_name(f"{self.folder.name}-before")
        shutil.copytree(self.folder, self._template, symlinks=True)
        self._before = take_stock(self.folder)
        self._clean = self._run(FaultPlan(self.folder / self.below))
        assert self._clean.code == self.ends_with, self._clean.err
        self._after = take_stock(self.folder)
        self._results = self._read_results()

    @property
    def outputs(self) -> Outputs:
        return Outputs(self.folder / "outputs")

    def count(self, fault: Fault) -> int:
        """Return the number of writes that the fault can hit."""
        return sum(bool(kind & fault.kinds) for kind, _ in self._clean.calls)

    def attack(self, fault: Fault, at: int, count: Tally) -> None:
        """Attack one write, and check everything. Raises AssertionError with the command to repeat it."""
        result = f"`{' '.join(self.arguments)}`, {fault}, at {at}"
        count.lost += 1
        shutil.rmtree(self.folder)
        shutil.copytree(self._template, self.folder, symlinks=True)
        attacked = self._run(FaultPlan(self.folder / self.below, fault, at))
        place = _place(attacked, at)
        faults = [*_check_end(attacked, fault, self.ends_with), *self._check_state()]
        assert not faults, f"{result} ({place}): {faults}\n{attacked.code}: {attacked.err}"
        if attacked.code == self.ends_with and fault.manner < CUT_TO_NOTHING:
            assert self._read_results() == self._results, f"{result} ({place}): it says it is done"
        again = self._run(FaultPlan(self.folder / self.below))
        faults = [*self._check_state(), *find_unfinished(self.outputs)]
        assert again.code == self.ends_with, f"{result} ({place}), then: {again.code} {again.err}"
        assert not faults, f"{result} ({place}), then: {faults}"
        results = self._read_results()
        assert results == self._results, f"{result} ({place}), then: {results} instead of {self._results}"
        count.lost -= 1
        count.refused += attacked.code == 2
        count.survived += attacked.code != 2

    def check_gc(self) -> None:
        """Check that `gc`, two hours later, removes the leftovers of killed processes."""
        age_leftovers(self.outputs.root)
        done = self.server.run("gc", folder=self.folder, plan=FaultPlan(self.outputs.root))
        assert done.code == 0, done.err
        assert not list_leftovers(self.outputs.root)

    def _run(self, plan: FaultPlan) -> Attacked:
        environment = {IN_PROCESS: "0" if self.has_worker else "1"}
        if self.temporary:
            environment["TMPDIR"] = str(self.folder / self.temporary)
        return self.server.run(*self.arguments, folder=self.folder, plan=plan, environment=environment)

    def _read_results(self) -> object:
        return None if self.is_measured else _read_results(self.outputs)

    def _check_state(self) -> Iterator[str]:
        yield from find_halves(self.outputs)
        now = take_stock(self.folder)
        for name, held in self._before.items():
            is_longer = name == _GROWS and now.get(name, b"").startswith(held)
            if now.get(name) not in (held, self._after.get(name)) and not is_longer and not name.startswith(_NO_MATTER):
                yield f"{name} is {'gone' if name not in now else 'neither what it was nor what it is to be'}"


def _place(attacked: Attacked, at: int) -> str:
    calls = attacked.calls
    return " ".join(map(str, calls[at - 1])) if 0 < at <= len(calls) else "not reached"


def _check_end(attacked: Attacked, fault: Fault, done: int) -> Iterator[str]:
    if not attacked.struck:
        return
    if fault.manner >= CUT_TO_NOTHING:
        if attacked.code != -9:
            yield "it has survived a power cut"
        return
    if attacked.code != done and not attacked.is_refusal:
        yield f"exit code {attacked.code}"
    if "Traceback" in attacked.err:
        yield "a traceback"


def _read_results(outputs: Outputs) -> object:
    """Return the results of each recipe's newest complete run and its newest sweep, and the tags."""
    runs, sweeps = {}, {}
    for folder in outputs.folders():
        run = read_run_record(folder)
        if not is_complete(run.outcome):  # the attacked run failed, and says so
            continue
        steps = [(step.name, step.record and (step.record.artifact, step.record.metrics)) for step in run.steps]
        runs[run.recipe_name] = (steps, run.gates, run.passed)
    for folder in outputs.sweep_folders():
        sweep = read_sweep_record(folder)
        points = [(point.number, point.outcome, point.metrics, point.rank) for point in sweep.points]
        sweeps[sweep.recipe_name] = (points, sweep.best, sweep.passed)
    tags = {name: folder.name for name, folder in outputs.tagged().items()}
    return runs, sweeps, tags
