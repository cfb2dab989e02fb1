"""Signatures of operators, and the type of every value of a model inferred from them.

Two ports of a node with the same variable (`T`) have the same type; a port whose variable is itself a type
(`tensor(float)`) always has that type. Types are strings, as ONNX writes them: `seq(tensor(float))`.

Inference needs no shapes, weights or ONNX Runtime, so it works where shape inference stops. Types that signatures do
not determine (a Cast's target, the result of a branch) come from the table of rules below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
"""Types of attributes that hold subgraphs."""
FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


@dataclass(frozen=True)
class Signature:
    """The type variable of each input and output a node has."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    allowed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Type variable -> the types that it allows. Literal types are absent."""

    def admits(self, variable: str, type_name: str) -> bool:
        """Return whether a port of this variable may have the type."""
        return type_name in self.allowed.get(variable.partition(":")[0], frozenset({variable}))


def signature_of(node: ir.Node, opsets: Mapping[str, int]) -> Signature | None:
    """Return the signature of a node at the model's opsets, or None for an unknown operator."""
    counts = len(node.inputs), len(node.outputs)
    if node.domain == "com.microsoft" or (not node.domain and node.op_type in REGISTERED):
        return _contrib_signature(node.op_type, *counts)
    if node.domain not in opsets:
        return None
    return _schema_signature(node.domain, node.op_type, opsets[node.domain], *counts)


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Return whether a node is one of these operators of the default domain."""
    return node is not None and node.op_type in op_types and not node.domain


def is_known_op(op_type: str, domain: str = "") -> bool:
    """Return whether any version of ONNX (or ONNX Runtime, if listed) has this operator."""
    if domain == "com.microsoft":
        return op_type in _CONTRIB
    return op_type in _onnx_op_types(domain) or (not domain and op_type in REGISTERED)


def known_op_types() -> frozenset[str]:
    """Return all operators of the default domain."""
    return _onnx_op_types("")


@functools.cache
def _onnx_op_types(domain: str) -> frozenset[str]:
    return frozenset(s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain)


@functools.cache
def schema_of(op_type: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """Return the definition of an operator at a version of its domain; None if there is none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _schema_signature(domain: str, op_type: str, opset: int, input_count: int, output_count: int) -> Signature | None:
    schema = schema_of(op_type, opset, domain)
    if schema is None:
        return None
    return Signature(
        _spread(schema.inputs, input_count),
        _spread(schema.outputs, output_count),
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
    )


def _spread(formal: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
    """Return a variable for each actual port: a variadic last formal port repeats."""
    variables = []
    for i in range(count):
        if not formal:
            return ()
        parameter = formal[min(i, len(formal) - 1)]
        mixed = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic and not parameter.is_homogeneous
        variables.append(f"{parameter.type_str}:{i}" if mixed else parameter.type_str)
    return tuple(variables)


_HALF_OR_FLOAT = frozenset({"tensor(float)", "tensor(float16)"})

# ONNX Runtime's own operators, as its schemas have them, which some builds lack. Only T, U and V may be fp16; F is
# always fp32, _ is not a float. A cache has the type of the query: no kernel takes fp16 with a cache in fp32.
_CONTRIB: dict[str, str] = {
    "Attention": "T T T _ T T _ -> T T",
    "BiasAdd": "T T T -> T",
    "BiasGelu": "T T -> T",
    "BiasSoftmax": "T T -> T",
    "BiasSplitGelu": "T T -> T",
    "CausalConvWithState": "T T T T -> T T",
    "ComplexMul": "T T -> T",
    "ConvTransposeWithDynamicPads": "T T _ T -> T",
    "DecoderMaskedMultiHeadAttention": "T T T _ T T T _ _ _ T -> T T T U",
    "DecoderMaskedSelfAttention": "T T T _ T T _ _ _ -> T T",
    "DequantizeLinear": "_ T _ -> T",
    "DynamicQuantizeMatMul": "F _ F _ F -> F",
    "EmbedLayerNormalization": "_ _ T T T T T _ _ -> T _ T",
    "FastGelu": "T T -> T",
    "FusedConv": "T T T T -> T",
    "FusedGemm": "T T T -> T",
    "FusedMatMul": "T T -> T",
    "FusedMatMulActivation": "T T -> T",
    "GatedRelativePositionBias": "T T T T T T _ -> T",
    "GatherBlockQuantized": "_ _ T _ -> T",
    "Gelu": "T -> T",
    "GemmFastGelu": "T T T -> T",
    "GemmaRotaryEmbedding": "F T T T T -> T T",
    "GroupNorm": "T U U -> T",
    "GroupQueryAttention": "T T T T T _ _ T T _ T T F F T T -> T T T T",
    "LinearAttention": "T T T U T T -> T U",
    "LongformerAttention": "T T T T T T _ -> T",
    "MRotaryEmbedding": "T _ T T -> T",
    "MatMulBnb4": "T _ T -> T",
    "MatMulFpQ4": "F _ _ -> F",
    "MatMulIntegerToFloat": "_ _ T T _ _ T -> T",
    "MatMulNBits": "T _ T T _ T -> T",
    "MoE": "T T T T T T T T -> T",
    "MultiHeadAttention": "T T T T _ T T T _ _ -> T T T U",
    "NhwcConv": "T T T -> T",
    "NhwcFusedConv": "T T T T -> T",
    "PackedAttention": "T T T _ _ T -> T",
    "PackedMultiHeadAttention": "T T T T _ _ T -> T",
    "PagedAttention": "T T T T T _ _ _ T T _ T T T F F _ -> T T T",
    "QAttention": "_ _ T T T _ _ _ T -> T T",
    "QGemm": "_ F _ _ F _ _ F _ -> F",
    "QLinearAdd": "_ F _ _ F _ F _ -> _",
    "QLinearAveragePool": "_ F _ F _ -> _",
    "QLinearConv": "_ F _ _ F _ F _ _ -> _",
    "QLinearGlobalAveragePool": "_ F _ F _ -> _",
    "QLinearLeakyRelu": "_ F _ F _ -> _",
    "QLinearMul": "_ F _ _ F _ F _ -> _",
    "QLinearReduceMean": "_ F _ F _ -> _",
    "QLinearSigmoid": "_ F _ F _ -> _",
    "QLinearSoftmax": "_ F _ F _ -> _",
    "QLinearWhere": "_ _ F _ _ F _ F _ -> _",
    "QuantizeLinear": "T T _ -> _",
    "QuickGelu": "T -> T",
    "RelativePositionBias": "T _ _ -> T",
    "RotaryEmbedding": "T _ T T -> T",
    "SkipGroupNorm": "T U U T T -> T T",
    "SkipLayerNormalization": "T T T T T -> T F F T",
    "SkipSimplifiedLayerNormalization": "T T T T -> T F F T",
    "SparseAttention": "T T T T T _ _ _ _ T T -> T T T",
    "TransposeMatMul": "T T -> T",
    "Trilu": "T _ -> T",
}
REGISTERED: dict[str, str] = {"SimplifiedLayerNormalization": "T T -> T F"}
"""Those that it registers in the default domain."""


@functools.cache
def _contrib_signature(op_type: str, input_count: int, output_count: int) -> Signature | None:
    text = _CONTRIB.get(op_type) or REGISTERED.get(op_type)
    if text is None:
        return None
    # Each port without floats has a separate variable: such ports share no type.
    inputs, outputs = (
        tuple(f"_:{i}" if variable == "_" else variable for i, variable in enumerate(side.split()))
        for side in text.split("->")
    )
    if input_count > len(inputs) or output_count > len(outputs):
        return None
    allowed = dict.fromkeys("TUV", _HALF_OR_FLOAT) | {"F": frozenset({"tensor(float)"})}
    return Signature(inputs[:input_count], outputs[:output_count], allowed)


Types = dict[ir.Value, str]
"""Value -> its type; values of unknown type are absent."""


def infer_types(model: ir.Model) -> Types:
    """Return the types of all values of the main graph and its subgraphs. Local functions must be inlined first."""
    inference = _Inference(model.opset_imports)
    inference.graph(model.graph)
    return inference.types


def tensor_of(dtype: ir.DataType) -> str:
    """Return `tensor(float)` for `FLOAT`."""
    return f"tensor({dtype.name.lower()})"


def element_of(type_: str) -> str:
    """Return `float` for `seq(tensor(float))`; empty for an unknown type."""
    return type_[type_.rfind("(") + 1 :].rstrip(")")


def with_element(type_: str, dtype: ir.DataType) -> str:
    """Return a type with another element type: `seq(tensor(float16))` for `seq(tensor(float))`."""
    start = type_.rfind("(") + 1
    return type_[:start] + dtype.name.lower() + type_[start + len(element_of(type_)) :]


def dtype_of(type_: str) -> ir.DataType:
    """Return `FLOAT` for `seq(tensor(float))`."""
    return ir.DataType[element_of(type_).upper()]


def dtype_name(dtype: ir.DataType) -> str:
    """Return the name of an element type in numpy or ml_dtypes: `float32`, `float8_e4m3fn`.

    `string` and `undefined` are those that these lack.
    """
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return dtype.name.lower()
    return str(np.dtype(dtype.numpy()).name)


def value_dtype(value: ir.Value) -> str:
    """Return `float32`; for other types than dense tensors, ONNX's name; empty if undeclared."""
    if value.type is None or isinstance(value.type, ir.TensorType):
        return "" if value.dtype in (None, ir.DataType.UNDEFINED) else dtype_name(value.dtype)
    return type_name(value.type) or ""


def type_name(type_: ir.TypeProtocol | None) -> str | None:
    """Return a type as ONNX writes it; None if unknown or incomplete."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = type_name(type_.elem_type)
        wrapper = "seq" if isinstance(type_, ir.SequenceType) else "optional"
        return None if inner is None else f"{wrapper}({inner})"
    if type_ is None or type_.dtype == ir.DataType.UNDEFINED:
        return None
    prefix = "sparse_" if isinstance(type_, ir.SparseTensorType) else ""
    return prefix + tensor_of(type_.dtype)


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in a node's attributes, in the attributes' order."""
    for attribute in node.attributes.data.values():  # `data` is much faster, and this runs for every node
        if attribute.type in GRAPHS and not attribute.is_ref():
            yield from (attribute.value,) if attribute.type == ir.AttributeType.GRAPH else attribute.value


def has_subgraphs(node: ir.Node) -> bool:
    """Return whether a node has subgraphs, be they without nodes: such a graph counts as false."""
    return next(subgraphs_of(node), None) is not None


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node that onnx_ir has not read."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


Home = TypeVar("Home", onnx.GraphProto, onnx.FunctionProto)


def graphs_of(graph: Home) -> Iterator[Home | onnx.GraphProto]:
    """Yield a graph or function and every subgraph in it."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from graphs_of(body)


def nodes_in(home: onnx.GraphProto | onnx.FunctionProto) -> list[onnx.NodeProto]:
    """Return the nodes of a graph or function, and those of every subgraph in it."""
    return [node for graph in graphs_of(home) for node in graph.node]


def functions_by_graph(model: ir.Model) -> dict[ir.Graph, ir.Function]:
    """Return graph -> the local function that it belongs to, as its body or as a subgraph of that."""
    functions = model.functions.values()
    return {graph: function for function in functions for graph in (function.graph, *function.subgraphs())}


def held_tensor(attribute: ir.Attr) -> ir.TensorProtocol:
    """Return an attribute's tensor. `Attr.as_tensor` also checks it against a protocol, which takes 0.05 ms."""
    tensor: ir.TensorProtocol = attribute.value
    return tensor


class _Inference:
    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opsets = opsets
        self.types: Types = {}

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.inputs:
            self._learn(value, type_name(value.type))
        for value in graph.initializers.values():
            if value.const_value is not None:
                self._learn(value, tensor_of(value.const_value.dtype))
        for node in graph:
            self._node(node)

    def _learn(self, value: ir.Value | None, type_: str | None) -> None:
        if value is not None and type_ is not None:
            self.types.setdefault(value, type_)

    def _node(self, node: ir.Node) -> None:
        for value, source in carried_into_bodies(node):
            self._learn(value, self._of(source))
        for body in subgraphs_of(node):
            self.graph(body)
        if is_op(node, *_RULES):
            for value, type_ in zip(node.outputs, _RULES[node.op_type](node, self._of), strict=False):
                self._learn(value, type_)
        signature = signature_of(node, self.opsets)
        if signature is not None:
            self._unify(node, signature)
        for value in node.outputs:
            self._learn(value, type_name(value.type))

    def _unify(self, node: ir.Node, signature: Signature) -> None:
        """Give all ports of one type variable the type that is known of any of them."""
        ports = [*zip(node.inputs, signature.inputs, strict=False), *zip(node.outputs, signature.outputs, strict=False)]
        bound: dict[str, str] = {}
        for value, variable in ports:
            known = variable if "(" in variable else self._of(value)
            if known is None and value is not None:
                known = type_name(value.type)  # the declared type, only if nothing else is known
            if known is not None:
                bound.setdefault(variable, known)
        for value, variable in ports:
            self._learn(value, bound.get(variable))

    def _of(self, value: ir.Value | None) -> str | None:
        return None if value is None else self.types.get(value)


def carried_into_bodies(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value | None]]:
    """Yield pairs (input of a body, value passed for it) of Loop and Scan, which have the same type."""
    if is_op(node, "Loop"):
        body = node.attributes["body"].as_graph()
        yield from zip(body.inputs[2:], node.inputs[2:], strict=False)
    elif is_op(node, "Scan"):
        body = node.attributes["body"].as_graph()
        # Scan-8 has the sequence lengths first.
        first = len(node.inputs) - len(body.inputs)
        yield from zip(body.inputs, node.inputs[first:], strict=False)


Lookup = Callable[[ir.Value | None], str | None]
Rule = Callable[[ir.Node, Lookup], list[str | None]]


TYPE_ATTRIBUTES: Mapping[str, str] = {
    "Bernoulli": "dtype",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "ConstantOfShape": "value",
    "DequantizeLinear": "output_dtype",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}
"""Operator -> the attribute that sets its output's element type."""
TYPE_FROM_INPUT = frozenset({"Bernoulli", "DequantizeLinear", "EyeLike", "RandomNormalLike", "RandomUniformLike"})
"""Operators whose output has the type of the input (or scale) if the attribute is absent; others have float32."""


def _from_attribute(name: str, own_input: int | None = None) -> Rule:
    """Return a rule for an output whose type is in an attribute, or else that of an input, or float32."""

    def rule(node: ir.Node, of: Lookup) -> list[str | None]:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.as_int() != 0:
            return [tensor_of(ir.DataType(attribute.as_int()))]
        return [tensor_of(ir.DataType.FLOAT) if own_input is None else of(node.inputs[own_input])]

    return rule


def _constant(node: ir.Node, of: Lookup) -> list[str | None]:
    for prefix, dtype in (
        ("value_float", ir.DataType.FLOAT),
        ("value_int", ir.DataType.INT64),
        ("value_string", ir.DataType.STRING),
    ):
        if prefix in node.attributes or f"{prefix}s" in node.attributes:
            return [tensor_of(dtype)]
    return [tensor_of(held_tensor(node.attributes["value"]).dtype)] if "value" in node.attributes else [None]


def _constant_of_shape(node: ir.Node, of: Lookup) -> list[str | None]:
    value = node.attributes.get("value")
    return [tensor_of(ir.DataType.FLOAT if value is None else held_tensor(value).dtype)]


def _element(node: ir.Node, of: Lookup) -> list[str | None]:
    """Return the element type of a sequence or an optional; OptionalGetElement passes other types through."""
    held = of(node.inputs[0])
    if held is None or held.startswith("tensor"):
        return [held]
    return [held[held.index("(") + 1 : -1]]


def _sequence(node: ir.Node, of: Lookup) -> list[str | None]:
    inner = next((of(value) for value in node.inputs if of(value) is not None), None)
    return [None if inner is None else f"seq({inner})"]


def _optional(node: ir.Node, of: Lookup) -> list[str | None]:
    inner = of(node.inputs[0]) if node.inputs else type_name(node.attributes["type"].value.type)
    return [None if inner is None else f"optional({inner})"]


def _layer_normalization(node: ir.Node, of: Lookup) -> list[str | None]:
    statistics = _from_attribute("stash_type")(node, of)
    return [of(node.inputs[0]), *statistics, *statistics]


def _if(node: ir.Node, of: Lookup) -> list[str | None]:
    branches = [[of(value) for value in branch.outputs] for branch in subgraphs_of(node)]
    return [next((type_ for type_ in types if type_ is not None), None) for types in zip(*branches, strict=False)]


def _sequence_map(node: ir.Node, of: Lookup) -> list[str | None]:
    types = [of(value) for value in node.attributes["body"].as_graph().outputs]
    return [None if type_ is None else f"seq({type_})" for type_ in types]


_RULES: dict[str, Rule] = {
    **{
        op_type: _from_attribute(attribute, 0 if op_type in TYPE_FROM_INPUT else None)
        for op_type, attribute in TYPE_ATTRIBUTES.items()
    },
    "BitCast": _from_attribute("to"),
    "ConcatFromSequence": _element,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _from_attribute("output_dtype", 1),
    "If": _if,
    "LayerNormalization": _layer_normalization,
    "Loop": lambda node, of: [of(value) for value in node.attributes["body"].as_graph().outputs[1:]],
    "Optional": _optional,
    "OptionalGetElement": _element,
    "Scan": lambda node, of: [of(value) for value in node.attributes["body"].as_graph().outputs],
    "SequenceAt": _element,
    "SequenceConstruct": _sequence,
    "SequenceEmpty": lambda node, of: [f"seq({type_})" for type_ in _from_attribute("dtype")(node, of)],
    "SequenceMap": _sequence_map,
    "SplitToSequence": _sequence,
}
