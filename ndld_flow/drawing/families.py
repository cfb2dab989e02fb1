"""Families of operators, each with its own colour."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

Family = Literal[
    "convolution",
    "matmul",
    "activation",
    "normalization",
    "elementwise",
    "shape",
    "reduce",
    "control",
    "quantization",
    "other",
]

FAMILIES: tuple[Family, ...] = get_args(Family)

TITLES: dict[Family, str] = {
    "convolution": "Convolution",
    "matmul": "Matrix product, attention",
    "activation": "Activation",
    "normalization": "Normalization",
    "elementwise": "Elementwise",
    "shape": "Shape and layout",
    "reduce": "Pooling and reduction",
    "control": "Control flow, functions",
    "quantization": "Quantization and casts",
    "other": "Other",
}

_OPERATORS: dict[Family, str] = {
    "convolution": "Conv ConvTranspose ConvInteger DeformConv QLinearConv CausalConvWithState",
    "matmul": """MatMul Gemm MatMulInteger QLinearMatMul Einsum LSTM GRU RNN Attention MultiHeadAttention
        FlexAttention LinearAttention PagedAttention Det RotaryEmbedding MRotaryEmbedding AttnLSTM MoE QMoE""",
    "activation": """Relu LeakyRelu PRelu Sigmoid HardSigmoid HardSwish Tanh Softmax LogSoftmax Hardmax Elu Selu Celu
        Gelu FastGelu QuickGelu BiasGelu Mish Swish Softplus Softsign ThresholdedRelu Clip Shrink Erf SwiGLU ScaledSiLU
        QLinearSigmoid""",
    "normalization": """BatchNormalization InstanceNormalization LayerNormalization GroupNormalization
        RMSNormalization LRN LpNormalization MeanVarianceNormalization SkipLayerNormalization
        SimplifiedLayerNormalization Dropout BiasDropout BitmaskDropout BitmaskBiasDropout""",
    "elementwise": """Add Sub Mul Div Pow Sqrt Exp Log Neg Abs Reciprocal Floor Ceil Round Sign Mod Min Max Sum Mean
        Where And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh
        Acosh Atanh BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot IsNaN IsInf BiasAdd GatedAdd MulInteger
        QLinearAdd QLinearMul QLinearWhere ComplexMul ComplexMulConj""",
    "shape": """Reshape Transpose Concat Split Slice Gather GatherElements GatherND Scatter ScatterElements ScatterND
        Squeeze Unsqueeze Flatten Expand Tile Pad Shape Size Identity DepthToSpace SpaceToDepth Resize Upsample
        Compress ConstantOfShape Range OneHot NonZero ReverseSequence EyeLike Trilu GridSample AffineGrid Col2Im
        CenterCropPad TensorScatter ReorderInput ReorderOutput ExpandDims""",
    "reduce": """MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxRoiPool MaxUnpool RoiAlign
        ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
        ReduceSumSquare ArgMax ArgMin TopK CumSum CumProd NonMaxSuppression Unique""",
    "control": "If Loop Scan SequenceMap",
    "quantization": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear Cast CastLike BitCast",
    # Their names contain parts of others' (norm, mha) by chance.
    "other": "RandomNormal RandomNormalLike NGramHashMapping VarlenNGramHashMapping",
}

_KNOWN = {operator.lower(): family for family, operators in _OPERATORS.items() for operator in operators.split()}

_PARTS: tuple[tuple[str, Family], ...] = (
    ("conv", "convolution"),
    ("reformat", "shape"),
    ("reorder", "shape"),
    ("shuffle", "shape"),
    ("memcpy", "shape"),
    ("quantize", "quantization"),
    ("cast", "quantization"),
    ("norm", "normalization"),
    ("matmul", "matmul"),
    ("matrixmultiply", "matmul"),
    ("gemm", "matmul"),
    ("attention", "matmul"),
    ("mha", "matmul"),
    ("pool", "reduce"),
    ("reduce", "reduce"),
    ("softmax", "activation"),
    ("activation", "activation"),
    ("gelu", "activation"),
    ("relu", "activation"),
    ("elementwise", "elementwise"),
    ("pointwise", "elementwise"),
    ("unary", "elementwise"),
    ("gather", "shape"),
    ("concat", "shape"),
    ("slice", "shape"),
    ("resize", "shape"),
    ("copy", "shape"),
    ("correlation", "convolution"),
    ("deconv", "convolution"),
    ("loop", "control"),
    ("conditional", "control"),
)
"""Substrings of names that are not ONNX operators: fused operators and TensorRT layers (`CaskConvolution`)."""


@lru_cache(maxsize=4096)
def family_of(operator: str) -> Family:
    """Return the family of an operator or of a backend's layer type; a domain before `::` or `:` is ignored."""
    name = operator.rpartition(":")[2].lower()
    if name in _KNOWN:
        return _KNOWN[name]
    return next((family for part, family in _PARTS if part in name), "other")


_MYELIN = re.compile(r"__myl_(?P<words>\w+?)_myl\d+_\d+(?!\w)")
_MYELIN_WORDS: tuple[tuple[str, Family], ...] = (
    ("Corr", "convolution"),
    ("Deco", "convolution"),
    ("Fc", "matmul"),
    ("Dot", "matmul"),
    ("Gemm", "matmul"),
    ("Mha", "matmul"),
    ("Mean", "reduce"),
    ("Sum", "reduce"),
    ("Red", "reduce"),
    ("Mul", "elementwise"),
    ("Add", "elementwise"),
    ("Sub", "elementwise"),
    ("Div", "elementwise"),
    ("Max", "elementwise"),
    ("Min", "elementwise"),
    ("Cast", "quantization"),
)
"""Parts of fused kernels' names, the most specific first; the remaining ones move or reshape tensors."""


def layer_word(layer_type: str, name: str) -> str:
    """Return a short label of a layer: its type, or the operators that Myelin fused (`__myl_CorrMulAdd_myl0_2` ->
    `CorrMulAdd`).

    Falls back to the layer's name.
    """
    match = _MYELIN.fullmatch(name)
    if match:
        return match["words"]
    return name if layer_type in ("", "unknown") else layer_type


@lru_cache(maxsize=16384)
def family_of_layer(layer_type: str, name: str) -> Family:
    """Return the family as `family_of` does; Myelin kernels are classified by the operators fused into them."""
    family = family_of(layer_type)
    match = _MYELIN.fullmatch(name) if family == "other" else None
    if match is None:
        return family
    return next((family for word, family in _MYELIN_WORDS if word in match["words"]), "shape")
