"""Rules on layers that take most of the time, use the device poorly or do more work than necessary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from ndld_flow.base.quantities import counted, milliseconds, share, three_digits
from ndld_flow.base.text import one_line
from ndld_flow.profiles.diagnose.subject import FUSE, Insight, RecipeChange, Subject
from ndld_flow.records.profile import Layer

_LITTLE = 0.25
"""Share of the limiting roof. A good kernel reaches at least half."""
_NOTABLE_SHARE = 0.05
_ALIGNED = 8
"""Multiple of channels and widths that tensor cores and vector units process at once
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/, "Requirements to use tensor
cores")."""
_ELEMENTWISE = """
    Abs Add And Ceil Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater HardSigmoid HardSwish LeakyRelu Less Log Max
    Min Mish Mod Mul Neg Not Or PRelu Pow QuickGelu Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign
    Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
_LONG_CHAIN = 2
_DOMINATES = 0.25
_TYPE_DOMINATES = 0.6
_FEWEST_LAYERS = 4
"""Minimum number of layers; in a model of three, one always dominates."""


def one_layer(subject: Subject) -> Iterator[Insight]:
    """Report a layer that takes at least a quarter.

    The estimated saving is half of the time above its roof, because few kernels reach it; a quarter of its time if no
    roof is known.
    """
    if len(subject.layers) < _FEWEST_LAYERS:
        return
    longest = subject.longest_first(range(len(subject.layers)))[:1]
    part = subject.share(longest)
    if part < _DOMINATES:
        return
    layer, nearer = subject.layers[longest[0]], subject.peaks.shares(longest[0]).nearer
    if nearer is None:
        reached, saving = "", 0.25
    else:
        reached = f" It reaches {share(nearer[1])} of the device's {nearer[0]} roof."
        saving = max(0.0, 1 - nearer[1]) / 2
    dims = "; ".join("x".join(map(str, tensor.shape)) for tensor in layer.inputs[:2])
    yield Insight(
        score=part * saving,
        title=f"One layer takes {share(part)} of {subject.whole}",
        evidence=f"{subject.call(longest[0])}, inputs {dims or 'unknown'}: {subject.took(longest)}.{reached}",
        next_step=(
            "Work on this layer first: look at its nodes, shape and precision, and whether the "
            "model needs it at this size."
        ),
        layers=longest,
    )


def one_type(subject: Subject) -> Iterator[Insight]:
    """Report a type of layer that takes at least 60 %: only work on it pays (Amdahl, 1967). The score is 0."""
    times: Counter[str] = Counter()
    for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
        times[layer.type] += median_ms  # type: ignore[assignment]
    if len(times) < _FEWEST_LAYERS:
        return
    kind, sum_ms = times.most_common(1)[0]
    positions = subject.where(lambda layer: layer.type == kind)
    part = subject.share(positions)
    if part < _TYPE_DOMINATES:
        return
    called = one_line(kind)
    yield Insight(
        title=f"{called} takes {share(part)} of {subject.whole}",
        evidence=f"{counted(len(positions), 'layer')} of this type take {milliseconds(sum_ms)} of "
        f"{milliseconds(subject.layers_ms)} in all layers; the longest is {subject.call(positions[0])}.",
        next_step=(
            f"Only a faster {called} pays: lower precision if the provider supports it well, a smaller "
            f"input, fewer channels. All other layers together take {share(1 - part)} of {subject.whole}."
        ),
        layers=positions,
    )


def far_from_roof(subject: Subject) -> Iterator[Insight]:
    """Report layers that multiply at less than a quarter of their roof and together take at least 5 %.

    The estimated saving is half of the time above the roof.
    """
    reached = {
        position: most
        for position, layer in enumerate(subject.layers)
        if layer.macs and (most := subject.peaks.most(position)) is not None and most < _LITTLE
    }
    positions = subject.longest_first(reached)
    part = subject.share(positions)
    if part < _NOTABLE_SHARE:
        return
    best_ms = sum(subject.medians_ms[position] * most for position, most in reached.items())
    layer, longest_ms = subject.layers[positions[0]], subject.medians_ms[positions[0]]
    reasons, speed = _reasons(layer), three_digits(2 * (layer.macs or 0) / longest_ms / 1e9)
    yield Insight(
        score=part * max(0.0, 1 - best_ms / subject.sum_ms(positions)) / 2,
        title=f"{counted(len(positions), 'layer')} reaching less than {share(_LITTLE)} of the device's peak",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}. The "
        f"longest, {subject.call(positions[0])}, reaches {speed} TFLOP/s, "
        f"{share(reached[positions[0]])} of the nearer roof{reasons and f': {reasons}'}.",
        next_step=(
            "Larger batches or inputs use the device better. Channels and widths that are multiples of "
            f"{_ALIGNED}, and dense instead of grouped convolutions, allow faster kernels."
        ),
        layers=positions,
    )


def padded_channels(subject: Subject) -> Iterator[Insight]:
    """Report padding of channel blocks in convolutions that takes at least 5 % of the latency.

    ONNX Runtime pads to blocks of 8 or 16 channels (onnxruntime/core/optimizer/nchwc_transformer.cc).
    """
    wasted = {
        position: 1 - layer.macs / computed
        for position, layer in enumerate(subject.layers)
        if layer.macs and layer.tactic.startswith("nchwc.Conv") and (computed := _computed_macs(layer)) > layer.macs
    }
    positions = tuple(sorted(wasted, key=lambda position: -wasted[position] * subject.medians_ms[position]))
    saved = sum(wasted[position] * subject.share([position]) for position in positions)
    if saved < _NOTABLE_SHARE:
        return
    filters, outputs = subject.layers[positions[0]].inputs[1].shape, subject.layers[positions[0]].outputs
    yield Insight(
        score=saved,
        title=f"Channels are padded to blocks: {share(saved)} of {subject.whole} is wasted",
        evidence=f"In {counted(len(positions), 'layer')} on average {share(sum(wasted.values()) / len(wasted))} of the "
        f"multiplications are on padding; {subject.call(positions[0])} computes {outputs[0].shape[1]} channels with "
        f"filters {'x'.join(map(str, filters))} and wastes {share(wasted[positions[0]])}.",
        next_step=(
            "Channels up to the next block cost nothing extra: use them when the model is retrained, or reduce "
            "to the block below."
        ),
        layers=positions,
    )


def elementwise_chains(subject: Subject) -> Iterator[Insight]:
    """Report chains of elementwise layers that take at least 5 %.

    Each reads and writes all its data; fused into one layer or into the preceding one, they would move it once
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/optimization.html, "pointwise fusion").
    """
    chains = [chain for chain in _chains(subject) if len(chain) >= _LONG_CHAIN]
    saved = sum(subject.share(chain) - subject.share(subject.longest_first(chain)[:1]) for chain in chains)
    if saved < _NOTABLE_SHARE:
        return
    positions = subject.longest_first(position for chain in chains for position in chain)
    longest = max(chains, key=subject.sum_ms)
    types = ", ".join(subject.layers[position].type for position in longest[:6])
    last = subject.layers[longest[-1]]
    moved_mib = three_digits((last.read_bytes + last.written_bytes) / 2**20)
    yield Insight(
        score=saved,
        title=f"Chains of elementwise layers take {share(subject.share(positions))} of {subject.whole}",
        evidence=f"{len(chains)} chains of {counted(len(positions), 'layer')} ({subject.call_types(positions)}): "
        f"{subject.took(positions)}. The longest ends in {subject.call(longest[-1])}: {types}. Each of its layers "
        f"moves {moved_mib} MiB.",
        next_step=(
            "Run `sanitize`, which folds constant factors into a convolution before them, and export activations as "
            "one operator (HardSwish since opset 14, Mish 18, Gelu 20, Swish 24). A runtime that fuses pointwise "
            "layers, such as TensorRT, removes more."
        ),
        layers=positions,
        change=RecipeChange(settings={"optimization": "extended"})
        if subject.profile.options.get("optimization") in ("disabled", "basic")
        else FUSE,
    )


def _chains(subject: Subject) -> list[list[int]]:
    """Return chains of elementwise layers in which each is the only reader of the one before."""
    chains: list[list[int]] = []
    ends: dict[str, list[int]] = {}
    for position, layer in enumerate(subject.layers):
        if layer.type not in ELEMENTWISE or len(layer.outputs) != 1:
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
    """Return the count including padded channels."""
    if len(layer.inputs) < 2 or not layer.outputs or len(layer.outputs[0].shape) < 2:
        return 0
    return prod(layer.outputs[0].shape) * prod(layer.inputs[1].shape[1:])


def _reasons(layer: Layer) -> str:
    """Return reasons in a layer's shapes for its slowness; empty if there are none."""
    reasons = []
    filters = layer.inputs[1].shape if len(layer.inputs) > 1 else ()
    source = layer.inputs[0].shape if layer.inputs else ()
    if layer.type.endswith("Conv") and len(filters) > 2 and len(source) > 1:
        if filters[1] < source[1]:
            reasons.append(f"it is a grouped convolution whose filters read {filters[1]} of {source[1]} channels")
        channels: tuple[int, ...] = (filters[0], source[1])
    else:
        channels = (*source[-1:], *(layer.outputs[0].shape[-1:] if layer.outputs else ()))
    odd = [str(size) for size in channels if size % _ALIGNED]
    if odd:
        reasons.append(f"{' and '.join(odd)} are not multiples of {_ALIGNED}")
    if source and source[0] == 1 and layer.macs and layer.macs < 1_000_000:
        reasons.append("it has little work at batch 1")
    return ", ".join(reasons)
