"""Describe the rounds of a comparison: the measurement, the deciding clock and the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name
from ndld_flow.profiles.compare.rounds import CLOCK_NAMES, describe_interval, estimated_ratio
from ndld_flow.profiles.compare.verdicts import describe_change
from ndld_flow.records.comparison import Comparison, ProfileComparison
from ndld_flow.records.noise import PairedRounds, Round


@dataclass(frozen=True)
class RoundsView:
    """The rounds of one pair of profiles."""

    profile: str
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """For each round: number, change by CPU time, change by wall time, cycles, passes per turn, pinned CPU."""


def collect_rounds(comparison: Comparison) -> tuple[RoundsView, ...]:
    """Return a view for each pair with measured or requested rounds."""
    return tuple(_view(one) for one in comparison.profiles if one.rounds is not None or one.rounds_missing)


def _view(compared: ProfileComparison) -> RoundsView:
    found = compared.rounds
    name = short_name(compared.name, 80)
    if found is None:
        missing = short_name(compared.rounds_missing, 300)
        return RoundsView(name, (f"No rounds were measured: {missing}. The process runs of the profiles decide.",), ())
    return RoundsView(name, tuple(_sentences(found)), tuple(map(_row, range(1, len(found.rounds) + 1), found.rounds)))


def _sentences(found: PairedRounds) -> Iterator[str]:
    limits = f"{found.rounds_limit} rounds or {seconds(found.budget_ms / 1e3)}"
    yield (
        "In each round a fresh process of each model was measured, alternating pass by pass: "
        f"{short_name(found.stopped_because, 200)} (limit: {limits})."
    )
    clock = CLOCK_NAMES[found.clock]
    yield f"{clock[0].upper()}{clock[1:]} decides: {short_name(found.clock_reason, 200)}."
    by_clocks = f"{describe_interval(found.cpu)} in CPU time and {describe_interval(found.wall)} in wall time"
    yield f"The median pass changed by {by_clocks}."
    if found.clocks_disagree:
        yield "CPU time excludes the change seen in wall time, so the interval of the verdict spans both."
    yield f"Processes of the same model are assumed to differ by a standard deviation of {found.floor:.1%} or more."


def _row(number: int, one: Round) -> tuple[str, ...]:
    return (
        str(number),
        describe_change(estimated_ratio(one, "cpu")),
        describe_change(estimated_ratio(one, "wall")),
        str(len(one.base.wall_ms)),
        str(one.base.passes),
        "any CPU" if one.pinned_to is None else f"CPU {one.pinned_to}",
    )
