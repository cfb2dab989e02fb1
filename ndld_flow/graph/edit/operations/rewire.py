"""Connect the readers of a tensor to another tensor."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    import onnx_ir as ir

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

        nesting, graph = Nesting(edited.model), edited.graph(self.scope)
        old, new = nesting.value(self.tensor, graph), nesting.value(self.read, graph)
        readers = None if self.readers is None else set(edited.select_nodes(self.readers, self.allow_empty))
        changed, left = self._rewire(edited, old, new, readers)
        if not changed and not self.allow_empty:
            raise RequestError(f"nothing that may be changed reads {self.tensor!r}; see `readers` and `outputs`")
        unchanged = f"; {left} readers are unchanged, because {self.read} depends on them" if left else ""
        return f"{changed} readers of {self.tensor} read {self.read}{unchanged}"

    def _rewire(
        self, edited: EditedModel, old: ir.Value, new: ir.Value, readers: Collection[ir.Node] | None
    ) -> tuple[int, int]:
        """Replace `old` by `new` for its readers; returns the numbers of changed and of unchanged inputs.

        Raises `RequestError` for a reader that cannot see the new tensor.
        """
        from ndld_flow.graph.edit.names import Nesting
        from ndld_flow.graph.edit.wiring import ancestors, replace_output
        from ndld_flow.models.scopes import node_label

        if old is new:
            raise RequestError(f"{old.name!r} cannot replace itself")
        nesting, before = Nesting(edited.model), ancestors(edited.model, new)
        changed = left = 0
        for use in tuple(old.uses()):
            reader = use.node
            if readers is not None and reader not in readers:
                continue
            if any(node in before for node in (reader, *nesting.owners(reader.graph))):
                left += 1
                continue
            if not nesting.sees(reader.graph, new):
                raise RequestError(f"node {node_label(reader)!r} reads {old.name!r} and cannot see {new.name!r}")
            reader.replace_input_with(use.idx, new)
            changed += 1
        if self.outputs and old.is_graph_output():
            replace_output(edited, old, new)
            changed += 1
        return changed, left
