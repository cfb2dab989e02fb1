"""Rewriting of a model to the chosen types: values, attributes, weights, and a Cast between different precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ndld_flow.models.element_types import TYPE_ATTRIBUTES, Types, dtype_of, is_op, tensor_of, with_element
from ndld_flow.models.lazy_tensors import FORMATS, Loss, RoundedTensor, SparseInitializer, rounded_sparse
from ndld_flow.models.nodes import UniqueNames, fixed_tensor, is_used
from ndld_flow.precision.type_groups import (
    Group,
    Groups,
    Use,
    insert_cast,
    is_constant,
)

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`"""


class RoundedConstants:
    """Converts a model's floating-point constants to other types and records what each loses."""

    def __init__(self, names: UniqueNames, progress: Progress) -> None:
        self._names = names
        self._progress = progress
        self._written = 0
        self._rounded: list[RoundedTensor] = []
        self._sparse: list[Loss] = []

    @property
    def losses(self) -> list[Loss]:
        """The loss of each converted tensor; complete once the model is saved, which converts them."""
        return [*(tensor.loss for tensor in self._rounded), *self._sparse]

    def rounded(self, tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
        """Return a tensor in another type, computed when it is written."""
        if tensor.dtype == dtype:
            return tensor
        if isinstance(tensor, SparseInitializer):
            converted, loss = rounded_sparse(tensor, dtype, name)
            self._sparse.append(loss)
            return converted
        self._rounded.append(RoundedTensor(tensor, dtype, name, self._report))
        return self._rounded[-1]

    def _report(self, name: str) -> None:
        self._written += 1
        self._progress(min(self._written, len(self._rounded)), len(self._rounded), name)

    def convert(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Give a constant another type in place."""
        tensor = self.rounded(tensor_of_constant(value), dtype, value.name or "")
        producer = value.producer()
        if producer is None:
            value.const_value = tensor
        else:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
        value.type = type_with(value.type, dtype)

    def copy_in(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a copy of a constant in another type to its graph."""
        suffix = FORMATS[dtype].precision
        name = self._names.value(f"{value.name}_{suffix}")
        tensor = self.rounded(tensor_of_constant(value), dtype, name)
        copy = ir.Value(name=name, shape=value.shape, type=type_with(value.type, dtype))
        producer = value.producer()
        if producer is None:
            copy.const_value = tensor
            graph_of(value).register_initializer(copy)
        else:
            node_name = self._names.node(f"{producer.name or value.name}_{suffix}")
            attributes = [ir.AttrTensor("value", tensor)]
            node = ir.Node("", "Constant", [], attributes, outputs=[copy], name=node_name)
            graph_of(value).insert_after(producer, node)
        return copy


def tensor_of_constant(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of a floating-point constant."""
    tensor = fixed_tensor(value)
    if tensor is None:
        raise TypeError(f"{value.name!r} is not a constant")
    return tensor


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph that a value belongs to."""
    if value.graph is None:
        raise ValueError(f"{value.name!r} belongs to no graph")
    return value.graph


def type_with(type_: ir.TypeProtocol | None, dtype: ir.DataType) -> ir.TypeProtocol | None:
    """Return a type with another element type; a new object, since values may share types."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = type_with(type_.elem_type, dtype)
        return type_ if inner is None else type(type_)(inner, denotation=type_.denotation)
    if isinstance(type_, ir.TensorType | ir.SparseTensorType):
        return type(type_)(dtype, denotation=type_.denotation)
    return type_


_CAST_OPSET, _CAST_IR_VERSION = 13, 7


def import_casts(model: ir.Model) -> None:
    """Import the operators of ONNX into a model without them, such as one with only ai.onnx.ml operators."""
    if "" not in model.opset_imports:
        model.opset_imports[""] = _CAST_OPSET
        model.ir_version = max(model.ir_version or 0, _CAST_IR_VERSION)


Readers = dict[ir.DataType, list[Use]]
"""Type -> the uses that need it."""


class Rewriter:
    """Applies a choice of types to a model, in place, once."""

    def __init__(
        self, model: ir.Model, types: Types, groups: Groups, choice: Mapping[Group, ir.DataType], progress: Progress
    ) -> None:
        self.casts_added = 0
        self.casts_removed = 0
        self._model = model
        self._types = types
        self._names = UniqueNames(model)
        self.constants = RoundedConstants(self._names, progress)
        chosen = ((value, dtype) for group, dtype in choice.items() for value in group.values)
        self._new_types = {value: dtype for value, dtype in chosen if dtype_of(types[value]) != dtype}
        """Values whose type changes -> the new type."""
        self._readers = self._readers_by_type(groups, choice)
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def _readers_by_type(self, groups: Groups, choice: Mapping[Group, ir.DataType]) -> dict[ir.Value, Readers]:
        """Return value -> type -> the uses that need it; groups without a choice need the original type."""
        readers_by_type: dict[ir.Value, Readers] = {}
        for group in groups.all:
            for use in group.uses:
                if use.value is not None:
                    dtype = choice.get(group) or dtype_of(self._types[use.value])
                    readers_by_type.setdefault(use.value, {}).setdefault(dtype, []).append(use)
        return readers_by_type

    def rewrite(self) -> None:
        """Change the model."""
        for value, dtype in self._new_types.items():
            value.type = type_with(value.type, dtype)
            if value.const_value is not None and value.is_initializer():  # also an input, or it would be a constant
                value.const_value = self.constants.rounded(value.const_value, dtype, value.name or "")
        for node in list(self._model.graph.all_nodes()):
            self._set_attribute(node)
        for value in filter(is_constant, self._floats()):
            self._convert_constant(value)
        # First, so that their readers share a Cast with the readers of their source; inserting Casts makes others
        # redundant.
        self._remove_idle_casts()
        for value in self._floats():
            self._insert_cast(value)
        self._remove_idle_casts()
        if self.casts_added:
            import_casts(self._model)

    def _floats(self) -> list[ir.Value]:
        return [value for value in self._types if value in self._readers]

    def _set_attribute(self, node: ir.Node) -> None:
        """Update the attribute that sets the type of the output, if there is one."""
        dtype = next((self._new_types[value] for value in node.outputs if value in self._new_types), None)
        if dtype is None or not is_op(node, *TYPE_ATTRIBUTES):
            return
        name = TYPE_ATTRIBUTES[node.op_type]
        if name == "value":
            given, value_name = node.attributes.get(name), node.outputs[0].name or ""
            # Without the attribute, ConstantOfShape fills its output with zeros.
            tensor = ir.Tensor(np.zeros(1, np.float32)) if given is None else given.as_tensor()
            node.attributes[name] = ir.AttrTensor(name, self.constants.rounded(tensor, dtype, value_name))
        elif name in node.attributes or not self._inherits(node, dtype):
            node.attributes[name] = ir.AttrInt64(name, dtype.value)

    def _inherits(self, node: ir.Node, dtype: ir.DataType) -> bool:
        """Return whether the output gets an input's type if the attribute is absent."""
        readers_by_type = (self._readers.get(value, {}) for value in node.inputs if value is not None)
        return any(use.reader is node for readers in readers_by_type for use in readers.get(dtype, ()))

    def _convert_constant(self, value: ir.Value) -> None:
        """Give a constant the type that its readers need; add copies for further types."""
        readers_by_type, own = self._readers.pop(value), self._dtype(value)
        others = [dtype for dtype in readers_by_type if dtype != own]
        if not others:
            return
        # If the constant is a graph output, its name must stay with the type of that output.
        output = [d for d in others if any(use.reader is self._model.graph for use in readers_by_type[d])]
        # A constant that a Cast reads must keep its precision.
        is_cast = any(is_op(node, "Cast", "CastLike") for node in value.consumers())
        free = not output and (own in readers_by_type or is_cast)
        here = own if free else (output or others)[0]
        for dtype, uses in readers_by_type.items():
            if dtype != here:
                _redirect(uses, self.constants.copy_in(value, dtype))
        if here != own:
            self.constants.convert(value, here)
            self._new_types[value] = here

    def _insert_cast(self, value: ir.Value) -> None:
        """Insert one Cast between a value and all its readers that need the same other type."""
        produced = self._dtype(value)
        for wanted, uses in self._readers.pop(value, {}).items():
            if wanted == produced:
                continue
            if any(use.reader is self._model.graph for use in uses):
                name = value.name or ""
                value.name = self._names.value(f"{name}_{FORMATS[produced].precision}")
                _redirect(uses, self._cast(value, wanted, name))
                continue
            origin = self._cast_source(value)
            if origin is not None and self._type(origin) != tensor_of(wanted):
                origin = None
            _redirect(uses, origin or self._cast(value, wanted))
            if origin is not None:
                # The model's own Cast is removed once nothing reads it.
                cast, graph = value.producer(), value.graph
                if cast is not None and graph is not None and not is_used(value):
                    graph.remove(cast, safe=True)
                    self.casts_removed += 1

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str = "") -> ir.Value:
        """Return the output of a Cast right after the value's producer; never a Cast of a Cast, never a duplicate."""
        source = self._cast_source(value) or value
        if not name and (source, dtype) in self._casts:
            return self._casts[source, dtype]
        name = name or self._names.value(f"{value.name}_{FORMATS[dtype].precision}")
        node_name = self._names.node(f"{value.name}_to_{FORMATS[dtype].precision}")
        self._casts[source, dtype] = insert_cast(source, dtype, name, node_name)
        self.casts_added += 1
        return self._casts[source, dtype]

    def _cast_source(self, value: ir.Value) -> ir.Value | None:
        """Return the source of the Cast that computes a value, unless it has strings: few runtimes cast strings to
        fp16."""
        producer = value.producer()
        origin = producer.inputs[0] if producer is not None and is_op(producer, "Cast") else None
        return None if origin is None or self._type(origin) in (None, "tensor(string)") else origin

    def _type(self, value: ir.Value) -> str | None:
        type_ = self._types.get(value)
        return with_element(type_, self._new_types[value]) if type_ is not None and value in self._new_types else type_

    def _dtype(self, value: ir.Value) -> ir.DataType:
        """Return the type of a value's elements after the rewrite."""
        return self._new_types.get(value) or dtype_of(self._types[value])

    def _remove_idle_casts(self) -> None:
        """Remove the model's own Casts whose source now has their target type."""
        for node in list(self._model.graph.all_nodes()):
            source, graph = node.inputs[0] if node.inputs else None, node.graph
            if not is_op(node, "Cast") or source is None or graph is None or node.outputs[0].is_graph_output():
                continue
            if self._type(source) == tensor_of(ir.DataType(node.attributes["to"].as_int())):
                node.outputs[0].replace_all_uses_with(source)
                for dtype, uses in self._readers.pop(node.outputs[0], {}).items():
                    self._readers.setdefault(source, {}).setdefault(dtype, []).extend(uses)
                graph.remove(node, safe=True)
                self.casts_removed += 1


def _redirect(uses: list[Use], value: ir.Value) -> None:
    for use in uses:
        use.read(value)
