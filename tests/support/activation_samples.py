"""Documents of activations with their files, generated without a model: blobs, stripes and noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.records.activations import (
    ActivationMap,
    Activations,
    CapturedTensor,
    ChannelStatistics,
    Histogram,
    SampleShown,
)

Values = Any
HOSTILE = '</script><img src=x onerror=alert(1)>"\u202e\x1b[31m'
FP16_MOST = 65504.0


@dataclass(frozen=True)
class Sketch:
    """A tensor to be: channels x height x width of some size, and how far the candidate is off."""

    name: str
    op_type: str
    size: tuple[int, int, int]
    layout: str = "NCHW"
    scale: float = 1.0
    relu: bool = True
    error: float = 3e-4
    broken: str = ""
    """`overflow`: what fp16 cannot hold is infinite in the candidate, and one place is NaN."""
    dtype: str = "float16"


PAIR = (
    Sketch("conv2d_0.tmp_0", "Conv", (16, 40, 40), relu=False),
    Sketch("relu_0.tmp_0", "Relu", (16, 40, 40)),
    Sketch("stage1/conv.tmp_1", "Conv", (24, 20, 20), relu=False, error=6e-4),
    Sketch("batch_norm_7.tmp_2", "BatchNormalization", (24, 20, 20), relu=False, scale=4e4, broken="overflow"),
    Sketch("hard_swish_3", "HardSwish", (24, 20, 20), error=0.08),
    Sketch("pool.tmp_0", "GlobalAveragePool", (24, 1, 1), error=0.05),
    Sketch("wide.head", "Conv", (6, 12, 80), relu=False, error=0.02),
    Sketch("fc.logits", "Gemm", (1, 4, 97), layout="NC", relu=False, error=0.04),
    Sketch("tokens", "LayerNormalization", (1, 30, 64), layout="NLC", relu=False, error=0.03),
    Sketch("shape.flat", "Reshape", (1, 1, 50), layout="flat", relu=False, error=0.0, dtype="float32"),
    Sketch("sigmoid_0.tmp_0", "Sigmoid", (1, 80, 80), error=0.2),
)


def write_pair(folder: Path, samples: int = 2) -> Path:
    """fp16 against fp32: one layer overflows, and what is behind it is off."""
    return write(folder, PAIR, samples, model="half", reference="source", arithmetic="stored", notes=("A note.",))


def write_single(folder: Path) -> Path:
    """One model, one sample, nothing wrong."""
    sketches = [item for item in PAIR if not item.broken]
    return write(folder, sketches, 1, model="sanitize", noise="normal, deviation 0.02, seed 0", stopped_at="sigmoid_0")


def write_hostile(folder: Path) -> Path:
    """Names that would like to be markup."""
    sketches = [Sketch(HOSTILE, HOSTILE, (2, 4, 4), layout=HOSTILE[:20], broken="overflow", scale=1e5)]
    names = {"model": HOSTILE, "reference": HOSTILE, "provider": HOSTILE, "noise": HOSTILE, "stopped_at": HOSTILE}
    return write(folder, sketches, 1, **names, arithmetic=HOSTILE, notes=(HOSTILE,), label=HOSTILE)


def write_large(folder: Path, tensors: int = 32, samples: int = 4, channels: int = 64, side: int = 40) -> Path:
    """Write a document as large as a typical user requests."""
    sketches = [Sketch(f"layer_{index}.out", "Conv", (channels, side, side), relu=False) for index in range(tensors)]
    return write(folder, sketches, samples, model="half", reference="source")


def write(folder: Path, sketches: Any, samples: int, label: str = "", **facts: Any) -> Path:
    """Write `activations.json` and its files into a folder, and return that."""
    for below in ("maps", "samples", "arrays"):
        (folder / below).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    two = bool(facts.get("reference"))
    captures = [_captured(folder, index, sketch, samples, two, random) for index, sketch in enumerate(sketches)]
    tensors = tuple(tensor for tensor, _ in captures)
    record = Activations(
        **{"provider": "CPUExecutionProvider", **facts},
        samples=tuple(_sample(folder, index, label) for index in range(samples)),
        tensors=tensors,
        divergence=tuple(layer for _, layer in captures if layer is not None),
        first_nonfinite=next((tensor.tensor for tensor in tensors if tensor.range.inf_count), ""),
    )
    (folder / "activations.json").write_text(record.to_json(), encoding="utf-8")
    return folder


def values_of(sketch: Sketch, random: np.random.Generator) -> Values:
    """Blobs and waves, other ones in every channel."""
    channels, height, width = sketch.size
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    at, frequency, phase = random.uniform(size=(3, channels, 1, 1))
    waves = np.sin(2 * np.pi * (x * (1 + 5 * frequency) + y * (1 + 4 * at) + phase))
    blobs = np.exp(-((x - at) ** 2 + (y - phase) ** 2) / 0.03)
    values = (waves * 0.6 + 2 * blobs * np.sign(frequency - 0.4)) * (0.2 + 2 * phase) * sketch.scale
    values += random.normal(0, 0.05 * sketch.scale, sketch.size)
    return np.maximum(values, 0) if sketch.relu else values


def _candidate(sketch: Sketch, reference: Values, random: np.random.Generator) -> Values:
    off = reference * (1 + random.normal(0, sketch.error, reference.shape))
    if sketch.broken == "overflow":
        off = np.where(np.abs(off) > FP16_MOST, np.copysign(np.inf, off), off)
        off[0, 1, 1] = np.nan
    return off


def _captured(
    folder: Path, place: int, sketch: Sketch, samples: int, two: bool, random: np.random.Generator
) -> tuple[CapturedTensor, LayerDivergence | None]:
    references = [values_of(sketch, random) for _ in range(samples)]
    candidates = [_candidate(sketch, reference, random) if two else reference for reference in references]
    maps = []
    for sample, sides in enumerate(zip(candidates, references, strict=True)):
        both = sides if two else sides[:1]
        low, high = _bounds(np.stack(both))
        for side, values in zip(("candidate", "reference"), both, strict=False):
            name = f"{place:04d}-{sample}-{side}"
            (folder / f"maps/{name}.u16").write_bytes(encode(values, low, high))
            maps.append(_map(sketch, sample, side, name, (low, high)))
    np.save(folder / f"arrays/{place:04d}-0-candidate.npy", candidates[0].astype(np.float32))
    all_candidates, all_references = np.stack(candidates), np.stack(references)
    edges = _bounds(np.stack([all_candidates, all_references]))
    channels, height, width = sketch.size
    shapes = {"NC": (height, width), "NLC": (1, height, width), "flat": (width,)}
    captured = CapturedTensor(
        tensor=sketch.name,
        node=f"node {sketch.name}",
        op_type=sketch.op_type,
        position=3 * place,
        dtype=sketch.dtype,
        reference_dtype="float32" if two else "",
        shape=shapes.get(sketch.layout, (1, *sketch.size)),
        layout=sketch.layout,
        range=range_of(sketch.name, all_candidates),
        reference_range=range_of(sketch.name, all_references) if two else None,
        histogram=histogram_of(all_candidates, edges),
        reference_histogram=histogram_of(all_references, edges) if two else None,
        saturated=17 if sketch.op_type == "Sigmoid" else 0,
        channel_count=channels if sketch.layout == "NCHW" else 0,
        channels=_statistics(candidates[0], references[0] if two else None) if sketch.layout == "NCHW" else (),
        maps=tuple(maps),
    )
    if not two:
        return captured, None
    return captured, _divergence(3 * place, sketch, all_candidates, all_references)


def _map(sketch: Sketch, sample: int, side: str, name: str, bounds: tuple[float, float]) -> ActivationMap:
    channels, height, width = sketch.size
    array = f"arrays/{name}.npy" if side == "candidate" and sample == 0 else ""
    return ActivationMap(
        sample=sample,
        side=side,
        file=f"maps/{name}.u16",
        array_file=array,
        channels=channels,
        height=height,
        width=width,
        total_channels=channels,
        full_height=height,
        full_width=width,
        low=bounds[0],
        high=bounds[1],
    )


def _bounds(values: Values) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def encode(values: Values, low: float, high: float) -> bytes:
    """Encode values as the record documents."""
    finite = np.where(np.isfinite(values), values, low)
    codes = np.rint((finite - low) / ((high - low) or 1) * 65532).astype("<u2")
    codes[np.isnan(values)] = 65535
    codes[values == np.inf] = 65534
    codes[values == -np.inf] = 65533
    return codes.tobytes()


def range_of(name: str, values: Values) -> TensorRange:
    """Against fp16."""
    finite = values[np.isfinite(values)]
    size = np.abs(finite)
    return TensorRange(
        tensor=name,
        elements=values.size,
        minimum=float(finite.min()),
        maximum=float(finite.max()),
        rms=float(np.sqrt(np.mean(finite**2))),
        smallest_abs=float(size[size > 0].min()) if (size > 0).any() else 0.0,
        nan_count=int(np.isnan(values).sum()),
        inf_count=int(np.isinf(values).sum()),
        beyond_share=float((size > FP16_MOST).mean()),
        vanishing_share=float(((size > 0) & (size < 3e-8)).mean()),
    )


def histogram_of(values: Values, edges: tuple[float, float]) -> Histogram:
    """64 bins."""
    counts, _ = np.histogram(values[np.isfinite(values)], bins=64, range=edges)
    return Histogram(low=edges[0], high=edges[1], counts=tuple(map(int, counts)))


def _statistics(values: Values, reference: Values) -> tuple[ChannelStatistics, ...]:
    def one(channel: int) -> ChannelStatistics:
        plane = values[channel]
        finite = plane[np.isfinite(plane)]
        difference = None
        if reference is not None:
            both = np.isfinite(plane)
            difference = float(np.sqrt(np.mean((plane[both] - reference[channel][both]) ** 2)))
        return ChannelStatistics(
            channel=channel,
            minimum=float(finite.min()),
            maximum=float(finite.max()),
            mean=float(finite.mean()),
            rms=float(np.sqrt(np.mean(finite**2))),
            nonfinite=int(plane.size - finite.size),
            difference_rms=difference,
        )

    return tuple(map(one, range(len(values))))


def _divergence(position: int, sketch: Sketch, candidate: Values, reference: Values) -> LayerDivergence:
    both = np.isfinite(candidate)
    noise = float(np.mean((candidate[both] - reference[both]) ** 2))
    signal = float(np.mean(reference[both] ** 2))
    cosine = float(np.sum(candidate[both] * reference[both]))
    cosine /= float(np.linalg.norm(candidate[both]) * np.linalg.norm(reference[both]))
    snr = 10 * np.log10(signal / noise) if noise else np.inf
    return LayerDivergence(
        position=position,
        node=f"node {sketch.name}",
        op_type=sketch.op_type,
        tensor=sketch.name,
        metrics={"snr_db": float(snr), "cosine": cosine, "relative_rms": float(np.sqrt(noise / signal))},
        nonfinite=int((~both).sum()),
    )


def _sample(folder: Path, place: int, label: str) -> SampleShown:
    y, x = np.mgrid[0:120, 0:160]
    rings = 127 + 120 * np.sin(np.hypot(x - 60 - 30 * place, y - 60) / 6)
    picture = np.stack([rings, 255 - rings, (x + y) % 255], axis=-1).astype(np.uint8)
    Image.fromarray(picture).save(folder / f"samples/{place}.png")
    return SampleShown(
        label=label or f"receipt_{place}.png",
        inputs={label or "x": f"{label or 'receipt'}, float32 1x3x120x160"},
        picture=f"samples/{place}.png",
    )
