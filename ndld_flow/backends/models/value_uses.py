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
