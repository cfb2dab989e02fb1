"""Summarise a precision search in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ndld_flow.base.quantities import count, number
from ndld_flow.base.text import short_name
from ndld_flow.records.precision_search import KeptNode, PrecisionSearch
from ndld_flow.report.search_outcome import SearchOutcome, is_outside, nodes_word

_DESTROYED = 0.9
"""Below this cosine the output is unrelated to the reference."""


def search_story(search: PrecisionSearch, outcome: SearchOutcome) -> Iterator[str]:
    """Yield the problem, where it starts, and the result; code is in backticks."""
    yield _as_it_comes(search, outcome)
    if search.first_divergent:
        yield _start(search)
    if search.kept or not outcome.whole_passed:
        yield _mended(outcome)


def _as_it_comes(search: PrecisionSearch, outcome: SearchOutcome) -> str:
    whole = f"With all nodes in {search.precision}"
    value, bound = outcome.whole, outcome.bound
    if value is None:
        return f"{whole} the model does not run."
    asked = "" if bound is None else f" (bound {number(bound)})"
    told = f"{outcome.metric} {number(value)}{asked}"
    if not math.isfinite(value):
        broken = search.metrics_whole.get("nonfinite", 0.0)
        values = f"{count(broken)} values of the outputs are" if broken else "the outputs have values that are"
        return f"{whole} the model is unusable: {values} NaN or infinite."
    if bound is not None and not is_outside(outcome.metric, value, bound):
        return f"{whole} the model meets its bound: {told}."
    destroyed = outcome.metric == "cosine" and value < _DESTROYED
    return f"{whole} {'the model is unusable' if destroyed else 'the model exceeds its bound'}: {told}."


def _start(search: PrecisionSearch) -> str:
    layers = [one for one in search.layers_whole if search.first_divergent in (one.node, one.tensor)]
    called = f"`{short_name(search.first_divergent, 80)}`"
    if not layers:
        return f"It starts at {called}."
    first = layers[0]
    called = f"{short_name(first.op_type, 60)} `{short_name(first.node or first.tensor, 80)}`"
    kept = next((one for one in search.kept if _is(one, first.node, first.tensor)), None)
    if kept is None or not kept.evidence:
        return f"It starts at {called}."
    return f"It starts at {called}: {short_name(kept.evidence[0].sentence, 300).rstrip('.')}."


def _is(kept: KeptNode, node: str, tensor: str) -> bool:
    return tensor in kept.outputs or (node != "" and node == kept.node)


def _mended(outcome: SearchOutcome) -> str:
    stay = "stays" if outcome.kept == 1 else "stay"
    kept = f"{nodes_word(outcome.kept)} {stay} in {outcome.kept_precision}"
    told = "" if outcome.found is None else f": {outcome.metric} {number(outcome.found)}"
    if outcome.passed:
        return f"{kept}{told}."
    return f"The bound is not met. Best result: {kept}{told}."
