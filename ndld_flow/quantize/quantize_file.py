"""Quantisation of a model file: prepare, calibrate, quantise, check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.quantities import number
from ndld_flow.models.external_files import external_files
from ndld_flow.models.files import check_model, load_model, summarize_model
from ndld_flow.precision.constraints.search_result import find_kept_nodes, first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.quantize.calibration import Ranges, calibrate
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode, prepare_model
from ndld_flow.quantize.quantized_model import write_quantized
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.samples.sample_feeds import Samples


@dataclass(frozen=True)
class QuantizeInputs:
    """Inputs of a quantisation besides the model."""

    samples: Samples | None
    """Samples to calibrate on; None for dynamic quantisation."""
    search: PrecisionSearch | None
    """A search whose nodes stay unquantised."""


@dataclass(frozen=True)
class Workspace:
    """A scratch folder and a progress callback."""

    scratch: Path
    progress: Callable[[int, int, str], None]


@dataclass(frozen=True)
class Quantization:
    """The result of a quantisation."""

    change: GraphChange
    nodes: tuple[QuantizableNode, ...]
    """The quantised nodes."""
    layers: int
    """Number of nodes of the operators to quantise; following nodes do not count."""
    description: str
    """`uint8 x int8, minmax on 4 samples`."""
    size_before: int
    """Bytes on disk, external data included."""
    size_after: int


def quantize_file(
    source: Path, target: Path, settings: QuantizeSettings, data: QuantizeInputs, workspace: Workspace
) -> Quantization:
    """Write `source` quantised to `target`.

    Raises `ModelError` for a model that cannot be read, converted or run, `RequestError` for settings that do not fit.
    """
    workspace.progress(0, 0, "preparing")
    exclude = found_outputs(source, data.search)
    prepared = prepare_model(source, workspace.scratch / "prepared.onnx", settings)
    ranges = _calibrated(prepared, settings, data.samples, workspace)
    workspace.progress(0, 0, "quantising")
    written = write_quantized(prepared, target, ranges, settings, exclude)
    check_model(target)
    notes = [*prepared.notes, *(data.samples.notes if data.samples else ()), *_saturation_notes(ranges), *written.notes]
    change = GraphChange(before=prepared.before, after=summarize_model(load_model(target)), notes=tuple(notes))
    description = _describe(settings, ranges)
    return Quantization(change, written.nodes, prepared.layers, description, file_bytes(source), file_bytes(target))


def found_outputs(source: Path, search: PrecisionSearch | None) -> set[str]:
    if search is None:
        return set()
    model = load_model(source)
    prepare(model, source)
    return {first_output(node) for node in find_kept_nodes(model, search)}


def _calibrated(
    prepared: PreparedModel, settings: QuantizeSettings, samples: Samples | None, workspace: Workspace
) -> Ranges:
    if samples is None:
        return Ranges({}, 0)
    count = len(samples)
    fed = ({name: feed.values for name, feed in sample.feeds.items()} for sample in samples)

    def report(done: int, total: int, what: str) -> None:
        workspace.progress(done, count, what)

    return calibrate(prepared, fed, settings, workspace.scratch, report)


def _saturation_notes(ranges: Ranges) -> list[str]:
    """Return a note on the values that the ranges saturate."""
    worst = max(ranges.tensors.items(), key=lambda item: item[1].saturated_share, default=None)
    if worst is None or worst[1].saturated_share == 0.0:
        return []
    name, span = worst
    cut = sum(each.saturated_share > 0 for each in ranges.tensors.values())
    return [
        f"{cut} of {len(ranges.tensors)} ranges saturate values, most in {name}: {span.saturated_share:.3%} of its "
        f"values are outside {number(span.low)} to {number(span.high)}"
    ]


def _describe(settings: QuantizeSettings, ranges: Ranges) -> str:
    if settings.mode == "dynamic":
        return f"dynamic {settings.weights}"
    samples = f"{ranges.sample_count} sample{'s' if ranges.sample_count != 1 else ''}"
    return f"{settings.activation_type} x {settings.weights}, {settings.method} on {samples}"


def file_bytes(path: Path) -> int:
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in external_files(path))
