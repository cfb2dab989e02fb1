"""What each node does wrong when it alone is quantised, and what comes of that at the model's outputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ndld_flow.accuracy.inside.capture import BUDGET_BYTES, capture_part, in_parts, tensor_bytes, tensors_of
from ndld_flow.accuracy.inside.tensor_statistics import LayerAgreement
from ndld_flow.models.tensors import Array
from ndld_flow.precision_search.int8_evidence import Int8Error
from ndld_flow.quantize.int8_twins import Twins
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

_MOST = 64
"""So many nodes, those that do most wrong, are followed to the outputs: each takes a run on one sample."""
_NONE = np.array(-1, np.int64)


def int8_errors(
    twins: Twins, samples: Collection[Mapping[str, Array]], settings: SessionSettings
) -> dict[str, Int8Error]:
    """First output of a node -> what it does wrong, for each that has a twin.

    Errors of the nodes themselves are taken of all samples in one run each, or more where not all values fit in memory;
    those of the outputs of the first sample. Raises `ModelError` when the model does not run.
    """
    first = next(iter(samples), None)
    if first is None:
        return {}
    quick = replace(settings, optimization="disabled")
    own = _own_errors(twins, samples, quick)
    if not own:
        return {}
    worst = sorted(own, key=lambda name: own[name].metrics().get("relative_rms", math.inf), reverse=True)[:_MOST]
    brought = _brought_errors(twins, first, worst, quick)
    mean = sum(error**2 for error in brought.values()) / max(len(brought), 1)
    shares = {name: error**2 / mean if mean else 0.0 for name, error in brought.items()}
    return {
        name: Int8Error(_relative_rms(agreement), brought.get(name), shares.get(name, 0.0), twins.lost.get(name, 0.0))
        for name, agreement in own.items()
    }


def _own_errors(
    twins: Twins, samples: Collection[Mapping[str, Array]], settings: SessionSettings
) -> dict[str, LayerAgreement]:
    first = {**next(iter(samples)), twins.which: _NONE}
    places = [place for place in tensors_of(twins.path) if place.name in twins.twins and place.can_be_captured]
    sizes = {name: 2 * size for name, size in tensor_bytes(twins.path, places, first, settings).items()}
    agreements = {name: LayerAgreement() for name in sizes}
    for part in in_parts(sizes, BUDGET_BYTES):
        wanted = [*part, *(twins.twins[name] for name in part)]
        every = ({**feeds, twins.which: _NONE} for feeds in samples)
        for arrays in capture_part(twins.path, wanted, every, settings):
            for name in part:
                agreements[name].add(arrays[name], arrays[twins.twins[name]])
    return agreements


def _brought_errors(
    twins: Twins, feeds: Mapping[str, Array], names: Sequence[str], settings: SessionSettings
) -> dict[str, float]:
    """First output of a node -> the error of the worst output when its twin takes its place; 1 where that has NaN."""
    made = {place.name for place in tensors_of(twins.path) if place.can_be_captured}
    outputs = [name for name in dict.fromkeys(twins.outputs.values()) if name in made]
    if not outputs:
        return {}
    numbers = {name: number for number, name in enumerate(twins.twins)}
    fed = ({**feeds, twins.which: np.array(number, np.int64)} for number in (-1, *(numbers[name] for name in names)))
    runs = capture_part(twins.path, outputs, fed, settings)
    exact = next(runs)
    return {name: _worst_of(exact, arrays) for name, arrays in zip(names, runs, strict=True)}


def _worst_of(exact: Mapping[str, Array], arrays: Mapping[str, Array]) -> float:
    errors = [0.0]
    for name, array in exact.items():
        if array.dtype.kind == "f":
            agreement = LayerAgreement()
            agreement.add(array, arrays[name])
            errors.append(1.0 if agreement.nonfinite else _relative_rms(agreement))
    return max(errors)


def _relative_rms(agreement: LayerAgreement) -> float:
    return agreement.metrics().get("relative_rms", 0.0)
