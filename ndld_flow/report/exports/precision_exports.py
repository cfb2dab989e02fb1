"""Export searches and comparisons: tables for spreadsheets, a summary for pull requests, a picture."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_accuracy import AccuracyView, collect_accuracy
from ndld_flow.report.collect_divergence import DepthView
from ndld_flow.report.collect_search import SearchView, collect_searches
from ndld_flow.report.exports.precision_csv import depth_csv, kept_csv, samples_csv, trials_csv
from ndld_flow.report.exports.precision_markdown import accuracy_markdown, search_markdown

LAYERS, TRIALS, KEPT, SAMPLES = "layers.csv", "trials.csv", "kept.csv", "samples.csv"
SEARCH_SUMMARY, ACCURACY_SUMMARY, PICTURE = "search.md", "accuracy.md", "divergence.svg"


def write_precision_exports(documents: RunDocuments, folder: Path) -> None:
    """Write the exports into the folders of the searching and comparing steps of a run."""
    for (step, search), view in zip(documents.searches.items(), collect_searches(documents), strict=True):
        own = folder / step
        _write(own / TRIALS, trials_csv(search))
        _write(own / KEPT, kept_csv(search))
        _write(own / SEARCH_SUMMARY, search_markdown(view, _write_depth(view, own)))
    for (step, accuracy), compared in zip(
        documents.accuracies.items(), collect_accuracy(documents.accuracies), strict=True
    ):
        own = folder / step
        if accuracy.samples:
            _write(own / SAMPLES, samples_csv(accuracy))
        _write(own / ACCURACY_SUMMARY, accuracy_markdown(compared, _write_depth(compared, own)))


def _write_depth(view: SearchView | AccuracyView, own: Path) -> str:
    """Write the layers as a table and a picture, and return the picture's name; empty if no layer was compared."""
    depth: DepthView | None = view.depth
    if depth is None:
        return ""
    # Imported lazily: matplotlib takes half a second.
    from ndld_flow.report.exports.divergence_picture import divergence_picture

    _write(own / LAYERS, depth_csv(depth))
    divergence_picture(depth, own / PICTURE)
    return PICTURE


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
