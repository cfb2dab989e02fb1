"""Operations that extract parts of a model and combine models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import JoinOperation, Operation
from ndld_flow.graph.edit.settings import Select, Words

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Extract(Operation):
    """Keep only a part of the model with its weights and functions: what outputs depend on, or selected nodes.

        extract: {outputs: [features], inputs: [images]}

    With `select`, tensors that the nodes read from other nodes become inputs, and tensors that other nodes read from
    them become outputs. Constants are included:

        extract: {select: {between: [backbone_first, backbone_last]}}

    Two steps that `extract` from the same source split a model; `append_model` joins the halves again. `cut` keeps
    what `extract` leaves out.
    """

    outputs: Words = ()
    """Tensors that become the outputs."""
    inputs: Words = ()
    """Tensors that become the inputs; by default the part extends back to the inputs of the model."""
    scope: str = ""
    """With `outputs`: their graph, such as `If_0/then_branch`."""
    select: Select | None = None
    """Nodes of the part, instead of `outputs`."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose type or shape is unknown."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if bool(self.outputs) == (self.select is not None):
            raise ValueError("give the part with `outputs` (and `inputs`), or with `select`")
        if self.select is not None and (self.inputs or self.scope):
            raise ValueError("`inputs` and `scope` belong to `outputs`; `select` has a `scope` of its own")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, part_between, part_of_nodes
        from ndld_flow.graph.edit.interface import show_interface

        if self.select is not None:
            part = part_of_nodes(edited, edited.select_nodes(self.select))
        else:
            part = part_between(edited, self.scope, self.inputs, self.outputs)
        keep_only(edited, part, self.types)
        return f"{counted(len(part.nodes), 'node')} kept: {show_interface(edited.model)}"


class Cut(Operation):
    """Cut off nodes: tensors that they read become outputs, tensors that the rest reads from them become inputs.

        cut: {select: {after: logits}}
        cut: {select: {after: [p3, p4, p5]}}

    This cuts off everything after a tensor, such as post-processing, or after several, such as the head of a detector
    with three scales; `before` cuts off preprocessing. `extract` with
    the same `select` makes a model of the part that is cut off, and `append_model` reattaches it.
    """

    select: Select
    """Nodes of the main graph to cut off."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose type or shape is unknown."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, rest_without
        from ndld_flow.graph.edit.interface import show_interface

        count = len(edited.model.graph)
        keep_only(edited, rest_without(edited, edited.select_nodes(self.select)), self.types)
        return f"{counted(count - len(edited.model.graph), 'node')} cut off: {show_interface(edited.model)}"


class ExtractSubgraph(Operation):
    """Keep only a subgraph of an If, Loop or Scan, as a separate model.

        extract_subgraph: {scope: If_0/then_branch}

    Outer tensors that it reads become inputs; outer weights and constants are included. A loop's body keeps its
    iteration number, condition and loop-carried values as inputs.
    """

    scope: str
    """The subgraph as `node/attribute`: `loop/body`; nested, `loop/body/If_3/else_branch`."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose type or shape is unknown."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, part_of_body
        from ndld_flow.graph.edit.interface import show_interface

        part = part_of_body(edited, self.scope)
        keep_only(edited, part, self.types)
        return f"{self.scope} with {counted(len(part.nodes), 'node')} kept: {show_interface(edited.model)}"


class ExtractFunction(Operation):
    """Keep only a local function, as a model with the types and attributes of a call.

    extract_function: {function: "pkg.nn::Attention", call: layer_3, attributes: {heads: 8}}
    """

    function: str
    """`domain::Name`."""
    call: str | None = None
    """The calling node, whose inputs give the types and whose attributes give the values; the first by default."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Values of the function's attributes, instead of those of the call and of the defaults."""
    types: dict[str, str] = Field(default={})
    """Input or output of the function -> `float32[1, 3, H, ?]`, instead of the call's."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_function

        keep_function(edited, self.function, self.call, self.attributes, self.types)
        return f"{self.function} with {counted(len(edited.model.graph), 'node')} kept"


class AppendModel(JoinOperation):
    """Append another model, whose inputs read this model's outputs.

        append_model: {model: tail}

    This reverses a `cut` when `extract` made a model of the other part. Without `connect`, inputs read the outputs of
    the same names, or are matched in order when the counts are equal. Inputs of the same name in both models become
    one. The model with the older opset is converted; names that are already used get the other model's name as a
    prefix.
    """

    connect: dict[str, str] = Field(default={})
    """Input of the appended model -> output or other tensor of this model. Its other inputs become inputs."""
    keep_outputs: bool = False
    """Keep outputs that were connected as outputs of the model."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import append_model

        joined = append_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{counted(len(joined.nodes), 'node')} appended"


class PrependModel(JoinOperation):
    """Prepend another model, whose outputs this model's inputs read.

        prepend_model: {model: preprocessing, connect: {images: normalized}}

    Without `connect`, inputs read the outputs of the same names, or are matched in order when the counts are equal.
    Inputs of the same name in both models become one. The inputs of the other model come first. The model with the
    older opset is converted; names that are already used get the other model's name as a prefix.
    """

    connect: dict[str, str] = Field(default={})
    """Input of this model -> output of the prepended model. Its other outputs become outputs."""
    keep_outputs: bool = False
    """Make its outputs that were connected outputs too."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import prepend_model

        joined = prepend_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{counted(len(joined.nodes), 'node')} prepended"


class MergeModel(JoinOperation):
    """Merge another model into this one, side by side: the result has the inputs and outputs of both.

        merge_model: {model: classifier, share_inputs: [images]}

    The model with the older opset is converted; names that are already used get the other model's name as a prefix.
    """

    share_inputs: Words = ()
    """Inputs of both models that become one."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import merge_model

        joined = merge_model(edited, self.model, self.share_inputs, self.prefix)
        return f"{counted(len(joined.nodes), 'node')} added"


class ImportModel(JoinOperation):
    """Insert the nodes of another model into this one, as separate nodes or as a local function.

        import_model: {model: attention, connect: {x: features}, outputs: {y: attended}, prefix: att_}

    Inputs of the other model that are not connected become inputs of this one. Outputs that are not listed in `outputs`
    are tensors that later operations can connect. The model with the older opset is converted; names that are already
    used get the other model's name as a prefix.
    """

    connect: dict[str, str] = Field(default={})
    """Input of the other model -> tensor of this model to read."""
    outputs: dict[str, str] = Field(default={})
    """Output of the other model -> its name as an output of this model."""
    as_function: str | None = None
    """`domain::Name`: insert a local function of this name and one node that calls it, instead of separate nodes."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import call_as_function, import_model

        joined = import_model(edited, self.model, self.connect, self.outputs, self.prefix)
        if self.as_function is not None:
            call_as_function(edited, joined, self.as_function)
        return f"{counted(len(joined.nodes), 'node')} imported"
