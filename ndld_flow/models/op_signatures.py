"""Signatures of operators: the types of inputs and outputs as type variables.

Two ports of a node with the same variable (`T`) have the same type; a port whose variable is itself a type
(`tensor(float)`) always has that type. Types are written as ONNX writes them: `seq(tensor(float))`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir


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
    domain = "" if node.domain == "ai.onnx" else node.domain
    counts = len(node.inputs), len(node.outputs)
    if domain == "com.microsoft" or (not domain and node.op_type in _REGISTERED):
        return _contrib_signature(node.op_type, *counts)
    if domain not in opsets:
        return None
    return _schema_signature(domain, node.op_type, opsets[domain], *counts)


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Return whether a node is one of these operators of the default domain."""
    return node is not None and node.op_type in op_types and node.domain in ("", "ai.onnx")


def is_known_op(op_type: str, domain: str = "") -> bool:
    """Return whether any version of ONNX (or ONNX Runtime, if listed) has this operator."""
    if domain == "com.microsoft":
        return op_type in _CONTRIB
    return op_type in _onnx_op_types(domain) or (not domain and op_type in _REGISTERED)


def known_op_types() -> frozenset[str]:
    """Return all operators of the default domain."""
    return _onnx_op_types("")


@functools.cache
def _onnx_op_types(domain: str) -> frozenset[str]:
    return frozenset(s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain)


@functools.cache
def _schema_signature(domain: str, op_type: str, opset: int, input_count: int, output_count: int) -> Signature | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
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
_REGISTERED: dict[str, str] = {"SimplifiedLayerNormalization": "T T -> T F"}
"""Those that it registers in the default domain."""


@functools.cache
def _contrib_signature(op_type: str, input_count: int, output_count: int) -> Signature | None:
    text = _CONTRIB.get(op_type) or _REGISTERED.get(op_type)
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
