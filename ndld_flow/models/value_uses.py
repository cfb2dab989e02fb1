"""Places where a value is read."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Use:
    """A place where a value is read: input `index` of a node, or output `index` of a graph."""

    reader: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value | None:
        reader = self.reader
        return reader.inputs[self.index] if isinstance(reader, ir.Node) else reader.outputs[self.index]

    def read(self, value: ir.Value) -> None:
        """Read another value from now on."""
        if isinstance(self.reader, ir.Node):
            self.reader.replace_input_with(self.index, value)
        else:
            self.reader.outputs[self.index] = value


def insert_behind(value: ir.Value, node: ir.Node, graph: ir.Graph) -> None:
    """Put a node behind the one that makes a value; at the beginning of the graph when no node does."""
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
