"""Latency of each profiled model, with the conditions of its measurement."""

from __future__ import annotations

from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_profiles import collect_profiles
from ndld_flow.report.panel import Panel

PANEL = Panel("Latency", lambda documents: collect_profiles(documents.of(Profile)), after="engines")
