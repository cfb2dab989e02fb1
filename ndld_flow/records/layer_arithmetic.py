"""The precision in which a layer computes and the circuit that multiplies, from everything recorded about it.

A layer's output does not reveal them: an INT8 convolution may write FP32, a QuantizeLinear writes INT8 and computes in
FP32, and a fused block computes in types that none of its tensors has. The rules below conclude only what inputs,
weights and the kernel's name prove, and record the evidence; everything else remains unknown, which is the empty
string.

NVIDIA's libraries name their kernels after the instruction that multiplies. The forms that appear in engines:

- XMMA: `sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_..._tensor16x8x32_...`: input and output, multiplied
  and accumulated type, type of the epilogue; `tensorMxNxK` is the shape of the tensor core instruction, `ffma` the
  scalar one.
- cuDNN and cuBLAS: `ampere_h16816cudnn_...`, `turing_int8_i8816cudnn_...`: accumulator (h half, s single, i integer,
  d double) and shape of the instruction; `scudnn`, `sgemm`: scalar; `icudnn_int8x4`: the four-way dot product DP4A.
- CUTLASS: `cutlass_80_tensorop_f16_s16816gemm_f16_...`, `cutlass3x_sm90_tensorop_s64x128x16gemm_f16_...`, and
  `..._simt_...` for scalar kernels.
- Fused attention: `fmha_v2_flash_attention_fp16_...`.
- Myelin: `__myl_MulAddRelu_...`, the operators in a generated kernel.

https://docs.nvidia.com/cuda/parallel-thread-execution/index.html, "Warp Level Matrix Instructions", lists the shapes. A
name that reveals nothing yields nothing: no answer is better than a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal, get_args

Circuit = Literal["tensor core", "FMA", "DP4A", "none", ""]
"""`none`: it multiplies no matrices; empty: the name does not reveal it."""

_LONGEST = 500
_DTYPES = {
    "i4": "int4",
    "s4": "int4",
    "i8": "int8",
    "s8": "int8",
    "u8": "int8",
    "int8": "int8",
    "f16": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "tf32": "tf32",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e2m1": "float4_e2m1fn",
}
_WORD = "|".join(sorted(_DTYPES, key=len, reverse=True))
_OPERAND = "bf16|tf32|f16|f32|f64|i32|i8|u8|i4|e4m3|e5m2|e2m1"
_XMMA = re.compile(
    rf"_(?P<input>{_OPERAND})(?:{_OPERAND})_(?P<multiplied>{_OPERAND})(?:{_OPERAND})_(?:{_OPERAND})(?=_|$)"
)
_TENSOR_SHAPE = re.compile(r"_tensor\d+x\d+x\d+")
_SCALAR = re.compile(r"(?:^|_)(?:ffma|hfma2?|simt|scudnn|hcudnn|sgemm|hgemm|dgemm|[ih]?dp4a|icudnn_int8x4)(?=_|\d|$)")
_DP4A = re.compile(r"dp4a|int8x4|simt_igemm")
_INSTRUCTION = re.compile(
    r"(?:^|_)(?P<accumulator>[hsid])(?P<shape>884|1684|1688|16816|161616|8816|8832|16832|16864|\d+x\d+x\d+)"
    r"(?:tf32|f16|bf16)?(?=cudnn|gemm|fprop|dgrad|wgrad|_|$)"
)
_NAMED = re.compile(r"(?:^|_)(?P<word>hmma|imma|qmma|omma|gmma|wgmma|w?mma_tensorop|(?:bs)?tensorop)(?=_|$)")
_BLOCK_SCALED_4_BITS = re.compile(r"e2m1|mxf4|nvf4|ue4m3xf4")
_ATTENTION = re.compile(r"(?:^|_)(?:fmha|mha_v\d|flash_attention|fused_multihead_attention)(?=_|$)")
_TYPE_WORD = re.compile(rf"(?:^|_)(?P<dtype>{_WORD})(?=_|$)")
_PLAIN_OPERATOR = (
    "Abs|Add|Cast|Ceil|Clip|Comp|Conc|Cos|Div|Erf|Exp|Expa|Fill|Floo|Gath|Gelu|Iota|Log|Max|Maxr|Mean|Min|Minr|Move|Mul|"
    "Neg|Pad|Pow|Prod|Relu|Repl|Resh|Resi|Roun|Rsqr|Scat|Sele|Sigm|Silu|Sin|Slic|Soft|Spli|Sqrt|Sub|Sum|Tanh|Tile|Topk|"
    "Tran|Wher"
)
"""Myelin's operators that multiply no matrices, by the first letters of their names."""
_PLAIN_MYELIN = re.compile(rf"__myl_(?:{_PLAIN_OPERATOR})+(?=_)")
_SHAPES = {"884": "float16", "1684": "tf32", "16832": "float8_e4m3fn"}
"""For accumulators in single precision: shapes that only one type has."""
_FOUR_BITS = ("8832", "16864")


@dataclass(frozen=True)
class Kernel:
    """The multiplication that a kernel's name reveals."""

    dtype: str = ""
    """Type of the multiplied numbers: `int8`, `float16`, `tf32`; empty if the name leaves it open."""
    circuit: Circuit = ""
    evidence: str = ""
    """The part of the name that reveals it."""


@lru_cache(maxsize=4096)
def read_kernel_name(tactic: str) -> Kernel:
    """Return the arithmetic of a kernel by its name."""
    if tactic.startswith("__my"):  # a generated kernel: only one whose operators all multiply no matrices is known
        match = _PLAIN_MYELIN.match(tactic[:_LONGEST])
        return Kernel("", "none", match[0]) if match else Kernel()
    name = tactic[:_LONGEST].lower()
    readers: tuple[Callable[[str], Kernel | None], ...] = (
        _of_xmma,
        _of_scalar,
        _of_instruction,
        _of_attention,
        _of_named_unit,
    )
    return next((kernel for read in readers if (kernel := read(name)) is not None), Kernel())


def _of_xmma(name: str) -> Kernel | None:
    match = _XMMA.search(name)
    if match is None or "xmma" not in name:
        return None
    multiplied, read = _DTYPES.get(match["multiplied"], ""), _DTYPES.get(match["input"], "")
    dtype = multiplied if multiplied == read or (multiplied, read) == ("tf32", "float32") else ""
    return Kernel(dtype, _xmma_circuit(name, multiplied), match[0].strip("_"))


def _xmma_circuit(name: str, multiplied: str) -> Circuit:
    if _TENSOR_SHAPE.search(name) or multiplied == "tf32":
        return "tensor core"
    if _DP4A.search(name):
        return "DP4A"
    return "FMA" if _SCALAR.search(name) else ""


def _of_scalar(name: str) -> Kernel | None:
    """Recognize kernels of cuDNN, cuBLAS and CUTLASS that multiply one pair, or four, at a time."""
    match = _SCALAR.search(name)
    if match is None:
        return None
    word = match[0].strip("_")
    if _DP4A.search(name):
        return Kernel("int8", "DP4A", word)
    if word == "simt":
        return Kernel(_type_in(name), "FMA", word)
    # `volta_fp16_sgemm_fp16_...` reads halves and multiplies them in single precision.
    dtype = {"s": "float32", "f": "float32", "h": "float16", "d": "float64"}[word[0]]
    return Kernel(dtype if _type_in(name) in ("", dtype) else "", "FMA", word)


def _of_instruction(name: str) -> Kernel | None:
    match = _INSTRUCTION.search(name)
    if match is None or ("x" in match["shape"] and "tensorop" not in name):
        return None
    accumulator, shape = match["accumulator"], match["shape"]
    if accumulator == "i":
        dtype = "int4" if shape in _FOUR_BITS else "int8"
    elif accumulator in "hd":
        dtype = {"h": _type_in(name, but=("float32",)) or "float16", "d": "float64"}[accumulator]
    else:
        dtype = _four_bits(name) or _type_in(name, but=("float32",)) or _SHAPES.get(shape, "")
    return Kernel(dtype, "tensor core", match[0].strip("_"))


def _of_attention(name: str) -> Kernel | None:
    """Recognize TensorRT's fused attention, which runs on tensor cores in every type: the name must contain it."""
    match, dtype = _ATTENTION.search(name), _type_in(name, but=("float32",))
    return Kernel(dtype, "tensor core", f"{match[0].strip('_')}, {dtype}") if match and dtype else None


def _of_named_unit(name: str) -> Kernel | None:
    match = _NAMED.search(name)
    if match is None:
        return None
    word = match["word"]
    # The operands' type is followed by others, as in `hmma_fprop_f16f16f32` and `..._bf16bf16f32`.
    operands = re.search(r"_(bf16|f16)(?:bf16|f16)(?:f32|f16)?(?=_|$)", name)
    usual = {"imma": "int8", "hmma": _DTYPES[operands[1]] if operands else "float16"}
    return Kernel(usual.get(word) or _four_bits(name) or _type_in(name, but=("float32",)), "tensor core", word)


def _four_bits(name: str) -> str:
    return "float4_e2m1fn" if _BLOCK_SCALED_4_BITS.search(name) else ""


def _type_in(name: str, but: tuple[str, ...] = ()) -> str:
    """Return the first type in a name, except those in `but`, which may be the accumulator's."""
    types = (_DTYPES[match["dtype"]] for match in _TYPE_WORD.finditer(name))
    return next((dtype for dtype in types if dtype not in but), "")


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
multiplications on CUDA cores; `none` for layers that multiply no matrices; empty if it is not known."""
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
    """Everything that determines a layer's arithmetic."""

    name: str
    type: str
    role: str
    provider: str
    """ONNX Runtime's execution provider; empty for the layers of an engine."""
    tactic: str
    weights: str
    """Element type of the weights; empty if there are none, or none are recorded."""
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]


@dataclass(frozen=True)
class Arithmetic:
    """The conclusion about one layer."""

    precision: str = ""
    basis: str = ""
    """The evidence for the precision, or the reason why it is unknown."""
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
        return "", "a plugin: only its code determines it"
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
    """Return a type without the variant of 8-bit floats and the sign of integers."""
    return dtype[:6] if dtype.startswith("float8") else dtype.removeprefix("u")


def _by_operands(facts: LayerFacts) -> tuple[str, str]:
    """Decide by the activations: weights are never multiplied in a narrower type."""
    read = facts.inputs[0].dtype if facts.inputs else ""
    if not read:
        return "", "types of inputs are not recorded"
    if not facts.weights:
        # A matrix product may read both factors; these layers contain their weights.
        has_weights = re.search(r"conv|correlation|fullyconnected", facts.type, re.I)
        others = {read} if has_weights else {tensor.dtype for tensor in facts.inputs[:2]}
        return (read, f"input: {read}") if len(others) == 1 else ("", f"reads {' and '.join(sorted(others))}")
    if _base(facts.weights) == _base(read):
        return read, f"input and weights: {read}"
    if facts.weights in _PACKED and "float" in read:
        return read, f"input: {read}; {facts.weights} weights are unpacked"
    return "", f"reads {read} with weights of {facts.weights}"


def _by_tensors(facts: LayerFacts) -> tuple[str, str]:
    """Return the common type of all data: a layer that multiplies no matrices computes in it."""
    tensors = (*facts.inputs, *facts.outputs)
    if not tensors or not all(tensor.dtype for tensor in tensors):
        return "", "types of tensors are not recorded"
    # Indices and conditions do not count as data if there are other tensors.
    all_types = ({tensor.dtype for tensor in side} for side in (facts.inputs, facts.outputs))
    read, written = (types - set(_INDICES) or types for types in all_types)
    types = read | written
    if len(types) == 1:
        return next(iter(types)), "type of all inputs and outputs"
    return "", f"reads {' and '.join(sorted(read))}, writes {' and '.join(sorted(written))}"


# --- multiply unit ---


def _unit(facts: LayerFacts, kernel: Kernel, precision: str) -> MultiplyUnit:
    if kernel.circuit:
        # A tensor core multiplies the TF32 part of float32.
        dtype = kernel.dtype or ("tf32" if kernel.circuit == "tensor core" and precision == "float32" else precision)
        word = "FP32" if dtype == "float32" else _UNIT_TYPES.get(dtype, "")
        names = {"tensor core": f"tensor core {word}", "FMA": f"{word} FMA", "DP4A": "INT8 DP4A"}
        wanted = (names.get(kernel.circuit, kernel.circuit), kernel.circuit)
        return next((unit for name in wanted for unit in get_args(MultiplyUnit) if unit == name), "")
    if _PLAIN_TYPE.fullmatch(facts.type):
        return "none"
    return "FMA" if facts.type.lower().startswith("cudadepthwise") else ""


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
    types = [facts.inputs[index].dtype for index in positions if index < len(facts.inputs)]
    known = [dtype for dtype in types if _base(dtype) == "int8"] or [
        tensor.dtype for tensor in facts.inputs if _base(tensor.dtype) == "int8" and prod(tensor.shape) > 1
    ]
    if not known:
        return "", f"{facts.type} of unrecorded types"
    return ("int8" if "int8" in known else "uint8"), f"integer operands: {', '.join(dict.fromkeys(known))}"


PRECISION_KEY = "ndld_flow.precision"
"""Key in an ONNX node's `metadata_props` that requests one."""

Precision = Literal["fp32", "fp16", "bf16", "fp8", "int64", "int32", "int8", "int4", "uint8", "bool"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
FLOAT_DTYPES: dict[str, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Precisions that a Cast can produce -> element type."""
