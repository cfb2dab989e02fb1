"""Write the page of a profile or an engine outside a run, such as exports of trtexec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.text import short_name
from ndld_flow.records.build import Build
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import collect_layers
from ndld_flow.report.measured import MeasuredView, describe_measured
from ndld_flow.report.panel import PanelView, panels_of, views_of_profiles
from ndld_flow.report.panels.engines import collect_engines, collect_untimed
from ndld_flow.report.panels.latency import collect_profiles
from ndld_flow.report.render import PROFILE_REPORT, render, write_page
from ndld_flow.report.report_data import ReportData, report_data
from ndld_flow.report.value_text import Fact


@dataclass(frozen=True)
class ProfilePage:
    """The panels of a run's report that are about a profile or an engine."""

    title: str
    measured: MeasuredView
    panels: tuple[PanelView, ...]
    data: ReportData
    latency: None = None
    """There is no base for its latency."""
    machine: tuple[Fact, ...] = ()

    @property
    def views(self) -> dict[str, Any]:
        """Data of the panels by name."""
        return {panel.name: panel.view for panel in self.panels}

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        return tuple((panel.name, "Engine" if panel.name == "engines" else panel.title) for panel in self.panels)


def draw_profile(profile: Profile, title: str, path: Path) -> Path:
    """Write the page of one profile atomically and return its path.

    Raises an `OutputsError` if it cannot be written.
    """
    named = {title: profile}
    with paused_garbage_collection():
        engines = collect_untimed(named)
        # An engine that was not run has no options and no measuring machine.
        latency = () if engines and not profile.runs else collect_profiles(named)
        layers = collect_layers(named)
        views = {
            "where": layers,
            "engines": engines,
            "latency": latency,
            "layers": layers,
            **views_of_profiles(named),
        }
        return _write(title, views, profile, path)


def draw_build(build: Build, title: str, path: Path) -> Path:
    """Write the page of one engine. Raises as `draw_profile` does."""
    with paused_garbage_collection():
        profile = build.as_profile()
        views = {"engines": collect_engines({title: build}), **views_of_profiles({title: profile})}
        return _write(title, views, profile, path)


def _write(title: str, views: Mapping[str, Sequence[object]], profile: Profile, path: Path) -> Path:
    panels = panels_of(views)
    data = report_data(panels, [profile] if views.get("layers") else [])
    page = ProfilePage(short_name(title), describe_measured(profile), panels, data)
    return write_page(path, render(PROFILE_REPORT, page), "ndld-flow report")
