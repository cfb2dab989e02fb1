"""Exports of precision searches and accuracy comparisons: tables, summaries for pull requests, pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.quantities import count, seconds
from ndld_flow.records.accuracy import Accuracy, LayerDivergence
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_divergence import NOT_FINITE, DepthView, error_of
from ndld_flow.report.collect_layers import Passage
from ndld_flow.report.exports.csv_tables import csv_text
from ndld_flow.report.exports.github_markdown import code, details, prose, table, table_markdown
from ndld_flow.report.exports.picture_file import (
    BLUE,
    CRIMSON,
    INK,
    ORANGE,
    PAPER,
    QUIET,
    SERIES,
    new_figure,
    picture_text,
    plain_axes,
    save_picture,
)
from ndld_flow.report.panels.accuracy import AccuracyView, collect_accuracy
from ndld_flow.report.panels.precision import KeptRow, SearchView, collect_searches
from ndld_flow.report.tables import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    metrics = [_metric_names([layer.of_curves[place] for layer in view.layers]) for place in range(len(view.curves))]
    head = [f"{curve}: {name}" for curve, names in zip(view.curves, metrics, strict=True) for name in names]
    kept = set(view.kept)
    rows = (
        [
            row.record.position,
            row.record.node,
            row.record.op_type,
            row.record.tensor,
            "x".join(map(str, row.record.shape)),
            int(place in kept),
            int(place == view.first),
            *(cell for layer, names in zip(row.of_curves, metrics, strict=True) for cell in _measured(layer, names)),
            *(None if row.range is None else getattr(row.range, name) for name in _RANGE),
        ]
        for place, row in enumerate(view.layers)
    )
    about = ["position", "node", "op_type", "tensor", "dims", "kept", "first_divergent"]
    return csv_text([[*about, *head, *(f"reference {name}" for name in _RANGE)], *rows])


def _metric_names(layers: Sequence[LayerDivergence | None]) -> list[str]:
    names = dict.fromkeys(name for layer in layers if layer is not None for name in layer.metrics)
    return [*names, "nonfinite"]


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


_KEPT = 30
_SIGN = {True: "✅", False: "❌"}


def search_markdown(view: SearchView, picture: str = "") -> str:
    """Return the summary of a search, its kept nodes and its cost. `picture` is the name of a file in the same
    folder."""
    sentences = [*map(_passages, view.sentences), f"Cost: {_passages(view.cost_words)}"]
    parts = [
        f"### {_SIGN[view.outcome.passed]} {code(view.step)}: {prose(view.outcome.bound_outcome)}\n",
        "".join(f"- {sentence}\n" for sentence in sentences),
        *(
            f"- **Open**: {prose(insight.title)}. {_passages(insight.evidence)} {_passages(insight.next_step)}\n"
            for insight in view.insights
        ),
        f"![Divergence along the depth of the network]({picture})\n" if picture else "",
        _kept(view),
        _trials(view),
    ]
    return "\n".join(part for part in parts if part)


def _passages(passages: tuple[Passage, ...]) -> str:
    return "".join(code(text, 100) if is_code else prose_piece(text) for text, is_code in passages)


def prose_piece(text: str) -> str:
    """Return a part of a sentence, preserving blanks at both ends."""
    lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{lead}{prose(text.strip())}{trail}"


def _kept(view: SearchView) -> str:
    if not view.kept:
        return ""
    rows = [_kept_cells(row) for row in view.kept[:_KEPT]]
    more = "" if view.kept_count <= _KEPT else f"\n{count(view.kept_count - _KEPT)} more are in `kept.csv`.\n"
    return f"{table(['Kept', 'Type', 'Cause', 'Evidence', 'Without it'], rows)}{more}"


def _kept_cells(row: KeptRow) -> list[str]:
    evidence = "; ".join(prose(sentence) for sentence, _ in row.evidence[:2])
    without = ", ".join(map(prose, row.without)) or "\N{EN DASH}"
    return [code(row.node) or "(no name)", code(row.op_type), row.cause, evidence, without]


def _trials(view: SearchView) -> str:
    if not view.trials:
        return ""
    shown = len(view.trial_table.rows)
    more = "" if len(view.trials) <= shown else f"\n{count(len(view.trials) - shown)} more are in `trials.csv`.\n"
    return details(
        f"{count(len(view.trials))} trials in {seconds(view.wall_s)}", table_markdown(view.trial_table) + more
    )


def accuracy_markdown(view: AccuracyView, picture: str = "") -> str:
    """Return the outcome of a comparison, its margins and where divergence starts. `picture` is a file in the same
    folder.
    """
    starts = f"Divergence starts at {code(view.first_divergent, 100)}.\n" if view.first_divergent else ""
    parts = [
        f"### {_SIGN[view.outcome == 'passed']} {code(view.candidate)} against {code(view.reference)}\n",
        table_markdown(view.labelled) if view.labelled else "",
        _outputs(view),
        starts,
        f"![Divergence along the depth of the network]({picture})\n" if picture else "",
        "".join(f"- {prose(note)}\n" for note in view.notes[:20]),
    ]
    return "\n".join(part for part in parts if part)


def _outputs(view: AccuracyView) -> str:
    head = ["Output", *map(code, view.metrics), "Passed"]
    rows = [
        [code(row.output), *(cell.value if cell else "\N{EN DASH}" for cell in row.cells), _SIGN[not row.failed]]
        for row in view.rows
    ]
    limits = ["tolerance", *((prose(limit) or "any") for limit in view.tolerances), ""]
    return table(head, [*rows, limits], numbers=tuple(range(1, 1 + len(view.metrics))))


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
    """Write the layers as a table and a picture, and return the picture's name.

    It is empty if no layer was compared, or without Matplotlib.
    """
    depth: DepthView | None = view.depth
    if depth is None:
        return ""
    _write(own / LAYERS, depth_csv(depth))
    if not EXTRAS["plots"].is_installed:
        return ""
    divergence_picture(depth, own / PICTURE)
    return PICTURE


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")


_CURVES = (ORANGE, SERIES[2])
_KEPT_LINES = 200
"""Maximum number of lines for kept layers."""


def divergence_picture(view: DepthView, path: Path) -> Path:
    """Write the curves as PNG or SVG, by the file's name, and return its path."""
    return save_picture(lambda: _draw_divergence(view), path)


def _draw_divergence(view: DepthView) -> Figure:
    figure = new_figure(3.9)
    axes = figure.add_axes((0.085, 0.14, 0.895, 0.72))
    plain_axes(axes)
    axes.set_yscale("log")
    axes.minorticks_off()
    positions = [layer.record.position for layer in view.layers]
    low, high = _ends(view)
    axes.set_ylim(low, high)
    axes.set_xlim(min(positions) - 0.5, max(positions) + 0.5)
    for place, curve in enumerate(view.curves):
        errors = [error_of(layer.of_curves[place], view.metric) for layer in view.layers]
        _curve(axes, positions, errors, (low, high), _CURVES[place % len(_CURVES)], picture_text(curve, 2.5, 9.5))
    _marks(axes, view, positions)
    if view.bound is not None:
        axes.axhline(view.bound.error, color=INK, lw=1, ls=(0, (5, 4)), alpha=0.7)
        axes.annotate(view.bound.words, (1, view.bound.error), (0, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right", size=9, color=INK, parse_math=False)  # fmt: skip
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=4, frameon=False, fontsize=9.5)
    figure.text(0.01, 0.94, "relative error of each layer", size=10.5, weight="bold", color=INK)
    figure.text(0.97, 0.02, "layers, in execution order", size=9.5, color=QUIET, ha="right")
    return figure


def _ends(view: DepthView) -> tuple[float, float]:
    """Return decades that cover all positive errors and the bound."""
    errors = [error_of(layer, view.metric) for row in view.layers for layer in row.of_curves]
    known = [error for error in errors if error is not None and error > 0]
    known += [view.bound.error] if view.bound else []
    if not known:
        return 1e-6, 1.0
    return 10.0 ** math.floor(math.log10(min(known)) - 0.05), 10.0 ** math.ceil(math.log10(max(known)) + 0.15)


def _curve(
    axes: Axes,
    positions: Sequence[int],
    errors: Sequence[float | None],
    ends: tuple[float, float],
    color: str,
    label: str,
) -> None:
    """Draw a curve; zero errors are at the bottom, NaN and infinity at the top edge."""
    drawn = [math.nan if error is None or error == NOT_FINITE else max(error, ends[0]) for error in errors]
    axes.plot(positions, drawn, color=color, lw=1.2, label=label)
    broken = [position for position, error in zip(positions, errors, strict=True) if error == NOT_FINITE]
    if broken:
        top = [ends[1]] * len(broken)
        axes.plot(broken, top, ls="none", marker="x", ms=4, color=color, clip_on=False, label="NaN or infinite")


def _marks(axes: Axes, view: DepthView, positions: Sequence[int]) -> None:
    bottom = axes.get_ylim()[0]
    for place in view.kept[:_KEPT_LINES]:
        axes.axvline(positions[place], color=BLUE, lw=0.8, alpha=0.3)
    if view.kept:
        kept = [positions[place] for place in view.kept[:_KEPT_LINES]]
        axes.plot(kept, [bottom] * len(kept), ls="none", marker="D", ms=5, color=BLUE, mec=PAPER, clip_on=False,
                  label="kept")  # fmt: skip
    if view.first is None:
        return
    layer = view.layers[view.first].record
    x = positions[view.first]
    axes.axvline(x, color=CRIMSON, lw=1.2)
    is_left = view.first < 0.6 * len(positions)
    text = f"starts here: {picture_text(f'{layer.op_type} {layer.node or layer.tensor}', 3.5, 9.5)}"
    axes.annotate(text, (x, 0.94), (6 if is_left else -6, 0), xycoords=("data", "axes fraction"), size=9.5,
                  textcoords="offset points", ha="left" if is_left else "right", color=INK, weight="bold",
                  parse_math=False)  # fmt: skip
