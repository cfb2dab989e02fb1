"""A model before and after a step, or as two runtimes run it: numbers, operators and differences."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.report.diff_rows import DiffView, collect_diff


@dataclass(frozen=True)
class TypeChange:
    """Numbers of nodes of one type before and after."""

    op_type: str
    before: int
    after: int

    @property
    def delta(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class ChangeView:
    """The change of a model, by type."""

    totals: tuple[tuple[str, int, int, str], ...]
    """(name, before, after, unit) for nodes, parameters, bytes of weights, opset."""
    changed: tuple[TypeChange, ...]
    """Types by size of the change, the largest first."""
    unchanged: tuple[TypeChange, ...]
    casts_added: int
    notes: tuple[str, ...]
    diff: DiffView | None
    """Changes by node, if recorded."""

    @property
    def largest_delta(self) -> int:
        return max((abs(type_.delta) for type_ in self.changed), default=0)


def collect_change(change: GraphChange) -> ChangeView:
    """Return the numbers, types and differences of a record."""
    before, after = change.before, change.after
    op_types = dict.fromkeys([*before.nodes_by_type, *after.nodes_by_type])
    types = [
        TypeChange(
            short_name(op_type),
            before.nodes_by_type.get(op_type, 0),
            after.nodes_by_type.get(op_type, 0),
        )
        for op_type in op_types
    ]
    by_change = sorted(types, key=lambda type_: (-abs(type_.delta), type_.op_type))
    return ChangeView(
        totals=(
            ("nodes", before.node_count, after.node_count, ""),
            ("parameters", before.parameter_count, after.parameter_count, ""),
            ("weights", before.initializer_bytes, after.initializer_bytes, "bytes"),
            ("opset", before.opset, after.opset, "version"),
        ),
        changed=tuple(type_ for type_ in by_change if type_.delta),
        unchanged=tuple(type_ for type_ in types if not type_.delta),
        casts_added=change.casts_added,
        notes=tuple(short_name(note, 1000) for note in change.notes),
        diff=collect_diff(change.diff) if change.diff is not None else None,
    )
