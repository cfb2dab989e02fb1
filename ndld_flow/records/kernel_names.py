"""The arithmetic that the name of a GPU kernel reveals.

NVIDIA's libraries name their kernels after the instruction that multiplies. The forms that appear in engines:

- XMMA: `sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_..._tensor16x8x32_...`: input and output, multiplied
  and accumulated type, type of the epilogue; `tensorMxNxK` is the shape of the tensor core instruction, `ffma` the
  scalar one.
- cuDNN and cuBLAS: `ampere_h16816cudnn_...`, `turing_int8_i8816cudnn_...`: accumulator (h half, s single, i integer,
  d double) and shape of the instruction; `scudnn`, `sgemm`: scalar; `icudnn_int8x4`: the four-way dot product DP4A.
- CUTLASS: `cutlass_80_tensorop_f16_s16816gemm_f16_...`, `cutlass3x_sm90_tensorop_s64x128x16gemm_f16_...`, and
  `..._simt_...` for scalar kernels.
- Fused attention: `fmha_v2_flash_attention_fp16_...`.
- Myelin: `__myl_MulAddRelu_...`, the operators that a generated kernel holds.

https://docs.nvidia.com/cuda/parallel-thread-execution/index.html, "Warp Level Matrix Instructions", lists the shapes.
A name that reveals nothing yields nothing: an absent answer is right, a guess is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

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
    """Type of the multiplied numbers: `int8`, `float16`, `tf32`; empty where the name leaves it open."""
    circuit: Circuit = ""
    evidence: str = ""
    """The part of the name that reveals it."""


@lru_cache(maxsize=4096)
def read_kernel_name(tactic: str) -> Kernel:
    """Return the arithmetic of a kernel by its name."""
    myelin = _of_myelin(tactic[:_LONGEST])
    if myelin is not None:
        return myelin
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
    found = _XMMA.search(name)
    if found is None or "xmma" not in name:
        return None
    multiplied, read = _DTYPES.get(found["multiplied"], ""), _DTYPES.get(found["input"], "")
    dtype = multiplied if multiplied == read or (multiplied, read) == ("tf32", "float32") else ""
    return Kernel(dtype, _xmma_circuit(name, multiplied), found[0].strip("_"))


def _xmma_circuit(name: str, multiplied: str) -> Circuit:
    if _TENSOR_SHAPE.search(name) or multiplied == "tf32":
        return "tensor core"
    if _DP4A.search(name):
        return "DP4A"
    return "FMA" if _SCALAR.search(name) else ""


def _of_scalar(name: str) -> Kernel | None:
    """Recognise kernels of cuDNN, cuBLAS and CUTLASS that multiply one pair, or four, at a time."""
    found = _SCALAR.search(name)
    if found is None:
        return None
    word = found[0].strip("_")
    if _DP4A.search(name):
        return Kernel("int8", "DP4A", word)
    if word == "simt":
        return Kernel(_type_in(name), "FMA", word)
    # `volta_fp16_sgemm_fp16_...` reads halves and multiplies them in single precision.
    dtype = {"s": "float32", "f": "float32", "h": "float16", "d": "float64"}[word[0]]
    return Kernel(dtype if _type_in(name) in ("", dtype) else "", "FMA", word)


def _of_instruction(name: str) -> Kernel | None:
    found = _INSTRUCTION.search(name)
    if found is None or ("x" in found["shape"] and "tensorop" not in name):
        return None
    accumulator, shape = found["accumulator"], found["shape"]
    if accumulator == "i":
        dtype = "int4" if shape in _FOUR_BITS else "int8"
    elif accumulator in "hd":
        dtype = {"h": _type_in(name, but=("float32",)) or "float16", "d": "float64"}[accumulator]
    else:
        dtype = _four_bits(name) or _type_in(name, but=("float32",)) or _SHAPES.get(shape, "")
    return Kernel(dtype, "tensor core", found[0].strip("_"))


def _of_attention(name: str) -> Kernel | None:
    """Recognise TensorRT's fused attention, which runs on tensor cores in every type: the name must contain it."""
    found, dtype = _ATTENTION.search(name), _type_in(name, but=("float32",))
    return Kernel(dtype, "tensor core", f"{found[0].strip('_')}, {dtype}") if found and dtype else None


def _of_named_unit(name: str) -> Kernel | None:
    found = _NAMED.search(name)
    if found is None:
        return None
    word = found["word"]
    usual = {"imma": "int8", "hmma": _joined_type(name) or "float16"}
    return Kernel(usual.get(word) or _four_bits(name) or _type_in(name, but=("float32",)), "tensor core", word)


def _joined_type(name: str) -> str:
    """Return the operands' type in `hmma_fprop_f16f16f32` and `..._bf16bf16f32`."""
    found = re.search(r"_(bf16|f16)(?:bf16|f16)(?:f32|f16)?(?=_|$)", name)
    return _DTYPES[found[1]] if found else ""


def _of_myelin(name: str) -> Kernel | None:
    """Recognise a generated kernel whose operators all multiply no matrices."""
    if not name.startswith("__my"):
        return None
    found = _PLAIN_MYELIN.match(name)
    return Kernel("", "none", found[0]) if found else Kernel()


def _four_bits(name: str) -> str:
    return "float4_e2m1fn" if _BLOCK_SCALED_4_BITS.search(name) else ""


def _type_in(name: str, but: tuple[str, ...] = ()) -> str:
    """Return the first type in a name, except those in `but`, which may be the accumulator's."""
    types = (_DTYPES[found["dtype"]] for found in _TYPE_WORD.finditer(name))
    return next((dtype for dtype in types if dtype not in but), "")
