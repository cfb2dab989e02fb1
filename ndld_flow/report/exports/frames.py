"""Results as pandas data frames: the rows and columns of the CSV files, with values that are not made safe for
spreadsheets.

Times are in ms and sizes in bytes unless a column or its neighbour `unit` names another unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.records.history import MetricHistory
from ndld_flow.records.profile import Profile
from ndld_flow.report.exports.csv_tables import LAYER_COLUMNS, TIME_COLUMNS, layer_rows

if TYPE_CHECKING:
    import pandas as pd


def layers_frame(profile: Profile) -> pd.DataFrame:
    """Return one row per layer; `share` is from 0 to 1. An engine that was not run has no columns of times."""
    import pandas as pd

    frame = pd.DataFrame(list(layer_rows(profile)), columns=list(LAYER_COLUMNS))
    was_run = any(layer.samples_ms for layer in profile.layers) or not profile.layers
    return frame if was_run else frame.drop(columns=list(TIME_COLUMNS))


def history_frame(history: MetricHistory) -> pd.DataFrame:
    """Return one row per measurement of each series; series differ in metric, machine, settings or inputs."""
    import pandas as pd

    of_series = ["metric", "unit", "machine", "settings", "inputs"]
    of_point = ["run", "started_at", "commit", "value", "doubt"]
    rows = [
        [*(getattr(one, name) for name in of_series), *(getattr(point, name) for name in of_point)]
        for one in history.series
        for point in one.points
    ]
    return pd.DataFrame(rows, columns=[*of_series, *of_point])
