"""Write precision searches and comparisons by layer, for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.divergence import LayerDivergence, TensorRange
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.report.collect_divergence import DepthView
from ndld_flow.report.exports.csv_tables import Cell, csv_text

_RANGE = (
    "minimum",
    "maximum",
    "rms",
    "smallest_abs",
    "nan_count",
    "inf_count",
    "beyond_share",
    "subnormal_share",
    "vanishing_share",
)


def depth_csv(view: DepthView) -> str:
    """Return all layers in execution order: each metric of each curve, and the reference's values."""
    metrics = [_metric_names([one.of_curves[place] for one in view.layers]) for place in range(len(view.curves))]
    head = [f"{curve}: {name}" for curve, names in zip(view.curves, metrics, strict=True) for name in names]
    kept = set(view.kept)
    rows = (
        [
            one.layer.position,
            one.layer.node,
            one.layer.op_type,
            one.layer.tensor,
            "x".join(map(str, one.layer.shape)),
            int(place in kept),
            int(place == view.first),
            *(cell for layer, names in zip(one.of_curves, metrics, strict=True) for cell in _measured(layer, names)),
            *_range_cells(one.range),
        ]
        for place, one in enumerate(view.layers)
    )
    about = ["position", "node", "op_type", "tensor", "dims", "kept", "first_divergent"]
    return csv_text([[*about, *head, *(f"reference {name}" for name in _RANGE)], *rows])


def _metric_names(layers: Sequence[LayerDivergence | None]) -> list[str]:
    names = dict.fromkeys(name for layer in layers if layer is not None for name in layer.metrics)
    return [*names, "nonfinite"]


def _measured(layer: LayerDivergence | None, names: Sequence[str]) -> list[Cell]:
    if layer is None:
        return [None] * len(names)
    return [*(layer.metrics.get(name) for name in names[:-1]), layer.nonfinite]


def _range_cells(found: TensorRange | None) -> list[Cell]:
    return [None if found is None else getattr(found, name) for name in _RANGE]


def trials_csv(search: PrecisionSearch) -> str:
    """Return all trials in order."""
    metrics = list(dict.fromkeys(name for trial in search.trials for name in trial.metrics))
    head = ["trial", "phase", "what", "kept", *metrics, "passed", "wall_s", "remembered", "trouble", "kept_positions"]
    rows = (
        [
            trial.number,
            trial.phase,
            trial.what,
            trial.kept_count,
            *(trial.metrics.get(name) for name in metrics),
            int(trial.passed),
            trial.wall_s,
            int(trial.remembered),
            trial.trouble,
            " ".join(map(str, trial.kept)),
        ]
        for trial in search.trials
    )
    return csv_text([head, *rows])


def kept_csv(search: PrecisionSearch) -> str:
    """Return all kept nodes with their evidence."""
    metrics = list(dict.fromkeys(name for node in search.kept for name in node.without))
    head = ["node", "op_type", "cause", "outputs", *(f"{name} without it" for name in metrics)]
    facts = ["evidence", "evidence_tensor", "value", "limit"]
    rows = (
        [
            node.node,
            node.op_type,
            node.cause,
            ", ".join(node.outputs),
            *(node.without.get(name) for name in metrics),
            fact.sentence,
            fact.tensor,
            fact.value,
            fact.limit,
        ]
        for node in search.kept
        for fact in node.evidence
    )
    return csv_text([[*head, *facts], *rows])


def samples_csv(accuracy: Accuracy) -> str:
    """Return one line per sample and output; results of the user's metric are on a sample's first line."""
    outputs = [metrics for sample in accuracy.samples for metrics in sample.outputs.values()]
    metrics = list(dict.fromkeys(name for found in outputs for name in found))
    scores = list(dict.fromkeys(name for sample in accuracy.samples for name in sample.scores_candidate))
    scored = [f"{side} {name}" for name in scores for side in ("reference", "candidate")]
    return csv_text([["sample", "label", "output", *metrics, *scored], *_sample_rows(accuracy, metrics, scores)])


def _sample_rows(accuracy: Accuracy, metrics: Sequence[str], scores: Sequence[str]) -> Iterator[list[Cell]]:
    for sample in accuracy.samples:
        sides = (sample.scores_reference, sample.scores_candidate)
        told: list[Cell] = [side.get(name) for name in scores for side in sides]
        for output, found in sample.outputs.items():
            yield [sample.sample, sample.label, output, *(found.get(name) for name in metrics), *told]
            told = [None] * len(told)
