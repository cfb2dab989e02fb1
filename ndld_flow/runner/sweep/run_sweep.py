"""Run a sweep: try points, measure the winners again, write the record and the report."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.points import Sweep
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.run_record import ENDINGS, judge
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.sweep.outcome import summarize_sweep
from ndld_flow.runner.events import Listener, Notice, SweepFinished, SweepStarted, synchronized
from ndld_flow.runner.executors.choose_executor import open_executor
from ndld_flow.runner.open_run import choose_forced
from ndld_flow.runner.outputs import Outputs, name_folder
from ndld_flow.runner.request import Request
from ndld_flow.runner.run_folder import recording_failure
from ndld_flow.runner.run_record import find_artifacts
from ndld_flow.runner.sweep.apply_best import apply_best, check_target
from ndld_flow.runner.sweep.conclude_sweep import Ended, describe_sweep
from ndld_flow.runner.sweep.judge import Goals
from ndld_flow.runner.sweep.state import SweepState
from ndld_flow.runner.sweep.sweep_folder import write_sweep_folder
from ndld_flow.runner.sweep.try_points import TriedPoints, try_points
from ndld_flow.runner.sweep.winners import Finalist, choose_finalists, measure_again
from ndld_flow.runner.verify import find_sweep_damage
from ndld_flow.sweep_search.make_search import make_search


def run_sweep(sweep: Sweep, request: Request, listener: Listener) -> SweepFinished:
    """Run a sweep and write its folder and report; call it inside `working_on`.

    Results in the store are reused, so an interrupted sweep continues. Raises NdldFlowError for an error of the whole
    sweep, which leaves the folder of a failed run; a point that fails is a result.
    """
    outputs, listener = Outputs(request.outputs), synchronized(listener)
    check_target(sweep, request)
    outputs.store.locks.warn_once(lambda text: listener(Notice(text=text)))
    with open_sweep_state(sweep, request, outputs, listener) as state:
        # A sweep that fails leaves the folder of a run of its base recipe, with the reason.
        base = state.open_run(sweep.base)
        base.command = request.command_in(outputs.sweeps / sweep.base.name / base.id)
        with recording_failure(base):
            search = make_search(sweep.space, sweep.options)
            listener(SweepStarted(recipe=sweep.base.name, method=sweep.section.method, point_count=search.size))
            tried = try_points(sweep, search, state)
            finalists = _measure_winners(sweep, tried, state)
    ended = Ended(sweep, state, tried, finalists, base)
    record = describe_sweep(ended)
    finished = _find_equal(record, ended) or _conclude(record, ended)
    return finished.model_copy(update={"applied": apply_best(record, tried, sweep, request)})


@contextlib.contextmanager
def open_sweep_state(sweep: Sweep, request: Request, outputs: Outputs, listener: Listener) -> Iterator[SweepState]:
    """Give the state that the points share; at the end, or after an error, all tasks are stopped."""
    forced = choose_forced(request.force, sweep.base)
    chosen = open_executor(sweep, request, outputs.store, listener)
    try:
        yield SweepState(
            outputs=outputs,
            executor=chosen.executor,
            machine_of=chosen.machine_of,
            listener=listener,
            goals=Goals(sweep.objectives, sweep.constraints),
            section=sweep.section,
            forced=forced,
        )
    finally:
        chosen.executor.close()


def _measure_winners(sweep: Sweep, tried: TriedPoints, state: SweepState) -> dict[int, Finalist]:
    numbers = choose_finalists(tried, sweep)
    winners = [point for point in tried.points if point.number in numbers]
    if sum(point.session is not None for point in winners) > 1:
        numbers_text = ", ".join(str(point.number) for point in winners)
        state.listener(Notice(text=f"measuring the best again, in turns: points {numbers_text}"))
    return dict(measure_again(winners, state))


def _find_equal(record: SweepRecord, ended: Ended) -> SweepFinished | None:
    """Return the latest sweep of this recipe if it is identical and nothing had to be computed for this one."""
    outputs, listener = ended.state.outputs, ended.state.listener
    latest = outputs.latest_sweep(record.recipe_name)
    if latest is None or record.steps_done:
        return None
    try:
        earlier = read_sweep_record(latest)
    except RequestError:
        return None
    if earlier.identity != record.identity:
        return None
    damage = find_sweep_damage(earlier, latest)
    if damage:
        listener(Notice(text=f"the folder of sweep {name_folder(latest)} is damaged ({damage}): writing a new one"))
        return None
    folder = outputs.sweeps / latest.parent.name / latest.name  # as the user wrote the outputs folder
    outputs.mend_latest(folder)
    return _describe_end(earlier, folder, ended, nothing_to_do=True)


def _conclude(record: SweepRecord, ended: Ended) -> SweepFinished:
    ended.state.listener(Notice(text=f"writing the reports of {len(record.points)} points"))
    folder = write_sweep_folder(record, ended)
    return _describe_end(record, folder, ended, nothing_to_do=False)


def _describe_end(record: SweepRecord, folder: Path, ended: Ended, *, nothing_to_do: bool) -> SweepFinished:
    """Return the event of a sweep's end. The points of an equal earlier sweep are those of this one."""
    best = next((point for point in record.points if point.number == record.best), None)
    run = next((point.run for point in ended.tried.points if point.number == record.best), None)
    metrics = {} if best is None else best.again.metrics if best.again is not None else best.metrics
    return SweepFinished(
        passed=record.passed,
        exit_code=ENDINGS[
            judge(failed=not (record.passed or record.inconclusive), undecided=record.inconclusive)
        ].exit_code,
        nothing_to_do=nothing_to_do,
        sweep=f"{record.recipe_name}/{record.id}",
        folder=str(folder),
        report=str(folder / "report.html"),
        verdict=tuple(summarize_sweep(record)),
        best=record.best,
        outcomes=dict(Counter(point.outcome for point in record.points)),
        metrics=metrics,
        artifacts=find_artifacts(run, folder / best.folder) if best is not None and run is not None else {},
        wall_s=time.perf_counter() - ended.base.start,
    )
