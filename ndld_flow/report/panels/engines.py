"""Engines: their builds, and layers without times."""

from __future__ import annotations

from ndld_flow.records.build import Build
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_engines import EngineView, collect_engines, collect_untimed
from ndld_flow.report.panel import Panel


def collect(documents: RunDocuments) -> tuple[EngineView, ...]:
    """Return the engines that a run built, then profiles whose layers have no times."""
    return (*collect_engines(documents.of(Build)), *collect_untimed(documents.of(Profile)))


PANEL = Panel("Engines", collect, after="comparisons")
