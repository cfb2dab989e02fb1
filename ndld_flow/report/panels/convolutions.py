"""Convolutions: window, groups, activation, arithmetic intensity, and the shares of the device's peaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ndld_flow.base.quantities import TIMES, count, milliseconds, share, three_digits
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.profiles.diagnose.published_peaks import moved_bytes
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.measured import shape_text, views_by_profile
from ndld_flow.report.panel import profiles_panel
from ndld_flow.report.tables import Column, Table, Value, without_empty_columns

_SHOWN = 60
_WINDOWS_SHOWN = 12
_COLUMNS = (
    Column("#", "number"),
    Column("Name", "name"),
    Column("Time", "number", milliseconds),
    Column("%", "number", share),
    Column("Of peak arithmetic", "number", share),
    Column("Of peak bandwidth", "number", share),
    Column("FLOP/byte", "number", three_digits),
    Column("MMACs", "number", three_digits),
    Column("Kernel", "label"),
    Column("Stride", "label"),
    Column("Dilation", "label"),
    Column("Groups", "number", count),
    Column("Activation", "label"),
    Column("Multiply unit", "label"),
    Column("Precision", "label"),
    Column("Input", "label"),
    Column("Output", "label"),
    Column("As GEMM (M, N, K)", "label"),
)
_WINDOW_COLUMNS = (
    Column("Kernel, stride, groups", "label"),
    Column("Layers", "number", count),
    Column("GMACs", "number", three_digits),
    Column("Time", "number", milliseconds),
    Column("%", "number", share),
)


@dataclass(frozen=True)
class ConvolutionsView:
    """The convolutions of one profile."""

    label: str
    count: int
    share: float | None
    """Share of the sum of all layers; None without times."""
    windows: Table
    """Time by kernel, stride and groups, the longest first."""
    layers: Table
    """The longest first; in execution order without times."""
    peaks: str
    """Origin of the peaks; empty if none are known."""
    exceeded: int
    """Number of layers that exceed the peak arithmetic, so that no share of it is shown."""
    unknown: int
    """Number of convolutions whose window is not recorded."""


def collect(profiles: Mapping[str, Profile]) -> tuple[ConvolutionsView, ...]:
    """Return a view of each profile with convolutions."""
    return views_by_profile(profiles, _view)


def is_convolution(layer: Layer) -> bool:
    """Return whether a layer is a convolution, perhaps fused with its pooling. Poolings alone have windows too."""
    kind = layer.type.lower()
    return layer.role == "compute" and ("conv" in kind or kind == "correlation" or layer.groups is not None)


def _view(label: str, profile: Profile) -> ConvolutionsView | None:
    subject = Subject(profile)
    places = [index for index, layer in enumerate(subject.layers) if is_convolution(layer)]
    if not places:
        return None
    timed = subject.layers_ms > 0
    ordered = subject.longest_first(places) if timed else tuple(places)
    return ConvolutionsView(
        label=label,
        count=len(places),
        share=subject.sum_ms(places) / subject.layers_ms if timed else None,
        windows=_windows(subject, places, timed),
        layers=without_empty_columns(_COLUMNS, [_row(subject, place, timed) for place in ordered[:_SHOWN]]),
        peaks=short_name(subject.peaks.how, 200),
        exceeded=subject.peaks.exceeded,
        unknown=sum("kernel_shape" not in dict(subject.layers[place].attributes) for place in places),
    )


def _row(subject: Subject, index: int, timed: bool) -> tuple[Value, ...]:
    layer, moved = subject.layers[index], moved_bytes(subject.layers[index])
    reached, median_ms = subject.peaks.shares(index), subject.medians_ms[index]
    kernel, stride, dilation, groups = _window(layer)
    return (
        layer.index,
        visible_name(layer.name),
        median_ms if timed else None,
        median_ms / subject.layers_ms if timed else None,
        reached.compute,
        reached.bandwidth,
        2 * layer.macs / moved if layer.macs and moved else None,
        layer.macs / 1e6 if layer.macs is not None else None,
        kernel,
        stride,
        dilation if set(dilation) - {"1", TIMES} else "",
        groups,
        short_name(layer.activation, 20),
        layer.unit if layer.unit != "none" else "",
        short_name(layer.precision, 20),
        shape_text(layer.inputs[0].shape) if layer.inputs and layer.inputs[0].shape else "",
        shape_text(layer.outputs[0].shape) if layer.outputs and layer.outputs[0].shape else "",
        _as_gemm(layer, groups),
    )


def _as_gemm(layer: Layer, groups: int | None) -> str:
    """Return the matrix product of an implicit GEMM, M pixels by N filters over K products, for one group.

    Empty unless the recorded work confirms it: a transposed convolution, or one fused with its pooling, has others.
    """
    kernel = dict(layer.attributes).get("kernel_shape", ())
    if not layer.macs or not groups or not layer.inputs or not layer.outputs or not kernel:
        return ""
    read, written = layer.inputs[0].shape, layer.outputs[0].shape
    if min(len(read), len(written)) < 3 or min((*read, *written)) < 1 or read[1] % groups or written[1] % groups:
        return ""
    rows, filters, depth = written[0] * prod(written[2:]), written[1] // groups, read[1] // groups * prod(kernel)
    return TIMES.join(map(str, (rows, filters, depth))) if rows * filters * depth * groups == layer.macs else ""


def _window(layer: Layer) -> tuple[str, str, str, int | None]:
    """Return kernel, stride and dilation as text, and the groups; empty for a part that is not recorded.

    ONNX leaves out strides and dilations of 1.
    """
    parts = dict(layer.attributes)
    kernel = parts.get("kernel_shape", ())
    ones = (1,) * len(kernel)
    groups = layer.groups if layer.groups is not None else next(iter(parts.get("group", ())), None)
    kernel_text, stride, dilation = (
        TIMES.join(map(str, part)) for part in (kernel, parts.get("strides", ones), parts.get("dilations", ones))
    )
    return kernel_text, stride, dilation, groups


def _windows(subject: Subject, places: Sequence[int], timed: bool) -> Table:
    groups: dict[str, list[int]] = defaultdict(list)
    for index in places:
        kernel, stride, _, count_of_groups = _window(subject.layers[index])
        known = f"{kernel}, stride {stride}" if kernel else "not recorded"
        of_groups = "" if count_of_groups in (None, 1) else f", {count_of_groups} groups"
        groups[known + of_groups].append(index)
    rows: list[tuple[Value, ...]] = []
    for name, members in sorted(groups.items(), key=lambda item: (-subject.sum_ms(item[1]), -len(item[1]))):
        macs = [subject.layers[index].macs for index in members]
        total = sum(each for each in macs if each is not None) / 1e9 if None not in macs else None
        sum_ms = subject.sum_ms(members)
        times = (sum_ms, sum_ms / subject.layers_ms) if timed else (None, None)
        rows.append((name, len(members), total, *times))
    return without_empty_columns(_WINDOW_COLUMNS, rows[:_WINDOWS_SHOWN])


PANEL = profiles_panel("Convolutions", collect, is_tab=True)
