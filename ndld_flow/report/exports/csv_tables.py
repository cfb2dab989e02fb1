"""Write tables for spreadsheets as CSV (RFC 4180, UTF-8, CRLF).

Spreadsheets interpret text that begins with `=`, `+`, `-`, `@`, tab or return as a formula, which can exfiltrate data
(https://owasp.org/www-community/attacks/CSV_Injection). Names are untrusted, so such text is prefixed with an
apostrophe.
"""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence

from ndld_flow.base.text import visible_name
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.comparison.layers import layer_changes
from ndld_flow.report.tables import Table, Value

_FORMULA = re.compile(r"\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""Includes full-width forms, which some spreadsheets accept, and leading blanks."""

LAYER_COLUMNS = (
    "index",
    "name",
    "type",
    "role",
    "provider",
    "precision",
    "input_precision",
    "output_precision",
    "weights_dtype",
    "multiply_unit",
    "precision_basis",
    "asked_precision",
    "output_dims",
    "median_ms",
    "min_ms",
    "max_ms",
    "mean_ms",
    "share",
    "macs",
    "read_bytes",
    "written_bytes",
    "weight_bytes",
    "tactic",
    "stream",
    "depth",
    "onnx_nodes",
)
TIME_COLUMNS = ("median_ms", "min_ms", "max_ms", "mean_ms", "share")

_NOT_OF_ENGINES = ("provider", "depth", *TIME_COLUMNS)
_OF_ENGINES = tuple(name for name in LAYER_COLUMNS if name not in _NOT_OF_ENGINES)


def engine_layers_csv(label: str, layers: Sequence[Layer]) -> str:
    """Return the layers of an engine that was not run: as `layers_csv`, with formats instead of times."""
    places = [LAYER_COLUMNS.index(name) for name in _OF_ENGINES]
    rows = (
        [label, *(cells[place] for place in places), layer.outputs[0].format if layer.outputs else ""]
        for layer in layers
        for cells in [_layer(layer, 0.0, 0.0)]
    )
    return csv_text([("engine", *_OF_ENGINES, "output_format"), *rows])


def layers_csv(profiles: Sequence[tuple[str, Profile]]) -> str:
    """Return all layers of labelled profiles, with times in ms over all passes of the layer pass."""
    rows = ([label, *row] for label, profile in profiles for row in layer_rows(profile))
    return csv_text([("profile", *LAYER_COLUMNS), *rows])


def layer_rows(profile: Profile) -> Iterator[list[Value]]:
    """Yield the cells of every layer, as `LAYER_COLUMNS` names them. `share` is of the sum of all layers' medians."""
    medians = profile.layer_times.ms
    total = math.fsum(medians)
    for layer, median in zip(profile.layers, medians, strict=True):
        yield _layer(layer, median, median / total if total else 0.0)


COMPARISON_COLUMNS = (
    "profile",
    "base",
    "candidate",
    "base_layers",
    "candidate_layers",
    "base_types",
    "candidate_types",
    "base_ms",
    "candidate_ms",
    "delta_ms",
    "ratio",
    "verdict",
    "q_value",
    "matched_by",
    "confidence",
)


def comparison_csv(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> str:
    """Return all rows of the layer tables, once per candidate."""
    return csv_text([COMPARISON_COLUMNS, *comparison_rows(comparison, profiles)])


def comparison_rows(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> Iterator[list[Value]]:
    """Yield the cells of all rows of the layer tables, as `COMPARISON_COLUMNS` names them, once per candidate."""
    for compared, measured in zip(comparison.profiles, profiles, strict=True):
        labels = [comparison.subjects[place].label for place in compared.subjects]
        for candidate in range(1, len(measured)):
            changes = sorted(layer_changes(compared, measured, candidate), key=lambda change: change.row)
            for change in changes:
                names: list[Value] = [compared.name, labels[0], labels[candidate]]
                row = compared.rows[change.row]
                verdict = change.verdict
                yield [
                    *names,
                    " + ".join(layer.name for layer in change.base),
                    " + ".join(layer.name for layer in change.candidate),
                    " + ".join(layer.type for layer in change.base),
                    " + ".join(layer.type for layer in change.candidate),
                    change.base_ms if change.base else None,
                    change.candidate_ms if change.candidate else None,
                    change.delta_ms,
                    verdict.ratio if verdict is not None else None,
                    verdict.verdict if verdict is not None else None,
                    verdict.q_value if verdict is not None else None,
                    row.methods[candidate],
                    row.confidence_between(0, candidate),
                ]


def _layer(layer: Layer, median: float, part: float) -> list[Value]:
    samples = [sample for sample in layer.samples_ms if math.isfinite(sample)]
    dims = "x".join("?" if dim < 0 else str(dim) for dim in layer.outputs[0].shape) if layer.outputs else ""
    return [
        layer.index,
        layer.name,
        layer.type,
        layer.purpose,
        layer.provider,
        layer.precision or "unknown",
        layer.input_precision,
        layer.output_precision,
        layer.weights_dtype,
        layer.unit or "unknown",
        layer.precision_basis,
        layer.asked_precision,
        dims,
        median if samples else None,
        min(samples, default=None),
        max(samples, default=None),
        statistics.fmean(samples) if samples else None,
        part,
        layer.macs,
        layer.read_bytes,
        layer.written_bytes,
        layer.weight_bytes,
        layer.tactic,
        layer.stream,
        layer.depth,
        ", ".join(layer.onnx_nodes),
    ]


def table_csv(shown: Table) -> str:
    """Return the values of a table, with the titles of its columns."""
    return csv_text([[column.title for column in shown.columns], *shown.rows])


def csv_text(rows: Iterable[Sequence[Value]]) -> str:
    """Return the text of a CSV file with cells that are safe for spreadsheets."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([_field(cell) for cell in row] for row in rows)
    return text.getvalue()


def _field(cell: Value) -> Value:
    """Return a safe cell; NaN and infinity are left empty."""
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if not isinstance(cell, str):
        return cell
    shown = visible_name(cell)
    return f"'{shown}" if _FORMULA.match(cell) else shown
