"""Layouts of tensors inside a model, and views of their first item as channels x height x width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir

from ndld_flow.models.tensors import Array

Layout = Literal["NCHW", "NHWC", "NCL", "NLC", "NCDHW", "NC", "flat"]
RANKS: Mapping[Layout, int] = {"NCHW": 4, "NHWC": 4, "NCL": 3, "NLC": 3, "NCDHW": 5, "NC": 2}
"""Layout -> number of dimensions; `flat` accepts any."""
CHANNEL_AXES: Mapping[Layout, int] = {"NCHW": 1, "NHWC": 3, "NCL": 1, "NLC": 2, "NCDHW": 1}

_CHANNELS_FIRST = {
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "QLinearConv",
}
_CHANNELS_LAST = {"Attention", "Gather", "Gemm", "GRU", "LayerNormalization", "LSTM", "MatMul", "QLinearMatMul", "RNN"}
_LAYOUT_UNKNOWN = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}
_TO_LAST = ((0, 2, 3, 1), (0, 2, 1))
_TO_FIRST = ((0, 3, 1, 2), (0, 2, 1))


def channel_places(graph: ir.Graph) -> dict[str, str]:
    """Return tensor -> `first`, `last` or `transposed` where operators determine the place of its channels.

    A Conv determines it, a Relu keeps that of its input, a Transpose changes it.
    """
    found: dict[str, str] = {}
    for node in graph:
        place = _output_place(node, found)
        if place:
            found |= {value.name: place for value in node.outputs if value.name}
    return found


def guess_layout(rank: int, place: str) -> Layout:
    """Guess the layout of a tensor of this rank from the place of its channels (`first`, `last`, `transposed` or
    empty).
    """
    by_rank: dict[int, Layout] = {2: "NC", 3: "NCL" if place == "first" else "NLC", 4: "NCHW", 5: "NCDHW"}
    if rank == 4 and place == "transposed":
        return "NHWC"
    return by_rank.get(rank, "flat")


def planes(values: Array, layout: Layout) -> Array:
    """Return the first item of a batch as channels x height x width, as a view where possible.

    `NC`, `NLC` and `NCL` are one plane of their two last dimensions; `NCDHW` stacks its depths vertically; `flat` is
    one row.
    """
    if not values.size:
        return values.reshape(0, 0, 0)
    if layout == "NC":
        return values[np.newaxis]
    if layout == "flat":
        return values.reshape(1, 1, -1)
    item: Array = values[0]
    if layout == "NHWC":
        return item.transpose(2, 0, 1)
    if layout in ("NLC", "NCL"):
        return item[np.newaxis]
    return item.reshape(item.shape[0], -1, item.shape[-1])


def plane_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int]:
    """Return channels x height x width of the planes of a tensor of this shape."""
    channels, height, width = planes(np.broadcast_to(np.uint8(0), shape), layout).shape
    return channels, height, width


def by_channel(values: Array, layout: Layout) -> Array | None:
    """Return all items as a view with the channels first; None for a layout without channels."""
    axis = CHANNEL_AXES.get(layout)
    return None if axis is None else np.moveaxis(values, axis, 0)


def _output_place(node: ir.Node, found: Mapping[str, str]) -> str:
    names = [value.name or "" for value in node.inputs if value is not None]
    read = next((found[name] for name in names if name in found), "")
    if node.op_type in _CHANNELS_FIRST:
        return "first"
    if node.op_type in _CHANNELS_LAST:
        return "last"
    if node.op_type == "Transpose":
        return _transposed(tuple(node.attributes.get_ints("perm", ())), read)
    return "" if node.op_type in _LAYOUT_UNKNOWN else read


def _transposed(perm: tuple[int, ...], read: str) -> str:
    """Return the place of the channels after a Transpose."""
    if perm in _TO_LAST and read == "first":
        return "transposed"
    if perm in _TO_FIRST and read in ("last", "transposed"):
        return "first"
    return ""
