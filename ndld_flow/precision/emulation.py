"""Emulation of fp16 and bf16 storage with fp32 arithmetic, as hardware computes it.

Every stored tensor becomes fp32, and a pair of Casts rounds it where it is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import Message

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import (
    TYPE_ATTRIBUTES,
    Types,
    dtype_of,
    element_of,
    has_subgraphs,
    held_tensor,
    infer_types,
    is_op,
    signature_of,
    with_element,
)
from ndld_flow.models.files import blaming_model, load_model, read_proto, save_model
from ndld_flow.models.lazy_tensors import FORMATS
from ndld_flow.models.nodes import UniqueNames, fixed_tensor
from ndld_flow.precision.fp16.convert import RoundedConstants, graph_of, import_casts, refuse_old, tidy, type_with
from ndld_flow.precision.type_groups import CONTROL_FLOW, MOVES, insert_cast, is_constant

Stored = Mapping[ir.Value, ir.DataType]


def _native_nodes(model: ir.Model, types: Types, stored: Stored, source: Path) -> set[ir.Node]:
    """Return the nodes with stored inputs or outputs that do not support fp32 there.

    Raises `ModelError` if one of them has sequences or bodies, which no Cast can convert.
    """
    nodes = [
        node
        for node in model.graph.all_nodes()
        if any(value is not None and value in stored for value in (*node.inputs, *node.outputs))
    ]
    native = {node for node in nodes if not _may_be_fp32(node, types, stored, model.opset_imports)}
    for node in native:
        ports = [value for value in (*node.inputs, *node.outputs) if value is not None and value in stored]
        if has_subgraphs(node) or any(not types[value].startswith("tensor") for value in ports):
            raise ModelError(
                f"{source}: its stored precision cannot be emulated: operator {node.op_type} "
                f"({node.name!r}) is unknown and has bodies or other values than tensors at reduced precision."
            )
    return native


def _may_be_fp32(node: ir.Node, types: Types, stored: Stored, opsets: Mapping[str, int]) -> bool:
    if is_op(node, *CONTROL_FLOW):
        return True
    if is_op(node, "Constant"):
        return fixed_tensor(node.outputs[0]) is not None
    if is_op(node, "BitCast"):
        return False
    signature = signature_of(node, opsets)
    if signature is None or has_subgraphs(node):
        return False
    ports = [*zip(node.inputs, signature.inputs, strict=False), *zip(node.outputs, signature.outputs, strict=False)]
    return all(
        signature.admits(variable, with_element(types[value], ir.DataType.FLOAT))
        for value, variable in ports
        if value is not None and value in stored
    )


_ARITHMETIC = ("precision", "softmax_precision", "stash_type")
"""Attributes that set the type of a node's arithmetic."""
_FIRST_CLIP_WITH_INPUTS = 11
_REDUCED = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class _Retyper:
    """Gives every stored value fp32 elements, in place, once. Main inputs and native nodes stay unchanged."""

    def __init__(self, model: ir.Model, stored: Mapping[ir.Value, ir.DataType], native: Collection[ir.Node]) -> None:
        self._model = model
        self._stored = stored
        self._native = native
        self._names = UniqueNames(model)
        self._constants = RoundedConstants(self._names, lambda done, total, what: None)

    def retype(self) -> None:
        """Change the model."""
        for node in list(self._model.graph.all_nodes()):
            if node not in self._native:
                self._set_attributes(node)
                self._add_clip_bounds(node)
        for value in self._stored:
            if value.producer() in self._native:
                continue
            if is_constant(value):
                self._constants.convert(value, ir.DataType.FLOAT)
            elif value.const_value is not None and value.is_initializer():
                value.const_value = self._constants.rounded(value.const_value, ir.DataType.FLOAT, value.name or "")
            elif value in self._model.graph.inputs:
                continue
            value.type = type_with(value.type, ir.DataType.FLOAT)

    def _set_attributes(self, node: ir.Node) -> None:
        """Set attributes for the type of an output or of the arithmetic to fp32. Casts keep their target type."""
        makes = next((self._stored[value] for value in node.outputs if value in self._stored), None)
        reads = any(value in self._stored for value in node.inputs if value is not None)
        if is_op(node, "Constant", "Cast") or not (makes or reads):
            return
        names = [*_ARITHMETIC, *([TYPE_ATTRIBUTES[node.op_type]] if makes and is_op(node, *TYPE_ATTRIBUTES) else [])]
        for name in names:
            attribute = node.attributes.get(name)
            if attribute is not None:
                node.attributes[name] = self._in_fp32(attribute)
        type_ = node.attributes.get("type")
        if makes and type_ is not None and type_.type == ir.AttributeType.TYPE_PROTO:
            given: ir.TypeAndShape = type_.value
            node.attributes["type"] = ir.AttrTypeProto(
                "type", ir.TypeAndShape(type_with(given.type, ir.DataType.FLOAT), given.shape)
            )

    def _in_fp32(self, attribute: ir.Attr) -> ir.Attr:
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = self._constants.rounded(held_tensor(attribute), ir.DataType.FLOAT, attribute.name)
            return ir.AttrTensor(attribute.name, tensor)
        reduced = attribute.type == ir.AttributeType.INT and ir.DataType(attribute.as_int()) in _REDUCED
        return ir.AttrInt64(attribute.name, ir.DataType.FLOAT.value) if reduced else attribute

    def _add_clip_bounds(self, node: ir.Node) -> None:
        """Add the implicit bounds of a Clip, which are those of its type: -65504 to 65504 in fp16."""
        opset = self._model.opset_imports.get("", _FIRST_CLIP_WITH_INPUTS)
        if not is_op(node, "Clip") or opset < _FIRST_CLIP_WITH_INPUTS or node.outputs[0] not in self._stored:
            return
        largest = FORMATS[self._stored[node.outputs[0]]].largest
        given = [*node.inputs, None, None][:3]
        for index, limit in ((1, -largest), (2, largest)):
            if given[index] is None:
                name = self._names.value(f"{node.outputs[0].name}_{'lowest' if limit < 0 else 'largest'}")
                given[index] = self._scalar(limit, name, node)
        node.resize_inputs(3)
        for index, value in enumerate(given):
            node.replace_input_with(index, value)

    def _scalar(self, number: float, name: str, reader: ir.Node) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
        attribute = ir.AttrTensor("value", ir.tensor(number, dtype=ir.DataType.FLOAT, name=name))
        constant = ir.Node("", "Constant", [], [attribute], outputs=[value], name=self._names.node(name))
        if reader.graph is not None:
            reader.graph.insert_before(reader, constant)
        return value


EXACT = MOVES | {
    "Abs", "Ceil", "Constant", "ConstantOfShape", "Floor", "GlobalMaxPool", "Hardmax", "Max", "MaxPool", "MaxUnpool",
    "Min", "Neg", "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "ThresholdedRelu", "TopK",
}  # fmt: skip
"""Operators whose results a format can represent exactly if it can represent their inputs."""


class _Rounder:
    """Inserts the rounding Casts, in place, once. Expects the stored values to have been retyped."""

    def __init__(self, model: ir.Model, stored: Mapping[ir.Value, ir.DataType], native: Collection[ir.Node]) -> None:
        self._model = model
        self._stored = stored
        self._native = native
        self._names = UniqueNames(model)
        self._inputs = [value for value in model.graph.inputs if value in stored and not value.is_initializer()]
        self._native_inputs = [
            (node, index, stored[value])
            for node in native
            for index, value in enumerate(node.inputs)
            if value is not None and value in stored
        ]
        """Native node, index of an input, and its stored type."""
        self._narrowed: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def round_all(self) -> None:
        """Change the model."""
        nodes = list(self._model.graph.all_nodes())
        for value in self._inputs:
            self._insert_casts(value, [ir.DataType.FLOAT], value.name or "")
        for node in nodes:
            for value in node.outputs:
                if value in self._stored and value.name:  # an omitted output has a type and no name
                    self._round(node, value)
        for node, index, dtype in self._native_inputs:
            widened = node.inputs[index]
            if widened is not None:  # cast back to the type that the native node reads
                if (widened, dtype) not in self._narrowed:
                    self._narrowed[widened, dtype] = self._cast(widened, dtype, widened.name or "")
                node.replace_input_with(index, self._narrowed[widened, dtype])
        import_casts(self._model)

    def _round(self, node: ir.Node, value: ir.Value) -> None:
        if is_op(node, *EXACT, *CONTROL_FLOW) and node not in self._native:
            return
        stays = node in self._native or is_op(node, "Cast")
        dtypes = [ir.DataType.FLOAT] if stays else [self._stored[value], ir.DataType.FLOAT]
        name = value.name or ""
        value.name = self._names.value(f"{name}_unrounded")
        value.type = ir.TensorType(self._stored[value] if stays else ir.DataType.FLOAT)
        self._insert_casts(value, dtypes, value.name).name = name

    def _insert_casts(self, value: ir.Value, dtypes: Sequence[ir.DataType], name_hint: str) -> ir.Value:
        """Insert Casts after a value, redirect all its readers to the last one's output, and return that."""
        readers = list(value.uses())
        behind = value
        for dtype in dtypes:
            behind = self._cast(behind, dtype, name_hint)
        for reader, index in readers:
            reader.replace_input_with(index, behind)
        if value.producer() is not None and value.is_graph_output():
            outputs = graph_of(value).outputs
            outputs[outputs.index(value)] = behind
        return behind

    def _cast(self, value: ir.Value, dtype: ir.DataType, name_hint: str) -> ir.Value:
        name = self._names.value(f"{name_hint}_{FORMATS[dtype].precision}")
        return insert_cast(value, dtype, name, self._names.node(f"{name}_cast"))


_STORED = frozenset({"float16", "bfloat16"})
_FIRST_OPSET_OF_BF16 = 13
_RECURRENT = ("GRU", "LSTM", "RNN")


@dataclass(frozen=True)
class EmulatedModel:
    """The result of emulating a model's stored precisions."""

    outputs: Mapping[str, str]
    """Output that has become fp32 -> its stored dtype: `float16`, `bfloat16`. All names and inputs stay."""
    notes: tuple[str, ...]
    """Notes on differences from hardware."""


def emulate_stored(source: Path, target: Path) -> EmulatedModel | None:
    """Write `source` to `target` with fp32 arithmetic, and every fp16 and bf16 tensor rounded to its stored type.

    ONNX Runtime computes fp16 models in fp32 on a CPU and never rounds in between, which hides an overflow that happens
    on a GPU. Here a Cast to the stored type and one back to fp32 follow each node that computes such a tensor; their
    output has the original name. Inputs keep their dtypes. Weights are widened while they are written, so that memory
    does not grow with the model. Sessions open faster with `SessionSettings.memory_reuse` off. Returns None and writes
    nothing if no tensor of the model is fp16 or bf16. Raises `ModelError` for a model that cannot be read or emulated.
    """
    if not _names_narrow_types(read_proto(source)):
        return None
    model = load_model(source)
    with blaming_model(source):
        return _emulate(model, source, target)


def _names_narrow_types(message: Message) -> bool:
    """Return whether any type in a model is fp16 or bf16: a tensor's, a value's, or one that an attribute names.

    Without one, no node can compute such a tensor. Reading the whole model takes ten times as long.
    """
    for field, value in message.ListFields():
        if field.name in ("data_type", "elem_type") or (field.name == "i" and _names_type(message)):
            if value in _REDUCED:
                return True
        elif field.message_type is not None:
            parts = value if field.is_repeated else [value]
            if any(map(_names_narrow_types, parts)):
                return True
    return False


def _names_type(attribute: Message) -> bool:
    """Return whether an attribute may name a type, as `to`, `dtype` and `output_datatype` do. A convolution has numbers
    that are equal to those of types, such as 16 groups.
    """
    name = str(getattr(attribute, "name", ""))
    return name == "to" or "type" in name or "precision" in name


def _emulate(model: ir.Model, source: Path, target: Path) -> EmulatedModel | None:
    tidy(model, source)
    types = infer_types(model)
    # A sequence has the type of its tensors.
    stored = {value: dtype_of(type_) for value, type_ in types.items() if element_of(type_) in _STORED}
    if not stored:
        return None
    refuse_old(model, source)
    opset = model.opset_imports.get("", _FIRST_OPSET_OF_BF16)
    if opset < _FIRST_OPSET_OF_BF16 and ir.DataType.BFLOAT16 in stored.values():
        raise ModelError(
            f"{source}: the model has bf16 tensors, which need opset {_FIRST_OPSET_OF_BF16} or later, but its opset is "
            f"{opset}. Convert the original model to opset {_FIRST_OPSET_OF_BF16} or later first."
        )
    native = _native_nodes(model, types, stored, source)
    # A model input that is also an output keeps its type.
    fp32 = [v for v in model.graph.outputs if v in stored and (not v.is_graph_input() or v.is_initializer())]
    outputs = {str(v.name): str(stored[v].numpy().name) for v in fp32}
    _Retyper(model, stored, native).retype()
    _Rounder(model, stored, native).round_all()
    save_model(model, target)
    return EmulatedModel(outputs, tuple(_notes(model, stored, native)))


def _notes(model: ir.Model, stored: Mapping[ir.Value, ir.DataType], native: set[ir.Node]) -> list[str]:
    """Return notes on differences from hardware."""
    recurrent = [
        node
        for node in model.graph.all_nodes()
        if is_op(node, *_RECURRENT) and any(value in stored for value in node.outputs)
    ]
    notes = []
    if recurrent:
        nodes = f"{len(recurrent)} recurrent node{'s' if len(recurrent) > 1 else ''}"
        notes.append(
            f"the state in {nodes} ({short_name(recurrent[0].name or recurrent[0].op_type)}"
            f"{', ...' if len(recurrent) > 1 else ''}) is rounded once at the end, not at every step"
        )
    unknown = sorted({node.op_type for node in native if not is_op(node, "BitCast", "Constant")})
    if unknown:
        notes.append(f"computed by ONNX Runtime's own kernels at reduced precision: {', '.join(unknown)}")
    return notes
