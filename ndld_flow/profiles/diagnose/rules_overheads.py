"""Rules on overhead: reformats, casts, copies, control flow, transfers."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import milliseconds, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.lints.type_conversions import changes_type
from ndld_flow.profiles.diagnose.subject import Subject, layers_word
from ndld_flow.records.profile import LayerRole

_WORTH_A_LOOK = 0.03
"""Minimum share of the latency that justifies a change of the model."""
_REORDERS = ("ReorderInput", "ReorderOutput")


def reformats(subject: Subject) -> Iterator[Insight]:
    """Report layers that change a tensor's layout, but not its type, and take at least 3 %.

    ONNX Runtime's CPU provider computes convolutions in blocks of channels (NCHWc) and reorders if a neighbour has no
    such kernel; TensorRT reformats where neighbours differ in precision or format
    (https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html, "layout optimizations";
    https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/optimization.html). The estimated saving is half of
    their time, as some remain. Giving up the blocked layout does not help: without it PP-OCRv4's models need a third
    more CPU time (`optimization: extended`, tests/benchmarks/bench_diagnosis.py).
    """
    positions = tuple(place for place in _in_role(subject, "reformat") if not changes_type(subject.layers[place]))
    part = subject.share(positions)
    if part < _WORTH_A_LOOK:
        return
    if any(subject.layers[position].type in _REORDERS for position in positions):
        next_step = (
            "They occur where a layer between convolutions has no kernel for blocks of channels: run `sanitize` with "
            "`fuse: true`, and export activations as Relu or as one operator. `optimization: extended` disables the "
            "blocks, which is usually slower."
        )
    else:
        next_step = (
            "Look at the neighbours of the longest reformats: their kernels use different formats. At inputs and "
            "outputs the caller can use the engine's format (`advanced.io_formats` of `build_engine`)."
        )
    yield Insight(
        score=part / 2,
        title=f"Changing layouts takes {share(part)} of {subject.whole}",
        evidence=f"{subject.call_types(positions)}: {subject.took(positions)}. The longest is "
        f"{subject.call(positions[0])}.",
        next_step=next_step,
        layers=positions,
    )


def casts(subject: Subject) -> Iterator[Insight]:
    """Report casts that take at least 3 %: precision changes too often."""
    positions = _in_role(subject, "cast")
    part = subject.share(positions)
    if part < _WORTH_A_LOOK:
        return
    put_in = sum(1 for position in positions if not subject.layers[position].onnx_nodes)
    yield Insight(
        score=part * 0.8,
        title=f"Casts take {share(part)} of {subject.whole}",
        evidence=f"{layers_word(len(positions))}, {put_in} of them not in the model: "
        f"{subject.took(positions)}. The longest is {subject.call(positions[0])}.",
        next_step=(
            "Give neighbours the same precision: add layers between two blocked layers to `block` of "
            "`convert_fp16`, or remove single layers from it. Casts that the runtime inserts show that the provider "
            "has no kernel for that precision."
        ),
        layers=positions,
    )


def copies(subject: Subject) -> Iterator[Insight]:
    """Report copies of tensors between host and device within the model, of any size.

    ONNX Runtime inserts a copy between neighbours on different devices, and each waits for the device
    (https://onnxruntime.ai/docs/performance/tune-performance/troubleshooting.html).
    """
    positions = _in_role(subject, "copy")
    if not positions:
        return
    part = subject.share(positions)
    yield Insight(
        score=part,
        title=f"{layers_word(len(positions))} copying tensors between host and device",
        evidence=f"{subject.call_types(positions)}: {subject.took(positions)} ({share(part)} of {subject.whole}).",
        next_step=(
            "Find the adjacent layers on the CPU: replace their operators with supported ones, or run "
            "`fix_shapes` and `sanitize` if they only compute shapes."
        ),
        layers=positions,
    )


def control_flow_on_gpu(subject: Subject) -> Iterator[Insight]:
    """Report If, Loop or Scan in a session on a GPU: the condition is read on the host, so the host waits for the
    device in every iteration, and CUDA graphs cannot be used
    (https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider .html, "Using CUDA Graphs").
    """
    positions = _in_role(subject, "control")
    if not positions or not subject.on_gpu:
        return
    part = subject.share(positions)
    yield Insight(
        score=part,
        title=f"Control flow on a GPU: {subject.call_types(positions)}",
        evidence=f"They take {subject.took(positions)} without their bodies ({share(part)} of {subject.whole}).",
        next_step=(
            "Make the input that decides the branch a constant and run `sanitize`, which resolves the branch "
            "statically; unroll loops of a known length when exporting."
        ),
        layers=positions,
    )


def _in_role(subject: Subject, role: LayerRole) -> tuple[int, ...]:
    """Return the layers of a role that take time; TensorRT lists some that only rename a tensor."""
    found = (position for position, layer in enumerate(subject.layers) if layer.role == role)
    return subject.longest_first(position for position in found if subject.medians_ms[position] > 0)


_TRANSFER_WORTH_A_LOOK = 0.1


def transfers(subject: Subject) -> Iterator[Insight]:
    """Report copies of inputs and outputs that take at least a tenth of the latency.

    Copies from pinned memory are faster and can overlap with computing
    (https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/, "Data Transfer Between Host and Device"). The estimated
    saving of keeping data on the device is nine tenths of the time that does not overlap.
    """
    to_device = subject.lane_ms(lambda run: run.h2d_ms)
    to_host = subject.lane_ms(lambda run: run.d2h_ms)
    if to_device is None or to_host is None or not subject.latency_ms:
        return
    part = (to_device + to_host) / subject.latency_with_copies_ms
    if part < _TRANSFER_WORTH_A_LOOK:
        return
    whole = "the latency" if subject.latency_has_copies else "a pass with its copies"
    yield Insight(
        score=min(1.0, part) * 0.9,
        title=f"Copies between host and device take {share(part)} of {whole}",
        evidence=f"To the device {milliseconds(to_device)}, back {milliseconds(to_host)}, latency "
        f"{milliseconds(subject.latency_ms)} (medians).",
        next_step=(
            "Keep inputs and outputs on the device (IO binding) if adjacent stages run there. Otherwise use pinned "
            "memory, overlap copies with the previous pass on a second stream, and send bytes instead of floats."
        ),
    )
