"""Give the chosen places their type: types, attributes, weights, and a Cast wherever two precisions meet."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ndld_flow.models.element_types import Types, dtype_of, tensor_of, with_element
from ndld_flow.models.float_tensors import FORMATS
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import TYPE_ATTRIBUTES, Group, Groups, is_constant
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.models.value_uses import Use, insert_behind
from ndld_flow.precision.fp16.constants import Progress, RoundedConstants, graph_of, type_with

_CAST_OPSET, _CAST_IR_VERSION = 13, 7

Readers = dict[ir.DataType, list[Use]]
"""The type that is wanted -> who wants it."""


class Rewriter:
    """Carries out a choice of types on a model, in place, once."""

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
        self._made = {value: dtype for value, dtype in chosen if dtype_of(types[value]) != dtype}
        """Values whose type changes -> their new one."""
        self._readers = self._wishes(groups, choice)
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def _wishes(self, groups: Groups, choice: Mapping[Group, ir.DataType]) -> dict[ir.Value, Readers]:
        """Who wants to read a value as what; groups that nothing was chosen for want it as it came."""
        wishes: dict[ir.Value, Readers] = {}
        for group in groups.all:
            for use in group.uses:
                if use.value is not None:
                    dtype = choice.get(group) or dtype_of(self._types[use.value])
                    wishes.setdefault(use.value, {}).setdefault(dtype, []).append(use)
        return wishes

    def rewrite(self) -> None:
        """Change the model."""
        for value, dtype in self._made.items():
            self._retype(value, dtype)
        for node in list(self._model.graph.all_nodes()):
            self._set_attribute(node)
        for value in filter(is_constant, self._floats()):
            self._convert_constant(value)
        # Before joining, so that what reads them is joined with what reads their source; joining makes others idle.
        self._drop_idle_casts()
        for value in self._floats():
            self._join(value)
        self._drop_idle_casts()
        if self.casts_added and "" not in self._model.opset_imports:
            # Such as a model of ai.onnx.ml operators alone.
            self._model.opset_imports[""] = _CAST_OPSET
            self._model.ir_version = max(self._model.ir_version or 0, _CAST_IR_VERSION)

    def _floats(self) -> list[ir.Value]:
        return [value for value in self._types if value in self._readers]

    def _retype(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Note a value's new type; an initializer that is an input too changes with it."""
        value.type = type_with(value.type, dtype)
        if value.const_value is not None and value.is_initializer():
            value.const_value = self.constants.rounded(value.const_value, dtype, value.name or "")

    def _set_attribute(self, node: ir.Node) -> None:
        """Say the new type where an attribute says it."""
        dtype = next((self._made[value] for value in node.outputs if value in self._made), None)
        if dtype is None or not is_op(node, *TYPE_ATTRIBUTES):
            return
        name = TYPE_ATTRIBUTES[node.op_type]
        if name == "value":
            given, value_name = node.attributes.get(name), node.outputs[0].name or ""
            filling = self.constants
            tensor = (
                filling.zero(dtype, value_name)
                if given is None
                else filling.rounded(given.as_tensor(), dtype, value_name)
            )
            node.attributes[name] = ir.AttrTensor(name, tensor)
        elif name in node.attributes or not self._inherits(node, dtype):
            node.attributes[name] = ir.AttrInt64(name, dtype.value)

    def _inherits(self, node: ir.Node, dtype: ir.DataType) -> bool:
        """Whether the output has an input's type, the attribute being absent."""
        wishes = (self._readers.get(value, {}) for value in node.inputs if value is not None)
        return any(use.reader is node for readers in wishes for use in readers.get(dtype, ()))

    def _convert_constant(self, value: ir.Value) -> None:
        """Give a constant the type its readers want; others stand beside it when they differ."""
        wishes, own = self._readers.pop(value), self._dtype(value)
        others = [dtype for dtype in wishes if dtype != own]
        if not others:
            return
        # A name that is an output's must be the name of what the output wants.
        output = [d for d in others if any(use.reader is self._model.graph for use in wishes[d])]
        free = not output and (own in wishes or _is_cast(value))
        here = own if free else (output or others)[0]
        for dtype, uses in wishes.items():
            if dtype != here:
                _redirect(uses, self.constants.beside(value, dtype))
        if here != own:
            self.constants.convert(value, here)
            self._made[value] = here

    def _join(self, value: ir.Value) -> None:
        """Put one Cast between a value and all its readers that want the same other type."""
        made = self._dtype(value)
        for wanted, uses in self._readers.pop(value, {}).items():
            if wanted == made:
                continue
            if any(use.reader is self._model.graph for use in uses):
                name = value.name or ""
                value.name = self._names.value(f"{name}_{FORMATS[made].precision}")
                _redirect(uses, self._cast(value, wanted, name))
                continue
            origin = self._without_cast(value, wanted)
            _redirect(uses, origin or self._cast(value, wanted))
            if origin is not None:
                self._drop_unread(value)

    def _without_cast(self, value: ir.Value, wanted: ir.DataType) -> ir.Value | None:
        """What the Cast that made the value had read, if that has the wanted type."""
        origin = self._before_cast(value)
        return origin if origin is not None and self._type(origin) == tensor_of(wanted) else None

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str = "") -> ir.Value:
        """A Cast right after where the value is made; never a Cast of a Cast, and none twice."""
        source = self._before_cast(value) or value
        if not name and (source, dtype) in self._casts:
            return self._casts[source, dtype]
        name = name or self._names.value(f"{value.name}_{FORMATS[dtype].precision}")
        cast = self._casts[source, dtype] = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        node_name = self._names.node(f"{value.name}_to_{FORMATS[dtype].precision}")
        node = ir.Node("", "Cast", [source], [ir.AttrInt64("to", dtype.value)], outputs=[cast], name=node_name)
        insert_behind(source, node, graph_of(source))
        self.casts_added += 1
        return cast

    def _drop_unread(self, value: ir.Value) -> None:
        """Remove the model's own Cast that made a value, when nothing reads that any more."""
        cast, graph = value.producer(), value.graph
        if cast is not None and graph is not None and not (value.uses() or value.is_graph_output()):
            graph.remove(cast, safe=True)
            self.casts_removed += 1

    def _before_cast(self, value: ir.Value) -> ir.Value | None:
        """What the Cast that makes a value reads, unless that is text (few back ends read fp16 from text)."""
        producer = value.producer()
        origin = producer.inputs[0] if producer is not None and is_op(producer, "Cast") else None
        return None if origin is None or self._type(origin) in (None, "tensor(string)") else origin

    def _type(self, value: ir.Value) -> str | None:
        type_ = self._types.get(value)
        return with_element(type_, self._made[value]) if type_ is not None and value in self._made else type_

    def _dtype(self, value: ir.Value) -> ir.DataType:
        """The type of a value's elements, once it is changed."""
        return self._made.get(value) or dtype_of(self._types[value])

    def _drop_idle_casts(self) -> None:
        """Remove the model's own Casts that have become Casts to what they read."""
        for node in list(self._model.graph.all_nodes()):
            source, graph = node.inputs[0] if node.inputs else None, node.graph
            if is_op(node, "Cast") and source is not None and graph is not None and self._is_idle(node, source):
                node.outputs[0].replace_all_uses_with(source)
                for dtype, uses in self._readers.pop(node.outputs[0], {}).items():
                    self._readers.setdefault(source, {}).setdefault(dtype, []).extend(uses)
                graph.remove(node, safe=True)
                self.casts_removed += 1

    def _is_idle(self, node: ir.Node, source: ir.Value) -> bool:
        target = tensor_of(ir.DataType(node.attributes["to"].as_int()))
        return self._type(source) == target and not node.outputs[0].is_graph_output()


def _redirect(uses: list[Use], value: ir.Value) -> None:
    for use in uses:
        use.read(value)


def _is_cast(constant: ir.Value) -> bool:
    """Whether a Cast reads a constant: it should get it as exact as it was."""
    return any(is_op(node, "Cast", "CastLike") for node in constant.consumers())
