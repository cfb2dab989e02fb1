"""Remove nodes that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel

Kind = Literal["identity", "dropout", "cast", "reshape", "expand", "transpose", "pad", "slice", "concat", "arithmetic"]


class RemoveNoops(Operation):
    """Remove nodes that change nothing; every number stays as it was.

    remove_noops: {kinds: [identity, dropout]}
    """

    about = "nodes"
    keeps_outputs = True

    kinds: tuple[Kind, ...] = ()
    """Which; none means all. `identity` Identity; `dropout` Dropout that is not training; `cast` Cast to the type there
    is; `reshape` Reshape, Flatten, Squeeze, Unsqueeze to the same shape; `expand` Expand and Tile likewise; `transpose`
    in the order there is; `pad` with nothing; `slice` of everything; `concat` Concat, Sum, Max, Min, Mean of one;
    `arithmetic` plus 0, minus 0, times 1, by 1."""
    allow_empty: bool = False
    """Let it pass when there is none."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.noop_kinds import remove_noops_of

        removed = remove_noops_of(edited, self.kinds)
        if not removed and not self.allow_empty:
            asked = f" of the kinds {', '.join(self.kinds)}" if self.kinds else ""
            raise RequestError(f"the model has no node{asked} that changes nothing; `allow_empty: true` lets it pass")
        told = ", ".join(f"{count} {op_type}" for op_type, count in sorted(removed.items()))
        return f"{removed.total()} nodes that change nothing removed{f': {told}' if told else ''}"
