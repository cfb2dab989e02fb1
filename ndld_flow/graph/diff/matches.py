"""What of one model is what of another, as far as is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.diff.pairs import Pairs

Port = tuple[ir.Graph, int]
"""An output of a graph, by its position: several may give one value."""


@dataclass(frozen=True)
class Matches:
    """Partners of every kind."""

    functions: Pairs[ir.Function] = field(default_factory=Pairs)
    graphs: Pairs[ir.Graph] = field(default_factory=Pairs)
    nodes: Pairs[ir.Node] = field(default_factory=Pairs)
    values: Pairs[ir.Value] = field(default_factory=Pairs)
    """Graphs' inputs, initializers, and what nodes with partners make."""
    outputs: Pairs[Port] = field(default_factory=Pairs)
