"""Remove initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.constant_tensors import ConstantTensor
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveInitializers(Operation):
    """Remove unused initializers.

        remove_initializers: {select: "debug_*"}

    An initializer that is used is refused, unless `force` disconnects it from optional inputs.
    """

    heading = "weights"

    select: SelectTensors | None = None
    """Initializers to remove; all unused ones by default."""
    force: bool = False
    """Disconnect optional inputs that read it."""
    allow_empty: bool = False
    """Succeed when `select` selects nothing."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import constant_tensors, find_tensors

        if self.select is None:
            initializers = constant_tensors(edited.model, constants=False)
            unused = [each for each in initializers if not each.value.uses() and not _is_interface(each.value)]
            if not unused:
                edited.note("all initializers are used")
                return "nothing to do"
            chosen = unused
        else:
            chosen = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        for initializer in chosen:
            self._remove(edited, initializer)
        return f"{len(chosen)} initializers removed"

    def _remove(self, edited: EditedModel, initializer: ConstantTensor) -> None:
        """Remove an initializer; with `force`, disconnect it from optional inputs first.

        Raises `RequestError` if it is used, or is an input or output of its graph.
        """
        from ndld_flow.graph.edit.graph_edits import some_of
        from ndld_flow.graph.edit.schemas import Schemas, port_at
        from ndld_flow.models.scopes import node_label

        value, name = initializer.value, initializer.name
        if _is_interface(value):
            which = "output" if value.is_graph_output() else "input"
            raise RequestError(f"initializer {name!r} is also an {which} of its graph; remove that first")
        readers = sorted({node_label(use.node) for use in value.uses()})
        if readers and not self.force:
            shown = some_of(list(map(repr, readers)))
            raise RequestError(f"initializer {name!r} is read by {shown}; connect these to another tensor first")
        schemas = Schemas(edited.model)
        for use in tuple(value.uses()):
            operator = schemas.of(use.node)
            known = operator is not None and use.idx < len(operator.inputs)
            if operator is None or not known or port_at(operator, use.idx).kind != "optional":
                raise RequestError(f"node {node_label(use.node)!r} requires input {use.idx}, which is {name!r}")
        for node, index in tuple(value.uses()):
            node.replace_input_with(index, None)
            while node.inputs and node.inputs[-1] is None:
                node.resize_inputs(len(node.inputs) - 1)
        del initializer.graph.initializers[name]


def _is_interface(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_graph_output()
