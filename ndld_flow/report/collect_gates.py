"""Collect gates with their numbers, including those that were not reached."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ndld_flow.base.quantities import apart
from ndld_flow.base.text import short_name
from ndld_flow.records.run_record import GateResult, RunRecord

_RELATION = re.compile(r"<=|>=|==|!=|<|>")
_SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}


@dataclass(frozen=True)
class GateView:
    """One gate."""

    gate: str
    outcome: str
    """`passed`, `failed` or `not reached`."""
    left: str = ""
    """The measured value, with its unit."""
    relation: str = ""
    right: str = ""
    """The limit, with its unit."""
    fraction: float | None = None
    """Measured value over limit, if both are positive."""


def collect_gates(run: RunRecord) -> tuple[GateView, ...]:
    """Return gates in recipe order, then those that the recipe does not list."""
    results = {result.gate: result for result in run.gates}
    asked = run.recipe.get("gates")
    names = [gate for gate in asked if isinstance(gate, str)] if isinstance(asked, list) else []
    return tuple(_view(name, results.get(name)) for name in dict.fromkeys([*names, *results]))


def _view(gate: str, result: GateResult | None) -> GateView:
    name = short_name(gate)
    if result is None:
        return GateView(gate=name, outcome="not reached")
    found = _RELATION.search(gate)
    relation = found.group() if found else ""
    comparable = result.left >= 0 and result.right > 0
    left, right = apart((result.left, result.right), short_name(result.unit, 20))
    return GateView(
        gate=name,
        outcome="passed" if result.passed else "failed",
        left=left,
        relation=_SIGNS.get(relation, relation),
        right=right,
        fraction=result.left / result.right if comparable else None,
    )
