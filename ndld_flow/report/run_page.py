"""The report of a run, and that of a profile or an engine outside a run, such as exports of trtexec."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.text import short_name
from ndld_flow.records.activations import Activations
from ndld_flow.records.build import Build
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.outcomes import RunOutcome
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import COMPARISON_PAGE, RunDocuments, read_run
from ndld_flow.report import verdict
from ndld_flow.report.activations.page import draw_activations
from ndld_flow.report.collect_latency import LatencyOutcome
from ndld_flow.report.collect_layers import collect_layers
from ndld_flow.report.collect_summary import Summary, collect_summary
from ndld_flow.report.measured import Fact, MeasuredView, describe_measured, machine_settings
from ndld_flow.report.noted_failures import noting, page_with_notes
from ndld_flow.report.panel import PanelView, collect_panels, panels_of, views_of_profiles
from ndld_flow.report.panels.engines import collect_engines, collect_untimed
from ndld_flow.report.panels.files import FileLink, result_of
from ndld_flow.report.panels.latency import collect_profiles
from ndld_flow.report.render import PROFILE_REPORT, RUN_REPORT, render, write_page
from ndld_flow.report.report_data import ReportData, report_data


@dataclass(frozen=True)
class RunPage:
    """The report of one run."""

    summary: Summary
    panels: tuple[PanelView, ...]
    machine: tuple[Fact, ...]
    """Machine of the run; profiles of the same machine do not repeat it."""
    results: tuple[tuple[str, FileLink], ...]
    """(step, file) of the last model, if a step produced it, and of the engines."""
    comparison_pages: Mapping[str, str]
    """Comparing step -> path of its own page, relative to the report."""
    unreadable: tuple[str, ...]
    data: ReportData

    @property
    def views(self) -> dict[str, Any]:
        """Data of the panels by name."""
        return {panel.name: panel.view for panel in self.panels}

    @property
    def latency(self) -> LatencyOutcome | None:
        """The latency and its base."""
        return self.summary.latency

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        return tuple((panel.name, panel.title) for panel in self.panels)

    @property
    def closed(self) -> frozenset[str]:
        """Anchors of the sections that start folded."""
        return frozenset(panel.name for panel in self.panels if panel.closed)


def collect_page(documents: RunDocuments, drawn: Collection[str] = ()) -> RunPage:
    """Convert records to page data. `drawn` holds the comparing steps whose own page is in their folder."""
    notes: list[str] = []
    panels = collect_panels(documents, notes)
    return _page_of(documents, drawn, panels, notes)


def _page_of(
    documents: RunDocuments, drawn: Collection[str], panels: Sequence[PanelView], notes: Sequence[str]
) -> RunPage:
    summary = collect_summary(documents)
    steps = [summary.graph.final, *documents.of(Build)]
    return RunPage(
        summary=summary,
        panels=tuple(panels),
        machine=machine_settings(documents.run.machine),
        results=tuple((short_name(step), link) for step in steps if (link := result_of(documents, step)) is not None),
        comparison_pages={step: f"./{quote(step)}/{COMPARISON_PAGE}" for step in drawn},
        unreadable=(*documents.unreadable, *notes),
        data=report_data(panels, documents.of(Profile).values()),
    )


def draw_report(run_folder: Path, outcome: RunOutcome | None = None) -> Path:
    """Write `report.html` into a run's folder, and the pages of activations into their steps', each whole or not at
    all; return its path. `outcome` is the outcome of the run if its record does not have it.

    Raises a `RequestError` if the folder holds no readable run, and an `OutputsError` if the
    report cannot be written.
    """
    with paused_garbage_collection():
        documents = read_run(run_folder)
        if outcome is not None:
            documents = replace(documents, run=documents.run.model_copy(update={"outcome": outcome}))
        path = draw_documents(documents, run_folder)
        for step in documents.of(Activations):
            draw_activations(run_folder / step)
    return path


def draw_documents(documents: RunDocuments, run_folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write the report of a run from its documents; it links to existing pages of comparisons and has these notes.

    Raises an `OutputsError` if it cannot be written.
    """
    documents = replace(documents, folder=run_folder)  # those of a sweep's point were read from the store
    drawn = [step for step in documents.of(Comparison) if (run_folder / step / COMPARISON_PAGE).is_file()]
    text = page_with_notes("The report", lambda: _draw(documents, drawn, list(notes)))
    return write_page(run_folder / "report.html", text, "ndld-flow report")


def _draw(documents: RunDocuments, drawn: Collection[str], notes: list[str]) -> str:
    """Return the text of the page, with a note in place of each panel that cannot be drawn."""

    def text_with(panels: Sequence[PanelView]) -> str:
        return render(RUN_REPORT, _page_of(documents, drawn, panels, notes), verdict=verdict)

    panels = collect_panels(documents, notes)
    known = len(notes)
    with noting("A section of the report", notes):
        return text_with(panels)
    # A template and a payload fail with the page that they are in: the page is drawn panel by panel.
    del notes[known:]
    kept: list[PanelView] = []
    for panel in panels:
        with noting(f"The section {panel.title}", notes):
            text_with([*kept, panel])
            kept.append(panel)
    return text_with(kept)


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
