"""Collect the overview of a sweep and the recipe of its best point."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import yaml

from ndld_flow.base.quantities import count, seconds
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.collect_profiles import machine_settings
from ndld_flow.report.sweep.point_words import final, goal_words, objective_words, value_words
from ndld_flow.report.sweep.recipe_lines import recipe_lines
from ndld_flow.report.sweep.verdict_words import SweepVerdict, best_point, counts_words
from ndld_flow.report.value_text import Setting


@dataclass(frozen=True)
class Figure:
    """One figure of the overview."""

    title: str
    figure: str
    said: str
    wordy: bool = False


@dataclass(frozen=True)
class BestView:
    """The recipe lines and command for the best point."""

    number: int
    settings: tuple[Setting, ...]
    lines: str
    """Lines for the recipe."""
    command: str
    """Command that repeats the sweep from the store and writes the best point as a separate recipe."""


@dataclass(frozen=True)
class HeadView:
    """Objective, result and cost of a sweep."""

    title: str
    description: str
    looked_for: str
    verdict: SweepVerdict
    figures: tuple[Figure, ...]
    best: BestView | None
    started_at: datetime
    machine: str
    """Description on one line."""


@dataclass(frozen=True)
class RepeatView:
    """Everything needed to repeat a sweep."""

    command: str
    recipe: str
    identity: str
    id: str
    machine: tuple[Setting, ...]
    versions: tuple[tuple[str, str], ...]


def collect_head(record: SweepRecord, verdict: SweepVerdict) -> HeadView:
    """Return the overview."""
    settings = {one.name: one.value for one in machine_settings(record.machine)}
    machine = [settings[name] for name in ("cpu", "gpu", "system") if name in settings]
    return HeadView(
        title=short_name(record.recipe_name, 100),
        description=short_name(record.description, 600),
        looked_for=looked_for(record),
        verdict=verdict,
        figures=tuple(_figures(record, verdict)),
        best=_best(record),
        started_at=record.started_at,
        machine=", ".join(machine),
    )


def collect_repeat(record: SweepRecord) -> RepeatView:
    """Return command, recipe, machine and versions."""
    dumped: str = yaml.safe_dump(record.recipe, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    return RepeatView(
        command=command_lines(record, record.command),
        recipe=visible_text(dumped).rstrip(),
        identity=record.identity,
        id=short_name(record.id),
        machine=machine_settings(record.machine),
        versions=tuple((short_name(a), short_name(b)) for a, b in sorted(record.versions.items())),
    )


def looked_for(record: SweepRecord) -> str:
    """Return `least speed.latency.min, where agree.cosine >= 0.999`."""
    goals = " and ".join(map(goal_words, record.objectives)) or "none, all points were run"
    where = " and ".join(short_name(one, 120) for one in record.constraints)
    return f"{goals}, where {where}" if where else goals


def apply_command(record: SweepRecord) -> str:
    """Return the sweep's command with the option to write its best point as a recipe."""
    words = list(record.command)
    if "--apply" in words:
        place = words.index("--apply")
        del words[place : place + 2]
    return command_lines(record, [*words, "--apply", "BEST.yaml"])


def command_lines(record: SweepRecord, words: Sequence[str]) -> str:
    """Return two shell lines: change to the sweep's directory, and run."""
    return visible_text(f"cd {shlex.quote(record.directory)}\n{shlex.join(words)}")


def _best(record: SweepRecord) -> BestView | None:
    best = best_point(record)
    if best is None:
        return None
    return BestView(
        number=best.number,
        settings=tuple(Setting(short_name(name), value_words(value)) for name, value in best.values.items()),
        lines=recipe_lines(best, record.recipe),
        command=apply_command(record),
    )


def _figures(record: SweepRecord, verdict: SweepVerdict) -> list[Figure]:
    best = best_point(record)
    tried = len(record.points)
    excluded = f", {count(record.excluded_count)} excluded beforehand" if record.excluded_count else ""
    own = f"{seconds(record.own_s)} of it overhead of ndld-flow"
    each = f", {seconds(record.own_s / tried)} a point" if tried else ""
    verb = "was" if record.steps_reused == 1 else "were"
    there = f", {count(record.steps_reused)} {verb} reused" if record.steps_reused else ""
    found = [
        Figure("Points tried", count(tried), f"{counts_words(record) or 'none'}{excluded}"),
        Figure("Steps computed", count(record.steps_done), f"{count(record.steps_shared)} shared by points{there}"),
        Figure("Time", seconds(record.wall_s), f"{own}{each}"),
        Figure(
            "Ended by",
            short_name(record.stopped_because, 160),
            f"{short_name(record.method, 40).replace('_', ' ')}, seed {record.seed}",
            wordy=True,
        ),
    ]
    if best is None or not record.objectives:
        return found
    objective = record.objectives[0]
    gain = verdict.gain or f"point {best.number}"
    first = Figure(short_name(objective.text, 60), objective_words(final(best)[0], objective), gain)
    return [first, *found]
