"""All data of one report, typed, before a single tag is written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote

from ndld_flow.records.run_folder import COMPARISON_PAGE, RunDocuments
from ndld_flow.report.activations.section import ActivationsCard, collect_activations
from ndld_flow.report.collect_accuracy import AccuracyView, collect_accuracy
from ndld_flow.report.collect_engines import EngineView, collect_engines, collect_untimed
from ndld_flow.report.collect_findings import FindingsView, collect_findings
from ndld_flow.report.collect_latency import LatencyOutcome
from ndld_flow.report.collect_layers import LayersView, collect_layers, has_timed_layers
from ndld_flow.report.collect_profiles import ProfileView, collect_profiles
from ndld_flow.report.collect_repeat import RepeatView, collect_repeat
from ndld_flow.report.collect_search import SearchView, collect_searches
from ndld_flow.report.collect_steps import FlowRow, StepView, collect_flow, collect_steps
from ndld_flow.report.collect_summary import GateView, Summary, collect_gates, collect_summary
from ndld_flow.report.comparison.section import ComparisonSection, collect_comparisons
from ndld_flow.report.payload import page_payload
from ndld_flow.report.value_text import Setting


@dataclass(frozen=True)
class RunPage:
    """The report of one run."""

    summary: Summary
    gates: tuple[GateView, ...]
    source_flow: FlowRow
    steps: tuple[StepView, ...]
    findings: FindingsView | None
    searches: tuple[SearchView, ...]
    accuracy: tuple[AccuracyView, ...]
    profiles: tuple[ProfileView, ...]
    layers: tuple[LayersView, ...]
    engines: tuple[EngineView, ...]
    activations: tuple[ActivationsCard, ...]
    comparisons: tuple[ComparisonSection, ...]
    repeat: RepeatView
    unreadable: tuple[str, ...]
    payload: str

    @property
    def lanes(self) -> int:
        """Number of lanes of the flow."""
        return 1 + max([self.source_flow.lane, *(step.flow.lane for step in self.steps)])

    @property
    def latency(self) -> LatencyOutcome | None:
        """The latency and its base."""
        return self.summary.latency

    @property
    def machine(self) -> tuple[Setting, ...]:
        """Machine of the run; profiles of the same machine do not repeat it."""
        return self.repeat.machine

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        present = {
            "gates": bool(self.gates),
            "steps": True,
            "findings": self.findings is not None,
            "precision": bool(self.searches),
            "accuracy": bool(self.accuracy),
            "activations": bool(self.activations),
            "comparisons": bool(self.comparisons),
            "engines": bool(self.engines),
            "latency": bool(self.profiles),
            "layers": bool(self.layers),
            "repeat": True,
        }
        return tuple((name, name.capitalize()) for name, there in present.items() if there)


def collect_page(documents: RunDocuments, drawn: Collection[str] = ()) -> RunPage:
    """Convert records to page data. `drawn` holds the comparing steps whose own page is in their folder."""
    run = documents.run
    findings = collect_findings(documents.findings)
    profiles = collect_profiles(documents.profiles)
    layers = collect_layers(documents.profiles)
    layered = filter(has_timed_layers, documents.profiles.values())
    engines = (*collect_engines(documents.builds), *collect_untimed(documents.profiles))
    steps = collect_steps(run)
    searches, accuracy = collect_searches(documents), collect_accuracy(documents.accuracies)
    return RunPage(
        summary=collect_summary(documents),
        gates=collect_gates(run),
        source_flow=collect_flow(run)[0],
        steps=steps,
        findings=findings,
        searches=searches,
        accuracy=accuracy,
        profiles=profiles,
        layers=layers,
        engines=engines,
        activations=collect_activations(documents.activations),
        comparisons=collect_comparisons(documents.comparisons, _comparison_pages(drawn)),
        repeat=collect_repeat(run),
        unreadable=documents.unreadable,
        payload=page_payload(
            profiles,
            zip(layers, layered, strict=True),
            engines,
            findings,
            [step.change.diff if step.change else None for step in steps],
            (searches, accuracy),
        ),
    )


def _comparison_pages(drawn: Collection[str]) -> dict[str, str]:
    """Return comparing step -> path of its own page, relative to the report."""
    return {step: f"./{quote(step)}/{COMPARISON_PAGE}" for step in drawn}
