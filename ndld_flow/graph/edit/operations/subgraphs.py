"""Operations on subgraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import AllowEmpty, Select
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetSubgraph(Operation):
    """Set a subgraph of an If, Loop or Scan: from text, from another model, or as a copy of another subgraph.

        set_subgraph: {scope: If_0/else_branch, text: "skip () => (float[N] skipped) { skipped = Identity(x) }"}
        set_subgraph: {scope: If_0/else_branch, model: fallback, connect: {images: x}}
        set_subgraph: {scope: If_1/then_branch, copy_of: If_0/then_branch, connect: {features_0: features_1}}

    It replaces the subgraph that the node has, and completes a node that was added without one. Its inputs and outputs
    must be those that the node requires. Its names become unique in the whole model.
    """

    scope: str
    """The subgraph as `node/attribute`: `loop/body`; nested, `loop/body/If_3/else_branch`."""
    text: str | None = None
    """The subgraph in ONNX's text form: `body (int64 i, bool c, float[N] x) => (bool go, float[N] y) {...}`. Names that
    it does not define are tensors of enclosing graphs."""
    model: Annotated[str | None, Reads(Onnx)] = None
    """A model of the recipe, or an earlier step that produces one."""
    copy_of: str | None = None
    """Another subgraph to copy, as `node/attribute`. Outer weights that are not visible at the new place are copied
    too."""
    connect: dict[str, str] = Field(default={})
    """With `model`: its input -> tensor of an enclosing graph. Other inputs become inputs of the subgraph; a branch of
    an If, which has none, reads tensors of their names. With `copy_of`: outer tensor that the original reads -> the one
    that the copy reads."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if [self.text, self.model, self.copy_of].count(None) != 2:
            raise ValueError("give the subgraph with `text`, `model` or `copy_of`")
        if self.connect and self.text is not None:
            raise ValueError("`connect` belongs to `model` and `copy_of`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.subgraphs import (
            find_subgraph,
            put_subgraph,
            read_subgraph,
            subgraph_copy,
            subgraph_of_model,
        )

        node, attribute = find_subgraph(edited, self.scope)
        if self.text is not None:
            graph = read_subgraph(edited, node, self.text)
        elif self.model is not None:
            graph = subgraph_of_model(edited, node, self.model, self.connect)
        else:
            graph = subgraph_copy(edited, node, self.copy_of or "", self.connect)
        put_subgraph(edited, node, attribute, graph)
        return f"{self.scope} set to a subgraph of {counted(len(graph), 'node')}"


class InlineBranch(Operation):
    """Replace an If by the nodes of one of its branches; the other branch and unused nodes are removed.

    inline_branch: {select: If_0, branch: then_branch}
    """

    select: Select
    """If nodes to replace."""
    branch: Literal["then_branch", "else_branch"]
    """The branch to keep."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.subgraphs import inline_branches

        nodes = edited.select_nodes(self.select, self.allow_empty)
        inline_branches(edited, nodes, self.branch)
        return f"{len(nodes)} Ifs replaced by their {self.branch}"


class WrapInIf(Operation):
    """Run nodes only if a condition is true: they become the then-branch of a new If.

        wrap_in_if: {select: "denoise_*", condition: is_noisy, otherwise: {denoised: audio}}

    The else-branch passes other tensors through; `set_subgraph` can replace it.
    """

    select: Select
    """Nodes of one graph."""
    condition: str
    """The condition, a bool tensor of one element."""
    otherwise: dict[str, str] = Field(default={})
    """Output of the nodes -> the tensor that replaces it when the condition is false; optional if there is one output
    and one input."""
    name: str = "If"
    """Name of the new node; a number is appended if it is already used."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.subgraphs import wrap_in_if

        nodes = edited.select_nodes(self.select)
        wrapper = wrap_in_if(edited, nodes, self.condition, self.otherwise, self.name)
        return f"{len(nodes)} nodes run only if {self.condition}, in {wrapper.name}"
