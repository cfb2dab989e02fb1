"""Operations on the model as a whole."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import NamePattern, name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of, short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import AllowEmpty, Dims, NewName, NodeSelect, Patterns, Select

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx_ir import Model, Node

    from ndld_flow.graph.edit.edited_model import EditedModel


_COMPARISON = re.compile(r"\s*(<=|>=|==|<|>)\s*([0-9]{1,18})\s*")
_COMPARE = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}
_SHOWN = 5

Count = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=f"^{_COMPARISON.pattern}$")]
"""A number, or a comparison such as `<= 300`."""
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Assert(Operation):
    """Fail the step unless the model is as expected; the message shows the values found.

        assert: {outputs: 2, op_types: {Transpose: 0, Conv: ">= 1"}}
        assert: {shapes: {outputs.0: [1, 84, 8400]}, dtypes: {images: float32}}
        assert: {select: {op_type: Cast, after: logits}, count: 0}

    All expectations are checked, at this place in the list; the operations and steps that follow do not run after a
    failure, and the exit code is 1. Nodes are counted in subgraphs and local functions too.
    """

    keeps_outputs = True

    op_types: dict[NamePattern, Count] = Field(default={})
    """Operator or pattern -> the number of its nodes: `0`, or a comparison such as `<= 3`."""
    only_op_types: Patterns = ()
    """The model has no other operators than these, such as those that a device supports."""
    select: Select | None = None
    """Nodes that `count` refers to; without `count`, at least one must exist."""
    count: Count | None = None
    """The number of selected nodes, or of all nodes: `12`, or a comparison such as `<= 300`."""
    inputs: Count | Names | None = None
    """The number of inputs, or their names in order."""
    outputs: Count | Names | None = None
    """The number of outputs, or their names in order."""
    shapes: dict[str, Dims] = Field(default={})
    """Tensor -> its shape: a number, a name or null (any) for each dimension. `outputs.0` is the first output,
    `inputs.1` the second input."""
    dtypes: dict[str, str] = Field(default={})
    """Tensor -> its element type; names as in `shapes`."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not any(getattr(self, name) not in ({}, (), None) for name in type(self).model_fields):
            raise ValueError('give what to check: `outputs: 2`, `op_types: {Transpose: 0}`, `count: "<= 300"`, ...')
        return self

    def apply(self, edited: EditedModel) -> str:
        results = [*self._check_nodes(edited), *self._check_edges(edited), *self._check_tensors(edited)]
        failures = [text for text in results if text]
        edited.failures += failures
        return f"{len(results) - len(failures)} of {len(results)} assertions hold"

    def _check_nodes(self, edited: EditedModel) -> Iterator[str]:
        """Yield the reason why an assertion fails, or an empty text."""
        from ndld_flow.models.nodes import node_label, op_name

        nodes = [node for graph in edited.graphs() for node in graph]
        for pattern, wanted in self.op_types.items():
            fits = name_matcher(pattern)
            yield _miscount(f"{pattern} nodes", wanted, [node_label(node) for node in nodes if fits(op_name(node))])
        if self.only_op_types:
            allowed = [name_matcher(pattern) for pattern in self.only_op_types]
            others = dict.fromkeys(name for name in map(op_name, nodes) if not any(fits(name) for fits in allowed))
            yield f"other operators than those of `only_op_types`: {_some(others)}" if others else ""
        if self.select is not None or self.count is not None:
            chosen = edited.select_nodes(self.select or NodeSelect(name=("*",)), allow_empty=True)
            what = "selected nodes" if self.select is not None else "nodes"
            yield _miscount(what, ">= 1" if self.count is None else self.count, list(map(node_label, chosen)))

    def _check_edges(self, edited: EditedModel) -> Iterator[str]:
        from ndld_flow.models.input_shapes import real_inputs

        edges = (
            ("inputs", self.inputs, real_inputs(edited.model)),
            ("outputs", self.outputs, edited.model.graph.outputs),
        )
        for what, wanted, values in edges:
            names = [value.name or "" for value in values]
            if isinstance(wanted, tuple):
                yield "" if list(wanted) == names else f"the {what} are {_some(names)}, not {_some(wanted)}"
            elif wanted is not None:
                yield _miscount(what, wanted, names)

    def _check_tensors(self, edited: EditedModel) -> Iterator[str]:
        from ndld_flow.graph.edit.graph_edits import known_shapes
        from ndld_flow.graph.edit.interface import more_exact
        from ndld_flow.graph.edit.value_grammar import parse_dtype
        from ndld_flow.models.element_types import dtype_name, value_dtype
        from ndld_flow.models.input_shapes import show_shape
        from ndld_flow.models.shape_inference import recorded_dims

        values = {name: _tensor(edited, name) for name in (*self.shapes, *self.dtypes)}
        declared = {value: value.shape for value in values.values()}
        with known_shapes(edited.model):
            shapes = {name: recorded_dims(more_exact(value.shape, declared[value])) for name, value in values.items()}
            dtypes = {name: value_dtype(value) or "of unknown type" for name, value in values.items()}
        for name, wanted in self.shapes.items():
            own = shapes[name]
            shown = "an unknown shape" if own is None else f"the shape {show_shape(own)}"
            pairs = zip(own or (), wanted, strict=False)
            fits = own is not None and len(own) == len(wanted) and all(w in (None, o) for o, w in pairs)
            yield "" if fits else f"{name} has {shown}, not {show_shape(wanted)}"
        for name, dtype in self.dtypes.items():
            yield "" if dtypes[name] == dtype_name(parse_dtype(dtype)) else f"{name} is {dtypes[name]}, not {dtype}"


def _miscount(what: str, wanted: int | str, found: Sequence[str]) -> str:
    """Return `3 Transpose nodes (a, b, c) instead of 0`; empty for the right number."""
    comparison = _COMPARISON.fullmatch(wanted) if isinstance(wanted, str) else None
    sign, number = (comparison[1], int(comparison[2])) if comparison else ("==", int(wanted))
    if _COMPARE[sign](len(found), number):
        return ""
    named = f" ({_some(found)})" if found else ""
    return f"{len(found)} {what.removesuffix('s') if len(found) == 1 else what}{named} instead of {wanted}"


def _some(names: Iterable[str]) -> str:
    return first_of(list(map(short_name, names)), _SHOWN) or "none"


def _tensor(edited: EditedModel, name: str) -> ir.Value:
    """Return the tensor of a name in the main graph, or the one that `outputs.0` or `inputs.0` refers to.

    Raises `RequestError` with the nearest name.
    """
    from ndld_flow.models.input_shapes import real_inputs
    from ndld_flow.models.nodes import values_of

    edge, _, index = name.rpartition(".")
    edges: Mapping[str, Sequence[ir.Value]] = {
        "inputs": real_inputs(edited.model),
        "outputs": edited.model.graph.outputs,
    }
    if edge not in edges or not index.isdecimal() or any(v.name == name for v in values_of(edited.model.graph)):
        return edited.value(name)
    if int(index) >= len(edges[edge]):
        raise RequestError(f"there is no {name!r}: the model has {len(edges[edge])} {edge}, counted from 0")
    return edges[edge][int(index)]


class SetOpset(Operation):
    """Convert the model to a newer or older opset, or set the version of another domain.

    Nodes whose operator differs between the two opsets are converted, in subgraphs and local functions too; all others
    stay unchanged. A node that cannot be converted is reported with the reason.

        set_opset: {to: 18}
    """

    keeps_outputs = True

    to: int = Field(ge=1)
    """The opset."""
    domain: str = ""
    """Another domain, such as `com.microsoft`: only its imported version is set, its nodes stay unchanged."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.opsets import convert_opset, import_domain

        if self.domain not in ("", "ai.onnx"):
            return import_domain(edited, self.domain, self.to)
        before = edited.model.opset_imports.get("", 0)
        converted = convert_opset(edited, self.to)
        counts = ", ".join(f"{count} {op_type}" for op_type, count in sorted(converted.items()))
        return f"opset {before} -> {self.to}; {f'converted: {counts}' if counts else 'no node had to change'}"


_OLDEST = 3
"""The oldest supported version; earlier ones have no opset imports."""
_FUNCTIONS = 8
_METADATA = 10


class SetIrVersion(Operation):
    """Set the IR version, which is the version of the file format.

    Before version 4 every initializer of the main graph must be an input too, and becomes one.

        set_ir_version: {to: 10}
    """

    keeps_outputs = True

    to: int = Field(ge=_OLDEST)
    """3 to the newest that ONNX Runtime loads."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
        from ndld_flow.models.files import MAX_IR_VERSION

        model, version = edited.model, self.to
        if version > MAX_IR_VERSION:
            raise RequestError(f"IR version {version} cannot be set; choose one from {_OLDEST} to {MAX_IR_VERSION}")
        if version < _FUNCTIONS and model.functions:
            raise RequestError(f"local functions came with IR version {_FUNCTIONS}; inline them first")
        before, model.ir_version = model.ir_version, version
        summary = f"IR version {before} -> {version}"
        if version < FIRST_WITH_FREE_INITIALIZERS:
            return f"{summary}; {_make_inputs(model)} initializers are inputs too"
        if version < _METADATA and any(node.metadata_props for graph in edited.graphs() for node in graph):
            edited.note(f"nodes have metadata, which came with IR version {_METADATA}: older readers ignore it")
        return summary


def _make_inputs(model: ir.Model) -> int:
    """Make every initializer an input, which is impossible in a subgraph, whose node provides the inputs."""
    import onnx_ir as ir

    from ndld_flow.models.nodes import scopes_of

    for address, graph in scopes_of(model).items():
        if address and graph.initializers:
            raise RequestError(f"{address} has initializers, which IR version 3 allows only in the main graph")
    inputs = set(model.graph.inputs)
    missing = [value for value in model.graph.initializers.values() if value not in inputs]
    for value in missing:
        tensor = value.const_value
        if tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    model.graph.inputs.extend(missing)
    return len(missing)


class SetMetadata(Operation):
    """Set metadata of the model, or of nodes.

    set_metadata: {producer_name: ours, metadata: {license: Apache-2.0, draft: null}}
    """

    keeps_outputs = True

    producer_name: str | None = None
    """The tool that produced the model."""
    producer_version: str | None = None
    """Version of that tool."""
    model_version: int | None = None
    """Version of the model, an integer."""
    domain: str | None = None
    """Namespace of the model, such as `org.example`."""
    graph_name: NewName | None = None
    """Name of the main graph."""
    doc_string: str | None = None
    """Documentation of the model; with `select`, of the nodes."""
    metadata: dict[str, str | None] = Field(default={})
    """Key -> value; null removes the key. With `select`, of the nodes."""
    select: Select | None = None
    """Nodes to set `doc_string` and `metadata` of, instead of the model."""
    allow_empty: AllowEmpty = False

    @model_validator(mode="after")
    def _check_subject(self) -> Self:
        if self.select is not None and self._model_fields:
            raise ValueError(
                "nodes have only `doc_string` and `metadata`; set those of the model with another operation"
            )
        if not self._model_fields and self.doc_string is None and not self.metadata:
            raise ValueError("give something to set")
        return self

    @property
    def _model_fields(self) -> dict[str, str | int]:
        """Return the given fields that only a model has."""
        names = ("producer_name", "producer_version", "model_version", "domain", "graph_name")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def apply(self, edited: EditedModel) -> str:
        if self.select is not None:
            nodes = edited.select_nodes(self.select, self.allow_empty)
            for node in nodes:
                self._describe(node)
            return f"metadata set on {counted(len(nodes), 'node')}"
        for name, value in self._model_fields.items():
            if name == "graph_name":
                edited.model.graph.name = str(value)
            else:
                setattr(edited.model, name, value)
        self._describe(edited.model)
        doc = ["doc_string"] if self.doc_string is not None else []
        return f"set: {', '.join([*self._model_fields, *doc, *self.metadata])}"

    def _describe(self, subject: Model | Node) -> None:
        if self.doc_string is not None:
            subject.doc_string = self.doc_string
        for key, value in self.metadata.items():
            if value is None:
                subject.metadata_props.pop(key, None)
            else:
                subject.metadata_props[key] = value
