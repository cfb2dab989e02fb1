"""The precision that a layer computes in and the circuit that multiplies, from everything that is recorded of it.

Its output does not reveal it: an INT8 convolution may write FP32, a QuantizeLinear writes INT8 and computes in FP32,
and a fused block computes in types that none of its tensors has. The rules below conclude only what inputs, weights and
the kernel's name prove, and record the evidence; everything else stays unknown, which is the empty string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

from ndld_flow.records.kernel_names import Circuit, Kernel, read_kernel_name

MultiplyUnit = Literal[
    "tensor core INT4",
    "tensor core INT8",
    "tensor core FP4",
    "tensor core FP8",
    "tensor core FP16",
    "tensor core BF16",
    "tensor core TF32",
    "tensor core FP64",
    "tensor core",
    "INT8 DP4A",
    "FP16 FMA",
    "FP32 FMA",
    "FP64 FMA",
    "FMA",
    "none",
    "",
]
"""The circuit that multiplies: a tensor core, in a type where that is known; four-way dot products or single
multiplications on CUDA cores; `none` for layers that multiply no matrices; empty where it is not known."""
TENSOR_CORE = "tensor core"
CONVERTS = " to "
"""Between the two types in the precision of a layer that only converts: `float32 to int8`."""

_UNIT_TYPES = {
    "int4": "INT4",
    "int8": "INT8",
    "float4_e2m1fn": "FP4",
    "float8_e4m3fn": "FP8",
    "float8_e5m2": "FP8",
    "float16": "FP16",
    "bfloat16": "BF16",
    "tf32": "TF32",
    "float64": "FP64",
}
_PACKED = ("int4", "uint4", "float4_e2m1fn")
"""Weights of 4 bits with wider activations are unpacked, and multiplied in the activations' type."""
_INDICES = ("int32", "int64", "bool")
_MOVERS = ("reformat", "cast", "quantize", "copy")
_MATRIX_TYPE = re.compile(r"conv|correlation|gemm|matmul|matrix_?multiply|fullyconnected|einsum|attention|mha", re.I)
_MATRIX_NAME = re.compile(r"__myl_\w*(?:Corr|Fc|Mha|Dot|Gemm|Matm)")
"""Kernels that Myelin fuses around a convolution or a matrix product."""
_PLAIN_TYPE = re.compile(
    r"no_?op|shuffle|slice|concat(?:enation)?|gather|constant|element_?wise|point_?wise(?:v2)?|unary|activation|"
    r"(?:cuda)?soft_?max|(?:cuda)?reduce|scale|resize|top_?k|select|fill|nms|non_?zero|scatter|padding|shape|identity|"
    r"(?:de)?quantize|normalization|lrn|parametric_?relu|(?:cask|cuda|tiled|cudnn)?(?:max|avg)?pool(?:ing)?|squeeze|"
    r"unsqueeze|transpose|reverse_?sequence|one_?hot|cumulative|signal|wait",
    re.I,
)
_SUBGRAPH_PROVIDERS = re.compile(r"Tensorrt|NvTensorRTRTX|OpenVINO|QNN|MIGraphX|CoreML|Nnapi|VitisAI|DNNL", re.I)
"""Execution providers of ONNX Runtime that compile a part of the model into one node."""
_INTEGER_OPERANDS = {
    "QLinearConv": (0, 3),
    "QLinearMatMul": (0, 3),
    "QLinearAdd": (0, 3),
    "QLinearMul": (0, 3),
    "QGemm": (0, 3),
    "QAttention": (0, 1),
    "ConvInteger": (0, 1),
    "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (1,),
    "DynamicQuantizeLSTM": (1, 2),
}
"""ONNX Runtime's operators that compute in integers of 8 bits, with the positions of those; a QLinear operator that is
not listed has them first."""
_COMPARES = frozenset(
    ("ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero")
)
"""ONNX operators that compute in the type that they read."""
QUANTIZING_TYPES = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Quantize", "Dequantize")
"""Types of layers that are a QuantizeLinear or DequantizeLinear, by ONNX's and by TensorRT's names."""


@dataclass(frozen=True)
class Operand:
    """One tensor that a layer reads or writes."""

    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayerFacts:
    """Everything that decides about a layer's arithmetic."""

    name: str
    type: str
    role: str
    provider: str
    """ONNX Runtime's execution provider; empty for the layers of an engine."""
    tactic: str
    weights: str
    """Element type of the weights; empty where there are none, or none are recorded."""
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]


@dataclass(frozen=True)
class Arithmetic:
    """The conclusion about one layer."""

    precision: str = ""
    basis: str = ""
    """The evidence for the precision, or the reason why it is not known."""
    unit: MultiplyUnit = ""


def conclude(facts: LayerFacts) -> Arithmetic:
    """Return precision, evidence and multiply unit of a layer."""
    if facts.role in _MOVERS:
        return Arithmetic(*_converted(facts), "none")
    if facts.role in ("control", "sync"):
        return Arithmetic("", "computes nothing itself", "none")
    if facts.provider:
        return Arithmetic(*_of_onnxruntime(facts))
    kernel = read_kernel_name(facts.tactic)
    precision, basis = _of_engine(facts, kernel)
    return Arithmetic(precision, basis, _unit(facts, kernel, precision))


def multiplies_matrices(kind: str, name: str) -> bool:
    """Return True for a layer of an engine that is a convolution or a matrix product, or is fused around one."""
    return bool(_MATRIX_TYPE.search(kind) or _MATRIX_NAME.match(name))


def _converted(facts: LayerFacts) -> tuple[str, str]:
    before = facts.inputs[0].dtype if facts.inputs else ""
    after = facts.outputs[0].dtype if facts.outputs else ""
    if not before or not after:
        return after, f"writes {after}" if after else ""
    return (after, "moves data") if before == after else (f"{before}{CONVERTS}{after}", "converts data")


# --- engines ---


def _of_engine(facts: LayerFacts, kernel: Kernel) -> tuple[str, str]:
    if "{ForeignNode[" in facts.name or facts.type.lower() == "myelin":
        return "", "a block of many operators: types inside it are not recorded"
    if facts.type.lower().startswith("plugin"):
        return "", "a plugin: its own code decides"
    if kernel.dtype:
        return _by_kernel(facts, kernel)
    if facts.weights or multiplies_matrices(facts.type, facts.name):
        return _by_operands(facts)
    return _by_tensors(facts)


def _by_kernel(facts: LayerFacts, kernel: Kernel) -> tuple[str, str]:
    dtype = "float32" if kernel.dtype == "tf32" else kernel.dtype
    read = facts.inputs[0].dtype if facts.inputs else ""
    if read and _base(read) != _base(dtype):
        return "", f"reads {read}, but the tactic ({kernel.evidence}) multiplies {dtype}"
    weights = f", weights: {facts.weights}" if facts.weights else ""
    return dtype, f"tactic: {kernel.evidence}{weights}"


def _base(dtype: str) -> str:
    """Return a type without the kind of 8-bit float, and without the sign of integers."""
    return dtype[:6] if dtype.startswith("float8") else dtype.removeprefix("u")


def _by_operands(facts: LayerFacts) -> tuple[str, str]:
    """Decide by the activations: weights are never multiplied in a narrower type."""
    read = facts.inputs[0].dtype if facts.inputs else ""
    if not read:
        return "", "types of inputs are not recorded"
    if not facts.weights:
        others = {one.dtype for one in facts.inputs[:2]} if not _reads_weights(facts) else {read}
        return (read, f"input: {read}") if len(others) == 1 else ("", f"reads {' and '.join(sorted(others))}")
    if _base(facts.weights) == _base(read):
        return read, f"input and weights: {read}"
    if facts.weights in _PACKED and "float" in read:
        return read, f"input: {read}; {facts.weights} weights are unpacked"
    return "", f"reads {read} with weights of {facts.weights}"


def _reads_weights(facts: LayerFacts) -> bool:
    """Return whether a layer has its weights built in, as a convolution; a matrix product may read both factors."""
    return bool(re.search(r"conv|correlation|fullyconnected", facts.type, re.I))


def _by_tensors(facts: LayerFacts) -> tuple[str, str]:
    """Return the common type of all data: a layer that multiplies no matrices computes in it."""
    tensors = (*facts.inputs, *facts.outputs)
    if not tensors or not all(one.dtype for one in tensors):
        return "", "types of tensors are not recorded"
    read, written = (_data_types(side) for side in (facts.inputs, facts.outputs))
    types = read | written
    if len(types) == 1:
        return next(iter(types)), "type of all it reads and writes"
    return "", f"reads {' and '.join(sorted(read))}, writes {' and '.join(sorted(written))}"


def _data_types(tensors: Iterable[Operand]) -> set[str]:
    """Return the types of tensors, without those of indices and conditions if there are others."""
    types = {one.dtype for one in tensors}
    return types - set(_INDICES) or types


# --- multiply unit ---


def _unit(facts: LayerFacts, kernel: Kernel, precision: str) -> MultiplyUnit:
    if kernel.circuit:
        return _named_unit(kernel.circuit, kernel.dtype or _factor_type(kernel.circuit, precision))
    if _PLAIN_TYPE.fullmatch(facts.type):
        return "none"
    return "FMA" if facts.type.lower().startswith("cudadepthwise") else ""


def _factor_type(circuit: Circuit, precision: str) -> str:
    """Return the type of the factors: a tensor core multiplies the TF32 part of float32."""
    return "tf32" if circuit == "tensor core" and precision == "float32" else precision


def _named_unit(circuit: Circuit, dtype: str) -> MultiplyUnit:
    word = "FP32" if dtype == "float32" else _UNIT_TYPES.get(dtype, "")
    names = {"tensor core": f"tensor core {word}", "FMA": f"{word} FMA", "DP4A": "INT8 DP4A"}
    wanted = (names.get(circuit, circuit), circuit)
    return next((unit for name in wanted for unit in get_args(MultiplyUnit) if unit == name), "")


# --- ONNX Runtime ---


def _of_onnxruntime(facts: LayerFacts) -> tuple[str, str]:
    if _SUBGRAPH_PROVIDERS.match(facts.provider):
        return "", "a compiled part of the model: types inside it are not recorded"
    kind = facts.type.rpartition(".")[2]
    if kind == "MatMulNBits":
        return "", "packed weights: its accuracy level, which decides, is not recorded"
    if kind in _INTEGER_OPERANDS or kind.startswith("QLinear"):
        return _of_integers(facts, _INTEGER_OPERANDS.get(kind, (0,)))
    read = facts.inputs[0].dtype if facts.inputs else ""
    written = facts.outputs[0].dtype if facts.outputs else ""
    if kind in _COMPARES and read:
        return read, f"ONNX Runtime kernel that reads {read}"
    return written, f"ONNX Runtime kernel that writes {written}" if written else ""


def _of_integers(facts: LayerFacts, positions: Sequence[int]) -> tuple[str, str]:
    """Return the type of an integer product: `uint8` times `int8` is an INT8 product."""
    types = [facts.inputs[place].dtype for place in positions if place < len(facts.inputs)]
    known = [dtype for dtype in types if _base(dtype) == "int8"] or [
        one.dtype for one in facts.inputs if _base(one.dtype) == "int8" and prod(one.shape) > 1
    ]
    if not known:
        return "", f"{facts.type} of unrecorded types"
    return ("int8" if "int8" in known else "uint8"), f"integer operands: {', '.join(dict.fromkeys(known))}"
