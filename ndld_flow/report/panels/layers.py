"""Layers of each profiled model, with their times."""

from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import collect_layers
from ndld_flow.report.panel import Panel

PANEL = Panel("Layers", lambda documents: collect_layers(documents.of(Profile), documents.run), after="latency")
