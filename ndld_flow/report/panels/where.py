"""The answer of a profile: its findings and its slowest layers, before everything else."""

from __future__ import annotations

from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_layers import has_timed_layers
from ndld_flow.report.panel import Panel


def _collect(documents: RunDocuments) -> tuple[str, ...]:
    """Return the only step with timed layers, if the run changes no model: then the profile is its result."""
    if any(record.artifact.kind == "onnx" for record in documents.run.records.values()):
        return ()
    timed = tuple(step for step, profile in documents.of(Profile).items() if has_timed_layers(profile))
    return timed if len(timed) == 1 else ()


PANEL = Panel("Where", _collect)
