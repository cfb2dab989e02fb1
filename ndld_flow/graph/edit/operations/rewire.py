"""Connect the readers of a tensor to another tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Rewire(Operation):
    """Connect all readers of a tensor to another tensor.

        rewire: {tensor: features, read: features_scaled, outputs: true}

    Nodes that the other tensor depends on still read the first: otherwise the graph would have a cycle.
    """

    heading = "connections"

    tensor: str
    """The tensor that is read now."""
    read: str
    """The tensor to read instead."""
    readers: Select | None = None
    """Only these nodes."""
    outputs: bool = False
    """Replace graph outputs too; they keep their names."""
    scope: str = ""
    """The graph in which the two names are looked up; its subgraphs are changed too."""
    allow_empty: bool = False
    """Succeed when nothing reads the tensor."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import Nesting
        from ndld_flow.graph.edit.wiring import rewire

        nesting, graph = Nesting(edited.model), edited.graph(self.scope)
        old, new = nesting.value(self.tensor, graph), nesting.value(self.read, graph)
        readers = None if self.readers is None else set(edited.select_nodes(self.readers, self.allow_empty))
        changed, left = rewire(edited, old, new, readers, self.outputs)
        if not changed and not self.allow_empty:
            raise RequestError(f"nothing that may be changed reads {self.tensor!r}; see `readers` and `outputs`")
        unchanged = f"; {left} readers are unchanged, because {self.read} depends on them" if left else ""
        return f"{changed} readers of {self.tensor} read {self.read}{unchanged}"
