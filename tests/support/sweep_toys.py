"""Toy sweeps, of which all is known: a step that changes a model, one that measures it, and a log of who worked."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ndld_flow import api
from ndld_flow.execution.events import Event, SweepFinished
from ndld_flow.execution.request import Placement, Request
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.records.run_record import RunRecord, StepRecord
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.store.store import Store
from ndld_flow.sweep.plan_sweep import SweepPlan
from ndld_flow.sweep.run_request import plan_request, run_request
from tests.support.models import make_tiny

DYE = '''
"""Changes a model."""

import os
import signal
import time
from pathlib import Path

from ndld_flow.base.errors import ModelError
from ndld_flow.records.measurement import Metric
from ndld_flow.plugin import Context, Onnx, Result, Step


class Dye(Step[Onnx, Onnx]):
    """Dye a model."""

    colour: str = "red"
    weight: float = 1.0
    """What the metric `weight` tells."""
    seconds: float = 0.0
    """How long to work."""
    fails: str = ""
    """`model` raises an error of ours, `bug` another; `killed` kills this process, once: where the file named by
    `once` is not there yet."""
    once: str = ""
    passed: bool = True

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        with open(os.environ.get("TOY_LOG", os.devnull), "a") as log:
            log.write(f"dye {context.name} {os.getpid()}\\n")
        time.sleep(self.seconds)
        if self.fails == "model":
            raise ModelError(f"this model takes no {self.colour}")
        if self.fails == "bug":
            raise ZeroDivisionError("a bug of the step")
        if self.fails == "killed" and not Path(self.once).exists():
            Path(self.once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        import onnx

        model = onnx.load(source.path)
        model.doc_string += f" {self.colour} {self.weight:g}"
        onnx.save(model, out / Onnx.main)
        metrics = {"weight": Metric(value=self.weight, unit="bytes")}
        return Result(f"dyed {self.colour}", passed=self.passed, metrics=metrics)
'''

GAUGE = '''
"""Measures a model, in turns: a toy whose latency is known."""

import os
import time
from pathlib import Path

from ndld_flow.base.errors import BackendError
from ndld_flow.records.measurement import Metric
from ndld_flow.plugin import Context, Onnx, Result, Reuse, Step, Turn


class Gauge(Step[Onnx, Onnx]):
    """Gauge a model."""

    reuse = Reuse.THIS_MACHINE
    takes_turns = True

    threads: int = 1
    order: str = "rows"
    seconds: float = 0.0
    """How long each takes."""
    limit: int = 100
    """More threads than this fail."""
    blames: bool = True
    """Whether an error says whose it is."""
    offset: float = 0.0

    @property
    def device(self):
        return "scales"

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        return self.run_together([Turn(self, source, out, context)])[0]

    @classmethod
    def run_together(cls, turns):
        with open(os.environ.get("TOY_LOG", os.devnull), "a") as log:
            log.write("gauge " + "+".join(turn.context.name for turn in turns) + "\\n")
        results = []
        for turn in turns:
            step = turn.step
            time.sleep(step.seconds)
            if step.threads > step.limit:
                blamed = turn.context.name if step.blames and len(turns) > 1 else ""
                raise BackendError(f"there are no {step.threads} threads", step=blamed)
            (turn.out / Onnx.main).write_bytes(turn.source.path.read_bytes())
            ms = step.offset + 12 / step.threads + (1 if step.order == "rows" else 2)
            results.append(Result(f"{ms:g} ms", metrics={"ms": Metric(value=ms, unit="ms")}))
        return results
'''

RECIPE = """
name: toy
model: model.onnx
steps_from: [steps/dye.py, steps/gauge.py]
steps:
  base: {step: dye, colour: white}
  tint: {step: dye}
  speed: {step: gauge, threads: 1}
sweep:
  over:
    tint.colour: [red, green]
    speed.threads: [1, 2, 4]
  minimize: speed.ms
"""


@dataclass
class SweepToy:
    """A folder with a model, files of steps and a recipe; change into it before running it."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "toy.yaml"

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    @property
    def log(self) -> list[str]:
        """A line for each time a step worked."""
        path = self.folder / ".log" / "log.txt"
        return path.read_text().splitlines() if path.exists() else []

    def write(self, recipe: str) -> SweepToy:
        self.recipe.write_text(recipe)
        return self

    def run(self, *overrides: str, place: Placement | None = None) -> tuple[SweepRecord, list[Event]]:
        """Run the sweep; its record and every event."""
        events: list[Event] = []
        finished = api.sweep(
            self.recipe, overrides, outputs=self.outputs, trust=True, place=place, listener=events.append
        )
        return self.record(finished), events

    def record(self, finished: SweepFinished) -> SweepRecord:
        return read_sweep_record(Path(finished.folder))

    def finish(self, *overrides: str) -> SweepFinished:
        return api.sweep(self.recipe, overrides, outputs=self.outputs, trust=True)

    def apply(self, target: Path) -> SweepFinished:
        """Run the sweep and write its best point as a recipe."""
        finished = run_request(Request(self.recipe, (), self.outputs, trust=True, apply=target), lambda _: None)
        assert isinstance(finished, SweepFinished)
        return finished

    def force(self, *steps: str) -> SweepFinished:
        """Run the sweep though these steps are there."""
        finished = run_request(Request(self.recipe, (), self.outputs, force=steps, trust=True), lambda _: None)
        assert isinstance(finished, SweepFinished)
        return finished

    def plan(self, *forced: str) -> SweepPlan:
        planned = plan_request(Request(self.recipe, (), self.outputs, force=forced, trust=True), lambda _: None)
        assert isinstance(planned, SweepPlan)
        return planned

    def point_run(self, record: SweepRecord, number: int) -> RunRecord:
        return read_run_record(self.outputs / "sweeps" / record.recipe_name / record.id / "points" / f"{number:04}")

    def stored(self) -> list[StepRecord]:
        """Every record of the store."""
        store = Store(self.outputs / "store")
        keys = sorted(path.stem for path in (store.root / "records").glob("*/*.json"))
        return [record for key in keys if (record := store.read_record(key)) is not None]


def make_sweep_toy(folder: Path, recipe: str = RECIPE) -> SweepToy:
    """A toy sweep in a folder."""
    make_tiny(folder / "model.onnx")
    (folder / "steps").mkdir(exist_ok=True)  # every file next to a step is in its key
    (folder / "steps" / "dye.py").write_text(DYE)
    (folder / "steps" / "gauge.py").write_text(GAUGE)
    return SweepToy(folder).write(recipe)


def table(record: SweepRecord) -> list[tuple[object, ...]]:
    """Return the table of a sweep without times and ids."""
    return [_row(point) for point in record.points]


def _row(point: SweepPoint) -> tuple[object, ...]:
    steps = tuple((step.name, step.outcome == "failed", step.outcome == "skipped") for step in point.steps)
    values = json.dumps(point.values, sort_keys=True)
    return values, point.outcome, point.reason, point.objectives, point.rank, point.tied, steps


def count_by_type(records: list[StepRecord]) -> Counter[str]:
    return Counter(record.parts.step for record in records)
