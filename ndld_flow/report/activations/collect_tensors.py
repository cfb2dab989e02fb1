"""Collect captured tensors as rows of a table, for paper and pages without a script."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from ndld_flow.base.quantities import MINUS, count, number, share
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.records.activations import Activations, CapturedTensor
from ndld_flow.report.value_text import shape_text

_UNBOUNDED_DB = 300.0
"""Signal to noise above which both sides count as equal."""


@dataclass(frozen=True)
class TensorRow:
    """One captured tensor, with formatted numbers."""

    name: str
    link: str
    """Link to its maps on this page."""
    node: str
    op_type: str
    tensor: str
    """dtype, shape and layout."""
    low: str
    high: str
    rms: str
    troubles: tuple[str, ...]
    """`3 NaN`, `1.2 % beyond fp16`."""
    snr: str
    """Signal to noise relative to the reference; empty without a reference."""


def collect_tensors(record: Activations) -> tuple[TensorRow, ...]:
    """Return all captured tensors, in execution order."""
    divergence = {one.tensor: one for one in record.divergence}
    kind = short_name(record.range_format, 20)
    return tuple(_row(tensor, divergence.get(tensor.tensor), kind) for tensor in record.tensors)


def link_to(tensor: str) -> str:
    """Return the address of a tensor's maps, on its page."""
    return f"#tensor={quote(visible_name(tensor), safe='')}"


def snr_db(divergence: LayerDivergence | None) -> float | None:
    """Return the signal to noise in dB; None if not measured or NaN."""
    value = None if divergence is None else divergence.metrics.get("snr_db")
    return None if value is None or math.isnan(value) else value


def snr_words(value: float | None) -> str:
    """Return `61.2 dB`, or `equal` without noise."""
    if value is None:
        return ""
    if value >= _UNBOUNDED_DB:
        return "equal"
    size = "∞" if value <= -_UNBOUNDED_DB else f"{abs(value):.1f}"
    return f"{MINUS if value < 0 else ''}{size} dB"


def troubles(tensor: CapturedTensor, range_format: str) -> Iterator[str]:
    """Yield the problems of a tensor's values, the worst first."""
    found = tensor.range
    if found.nan_count:
        yield f"{count(found.nan_count)} NaN"
    if found.inf_count:
        yield f"{count(found.inf_count)} infinite"
    if found.beyond_share:
        yield f"{_share(found.beyond_share)} beyond {range_format}"
    if tensor.saturated:
        yield f"{_share(tensor.saturated / max(found.elements, 1))} saturated"
    if found.vanishing_share:
        yield f"{_share(found.vanishing_share)} rounded to 0 in {range_format}"


def _share(fraction: float) -> str:
    return share(fraction) if fraction >= 0.0005 else "< 0.1 %"


def _row(tensor: CapturedTensor, divergence: LayerDivergence | None, range_format: str) -> TensorRow:
    return TensorRow(
        name=short_name(tensor.tensor),
        link=link_to(tensor.tensor),
        node=short_name(tensor.node, 80),
        op_type=short_name(tensor.op_type, 60),
        tensor=f"{short_name(tensor.dtype, 40)} {shape_text(tensor.shape)} {short_name(tensor.layout, 20)}",
        low=number(tensor.range.minimum),
        high=number(tensor.range.maximum),
        rms=number(tensor.range.rms),
        troubles=tuple(troubles(tensor, range_format)),
        snr=snr_words(snr_db(divergence)),
    )
