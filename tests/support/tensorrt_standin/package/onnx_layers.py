"""Which layer an ONNX operator becomes, and which type a tensor has."""

from __future__ import annotations

LAYER_OF_OP = {
    "Conv": "CONVOLUTION",
    "ConvTranspose": "DECONVOLUTION",
    "MatMul": "MATRIX_MULTIPLY",
    "Gemm": "MATRIX_MULTIPLY",
    "Einsum": "EINSUM",
    "BatchNormalization": "SCALE",
    "LayerNormalization": "NORMALIZATION",
    "InstanceNormalization": "NORMALIZATION",
    "GroupNormalization": "NORMALIZATION",
    "Softmax": "SOFTMAX",
    "LogSoftmax": "SOFTMAX",
    "Concat": "CONCATENATION",
    "Cast": "CAST",
    "CastLike": "CAST",
    "QuantizeLinear": "QUANTIZE",
    "DequantizeLinear": "DEQUANTIZE",
    "DynamicQuantizeLinear": "DYNAMIC_QUANTIZE",
    "Constant": "CONSTANT",
    "ConstantOfShape": "FILL",
    "Range": "FILL",
    "Shape": "SHAPE",
    "Size": "SHAPE",
    "Gather": "GATHER",
    "GatherElements": "GATHER",
    "GatherND": "GATHER",
    "ScatterND": "SCATTER",
    "ScatterElements": "SCATTER",
    "Slice": "SLICE",
    "Split": "SLICE",
    "Pad": "SLICE",
    "Expand": "SLICE",
    "Tile": "SLICE",
    "Resize": "RESIZE",
    "Upsample": "RESIZE",
    "TopK": "TOPK",
    "ArgMax": "TOPK",
    "ArgMin": "TOPK",
    "Where": "SELECT",
    "NonZero": "NON_ZERO",
    "OneHot": "ONE_HOT",
    "NonMaxSuppression": "NMS",
    "CumSum": "CUMULATIVE",
    "GridSample": "GRID_SAMPLE",
    "PRelu": "PARAMETRIC_RELU",
    "LRN": "LRN",
    "Identity": "IDENTITY",
    "Dropout": "IDENTITY",
    "If": "CONDITION",
    "Loop": "TRIP_LIMIT",
    "Scan": "TRIP_LIMIT",
    "Squeeze": "SQUEEZE",
    "Unsqueeze": "UNSQUEEZE",
    **dict.fromkeys(("Reshape", "Transpose", "Flatten", "DepthToSpace", "SpaceToDepth"), "SHUFFLE"),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), "POOLING"),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"), "REDUCE"),
    **dict.fromkeys(
        ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Gelu", "HardSigmoid", "HardSwish", "Clip", "Softplus"),
        "ACTIVATION",
    ),
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "And", "Or", "Xor", "Equal", "Greater", "Less", "Mod", "Sum"),
        "ELEMENTWISE",
    ),
}
"""Any other standard operator becomes UNARY."""

UNSUPPORTED = ("StringNormalizer", "TfIdfVectorizer", "Unique", "SequenceConstruct", "Optional", "StringSplit")
"""Standard operators that TensorRT has no layers for."""

SHAPE_OPERANDS = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Resize": (3,),
    "Slice": (1, 2),
    "Range": (0, 1, 2),
}
"""Operands whose values decide shapes."""

TYPE_OF_ELEMENT = {
    1: "FLOAT",
    2: "UINT8",
    3: "INT8",
    6: "INT32",
    7: "INT64",
    9: "BOOL",
    10: "HALF",
    11: "FLOAT",
    16: "BF16",
    17: "FP8",
    22: "INT4",
    23: "FP4",
}
"""ONNX's element types; doubles are computed as floats."""
