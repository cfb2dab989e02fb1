"""Run the steps of a recipe without a sweep, one unit after another, and conclude the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.execution.events import Notice, RunFinished, RunStarted, StepStarted, wait_for_other_run
from ndld_flow.execution.keys import describe_settings
from ndld_flow.execution.request import Request
from ndld_flow.machine.host import describe_machine, is_this_machine
from ndld_flow.recipe.recipe import SOURCE, RecipeStep
from ndld_flow.records.outcomes import ENDINGS
from ndld_flow.records.run_folder import OPTIMIZATION_RECORD, RUN_RECORD, read_run_record
from ndld_flow.records.run_record import RunRecord, RunStep, StepRecord, metrics_of
from ndld_flow.runner.check_inputs import refuse_inputs_of, refuse_missing_data, refuse_wrong_inputs
from ndld_flow.runner.plan import Decision, Reason, Unit, arrange_steps, look_ahead, plan_steps, refuse_impossible_run
from ndld_flow.runner.run_folder import note_progress, recording_failure, write_run_folder
from ndld_flow.runner.run_record import (
    clear_damage,
    describe_end,
    describe_run,
    find_artifacts,
    gather_work,
    identify_run,
    place_records,
    skip_step,
)
from ndld_flow.runner.run_state import RunState
from ndld_flow.runner.verify import find_run_damage
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import LATEST, name_folder

if TYPE_CHECKING:
    from ndld_flow.execution.cache import Cache
    from ndld_flow.execution.executor import Executor


def run_recipe(run: RunState, request: Request) -> RunFinished:
    """Run the steps of an opened run, and write its run folder and report; call it inside `working_on`.

    If all results exist, nothing runs and the event names the earlier run. Raises NdldFlowError, see base/errors.py;
    finished results stay in the store, and a run that has started leaves its folder.
    """
    recipe, listener = run.recipe, run.listener
    run.outputs.store.locks.warn_once(lambda text: listener(Notice(text=text, warning=True)))
    with recording_failure(run), explaining_disk(f"run of {request.recipe}", run.outputs.root):
        listener(RunStarted(recipe=recipe.name, steps=tuple(step.name for step in recipe.steps)))
        if run.planner.cache is not None:
            run.planner.cache.fetch(look_ahead([(run.planner, run.digests)]))  # all at once, before anything runs
        refuse_impossible_run(run.recipe, run.planner, run.digests, run.paths)
        with contextlib.ExitStack() as stack:

            @cache
            def executor() -> Executor:
                refuse_missing_data(recipe)
                refuse_wrong_inputs(recipe, {name: model.artifact.path for name, model in run.models.items()})
                return stack.enter_context(open_executor(run, request))

            with pushing_results(run.planner.cache, lambda: [step.record for step in run.steps if step.record]):
                run_steps(run, executor)
        equal = _find_equal_run(run)
        if equal is not None:
            return equal
        record = write_run_folder(describe_run(run), run.outputs, opened=run.opened)
        return _conclude(run, record, run.outputs.run_folder(record), nothing_to_do=False)


@contextlib.contextmanager
def pushing_results(cache: Cache | None, results: Callable[[], Iterable[StepRecord]]) -> Iterator[None]:
    """Push the results of the block to the cache at its end, and after an error, which other steps have."""
    try:
        yield
    except NdldFlowError:
        if cache is not None:
            cache.push(results())
        raise
    if cache is not None:
        cache.push(results())


def open_executor(run: RunState, request: Request) -> contextlib.AbstractContextManager[Executor]:
    """Open the executor when it is first needed: importing it takes time that a fully reused run saves."""
    if run.cluster is not None:
        return contextlib.nullcontext(run.cluster())  # closed with the run
    from ndld_flow.execution.choose_executor import choose_executor, with_targets

    here = choose_executor(None, False, run.listener, request.trust)
    return contextlib.closing(with_targets(here, run.targets, run.listener, trust=request.trust))


def run_steps(run: RunState, executor: Callable[[], Executor]) -> None:
    """Decide, compute and place the steps of a run, one unit after another."""
    stopped_by, expected = "", ExpectedTimes(run)
    for unit in arrange_steps(run.recipe):
        run.at_work = unit
        if stopped_by:
            finished = [skip_step(step, f"{stopped_by} failed") for step in unit]
        else:
            finished = _run_unit(run, unit, executor, expected)
        for step in finished:
            run.done[step.name] = step
            run.listener(describe_end(step))
        if unit[0].step.stops_run and any(step.outcome == "failed" for step in finished):
            stopped_by = unit[0].name
    run.at_work = ()


def _run_unit(run: RunState, unit: Unit, executor: Callable[[], Executor], expected: ExpectedTimes) -> list[RunStep]:
    start = time.perf_counter()
    try:
        decisions = run.planner.decide(unit, run.digests)
    except RequestError:
        refuse_missing_data(run.recipe)  # its error names the input
        raise

    def find_again() -> list[RunStep] | None:
        nonlocal decisions
        decisions = _decide_and_take(run, unit)
        return _place_reused(run, decisions, start)

    def compute() -> list[RunStep]:
        from ndld_flow.execution.executor import Task

        opened = executor()
        cleared = clear_damage(run, decisions)
        note_progress(run)
        remaining_s = expected.remaining()
        for decision in cleared:
            step = decision.step
            run.listener(
                StepStarted(
                    name=step.name,
                    step=step.type.name,
                    reason=decision.reason.text,
                    detail=decision.detail,
                    target=run.target_of(step),
                    expected_s=expected.of(step),
                    remaining_s=remaining_s,
                )
            )
        works = tuple(gather_work(run, decision) for decision in cleared)
        try:
            # A target must not take a forced result from its own store.
            fresh = any(decision.reason in (Reason.FORCED, Reason.NEVER) for decision in cleared)
            records = opened.submit(Task(works, fresh=fresh, held=True), run.planner.store).result()
        except RequestError:
            for work in works:
                refuse_inputs_of(run.recipe, work.step, work.artifacts)
            raise
        return place_records(run, cleared, records, "done", (time.perf_counter() - start) / len(cleared))

    if all(decision.reason is Reason.REUSED for decision in decisions):
        return _place_reused(run, decisions, start) or []
    from ndld_flow.execution.executor import find_or_compute

    keys = [(decision.key, decision.step.name) for decision in decisions]
    report_wait = lambda *step: run.listener(wait_for_other_run(*step))  # noqa: E731
    return find_or_compute(run.planner.store, keys, find_again, compute, report_wait)


def _decide_and_take(run: RunState, unit: Unit) -> list[Decision]:
    """Decide steps whose keys are locked, and copy the results that the shared cache has into the store."""
    while True:
        decisions = run.planner.decide(unit, run.digests)
        found = [decision.record for decision in decisions if decision.reason is Reason.CACHED and decision.record]
        if not found or run.planner.cache is None or run.planner.cache.take(found):
            return decisions


def _place_reused(run: RunState, decisions: Sequence[Decision], start: float) -> list[RunStep] | None:
    """Place the stored results of steps that run together; None if one of them must run."""
    if not all(decision.reused for decision in decisions):
        return None
    records = [decision.record for decision in decisions if decision.record]
    return place_records(run, decisions, records, "reused", (time.perf_counter() - start) / len(decisions))


def _find_equal_run(run: RunState) -> RunFinished | None:
    """Return the latest run if it is identical and nothing had to be computed for this one."""
    latest = run.outputs.latest(run.recipe.name)
    if latest is None or any(step.reason != Reason.REUSED.text for step in run.steps if step.record):
        return None
    try:
        earlier = read_run_record(latest)
    except RequestError:
        return None
    # The page of an optimization is on top of the run that proved its model: another one must not replace it.
    if earlier.identity != identify_run(run) or (latest / OPTIMIZATION_RECORD).exists():
        return None
    damage = find_run_damage(earlier, latest, run.outputs.store.digests.digest)
    if damage:
        text = f"the folder of run {name_folder(latest)} is damaged ({damage}): writing a new one"
        run.listener(Notice(text=text, warning=True))
        return None
    folder = run.outputs.runs / latest.parent.name / latest.name  # relative to the outputs folder as the user wrote it
    run.outputs.mend_latest(folder)
    return _conclude(run, earlier, folder, nothing_to_do=True)


def _conclude(run: RunState, record: RunRecord, folder: Path, *, nothing_to_do: bool) -> RunFinished:
    return RunFinished(
        passed=record.passed,
        exit_code=ENDINGS[record.outcome].exit_code,
        nothing_to_do=nothing_to_do,
        run=f"{record.recipe_name}/{record.id}",
        folder=str(folder),
        report=str(folder / "report.html"),
        verdict=record.verdict,
        gates=record.gates,
        metrics=metrics_of(record.steps),
        artifacts=find_artifacts(run, folder),
        wall_s=time.perf_counter() - run.start,
    )


_MOST_RUNS = 5
"""Newest runs that are read."""
_SAME_SIZE = 1.25
"""Largest ratio of the sizes of two inputs on which a step does comparable work."""


@dataclass(frozen=True)
class ExpectedTimes:
    """Expects that a step takes as long as in the newest earlier run in which it did comparable work.

    Work is comparable if type, version and settings of the step are equal, its inputs are of about the same size, as
    far as they exist yet, and the machine is of the same kind. Otherwise the duration is unknown.
    """

    run: RunState

    def of(self, step: RecipeStep) -> float | None:
        """Return the expected seconds of a step; None if they are unknown."""
        settings, inputs = describe_settings(step, self.run.recipe.file.inputs)
        for earlier in self._earlier_runs:
            record = next((each.record for each in earlier.steps if each.name == step.name), None)
            if record is None or (record.parts.step, record.parts.version) != (step.type.name, step.type.version):
                continue
            if not is_this_machine(record.parts.machine):
                continue
            if (record.parts.settings, record.parts.inputs) != (settings, inputs):
                continue
            sources = {SOURCE: earlier.source, **earlier.models}
            sizes = {name: source.artifact.size_bytes for name, source in sources.items()}
            if self._has_similar_inputs(
                step,
                record,
                sizes
                | {step.name: step.record.artifact.size_bytes for step in earlier.steps if step.record is not None},
            ):
                return record.wall_s
        return None

    def remaining(self) -> float | None:
        """Return the expected seconds of all steps that have not finished; None if that of any is unknown.

        Steps whose results are stored take no time.
        """
        total = 0.0
        for step in self.run.recipe.steps:
            if step.name in self.run.done or step.name in self._stored:
                continue
            expected = self.of(step)
            if expected is None:
                return None
            total += expected
        return total

    @cached_property
    def _stored(self) -> frozenset[str]:
        """Return the steps that a plan reuses; planned once, when the first step starts."""
        return frozenset(
            decision.step.name for decision in plan_steps(self.run.planner, self.run.digests) if decision.reused
        )

    @cached_property
    def _earlier_runs(self) -> Sequence[RunRecord]:
        """The newest runs of the recipe on this machine, the newest first."""
        run, here = self.run, describe_machine().hardware
        folders = (path.parent for path in (run.outputs.runs / run.recipe.name).glob(f"*/{RUN_RECORD}"))
        names = sorted((folder.name for folder in folders if folder.name not in (run.id, LATEST)), reverse=True)
        found = []
        for name in names[:_MOST_RUNS]:
            with contextlib.suppress(RequestError):
                found.append(read_run_record(run.outputs.runs / run.recipe.name / name))
        return [earlier for earlier in found if earlier.machine.hardware == here]

    def _has_similar_inputs(self, step: RecipeStep, record: StepRecord, sizes: Mapping[str, int]) -> bool:
        models = {name: model.record.size_bytes for name, model in self.run.models.items()}
        done = self.run.done.items()
        now = models | {name: step.record.artifact.size_bytes for name, step in done if step.record is not None}
        for key, name in step.own_reads.items():
            before, after = sizes.get(record.parents.get(key, "")), now.get(name)
            if before is None or (after is not None and max(before, after) > _SAME_SIZE * min(before, after)):
                return False
        return True
