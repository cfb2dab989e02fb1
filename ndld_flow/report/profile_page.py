"""A profile that belongs to no run, such as exports of trtexec, as a page of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ndld_flow.plain_text import short_name
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import LayersView, collect_layers
from ndld_flow.report.collect_profiles import ProfileView, collect_profiles
from ndld_flow.report.collector_at_rest import collector_at_rest
from ndld_flow.report.payload import page_payload
from ndld_flow.report.render import PROFILE_REPORT, render
from ndld_flow.report.settings_text import Setting
from ndld_flow.report.write_page import write_page


@dataclass(frozen=True)
class ProfilePage:
    """What a run's page says of a profile, without the run."""

    title: str
    profiles: tuple[ProfileView, ...]
    layers: tuple[LayersView, ...]
    payload: str
    latency: None = None
    """There is no other that its latency is related to."""
    machine: tuple[Setting, ...] = ()

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        present = {"latency": self.profiles, "layers": self.layers}
        return tuple((name, name.capitalize()) for name, views in present.items() if views)


def draw_profile(profile: Profile, title: str, path: Path) -> Path:
    """Write the page of one profile, whole or not at all, and return its path.

    Raises an `OutputsError` when it cannot be written.
    """
    with collector_at_rest():
        text = render(PROFILE_REPORT, _collect(profile, title))
    return write_page(path, text, "ndld-flow report")


def _collect(profile: Profile, title: str) -> ProfilePage:
    named = {title: profile}
    profiles, layers = collect_profiles(named), collect_layers(named)
    return ProfilePage(
        short_name(title), profiles, layers, page_payload(profiles, zip(layers, [profile], strict=False), None)
    )
