"""Nodes that change nothing, of the kinds that are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, known_shapes
from ndld_flow.graph.sanitize.noops import remove_noops
from ndld_flow.graph.sanitize.shape_values import visited_shape_values

_KINDS: dict[str, tuple[str, ...]] = {
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


def remove_noops_of(edited: EditedModel, kinds: Sequence[str]) -> Counter[str]:
    """Bypass nodes that change nothing until none is left; operator -> how many went. No kinds mean all."""
    op_types = {op_type for kind in kinds or _KINDS for op_type in _KINDS[kind]}
    edits = Rewriting(edited)
    with known_shapes(edited.model):
        before = -1
        while edits.done.total() != before:
            before = edits.done.total()
            remove_noops(edits, visited_shape_values(edits), op_types)
    return Counter({what.removesuffix(" removed"): count for what, count in edits.done.items()})
