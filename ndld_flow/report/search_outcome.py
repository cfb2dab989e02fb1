"""Summarize precision searches: the kept nodes, their effect, and the result in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ndld_flow.base.declared_metrics import higher_is_better, metric_text
from ndld_flow.base.quantities import count, counted
from ndld_flow.base.text import short_name
from ndld_flow.records.precision_search import PrecisionSearch


@dataclass(frozen=True)
class SearchOutcome:
    """Summary of one search."""

    step: str
    search: PrecisionSearch
    metric: str
    """The bounded metric; empty if nothing ran."""
    bound: float | None
    whole: float | None
    """Value with all nodes at reduced precision; None if that did not run."""
    found: float | None
    """Value with the kept nodes."""

    @property
    def whole_passed(self) -> bool:
        """True if no node had to be kept."""
        return self.search.passed and not self.search.kept

    @property
    def bound_outcome(self) -> str:
        """`bound 0.999 met`, `bound 0.999 not met`."""
        bound = "bound" if self.bound is None else f"bound {metric_text(self.metric, self.bound)}"
        return f"{bound} {'met' if self.search.passed else 'not met'}"


def search_outcome(step: str, search: PrecisionSearch) -> SearchOutcome:
    """Return the summary by the bounded metric: of several, the first that is not met, with the kept nodes or otherwise
    with all reduced.
    """
    metric = _decisive_metric(search)
    return SearchOutcome(
        step=short_name(step),
        search=search,
        metric=short_name(metric, 40),
        bound=_bounds(search.tolerance).get(metric),
        whole=_value(search.metrics_whole, metric),
        found=_value(search.metrics_found, metric),
    )


def outcomes_of(searches: Mapping[str, PrecisionSearch]) -> tuple[SearchOutcome, ...]:
    """Return all searches of a run, failed ones first."""
    outcomes = [search_outcome(step, search) for step, search in searches.items()]
    return tuple(sorted(outcomes, key=lambda outcome: outcome.search.passed))


def _bounds(tolerance: Mapping[str, float]) -> dict[str, float]:
    """Return metric -> bound: `rtol` and `atol` are a bound on `mismatched`."""
    bounds = {metric: bound for metric, bound in tolerance.items() if metric not in ("rtol", "atol")}
    return bounds if len(bounds) == len(tolerance) else {"mismatched": 0.0} | bounds


def _value(metrics: Mapping[str, float], metric: str) -> float | None:
    """Return a metric's value; NaN if outputs have non-finite values, which other metrics leave out."""
    return math.nan if metrics.get("nonfinite", 0) > 0 else metrics.get(metric)


def _decisive_metric(search: PrecisionSearch) -> str:
    bounds = _bounds(search.tolerance)
    metrics = {**search.metrics_found, **search.metrics_whole}
    bounded = [metric for metric in bounds if metric in metrics]
    broken = [
        metric
        for measured in (search.metrics_found, search.metrics_whole)
        for metric in bounded
        if metric in measured and is_outside(metric, measured[metric], bounds[metric])
    ]
    return next(iter([*broken, *bounded, *metrics]), "")


def is_outside(metric: str, value: float, bound: float) -> bool:
    """Return whether a metric breaks its bound; a NaN does."""
    if math.isnan(value):
        return True
    return value < bound if higher_is_better(metric) else value > bound


def search_words(outcome: SearchOutcome) -> str:
    """Return `search keeps 3 nodes in fp32: cosine 0.7712 -> 0.99998 (bound 0.999 met)`."""
    search = outcome.search
    nodes = counted(len(search.kept), "node") if search.kept else "no node"
    kept = f"keeps {nodes} in {short_name(search.kept_precision, 20)}"
    values = [metric_text(outcome.metric, value) for value in (outcome.whole, outcome.found) if value is not None]
    if outcome.whole_passed:
        values = values[:1]
    change = f": {outcome.metric} {' -> '.join(values)}" if values else ""
    return f"{outcome.step} {kept}{change} ({outcome.bound_outcome})"


_DESTROYED = 0.9
"""Below this cosine the output is unrelated to the reference."""


def search_sentences(search: PrecisionSearch, outcome: SearchOutcome) -> Iterator[str]:
    """Yield the problem, where it starts, and the result; code is in backticks."""
    yield _as_it_comes(search, outcome)
    if search.first_divergent:
        yield _start(search)
    if search.kept or not outcome.whole_passed:
        yield _mended(search, outcome)


def _as_it_comes(search: PrecisionSearch, outcome: SearchOutcome) -> str:
    whole = f"With all nodes in {search.precision}"
    value, bound = outcome.whole, outcome.bound
    if value is None:
        return f"{whole} the model does not run."
    asked = "" if bound is None else f" (bound {metric_text(outcome.metric, bound)})"
    reached = f"{outcome.metric} {metric_text(outcome.metric, value)}{asked}"
    if not math.isfinite(value):
        broken = search.metrics_whole.get("nonfinite", 0.0)
        values = f"{count(broken)} values of the outputs are" if broken else "the outputs have values that are"
        return f"{whole} the model is unusable: {values} NaN or infinite."
    if bound is not None and not is_outside(outcome.metric, value, bound):
        return f"{whole} the model meets its bound: {reached}."
    destroyed = outcome.metric == "cosine" and value < _DESTROYED
    return f"{whole} {'the model is unusable' if destroyed else 'the model exceeds its bound'}: {reached}."


def _start(search: PrecisionSearch) -> str:
    layers = [layer for layer in search.layers_whole if search.first_divergent in (layer.node, layer.tensor)]
    called = f"`{short_name(search.first_divergent, 80)}`"
    if not layers:
        return f"It starts at {called}."
    first = layers[0]
    called = f"{short_name(first.op_type, 60)} `{short_name(first.node or first.tensor, 80)}`"
    kept = next(
        (
            candidate
            for candidate in search.kept
            if first.tensor in candidate.outputs or (first.node != "" and first.node == candidate.node)
        ),
        None,
    )
    if kept is None or not kept.evidence:
        return f"It starts at {called}."
    return f"It starts at {called}: {short_name(kept.evidence[0].sentence, 300).rstrip('.')}."


def _mended(search: PrecisionSearch, outcome: SearchOutcome) -> str:
    stay = "stays" if len(search.kept) == 1 else "stay"
    kept = f"{counted(len(search.kept), 'node')} {stay} in {short_name(search.kept_precision, 20)}"
    reached = "" if outcome.found is None else f": {outcome.metric} {metric_text(outcome.metric, outcome.found)}"
    if search.passed:
        return f"{kept}{reached}."
    return f"The bound is not met. Best result: {kept}{reached}."
