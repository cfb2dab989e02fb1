"""Rules on the placement and precision of layers."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject, layers_word

_CPU = "CPUExecutionProvider"
_WORTH_A_LOOK = 0.03
_HALVES = ("float16", "bfloat16")
_REDUCED = (*_HALVES, "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4")
_MOSTLY = 0.8


def cpu_fallback(subject: Subject) -> Iterator[Insight]:
    """Report layers on the CPU in a session on another provider: the device waits for them, and tensors are copied.

    ONNX Runtime places nodes without a kernel of the provider on the CPU, and shape computations on purpose
    (https://onnxruntime.ai/docs/execution-providers/, "the nodes that are not supported fall back to CPU").
    """
    if subject.profile.backend != "onnxruntime" or not subject.on_gpu:
        return
    positions = subject.where(lambda layer: layer.provider == _CPU)
    if not positions:
        return
    part = subject.share(positions)
    yield Insight(
        score=part,
        title=f"{layers_word(len(positions))} on the CPU instead of the device",
        evidence=f"{subject.call_types(positions)}: {subject.took(positions)} ({share(part)} of {subject.whole}), "
        f"although the session requests {subject.profile.providers[0]}.",
        next_step=(
            "Run `fix_shapes` and `sanitize` if they compute shapes. Otherwise the provider has no kernel for this "
            "operator, type or version of the opset: replace it, or try another opset."
        ),
        layers=positions,
    )


def single_precision_left(subject: Subject) -> Iterator[Insight]:
    """Report float32 products in a mostly half-precision model that take at least 3 %."""
    halves = _macs(subject, _HALVES)
    singles = _macs(subject, ("float32",))
    if halves <= singles:
        return
    positions = subject.where(lambda layer: layer.precision == "float32" and bool(layer.macs))
    part = subject.share(positions)
    if part < _WORTH_A_LOOK:
        return
    yield Insight(
        score=part / 2,
        title=f"{layers_word(len(positions))} multiplying in float32 in a half-precision model",
        evidence=f"{subject.call_types(positions)}: {subject.took(positions)} ({share(part)} of {subject.whole}) for "
        f"{share(singles / (singles + halves))} of the multiplications. The longest is {subject.call(positions[0])}.",
        next_step=(
            "If `block` of `convert_fp16` keeps them, remove them from it one by one, with `check_accuracy` after "
            "each: often only one of them needs float32."
        ),
        layers=positions,
    )


def half_precision_on_cpu(subject: Subject) -> Iterator[Insight]:
    """Report a half-precision model on the CPU: ONNX Runtime has few such kernels and inserts casts to float32."""
    if subject.on_gpu or subject.profile.backend != "onnxruntime":
        return
    positions = subject.where(
        lambda layer: (
            layer.role == "cast"
            and not layer.onnx_nodes
            and any(tensor.dtype in _HALVES for tensor in (*layer.inputs, *layer.outputs))
        )
    )
    if not positions:
        return
    part = subject.share(positions)
    yield Insight(
        score=part,
        title="Half precision is cast to float32 and back on the CPU",
        evidence=f"ONNX Runtime inserted {layers_word(len(positions))} for casts: {subject.took(positions)} "
        f"({share(part)} of {subject.whole}).",
        next_step="Run the float32 model on the CPU; half precision pays on devices that support it.",
        layers=positions,
    )


def single_precision_on_gpu(subject: Subject) -> Iterator[Insight]:
    """Report a model on a GPU with at least 80 % of its multiplications in float32.

    Tensor cores multiply FP16 at least twice as fast as TF32, and half as many bytes move
    (https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/), so the estimated saving is half of the
    time of these layers. NVIDIA's ResNet-50 exports of one A100 (TREx) take 1.99 ms in float32 and 0.86 ms in float16.
    """
    reduced, singles = _macs(subject, _REDUCED), _macs(subject, ("float32",))
    if not subject.on_gpu or not singles or singles < _MOSTLY * (singles + reduced):
        return
    if any(layer.macs and not layer.precision for layer in subject.layers):
        return  # their type is unknown
    positions = subject.where(lambda layer: layer.precision == "float32" and bool(layer.macs))
    part = subject.share(positions)
    if part < _WORTH_A_LOOK:
        return
    yield Insight(
        score=part / 2,
        title="The GPU multiplies in float32",
        evidence=f"float32 in {layers_word(len(positions))} with {share(singles / (singles + reduced))} of the "
        f"multiplications: {subject.took(positions)} ({share(part)} of {subject.whole}){_on_tensor_cores(subject)}.",
        next_step="Run `convert_fp16` and `check_accuracy`, then profile both in turns.",
        layers=positions,
    )


def _on_tensor_cores(subject: Subject) -> str:
    tf32 = subject.where(lambda layer: layer.unit == "tensor core TF32")
    return f"; {share(subject.share(tf32))} on tensor cores, as TF32" if tf32 else ""


def _macs(subject: Subject, precisions: tuple[str, ...]) -> int:
    return sum(layer.macs or 0 for layer in subject.layers if layer.precision in precisions)
