"""Encode the data of the page's scripts as columns with a shared table of texts, compressed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import get_args

from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.comparison import ComparedMetric, Comparison, MatchMethod, MetricVerdict, ProfileComparison
from ndld_flow.records.measurement import percentile
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_graph import collect_graphs, graph_payload
from ndld_flow.report.collect_layers import UNKNOWN
from ndld_flow.report.collect_profiles import short_provider
from ndld_flow.report.comparison.subjects import SubjectView
from ndld_flow.report.comparison.verdicts import measured_apart
from ndld_flow.report.encoding import Texts, rounded
from ndld_flow.report.layer_payload import timeline_payload
from ndld_flow.report.page_data import (
    ComparedLayers,
    ComparedProfile,
    ComparedReport,
    ComparisonPayload,
    LayerVerdictColumns,
    MetricPayload,
    RowColumns,
    VerdictColumns,
)
from ndld_flow.report.value_text import shape_text

_SAMPLES = 4000
"""Maximum samples of a profile, enough to show its distribution."""

_GRAPH_LAYERS = 10_000
"""Maximum layers of all graphs of a page, to limit the time for layout."""

_METHODS: tuple[MatchMethod, ...] = get_args(MatchMethod)


def comparison_payload(
    comparison: Comparison,
    subjects: Sequence[SubjectView],
    profiles: Sequence[Sequence[Profile]],
) -> ComparisonPayload:
    """Return the data for the page's scripts, with which any subject can be the base."""
    texts = Texts()
    graphs = collect_graphs(list(chain.from_iterable(profiles)), _GRAPH_LAYERS)
    data: ComparisonPayload = {
        "verdict": comparison.verdict,
        "why": short_name(comparison.why, 600),
        "methods": _METHODS,
        "subjects": [
            {"letter": subject.letter, "series": subject.series, "label": subject.label} for subject in subjects
        ],
        "profiles": [
            _compared(profile, own, texts) for profile, own in zip(comparison.profiles, profiles, strict=True)
        ],
        "graphs": [graph_payload(picture) for picture in graphs.pictures],
        # One item per report, profile after profile.
        "graph_of": list(graphs.of_profile),
        "texts": texts.as_list(),
    }
    return data


def _compared(comparison: ProfileComparison, profiles: Sequence[Profile], texts: Texts) -> ComparedProfile:
    return {
        "name": short_name(comparison.name, 80),
        "subjects": comparison.subjects,
        "decided_by": comparison.decided_by,
        "metrics": [_metric(metric) for metric in comparison.metrics],
        "verdicts": _verdicts(comparison, texts),
        "reports": [_report(profile, texts) for profile in profiles],
        "rows": _rows(comparison),
        "layer_verdicts": _layer_verdicts(comparison, texts),
    }


def _metric(metric: ComparedMetric) -> MetricPayload:
    return {
        "metric": short_name(metric.metric, 60),
        "key": metric.metric,
        "unit": short_name(metric.unit, 20),
        "better": metric.better,
        "values": [_number(value) for value in metric.values],
        "runs": [[_number(value) for value in runs] for runs in metric.runs],
    }


def _verdicts(comparison: ProfileComparison, texts: Texts) -> VerdictColumns:
    ordered = comparison.verdicts
    places = {metric.metric: place for place, metric in enumerate(comparison.metrics)}

    def column(name: str) -> list[float | None]:
        return [_number(getattr(verdict, name)) for verdict in ordered]

    return {
        "metric": [places.get(verdict.metric, -1) for verdict in ordered],
        "base": [verdict.base for verdict in ordered],
        "candidate": [verdict.candidate for verdict in ordered],
        "apart": texts.places(_apart(comparison, verdict) for verdict in ordered),
        "ratio": column("ratio"),
        "low": [_number(verdict.low) if verdict.interval_is_known else None for verdict in ordered],
        "high": column("high"),
        "threshold": column("threshold"),
        "floor": column("floor"),
        "verdict": texts.places(judged.verdict for judged in ordered),
        "why": texts.places(short_name(verdict.why, 600) for verdict in ordered),
    }


def _apart(comparison: ProfileComparison, verdict: MetricVerdict) -> str:
    metric = next((metric for metric in comparison.metrics if metric.metric == verdict.metric), None)
    if metric is None:
        return ""
    return measured_apart((metric.values[verdict.base], metric.values[verdict.candidate]), verdict, metric.unit)


def _report(profile: Profile, texts: Texts) -> ComparedReport:
    samples = profile.latency_ms
    numbers = profile.latency.model_dump() if samples else {}
    # Sorted samples compress best.
    ordered = sorted(samples)
    step = max(1.0, (len(ordered) - 1) / (_SAMPLES - 1))
    count = min(len(ordered), _SAMPLES)
    return {
        "label": short_name(profile.label, 60),
        "latency": {name: _number(value) for name, value in numbers.items()},
        "quartiles_ms": [_number(percentile(samples, percent)) for percent in (25, 75)] if samples else [],
        "samples": [_number(ordered[min(round(place * step), len(ordered) - 1)]) for place in range(count)],
        "sample_count": len(samples),
        "started_s": [_number(run.started_s) for run in profile.runs],
        "sitting": short_name(profile.sitting),
        "layers": _layers(profile, texts),
        "timeline": timeline_payload(profile, texts) if profile.timeline else None,
    }


def _layers(profile: Profile, texts: Texts) -> ComparedLayers:
    layers = profile.layers
    return {
        "ms": [_number(value) for value in profile.layer_times.ms],
        "name": texts.places(visible_name(layer.name) for layer in layers),
        "type": texts.places(visible_name(layer.type) for layer in layers),
        "precision": texts.places(visible_name(layer.precision or UNKNOWN) for layer in layers),
        "dims": texts.places(shape_text(layer.outputs[0].shape) if layer.outputs else "" for layer in layers),
        "role": texts.places(layer.purpose for layer in layers),
        "tactic": texts.places(visible_name(layer.tactic) for layer in layers),
        "provider": texts.places(short_provider(layer.provider) for layer in layers),
        "onnx": [texts.places(map(visible_name, layer.onnx_nodes)) for layer in layers],
    }


def _rows(comparison: ProfileComparison) -> RowColumns:
    """Return positions of layers: a number for a single one, otherwise a list."""
    rows = comparison.rows
    return {
        "layers": [
            [places[0] if len(places := row.layers[profile]) == 1 else places for row in rows]
            for profile in range(len(comparison.subjects))
        ],
        "methods": [
            [_METHODS.index(row.methods[profile]) for row in rows] for profile in range(len(comparison.subjects))
        ],
        "confidences": [
            [_number(row.confidences[profile]) for row in rows] for profile in range(len(comparison.subjects))
        ],
    }


def _layer_verdicts(comparison: ProfileComparison, texts: Texts) -> LayerVerdictColumns:
    ordered = comparison.layer_verdicts
    return {
        "row": [verdict.row for verdict in ordered],
        "candidate": [verdict.candidate for verdict in ordered],
        "verdict": texts.places(judged.verdict for judged in ordered),
        "p_value": [_number(verdict.p_value) for verdict in ordered],
        "q_value": [_number(verdict.q_value) for verdict in ordered],
    }


def _number(value: float | None) -> float | None:
    """Round to five significant digits; NaN and infinity, which JSON does not support, become null."""
    if value is None or isinstance(value, int):
        return value
    return rounded(value) if math.isfinite(value) else None
