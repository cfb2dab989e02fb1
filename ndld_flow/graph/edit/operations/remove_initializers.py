"""Remove initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
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
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors
        from ndld_flow.graph.edit.initializers import remove_initializer, unused_initializers

        if self.select is None:
            held = unused_initializers(edited.model)
            if not held and not self.allow_empty:
                raise RequestError("all initializers are used")
        else:
            held = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        for initializer in held:
            remove_initializer(edited, initializer, self.force)
        return f"{len(held)} initializers removed"
