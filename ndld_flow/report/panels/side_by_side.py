"""The profiles of a run side by side."""

from __future__ import annotations

from collections.abc import Mapping

from ndld_flow.records.profile import Profile
from ndld_flow.report.measured import StacksView, collect_stacks, profile_titles
from ndld_flow.report.panel import profiles_panel


def collect(profiles: Mapping[str, Profile]) -> StacksView | None:
    """Return the profiles side by side; None for fewer than two with times."""
    titles = profile_titles(profiles)
    return collect_stacks([(titles[step], profile) for step, profile in profiles.items()])


PANEL = profiles_panel("Side by side", collect, is_tab=True)
