"""Outcome of a sweep: its verdict, the failures by reason, and the measurement sessions."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import yaml
from pydantic import JsonValue

from ndld_flow.base.places import change_value, find_value, split_key
from ndld_flow.base.quantities import (
    ABSENT,
    change,
    counted,
    parse_bytes,
    parse_duration_ms,
    parse_percent,
    quantity,
    seconds,
)
from ndld_flow.base.text import first_of, short_name, value_text, visible_text
from ndld_flow.records.outcomes import PointOutcome
from ndld_flow.records.sweep import MeasuredAgain, MeasurementSession, SweepObjective, SweepPoint, SweepRecord
from ndld_flow.report.comparison.verdicts import ratio_text
from ndld_flow.report.tables import Column, Table, Value

_OWN_FOLDER = re.compile(r"points/[\w-]+")


def values_words(point: SweepPoint, most: int = 8) -> str:
    """Return `speed.threads 2, speed.optimization all`."""
    shown = [f"{short_name(name, 60)} {value_words(value)}" for name, value in list(point.values.items())[:most]]
    left = len(point.values) - most
    return ", ".join([*shown, f"{left} more"] if left > 0 else shown)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return name -> short name without the step, `threads` for `speed.threads`, if unique."""
    tails = {name: name.partition(".")[2] or name for name in names}
    times = Counter(tails.values())
    return {name: short_name(tail if times[tail] == 1 else name, 60) for name, tail in tails.items()}


def value_words(value: JsonValue) -> str:
    """Return a value as in the recipe, on one line of limited length."""
    return short_name(value_text(value), 80)


def points_words(numbers: Sequence[int], most: int = 12) -> str:
    """Return `point 4`, `points 4 and 9` or `points 1, 2, 3 and 7 more`."""
    if len(numbers) == 1:
        return f"point {numbers[0]}"
    shown = [str(number) for number in numbers[:most]]
    left = len(numbers) - most
    last = f"{left} more" if left > 0 else shown.pop()
    return f"points {', '.join(shown)} and {last}"


def objective_words(value: float | None, objective: SweepObjective) -> str:
    """Return `3.21 ms`."""
    return ABSENT if value is None else quantity(value, short_name(objective.unit, 20))


def objectives_words(values: Sequence[float | None], objectives: Sequence[SweepObjective]) -> str:
    """Return `3.21 ms` for one objective; several, and those without a unit, have names: `clean.nodes 239`."""
    shown = [objective_words(value, objective) for value, objective in zip(values, objectives, strict=False)]
    if len(objectives) == 1 and objectives[0].unit:
        return shown[0] if shown else ABSENT
    return ", ".join(
        f"{short_name(objective.text, 60)} {text}" for objective, text in zip(objectives, shown, strict=False)
    )


def final(point: SweepPoint) -> tuple[float | None, ...]:
    """Return a point's objectives of the second measurement if there is one, otherwise of the first."""
    return point.again.objectives if point.again is not None else point.objectives


def link(point: SweepPoint) -> str:
    """Return the path of a point's report from the sweep's; empty without one. Edited records must not link
    elsewhere."""
    return f"./{point.folder}/report.html" if _OWN_FOLDER.fullmatch(point.folder) else ""


def key_of(value: JsonValue) -> str:
    """Return a key that is equal only for equal values of equal type: 1, 1.0 and true differ."""
    # Most values are short texts and numbers, for which JSON's writer takes ten times longer.
    if isinstance(value, str):
        return f"'{value}"
    return repr(value) if isinstance(value, bool | int | float) else json.dumps(value, sort_keys=True)


def is_number(value: JsonValue) -> bool:
    """Return whether a value of a recipe is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def recipe_lines(point: SweepPoint, recipe: Mapping[str, JsonValue]) -> str:
    """Return the recipe lines of a point as YAML: mappings in blocks, values on one line.

    A list with one changed item is written in full, because YAML cannot express a partial change.
    """
    tree: dict[str, object] = {}
    for key, value in point.changes.items():
        (*parents, last), items, held = _split_at_list(key, recipe)
        place = tree
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        written = place.get(last)
        inside = written.value if isinstance(written, _Leaf) else held
        try:
            place[last] = _Leaf(change_value(inside, items, value))
        except ValueError:  # there is no such item: the value replaces the list
            place[last] = _Leaf(value)
    if not tree:
        return ""
    text: str = yaml.dump(
        tree, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False, width=10**9
    )
    return visible_text(text).rstrip("\n")


def find_own_point(record: SweepRecord) -> SweepPoint | None:
    """Return the point with the recipe's own values, including defaults; None if there is none."""
    for point in record.points:
        changes = point.changes.items()
        if changes and all(_is_same(find_value(record.recipe, key.split(".")), value) for key, value in changes):
            return point
    return None


def _split_at_list(key: str, recipe: Mapping[str, JsonValue]) -> tuple[list[str], Sequence[str], JsonValue]:
    """Split `inputs.x.1.shape.0` into names of mappings and a path within a list, with the recipe's value there."""
    names: list[str] = []
    inside: JsonValue = dict(recipe)
    rest: Sequence[str] = key.split(".")
    while rest and not isinstance(inside, list):
        known = inside if isinstance(inside, dict) else {}
        name, rest = split_key(known, rest)
        names.append(name)
        inside = known.get(name)
    return names, rest, inside


def _is_same(own: JsonValue, value: JsonValue) -> bool:
    """Return whether a resolved recipe's value equals an axis' value; sizes, durations and shares are resolved to
    numbers.
    """
    if key_of(own) == key_of(value):
        return True
    if not is_number(own):
        return False
    return own in list(_readings(value)) if isinstance(value, str) else is_number(value) and own == value


def _readings(text: str) -> Iterator[float]:
    """Yield all possible readings of a quantity, as the record does not have the setting's unit."""
    for parse in (parse_bytes, parse_duration_ms, parse_percent):
        with contextlib.suppress(ValueError):
            yield parse(text)


@dataclass(frozen=True)
class _Leaf:
    """A value, which is written on one line, as opposed to a mapping on its path."""

    value: JsonValue


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML's writer with leaves."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_leaf(self, leaf: _Leaf) -> yaml.Node:
        node: yaml.Node = self.represent_data(leaf.value)
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = True
        return node


_Dumper.add_representer(_Leaf, _Dumper.represent_leaf)


_WENT: dict[PointOutcome, str] = {"refused": "were refused", "inconclusive": "are undecided", "failed": "failed"}
_BETTER = {"ms": "faster", "s": "faster", "1/s": "faster", "bytes": "smaller"}


@dataclass(frozen=True)
class SweepVerdict:
    """The sentence and its parts."""

    passed: bool
    inconclusive: bool
    """With `passed` False: no point passed, but some could not be decided."""
    sentence: str
    """`Point 17 is best: speed.threads 2; 3.21 ms, 1.42x as fast as the recipe's own settings (point 1).`"""
    is_noisy: bool = False
    """Points passed, but their measurements do not rank them."""

    @property
    def outcome(self) -> str:
        return "inconclusive" if self.inconclusive or self.is_noisy else "passed" if self.passed else "failed"


def sweep_verdict(record: SweepRecord) -> SweepVerdict:
    """Return the result."""
    best = best_point(record)
    if best is None:
        return SweepVerdict(record.passed, record.inconclusive, _without_best(record))
    if (noisy := record.too_noisy) is not None:
        first, again = (objective_words(value, record.objectives[0]) for value in (noisy.first, noisy.again))
        sentence = f"Too noisy to rank: point {noisy.number} was {first}, then {again}, more than any two points differ"
        load = load_words(record)
        sentence += f"; {load}." if load else "."
        return SweepVerdict(record.passed, record.inconclusive, sentence, is_noisy=True)
    own = find_own_point(record)
    is_own = own is not None and own.number == best.number
    gain = _gain(best, own, record.objectives[0]) if own and not is_own else ""
    trade = len(record.objectives) > 1 and sum(point.on_front for point in record.points) > 1
    decided_by = f" in {short_name(record.objectives[0].text, 60)}" if trade else ""
    tied = [point.number for point in record.points if point.tied]
    unsure = [point.number for point in record.points if point.again and point.again.verdict == "inconclusive"]
    chosen_on = first_of([short_name(name, 60) for name in record.chosen_on], 2)
    parts = [
        f"Point {best.number} is best{decided_by}{', the recipe unchanged' if is_own else ''}: {values_words(best)}",
        ", ".join(filter(None, [objectives_words(final(best), record.objectives), gain])),
        f"{points_words(tied)} {'tie' if len(tied) > 1 else 'ties'}" if tied else "",
        f"{points_words(unsure)} may be as good" if unsure else "",
        _front(record),
        "" if own else "no point has the recipe's own settings",
        f"chosen on the samples of {chosen_on}, so it may do worse on others" if chosen_on else "",
    ]
    return SweepVerdict(record.passed, record.inconclusive, "; ".join(filter(None, parts)) + ".")


def load_words(record: SweepRecord) -> str:
    """Return `load 1.98 to 2.56 on 2 CPUs`, of all measurement sessions; empty if it was not recorded."""
    loads = [session.load for session in record.sessions if session.load is not None]
    if not loads:
        return ""
    low, high = (f"{end:.3g}" for end in (min(loads), max(loads)))
    cpus = f" on {counted(record.machine.cpu_count, 'CPU')}" if record.machine.cpu_count else ""
    return f"load {low if low == high else f'{low} to {high}'}{cpus}"


def best_point(record: SweepRecord) -> SweepPoint | None:
    """Return the best point; None if there is none."""
    return next((point for point in record.points if point.number == record.best), None) if record.objectives else None


def counts_words(record: SweepRecord) -> str:
    """Return `22 passed, 1 refused, 1 failed`, without zeros."""
    numbers: Counter[PointOutcome] = Counter(point.outcome for point in record.points)
    shown = (f"{numbers[outcome]} {outcome}" for outcome in get_args(PointOutcome) if numbers[outcome])
    return ", ".join(shown)


def _without_best(record: SweepRecord) -> str:
    if not record.points:
        return "No point was tried."
    if not record.passed:
        return f"No point passed: {counts_words(record)}."
    if not record.objectives:
        return f"There is no objective, so that no point is best: {counts_words(record)}."
    return f"No point is best, as none has all objectives: {counts_words(record)}."


def _front(record: SweepRecord) -> str:
    front = [point.number for point in record.points if point.on_front]
    if len(record.objectives) < 2 or not front:
        return ""
    if len(front) == 1:
        return "no other point is better in any of these"
    return f"no point beats {points_words(front)} in everything"


def _gain(best: SweepPoint, own: SweepPoint, objective: SweepObjective) -> str:
    """Return the gain over the recipe's own settings, by the second measurement if there is one."""
    name = f"the recipe's own settings (point {own.number})"
    word = _BETTER.get(objective.unit, "lower" if objective.direction == "minimize" else "higher")
    by = f"as fast as {name}" if word == "faster" else f"{word} than {name}"
    if own.outcome != "passed":
        return f"where {name} {_WENT[own.outcome]}"
    if own.tied:
        return f"within the noise of {name}"
    if best.again and own.again:
        return _gain_again(own.again, objective.direction, f"{word} than {name}", by)
    new, old = (point.objectives[0] if point.objectives else None for point in (best, own))
    if new is None or old is None:
        return ""
    ahead, behind = (old, new) if objective.direction == "minimize" else (new, old)
    ratio = ahead / behind if behind > 0 else 0.0  # above 1 if the new value is better
    # The value before this text is of the second measurement if there is one, and no ratio may mix the two.
    first = f"{objective_words(new, objective)} " if best.again else ""
    against = f"against {objective_words(old, objective)}"
    if ratio >= 1 and change(1, ratio) != "±0 %":
        text = f"{ratio_text(ratio)} {by}, by the first measurement"
        return f"{text}: {first}{against}" if first else text
    return f"{first}{against} of {name}, by the first measurement"


def _gain_again(own: MeasuredAgain, direction: str, than: str, by: str) -> str:
    """Return the gain by the second measurement: `1.26x (1.07x to 1.66x) as fast as ...`."""
    if own.verdict == "inconclusive":
        return f"not {than} at 95 % confidence"
    ratios = [
        ratio_ for ratio_ in (own.ratio, own.ratio_low, own.ratio_high) if ratio_ is not None and 0 < ratio_ < math.inf
    ]
    if not ratios:
        return f"{than} at 95 % confidence"
    ratio, *ends = ratios if direction == "minimize" else [1 / ratio_ for ratio_ in ratios]
    interval = f" ({ratio_text(min(ends))} to {ratio_text(max(ends))})" if len(ends) > 1 else ""
    return f"{ratio_text(ratio)}{interval} {by}"


_SESSIONS = (
    Column("#"),
    Column("Points"),
    Column("Steps"),
    Column("Device"),
    Column("Start"),
    Column("Duration", "number", seconds),
    Column("Note"),
    Column("Concurrent load"),
)


def session_table(record: SweepRecord) -> Table:
    """Return all measurement sessions, in order."""
    return Table(_SESSIONS, tuple(map(_session_row, record.sessions)))


def _session_row(session: MeasurementSession) -> tuple[Value, ...]:
    notes = [text for text, there in (("second measurement", session.again), ("reused", session.reused)) if there]
    load = [] if session.load is None else [f"load {session.load:.3g}"]
    return (
        session.number,
        points_words(session.points) if session.points else "",
        ", ".join(short_name(name, 60) for name in session.steps),
        short_name(session.device, 80) + (f" on {short_name(session.machine, 200)}" if session.machine else ""),
        f"{session.started_at:%H:%M:%S}",
        (session.ended_at - session.started_at).total_seconds(),
        ", ".join(notes),
        "; ".join([*load, *(short_name(process, 200) for process in session.concurrent[:10])]) or "none",
    )


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_GROUPS_SHOWN = 60


@dataclass(frozen=True)
class FailureGroup:
    """Points with one outcome, step and reason, ignoring numbers in the reason."""

    outcome: PointOutcome
    step: str
    reason: str
    """Reason of the first point."""
    alike: bool
    """True if all have exactly this reason."""
    points: tuple[int, ...]
    rows: tuple[int, ...]
    """Their positions among the points."""


def collect_failures(record: SweepRecord) -> tuple[FailureGroup, ...]:
    """Return the groups, those with most points first."""
    groups: dict[tuple[PointOutcome, str, str], list[tuple[int, SweepPoint]]] = defaultdict(list)
    for index, point in enumerate(record.points):
        if point.outcome != "passed":
            groups[point.outcome, point.failed_step, _NUMBER.sub("#", point.reason)].append((index, point))
    views = [_failure_view(members) for members in groups.values()]
    return tuple(sorted(views, key=lambda view: -len(view.points)))[:_GROUPS_SHOWN]


def _failure_view(members: list[tuple[int, SweepPoint]]) -> FailureGroup:
    first = members[0][1]
    return FailureGroup(
        outcome=first.outcome,
        step=short_name(first.failed_step, 80),
        reason=short_name(first.reason, 600) or "no reason was recorded",
        alike=len({point.reason for _, point in members}) == 1,
        points=tuple(point.number for _, point in members),
        rows=tuple(place for place, _ in members),
    )


_MOST_REASONS = 3


def summarize_sweep(record: SweepRecord) -> Iterator[str]:
    """Yield the result, the work done, and the reasons of failures."""
    yield sweep_verdict(record).sentence
    tried = f"{counted(len(record.points), 'point')}: {counts_words(record)}" if record.points else "no points"
    steps = f"{record.steps_done} steps done, {record.steps_shared} shared, {record.steps_reused} reused"
    yield f"{tried}; {record.stopped_because}; {steps}; {seconds(record.wall_s)}"
    undecided = record.inconclusive
    # The most frequent reasons come first; their numbers are ignored.
    groups = [group for group in collect_failures(record) if group.outcome == "failed" or undecided]
    for group in groups[:_MOST_REASONS]:
        shown = first_of(list(map(str, group.points)), 5)
        yield f"{group.outcome}: {shown}: {group.reason}{'' if group.alike else ' (other points differ in numbers)'}"
    if len(groups) > _MOST_REASONS:
        yield f"failed for {len(groups) - _MOST_REASONS} more reasons; see the report"
