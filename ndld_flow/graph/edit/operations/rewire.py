"""Let readers of a tensor read another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Rewire(Operation):
    """Let all that reads one tensor read another one.

        rewire: {tensor: features, read: features_scaled, outputs: true}

    What the other tensor is made of goes on reading the first: nothing is made of itself.
    """

    about = "wires"

    tensor: str
    """What is read now."""
    read: str
    """What to read instead."""
    readers: Select | None = None
    """Only these nodes."""
    outputs: bool = False
    """Let graph outputs become the other tensor too; they keep their names."""
    scope: str = ""
    """The graph from which the two tensors are seen; readers may stand in its subgraphs too."""
    allow_empty: bool = False
    """Let it pass when nobody reads the tensor."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nesting import Nesting
        from ndld_flow.graph.edit.wiring import rewire

        nesting, graph = Nesting(edited.model), edited.graph(self.scope)
        old, new = nesting.value(self.tensor, graph), nesting.value(self.read, graph)
        readers = None if self.readers is None else set(edited.select_nodes(self.readers, self.allow_empty))
        changed, left = rewire(edited, old, new, readers, self.outputs)
        if not changed and not self.allow_empty:
            raise RequestError(f"nothing that may be changed reads {self.tensor!r}; see `readers` and `outputs`")
        told = f"; {left} go on, it is made of them" if left else ""
        return f"{changed} readers of {self.tensor} read {self.read}{told}"
