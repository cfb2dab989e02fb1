"""The lines of a sweep's progress and of its end."""

from __future__ import annotations

from ndld_flow.base.quantities import quantity
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.runner.events import PointFinished, SweepFinished

MARKS = {
    "passed": ("✓", "green"),
    "refused": ("✗", "yellow"),
    "inconclusive": ("?", "yellow"),
    "failed": ("✗", "red"),
}
_LONGEST = 160


def describe_point(event: PointFinished) -> str:
    """Describe a finished point: `speed.threads=2, speed.optimization=all  3.21 ms`."""
    values = visible_text(", ".join(f"{name}={value}" for name, value in event.values.items()))
    objectives = ", ".join(quantity(metric.value, metric.unit) for metric in event.objectives.values())
    reason = shortened(visible_text(" ".join(event.reason.split())), _LONGEST)
    parts = [shortened(values, _LONGEST), objectives, reason, "measured again" if event.again else ""]
    return "  ".join(filter(None, parts))


def describe_sweep_end(event: SweepFinished) -> list[str]:
    """Describe the end of a sweep: its verdict and its report, or the sweep that it reuses."""
    if event.nothing_to_do:
        head = f"nothing to do: sweep {event.sweep} has all of these results ({event.wall_s:.2f} s)"
        return [head, event.verdict[0], *_applied(event), f"report {event.report}"]
    return [*event.verdict, *_applied(event), f"report {event.report}"]


def _applied(event: SweepFinished) -> list[str]:
    return [f"the best point's recipe: {event.applied}"] if event.applied else []
