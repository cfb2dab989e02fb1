"""Gates of a run."""

from ndld_flow.report.collect_summary import collect_gates
from ndld_flow.report.panel import Panel

PANEL = Panel("Gates", lambda documents: collect_gates(documents.run))
