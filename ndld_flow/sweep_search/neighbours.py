"""What is near a point: the same but for one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.sweep_search.axis_values import AxisValues, Position
from ndld_flow.sweep_search.numbered_space import Place


def neighbours_of(place: Place, axes: Sequence[AxisValues], stride: float = 0.0) -> Iterator[Place]:
    """Places that differ on one axis, by a share of its length or by one value, whichever is further.

    Where there is no order, every other value is near.
    """
    for depth, axis in enumerate(axes):
        for position in _away(axis, place[depth], stride):
            yield (*place[:depth], position, *place[depth + 1 :])


def _away(axis: AxisValues, position: Position, stride: float) -> list[Position]:
    if not axis.ordered:
        return axis.beside(position)
    share = axis.share(position)
    ends = (axis.nearest(max(0.0, share - stride)), axis.nearest(min(1.0, share + stride)))
    return [end for end in dict.fromkeys(ends) if end != position] or axis.beside(position)
