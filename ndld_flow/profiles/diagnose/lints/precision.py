"""Rules on precisions: quantization that costs time, and conversions of types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from ndld_flow.base.quantities import counted, share
from ndld_flow.base.text import first_of
from ndld_flow.profiles.diagnose.subject import Insight, LintSubject, changes_type, is_product
from ndld_flow.records.profile import Layer, TensorInfo

_QUANTIZED = ("int8", "uint8", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
_FLOATS = ("float32", "float16", "bfloat16")
_SHORT_NAMES = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16", "int8": "INT8", "float8_e4m3fn": "FP8"}
_NOTABLE_QUANTIZING, _NOTABLE_CONVERTING = 0.03, 0.02
_TAKES_8_BITS = re.compile(r"pool|concat|resize|shuffle|slice|copy|element_?wise|point_?wise", re.IGNORECASE)
"""Types of layers that TensorRT runs in INT8 when their inputs are quantized. Softmax, normalization and unknown types
are not.
"""


def type_conversions(subject: LintSubject) -> Iterator[Insight]:
    """Report reformats that change the element type and take at least 2 % of the latency."""
    positions = subject.longest_first(
        index for index, layer in enumerate(subject.layers) if layer.purpose == "reformat" and changes_type(layer)
    )
    part = subject.share(positions)
    if not positions or part < _NOTABLE_CONVERTING:
        return
    outer = [index for index in positions if subject.is_at_end(index)]
    inner = [index for index in positions if index not in outer]
    yield Insight(
        score=part,
        title=f"{counted(len(positions), 'layer')} that only convert types: {share(part)} of {subject.whole}",
        evidence=f"{first_of([_way(subject, index) for index in positions], 3)}: {subject.took(positions)}.",
        next_step=_advise_on_types(outer, inner),
        layers=positions,
    )


def _way(subject: LintSubject, index: int) -> str:
    """Return `FP32 to FP16 after TiledPooling MaxPool_12`; names the reader if no layer wrote the tensor."""
    layer = subject.layers[index]
    types = f"{_short_dtype(layer.inputs[0].dtype)} to {_short_dtype(layer.outputs[0].dtype)}"
    maker = subject.makers.get(layer.inputs[0].name)
    if maker is not None:
        return f"{types} after {subject.call(maker)}"
    readers = subject.readers.get(layer.outputs[0].name, ())
    return f"{types} of an input, for {subject.call(readers[0])}" if readers else types


def _advise_on_types(outer: Sequence[int], inner: Sequence[int]) -> str:
    advice = []
    if outer:
        advice.append(
            "At inputs and outputs: let the caller use the engine's type. `convert_fp16` with `keep_io: false` "
            "makes the model's inputs and outputs FP16; a weakly typed engine (TensorRT before 11) takes a `dtype` in "
            "`advanced.io_formats` of `build_engine`."
        )
    if inner:
        advice.append(
            "Between layers: the two sides compute in different precisions. Give both the same: see `block` of "
            "`convert_fp16`, `op_types` and `exclude` of `quantize`, and `constrain_precision`."
        )
    return " ".join(advice)


def unfused_quantization(subject: LintSubject) -> Iterator[Insight]:
    """Report unfused Q/DQ layers that take at least 3 % of the latency; without times, any.

    Those caused by a floating-point residual are part of `unquantized_residual`.
    """
    left = _not_of_residuals(subject)
    part = subject.share(left)
    if not left or (subject.is_timed and part < _NOTABLE_QUANTIZING):
        return
    at_ends = [index for index in left if subject.is_at_end(index)]
    inside = [index for index in left if index not in at_ends]
    yield Insight(
        score=part / 2,
        title=f"{counted(len(left), 'layer')} that only quantize or dequantize"
        + (f" take {share(part)} of {subject.whole}" if subject.is_timed else ""),
        evidence=f"{subject.call_nodes(left)}: {subject.took(left)}. " + _where(subject, at_ends, inside),
        next_step=_advise_to_fuse(subject, at_ends, inside),
        layers=left,
    )


def _not_of_residuals(subject: LintSubject) -> tuple[int, ...]:
    sums = _float_sums(subject)
    between = {tensor.name for tensor in sums.values()}
    between |= {tensor.name for index in sums for tensor in subject.layers[index].outputs}
    return subject.longest_first(
        index
        for index, layer in enumerate(subject.layers)
        if layer.role == "quantize"
        and layer.type != "DynamicQuantizeLinear"  # `mode: dynamic` needs one at each product
        and not any(tensor.name in between for tensor in layer.inputs if tensor.name)
    )


def _where(subject: LintSubject, at_ends: Sequence[int], inside: Sequence[int]) -> str:
    places = []
    if at_ends:
        places.append(f"{len(at_ends)} at the model's inputs and outputs ({subject.call_nodes(at_ends, 2)})")
    if inside:
        places.append(f"{len(inside)} between layers, such as {_neighbours(subject, inside[0])}")
    return "; ".join(places) + "."


def _neighbours(subject: LintSubject, index: int) -> str:
    """Return `after TiledPooling MaxPool_12 and before CaskConvolution conv`, if tensors have names."""
    layer = subject.layers[index]
    before = [subject.makers[tensor.name] for tensor in layer.inputs if tensor.name in subject.makers]
    after = [reader for tensor in layer.outputs for reader in subject.readers.get(tensor.name, ())]
    neighbours = [f"after {subject.call(before[0])}"] if before else []
    neighbours += [f"before {subject.call(after[0])}"] if after else []
    return " and ".join(neighbours) or subject.call(index)


def _advise_to_fuse(subject: LintSubject, at_ends: Sequence[int], inside: Sequence[int]) -> str:
    if any(subject.layers[index].provider.startswith("CUDA") for index in (*at_ends, *inside)):
        return (
            "ONNX Runtime's CUDA provider has few integer operators: run the model there as it was before "
            "`quantize`, or build an engine from the quantized one (`build_engine`)."
        )
    advice = []
    if inside:
        advice.append(
            "Between layers, each is a boundary between 8 bits and floating point: add the operators of the neighbours "
            "that compute in floating point to `op_types` of `quantize`, or exclude small groups of 8-bit layers with "
            "`exclude` or `min_intensity`."
        )
    if at_ends and any(_leads_to_product(subject, index) for index in at_ends):
        advice.append(
            "At an input: a first layer with few channels often gains nothing from INT8; leave it out with "
            "`exclude.nodes` of `quantize` and profile both in turns."
        )
    return (
        " ".join(advice)
        or "At inputs and outputs they follow from the model's types: only other types there remove them."
    )


def _leads_to_product(subject: LintSubject, index: int) -> bool:
    written = [tensor.name for tensor in subject.layers[index].outputs if tensor.name]
    readers = (subject.layers[reader] for name in written for reader in subject.readers.get(name, ()))
    return any(is_product(layer) or bool(layer.macs) for layer in readers)


def quantized_float_output(subject: LintSubject) -> Iterator[Insight]:
    """Report quantized products whose floating-point output is read by a layer that could read 8 bits.

    Ignores cases where floating point is right or another finding covers the cause: outputs of the engine, a residual
    addition, readers that quantize immediately, and readers without a kernel for 8 bits. The estimated saving is half
    of the time of the readers that do not multiply: they move four or two times the bytes.
    """
    sums = _float_sums(subject)
    residuals = {tensor.name for tensor in sums.values()}
    readers_of_floats: dict[int, tuple[int, ...]] = {}
    for index, layer in enumerate(subject.layers):
        written = layer.outputs[0] if layer.outputs else None
        if index in sums or not _is_quantized_product(layer) or written is None or written.dtype not in _FLOATS:
            continue
        if not written.name or written.name in subject.ends or written.name in residuals:
            continue
        readers = subject.readers.get(written.name, ())
        if readers and all(_could_read_8_bits(subject.layers[reader]) for reader in readers):
            readers_of_floats[index] = readers
    if not readers_of_floats:
        return
    positions = subject.longest_first(readers_of_floats)
    readers = subject.longest_first({reader for all_ in readers_of_floats.values() for reader in all_})
    types = " and ".join(dict.fromkeys(_short_dtype(subject.layers[index].outputs[0].dtype) for index in positions))
    plain = [index for index in readers if not is_product(subject.layers[index])]
    yield Insight(
        score=subject.share(plain) / 2,
        title=f"{counted(len(positions), 'layer')} computing in 8 bits and writing {types}",
        evidence=f"{subject.call_nodes(positions)}: {subject.took(positions)}"
        + (f" ({share(subject.share(positions))} of {subject.whole})" if subject.is_timed else "")
        + f". {subject.call_types(readers)} ({subject.call_nodes(readers)}) read that: {subject.took(readers)}.",
        next_step=_advise_to_quantize(plain, readers),
        layers=(*positions, *readers),
    )


def _could_read_8_bits(layer: Layer) -> bool:
    if any(tensor.dtype in _QUANTIZED for tensor in layer.outputs) or layer.role != "compute":
        return False  # it quantizes immediately
    return is_product(layer) or bool(_TAKES_8_BITS.search(layer.type))


def _advise_to_quantize(plain: list[int], readers: tuple[int, ...]) -> str:
    if not plain:
        return (
            "The layers that read it are not quantized. Quantize them too, or leave both sides in floating point: see "
            "`exclude` and `min_intensity` of `quantize`, and run `check_accuracy` afterwards."
        )
    return (
        "Quantize the inputs of these readers: add their operators (such as MaxPool) to `op_types` of `quantize` "
        "in addition to Conv, Gemm and MatMul. A QAT model with Q/DQ needs quantizers there. If everything after "
        "them is floating point on purpose, ignore this."
    )


def unquantized_residual(subject: LintSubject) -> Iterator[Insight]:
    """Report quantized convolutions that add a floating-point residual and so cannot write 8 bits.

    "The precision of the first input to the element-wise addition layer determines the fusion's output precision": with
    a floating-point residual the fused convolution writes floating point, and the QuantizeLinear after it remains a
    separate layer (https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html,
    "Q/DQ Layer-Placement Recommendations": quantize the residual input in skip connections). The time of those layers
    is the estimated saving.
    """
    sums = _float_sums(subject)
    if not sums:
        return
    added = subject.longest_first(sums)
    between = {tensor.name for tensor in sums.values()}
    between |= {tensor.name for index in sums for tensor in subject.layers[index].outputs}
    after = subject.longest_first(
        index
        for index, layer in enumerate(subject.layers)
        if layer.role == "quantize" and any(tensor.name in between for tensor in layer.inputs)
    )
    types = " and ".join(dict.fromkeys(_short_dtype(sums[index].dtype) for index in added))
    again = f" After them, {counted(len(after), 'layer')} only to quantize: {subject.took(after)}." if after else ""
    part = subject.share(after)
    yield Insight(
        score=part,
        title=f"{counted(len(added), 'layer')} adding an unquantized residual in {types} to a quantized convolution"
        + (f": quantizing again takes {share(part)} of {subject.whole}" if part else ""),
        evidence=f"{subject.call_nodes(added)}: {subject.took(added)}.{again}",
        next_step=(
            "Quantize the residual input of each Add: add `Add` to `op_types` of `quantize` (Conv, Gemm, MatMul, Add), "
            "or use its `modelopt` engine. A QAT model with Q/DQ needs a quantizer there when it is "
            "exported. Run `check_accuracy` afterwards."
        ),
        layers=(*added, *after),
    )


def _is_quantized_product(layer: Layer) -> bool:
    """Return True for a product of values with 8 bits or fewer."""
    return is_product(layer) and layer.precision in _QUANTIZED


def _float_sums(subject: LintSubject) -> dict[int, TensorInfo]:
    """Return the layers that add a floating-point tensor to what a quantized convolution computes, with that tensor.

    TensorRT fuses the addition into the convolution, which then has a second input; Myelin fuses it into the kernel
    that rescales the product. In a sum of two products no input could be quantized. Only convolutions count: residuals
    of transformers feed normalizations and stay in floating point.
    """
    residuals: dict[int, TensorInfo] = {}
    for index, layer in enumerate(subject.layers):
        if _is_quantized_product(layer) and _is_convolution(layer):
            written = layer.outputs[0].shape if layer.outputs else ()
            residual = next(
                (tensor for tensor in layer.inputs[1:] if _is_float(tensor) and tensor.shape == written), None
            )
        elif layer.role == "compute" and any("add" in node.lower() for node in layer.onnx_nodes):
            residual = _added_to_product(subject, layer)
        else:
            residual = None
        if residual is not None:
            residuals[index] = residual
    return residuals


def _is_convolution(layer: Layer) -> bool:
    return bool(re.search(r"conv|correlation", layer.type, re.IGNORECASE)) or "Corr" in layer.name


def _is_float(tensor: TensorInfo) -> bool:
    return tensor.dtype in _FLOATS and prod(tensor.shape) != 1


def _added_to_product(subject: LintSubject, layer: Layer) -> TensorInfo | None:
    """Return the tensor that is added to the output of a quantized product, and has the same shape."""
    products: list[TensorInfo] = []
    others: list[TensorInfo] = []
    for tensor in filter(_is_float, layer.inputs):
        maker = subject.makers.get(tensor.name)
        is_written_so = maker is not None and _is_quantized_product(subject.layers[maker])
        (products if is_written_so else others).append(tensor)
    makers = [subject.layers[subject.makers[tensor.name]] for tensor in products]
    shapes = {tensor.shape for tensor, maker in zip(products, makers, strict=True) if _is_convolution(maker)}
    return next((tensor for tensor in others if tensor.shape in shapes), None)


def _short_dtype(dtype: str) -> str:
    """Return the usual name of a type, such as `FP16`."""
    return _SHORT_NAMES.get(dtype, dtype)
