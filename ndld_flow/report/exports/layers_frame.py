"""Convert layers to a data frame for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.records.profile import Profile
from ndld_flow.report.exports.csv_tables import LAYER_COLUMNS, TIME_COLUMNS, layer_rows

if TYPE_CHECKING:
    import pandas as pd


def layers_frame(profile: Profile) -> pd.DataFrame:
    """Return a data frame with one row per layer and the columns of the CSV; times in ms, sizes in bytes, `share` from
    0 to 1.

    An engine that was not run has no columns of times.
    """
    import pandas as pd

    frame = pd.DataFrame(list(layer_rows(profile)), columns=list(LAYER_COLUMNS))
    was_run = any(layer.samples_ms for layer in profile.layers) or not profile.layers
    return frame if was_run else frame.drop(columns=list(TIME_COLUMNS))
