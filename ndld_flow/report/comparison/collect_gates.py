"""The gates of a comparison with their outcomes."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Comparison, ComparisonGate

_WORST_FIRST = ("failed", "incomparable", "inconclusive", "passed")


@dataclass(frozen=True)
class GateView:
    """One gate on one candidate."""

    gate: str
    profile: str
    subject: int
    """Position of the candidate among the subjects."""
    outcome: str
    why: str


def collect_gates(comparison: Comparison) -> tuple[GateView, ...]:
    """Return the gates, failed ones first."""
    views = [_view(comparison, gate) for gate in comparison.gates]
    return tuple(sorted(views, key=lambda view: _WORST_FIRST.index(view.outcome)))


def _view(comparison: Comparison, gate: ComparisonGate) -> GateView:
    subjects = next((one.subjects for one in comparison.profiles if one.name == gate.name), ())
    return GateView(
        gate=short_name(gate.gate),
        profile=short_name(gate.name, 80),
        subject=subjects[gate.candidate] if gate.candidate < len(subjects) else gate.candidate,
        outcome=gate.outcome,
        why=short_name(gate.why, 400),
    )
