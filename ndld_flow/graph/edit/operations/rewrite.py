"""Replace a pattern of nodes by another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, JsonValue

from ndld_flow.base.settings import Settings
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select, Words

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class RewriteConditions(Settings):
    """What inputs and attributes of a pattern must be besides."""

    constants: dict[str, JsonValue] = Field(default={})
    """Input -> the number, or lists of numbers, that it is a constant of; `null`: it is any constant."""
    dtypes: dict[str, Words] = Field(default={})
    """Input -> its element type, such as `float16`, or several of which one is enough."""
    ranks: dict[str, int] = Field(default={})
    """Input -> how many dimensions it has."""
    shapes: dict[str, tuple[int | str | None, ...]] = Field(default={})
    """Input -> its dimensions: numbers, names of open ones, or `null` for any."""
    attributes: dict[str, Annotated[tuple[JsonValue, ...], BeforeValidator(_listed)]] = Field(default={})
    """Variable, without its `$` -> the value it has, or several of which one is enough; `{perm: [[0, 2, 1]]}` is
    one."""
    single_use: Words = ()
    """Inputs that nothing but the match reads."""


class Rewrite(Operation):
    """Replace a pattern of nodes, wherever it stands, by another one; both in ONNX's text form.

        rewrite:
          pattern: |
            (x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }
          replacement: |
            (x) => (y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }

    Subgraphs and local functions are looked through. The pattern's inputs are any tensors, the same name always the
    same one. An attribute that the pattern names must have that value, said or by default; `axis = $axis` takes any
    and `$axis` in the replacement is what it was. A `Constant` matches constants of these numbers, whatever node or
    initializer holds them; one number also matches one element of any rank. Inner tensors must not be read elsewhere.
    Matches share no node; what the replacement makes is not looked at again. New nodes get the precision and other
    metadata that the old ones agree on.
    """

    about = "rules and code"

    pattern: str
    """What to look for: `(inputs) => (outputs) { nodes }`."""
    replacement: str
    """What to put there: it reads some of the pattern's inputs, by their names, and makes as many outputs in the same
    order."""
    where: RewriteConditions = RewriteConditions()
    """What else must be true."""
    select: Select | None = None
    """Only where all nodes are among these."""
    tolerance: float = Field(default=1e-5, ge=0)
    """How far constants may be off, relatively."""
    commutative: bool = True
    """Add, Mul, ... match with their inputs in any order."""
    exact_attributes: bool = False
    """Nodes have no attributes besides those that the pattern names."""
    allow_shared: bool = False
    """Rewrite also where inner tensors are read elsewhere: what makes these is kept."""
    limit: int | None = Field(default=None, ge=1)
    """Rewrite only so many places, the first ones."""
    allow_empty: bool = False
    """Let it pass when the pattern is nowhere."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.rewrite_conditions import Conditions
        from ndld_flow.graph.edit.rewrite_matching import Extent, Matching
        from ndld_flow.graph.edit.rewriting import rewrite

        where = {name: getattr(self.where, name) for name in RewriteConditions.model_fields}
        conditions = Conditions(**where, tolerance=self.tolerance)
        matching = Matching(conditions, self.commutative, self.exact_attributes, self.allow_shared)
        chosen = None if self.select is None else frozenset(edited.select_nodes(self.select, self.allow_empty))
        extent = Extent(chosen, self.limit, self.allow_empty)
        return f"{rewrite(edited, (self.pattern, self.replacement), matching, extent)} places rewritten"
