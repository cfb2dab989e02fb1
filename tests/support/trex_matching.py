"""The baseline for matching layers: how NVIDIA's TREx (trt-engine-explorer) aligns two engines.

TREx takes turns between the two lists. The first layer that is left on one side is compared with all that are left on
the other, nearest first, and is paired with the first of the same type whose first input and first output have the same
dimensions, the batch left out. Point-wise layers of two inputs may have them exchanged. Written after the description
in `tools/experimental/trt-engine-explorer/trex/compare_engines.py` of https://github.com/NVIDIA/TensorRT.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ndld_flow.records.profile import Layer


def beam_search(ours: Sequence[Layer], theirs: Sequence[Layer]) -> list[tuple[int, int]]:
    """Return the pairs of layers that TREx aligns."""
    left = list(range(len(ours))), list(range(len(theirs)))
    sides = ours, theirs
    pairs: list[tuple[int, int]] = []
    turn = 0
    while left[0] and left[1]:
        wanted = left[turn].pop(0)
        result = next(
            (at for at in left[1 - turn] if _alike(sides[turn][wanted], sides[1 - turn][at])),
            None,
        )
        if result is not None:
            left[1 - turn].remove(result)
            pairs.append((wanted, result) if turn == 0 else (result, wanted))
        turn = 1 - turn
    return pairs


def _alike(layer: Layer, other: Layer) -> bool:
    if not (layer.inputs and layer.outputs and other.inputs and other.outputs):
        return False
    return _signature(layer) == _signature(other) or (
        layer.type == other.type == "PointWise"
        and len(layer.inputs) == len(other.inputs) == 2
        and [tensor.shape[1:] for tensor in layer.inputs] == [tensor.shape[1:] for tensor in other.inputs][::-1]
    )


def _signature(layer: Layer) -> Hashable:
    return layer.type, layer.inputs[0].shape[1:], layer.outputs[0].shape[1:]
