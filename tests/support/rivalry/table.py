"""The table of the benchmark: who delivered what, how fast it is, and which goals are met."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.rivals.protocol import Delivery
from tests.support.rivalry.contest import Outcome, Terms
from tests.support.rivalry.judging import Clock, Ratio, Times, compare

OURS, GRID = "optimize_any", "grid"
_COMMANDS = (OURS, "optimize_onnxruntime")
_LEAST_NOISE = 0.01
"""Two equal models may differ by 1 %, as in `optimize`, or by as much as the source differs from itself."""
_LEVEL = 0.97
"""A model that is at least so many times as fast as another is level with it."""
_GOALS_S = {20.0: 60.0, 100.0: 180.0}
"""Largest latency of the source in ms -> the time that a command may take."""


@dataclass(frozen=True)
class Row:
    """One subject: the outcome of each contender, and the times of what it delivered."""

    subject: str
    outcomes: Mapping[str, Outcome]
    times: Mapping[str, Sequence[tuple[Delivery, Times | None]]]
    """By contender; times of the right deliveries only."""
    source: Times
    twin: Times
    """The source again."""
    clock: Clock = "cpu"

    @property
    def source_ms(self) -> float:
        """Return the latency of the source."""
        return statistics.median(self.source.cpu if self.clock == "cpu" else self.source.wall)

    @property
    def noise(self) -> float:
        """Return the difference that equal models may have."""
        return max(_LEAST_NOISE, abs(self.compare(self.source, self.twin).median - 1))

    @property
    def level(self) -> float:
        """Return from which ratio on a model is level with another: 3 % are allowed, or the noise."""
        return min(_LEVEL, 1 - self.noise)

    @property
    def goal_s(self) -> float | None:
        """Return the time that the command may take; None for a model that is too slow to have a goal."""
        return next((goal_s for latency_ms, goal_s in _GOALS_S.items() if self.source_ms <= latency_ms), None)

    def compare(self, base: Times, candidate: Times) -> Ratio:
        """Return how many times as fast a model is as another, by the clock that decides."""
        return compare(base, candidate, self.clock)

    def best(self, contender: str) -> tuple[Delivery, Times] | None:
        """Return the fastest right delivery."""
        right = [(delivery, times) for delivery, times in self.times.get(contender, ()) if times is not None]
        return max(right, key=lambda item: self.compare(self.source, item[1]).median, default=None)

    def speed(self, contender: str) -> Ratio | None:
        """Return how many times as fast as the source a contender's model is; None if it delivered no right one."""
        best = self.best(contender)
        return self.compare(self.source, best[1]) if best is not None else None

    def versus(self, contender: str) -> Ratio | None:
        """Return how many times as fast as a contender's model that of `optimize` is."""
        own, other = self.best(OURS), self.best(contender)
        return self.compare(other[1], own[1]) if own is not None and other is not None else None

    def cell(self, contender: str) -> str:
        """Return the speed of a contender's model, or why there is none."""
        outcome, speed = self.outcomes.get(contender), self.speed(contender)
        if outcome is None:
            return "not run"
        if outcome.failed:
            return f"failed: {outcome.failed}"
        if speed is not None:
            return str(speed)
        if self.times.get(contender):
            return "right, not timed"
        found = [
            min(judged.cosine, 1.0 if judged.given is None else judged.given)
            for judged in outcome.judged
            if judged.cosine is not None
        ]
        return f"wrong: cosine {max(found):.4f}" if found else f"failed: {outcome.judged[0].failed}"


def print_table(rows: Sequence[Row], terms: Terms) -> None:
    """Print the speed of each contender on each subject as Markdown, then details and the goals."""
    names = sorted({name for row in rows for name in row.outcomes}, key=lambda name: (name not in (OURS, GRID), name))
    load = ", two busy loops while the contenders worked" if terms.loaded else ""
    clock = {"cpu": "CPU", "wall": "wall"}[terms.clock]
    print(
        f"Times as fast as the source, {clock} time, with intervals of 95 % confidence; cosine >= {terms.bound}, "
        f"threads: {terms.threads}{load}\n"
    )
    print(f"| model | source, ms | source again | {' | '.join(names)} |")
    print(f"|{'---|' * (len(names) + 3)}")
    for row in rows:
        twin = row.compare(row.source, row.twin)
        print(f"| {row.subject} | {row.source_ms:.3g} | {twin} | {' | '.join(map(row.cell, names))} |")
    print()
    for row in rows:
        _print_details(row, names)
    print()
    _print_goals(rows, [name for name in names if name not in (*_COMMANDS, GRID)], terms.bound)


def _print_details(row: Row, names: Sequence[str]) -> None:
    print(f"{row.subject}:")
    for name in names:
        outcome, best = row.outcomes.get(name), row.best(name)
        if outcome is None:
            continue
        what = f"{best[0].name or best[0].runtime}, {compare(row.source, best[1], 'wall')} by wall time" if best else ""
        versus = row.versus(name) if name != OURS else None
        behind = f"; optimize is {versus} as fast" if versus is not None else ""
        promised = f" of {outcome.budget_s:.0f}" if outcome.budget_s is not None else ""
        seconds = f"{outcome.command_s:.0f}{promised} s ({outcome.cpu_s:.0f} s of CPU)"
        said = f"; it says: {outcome.ending}" if outcome.ending else ""
        print(f"  {name}: {what or row.cell(name)}; {seconds}{said}{behind}")


def _print_goals(rows: Sequence[Row], rivals: Sequence[str], bound: float) -> None:
    own = [row for row in rows if row.best(OURS) is not None]
    _print_goal("bounds violated on samples", [row for row in rows if _violates(row, bound)])
    slower = [row for row in own if (speed := row.speed(OURS)) is not None and speed.high < 1 - row.noise]
    _print_goal("slower than the source", slower)
    with_grid = [row for row in rows if GRID in row.outcomes and OURS in row.outcomes]
    far = [row for row in with_grid if (versus := row.versus(GRID)) is not None and versus.median < row.level]
    _print_goal(f"not within 3 % of the grid's best, of {len(with_grid)}", far)
    for rival in rivals:
        print(f"against {rival}: {_record(own, rival)}")
    behind = [row for row in rows if any(verdict(row, rival) == "behind" for rival in rivals)]
    _print_goal(f"neither ahead of every right rival nor level with it, of {len(rows)}", behind)
    ran = [row for row in rows if OURS in row.outcomes]
    late = [row for row in ran if row.goal_s is not None and row.outcomes[OURS].command_s > row.goal_s]
    _print_goal(f"beyond the goal of 60 s up to 20 ms, 180 s up to 100 ms, of {len(ran)}", late)
    commands = [(row, name) for row in rows for name in _COMMANDS if name in row.outcomes]
    broken = [row for row, name in commands if breaks_promise(row.outcomes[name])]
    _print_goal(f"beyond the promised budget by more than 10 % and 10 s, of {len(commands)}", broken)
    wrong = [row for row, name in commands if ends_wrongly(row, name)]
    _print_goal(f"wrong endings, of {len(commands)}", wrong)


def _print_goal(what: str, missed: Sequence[Row]) -> None:
    print(f"{what}: {len(missed)} (goal: 0) {', '.join(row.subject for row in missed)}".rstrip())


def _violates(row: Row, bound: float) -> bool:
    outcome = row.outcomes.get(OURS)
    return outcome is not None and bool(outcome.deliveries) and not outcome.right(bound)


def breaks_promise(outcome: Outcome) -> bool:
    """Return whether a command took longer than it promised, by 10 % and by 10 s."""
    promised_s = outcome.budget_s
    return promised_s is not None and outcome.command_s > max(promised_s * 1.1, promised_s + 10)


def ends_wrongly(row: Row, name: str) -> bool:
    """Return whether a command failed, or says `faster` of what is not, or `nothing pays` where the grid has more."""
    outcome, speed, best = row.outcomes[name], row.speed(name), row.speed(GRID)
    if outcome.failed:
        return True
    if outcome.ending == "faster":
        return speed is None or speed.high < 1 + _LEAST_NOISE
    missed = name == OURS and best is not None and best.low > 1 / row.level
    return outcome.ending == "nothing pays" and missed


def verdict(row: Row, rival: str) -> str:
    """Return `ahead`, `level` or `behind`, or `not run`; `optimize` is ahead of a rival without a right model."""
    if rival not in row.outcomes or OURS not in row.outcomes:
        return "not run"
    if row.best(rival) is None:
        return "ahead"
    versus = row.versus(rival)
    if versus is None or versus.median < row.level:
        return "behind"
    return "ahead" if versus.low > 1 + row.noise else "level"


def _record(rows: Sequence[Row], rival: str) -> str:
    run = [row for row in rows if rival in row.outcomes]
    counts = {text: [row for row in run if verdict(row, rival) == text] for text in ("ahead", "level", "behind")}
    wrong = [row for row in run if row.best(rival) is None]
    listed = f" ({', '.join(row.subject for row in counts['behind'])})" if counts["behind"] else ""
    return (
        f"ahead on {len(counts['ahead'])} (on {len(wrong)} of them it is wrong or failed), level on "
        f"{len(counts['level'])}, behind on {len(counts['behind'])}{listed}"
    )
