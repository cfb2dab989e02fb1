"""Subjects of a comparison, differences between them, and the rounds in which they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from pydantic import JsonValue

from ndld_flow.base.quantities import ABSENT, quantity, ratio_change, seconds, share, three_digits
from ndld_flow.base.text import first_of, short_name, value_text
from ndld_flow.profiles.compare.rounds import CLOCK_NAMES, estimated_ratio
from ndld_flow.records.comparison import NOT_APPLICABLE, Comparison, ProfileComparison, Subject
from ndld_flow.records.noise import PairedRounds, Round
from ndld_flow.records.profile import Profile
from ndld_flow.report.measured import (
    MeasuredView,
    batch_of,
    describe_measured,
    machine_settings,
    shape_text,
    short_provider,
)

SERIES = 10
"""Number of series colours in tokens.css; further subjects reuse colours and differ by letter."""


@dataclass(frozen=True)
class SubjectView:
    """One of the compared subjects."""

    letter: str
    series: int
    label: str
    record: Subject


def collect_subjects(subjects: Sequence[Subject]) -> tuple[SubjectView, ...]:
    """Return all subjects in their given order; the first is the base."""
    return tuple(
        SubjectView(
            letter=ascii_uppercase[index] if index < len(ascii_uppercase) else str(index + 1),
            series=index % SERIES,
            label=short_name(subject.label, 60) or "(no name)",
            record=subject,
        )
        for index, subject in enumerate(subjects)
    )


@dataclass(frozen=True)
class RankedSubject:
    """One row of the page's first table."""

    place: int
    """Position among the subjects."""
    subject: SubjectView
    rank: str
    """1 plus the number of subjects that are better beyond noise; empty if a pair must not be compared."""
    value: str
    """The value of the metric that decides; of a pair, the one behind the verdict."""
    items_per_s: str
    """Empty if the batch is unknown."""
    measured: MeasuredView | None
    """None if several profiles were compared, or the subject has none."""


def rank_subjects(
    comparison: Comparison, subjects: Sequence[SubjectView], profiles: Sequence[Sequence[Profile]]
) -> tuple[RankedSubject, ...]:
    """Return all subjects, the best of three or more first; in their given order if they cannot be ranked."""
    if len(comparison.profiles) != 1:
        return tuple(RankedSubject(index, subject, "", "", "", None) for index, subject in enumerate(subjects))
    (compared,), (own,) = comparison.profiles, profiles
    metric = next((metric for metric in compared.metrics if metric.metric == compared.decided_by), None)
    by_name = {metric.metric: metric.values for metric in compared.metrics}
    unknown = (None,) * len(compared.subjects)
    values, rates = (by_name.get(name, unknown) for name in (compared.decided_by, "throughput"))
    ranks, rows = _ranks(compared), []
    for index, subject in enumerate(subjects):
        if index not in compared.subjects:
            rows.append(RankedSubject(index, subject, "", ABSENT, "", None))
            continue
        at = compared.subjects.index(index)
        value, rate, batch = values[at], rates[at], batch_of(own[at])
        shown = ABSENT if value is None or metric is None else quantity(value, short_name(metric.unit, 20))
        items = three_digits(rate * batch) if rate and batch else ""
        rank = str(ranks[at]) if ranks else ""
        rows.append(RankedSubject(index, subject, rank, shown, items, describe_measured(own[at])))
    return tuple(rows if len(rows) < 3 else sorted(rows, key=lambda row: int(row.rank or 0)))


def _ranks(compared: ProfileComparison) -> list[int]:
    """Return the rank of each profile; empty if a pair was not measured or must not be compared."""
    words = {
        (each.base, each.candidate): each.verdict for each in compared.verdicts if each.metric == compared.decided_by
    }
    count = len(compared.subjects)
    if len(words) < count * (count - 1) or "incomparable" in words.values():
        return []
    better = (sum(words.get((index, other)) == "improved" for other in range(count)) for index in range(count))
    return [1 + number for number in better]


def name_fastest(ranked: Sequence[RankedSubject], metric: str) -> str:
    """Return `Fastest: fp16, qat; no difference between them is decided.`; empty for a pair, and without ranks."""
    leading = [row.subject.label for row in ranked if row.rank == "1"]
    if len(ranked) < 3 or not leading:
        return ""
    word = "Fastest" if metric.startswith(("latency", "throughput")) else f"Best by {metric}"
    if len(leading) == len(ranked):
        return f"{word}: none, as no difference is beyond noise."
    return f"{word}: {first_of(leading, 3)}{'; no difference between them is decided' if len(leading) > 1 else ''}."


@dataclass(frozen=True)
class DifferenceView:
    """One condition that differs."""

    circumstance: str
    detail: str
    profiles: tuple[str, ...]
    """Profiles with this difference; empty if there is only one profile."""
    values: tuple[str, ...]
    """One value per subject; empty if not recorded."""
    effect: str
    """`forbids`, `allowed` or `noted`."""


@dataclass(frozen=True)
class SettingRow:
    """One setting of all compared profiles."""

    name: str
    values: tuple[str, ...]
    differs: bool


@dataclass(frozen=True)
class SettingGroup:
    """Settings of one kind."""

    title: str
    rows: tuple[SettingRow, ...]

    @property
    def differing(self) -> tuple[SettingRow, ...]:
        return tuple(row for row in self.rows if row.differs)


_EFFECTS = ("forbids", "allowed", "noted")


def collect_differences(comparison: Comparison) -> tuple[DifferenceView, ...]:
    """Return the differences, those that forbid a verdict first; equal differences of several profiles are merged."""
    places: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for profile in comparison.profiles:
        for difference in profile.differences:
            effect = "allowed" if difference.allowed else "forbids" if difference.forbids else "noted"
            by_subject = [NOT_APPLICABLE] * len(comparison.subjects)
            for subject, own in zip(profile.subjects, difference.values, strict=False):
                by_subject[subject] = short_name(own, 200)
            values = tuple(by_subject)
            key = (difference.circumstance, difference.detail, values, effect)
            places.setdefault(key, []).append(short_name(profile.name, 60))
    several = len(comparison.profiles) > 1
    views = [
        DifferenceView(circumstance, short_name(detail, 120), tuple(names) if several else (), values, effect)
        for (circumstance, detail, values, effect), names in places.items()
    ]
    return tuple(sorted(views, key=lambda view: _EFFECTS.index(view.effect)))


def collect_settings(profiles: Sequence[Profile]) -> tuple[SettingGroup, ...]:
    """Return all settings of the profiles, side by side."""
    groups: dict[str, Sequence[Mapping[str, JsonValue]]] = {
        "Options": [profile.options for profile in profiles],
        "Conditions": [profile.conditions for profile in profiles],
        "Machine": [
            {setting.name: setting.value for setting in machine_settings(profile.machine)} for profile in profiles
        ],
        "Versions": [profile.versions for profile in profiles],
        "Measured": [_measured(profile) for profile in profiles],
        "Inputs and outputs": [
            {
                tensor.name: f"{tensor.dtype} {shape_text(tensor.shape)}" + (f", {tensor.data}" if tensor.data else "")
                for tensor in (*profile.inputs, *profile.outputs)
            }
            for profile in profiles
        ],
    }
    setting_groups = (SettingGroup(title, _rows(mappings)) for title, mappings in groups.items())
    return tuple(group for group in setting_groups if group.rows)


def _measured(profile: Profile) -> dict[str, JsonValue]:
    return {
        "backend": profile.backend,
        "providers": ", ".join(map(short_provider, profile.providers)),
        "process runs": len(profile.runs),
        "passes": sum(len(run.latency_ms) for run in profile.runs),
        "warm-up passes": profile.warmup_passes,
        "measured at": profile.measured_at.isoformat(" ", "seconds") if profile.measured_at else "",
        "stopped because": profile.stopped_because,
        "model": profile.model_digest[:16],
    }


def _rows(mappings: Sequence[Mapping[str, JsonValue]]) -> tuple[SettingRow, ...]:
    flat = [dict(_flatten(mapping)) for mapping in mappings]
    names = dict.fromkeys(name for mapping in flat for name in mapping)
    rows = []
    for name in names:
        values = [mapping.get(name) for mapping in flat]
        texts = tuple("" if value in (None, "") else value_text(value) for value in values)
        rows.append(SettingRow(short_name(name), texts, len(set(texts)) > 1))
    return tuple(row for row in rows if any(row.values))


def _flatten(mapping: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield `build_options.precision`: of large settings, only the parts that differ are shown."""
    for name, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True)
class RoundsView:
    """The rounds of one pair of profiles."""

    profile: str
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """For each measured: number, change by CPU time, change by wall time, cycles, passes per turn, pinned CPU."""


def collect_rounds(comparison: Comparison) -> tuple[RoundsView, ...]:
    """Return a view for each pair with measured or requested rounds."""
    return tuple(
        _rounds_view(profile) for profile in comparison.profiles if profile.rounds is not None or profile.rounds_missing
    )


def _rounds_view(compared: ProfileComparison) -> RoundsView:
    rounds = compared.rounds
    name = short_name(compared.name, 80)
    if rounds is None:
        missing = short_name(compared.rounds_missing, 300)
        return RoundsView(name, (f"No rounds were measured: {missing}. The process runs of the profiles decide.",), ())
    return RoundsView(
        name, tuple(_sentences(rounds)), tuple(map(_round_row, range(1, len(rounds.rounds) + 1), rounds.rounds))
    )


def _sentences(rounds: PairedRounds) -> Iterator[str]:
    limits = f"{rounds.rounds_limit} rounds or {seconds(rounds.budget_ms / 1e3)}"
    yield (
        "In each round a fresh process of each model was measured, alternating pass by pass: "
        f"{short_name(rounds.stopped_because, 200)} (limit: {limits})."
    )
    clock = CLOCK_NAMES[rounds.clock]
    yield f"{clock[0].upper()}{clock[1:]} decides: {short_name(rounds.clock_reason, 200)}."
    if rounds.clocks_disagree:
        yield "CPU time excludes the change seen in wall time, so the interval of the verdict spans both."
    yield f"Processes of the same model are assumed to differ by a standard deviation of {share(rounds.floor)} or more."


def _round_row(number: int, measured: Round) -> tuple[str, ...]:
    return (
        str(number),
        ratio_change(estimated_ratio(measured, "cpu")),
        ratio_change(estimated_ratio(measured, "wall")),
        str(len(measured.base.wall_ms)),
        str(measured.base.passes),
        "any CPU" if measured.pinned_to is None else f"CPU {measured.pinned_to}",
    )
