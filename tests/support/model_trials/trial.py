"""Everything on one model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.execution.events import Event, RunFinished, StepStarted, SweepFinished
from tests.support.model_trials.command_line import compare_with_command_line
from tests.support.model_trials.entries import (
    RUN_MODELS,
    WITHOUT_WEIGHTS,
    call_verb,
    closure,
    recipe_entries,
    verbs,
)
from tests.support.model_trials.judge import (
    ROUNDING,
    TOLERANCES,
    Fault,
    judge_result,
    loads_with_shapes,
    read_source,
    recipe_inputs,
)
from tests.support.model_trials.subjects import Subject

LOADED = "loaded"
"""The operation of a model's last outcome: whether a runtime loads it."""
RIGHTLY_REFUSED = (
    "there is nothing to search",
    "no shapes to set: give",
    "nothing to fix: give",
    "cannot use this model:",  # TensorRT's own parser
    "built no engine of",  # TensorRT's builder
)
"""Parts of messages for models on which the request means nothing, or that TensorRT does not support; they count as
accepted."""
_FAILS = "fails at run time"
"""Part of the message about a model that ONNX Runtime loads and cannot run."""
_FIX_SHAPES = ("fix_shapes", "edit_set_shapes")
_REPORTED_LOSS = "the tolerance is not met"
"""`find_precision` ends so when no choice that it had time to try is accurate enough."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step or a verb on a model."""

    subject: str
    group: str
    operation: str
    fault: Fault | None
    """None where it was accepted, and its result is right."""
    detail: str = ""


@dataclass
class Trial:
    """Everything on one model, in a worker process."""

    subject: Subject
    folder: Path
    skipped: set[str]
    """Operations that ended the process or the time of an earlier attempt."""
    send: Callable[[Outcome | str], None]
    """Called with the name of each operation that starts, and with the outcomes."""

    def run(self) -> None:
        """Send everything; the last outcome is that of `LOADED`."""
        self.source = read_source(self.subject)
        is_loaded = self.subject.runtime != "onnxruntime" or not self.source.error
        if is_loaded:
            for outcome in self._outcomes():
                self.send(outcome)
        self.send(self._outcome(LOADED, None, "" if is_loaded else f"not loaded: {self.source.error}"))

    def _outcomes(self) -> Iterator[Outcome]:
        inputs = recipe_inputs(self.source, self.folder)
        for name in verbs(self.subject.is_slow, self.subject.by_command):
            if name not in self.skipped and (self.subject.runtime == "onnxruntime" or name in WITHOUT_WEIGHTS):
                yield self._try_verb(name, inputs)
        if self.subject.runtime == "none":
            return
        entries = recipe_entries(self.subject.is_slow, self.subject.in_full)
        if self.subject.runtime != "onnxruntime":  # steps that run it cannot
            entries = {name: entry for name, entry in entries.items() if entry["step"] not in RUN_MODELS}
        entries = {name: entry for name, entry in entries.items() if name not in self.skipped}
        if self.subject.group != "large":
            yield from self._run_steps(entries, inputs)
            return
        for name in entries:  # one at a time: together they fill a disk
            yield from (
                run_step for run_step in self._run_steps(closure(entries, name), inputs) if run_step.operation == name
            )
            shutil.rmtree(self.folder / "outputs", ignore_errors=True)

    def _outcome(self, operation: str, fault: Fault | None, detail: str = "") -> Outcome:
        if fault == "refused" and self._is_right(operation, detail):
            fault = None
        if fault == "failed" and _REPORTED_LOSS in detail:
            fault = "inaccurate"
        text = " ".join(detail.split()).replace(str(self.subject.path), "MODEL").replace(str(self.folder), "FOLDER")
        return Outcome(self.subject.name, self.subject.group, operation, fault, text[:400])

    def _is_right(self, operation: str, refusal: str) -> bool:
        """Return whether a refusal is right: the request means nothing here, or ONNX Runtime refuses the same."""
        if operation in _FIX_SHAPES and not loads_with_shapes(self.subject.path, self.source.feeds):
            return True
        return (_FAILS in refusal and self.source.fails) or any(part in refusal for part in RIGHTLY_REFUSED)

    def _try_verb(self, name: str, inputs: Mapping[str, Any]) -> Outcome:
        self.send(name)
        try:
            call_verb(name, self.subject, inputs, self.folder)
        except NdldFlowError as error:
            return self._outcome(name, "refused", str(error))
        except Exception as error:
            return self._outcome(name, "crashed", f"{type(error).__name__}: {error}")
        return self._outcome(name, None)

    def _run_steps(self, entries: dict[str, dict[str, Any]], inputs: Mapping[str, Any]) -> Iterator[Outcome]:
        """Run a recipe of all entries; after an error run it without the entry to blame."""
        while entries := _readable(entries):
            running = [next(iter(entries))]
            recipe = self._recipe(entries, inputs)
            try:
                finished = self._run(recipe, running)
            except NdldFlowError as error:
                fault: Fault = "refused"
                detail = str(error)
                blamed = next((name for name in entries if name == error.step or f"steps.{name}" in detail), "")
                if not blamed:  # the model itself
                    yield from (self._outcome(name, fault, detail) for name in entries)
                    return
            except Exception as error:
                blamed, fault, detail = running[-1], "crashed", f"{type(error).__name__}: {error}"
            else:
                yield from self._judge(finished, entries, inputs)
                if self.subject.by_command:
                    yield self._compare_with_command_line(recipe, finished)
                return
            yield self._outcome(blamed, fault, detail)
            del entries[blamed]

    def _run(self, recipe: Mapping[str, Any], running: list[str]) -> RunFinished | SweepFinished:
        """Run a recipe; append each step that starts to `running`."""

        def listen(event: Event) -> None:
            if isinstance(event, StepStarted):
                running.append(event.name)
                self.send(event.name)

        return api.run(dict(recipe), outputs=self.folder / "outputs", trust=True, listener=listen)

    def _recipe(self, entries: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        recipe = {"name": "all", "model": str(self.subject.path), "steps": dict(entries)}
        return recipe | ({"inputs": dict(inputs)} if inputs else {})

    def _judge(
        self,
        finished: RunFinished | SweepFinished,
        entries: Mapping[str, Mapping[str, Any]],
        inputs: Mapping[str, Any],
    ) -> Iterator[Outcome]:
        record = json.loads((Path(finished.folder) / "run.json").read_text())
        summaries = {
            step["name"]: (step["outcome"], (step["record"] or {}).get("summary", "")) for step in record["steps"]
        }
        for name, entry in entries.items():
            state, summary = summaries[name]
            if state == "failed":
                yield self._outcome(name, "failed", summary)
            elif (path := Path(finished.artifacts.get(name, ""))).suffix == ".onnx":
                fault, detail = judge_result(self.source, path, TOLERANCES.get(entry["step"], ROUNDING))
                if fault == "differs":
                    is_lossy = entry["step"] in TOLERANCES
                    fault = "inaccurate" if is_lossy and self._is_noticed(name, entries, inputs) else "wrong"
                yield self._outcome(name, fault, detail)
            else:
                yield self._outcome(name, None)

    def _is_noticed(self, name: str, entries: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]) -> bool:
        """Return whether `check_accuracy` fails a result; False where it cannot run."""
        steps: dict[str, Any] = {"agrees": {"step": "check_accuracy", "candidate": name, "reference": "source"}}
        recipe = self._recipe({**closure(entries, name), **steps}, inputs) | {"name": "check"}
        try:
            return not api.run(recipe, outputs=self.folder / "outputs", trust=True).passed
        except NdldFlowError:
            return False

    def _compare_with_command_line(self, recipe: Mapping[str, Any], finished: RunFinished | SweepFinished) -> Outcome:
        self.send("command line")
        difference = compare_with_command_line(recipe, finished, self.folder)
        return self._outcome("command line", "wrong" if difference else None, difference)


def _readable(entries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out entries that read one which was left out."""
    known = recipe_entries(True)
    kept = dict(entries)
    while gone := [
        name
        for name, entry in kept.items()
        if any(isinstance(v, str) and v in known and v not in kept and k != "step" for k, v in entry.items())
    ]:
        for name in gone:
            del kept[name]
    return kept
