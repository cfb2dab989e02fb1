"""Remove nodes that have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


_OP_TYPES: dict[str, tuple[str, ...]] = {
    "identity": ("Identity",),
    "dropout": ("Dropout",),
    "cast": ("Cast",),
    "reshape": ("Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    "expand": ("Expand", "Tile"),
    "transpose": ("Transpose",),
    "pad": ("Pad",),
    "slice": ("Slice",),
    "concat": ("Concat", "Sum", "Max", "Min", "Mean"),
    "arithmetic": ("Add", "Sub", "Mul", "Div"),
}
Kind = Literal["identity", "dropout", "cast", "reshape", "expand", "transpose", "pad", "slice", "concat", "arithmetic"]


class RemoveNoops(Operation):
    """Remove nodes that have no effect; all results are exactly the same.

    remove_noops: {kinds: [identity, dropout]}
    """

    heading = "nodes"
    keeps_outputs = True

    kinds: tuple[Kind, ...] = ()
    """Kinds to remove; all by default. `identity`: Identity; `dropout`: Dropout in inference; `cast`: Cast to the same
    type; `reshape`: Reshape, Flatten, Squeeze, Unsqueeze to the same shape; `expand`: Expand and Tile to the same
    shape; `transpose`: Transpose to the same order; `pad`: Pad by zero; `slice`: Slice of everything; `concat`: Concat,
    Sum, Max, Min, Mean of one tensor; `arithmetic`: plus 0, minus 0, times 1, divided by 1."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes
        from ndld_flow.graph.sanitize.simplify import remove_noops

        op_types = {op_type for kind in self.kinds or _OP_TYPES for op_type in _OP_TYPES[kind]}
        edits = OperationEdits(edited)
        with known_shapes(edited.model):
            before = -1
            while edits.done.total() != before:
                before = edits.done.total()
                remove_noops(edits, op_types)
        if not before:
            asked = f" of the kinds {', '.join(self.kinds)}" if self.kinds else ""
            edited.note(f"the model has no node{asked} without effect")
            return "nothing to do"
        counts = sorted((name.removesuffix(" removed"), count) for name, count in edits.done.items())
        listed = ", ".join(f"{count} {op_type}" for op_type, count in counts)
        return f"{counted(before, 'node')} without effect removed: {listed}"
