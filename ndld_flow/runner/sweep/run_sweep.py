"""Run a sweep: try points, measure the winners again, write the record and the report."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.points import Sweep
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.run_record import ENDINGS, judge
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.sweep.terminal_lines import summarize_sweep
from ndld_flow.runner.conclude import make_id, recording_failure
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.events import Listener, Notice, SweepFinished, SweepStarted, synchronized
from ndld_flow.runner.executors.choose_executor import open_executor
from ndld_flow.runner.outputs import Outputs, name_folder
from ndld_flow.runner.run import choose_forced
from ndld_flow.runner.state import Request
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
    """Run a sweep and write its folder and report.

    Results in the store are reused, so an interrupted sweep continues. Raises NdldFlowError for an error of the whole
    sweep, which leaves the folder of a failed run; a point that fails is a result.
    """
    started_at, start = datetime.now(UTC), time.perf_counter()
    outputs, listener = Outputs(request.outputs), synchronized(listener)
    check_target(sweep, request)
    with explaining_disk(f"sweep of {request.recipe}", outputs.root), outputs.store.locks.working():
        outputs.store.locks.warn_once(lambda text: listener(Notice(text=text)))
        outputs.store.sweep_building()
        with open_sweep_state(sweep, request, outputs, listener) as state:
            # A sweep that fails leaves the folder of a run of its base recipe, with the reason.
            base = replace(state.open_run(sweep.base), id=make_id(started_at), command=request.command)
            with recording_failure(base):
                search = make_search(sweep.space, sweep.options)
                listener(SweepStarted(recipe=sweep.base.name, method=sweep.section.method, point_count=search.size))
                tried = try_points(sweep, search, state)
                finalists = _measure_winners(sweep, tried, state)
        ended = Ended(sweep, state, tried, finalists, request.command, started_at, start)
        record = describe_sweep(ended)
        finished = _find_equal(record, outputs, listener) or _conclude(record, ended)
        finished = finished.model_copy(update={"applied": apply_best(record, tried, sweep, request)})
    listener(finished)
    return finished


@contextlib.contextmanager
def open_sweep_state(sweep: Sweep, request: Request, outputs: Outputs, listener: Listener) -> Iterator[SweepState]:
    """Give the state that the points share; at the end, or after an error, all tasks are stopped."""
    forced = choose_forced(request.force, [step.name for step in sweep.base.steps])
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


def _find_equal(record: SweepRecord, outputs: Outputs, listener: Listener) -> SweepFinished | None:
    """Return the latest sweep of this recipe if it is identical and nothing had to be computed for this one."""
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
    return _describe_end(earlier, str(folder), record.wall_s, nothing_to_do=True)


def _conclude(record: SweepRecord, ended: Ended) -> SweepFinished:
    ended.state.listener(Notice(text=f"writing the reports of {len(record.points)} points"))
    folder = write_sweep_folder(record, ended)
    return _describe_end(record, str(folder), time.perf_counter() - ended.start, nothing_to_do=False)


def _describe_end(record: SweepRecord, folder: str, wall_s: float, *, nothing_to_do: bool) -> SweepFinished:
    return SweepFinished(
        passed=record.passed,
        exit_code=ENDINGS[
            judge(failed=not (record.passed or record.inconclusive), undecided=record.inconclusive)
        ].exit_code,
        nothing_to_do=nothing_to_do,
        sweep=f"{record.recipe_name}/{record.id}",
        folder=folder,
        report=f"{folder}/report.html",
        verdict=tuple(summarize_sweep(record)),
        best=record.best,
        outcomes=dict(Counter(point.outcome for point in record.points)),
        wall_s=wall_s,
    )
