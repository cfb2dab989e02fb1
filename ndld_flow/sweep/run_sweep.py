"""Run a sweep, and write its folder: the records and reports of all points, and a command that repeats each."""

from __future__ import annotations

import contextlib
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import visible_name
from ndld_flow.base.users import name_me
from ndld_flow.execution.events import Notice, SweepFinished, SweepStarted
from ndld_flow.execution.listener import Listener, synchronized
from ndld_flow.execution.request import Request
from ndld_flow.machine.host import describe_machine
from ndld_flow.recipe.apply_point import apply_point
from ndld_flow.recipe.config_files import finds_the_same
from ndld_flow.recipe.gates import GateError
from ndld_flow.recipe.points import Objective, Sweep
from ndld_flow.records.outcomes import ENDINGS, judge, outcome_of_code
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD, RunDocuments, read_sweep_record
from ndld_flow.records.run_record import RunFailure, RunRecord, StepRecord
from ndld_flow.records.sweep import MeasuredAgain, PointStep, SweepAxis, SweepObjective, SweepPoint, SweepRecord
from ndld_flow.report.exports.spreadsheets import write_sweep_exports
from ndld_flow.report.run_page import draw_documents
from ndld_flow.report.sweep.outcome import summarize_sweep
from ndld_flow.report.sweep.page import draw_sweep
from ndld_flow.runner.plan import Reason
from ndld_flow.runner.run import pushing_results
from ndld_flow.runner.run_folder import (
    draw_inspected,
    link_stored,
    recording_failure,
    write_artifact,
    write_recipe_and_command,
    write_step_texts,
    write_texts,
)
from ndld_flow.runner.run_record import Ended as EndedRun
from ndld_flow.runner.run_record import (
    decide_gates,
    describe_ended,
    describe_run,
    find_artifacts,
    library_versions,
    log_line,
    model_digests,
)
from ndld_flow.runner.run_state import RunState
from ndld_flow.runner.verify import find_sweep_damage
from ndld_flow.runs.outputs import Outputs, name_folder
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder, write_bytes_atomically, write_text_atomically
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_credentials, hide_in_values
from ndld_flow.store.kinds import LOG_FILE
from ndld_flow.store.store import Store
from ndld_flow.sweep.plan_sweep import open_state, refuse_wrong_inputs_of_points
from ndld_flow.sweep.state import Judgement, PointRun, SweepState, describe_failure
from ndld_flow.sweep.try_points import TriedPoints, try_points
from ndld_flow.sweep.winners import Finalist, choose_finalists, find_choosing_checks, measure_again, rank_tried
from ndld_flow.sweep_search.ranking import Place, find_best
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import NumberedSpace, Numbers


def active_seconds(records: Iterable[StepRecord]) -> float:
    """Return the seconds in which at least one of these steps was running: parallel steps count once."""
    spans = sorted((record.started_at, record.ended_at) for record in records if record.ended_at is not None)
    active_s, until = 0.0, None
    for began, ended in spans:
        if until is None or began > until:
            active_s += (ended - began).total_seconds()
        elif ended > until:
            active_s += (ended - until).total_seconds()
        until = ended if until is None else max(until, ended)
    return active_s


@dataclass(frozen=True)
class Ended:
    """A sweep whose points have all been tried."""

    sweep: Sweep
    state: SweepState
    tried: TriedPoints
    finalists: Mapping[int, Finalist]
    base: RunState
    """The run of the recipe without its sweep: models, command and start are those of the sweep."""


def describe_sweep(ended: Ended) -> SweepRecord:
    """Return the record of a sweep."""
    sweep, state, tried, finalists, base = ended.sweep, ended.state, ended.tried, ended.finalists, ended.base
    places, comparisons = rank_tried(tried, finalists, sweep, state)
    points = tuple(
        _describe_point(point, judged, places[point.number], comparisons.get(point.number))
        for point, judged in zip(tried.points, _judge_at_end(tried, finalists), strict=True)
    )
    wall_s, best = time.perf_counter() - base.start, find_best(places)
    return SweepRecord(
        id=base.id,
        recipe_name=sweep.base.name,
        description=sweep.base.file.description,
        recipe=sweep.resolve(model_digests(base)),
        identity=_identity(ended),
        command=tuple(map(hide_credentials, base.command)),
        directory=str(Path.cwd()),
        user=visible_name(name_me()),
        host=visible_name(platform.node()),
        started_at=base.started_at,
        wall_s=wall_s,
        own_s=max(wall_s - active_seconds([state.known[key] for key in state.computed]), 0.0),
        method=sweep.section.method,
        seed=sweep.section.seed,
        axes=tuple(_describe_axes(sweep, tried.points)),
        objectives=tuple(_describe_objective(objective, tried.points) for objective in sweep.objectives),
        constraints=tuple(gate.text for gate in sweep.constraints),
        points=points,
        sessions=tuple(state.sessions),
        best=best,
        chosen_on=() if best is None else tuple(find_choosing_checks(tried, sweep)),
        stopped_because=tried.stopped_because,
        excluded_count=NumberedSpace(sweep.space).excluded_count or 0,
        steps_done=len(state.computed),
        steps_shared=sum(step.reason == Reason.SHARED.text for point in points for step in point.steps),
        steps_reused=len(state.known.keys() - state.computed),
        machine=describe_machine(),
        versions=library_versions(sweep.base),
        passed=any(point.outcome == "passed" for point in points),
    )


def _describe_point(point: PointRun, judged: Judgement, place: Place, again: MeasuredAgain | None) -> SweepPoint:
    return SweepPoint(
        number=point.number,
        values=hide_in_values(point.point),
        changes=hide_in_values(point.changes),
        outcome=judged.outcome,
        reason=judged.reason,
        failed_step=point.failed_step,
        metrics=point.metrics,
        objectives=judged.objectives,
        constraints=judged.constraints,
        steps=tuple(
            PointStep(
                name=step.name,
                step=step.step,
                outcome=step.outcome,
                reason=step.reason,
                key=step.record.key if step.record is not None else "",
                wall_s=step.wall_s,
            )
            for step in point.run.steps
        ),
        session=point.session,
        again=again,
        rank=place.rank,
        tied=place.tied,
        on_front=place.on_front,
        wall_s=sum(step.wall_s for step in point.run.steps),
        folder=f"points/{point.number:04}" if point.is_begun and not judged.missing else "",
    )


def _judge_at_end(tried: TriedPoints, finalists: Mapping[int, Finalist]) -> Iterator[Judgement]:
    """Yield the final judgements of the points; a winner that fails when it is measured again has not passed."""
    for point, judged in zip(tried.points, tried.judgements, strict=True):
        again = finalists[point.number].judgement if point.number in finalists else judged
        reason = (
            f"measured again: {again.reason}" if again is not judged and again.outcome != "passed" else judged.reason
        )
        yield replace(judged, outcome=again.outcome, reason=reason)


def _describe_axes(sweep: Sweep, points: Sequence[PointRun]) -> list[SweepAxis]:
    axes = []
    for swept, axis in zip(sweep.axes, sweep.space.axes, strict=True):
        tried = {digest_json(point.point[axis.name]): point.point[axis.name] for point in points}
        # Listed values are as listed, numbers ascending.
        if isinstance(axis, Numbers):
            values: tuple[JsonValue, ...] = tuple(
                sorted(value for value in tried.values() if isinstance(value, int | float))
            )
        else:
            values = tuple(hide_all_credentials(value) for value in axis.values if digest_json(value) in tried)
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        log = isinstance(axis, Numbers) and axis.log
        axes.append(SweepAxis(name=swept.name, keys=swept.keys, values=values, numeric=numeric, log=log))
    return axes


def _describe_objective(objective: Objective, points: Sequence[PointRun]) -> SweepObjective:
    units = set()
    for point in points:
        with contextlib.suppress(GateError):  # in points that did not reach it
            units.add(objective.expression.evaluate(point.metrics).unit)
    unit = units.pop() if len(units) == 1 else ""
    return SweepObjective(text=objective.text, direction=objective.direction, unit=unit)


def _identity(ended: Ended) -> str:
    """Return a digest that is equal for sweeps with the same work and the same results."""
    sweep = ended.sweep
    points: list[JsonValue] = [
        [
            hide_in_values(point.point),
            {step.name: step.record.key if step.record else step.reason for step in point.run.steps},
        ]
        for point in (*ended.tried.points, *(finalist.point for finalist in ended.finalists.values()))
    ]
    judgements = [*ended.tried.judgements, *(finalist.judgement for finalist in ended.finalists.values())]
    reason: list[JsonValue] = [[judged.outcome, judged.reason] for judged in judgements]
    gates: list[JsonValue] = [gate.text for gate in sweep.base.gates]
    section = hide_all_credentials(sweep.section.model_dump(mode="json"))
    return digest_json([sweep.base.name, sweep.base.file.description, section, gates, points, reason])


MARK = "# The best of sweep "
"""First line of a file that `--best` wrote: only such files are overwritten."""


def check_target(sweep: Sweep, request: Request) -> None:
    """Raise RequestError, before anything runs, if `--best` could not write the best point at the end."""
    target = request.apply
    if target is None:
        return
    if request.given is not None:
        raise RequestError(f"--best {target}: it needs a recipe file, whose text the new recipe keeps.")
    if not sweep.objectives:
        raise RequestError(
            f"--best {target}: the sweep has no objective, so no point will be best: set `sweep.minimize=METRIC`."
        )
    if target.exists() and not _is_ours(target):
        raise RequestError(f"--best {target}: the file exists and was not written by a sweep. Choose another name.")
    folder = request.recipe.absolute().parent
    values = sweep.variations.composed.file.values
    steps_from = "steps_from" in values and target.absolute().parent != folder
    if steps_from or not finds_the_same(values, request.recipe, target):
        key = "steps_from" if steps_from else "defaults"
        raise RequestError(
            f"--best {target}: the recipe's `{key}:` names files relative to it, so write the new one next to it: "
            f"{folder / target.name}."
        )


def apply_best(record: SweepRecord, tried: TriedPoints, sweep: Sweep, request: Request) -> str:
    """Write the recipe of the best point; return its path, or an empty string without a request or a best point.

    It gets the point's true values: those of the record are without credentials, and the recipe is the user's own.
    Raises OutputsError if it cannot be written.
    """
    best = next((point for point in tried.points if point.number == record.best), None)
    if request.apply is None or best is None:
        return ""
    heading = f"{MARK}{record.recipe_name}/{record.id}: point {best.number}, by `ndld-flow run ... --best`.\n"
    chosen, settings = sweep.variations.split_choices(best.changes)
    text = heading + apply_point(request.recipe, settings, [*sweep.plain_overrides, *chosen])
    try:
        write_bytes_atomically(request.apply, text.encode())
    except OSError as error:
        raise OutputsError(f"--best {request.apply}: it cannot be written: {error.strerror}.") from None
    return str(request.apply)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


def write_point(run: RunRecord, built: Path, folder: Path, store: Store) -> None:
    """Write a point's record, report, recipe and log into `built`, and each step's record with a link to its artifact.

    Nothing is copied. `folder` is the final path of `built`, to which links are relative. Raises OSError.
    """
    built.mkdir(parents=True)
    for step in run.steps:
        if step.record is not None:
            target = built / step.name
            target.mkdir()
            kept = store.object_folder(step.record.artifact.digest)
            try:
                link_stored(kept, target, folder / step.name)
            except OSError:  # a system without links
                write_artifact(step.record.artifact, kept, target)
            write_step_texts(step.record, target)
    write_texts(run, built, folder)
    (built / RUN_RECORD).write_text(run.to_json(), encoding="utf-8")
    documents = RunDocuments(run, object_folder=store.object_folder)
    draw_documents(documents, built)
    draw_inspected(documents, built, store)


def write_sweep_folder(record: SweepRecord, ended: Ended) -> Path:
    """Write all reports and tables into `sweeps/<recipe>/<id>/`, and let `latest` point to it."""
    outputs = ended.state.outputs
    parent = outputs.sweeps / record.recipe_name
    make_folder(parent)
    folder = parent / record.id
    given: tuple[str, ...] = ("--outputs", str(outputs.root)) if outputs.root != Path("outputs") else ()
    given += ("--trust",) if "--trust" in record.command else ()
    with outputs.store.building() as aside:
        built = aside / record.id
        built.mkdir()
        for point, run in zip(record.points, ended.tried.points, strict=True):
            if point.folder:
                final = ended.finalists.get(point.number)
                command = ("ndld-flow", "run", str(folder.absolute() / point.folder / "recipe.yaml"), *given)
                ended_well = final is not None and final.judgement.outcome != "failed"
                shown = final.point if final and ended_well else run
                described = _record_point(shown, f"{record.id}#{point.number}", command)
                write_point(described, built / point.folder, folder / point.folder, outputs.store)
        write_recipe_and_command(record, "sweep", built, folder)
        (built / LOG_FILE).write_text("\n".join(_log_lines(record)) + "\n", encoding="utf-8")
        write_text_atomically(built / SWEEP_RECORD, record.to_json())
        draw_sweep(record, built, outputs.store.object_folder, write_sweep_exports(record, built))
        outputs.publish(built, folder)
    return folder


def _record_point(point: PointRun, run_id: str, command: tuple[str, ...]) -> RunRecord:
    """Return the record of a point's run, finished or failed."""
    run, error = replace(point.run, id=run_id, command=command), point.failure
    if error is None:
        return describe_run(run)
    lines = tuple(map(log_line, run.logs.get(point.failed_step, ())))
    failure = RunFailure(
        steps=(point.failed_step,),
        message=describe_failure(point),
        exit_code=error.exit_code,
        log_lines={point.failed_step: lines} if lines else {},
    )
    steps = tuple(
        step.model_copy(update={"outcome": "failed", "reason": "failed"}) if step.name == point.failed_step else step
        for step in run.steps
    )
    gates = decide_gates(run, as_far_as_known=True)
    return describe_ended(run, EndedRun(steps, gates, outcome_of_code(error.exit_code), failure))


def _log_lines(sweep: SweepRecord) -> list[str]:
    lines = [f"sweep {sweep.id} of {sweep.recipe_name}, {sweep.started_at.isoformat()}, {sweep.wall_s:.3f} s"]
    for point in sweep.points:
        values = ", ".join(f"{name} {value}" for name, value in point.values.items())
        lines.append(f"point {point.number} ({values}): {point.outcome} {point.reason}".rstrip())
    for session in sweep.sessions:
        began, ended = session.started_at.isoformat(), session.ended_at.isoformat()
        points = ", ".join(map(str, session.points))
        lines.append(
            f"session {session.number} on {session.device or 'no device'}: {began} to {ended}: points {points}"
        )
    return [*lines, f"stopped: {sweep.stopped_because}"]


def run_sweep(sweep: Sweep, request: Request, listener: Listener) -> SweepFinished:
    """Run a sweep and write its folder and report; call it inside `working_on`.

    Results in the store are reused, so an interrupted sweep continues. Raises NdldFlowError for an error of the whole
    sweep, which leaves the folder of a failed run; a point that fails is a result.
    """
    outputs, listener = Outputs(request.outputs), synchronized(listener)
    check_target(sweep, request)
    outputs.store.locks.warn_once(lambda text: listener(Notice(text=text, warning=True)))
    with open_state(sweep, request, listener) as state:
        # A sweep that fails leaves the folder of a run of its base recipe, with the reason.
        base = state.open_run(sweep.base)
        base.command = request.command_in(outputs.sweeps / sweep.base.name / base.id)
        with recording_failure(base):
            search = make_search(sweep.space, sweep.options)
            state.check_names = cache(partial(refuse_wrong_inputs_of_points, sweep, state))
            listener(SweepStarted(recipe=sweep.base.name, method=sweep.section.method, point_count=search.size))
            with pushing_results(state.cache, state.known.values):
                tried = try_points(sweep, search, state)
                finalists = _measure_winners(sweep, tried, state)
    ended = Ended(sweep, state, tried, finalists, base)
    record = describe_sweep(ended)
    finished = _find_equal(record, ended)
    if finished is None:
        ended.state.listener(Notice(text=f"writing the reports of {counted(len(record.points), 'point')}"))
        finished = _describe_end(record, write_sweep_folder(record, ended), ended, nothing_to_do=False)
    return finished.model_copy(update={"applied": apply_best(record, ended.tried, ended.sweep, request)})


def _measure_winners(sweep: Sweep, tried: TriedPoints, state: SweepState) -> dict[int, Finalist]:
    """Measure the best points again, in turns; return them by number."""
    numbers = choose_finalists(tried, sweep)
    winners = [point for point in tried.points if point.number in numbers]
    if sum(point.session is not None for point in winners) > (0 if sweep.short else 1):
        numbers_text = ", ".join(str(point.number) for point in winners)
        state.listener(Notice(text=f"measuring the best again, in turns: points {numbers_text}"))
    return dict(measure_again(winners, sweep, state))


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
        text = f"the folder of sweep {name_folder(latest)} is damaged ({damage}): writing a new one"
        listener(Notice(text=text, warning=True))
        return None
    folder = outputs.sweeps / latest.parent.name / latest.name  # relative to the outputs folder as the user wrote it
    outputs.mend_latest(folder)
    return _describe_end(earlier, folder, ended, nothing_to_do=True)


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
        too_noisy=record.too_noisy is not None,
        outcomes=dict(Counter(point.outcome for point in record.points)),
        metrics=metrics,
        artifacts=find_artifacts(run, folder / best.folder) if best is not None and run is not None else {},
        wall_s=time.perf_counter() - ended.base.start,
    )
