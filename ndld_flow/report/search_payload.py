"""Convert precision searches and their layers to columns for the page's scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from ndld_flow.base.text import visible_name
from ndld_flow.records.accuracy import higher_is_better
from ndld_flow.records.precision_search import Trial
from ndld_flow.report.collect_search import SearchView, trial_note
from ndld_flow.report.encoding import Texts, rounded
from ndld_flow.report.page_data import NumberText, SearchPayload

_MOST_RANGES = 60
"""Maximum number of ranges of positions of a trial's kept nodes."""


def search_payload(view: SearchView, texts: Texts) -> SearchPayload:
    """Return the trials of one search, a column for each of their fields; `panels/search_trials.js` reads them."""
    trials = view.trials
    metrics = list(dict.fromkeys(metric for trial in trials for metric in trial.metrics))
    outcome = view.outcome
    return {
        "step": view.step,
        "metric": outcome.metric,
        "higher": higher_is_better(outcome.metric),
        "bound": None if outcome.bound is None else rounded(outcome.bound),
        "number": [trial.number for trial in trials],
        "phase": texts.places(trial.phase for trial in trials),
        "what": texts.places((trial.what for trial in trials), visible_name),
        "kept": [trial.kept_count for trial in trials],
        "ranges": [_ranges(trial.kept) for trial in trials],
        "passed": [int(trial.passed) for trial in trials],
        "wall_s": [rounded(trial.wall_s) for trial in trials],
        "note": texts.places(map(trial_note, trials)),
        "metrics": {visible_name(metric): _values(trials, metric) for metric in metrics},
    }


def _values(trials: Sequence[Trial], metric: str) -> list[NumberText]:
    """Return values with nine digits, as a cosine near 1 differs in the last ones; `NaN` as text, None if not
    measured."""
    return [_value(trial.metrics.get(metric)) for trial in trials]


def _value(value: float | None) -> NumberText:
    if value is None:
        return None
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


def _ranges(positions: Sequence[int]) -> list[int] | None:
    """Return first and last of each range of positions, flattened; None if there are too many."""
    found = list(_runs(sorted(positions)))
    return list(chain.from_iterable(found)) if len(found) <= _MOST_RANGES else None


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = last = None
    for position in positions:
        if last is None or position != last + 1:
            if start is not None and last is not None:
                yield start, last
            start = position
        last = position
    if start is not None and last is not None:
        yield start, last
