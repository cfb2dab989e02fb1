"""Bases of the operations of the step `edit`: frozen, strict, typed settings with one method, like steps.

::

    class RenameNodes(Operation):
        '''Rename nodes.

            rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
        '''                                             # shown by `ndld-flow steps edit`, with an example

        select: Select
        '''Nodes to rename.'''                           # used for help, schema and reference

        def apply(self, edited: EditedModel) -> str:
            ...                                         # change edited.model, return a summary: `12 nodes renamed`

The class's name is the operation's name in recipes, and the name of its file the heading under which it is listed.
Discovery, help, schema, validation and the contract tests need nothing else.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, Unpack, cast, get_args

from pydantic import ConfigDict, Field, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.graph.edit.settings import AttributeValue, NewName, RandomKind, TensorValue
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


Heading = Literal[
    "nodes", "connections", "attributes", "inputs and outputs", "shapes", "model", "weights", "weight storage",
    "extracting and combining", "subgraphs", "local functions", "transformations", "rules and code", "others",
]  # fmt: skip
"""Headings of the list of operations, in their order."""


class Operation(Settings):
    """Base of all operations: fields are settings, `apply` changes the model."""

    heading: ClassVar[Heading] = "others"
    """The heading under which it is listed: by default that of its file."""
    version: ClassVar[int] = 1
    """Increase it when the same settings produce another model than before."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version affects the result, besides onnx, onnx-ir and numpy."""
    extra: ClassVar[str] = ""
    """The extra (`base/extras.py`) whose packages it needs."""
    keeps_outputs: ClassVar[bool] = False
    """True if outputs that keep their names keep their values, as precisely as its docstring states: their declared
    shapes stay valid."""

    def __init_subclass__(cls, **config: Unpack[ConfigDict]) -> None:
        super().__init_subclass__(**config)
        file = cls.__module__.rpartition(".")[2].replace("_", " ")
        if "heading" not in vars(cls) and file in get_args(Heading):
            cls.heading = cast("Heading", file)

    @property
    def keeps_values(self) -> bool:
        """Return True if outputs that keep their names keep their values but for rounding."""
        return type(self).keeps_outputs

    @property
    def uses_inputs(self) -> bool:
        """Return whether the recipe's `inputs:` affect the result."""
        return False

    @abstractmethod
    def apply(self, edited: "EditedModel") -> str:
        """Change the model in place and return a summary in one line, such as `12 nodes renamed`.

        Raises a `RequestError` that states what is wrong, where, and what to do; the step adds the operation's position
        in the list.
        """


class InitializerOperation(Operation, TensorValue):
    """Base of operations that give an initializer its value."""

    generate: RandomKind | None = None
    """Generate the numbers: `normal`, `zeros`, `ones`, `uniform_positive` or `uniform_negative`."""
    seed: int = Field(default=0, ge=0)
    """Seed for `generate`: the same seed generates the same numbers."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if [self.value, self.file, self.generate].count(None) != 2:
            raise ValueError("give one of `value`, `file` and `generate`")
        return self


class NodeOperation(Operation):
    """Base of operations that create nodes."""

    op_type: str = Field(min_length=1)
    """The operator, such as `Relu`."""
    domain: str = ""
    """Domain of the operator, such as `com.microsoft`; the model's opset imports get it as needed. Operators outside
    the domains of ONNX and ONNX Runtime are custom operators, which are not checked."""
    attributes: dict[NewName, AttributeValue] = Field(default={})
    """Attribute -> value, as in `set_attributes`."""

    @property
    def own_domain(self) -> str:
        """Return the domain as models store it: empty for ONNX's own."""
        return "" if self.domain == "ai.onnx" else self.domain


class JoinOperation(Operation):
    """Base of operations that add the nodes of another model."""

    model: Annotated[str, Reads(Onnx)]
    """A model of the recipe, or an earlier step that produces one."""
    prefix: str | None = None
    """Prefix for the names of all nodes and tensors of that model."""
