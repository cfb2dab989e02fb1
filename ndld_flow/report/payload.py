"""Encode the data of the page's scripts as columns with a shared table of texts, compressed."""

from __future__ import annotations

from collections.abc import Iterable

from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_divergence import depth_payload
from ndld_flow.report.collect_graph import collect_graphs, graph_payload
from ndld_flow.report.collect_layers import has_timed_layers
from ndld_flow.report.collect_profiles import ProfileView
from ndld_flow.report.diff_rows import diff_payload
from ndld_flow.report.encoding import Tensors, Texts, rounded
from ndld_flow.report.layer_payload import layers_payload, nanoseconds, untimed_payload
from ndld_flow.report.page_data import ProfilePayload, ReportPayload
from ndld_flow.report.panel import PanelView, panel_payloads
from ndld_flow.report.panels.precision import search_payload


def page_payload(panels: Iterable[PanelView], profiles: Iterable[Profile]) -> ReportPayload:
    """Return all data of a report. `profiles` are all of the run; those with timed layers have a view each.

    Profiles and engines share `layers`, engines last, because their graphs, tensors and texts are shared too.
    """
    texts, tensors = Texts(), Tensors()
    shown = list(panels)
    views = {panel.name: panel.view for panel in shown}
    timed = filter(has_timed_layers, profiles) if "layers" in views else ()
    layers = list(zip(views.get("layers", ()), timed, strict=True))
    engines = views.get("engines", ())
    depths = [view.depth for name in ("precision", "accuracy") for view in views.get(name, ())]
    steps = views["steps"].steps if "steps" in views else ()
    graphs = collect_graphs([*(profile for _, profile in layers), *(engine.profile for engine in engines)])
    data: ReportPayload = {
        "profiles": [profile_payload(profile) for profile in views.get("latency", ()) if profile.latency],
        "layers": [
            *(layers_payload(view, profile, texts, tensors) for view, profile in layers),
            *(untimed_payload(view.step, view.profile.layers, view.missed, texts, tensors) for view in engines),
        ],
        "panels": panel_payloads(shown, texts),
        "diffs": [
            diff_payload(step.change.diff, texts) if step.change and step.change.diff else None for step in steps
        ],
        "graphs": [graph_payload(picture) for picture in graphs.pictures],
        "graph_of": list(graphs.of_profile),
        "searches": [search_payload(view, texts) for view in views.get("precision", ())],
        "depths": [depth_payload(depth, texts) if depth else None for depth in depths],
        "tensors": tensors.as_columns(texts),
        "texts": texts.as_list(),
    }
    return data


def profile_payload(profile: ProfileView) -> ProfilePayload:
    """Return the timing pass of a profile that has samples."""
    assert profile.latency is not None
    numbers = profile.latency.model_dump()
    return {
        "step": profile.step,
        "label": profile.label,
        "runs": [[rounded(sample) for sample in run] for run in profile.runs if run],
        "started_s": [rounded(run.started_s) for run in profile.process_runs],
        "gaps_ns": [nanoseconds(run.gaps_ms) for run in profile.process_runs],
        "latency": {name: rounded(value) for name, value in numbers.items()},
        "quartiles_ms": [rounded(value) for value in profile.quartiles_ms],
    }
