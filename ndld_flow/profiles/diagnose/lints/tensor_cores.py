"""Rules on tensor cores: products that do not run on them, and channels that they pad."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import counted, share
from ndld_flow.profiles.diagnose.subject import Insight, LintSubject, is_product
from ndld_flow.records.layer_arithmetic import TENSOR_CORE
from ndld_flow.records.profile import Layer, TensorInfo

_NOTABLE_ON_CUDA_CORES = 0.03
_NOTABLE_PADDING = 0.02
_MUCH = 0.1
"""Minimum share of a layer's multiplications, without times."""
_MOST_STEPS = 200
_MULTIPLES = {"float32": 4, "float16": 8, "bfloat16": 8, "int8": 16, "uint8": 16, "float8_e4m3fn": 16}
"""https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html, "Optimizing for Tensor Cores":
for dense products. float32 is computed as TF32."""
_VECTOR = re.compile(r"(?:hwc|chw)(\d+)\Z")
_IMAGE = 4
"""Up to this many input channels belong to an image; they are not a design choice, and libraries have special kernels.
"""


def channel_alignment(subject: LintSubject) -> Iterator[Insight]:
    """Report padding that takes at least 2 % of the latency; without times, 10 % of a layer's multiplications.

    Ignores channel counts that are not a design choice: channels of images, and outputs that no other product reads,
    such as the classes of a classifier. Grouped convolutions follow other rules.
    """
    padded = {index: channels for index in range(len(subject.layers)) if (channels := _padded(subject, index))}
    saved = sum(channels.wasted * subject.share([index]) for index, channels in padded.items())
    if not padded or (subject.is_timed and saved < _NOTABLE_PADDING):
        return
    positions = tuple(sorted(padded, key=lambda index: -padded[index].wasted * (subject.share([index]) or 1.0)))
    worst = padded[positions[0]]
    yield Insight(
        score=saved,
        title=f"{counted(len(positions), 'layer')} with channels that tensor cores pad"
        + (f": {share(saved)} of {subject.whole} multiplies zeros" if subject.is_timed else ""),
        evidence=f"{subject.call_nodes(positions)}: {subject.took(positions)}. In {subject.call_nodes(positions[:1])} "
        f"{share(worst.wasted)} of the multiplications are on padding: it has {' and '.join(worst.odd)}.",
        next_step=(
            "Channels up to the next multiple cost nothing extra: use them when the model is redesigned or pruned, "
            "or reduce to the multiple below."
        ),
        layers=positions,
    )


def _padded(subject: LintSubject, index: int) -> Channels | None:
    layer = subject.layers[index]
    known_off = layer.unit not in ("", TENSOR_CORE) and not layer.on_tensor_cores
    channels = channels_of(layer) if is_product(layer) and not known_off else None
    # In a product of two activations the channels are sequence lengths.
    if channels is None or not layer.weights_dtype or (layer.precision == "float32" and not layer.on_tensor_cores):
        return None
    free = Channels(
        channels.inputs,
        channels.outputs,
        1 if channels.is_image else channels.input_multiple,
        channels.output_multiple if _feeds_product(subject, index) else 1,
    )
    return free if free.wasted > (0.0 if subject.is_timed else _MUCH) else None


def _feeds_product(subject: LintSubject, index: int) -> bool:
    """Return whether another product reads this one's output, directly or through layers that do not multiply."""
    waiting, seen = [index], {index}
    while waiting and len(seen) < _MOST_STEPS:
        layer = subject.layers[waiting.pop()]
        readers = {reader for tensor in layer.outputs for reader in subject.readers.get(tensor.name, ())} - seen
        if any(is_product(subject.layers[reader]) for reader in readers):
            return True
        seen |= readers
        waiting += readers
    return False


def off_tensor_cores(subject: LintSubject) -> Iterator[Insight]:
    """Report products with kernels known to use CUDA cores that take at least 3 %, while others use tensor cores.

    The estimated saving is half of their time. Yields nothing if no layer runs on a tensor core, because the device may
    have none. Depthwise convolutions, which multiply no matrices, are ignored.
    """
    layers = subject.layers
    if not any(layer.on_tensor_cores for layer in layers):
        return
    positions = subject.longest_first(
        index
        for index, layer in enumerate(layers)
        if is_product(layer)
        and layer.unit not in ("", "none")
        and not layer.on_tensor_cores
        and not _is_depthwise(layer)
    )
    part = subject.share(positions)
    if not positions or (subject.is_timed and part < _NOTABLE_ON_CUDA_CORES):
        return
    longest = layers[positions[0]]
    channels = channels_of(longest)
    odd = f", with {' and '.join(channels.odd)}" if channels is not None and channels.odd else ""
    tactic = f" by {longest.tactic[:60]}" if longest.tactic else ""
    units = " and ".join(dict.fromkeys(layers[index].unit for index in positions))
    yield Insight(
        score=part / 2,
        title=f"{counted(len(positions), 'layer')} multiplying on CUDA cores instead of tensor cores ({units})"
        + (f": {share(part)} of {subject.whole}" if subject.is_timed else ""),
        evidence=f"{subject.call_nodes(positions)}: {subject.took(positions)}. The longest computes "
        f"{longest.precision or 'in an unknown type'}{tactic}{odd}.",
        next_step=_advice([layers[index] for index in positions]),
        layers=positions,
    )


def _advice(layers: Sequence[Layer]) -> str:
    advice = []
    if any(layer.unit == "INT8 DP4A" and (read := channels_of(layer)) and read.is_image for layer in layers):
        advice.append(
            "A first layer with the few channels of an image gains little from INT8: leave it out with `exclude.nodes` "
            "of `quantize`, so that it computes in FP16, and profile both in turns."
        )
    if any(layer.unit == "FP32 FMA" for layer in layers):
        advice.append(
            "FP16 kernels on tensor cores pad small channel counts: run `convert_fp16`, or list fewer nodes in its "
            "`block`, and `check_accuracy`."
        )
    if not advice:
        advice.append("Tensor cores can run such layers if channels are multiples of 8 (FP16), 16 or 32 (INT8).")
    return " ".join(advice)


@dataclass(frozen=True)
class Channels:
    """Channels of a product, and the padded counts that are computed."""

    inputs: int
    """Channels summed over."""
    outputs: int
    input_multiple: int
    output_multiple: int

    @property
    def wasted(self) -> float:
        """Share of the multiplications spent on padding, 0 to 1."""
        whole = _up(self.inputs, self.input_multiple) * _up(self.outputs, self.output_multiple)
        return 1 - self.inputs * self.outputs / whole

    @property
    def is_image(self) -> bool:
        return self.inputs <= _IMAGE

    @property
    def odd(self) -> tuple[str, ...]:
        """`30 output channels (multiples of 8)`, for each misaligned side."""
        sides = (("input", self.inputs, self.input_multiple), ("output", self.outputs, self.output_multiple))
        return tuple(f"{size} {word} channels (multiples of {step})" for word, size, step in sides if size % step)


def channels_of(layer: Layer) -> Channels | None:
    """Return the channels of a dense product; None for grouped ones, and for unknown shapes or precision."""
    step = _MULTIPLES.get(layer.precision)
    if step is None or not layer.inputs or not layer.outputs:
        return None
    read, written = layer.inputs[0], layer.outputs[0]
    is_convolution = len(read.shape) > 2 and (layer.groups is not None or "conv" in layer.type.lower())
    if is_convolution and layer.groups != 1:
        return None
    axis = 1 if is_convolution else -1
    if min(len(read.shape), len(written.shape)) < 2 or read.shape[axis] < 1 or written.shape[axis] < 1:
        return None
    return Channels(read.shape[axis], written.shape[axis], _step(read, step), _step(written, step))


def _is_depthwise(layer: Layer) -> bool:
    """Return True if each filter reads one channel, so that there is no matrix product for a tensor core."""
    channels = layer.inputs[0].shape[1] if layer.inputs and len(layer.inputs[0].shape) > 1 else 0
    return layer.groups is not None and layer.groups > 1 and layer.groups == channels


def _step(tensor: TensorInfo, step: int) -> int:
    """Return the multiple that applies; a vectorized format pads to its own width."""
    vector = _VECTOR.match(tensor.format)
    return max(step, int(vector[1])) if vector and int(vector[1]) <= 64 else step


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
