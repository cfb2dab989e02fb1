"""Rules on layers that reach little of what the device can do, or need more of it than their work asks for."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ndld_flow.base.quantities import share, three_digits
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject, layers_word
from ndld_flow.records.profile import Layer

_LITTLE = 0.25
"""Of the nearer roof. A good kernel reaches half of it or more."""
_WORTH_A_LOOK = 0.05
_ALIGNED = 8
"""Channels and widths that tensor cores and vector units take as a whole
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/, "Requirements to use tensor
cores")."""
_ELEMENTWISE = frozenset(
    (
        "Abs",
        "Add",
        "And",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Less",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
        "Pow",
        "QuickGelu",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Sum",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Where",
    )
)
_LONG_CHAIN = 2


def far_from_roof(subject: Subject) -> Iterator[Insight]:
    """Layers that multiply reach less than a quarter of their roof, and take 5 % or more together.

    Half of what lies above the roof is taken as the saving.
    """
    positions = subject.longest_first(
        position
        for position, roofline in enumerate(subject.rooflines)
        if roofline is not None and subject.layers[position].macs and roofline.reached < _LITTLE
    )
    part = subject.share(positions)
    if part < _WORTH_A_LOOK:
        return
    best_ms = sum(roofline.best_ms for position in positions if (roofline := subject.rooflines[position]) is not None)
    layer, roofline = subject.layers[positions[0]], subject.rooflines[positions[0]]
    assert roofline is not None
    reasons = _reasons(layer)
    yield Insight(
        score=part * max(0.0, 1 - best_ms / subject.sum_ms(positions)) / 2,
        title=f"{layers_word(len(positions))} reaching less than {share(_LITTLE)} of what the device can do",
        evidence=f"{subject.call_types(positions)}: {subject.took(positions)} ({share(part)} of {subject.whole}). The "
        f"longest, {subject.call(positions[0])}, does {three_digits(roofline.macs_per_s / 1e9)} GMAC/s, "
        f"{share(roofline.reached)} of its {roofline.limit} roof{reasons and f': {reasons}'}.",
        next_step=(
            "Larger batches or inputs give such layers more to do at once. Channels and widths that are multiples of "
            f"{_ALIGNED}, and dense instead of grouped convolutions, let quicker kernels be used."
        ),
        layers=positions,
    )


def padded_channels(subject: Subject) -> Iterator[Insight]:
    """Convolutions in blocks of channels compute channels that the model does not have, 5 % of the latency or more.

    ONNX Runtime fills up to whole blocks of 8 or 16 channels (onnxruntime/core/optimizer/nchwc_transformer.cc).
    """
    wasted = {
        position: 1 - layer.macs / computed
        for position, layer in enumerate(subject.layers)
        if layer.macs and layer.tactic.startswith("nchwc.Conv") and (computed := _computed_macs(layer)) > layer.macs
    }
    positions = tuple(sorted(wasted, key=lambda position: -wasted[position] * subject.medians_ms[position]))
    saved = sum(wasted[position] * subject.share([position]) for position in positions)
    if saved < _WORTH_A_LOOK:
        return
    filters, outputs = subject.layers[positions[0]].inputs[1].shape, subject.layers[positions[0]].outputs
    yield Insight(
        score=saved,
        title=f"Channels are filled up to whole blocks: {share(saved)} of {subject.whole} computes nothing",
        evidence=f"In {layers_word(len(positions))} on average {share(sum(wasted.values()) / len(wasted))} of the "
        f"multiplications are for nothing; {subject.call(positions[0])} computes {outputs[0].shape[1]} channels with "
        f"filters {'x'.join(map(str, filters))} and wastes {share(wasted[positions[0]])}.",
        next_step=(
            "Channels up to the next whole block cost nothing more: use them when the model is trained again, or go "
            "down to the block below."
        ),
        layers=positions,
    )


def elementwise_chains(subject: Subject) -> Iterator[Insight]:
    """Elementwise layers that follow each other with nothing between take 5 % or more.

    Each reads and writes all its data; fused into one, or into the layer before, a chain of n would move them once
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/optimization.html, "pointwise fusion").
    """
    chains = [chain for chain in _chains(subject) if len(chain) >= _LONG_CHAIN]
    saved = sum(subject.share(chain) - subject.share(subject.longest_first(chain)[:1]) for chain in chains)
    if saved < _WORTH_A_LOOK:
        return
    positions = subject.longest_first(position for chain in chains for position in chain)
    longest = max(chains, key=subject.sum_ms)
    types = ", ".join(subject.layers[position].type for position in longest[:6])
    yield Insight(
        score=saved,
        title=f"Elementwise layers one after another take {share(subject.share(positions))} of {subject.whole}",
        evidence=f"{len(chains)} chains of {layers_word(len(positions))} ({subject.call_types(positions)}): "
        f"{subject.took(positions)}. The longest ends in {subject.call(longest[-1])}: {types}. Each of its layers "
        f"moves {_moved(subject.layers[longest[-1]])}.",
        next_step=(
            "Run `sanitize` to fold constant factors into the convolution before, and export activations as one "
            "operator (HardSwish since opset 14, Mish 18, Gelu 20, Swish 24). A runtime that fuses pointwise layers "
            "(TensorRT) saves the rest."
        ),
        layers=positions,
    )


def _moved(layer: Layer) -> str:
    return f"{three_digits((layer.read_bytes + layer.written_bytes) / 2**20)} MiB"


def _chains(subject: Subject) -> list[list[int]]:
    """Elementwise layers of which each alone reads what the one before writes."""
    chains: list[list[int]] = []
    ends: dict[str, list[int]] = {}
    for position, layer in enumerate(subject.layers):
        if layer.type not in _ELEMENTWISE or len(layer.outputs) != 1:
            continue
        before = next((ends[tensor.name] for tensor in layer.inputs if tensor.name in ends), None)
        chain = [] if before is None else before
        if before is None:
            chains.append(chain)
        chain.append(position)
        written = layer.outputs[0].name
        if written and len(subject.readers.get(written, ())) == 1:
            ends[written] = chain
    return chains


def _computed_macs(layer: Layer) -> int:
    """With all channels of whole blocks."""
    if len(layer.inputs) < 2 or not layer.outputs or len(layer.outputs[0].shape) < 2:
        return 0
    return prod(layer.outputs[0].shape) * prod(layer.inputs[1].shape[1:])


def _reasons(layer: Layer) -> str:
    """What in its shapes explains that a layer is slow; empty when nothing does."""
    found = []
    filters = layer.inputs[1].shape if len(layer.inputs) > 1 else ()
    source = layer.inputs[0].shape if layer.inputs else ()
    if layer.type.endswith("Conv") and len(filters) > 2 and len(source) > 1:
        if filters[1] < source[1]:
            found.append(f"its convolution is grouped, each filter reads {filters[1]} of {source[1]} channels")
        channels: tuple[int, ...] = (filters[0], source[1])
    else:
        channels = (*source[-1:], *(layer.outputs[0].shape[-1:] if layer.outputs else ()))
    odd = [str(size) for size in channels if size % _ALIGNED]
    if odd:
        found.append(f"{' and '.join(odd)} are no multiples of {_ALIGNED}")
    if source and source[0] == 1 and layer.macs and layer.macs < 1_000_000:
        found.append("at batch 1 it has little to do")
    return ", ".join(found)
