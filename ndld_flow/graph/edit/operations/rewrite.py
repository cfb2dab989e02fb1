"""Replace a pattern of nodes by another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import RewriteConditions, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Rewrite(Operation):
    """Replace every match of a pattern of nodes by other nodes; both are in ONNX's text form.

        rewrite:
          pattern: |
            (x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }
          replacement: |
            (x) => (y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }

    Subgraphs and local functions are searched too. The pattern's inputs match any tensors, the same name always the
    same one. An attribute in the pattern must have that value, explicitly or by default; `axis = $axis` matches any
    value, which `$axis` in the replacement stands for. A `Constant` matches constants of these numbers, in a node or an
    initializer; a single number also matches one element of any rank. Intermediate tensors must not be read elsewhere.
    Matches do not overlap, and replacements are not searched again. New nodes get the precision and other metadata that
    all replaced nodes share.
    """

    heading = "rules and code"

    pattern: str
    """The nodes to find: `(inputs) => (outputs) { nodes }`."""
    replacement: str
    """The nodes to insert: they read some of the pattern's inputs, by name, and have the same number of outputs, in the
    same order."""
    where: RewriteConditions = RewriteConditions()
    """Further conditions."""
    select: Select | None = None
    """Only matches whose nodes are all selected."""
    tolerance: float = Field(default=1e-5, ge=0)
    """Relative tolerance of constants."""
    commutative: bool = True
    """Match Add, Mul, ... with their inputs in any order."""
    exact_attributes: bool = False
    """Match only nodes without attributes other than those in the pattern."""
    allow_shared: bool = False
    """Replace matches whose intermediate tensors are read elsewhere too; the nodes that produce these are kept."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of matches to replace, from the first."""
    allow_empty: bool = False
    """Succeed when nothing matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.rewriting import Extent, Matching, rewrite

        matching = Matching(self.where, self.tolerance, self.commutative, self.exact_attributes, self.allow_shared)
        chosen = None if self.select is None else frozenset(edited.select_nodes(self.select, self.allow_empty))
        extent = Extent(chosen, self.limit, self.allow_empty)
        return f"{rewrite(edited, (self.pattern, self.replacement), matching, extent)} matches replaced"
