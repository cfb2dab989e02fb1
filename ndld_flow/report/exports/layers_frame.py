"""Layers as a table for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.records.profile import Profile
from ndld_flow.report.exports.csv_tables import LAYER_COLUMNS, TIME_COLUMNS, layer_rows

if TYPE_CHECKING:
    import pandas as pd


def layers_frame(profile: Profile) -> pd.DataFrame:
    """One row a layer, columns as in the CSV; times in ms, sizes in bytes, `share` from 0 to 1.

    An engine that nobody ran has no columns of times.
    """
    import pandas as pd

    frame = pd.DataFrame(list(layer_rows(profile)), columns=list(LAYER_COLUMNS))
    was_run = any(layer.samples_ms for layer in profile.layers) or not profile.layers
    return frame if was_run else frame.drop(columns=list(TIME_COLUMNS))
