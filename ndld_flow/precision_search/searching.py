"""Search for the nodes that a reduced precision breaks, and say why each is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import load_model
from ndld_flow.models.node_selection import nodes_of_types
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision_search.attempts import Attempt, Budget, Candidate, Kept
from ndld_flow.precision_search.evidence import Suspect
from ndld_flow.precision_search.findings import Findings, Subject, Wanted, say_metrics
from ndld_flow.precision_search.judging import Judge
from ndld_flow.precision_search.observations import Observer
from ndld_flow.precision_search.remembered import TrialFile
from ndld_flow.precision_search.search import search
from ndld_flow.precision_search.suspicion import severities
from ndld_flow.precision_search.trials import Trials
from ndld_flow.records.precision_search import PrecisionSearch, Trial
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

SETTINGS = SessionSettings(memory_arena=False, memory_reuse=False, spinning=False)
"""Trials run on the CPU, where storage is emulated and arithmetic is fp32; each model is run a few times only, and
waiting threads and an arena of memory that is never used again cost more than they save."""


@dataclass(frozen=True)
class Rooms:
    """Where a search works."""

    scratch: Path
    trials: TrialFile
    progress: Callable[[int, int, str], None]


class PrecisionSearching:
    """One search. Raises `RequestError` when there is nothing to search, `ModelError` when the model does not run."""

    def __init__(self, wanted: Wanted, subject: Subject, rooms: Rooms) -> None:
        self._wanted = wanted
        self._subject = subject
        self._rooms = rooms
        self._started = time.monotonic()
        self._told: list[Trial] = []
        self._positions = self._allowed()
        self._observer = Observer(
            subject.path, wanted.precision, subject.reducer, subject.samples, SETTINGS, rooms.scratch
        )
        judge = Judge(subject.path, subject.samples, wanted.tolerance, SETTINGS, rooms.scratch)
        before = rooms.trials.read()
        self._trials = Trials(subject.reducer, judge, rooms.trials, rooms.scratch, before=before)

    def run(self) -> PrecisionSearch:
        """Search, verify, and tell."""
        fine = self._trials.try_keeping(frozenset()).passed
        candidates = () if fine else self._candidates()
        deadline = self._started + self._wanted.time_s
        budget = Budget(self._wanted.trials, lambda: time.monotonic() > deadline)
        found = search(candidates, self._trials.try_keeping, budget, self._tell)
        self._rooms.progress(len(self._told), 0, "writing down what was found")
        findings = Findings(self._subject, self._wanted, found, self._trials, self._observer)
        told = findings.record(tuple(self._told), self._positions, self._suspects if found.kept else {})
        if found.kept:
            told = self._verified(told, found.kept)
        self._rooms.trials.forget()
        return told.model_copy(update={"wall_s": time.monotonic() - self._started})

    def _verified(self, told: PrecisionSearch, kept: Kept) -> PrecisionSearch:
        last = self._trials.verify(told, kept)
        notes = told.notes
        if told.passed and not last.passed:
            said = last.trouble or say_metrics(last.metrics, self._wanted.tolerance)
            notes = (*notes, f"converted as the step that uses it does, the bound is not met: {said}")
        passed = told.passed and last.passed
        layers = () if last.trouble else self._observer.layers(self._trials.judge.ran)
        done = {"trials": (*told.trials, last), "passed": passed, "notes": notes, "layers_found": layers}
        return told.model_copy(update=done)

    @cached_property
    def _suspects(self) -> dict[int, Suspect]:
        """Position of a node -> what is known of it."""
        model = load_model(self._subject.path)
        prepare(model, self._subject.path)
        return dict(enumerate(self._observer.suspects(model.graph.all_nodes())))

    def _allowed(self) -> tuple[int, ...]:
        """Positions of the nodes that may be kept."""
        reducer = self._subject.reducer
        if not reducer.candidates:
            raise RequestError(
                f"there is nothing to search: no node of the model of {self._subject.label} would become "
                f"{self._wanted.precision} (it has none in fp32, or all of them are kept"
                f"{', or `int8` leaves them out' if self._wanted.precision == 'int8' else ''})."
            )
        if not self._wanted.op_types:
            return tuple(reducer.candidates)
        nodes_of_types(load_model(self._subject.path), self._wanted.op_types, "op_types")
        wanted = set(self._wanted.op_types)
        allowed = tuple(place for place in reducer.candidates if reducer.nodes[place].op_type in wanted)
        if not allowed:
            raise RequestError(
                f"`op_types`: no {', '.join(wanted)} of the model of {self._subject.label} would become "
                f"{self._wanted.precision}, so there is nothing to search."
            )
        return allowed

    def _candidates(self) -> tuple[Candidate, ...]:
        self._rooms.progress(0, 0, "measuring what each node alone does wrong")
        severity = severities(self._suspects.values())
        nodes = self._subject.reducer.nodes
        return tuple(
            Candidate(place, nodes[place].op_type, nodes[place].called, severity[self._suspects[place].node])
            for place in self._positions
        )

    def _tell(self, attempt: Attempt) -> None:
        trial = self._trials.record(attempt)
        self._told.append(trial)
        said = say_metrics(trial.metrics, self._wanted.tolerance)
        self._rooms.progress(trial.number, 0, f"trial {trial.number}: {trial.what}, {said or 'it does not run'}")
