"""Graphs to draw, the families of their operators, the choices of a drawing, and layouts.

Lengths are in pixels at scale 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from ndld_flow.records.inspection import Numbers

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


NodeKind = Literal["operator", "composite", "input", "output", "constant"]
"""`composite` nodes contain a graph: If, Loop, Scan, a local function."""

Point = tuple[float, float]
"""x to the right, y down."""


Direction = Literal["down", "right"]


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node as it is drawn."""

    id: str
    """Its name in the model; need not be unique."""
    label: str
    family: str = "other"
    """One of `families.FAMILIES`; selects the colour."""
    kind: NodeKind = "operator"
    details: tuple[str, ...] = ()
    """Short lines below the label, such as `3x3, stride 2`."""


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """One tensor between two nodes, given as positions in `DrawnGraph.nodes`."""

    source: int
    target: int
    label: str = ""
    """Dtype and shape, if known."""
    tensor: str = ""
    """Name of the tensor; edges of one node with the same tensor share a trunk."""


@dataclass(frozen=True)
class DrawnGraph:
    """Nodes and edges, in the order of the model."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    title: str = ""
    subtitle: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one edge, from the border of its source to the border of its target.

    Consecutive points that differ in both x and y are joined by a curve that leaves and arrives in the direction of the
    layers, all others by a straight line.
    """

    points: tuple[Point, ...]
    back: bool = False
    """True if the edge runs against the direction of the layers: it closes a cycle."""
    far: bool = False
    """True if the edge has no separate route and passes behind nodes, because there are too many long edges."""


@dataclass(frozen=True)
class Layout:
    """Positions of a graph: one box per node and one route per edge, in their order."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Reading:
    """The parts of a model that are drawn."""

    constants: bool = False
    """Draw constants and initializers too."""
    shapes: bool = True
    """Write dtype and shape at the edges."""
    depth: int = 0
    """Levels of control flow and functions whose bodies are drawn in place."""
    subgraph: str = ""
    """Draw only the body of this node or function; `node/attribute` for one of several."""
    values: bool = True
    """Include the values of tensors; without them, weights and constants show dtype and shape only."""
    title: str = ""
    """Title of the drawing; the model's file name if empty."""


@dataclass(frozen=True)
class Look:
    """The appearance of a drawing."""

    background: str = "white"
    """`white`, `dark`, `transparent`, or a colour such as `#f7f7f5`."""
    palette: str = "tol"
    """One of `palettes.PALETTES`."""
    direction: Direction = "down"
    columns: bool = True
    """Break a long graph into columns; otherwise it is one strip."""
    grid: bool = False
    legend: bool = True
    """Draw the title and the legend."""
    scale: float = 1.0
    """Pixels per unit; 1 is 96 dpi."""


TensorKind = Literal["computed", "input", "initializer", "constant"]
NONE = -1
"""The position of something absent: an omitted optional input, a tensor without a producer."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor stored in the model."""

    dtype: str
    dims: str
    elements: int
    size_bytes: int
    numbers: Numbers | None
    unread: str
    """Reason why there are no statistics."""
    first: tuple[str, ...]
    """The first elements, as text."""
    where: str = ""
    """External file that contains the data; empty if it is in the model's own file."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A value of a graph."""

    name: str
    dtype: str
    dims: str
    label: str
    """Its dimensions, long names shortened."""
    kind: TensorKind
    held: int = NONE
    """Position in `ModelDocument.held`."""


@dataclass(frozen=True, slots=True)
class ModelAttribute:
    """An attribute of a node."""

    name: str
    type: str
    text: str
    """Its value; the beginning of a long one."""
    is_default: bool = False
    """True if the model omits the attribute and this is the operator's default."""
    held: int = NONE
    """Position in `ModelDocument.held`, if the value is a tensor."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node of a graph."""

    name: str
    operator: str
    """`Conv`, or `domain::Name`."""
    family: Family
    kind: NodeKind
    scope: int
    """The graph that contains it."""
    details: str
    """Its main attributes in a few words: `3x3, stride 2`."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    outside: tuple[int, ...]
    """Tensors of enclosing graphs that its bodies read."""
    attributes: tuple[ModelAttribute, ...]
    bodies: tuple[int, ...]
    """Graphs that it contains."""
    precision: str = ""
    """Requested precision."""
    metadata: tuple[tuple[str, str], ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelScope:
    """A graph: the main one, a body, a local function."""

    address: str
    parent: int
    """The enclosing graph; `NONE` for the main graph and for functions."""
    inputs: tuple[int, ...]
    outside: tuple[int, ...]
    """Tensors of enclosing graphs that it reads."""
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelOperator:
    """An operator that the model uses."""

    name: str
    family: Family
    uses: int
    version: str
    """`version 13`, or another description."""
    summary: str


@dataclass(frozen=True)
class ModelDocument:
    """The contents of a model's page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    """(name, value): IR version, opsets, producer, ..."""
    scopes: tuple[ModelScope, ...]
    """The main graph first."""
    nodes: tuple[ModelNode, ...]
    tensors: tuple[ModelTensor, ...]
    held: tuple[HeldTensor, ...]
    operators: tuple[ModelOperator, ...]
    """The most frequent first."""
    shown: int = 0
    """The scope shown first."""
    has_values: bool = True
    """False if values were omitted."""
