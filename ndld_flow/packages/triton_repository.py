"""Triton's model repository: a `config.pbtxt` for each variant.

Fields and their meaning are those of Triton's `model_config.proto` and of "Model Configuration" in its user guide: with
`max_batch_size` 0, `dims` are whole shapes; above 0, they lack the first dimension, which Triton adds as the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.text_encoding import CEscape

from ndld_flow.base.text import short_name
from ndld_flow.packages.describe_variant import VariantSource
from ndld_flow.packages.settings import Variant
from ndld_flow.records.package import PackagedTensor, PackageVariant

_TYPES = {
    "bool": "TYPE_BOOL",
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
}
_GPU_ACCELERATORS = {"TensorrtExecutionProvider": "tensorrt"}
_CPU_ACCELERATORS = {"OpenVINOExecutionProvider": "openvino"}
_ON_GPU = ("CUDAExecutionProvider", *_GPU_ACCELERATORS)


@dataclass(frozen=True)
class TritonConfig:
    """The configuration of a variant, or the reason why there is none."""

    text: str = ""
    refusal: str = ""


def describe(variant: PackageVariant, settings: Variant, source: VariantSource) -> TritonConfig:
    """Return the configuration of a variant.

    Raises `RequestError` if a batch is requested that the model, or the engine's profiles, do not accept.
    """
    refusal = _refuse(variant)
    if refusal:
        return TritonConfig(refusal=f"Triton cannot serve it: {refusal}")
    if settings.max_batch_size:
        _check_batch(variant, settings.max_batch_size, source)
    return TritonConfig("".join(f"{line}\n" for line in _lines(variant, settings)))


def _refuse(variant: PackageVariant) -> str:
    if variant.runtime == "tensorrt_rtx":
        return "it has no backend for engines of TensorRT-RTX"
    if variant.kind == "onnx" and variant.provider not in ("", "CPUExecutionProvider", *_ON_GPU, *_CPU_ACCELERATORS):
        return f"its backend for ONNX Runtime has no {variant.provider}"
    for tensor in (*variant.inputs, *variant.outputs):
        if tensor.dtype not in _TYPES:
            return f"it has no type {tensor.dtype} ({short_name(tensor.name, 60)})"
        if tensor.shape is None:
            return f"the number of dimensions of {short_name(tensor.name, 60)} is unknown"
        if 0 in tensor.shape:
            return f"{short_name(tensor.name, 60)} has no elements"
    return ""


def _check_batch(variant: PackageVariant, largest: int, source: VariantSource) -> None:
    for tensor in (*variant.inputs, *variant.outputs):
        if not tensor.shape or isinstance(tensor.shape[0], int):
            shown = "x".join(str(size) if size is not None else "?" for size in tensor.shape or ()) or "scalar"
            raise source.refuse(
                "max_batch_size",
                f"the first dimension of {short_name(tensor.name, 60)} ({shown}) is not dynamic, so it holds no batch "
                "of requests: use 0, or `edit` with `free_batch`",
            )
    build = source.build
    if build is not None:
        limit = max(min(each.max[0] for each in profile.inputs.values() if each.max) for profile in build.profiles)
        if largest > limit:
            raise source.refuse("max_batch_size", f"{largest} is more than the engine's profiles accept, {limit}")


def _lines(variant: PackageVariant, settings: Variant) -> Iterator[str]:
    yield f'backend: "{"onnxruntime" if variant.kind == "onnx" else "tensorrt"}"'
    yield f'default_model_filename: "{_escape(variant.file)}"'
    yield f"max_batch_size: {settings.max_batch_size}"
    for side, tensors in (("input", variant.inputs), ("output", variant.outputs)):
        for tensor in tensors:
            yield from _tensor(side, tensor, batched=settings.max_batch_size > 0)
    kind = _instance_kind(variant)
    if kind:
        yield f"instance_group [ {{ count: {settings.instances} kind: {kind} }} ]"
    elif settings.instances > 1:
        yield f"instance_group [ {{ count: {settings.instances} kind: KIND_AUTO }} ]"
    for where, names in (("gpu", _GPU_ACCELERATORS), ("cpu", _CPU_ACCELERATORS)):
        if variant.kind == "onnx" and variant.provider in names:
            accelerator = f'{where}_execution_accelerator [ {{ name: "{names[variant.provider]}" }} ]'
            yield f"optimization {{ execution_accelerators {{ {accelerator} }} }}"


def _instance_kind(variant: PackageVariant) -> str:
    """Return where instances run; empty if the execution provider is unknown, and Triton chooses."""
    if variant.kind == "engine" or variant.provider in _ON_GPU:
        return "KIND_GPU"
    return "KIND_CPU" if variant.provider else ""


def _tensor(side: str, tensor: PackagedTensor, *, batched: bool) -> Iterator[str]:
    shape: Sequence[int | str | None] = (tensor.shape or ())[1:] if batched else tensor.shape or ()
    yield f"{side} [ {{"
    yield f'  name: "{_escape(tensor.name)}"'
    yield f"  data_type: {_TYPES[tensor.dtype]}"
    if shape:
        yield f"  dims: [ {', '.join(str(size) if isinstance(size, int) else '-1' for size in shape)} ]"
    else:  # Triton has no scalars: a request with one element is passed on without its dimension
        yield "  dims: [ 1 ]"
        yield "  reshape: { shape: [ ] }"
    if tensor.is_shape_tensor:
        yield "  is_shape_tensor: true"
    yield "} ]"


def _escape(name: str) -> str:
    """Return a name inside quotation marks of protobuf's text format; names in models may be hostile."""
    return str(CEscape(name, as_utf8=False))
