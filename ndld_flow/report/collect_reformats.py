"""Collect reformats: layers that only change a tensor's layout or type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.profile import Layer, TensorInfo
from ndld_flow.report.shape_words import shape_text

_SHOWN = 40


@dataclass(frozen=True)
class ReformatRow:
    """One layer that reformats."""

    position: int
    name: str
    tensor: str
    """Its input tensor, or the output if the input is not recorded."""
    dims: str
    before: str
    """Type and format of the input, `float32 linear`; empty if not recorded, as in `after`."""
    after: str
    bound_to: str
    """The engine's input or output that it reads or writes, `input x`; empty for one between layers."""


@dataclass(frozen=True)
class ReformatWay:
    """All reformats of one kind."""

    before: str
    after: str
    count: int


@dataclass(frozen=True)
class ReformatsView:
    """All reformats of one engine."""

    count: int
    ways: tuple[ReformatWay, ...]
    """Most frequent first."""
    rows: tuple[ReformatRow, ...]
    """The first reformats in execution order; those at inputs and outputs come first."""


def collect_reformats(
    layers: Sequence[Layer], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> ReformatsView | None:
    """Return the reformats; None if there are none."""
    bound = {one.name: f"output {short_name(one.name, 60)}" for one in outputs if one.name}
    bound |= {one.name: f"input {short_name(one.name, 60)}" for one in inputs if one.name}
    rows = [_row(place, layer, bound) for place, layer in enumerate(layers) if layer.role == "reformat"]
    if not rows:
        return None
    ways = Counter((row.before, row.after) for row in rows)
    return ReformatsView(
        count=len(rows),
        ways=tuple(ReformatWay(*way, count) for way, count in ways.most_common()),
        rows=tuple(sorted(rows, key=lambda row: not row.bound_to)[:_SHOWN]),
    )


def _row(place: int, layer: Layer, bound: dict[str, str]) -> ReformatRow:
    read = layer.inputs[0] if layer.inputs else None
    written = layer.outputs[0] if layer.outputs else None
    shown = read or written
    ends = [one.name for one in (read, written) if one is not None]
    return ReformatRow(
        position=place,
        name=short_name(layer.name),
        tensor=short_name(shown.name) if shown else "",
        dims=shape_text(shown.shape) if shown and shown.shape else "",
        before=_kind(read),
        after=_kind(written),
        bound_to=next((bound[name] for name in ends if name in bound), ""),
    )


def _kind(tensor: TensorInfo | None) -> str:
    return short_name(f"{tensor.dtype} {tensor.format}".strip(), 60) if tensor else ""
