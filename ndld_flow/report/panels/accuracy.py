"""Comparisons of outputs: limits, metrics, labelled sets, samples, layers."""

from __future__ import annotations

from ndld_flow.report.collect_accuracy import collect_accuracy
from ndld_flow.report.panel import Panel

PANEL = Panel("Accuracy", lambda documents: collect_accuracy(documents.accuracies), after="precision")
