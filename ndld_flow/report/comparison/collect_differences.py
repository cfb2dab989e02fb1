"""Collect the differences of a comparison: circumstances, then options, machines and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import NOT_APPLICABLE, Comparison, Difference, ProfileComparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_profiles import machine_settings, short_provider
from ndld_flow.report.value_text import shape_text, value_text


@dataclass(frozen=True)
class DifferenceView:
    """One circumstance that differs."""

    circumstance: str
    detail: str
    profiles: tuple[str, ...]
    """Profiles with this difference; empty if there is only one profile."""
    values: tuple[str, ...]
    """One value per subject; empty if not recorded."""
    standing: str
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


_STANDINGS = ("forbids", "allowed", "noted")


def collect_differences(comparison: Comparison) -> tuple[DifferenceView, ...]:
    """Return the differences, those that forbid a verdict first; equal differences of several profiles are merged."""
    places: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for profile in comparison.profiles:
        for one in profile.differences:
            values = _by_subject(one, profile, len(comparison.subjects))
            key = (one.circumstance, one.detail, values, _standing(one))
            places.setdefault(key, []).append(short_name(profile.name, 60))
    several = len(comparison.profiles) > 1
    views = [
        DifferenceView(circumstance, short_name(detail, 120), tuple(names) if several else (), values, standing)
        for (circumstance, detail, values, standing), names in places.items()
    ]
    return tuple(sorted(views, key=lambda view: _STANDINGS.index(view.standing)))


def collect_settings(profiles: Sequence[Profile]) -> tuple[SettingGroup, ...]:
    """Return all settings of the profiles, side by side."""
    groups: dict[str, Sequence[Mapping[str, JsonValue]]] = {
        "Options": [profile.options for profile in profiles],
        "Conditions": [profile.conditions for profile in profiles],
        "Machine": [{one.name: one.value for one in machine_settings(profile.machine)} for profile in profiles],
        "Versions": [profile.versions for profile in profiles],
        "Measured": [_measured(profile) for profile in profiles],
        "Inputs and outputs": [_tensors(profile) for profile in profiles],
    }
    made = (SettingGroup(title, _rows(mappings)) for title, mappings in groups.items())
    return tuple(group for group in made if group.rows)


def _standing(difference: Difference) -> str:
    if difference.allowed:
        return "allowed"
    return "forbids" if difference.forbids else "noted"


def _by_subject(difference: Difference, profile: ProfileComparison, subjects: int) -> tuple[str, ...]:
    values = [NOT_APPLICABLE] * subjects
    for subject, value in zip(profile.subjects, difference.values, strict=False):
        values[subject] = short_name(value, 200)
    return tuple(values)


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


def _tensors(profile: Profile) -> dict[str, str]:
    return {
        one.name: f"{one.dtype} {shape_text(one.shape)}" + (f", {one.data}" if one.data else "")
        for one in (*profile.inputs, *profile.outputs)
    }


def _rows(mappings: Sequence[Mapping[str, JsonValue]]) -> tuple[SettingRow, ...]:
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    rows = [_row(name, [mapping.get(name) for mapping in mappings]) for name in names]
    return tuple(row for row in rows if any(row.values))


def _row(name: str, values: Iterable[JsonValue]) -> SettingRow:
    texts = tuple("" if value in (None, "") else value_text(value) for value in values)
    return SettingRow(short_name(name), texts, len(set(texts)) > 1)
