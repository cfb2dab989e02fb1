"""The base of the operations of the step `edit`: frozen, strict, typed settings with one method, like steps.

::

    class RenameNodes(Operation):
        '''Rename nodes.

            rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
        '''                                             # shown by `ndld-flow steps edit`, with an example

        heading = "nodes"                               # the heading under which it is listed there

        select: Select
        '''Nodes to rename.'''                           # used for help, schema and README

        def apply(self, edited: EditedModel) -> str:
            ...                                         # change edited.model, return a summary: `12 nodes renamed`

The file name is the operation's name in recipes. Discovery, help, schema, validation and the contract tests need
nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from ndld_flow.base.settings import Settings

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


Heading = Literal[
    "nodes",
    "connections",
    "attributes",
    "inputs and outputs",
    "shapes",
    "model",
    "weights",
    "weight storage",
    "extracting and combining",
    "subgraphs",
    "local functions",
    "transformations",
    "rules and code",
    "others",
]
"""Headings of the list of operations, in their order."""


class Operation(Settings):
    """Base of all operations: fields are settings, `apply` changes the model."""

    heading: ClassVar[Heading] = "others"
    """The heading under which it is listed."""
    version: ClassVar[int] = 1
    """Increase it when the same settings produce another model than before."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version affects the result, besides onnx, onnx-ir and numpy."""
    keeps_outputs: ClassVar[bool] = False
    """True when outputs that keep their names keep their values, as precisely as its docstring states: their declared
    shapes stay valid."""

    @property
    def uses_inputs(self) -> bool:
        """True when the recipe's `inputs:` affect the result."""
        return False

    @abstractmethod
    def apply(self, edited: EditedModel) -> str:
        """Change the model in place and return a summary in one line, such as `12 nodes renamed`.

        Raises a `RequestError` that states what is wrong, where, and what to do; the step adds the operation's position
        in the list.
        """
