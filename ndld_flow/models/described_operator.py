"""An operator of the reference as JSON."""

from __future__ import annotations

from ndld_flow.drawing.graph import Family
from ndld_flow.models.op_reference import ListedOperator, OperatorVersion, VersionChange, history_of
from ndld_flow.records.document import Record


class DescribedOperator(Record):
    """An operator that matches the query of `ndld-flow ops`."""

    name: str
    domain: str
    """Empty for the default domain."""
    family: Family
    uses: int | None
    """Nodes of the model with this operator; None without a model."""
    note: str
    """The reason why its schema is unknown, or another remark; usually empty."""
    newest: int | None
    """The opset of its newest version; None if its schema is unknown."""
    version: OperatorVersion | None
    """The version at the requested opset, or else the newest."""
    history: tuple[VersionChange, ...]
    """All versions, the newest first, with their changes."""


def describe_operator(operator: ListedOperator) -> DescribedOperator:
    """Return an operator as a record, with its history."""
    return DescribedOperator(
        name=operator.name,
        domain=operator.domain,
        family=operator.family,
        uses=operator.uses or None,
        note=operator.note,
        newest=operator.operator.newest.since_version if operator.operator else None,
        version=operator.version,
        history=tuple(history_of(operator.operator)) if operator.operator else (),
    )
