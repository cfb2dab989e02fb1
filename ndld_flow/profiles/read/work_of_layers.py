"""Estimate the computation and memory traffic of a TensorRT layer from the engine's description."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_tensorrt
from ndld_flow.profiles.read.json_values import objects_in, shape_of, text_of, whole_of
from ndld_flow.profiles.read.multiply_accumulates import Shape, count_macs
from ndld_flow.records.profile import TensorInfo

_MAX_COUNT = 10**18
_GEMMS = ("matrixmultiply", "gemm", "matmul", "matrix_multiply")


@dataclass(frozen=True)
class LayerWork:
    """The work of one execution of a layer."""

    macs: int | None = None
    read_bytes: int = 0
    written_bytes: int = 0
    weight_bytes: int = 0


def work_of(entry: Mapping[str, object], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> LayerWork:
    """Return the work of one layer in an inspector's JSON.

    A NoOp moves no data: its output is its input under another name.
    """
    if text_of(entry.get("LayerType")).lower() == "noop":
        return LayerWork()
    entry = _own_parameters(entry)
    weights = _constant_bytes(entry.get("Weights")) + _constant_bytes(entry.get("Bias")) + _listed_bytes(entry)
    read, written = tensor_bytes(inputs), tensor_bytes(outputs)
    return LayerWork(
        macs=_macs(entry, inputs, outputs),
        read_bytes=read + weights if read else 0,
        written_bytes=written,
        weight_bytes=weights,
    )


def tensor_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Return the size of tensors in bytes; 0 if the shape or type of one is unknown."""
    total = 0
    for tensor in tensors:
        bits, count = bits_of_dtype(tensor.dtype), elements(tensor.shape)
        if bits is None or count is None:
            return 0
        total += (bits * count + 7) // 8
    return total


def elements(shape: Sequence[int]) -> int | None:
    """Return the number of elements of a shape; None for dynamic dimensions and implausible sizes."""
    if any(dim < 0 for dim in shape):
        return None
    count = math.prod(shape)
    return count if count <= _MAX_COUNT else None


def _constant_bytes(constant: object) -> int:
    """Return the size of a constant: `{"Type": "Half", "Count": 9408}` -> 18816."""
    if not isinstance(constant, dict):
        return 0
    bits = bits_of_dtype(dtype_of_tensorrt(text_of(constant.get("Type"))))
    count = whole_of(constant.get("Count"))
    return bits * count // 8 if bits is not None and count is not None and count > 0 else 0


def _listed_bytes(entry: Mapping[str, object]) -> int:
    """Return the size of the constants that TensorRT-RTX lists with dimensions and type."""
    return sum(
        tensor_bytes([TensorInfo(name="", dtype=dtype_of_tensorrt(text_of(one.get("Datatype"))), shape=shape)])
        for one in objects_in(entry.get("Constants"))
        if (shape := shape_of(one.get("Dimensions"))) is not None
    )


def _own_parameters(entry: Mapping[str, object]) -> Mapping[str, object]:
    """Return the parameters of the convolution; one fused with its pooling has `ConvKernel` instead of `Kernel`, and so
    on.
    """
    if "ConvKernel" not in entry:
        return entry
    own = {key.removeprefix("Conv"): value for key, value in entry.items() if key.startswith("Conv")}
    return {**entry, **own, "IsPooled": True}


def _macs(entry: Mapping[str, object], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> int | None:
    """Return the count of `count_macs` for the corresponding ONNX operator."""
    if not inputs or not outputs or any(elements(tensor.shape) is None for tensor in (*inputs, *outputs)):
        return None
    parameters, kind = text_of(entry.get("ParameterType")).lower(), text_of(entry.get("LayerType")).lower()
    shapes = [tensor.shape for tensor in inputs]
    counted = None
    if parameters in ("convolution", "deconvolution"):
        counted = _convolution(entry, shapes[0], outputs[0].shape, parameters == "deconvolution")
    elif {parameters, kind} & set(_GEMMS) and len(shapes) > 1:
        turned = int(text_of(entry.get("MatrixOpA")).upper().endswith("TRANSPOSE"))
        counted = count_macs("FusedMatMul", shapes, [outputs[0].shape], {"transA": turned})
    return counted if counted is not None and counted <= _MAX_COUNT else None


def _convolution(entry: Mapping[str, object], source: Shape, target: Shape, is_transposed: bool) -> int | None:
    kernel, groups = shape_of(entry.get("Kernel")), whole_of(entry.get("Groups")) or 1
    maps = whole_of(entry.get("OutMaps"))
    if kernel is None or maps is None or groups < 1 or len(source) < 2:
        return None
    if is_transposed:
        weights = (source[1], maps // groups, *kernel)
        return count_macs("ConvTranspose", [source, weights], [target], {})
    weights = (maps, source[1] // groups, *kernel)
    written = _before_pooling(entry, source, weights) if "IsPooled" in entry else target
    return count_macs("Conv", [source, weights], [written], {})


def _before_pooling(entry: Mapping[str, object], source: Shape, weights: Shape) -> Shape | None:
    """Return the output shape of the convolution by ONNX's formula."""
    told = [shape_of(entry.get(key)) or () for key in ("Stride", "Dilation", "PrePadding", "PostPadding")]
    sizes, kernel = source[2:], weights[2:]
    if any(len(one) != len(sizes) for one in (*told, kernel)) or any(step < 1 for step in told[0]):
        return None
    steps = zip(sizes, kernel, *told, strict=True)
    return (
        source[0],
        weights[0],
        *(
            max(0, (size + before + after - dilation * (width - 1) - 1) // stride + 1)
            for size, width, stride, dilation, before, after in steps
        ),
    )
