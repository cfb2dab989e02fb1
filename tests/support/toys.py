"""Toy steps and recipes, written into a test's folder: the runner is tested with steps of which all is known."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.execution.events import Event, RunFinished, StepFinished, StepStarted
from tests.support.models import make_tiny
from tests.support.typed_api import plan_once, run_once

STAMP = '''
"""Appends a line to a model's doc string."""

from pathlib import Path
import os
import time

from ndld_flow.store.kinds import Onnx
from ndld_flow.records.measurement import Metric
from ndld_flow.step import Context, Result, Step


class Stamp(Step[Onnx, Onnx]):
    """Stamp a model with a word."""

    libraries = ("onnx",)

    word: str = "x"
    """The word to stamp with."""
    seconds: float = 0.0
    """How long to work."""
    passed: bool = True
    """What to say in the end."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx

        with open(os.environ.get("TOY_LOG", os.devnull), "a") as log:
            log.write(f"{context.name} {os.getpid()}\\n")
        for index in range(10):
            context.progress(index, 10, "stamping")
            time.sleep(self.seconds / 10)
        model = onnx.load(source.path, load_external_data=False)
        model.doc_string += self.word + "\\n"
        onnx.save(model, out / Onnx.main)
        for entry in source.folder.iterdir():
            if entry != source.path and entry.name.startswith("model"):
                (out / entry.name).write_bytes(entry.read_bytes())
        context.log.info("stamped %s", self.word)
        length = Metric(value=float(len(model.doc_string)))
        return Result(f"stamped {self.word}", passed=self.passed, metrics={"length": length})
'''

RECIPE = """
name: toy
model: model.onnx
steps_from: [steps/stamp.py]
steps:
  first: {step: stamp, word: a}
  second: {step: stamp, word: b}
  aside: {step: stamp, from: source, word: c}
gates: [second.length >= 2]
"""


@dataclass
class Toy:
    """A folder with a model, a step's file and a recipe."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "toy.yaml"

    def write(self, recipe: str, step: str = STAMP) -> Toy:
        self.recipe.write_text(textwrap.dedent(recipe))
        (self.folder / "steps").mkdir(exist_ok=True)  # every file next to a step is in its key
        (self.folder / "steps" / "stamp.py").write_text(step)
        return self

    def run(self, *overrides: str, **options: list[str]) -> tuple[RunFinished, list[Event]]:
        """Run the recipe; what was finished and every event."""
        events: list[Event] = []
        outputs = self.folder / "outputs"
        force = options.get("force", [])
        done = run_once(self.recipe, overrides, outputs=outputs, force=force, trust=True, listener=events.append)
        return done, events

    def plan(self, *overrides: str) -> dict[str, tuple[str, str]]:
        """Step -> (reason, detail)."""
        decisions = plan_once(self.recipe, overrides, outputs=self.folder / "outputs", trust=True)
        return {decision.step.name: (decision.reason.text, decision.detail) for decision in decisions}


def make_toy(folder: Path, recipe: str = RECIPE) -> Toy:
    """Return a toy whose model and paths are in `folder`; change into it before running it."""
    make_tiny(folder / "model.onnx")
    return Toy(folder).write(recipe)


def started(events: list[Event]) -> list[str]:
    """Names of the steps that were computed."""
    return [event.name for event in events if isinstance(event, StepStarted)]


def outcomes(events: list[Event]) -> dict[str, str]:
    return {event.name: event.outcome for event in events if isinstance(event, StepFinished)}
