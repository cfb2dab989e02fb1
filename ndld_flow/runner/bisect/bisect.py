"""Find the release in which the verdict of a recipe changed: run it with several values of one of its keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from ndld_flow.base.errors import BackendError, NdldFlowError, RequestError
from ndld_flow.base.quantities import counted, quantity
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.bisection import Bisection, TriedRelease, TriedVerdict, VerdictChange
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import RunRecord, metrics_of
from ndld_flow.runner.bisect.options import BisectOptions
from ndld_flow.runner.bisect.releases import choose_values, override_of
from ndld_flow.runner.bisect.search import Judgement, find_changes, find_first_bad, judge_all, runs_left
from ndld_flow.runner.events import Event, Notice, RunFailed, RunFinished
from ndld_flow.runner.listener import Listener
from ndld_flow.runner.open_run import working_on
from ndld_flow.runner.request import Request
from ndld_flow.runner.run import run_recipe
from ndld_flow.runner.sweep.run_sweep import write_value
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder, write_text_atomically

_MEASURED = ("profile", "comparison")
"""Kinds of results that differ from run to run: they are measured again if a verdict is inconclusive."""


def bisect_recipe(request: Request, key: str, options: BisectOptions, listener: Listener) -> Bisection:
    """Run a recipe with values of a key until the first with which it fails is known, and record the search.

    Raises RequestError for a sweep, for unusable values, and as `run_request` does for a recipe that cannot start.
    """
    if options.gates:
        gates = write_value(list(options.gates))
        request = replace(request, overrides=(*request.overrides, f"gates={gates}"))
    values, package = choose_values(request, key, options)
    search = _Search(request, key, values, package, options, listener)
    found = search.run()
    identity = digest_json([str(request.recipe), key, *request.overrides, *values])[:8]
    name = f"{Path(request.recipe).stem}-{identity}.json"
    folder = request.outputs / "bisections"
    make_folder(folder)
    write_text_atomically(folder / name, found.to_json())
    listener(Notice(text=f"recorded in {folder / name}"))
    return found


@dataclass(frozen=True)
class _Ended:
    """One run of the recipe: its record, or the error that kept it from starting."""

    record: RunRecord | None
    error: NdldFlowError | None
    folder: str
    reused: bool


class _Search:
    def __init__(
        self,
        request: Request,
        key: str,
        values: Sequence[str],
        package: str,
        options: BisectOptions,
        listener: Listener,
    ) -> None:
        self._request, self._key, self._values, self._package = request, key, values, package
        self._options, self._listener = options, listener
        self._tried: dict[int, TriedRelease] = {}
        self._failures: frozenset[str] = frozenset()
        self._left = len(values)

    def run(self) -> Bisection:
        started, clock = datetime.now(UTC), time.perf_counter()
        problem = self._check_ends()
        changes: list[VerdictChange] = []
        if not problem:
            search = judge_all if self._options.every else find_first_bad
            for change in find_changes(search(len(self._values), self._judge)):
                verdict = self._tried[change.after].verdict
                assert verdict in ("good", "bad")
                changes.append(
                    VerdictChange(
                        before=self._values[change.before],
                        after=self._values[change.after],
                        verdict="good" if verdict == "good" else "bad",
                        undecided=tuple(self._values[place] for place in change.undecided),
                    )
                )
        return Bisection(
            recipe=str(self._request.recipe),
            key=self._key,
            package=self._package,
            values=tuple(self._values),
            tried=tuple(self._tried[place] for place in sorted(self._tried)),
            failures=() if problem else tuple(sorted(self._failures)),
            changes=tuple(changes),
            assumes_one_change=len(self._judged()) < len(self._values),
            problem=problem,
            started_at=started,
            wall_s=time.perf_counter() - clock,
        )

    def _check_ends(self) -> str:
        """Try both ends, and return why they are not as claimed; empty if they are.

        Raises the error of an end that cannot run: nothing can be concluded from it.
        """
        last = len(self._values) - 1
        for place, claimed in ((0, "good"), (last, "bad")):
            tried = self._try(place, is_end=True)
            if tried.verdict == "inconclusive":
                return f"{tried.value} was to be {claimed}, and its verdict is inconclusive"
            if tried.verdict != claimed:
                verb = "fails" if tried.verdict == "bad" else "passes"
                hint = "an earlier good value" if claimed == "good" else "another bad value, or a stricter gate"
                return f"{tried.value} was to be {claimed}, and the recipe {verb} with it: choose {hint}"
        return ""

    def _judge(self, place: int) -> Judgement:
        verdict = self._try(place).verdict
        return verdict if verdict in ("good", "bad") else None

    def _try(self, place: int, *, is_end: bool = False) -> TriedRelease:
        """Run the recipe with a value until it has a verdict, or was measured often enough."""
        value = self._values[place]
        left = "" if is_end else self._describe_rest()
        self._listener(Notice(text=f"running {self._request.recipe} with {self._key}={value}{left}"))
        tried = self._run_until_decided(value, is_end=is_end)
        self._tried[place] = tried
        self._listener(Notice(text=f"{value} is {tried.verdict}: {tried.why}"))
        return tried

    def _describe_rest(self) -> str:
        """Return the number of values that remain to be decided between."""
        if self._options.every:
            return ""
        judged = self._judged()
        low = max(place for place, verdict in judged.items() if verdict == "good")
        high = min(place for place, verdict in judged.items() if verdict == "bad")
        more = counted(runs_left(high - low + 1), "run")
        return f" ({counted(high - low - 1, 'release')} to decide between, about {more})"

    def _judged(self) -> dict[int, TriedVerdict]:
        return {place: each.verdict for place, each in self._tried.items() if each.verdict in ("good", "bad")}

    def _run_until_decided(self, value: str, *, is_end: bool) -> TriedRelease:
        attempts, force = 0, tuple[str, ...]()
        while True:
            attempts += 1
            ended = self._run_once(value, force)
            tried = self._judge_run(value, ended, is_end=is_end).model_copy(update={"attempts": attempts})
            force = _measured_steps(ended.record)
            if tried.verdict != "inconclusive" or attempts >= self._options.attempts or not force:
                return tried
            self._listener(Notice(text=f"{value} is inconclusive: measuring again"))

    def _run_once(self, value: str, force: Sequence[str]) -> _Ended:
        """Run the recipe with a value. Raises NdldFlowError if the recipe is wrong, and whatever is a bug."""
        overrides = (*self._request.overrides, override_of(self._key, value))
        request = replace(self._request, overrides=overrides, force=(*self._request.force, *force))
        failed: list[str] = []

        def listen(event: Event) -> None:
            if isinstance(event, RunFailed):
                failed.append(event.folder)
            elif isinstance(event, Notice):
                self._listener(event)

        try:
            with working_on(request, "run") as recipe:
                assert isinstance(recipe, Recipe)
                finished = run_recipe(recipe, request, listen)
        except NdldFlowError as error:
            record = read_run_record(Path(failed[-1])) if failed else None
            return _Ended(record, error, failed[-1] if failed else "", reused=False)
        return _describe_finished(finished)

    def _judge_run(self, value: str, ended: _Ended, *, is_end: bool) -> TriedRelease:
        record = ended.record
        if record is None or isinstance(ended.error, BackendError):
            if is_end:
                _refuse_end(value, ended.error)
            return TriedRelease(value=value, verdict="skipped", why=_text_of(ended.error))
        failures = _failures_of(record)
        if is_end and failures:
            self._failures = frozenset(failures)
        verdict, why = self._decide(record, failures)
        return TriedRelease(
            value=value,
            verdict=verdict,
            why=why,
            reused=ended.reused,
            run=f"{record.recipe_name}/{record.id}",
            report=str(Path(ended.folder, "report.html")),
            metrics=metrics_of(record.steps),
            gates={gate.gate: Metric(value=gate.left, unit=gate.unit) for gate in record.gates if not gate.undecided},
        )

    def _decide(self, record: RunRecord, failures: Mapping[str, str]) -> tuple[TriedVerdict, str]:
        """Return the verdict on a run: it is bad only if it fails in one of the ways of the bad end."""
        shared = [text for name, text in failures.items() if name in self._failures]
        if shared:
            return "bad", "; ".join(shared)
        if failures:
            return "skipped", f"it fails in another way than the bad end: {'; '.join(failures.values())}"
        if record.outcome == "inconclusive":
            return "inconclusive", "; ".join(_undecided_of(record)) or "a step is inconclusive"
        return "good", "; ".join(_passed_of(record)) or "all steps pass"


def _describe_finished(finished: RunFinished) -> _Ended:
    record = read_run_record(Path(finished.folder))
    reused = all(step.outcome in ("reused", "skipped") for step in record.steps)
    return _Ended(record, None, finished.folder, reused=reused or finished.nothing_to_do)


def _refuse_end(value: str, error: NdldFlowError | None) -> NoReturn:
    if error is None:
        raise RequestError(f"the run with {value} left no record.")
    raise type(error).with_text(f"{value} is an end of the search, and cannot run: {error}")


def _text_of(error: NdldFlowError | None) -> str:
    return "the run left no record" if error is None else str(error)


def _failures_of(record: RunRecord) -> dict[str, str]:
    """Return the gates, checks and errors with which a run failed, each with its values."""
    if record.failure is not None:
        where = " and ".join(record.failure.steps)
        return {f"{record.outcome} of step {where}": record.failure.message}
    failed = {
        f"check of step {step.name}": f"{step.name}: {step.record.summary}"
        for step in record.steps
        if step.record is not None and not step.record.passed and not step.record.inconclusive
    }
    gates = {
        f"gate `{gate.gate}`": f"`{gate.gate}` fails: {quantity(gate.left, gate.unit)}"
        for gate in record.gates
        if not gate.passed and not gate.undecided
    }
    return failed | gates


def _undecided_of(record: RunRecord) -> list[str]:
    steps = [
        f"{step.name}: {step.record.summary}"
        for step in record.steps
        if step.record is not None and step.record.inconclusive
    ]
    return steps + [f"`{gate.gate}`: {gate.undecided}" for gate in record.gates if gate.undecided]


def _passed_of(record: RunRecord) -> list[str]:
    return [f"`{gate.gate}` passes: {quantity(gate.left, gate.unit)}" for gate in record.gates if gate.passed]


def _measured_steps(record: RunRecord | None) -> tuple[str, ...]:
    steps = record.steps if record is not None else ()
    return tuple(step.name for step in steps if step.record and step.record.artifact.kind in _MEASURED)
