"""Results as data frames, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.compare.compare_runs import Compared
from ndld_flow.compare.measure_model import Profiled
from ndld_flow.execution.events import RunFinished, SweepFinished
from ndld_flow.records.history import MetricHistory
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.report.exports.spreadsheets import (
    COMPARISON_COLUMNS,
    comparison_rows,
    history_frame,
    layers_frame,
    point_rows,
)
from ndld_flow.runs.list_runs import RunSummary

if TYPE_CHECKING:
    import pandas as pd


def make_frame(
    result: RunFinished | SweepFinished | Compared | Profiled | Profile | MetricHistory | Sequence[RunSummary],
) -> pd.DataFrame:
    """Return the metrics of a run, the points of a sweep, the matched layers of a comparison, the layers of a profile,
    the measurements of a history, or one row per run.
    """
    import pandas as pd

    if isinstance(result, RunFinished):
        values = [(metric.value, metric.unit) for metric in result.metrics.values()]
        return pd.DataFrame(values, columns=["value", "unit"], index=pd.Index(result.metrics, name="metric"))
    if isinstance(result, SweepFinished):
        titles, points = point_rows(read_sweep_record(Path(result.folder)))
        return pd.DataFrame(points, columns=titles)
    if isinstance(result, Compared):
        layers = list(comparison_rows(result.comparison, result.profiles))
        return pd.DataFrame(layers, columns=list(COMPARISON_COLUMNS))
    if isinstance(result, Profiled | Profile):
        return layers_frame(result.profile if isinstance(result, Profiled) else result)
    if isinstance(result, MetricHistory):
        return history_frame(result)
    fields = ["run", "kind", "started_at", "outcome", "wall_s", "tags", "user", "host", "machine", "model", "folder"]
    # One column for each metric; those of runs without it are empty.
    rows = [
        {name: getattr(run, name) for name in fields}
        | {f"{name} {metric.unit}".rstrip(): metric.value for name, metric in run.metrics.items()}
        for run in result
    ]
    return pd.DataFrame(rows, columns=None if rows else fields)
