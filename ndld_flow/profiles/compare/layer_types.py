"""Normalise layer types of all backends to common kinds."""

from __future__ import annotations

import re
from functools import lru_cache

from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES
from ndld_flow.records.profile import Layer

_FAMILIES = {
    "conv": ("conv", "fusedconv", "nhwcconv", "nhwcfusedconv", "convolution", "caskconvolution", "caskgemmconvolution",
             "cudnnconvolution", "cudadepthwiseconvolution", "fusedconvactconvolution", "groupconvolution",
             "depthwiseconvolution", "cutensorconvolution", "qlinearconv", "convinteger"),
    "deconv": ("convtranspose", "deconvolution", "caskdeconvolution", "caskdeconvolutionv2", "cudnndeconvolution",
               "fusedconvtranspose"),
    "matmul": ("matmul", "gemm", "fusedmatmul", "fusedgemm", "transposematmul", "matrixmultiply", "caskgemm",
               "caskgemmmatrixmultiply", "fullyconnected", "caskfullyconnected", "cublas", "matmulinteger",
               "qlinearmatmul", "qgemm", "matmulnbits", "dynamicquantizematmul", "matmulintegertofloat"),
    "pool": ("maxpool", "averagepool", "globalaveragepool", "globalmaxpool", "pooling", "tiledpooling", "caskpooling",
             "cudnnpooling", "qlinearaveragepool", "qlinearglobalaveragepool"),
    "softmax": ("softmax", "caskosoftmax", "softmaxv2", "cudasoftmax", "casksoftmax", "casksoftmaxv2", "extsoftmax"),
    "normalization": ("layernormalization", "skiplayernormalization", "normalization", "simplifiedlayernormalization",
                      "skipsimplifiedlayernormalization"),
    "resize": ("resize", "upsample", "resizenearest", "resizelinear"),
    "reduce": ("reduce", "reducemean", "reducesum", "reducemax", "reducemin", "cudareduce"),
    "concat": ("concat", "concatenation"),
    "quantize": ("quantize", "quantizelinear", "dynamicquantizelinear"),
    "dequantize": ("dequantize", "dequantizelinear"),
}  # fmt: skip
_FAMILY = {word: family for family, words in _FAMILIES.items() for word in words}


def kind_of(layer: Layer) -> str:
    """Return the kind of a layer: ONNX Runtime's `FusedConv` and TensorRT's `CaskConvolution` are `conv`. For layers
    inserted by the runtime (reformat, cast, copy) the kind is the role.
    """
    is_named = layer.role in ("compute", "control") or layer.type in QUANTIZING_TYPES
    return _kind(layer.type) if is_named else layer.role


@lru_cache(maxsize=4096)
def _kind(type_: str) -> str:
    word = re.sub(r"[^a-z0-9]|_?nchwc$", "", type_.rpartition(".")[2][:100].lower())
    return _FAMILY.get(word) or _FAMILY.get(re.sub(r"v\d+$", "", word), word)
