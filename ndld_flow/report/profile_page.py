"""Write the page of a profile or an engine outside a run, such as exports of trtexec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.text import short_name
from ndld_flow.records.build import Build
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_engines import EngineView, collect_engines, collect_untimed
from ndld_flow.report.collect_layers import LayersView, collect_layers
from ndld_flow.report.collect_profiles import ProfileView, collect_profiles
from ndld_flow.report.garbage_collection import paused_garbage_collection
from ndld_flow.report.payload import page_payload
from ndld_flow.report.render import PROFILE_REPORT, render, write_page
from ndld_flow.report.value_text import Setting


@dataclass(frozen=True)
class ProfilePage:
    """The parts of a run's page on a profile or an engine."""

    title: str
    profiles: tuple[ProfileView, ...]
    """Empty if nothing was measured."""
    layers: tuple[LayersView, ...]
    engines: tuple[EngineView, ...]
    payload: str
    latency: None = None
    """There is no base for its latency."""
    machine: tuple[Setting, ...] = ()

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        present = {"engines": self.engines, "latency": self.profiles, "layers": self.layers}
        titles = {"engines": "Engine"}
        return tuple((name, titles.get(name, name.capitalize())) for name, views in present.items() if views)


def draw_profile(profile: Profile, title: str, path: Path) -> Path:
    """Write the page of one profile atomically and return its path.

    Raises an `OutputsError` when it cannot be written.
    """
    named = {title: profile}
    with paused_garbage_collection():
        engines = collect_untimed(named)
        # An engine that was not run has no options and no measuring machine.
        profiles = () if engines and not profile.runs else collect_profiles(named)
        return _write(title, profiles, (collect_layers(named), profile), engines, path)


def draw_build(build: Build, title: str, path: Path) -> Path:
    """Write the page of one engine. Raises as `draw_profile` does."""
    with paused_garbage_collection():
        return _write(title, (), ((), build.as_profile()), collect_engines({title: build}), path)


def _write(
    title: str,
    profiles: tuple[ProfileView, ...],
    layered: tuple[tuple[LayersView, ...], Profile],
    engines: tuple[EngineView, ...],
    path: Path,
) -> Path:
    layers, profile = layered
    payload = page_payload(profiles, zip(layers, [profile], strict=False), engines, None)
    page = ProfilePage(short_name(title), profiles, layers, engines, payload)
    return write_page(path, render(PROFILE_REPORT, page), "ndld-flow report")
