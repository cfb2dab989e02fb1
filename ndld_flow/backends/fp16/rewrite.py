"""Give the chosen places fp16: types, attributes, weights, and a Cast wherever two precisions meet."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from ndld_flow.backends.fp16.constants import HalfConstants, Progress, graph_of, half_type
from ndld_flow.backends.fp16.type_groups import FLOAT, HALF, TYPE_ATTRIBUTES, Group, Groups, is_constant
from ndld_flow.backends.models.element_types import Types, tensor_of
from ndld_flow.backends.models.op_signatures import is_op
from ndld_flow.backends.models.unique_names import UniqueNames
from ndld_flow.backends.models.value_uses import Use

_SUFFIX = {ir.DataType.FLOAT: "fp32", ir.DataType.FLOAT16: "fp16"}
_OTHER = {ir.DataType.FLOAT: ir.DataType.FLOAT16, ir.DataType.FLOAT16: ir.DataType.FLOAT}
_CAST_OPSET, _CAST_IR_VERSION = 13, 7

Readers = dict[ir.Value, list[Use]]


class Rewriter:
    """Carries out a choice of precisions on a model, in place, once."""

    def __init__(
        self, model: ir.Model, types: Types, groups: Groups, fp32: Collection[Group], progress: Progress
    ) -> None:
        self.casts_added = 0
        self.casts_removed = 0
        self._model = model
        self._types = types
        self._names = UniqueNames(model)
        self.constants = HalfConstants(self._names, progress)
        self._halved = dict.fromkeys(v for group in groups.all if group not in fp32 for v in group.values)
        self._readers: dict[ir.DataType, Readers] = {
            ir.DataType.FLOAT: _readers(group for group in groups.all if group in fp32),
            ir.DataType.FLOAT16: _readers(group for group in groups.all if group not in fp32),
        }

    def rewrite(self) -> None:
        """Change the model."""
        for value in self._halved:
            self._halve_made(value)
        for node in list(self._model.graph.all_nodes()):
            self._set_attribute(node)
        floats = [value for value, type_ in self._types.items() if FLOAT in type_]
        for value in filter(is_constant, floats):
            self._halve_constant(value)
        for value in floats:
            self._join(value)
        self._drop_idle_casts()
        if self.casts_added and "" not in self._model.opset_imports:
            # Such as a model of ai.onnx.ml operators alone.
            self._model.opset_imports[""] = _CAST_OPSET
            self._model.ir_version = max(self._model.ir_version or 0, _CAST_IR_VERSION)

    def _halve_made(self, value: ir.Value) -> None:
        """Note a value's new type; an initializer that is an input too changes with it."""
        value.type = half_type(value.type)
        if value.const_value is not None and value.is_initializer():
            value.const_value = self.constants.half(value.const_value, value.name or "")

    def _set_attribute(self, node: ir.Node) -> None:
        """Say the new type where an attribute says it."""
        if not is_op(node, *TYPE_ATTRIBUTES):
            return
        if not any(value in self._halved for value in node.outputs):
            return
        name = TYPE_ATTRIBUTES[node.op_type]
        if name == "value":
            given, value_name = node.attributes.get(name), node.outputs[0].name or ""
            filling = self.constants
            tensor = filling.zero(value_name) if given is None else filling.half(given.as_tensor(), value_name)
            node.attributes[name] = ir.AttrTensor(name, tensor)
        elif name in node.attributes or not self._inherits(node):
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT16.value)

    def _inherits(self, node: ir.Node) -> bool:
        """Whether the output has an input's type, the attribute being absent."""
        readers = self._readers[ir.DataType.FLOAT16]
        return any(Use(node, i) in readers.get(v, ()) for i, v in enumerate(node.inputs) if v is not None)

    def _halve_constant(self, value: ir.Value) -> None:
        """Give a constant the precision its readers want; a second one stands beside it when they differ."""
        wants_half = self._readers[ir.DataType.FLOAT16].pop(value, [])
        wants_float = self._readers[ir.DataType.FLOAT].pop(value, [])
        if not wants_half:
            return
        if any(use.reader is self._model.graph for use in wants_half):
            # The name is an output's: the fp16 one must have it.
            if wants_float:
                _redirect(wants_float, self.constants.beside(value, ir.DataType.FLOAT))
            self.constants.halve(value)
            self._halved[value] = None
        elif wants_float or _is_cast(value):
            _redirect(wants_half, self.constants.beside(value, ir.DataType.FLOAT16))
        else:
            self.constants.halve(value)
            self._halved[value] = None

    def _join(self, value: ir.Value) -> None:
        """Put one Cast between a value and all its readers that want the other precision."""
        wanted = ir.DataType.FLOAT if value in self._halved else ir.DataType.FLOAT16
        uses = self._readers[wanted].pop(value, [])
        if not uses:
            return
        if any(use.reader is self._model.graph for use in uses):
            name = value.name or ""
            value.name = self._names.value(f"{name}_{_SUFFIX[_OTHER[wanted]]}")
            _redirect(uses, self._cast(value, wanted, name))
        else:
            _redirect(uses, self._without_cast(value, wanted) or self._cast(value, wanted))

    def _without_cast(self, value: ir.Value, wanted: ir.DataType) -> ir.Value | None:
        """What the Cast that made the value had read, if that has the wanted precision."""
        origin = self._before_cast(value)
        return origin if origin is not None and self._type(origin) == tensor_of(wanted) else None

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str = "") -> ir.Value:
        """A Cast right after where the value is made; never a Cast of a Cast."""
        name = name or self._names.value(f"{value.name}_{_SUFFIX[dtype]}")
        cast = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        source = self._before_cast(value) or value
        node_name = self._names.node(f"{value.name}_to_{_SUFFIX[dtype]}")
        node = ir.Node("", "Cast", [source], [ir.AttrInt64("to", dtype.value)], outputs=[cast], name=node_name)
        producer, graph = value.producer(), graph_of(value)
        if producer is not None:
            graph.insert_after(producer, node)
        elif len(graph):
            graph.insert_before(graph[0], node)
        else:
            graph.append(node)
        self.casts_added += 1
        return cast

    def _before_cast(self, value: ir.Value) -> ir.Value | None:
        """What the Cast that makes a value reads, unless that is text (few back ends read fp16 from text)."""
        producer = value.producer()
        origin = producer.inputs[0] if producer is not None and is_op(producer, "Cast") else None
        return None if origin is None or self._type(origin) in (None, "tensor(string)") else origin

    def _type(self, value: ir.Value) -> str | None:
        type_ = self._types.get(value)
        return type_.replace(FLOAT, HALF) if type_ is not None and value in self._halved else type_

    def _drop_idle_casts(self) -> None:
        """Remove the model's own Casts that have become Casts to what they read."""
        for node in list(self._model.graph.all_nodes()):
            source, graph = node.inputs[0] if node.inputs else None, node.graph
            if is_op(node, "Cast") and source is not None and graph is not None and self._is_idle(node, source):
                node.outputs[0].replace_all_uses_with(source)
                graph.remove(node, safe=True)
                self.casts_removed += 1

    def _is_idle(self, node: ir.Node, source: ir.Value) -> bool:
        target = tensor_of(ir.DataType(node.attributes["to"].as_int()))
        return self._type(source) == target and not node.outputs[0].is_graph_output()


def _readers(groups: Iterable[Group]) -> Readers:
    readers: Readers = {}
    for group in groups:
        for use in group.uses:
            if use.value is not None:
                readers.setdefault(use.value, []).append(use)
    return readers


def _redirect(uses: list[Use], value: ir.Value) -> None:
    for use in uses:
        use.read(value)


def _is_cast(constant: ir.Value) -> bool:
    """Whether a Cast reads a constant: it should get it as exact as it was."""
    return any(is_op(node, "Cast", "CastLike") for node in constant.consumers())
