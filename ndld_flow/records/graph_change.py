"""The change of a graph by a step."""

from __future__ import annotations

from ndld_flow.records.base import Record
from ndld_flow.records.model_diff import ModelDiff


class GraphSummary(Record):
    """A model in numbers. Nodes of subgraphs and local functions are counted too."""

    nodes_by_type: dict[str, int]
    """`Conv`, or `com.microsoft::FusedConv` for other domains -> number of nodes, most frequent first."""
    parameter_count: int
    """Elements in all initializers and Constant nodes, sparse ones by their stored values."""
    initializer_bytes: int
    """Bytes of those elements."""
    opset: int
    """Version of the default ONNX domain."""
    ir_version: int

    @property
    def node_count(self) -> int:
        return sum(self.nodes_by_type.values())


class GraphChange(Record):
    """Before and after of one step."""

    before: GraphSummary
    after: GraphSummary
    casts_added: int = 0
    notes: tuple[str, ...] = ()
    """Sentences for people: changes, and nodes that were left unchanged with the reason."""
    diff: ModelDiff | None = None
    """The difference node by node, from steps that edit; None from other steps."""
