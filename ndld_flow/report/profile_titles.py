"""Labels of profiled artifacts in a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ndld_flow.base.text import short_name
from ndld_flow.records.profile import Profile


def profile_titles(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return step -> the label of what it profiled; with the step's name where several profiled the same."""
    times = Counter(profile.label for profile in profiles.values())
    return {
        step: short_name(profile.label if times[profile.label] == 1 else f"{profile.label} ({step})")
        for step, profile in profiles.items()
    }
