"""Encode the data of the page's scripts as columns with a shared table of texts, compressed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_accuracy import AccuracyView
from ndld_flow.report.collect_divergence import depth_payload
from ndld_flow.report.collect_engines import EngineView
from ndld_flow.report.collect_findings import FindingsView
from ndld_flow.report.collect_graph import collect_graphs, graph_payload
from ndld_flow.report.collect_layers import LayersView
from ndld_flow.report.collect_profiles import ProfileView
from ndld_flow.report.collect_search import SearchView
from ndld_flow.report.diff.collect_diff import DiffView
from ndld_flow.report.diff.draw import diff_payload
from ndld_flow.report.encoding import Tensors, Texts, packed, rounded
from ndld_flow.report.layer_payload import engine_payload, layers_payload, nanoseconds
from ndld_flow.report.page_data import FindingsPayload, ProfilePayload, ReportPayload
from ndld_flow.report.search_payload import search_payload


def page_payload(
    profiles: Sequence[ProfileView],
    layers: Iterable[tuple[LayersView, Profile]],
    engines: Sequence[EngineView],
    findings: FindingsView | None,
    diffs: Sequence[DiffView | None] = (),
    precision: tuple[Sequence[SearchView], Sequence[AccuracyView]] = ((), ()),
) -> str:
    """Return all data of a report; each view of layers comes with its profile.

    Engines follow the profiles in `layers`. `diffs` has an item for every step.
    """
    texts, tensors = Texts(), Tensors()
    layers = list(layers)
    searches, accuracies = precision
    depths = [*(view.depth for view in searches), *(view.depth for view in accuracies)]
    graphs = collect_graphs([*(profile for _, profile in layers), *(engine.profile for engine in engines)])
    data: ReportPayload = {
        "profiles": [profile_payload(profile) for profile in profiles if profile.latency],
        "layers": [
            *(layers_payload(view, profile, texts, tensors) for view, profile in layers),
            *(engine_payload(view, texts, tensors) for view in engines),
        ],
        "findings": _findings(findings, texts) if findings else None,
        "diffs": [diff_payload(view, texts) if view else None for view in diffs],
        "graphs": [graph_payload(picture) for picture in graphs.pictures],
        "graph_of": list(graphs.of_profile),
        "searches": [search_payload(view, texts) for view in searches],
        "depths": [depth_payload(depth, texts) if depth else None for depth in depths],
        "tensors": tensors.as_columns(texts),
        "texts": texts.as_list(),
    }
    return packed(data)


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


def _findings(view: FindingsView, texts: Texts) -> FindingsPayload:
    def column(name: str) -> list[int]:
        return texts.places(map(attrgetter(name), view.rows))

    return {
        "severity": column("severity"),
        "check": column("check"),
        "node": column("node"),
        "op_type": column("op_type"),
        "message": column("message"),
        "step": column("step"),
    }
