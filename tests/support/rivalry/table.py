"""The table of the benchmark: who delivered what, how fast it is, and which goals are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.rivals.protocol import Delivery
from tests.support.rivalry.contest import Outcome
from tests.support.rivalry.judging import Ratio, Times, compare

OURS, GRID = "optimize_any", "grid"
_LEAST_NOISE = 0.01
"""Two equal models may differ by 1 %, as in `optimize`, or by as much as the source differs from itself."""
_NEAR_BEST = 0.97


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

    @property
    def noise(self) -> float:
        """Return the difference that equal models may have."""
        return max(_LEAST_NOISE, abs(compare(self.source, self.twin).median - 1))

    def best(self, contender: str) -> tuple[Delivery, Times] | None:
        """Return the fastest right delivery."""
        right = [(delivery, times) for delivery, times in self.times.get(contender, ()) if times is not None]
        return max(right, key=lambda each: compare(self.source, each[1]).median, default=None)

    def speed(self, contender: str) -> Ratio | None:
        """Return how many times as fast as the source a contender's model is; None if it delivered no right one."""
        best = self.best(contender)
        return compare(self.source, best[1]) if best is not None else None

    def versus(self, contender: str) -> Ratio | None:
        """Return how many times as fast as a contender's model that of `optimize` is."""
        own, other = self.best(OURS), self.best(contender)
        return compare(other[1], own[1]) if own is not None and other is not None else None

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


def print_table(rows: Sequence[Row], bound: float) -> None:
    """Print the speed of each contender on each subject as Markdown, then details and the goals."""
    names = sorted({name for row in rows for name in row.outcomes}, key=lambda name: (name not in (OURS, GRID), name))
    print(f"Times as fast as the source, CPU time, with intervals of 95 % confidence; cosine >= {bound}\n")
    print(f"| model | source, ms | source again | {' | '.join(names)} |")
    print(f"|{'---|' * (len(names) + 3)}")
    for row in rows:
        median = sorted(row.source.cpu)[len(row.source.cpu) // 2]
        twin = compare(row.source, row.twin)
        print(f"| {row.subject} | {median:.3g} | {twin} | {' | '.join(map(row.cell, names))} |")
    print()
    for row in rows:
        _print_details(row, names)
    print()
    _print_goals(rows, [name for name in names if name not in (OURS, GRID)], bound)


def _print_details(row: Row, names: Sequence[str]) -> None:
    print(f"{row.subject}:")
    for name in names:
        outcome, best = row.outcomes.get(name), row.best(name)
        if outcome is None:
            continue
        what = f"{best[0].name or best[0].runtime}, {compare(row.source, best[1], 'wall')} by wall time" if best else ""
        versus = row.versus(name) if name != OURS else None
        behind = f"; optimize is {versus} as fast" if versus is not None else ""
        seconds = f"{outcome.whole_s:.0f} s ({outcome.cpu_s:.0f} s of CPU)"
        print(f"  {name}: {what or row.cell(name)}; {seconds}{behind}")


def _print_goals(rows: Sequence[Row], rivals: Sequence[str], bound: float) -> None:
    own = [row for row in rows if row.best(OURS) is not None]
    near = [row for row in own if (best := row.versus(GRID)) is not None and best.median >= _NEAR_BEST]
    with_grid = [row for row in rows if GRID in row.outcomes and OURS in row.outcomes]
    quick = [row for row in with_grid if row.outcomes[OURS].whole_s <= row.outcomes[GRID].whole_s / 4]
    slower = [row for row in own if (speed := row.speed(OURS)) is not None and speed.high < 1 - row.noise]
    violated = [row for row in rows if OURS in row.outcomes and not row.outcomes[OURS].right(bound)]
    print(
        f"within 3 % of the grid's best: {len(near)} of {len(with_grid)} (goal: all); missed: {_names(with_grid, near)}"
    )
    print(f"in a quarter of the grid's time: {len(quick)} of {len(with_grid)} (goal: all)")
    print(f"bounds violated on unseen samples: {len(violated)} (goal: 0) {', '.join(row.subject for row in violated)}")
    print(f"slower than the source: {len(slower)} (goal: 0) {', '.join(row.subject for row in slower)}")
    for rival in rivals:
        print(f"against {rival}: {_record(own, rival)}")
    ahead = [row for row in own if all(verdict(row, rival) == "ahead" for rival in rivals)]
    behind = [row for row in own if any(verdict(row, rival) == "behind" for rival in rivals)]
    print(f"faster than every rival: {len(ahead)} of {len(rows)} (goal: 8 of 10)")
    print(f"behind a rival by more than noise: {len(behind)} (goal: 0) {', '.join(row.subject for row in behind)}")


def verdict(row: Row, rival: str) -> str:
    """Return `ahead`, `behind` or `equal`, or `not run`; `optimize` is ahead of a rival without a right model."""
    if rival not in row.outcomes:
        return "not run"
    versus = row.versus(rival)
    if versus is None:
        return "ahead"
    return "ahead" if versus.low > 1 + row.noise else "behind" if versus.high < 1 - row.noise else "equal"


def _record(rows: Sequence[Row], rival: str) -> str:
    run = [row for row in rows if rival in row.outcomes]
    counts = {each: [row for row in run if verdict(row, rival) == each] for each in ("ahead", "equal", "behind")}
    wrong = [row for row in run if row.best(rival) is None]
    listed = f" ({', '.join(row.subject for row in counts['behind'])})" if counts["behind"] else ""
    return (
        f"ahead on {len(counts['ahead'])} (on {len(wrong)} of them it is wrong or failed), equal on "
        f"{len(counts['equal'])}, behind on {len(counts['behind'])}{listed}"
    )


def _names(rows: Sequence[Row], without: Sequence[Row]) -> str:
    return ", ".join(row.subject for row in rows if row not in without) or "none"
