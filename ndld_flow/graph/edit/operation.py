"""What an operation of the step `edit` is: a frozen, strict, typed value with one method, as a step is.

::

    class RenameNodes(Operation):
        '''Rename nodes.

            rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
        '''                                             # what `ndld-flow steps edit` shows, with an example

        about = "nodes"                                 # the heading that it stands under there

        select: Select
        '''Which nodes.'''                              # help, schema and README come from here

        def apply(self, edited: EditedModel) -> str:
            ...                                         # change edited.model, say what was done: `12 nodes renamed`

The file name is the word in the recipe. Discovery, help, schema, validation and the contract tests need nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from ndld_flow.base.settings import Settings

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


About = Literal[
    "nodes",
    "wires",
    "attributes",
    "inputs and outputs",
    "shapes",
    "the model",
    "weights",
    "how weights are kept",
    "parts and other models",
    "If, Loop, Scan",
    "local functions",
    "named surgeries",
    "rules and code",
    "others",
]
"""Headings of lists of operations, in their order."""


class Operation(Settings):
    """Base of all operations: fields are settings, `apply` changes the model and says what it did."""

    about: ClassVar[About] = "others"
    """The heading it stands under where operations are listed."""
    version: ClassVar[int] = 1
    """Raise it when the same settings would give another model than before."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version shapes the result, besides onnx, onnx-ir and numpy."""

    uses_inputs: ClassVar[bool] = False
    """True when the recipe's `inputs:` matter to what it does."""

    keeps_outputs: ClassVar[bool] = False
    """True when outputs that keep their names compute what they did, as nearly as its docstring says: what is declared
    of their shapes holds then."""

    @abstractmethod
    def apply(self, edited: EditedModel) -> str:
        """Change the model in place; returns what was done in one line, such as `12 nodes renamed`.

        Raises a `RequestError` that says what, where and what to do; the step tells the operation's place in the list.
        """
