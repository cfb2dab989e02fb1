"""Tables of precision searches and accuracy comparisons, as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ndld_flow.records.accuracy import Accuracy, LayerDivergence
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_divergence import DepthView
from ndld_flow.report.exports.spreadsheets import csv_text
from ndld_flow.report.panels.accuracy import AccuracyView, collect_accuracy
from ndld_flow.report.panels.precision import SearchView, collect_searches
from ndld_flow.report.tables import Value

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
    metrics: list[list[str]] = []
    for index in range(len(view.curves)):
        layers = (layer.of_curves[index] for layer in view.layers)
        metrics.append([*dict.fromkeys(name for layer in layers if layer for name in layer.metrics), "nonfinite"])
    head = [f"{curve}: {name}" for curve, names in zip(view.curves, metrics, strict=True) for name in names]
    kept = set(view.kept)
    rows = (
        [
            row.record.position,
            row.record.node,
            row.record.op_type,
            row.record.tensor,
            "x".join(map(str, row.record.shape)),
            int(index in kept),
            int(index == view.first),
            *(cell for layer, names in zip(row.of_curves, metrics, strict=True) for cell in _measured(layer, names)),
            *(None if row.range is None else getattr(row.range, name) for name in _RANGE),
        ]
        for index, row in enumerate(view.layers)
    )
    about = ["position", "node", "op_type", "tensor", "dims", "kept", "first_divergent"]
    return csv_text([[*about, *head, *(f"reference {name}" for name in _RANGE)], *rows])


def _measured(layer: LayerDivergence | None, names: Sequence[str]) -> list[Value]:
    if layer is None:
        return [None] * len(names)
    return [*(layer.metrics.get(name) for name in names[:-1]), layer.nonfinite]


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
    metrics = list(dict.fromkeys(name for output_metrics in outputs for name in output_metrics))
    scores = list(dict.fromkeys(name for sample in accuracy.samples for name in sample.scores_candidate))
    scored = [f"{side} {name}" for name in scores for side in ("reference", "candidate")]
    return csv_text([["sample", "label", "output", *metrics, *scored], *_sample_rows(accuracy, metrics, scores)])


def _sample_rows(accuracy: Accuracy, metrics: Sequence[str], scores: Sequence[str]) -> Iterator[list[Value]]:
    for sample in accuracy.samples:
        sides = (sample.scores_reference, sample.scores_candidate)
        score_cells: list[Value] = [side.get(name) for name in scores for side in sides]
        for output, output_metrics in sample.outputs.items():
            yield [sample.sample, sample.label, output, *(output_metrics.get(name) for name in metrics), *score_cells]
            score_cells = [None] * len(score_cells)


LAYERS, TRIALS, KEPT, SAMPLES = "layers.csv", "trials.csv", "kept.csv", "samples.csv"


def write_precision_exports(documents: RunDocuments, folder: Path) -> None:
    """Write the exports into the folders of the searching and comparing steps of a run."""
    for (step, search), view in zip(documents.of(PrecisionSearch).items(), collect_searches(documents), strict=True):
        own = folder / step
        _write(own / TRIALS, trials_csv(search))
        _write(own / KEPT, kept_csv(search))
        _write_depth(view, own)
    for (step, accuracy), compared in zip(
        documents.of(Accuracy).items(), collect_accuracy(documents.of(Accuracy)), strict=True
    ):
        own = folder / step
        if accuracy.samples:
            _write(own / SAMPLES, samples_csv(accuracy))
        _write_depth(compared, own)


def _write_depth(view: SearchView | AccuracyView, own: Path) -> None:
    """Write the layers as a table, if any was compared."""
    if view.depth is not None:
        _write(own / LAYERS, depth_csv(view.depth))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
