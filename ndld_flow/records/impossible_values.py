"""Remove impossible numbers from untrusted profiles."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ndld_flow.records.profile import BatchPoint, Layer, Profile, ProfileRun, Roofs, TensorInfo

_LONGEST_MS = 1e12
"""Thirty years."""
_MOST = 10**18
"""Maximum bytes or operations of a pass; larger values are impossible."""
_LANES = ("latency_ms", "enqueue_ms", "h2d_ms", "compute_ms", "d2h_ms")
_COUNTS = ("read_bytes", "written_bytes", "weight_bytes")


def without_impossible_values(profile: Profile) -> Profile:
    """Return a profile without impossible values; the same object if there are none.

    Negative and non-finite samples of runs are removed; those of layers, and sizes, become 0. Impossible roofs become
    unknown.
    """
    changed: dict[str, Any] = {
        "runs": tuple(map(_run, profile.runs)),
        "batches": tuple(map(_batch, profile.batches)),
        "layers": tuple(map(_layer, profile.layers)),
        "layer_pass_ms": _kept(profile.layer_pass_ms),
        "roofs": _roofs(profile.roofs),
    }
    same = all(_are_same(value, getattr(profile, name)) for name, value in changed.items())
    return profile if same else profile.model_copy(update=changed)


def _are_same(values: object, before: object) -> bool:
    """Return whether two tuples hold the same objects, without comparing fields."""
    if isinstance(values, tuple) and isinstance(before, tuple):
        return len(values) == len(before) and all(map(operator.is_, values, before))
    return values is before


def _is_time(sample: float) -> bool:
    return 0 <= sample <= _LONGEST_MS


def _are_times(samples: Sequence[float]) -> bool:
    """Return whether all samples are times. Avoids a Python loop over millions of samples: a sum with NaN is NaN."""
    if not samples or (sum(samples) <= _LONGEST_MS and min(samples) >= 0):
        return True
    return all(map(_is_time, samples))


def _kept(samples: tuple[float, ...]) -> tuple[float, ...]:
    return samples if _are_times(samples) else tuple(filter(_is_time, samples))


def _run(run: ProfileRun) -> ProfileRun:
    if all(_are_times(getattr(run, lane)) for lane in _LANES):
        return run
    return run.model_copy(update={lane: _kept(getattr(run, lane)) for lane in _LANES})


def _batch(point: BatchPoint) -> BatchPoint:
    if _are_times(point.latency_ms):
        return point
    return point.model_copy(update={"latency_ms": _kept(point.latency_ms)})


def _is_sound(layer: Layer) -> bool:
    """Return whether a layer has no impossible values, without creating objects."""
    return (
        _are_times(layer.samples_ms)
        and 0 <= (layer.macs or 0) <= _MOST
        and 0 <= layer.read_bytes <= _MOST
        and 0 <= layer.written_bytes <= _MOST
        and 0 <= layer.weight_bytes <= _MOST
        and all(map(_has_shape, layer.inputs))
        and all(map(_has_shape, layer.outputs))
    )


def _layer(layer: Layer) -> Layer:
    if _is_sound(layer):
        return layer
    changed: dict[str, Any] = {}
    if not _are_times(layer.samples_ms):
        changed["samples_ms"] = tuple(sample if _is_time(sample) else 0.0 for sample in layer.samples_ms)
    if layer.macs is not None and not 0 <= layer.macs <= _MOST:
        changed["macs"] = None
    changed |= {name: 0 for name in _COUNTS if not 0 <= getattr(layer, name) <= _MOST}
    changed |= {
        name: tuple(map(_tensor, tensors))
        for name, tensors in (("inputs", layer.inputs), ("outputs", layer.outputs))
        if not all(map(_has_shape, tensors))
    }
    return layer.model_copy(update=changed)


def _has_shape(tensor: TensorInfo) -> bool:
    shape = tensor.shape
    return not shape or (min(shape) >= 0 and max(shape) <= _MOST)


def _tensor(tensor: TensorInfo) -> TensorInfo:
    return tensor if _has_shape(tensor) else tensor.model_copy(update={"shape": ()})


def _roofs(roofs: Roofs | None) -> Roofs | None:
    if roofs is None or not _all_positive((roofs.macs_per_s, roofs.bytes_per_s)):
        return None
    return roofs


def _all_positive(values: Iterable[float]) -> bool:
    return all(0 < value <= _MOST for value in values)
