"""The history of a recipe's metrics: series from all its runs, their steps, what differed, and accepted changes."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from ndld_flow.base.declared_metrics import Better, which_is_better
from ndld_flow.base.errors import FormatError, RequestError, UnknownNameError
from ndld_flow.base.quantities import counted, finite
from ndld_flow.base.text import joined
from ndld_flow.base.users import name_me
from ndld_flow.history.series import Measured, Subject, differing, read_facts
from ndld_flow.history.steps import (
    LEAST_AFTER,
    LEAST_BEFORE,
    LEAST_CHANGE,
    Step,
    StepRules,
    best_level,
    find_drift,
    find_steps,
    split_levels,
)
from ndld_flow.recipe.gates import Gate, GateError, parse_gate
from ndld_flow.records.document import DAMAGE, read_document, read_tree
from ndld_flow.records.history import (
    AcceptedChange,
    AcceptedChanges,
    Cause,
    HistoryPoint,
    HistoryStep,
    MetricHistory,
    MetricSeries,
    Trend,
)
from ndld_flow.records.measurement import Metric
from ndld_flow.records.noise import Noise, describe_noise
from ndld_flow.records.run_folder import RUN_RECORD, first_problem
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import ACCEPTED, Outputs
from ndld_flow.runs.run_lines import Line, read_runs
from ndld_flow.store.files import share, write_text_atomically


def read_accepted(outputs: Outputs) -> AcceptedChanges:
    """Return the accepted changes. Raises RequestError for a damaged file, FormatError for one of another version."""
    path = outputs.root / ACCEPTED
    try:
        return read_document(AcceptedChanges, path)
    except FileNotFoundError:
        return AcceptedChanges()
    except (OSError, ValidationError) as error:
        raise RequestError(
            f"{path} cannot be read: {first_problem(error)}. Restore it from version control, or remove it to accept "
            "changes anew."
        ) from None


def accept_change(outputs: Outputs, series: MetricSeries, step: HistoryStep, note: str) -> AcceptedChange:
    """Note a step as accepted, and return the note; an earlier note about it is replaced.

    Raises RequestError for a note that is not UTF-8, and OutputsError if the file cannot be written.
    """
    try:
        note.encode()
    except UnicodeEncodeError:
        raise RequestError("the note is not UTF-8: write it again with other characters.") from None
    change = AcceptedChange(
        recipe=series.recipe,
        metric=series.metric,
        machine=series.machine,
        run=step.run,
        started_at=step.started_at,
        note=note,
        user=name_me(),
        accepted_at=datetime.now(UTC),
    )
    with explaining_disk("history accept", outputs.root), outputs.store.locks.hold("publish"):
        others = [each for each in read_accepted(outputs).changes if each != step.accepted]
        text = AcceptedChanges(changes=(*others, change)).to_json()
        write_text_atomically(outputs.root / ACCEPTED, text)
        share(outputs.root / ACCEPTED)
    return change


def find_step(series: Sequence[MetricSeries], metric: str, run: str) -> tuple[MetricSeries, HistoryStep]:
    """Return the step to accept: the newest of a metric, or that at a run.

    Raises RequestError if there is none, and if several series have one and no run is named.
    """
    found = [
        (each, step) for each in series for step in each.steps if not run or step.run.endswith(run) or run in step.run
    ]
    if not found:
        at = f" at run {run}" if run else ""
        raise RequestError(f"history accept: {metric} has no step{at}. `ndld-flow history` lists the steps.")
    newest = [(each, step) for each, step in found if step is each.steps[-1]] if not run else found
    if len(newest) > 1:
        shown = ", ".join(f"{step.run} ({each.machine})" for each, step in newest[:6])
        raise RequestError(
            f"history accept: {len(newest)} series of {metric} have a step. Name its run with --at: {shown}."
        )
    return newest[0]


_MAIN = "latency.median"
_MEASURED_UNITS = ("ms", "s", "1/s")
"""Units of metrics to which learned noise, which is that of latencies, applies."""
_ACCEPTED_WITHIN = 5
"""Number of points between an accepted change and the step that it means: positions become more precise."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The facts of a run that a history needs."""

    id: str
    started_at: str
    """ISO 8601; empty if its record cannot be read."""
    commit: str
    gates: tuple[str, ...]
    measured: Sequence[Measured]

    @classmethod
    def read(cls, name: str, line: Line) -> _Run:
        """Return the run of a line. Raises the errors of `DAMAGE`."""
        brief = line.brief()
        started_at = str(brief["started_at"])
        if datetime.fromisoformat(started_at).tzinfo is None:
            raise ValueError("a time without its zone")
        gates = tuple(str(gate) for gate in brief["recipe"]["gates"])
        return cls(name.rpartition("/")[2], started_at, str(brief.get("commit", "")), gates, line.measured())


class _Value(NamedTuple):
    """The value of a metric in one run."""

    run: _Run
    value: float
    unit: str
    measured: Measured


def read_history(
    outputs: Outputs, recipe: str = "", metrics: Sequence[str] = (), *, every: bool = False
) -> MetricHistory:
    """Return the history of a recipe; of the only one if none is named.

    `metrics` are `STEP.METRIC`, metrics without their step, or patterns such as `*.latency.*`; by default those that
    the gates name, or the median latencies; with `every`, all. Raises RequestError for an unknown recipe or metric.
    """
    if not recipe:
        names = _recipes(outputs)
        if len(names) != 1:
            message = f"name one of {', '.join(names[:12])}" if names else "run a recipe first"
            raise RequestError(f"history: {outputs.root} has runs of {len(names)} recipes; {message}.")
        recipe = names[0]
    if "/" in recipe or "\0" in recipe or recipe.startswith("."):
        raise RequestError(f"history of {recipe!r}: give the name of a recipe, as `ndld-flow runs` lists it.")
    runs = _sorted_runs(outputs, recipe)
    if not runs:
        raise UnknownNameError(f"history: {outputs.root} has no run of a recipe {recipe!r}", recipe, _recipes(outputs))
    steps = {id(each.what): each.what for run in runs for each in run.measured}  # most runs share theirs
    known = sorted({f"{what.step}.{name}" for what in steps.values() for name in what.units})
    chosen = known if every and not metrics else _choose(known, metrics, runs)
    context = _Context(outputs.runs / recipe, runs, read_accepted(outputs).changes, _learned_noise(outputs), {})
    return MetricHistory(
        recipe=recipe,
        series=tuple(each for metric in chosen for each in context.series(recipe, metric)),
        run_count=sum(bool(run.started_at) for run in runs),
        unreadable=tuple(run.id for run in runs if not run.started_at),
        main=tuple(_choose(known, (), runs)),
        metrics=tuple(known),
    )


def read_earlier(outputs: Outputs, recipe: str, metric: str, measured: Measured) -> MetricSeries | None:
    """Return the series to which a measurement belongs, without it; None if it is the first."""
    runs = _sorted_runs(outputs, recipe)
    context = _Context(outputs.runs / recipe, runs, read_accepted(outputs).changes, _learned_noise(outputs), {})
    values = [
        value
        for value in context.values(metric)
        if value.measured.measurement != measured.measurement and value.measured.what.subject == measured.what.subject
    ]
    return context.describe(recipe, metric, values) if values else None


def _sorted_runs(outputs: Outputs, recipe: str) -> list[_Run]:
    """Return the runs of a recipe, oldest first."""
    found = read_runs(outputs, [recipe], _Run.read)
    runs = [run or _Run(name.rpartition("/")[2], "", "", (), ()) for name, run in found.items()]
    return sorted(runs, key=lambda run: (run.started_at, run.id))


def _learned_noise(outputs: Outputs) -> tuple[Noise, ...]:
    if not outputs.noise.is_dir():
        return ()
    from ndld_flow.runs.references import read_noise  # only where there is any: it imports records of all kinds

    return tuple(read_noise(outputs))


def _recipes(outputs: Outputs) -> list[str]:
    return sorted(path.name for path in outputs.runs.glob("[!.]*") if path.is_dir())


def _choose(known: Sequence[str], wanted: Sequence[str], runs: Sequence[_Run]) -> list[str]:
    if not wanted:
        named = dict.fromkeys(name for gate in _newest_gates(runs) for name in gate.names if name in known)
        return list(named) or [name for name in known if name.partition(".")[2] == _MAIN] or list(known[:1])
    chosen: dict[str, None] = {}
    for word in wanted:
        found = [name for name in known if fnmatchcase(name, word) or fnmatchcase(name.partition(".")[2], word)]
        if not found:
            raise UnknownNameError(f"history: no run has a metric `{word}`", word, known)
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _newest_gates(runs: Sequence[_Run]) -> list[Gate]:
    """Return the gates of the newest run that can be parsed."""
    gates = []
    for text in next((run.gates for run in reversed(runs) if run.started_at), ()):
        with contextlib.suppress(GateError):
            gates.append(parse_gate(text))
    return gates


def _limit(gate: Gate, metric: str, known: Mapping[str, Metric]) -> float | None:
    """Return the bound of a gate on one metric; None for a gate on something else, and if it is unknown."""
    try:
        if gate.left.text.strip() != metric or gate.right.names:
            return None
        gate.check_units(lambda name: known[name].unit)
        limit = gate.decide(known).right
    except (GateError, KeyError):
        return None
    return finite(limit)


@dataclass(slots=True)
class _Point:
    """A measurement, with all that is known of it. There may be 10,000: pydantic validates them all at once."""

    run: _Run
    """The first run that shows it."""
    value: float
    runs: int
    doubt: str
    disturbed: bool
    exact: bool

    @property
    def started_at(self) -> datetime:
        return datetime.fromisoformat(self.run.started_at)

    def as_record(self) -> dict[str, object]:
        """Return the values of a `HistoryPoint`."""
        return {
            "run": self.run.id,
            "started_at": self.run.started_at,
            "value": self.value,
            "commit": self.run.commit,
            "runs": self.runs,
            "doubt": self.doubt,
        }


_POINTS: TypeAdapter[tuple[HistoryPoint, ...]] = TypeAdapter(tuple[HistoryPoint, ...])


@dataclass(frozen=True)
class _Context:
    """What all series of a recipe need."""

    folder: Path
    """The folder of the runs of a recipe."""
    runs: Sequence[_Run]
    """All runs of the recipe, oldest first."""
    accepted: Sequence[AcceptedChange]
    noise: Sequence[Noise]
    facts: dict[tuple[str, str], Mapping[str, str]]
    """Those of measurements at steps, which were read from the records, by run and step."""

    def values(self, metric: str) -> Iterator[_Value]:
        """Yield all values of a metric that are finite, in the order of the runs."""
        step, _, name = metric.partition(".")
        for run in self.runs:
            for each in run.measured:
                index = each.what.places.get(name) if each.what.step == step else None
                if index is not None and math.isfinite(value := each.values[index]):
                    yield _Value(run, value, each.what.units[name], each)

    def series(self, recipe: str, metric: str) -> Iterator[MetricSeries]:
        """Yield the series of a metric, that with the newest point first."""
        values: dict[tuple[str, str], list[_Value]] = {}
        for value in self.values(metric):
            values.setdefault((value.measured.what.subject, value.unit), []).append(value)
        for own in sorted(values.values(), key=lambda own: own[-1].run.started_at, reverse=True):
            yield self.describe(recipe, metric, own)

    def _points(self, values: Sequence[_Value]) -> list[_Point]:
        """Return each measurement once. A result without noise that returns after another one is a new point."""
        points: list[_Point] = []
        places: dict[str, int] = {}
        for run, value, _, own in values:
            index = places.get(own.measurement)
            if index is not None and (not own.what.exact or index == len(points) - 1):
                points[index].runs += 1
                points[index].doubt = points[index].doubt if own.doubt else ""
                continue
            places[own.measurement] = len(points)
            points.append(_Point(run, value, 1, own.doubt, own.disturbed, own.what.exact))
        return points

    def describe(self, recipe: str, metric: str, own: Sequence[_Value]) -> MetricSeries:
        """Return the series of these values, at least one, which have one subject."""
        unit, subject, points = own[-1].unit, Subject.read(own[-1].measured.what.subject), self._points(own)
        better = which_is_better(metric, unit)
        least_change, noise = self._noise(subject, unit)
        exact = points[-1].exact
        values = [each.value for each in points]
        sound = [index for index, each in enumerate(points) if not each.disturbed]
        found = find_steps([values[place] for place in sound], StepRules(least_change, exact))
        found = [_placed(step, sound) for step in found]
        steps = tuple(self._step(recipe, metric, subject, points, step, better) for step in found)
        accepted = max((step.place for step in steps if step.accepted), default=0)
        starts = [step.place for step in steps]
        present = split_levels(values, [not each.disturbed for each in points], starts)
        good = split_levels(values, [not each.doubt for each in points], starts)
        best = best_level([level for level in good if level.start >= accepted], better)
        begin = starts[-1] if starts else 0
        drift = None if exact else find_drift([values[place] for place in sound if place >= begin], least_change)
        levels = {
            metric: points[-1].value,
            "history.best": best.median if best else None,
            "history.last": good[-1].median if good and good[-1].start >= begin else None,
        }
        known = {name: Metric(value=value, unit=unit) for name, value in levels.items() if value is not None}
        return MetricSeries(
            recipe=recipe,
            metric=metric,
            unit=unit,
            better=better,
            machine=subject.machine,
            settings=subject.described,
            inputs=json.dumps(subject.inputs) if subject.inputs else "",
            exact=exact,
            least_change=0.0 if exact else least_change,
            noise="no noise: every change counts" if exact else noise,
            points=_POINTS.validate_python([each.as_record() for each in points]),
            steps=steps,
            trend=Trend(change=drift.change, points=drift.points) if drift else None,
            level=present[-1].median if present else None,
            good_level=levels["history.last"],
            best=levels["history.best"],
            limit=next(
                (limit for gate in _newest_gates(self.runs) if (limit := _limit(gate, metric, known)) is not None), None
            ),
            remark=_remark(len(sound), exact=exact),
        )

    def _noise(self, subject: Subject, unit: str) -> tuple[float, str]:
        """Return the smallest change that is a step, and its origin."""
        backend, provider = (str(subject.settings.get(name, "")) for name in ("backend", "provider"))
        for noise in self.noise if unit in _MEASURED_UNITS else ():
            machine = f"{noise.machine.cpu} x {noise.machine.cpu_count}, {', '.join(noise.machine.gpus) or 'no GPU'}"
            if (
                machine in subject.machine
                and noise.backend == backend
                and noise.provider.lower().startswith(provider.lower())
            ):
                return max(noise.threshold, LEAST_CHANGE), describe_noise(noise)
        return LEAST_CHANGE, f"assumed: {LEAST_CHANGE:.0%}; `ndld-flow noise` learns it".replace("%", " %")

    def _step(
        self, recipe: str, metric: str, subject: Subject, points: Sequence[_Point], step: Step, better: Better
    ) -> HistoryStep:
        last, first = points[step.place - 1], points[step.place]
        name, causes, others, why = metric.partition(".")[0], tuple[Cause, ...](), tuple[Cause, ...](), ""
        try:
            causes = differing(self._facts(last, name), self._facts(first, name))
            near = points[max(step.earliest - 1, 0) : step.latest + 1]
            around = [self._facts(point, name) for point in near]
            changes = {cause: None for one, other in pairwise(around) for cause in differing(one, other)}
            others = tuple(cause for cause in changes if cause.fact not in {each.fact for each in causes})
        except (OSError, FormatError, *DAMAGE):
            causes, why = (), "what differed is unknown: the record of a run near it cannot be read"
        commits = (last.run.commit, first.run.commit)
        if better == "neither":
            verdict = "changed"
        else:
            verdict = "improved" if (step.after < step.before) == (better == "lower") else "regressed"
        return HistoryStep(
            place=step.place,
            run=first.run.id,
            started_at=first.started_at,
            before=step.before,
            after=step.after,
            ratio=step.ratio,
            low=step.low,
            high=step.high,
            verdict=verdict,
            earliest=step.earliest,
            latest=step.latest,
            causes=causes,
            near=others,
            commits=commits if commits[0] != commits[1] else ("", ""),
            why=why or _explain(causes, others),
            accepted=self._accepted(recipe, metric, subject, points, step),
        )

    def _facts(self, point: _Point, step: str) -> Mapping[str, str]:
        """Return the facts of a measurement. Raises OSError, and the errors of `DAMAGE`."""
        name = point.run.id, step
        if name not in self.facts:
            self.facts[name] = read_facts(read_tree(self.folder / point.run.id / RUN_RECORD), step)
        return self.facts[name]

    def _accepted(
        self, recipe: str, metric: str, subject: Subject, points: Sequence[_Point], step: Step
    ) -> AcceptedChange | None:
        """Return the acceptance of a step: at its run, or where that does not exist, at the first run since then."""
        for change in self.accepted:
            if (change.recipe, change.metric, change.machine) != (recipe, metric, subject.machine):
                continue
            place = next(
                (
                    index
                    for index, each in enumerate(points)
                    if each.run.id == change.run or each.started_at >= change.started_at
                ),
                None,
            )
            if place is not None and abs(place - step.place) <= _ACCEPTED_WITHIN:
                return change
        return None


def _placed(step: Step, places: Sequence[int]) -> Step:
    """Return a step of the undisturbed points with its positions among all points."""
    at = {
        name: places[min(getattr(step, name), len(places) - 1)] for name in ("place", "earliest", "latest", "found_at")
    }
    return replace(step, **at)


def _explain(causes: Sequence[Cause], near: Sequence[Cause]) -> str:
    """Return the attribution. Facts that changed together cannot be told apart by a series."""
    if not causes and not near:
        return (
            "nothing that is recorded differed: the same step, model, settings, libraries and machine. The load, "
            "heat, or firmware may have changed"
        )
    names = [cause.fact for cause in causes]
    if not causes:
        return f"nothing differed at this point; near it, {joined(_some([cause.fact for cause in near]))} changed"
    together = f"{len(names)} facts changed together: " if len(names) > 1 else ""
    text = f"{together}{joined(_some([_change(cause) for cause in causes]))}"
    return f"{text}; near it also {joined(_some([cause.fact for cause in near]))}" if near else text


def _change(cause: Cause) -> str:
    if not cause.before or not cause.after:
        return f"{cause.fact} {'added' if cause.after else 'removed'}"
    return f"{cause.fact} {_short(cause.before)} -> {_short(cause.after)}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _some(names: Sequence[str], most: int = 4) -> list[str]:
    return list(names) if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]


def _remark(count: int, *, exact: bool) -> str:
    needed = LEAST_BEFORE + LEAST_AFTER
    if exact or count >= needed:
        return ""
    return f"{counted(count, 'measurement')}; a change shows from {needed} on"
