"""Searches for the nodes that must keep a higher precision."""

from __future__ import annotations

from ndld_flow.report.collect_search import collect_searches
from ndld_flow.report.panel import Panel

PANEL = Panel("Precision", collect_searches, after="findings")
