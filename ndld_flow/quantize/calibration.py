"""Calibration: the ranges of a model's activations, measured on samples."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCollector

from ndld_flow.accuracy.inside.capture import capture_in_parts
from ndld_flow.models.external_files import external_files
from ndld_flow.models.streaming_statistics import Extremes
from ndld_flow.models.tensors import Array, identifying_bytes
from ndld_flow.quantize.prepared_model import PreparedModel
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.store.digest import digest_file

_LOCK = threading.RLock()
_LOG = logging.getLogger(__name__)


class _WarningCollector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def captured_output() -> Iterator[list[str]]:
    """Collect warnings of the root logger and drop printed output; restore the logger afterwards.

    The quantizer prints, and logs to the root logger, which would then write to the terminal.
    """
    root, collector = logging.getLogger(), _WarningCollector()
    with _LOCK, contextlib.redirect_stdout(io.StringIO()):
        before, root.handlers[:] = list(root.handlers), [collector]
        try:
            yield collector.lines
        finally:
            root.handlers[:] = before


_Span = tuple[float, float, float]
_BINS = {"entropy": 128, "percentile": 2048}
"""As in ONNX Runtime's own calibrators."""


@dataclass(frozen=True)
class Range:
    """The range that an activation's scale spans, and the extremes on the samples."""

    low: float
    high: float
    minimum: float
    maximum: float
    rms: float
    """Root of the mean square over all samples."""
    saturated_share: float = 0.0
    """Share of elements outside the range, which saturate."""


@dataclass(frozen=True)
class Ranges:
    """The ranges of a prepared model's activations."""

    tensors: Mapping[str, Range]
    sample_count: int
    nonfinite: frozenset[str] = frozenset()
    """Tensors with NaN or infinity: nodes that read or write them stay unquantized."""

    def with_nonfinite(self, prepared: PreparedModel) -> set[str]:
        """Return the first outputs of nodes that read or write such tensors."""
        return {node.output for node in prepared.nodes if not self.nonfinite.isdisjoint((*node.reads, *node.makes))}


@dataclass(frozen=True)
class Workspace:
    """A scratch folder, a progress callback, and the step's log."""

    scratch: Path
    progress: Callable[[int, int, str], None] = lambda done, total, what: None
    log: logging.Logger = _LOG


@dataclass
class Measured:
    """The ranges of a model's tensors on the same samples, measured in the same way: what is quantized does not change
    them.
    """

    tensors: dict[str, Range] = field(default_factory=dict)
    nonfinite: set[str] = field(default_factory=set)
    sample_count: int = 0

    def add(self, ranges: Ranges) -> None:
        """Add ranges in place."""
        self.tensors.update(ranges.tensors)
        self.nonfinite.update(ranges.nonfinite)
        self.sample_count = ranges.sample_count

    def of(self, names: Sequence[str]) -> Ranges:
        """Return the ranges of these tensors."""
        known = {name: self.tensors[name] for name in names if name in self.tensors}
        return Ranges(known, self.sample_count, frozenset(self.nonfinite.intersection(names)))


def digest_values(values: Mapping[str, Array]) -> bytes:
    """Return a digest of the inputs of a sample."""
    digest = hashlib.blake2b(digest_size=16)
    for part in identifying_bytes(values):
        digest.update(part)
    return digest.digest()


def recall_measured(
    source: Path, digests: Sequence[bytes], settings: QuantizeSettings, runtime: SessionRequest
) -> Measured:
    """Return what this process has measured of a model on the samples with these digests: each form of its
    quantization, and each search for one, needs nearly the same ranges.
    """
    parts = [source, *(source.parent / name for name in external_files(source))]
    how = (settings.least_opset, settings.method, settings.percentile, settings.symmetric_activations)
    return measured_under(repr((*map(digest_file, parts), digests, how, runtime)))


@lru_cache(maxsize=8)
def measured_under(key: str) -> Measured:
    """Return what this process has measured under a key, which only the cache reads."""
    del key
    return Measured()


def calibrate(
    prepared: PreparedModel,
    samples: Iterable[Mapping[str, Array]],
    settings: QuantizeSettings,
    runtime: SessionRequest,
    workspace: Workspace,
    measured: Measured | None = None,
) -> Ranges:
    """Run the prepared model on every sample and measure the range of every activation that may be quantized, except
    those that are `measured`, which gets the others.

    Only one sample's tensors are in memory at a time, plus a histogram of each. With `mode: dynamic` there is nothing
    to measure.

    Raises `ModelError` if the model does not run.
    """
    nodes = prepared.chosen() if settings.mode == "static" else []
    wanted = list(dict.fromkeys(name for node in nodes for name in (*node.reads, *node.makes)))
    if not wanted:
        return Ranges({}, 0)
    known = measured if measured is not None else Measured()
    lacking = [name for name in wanted if name not in known.tensors and name not in known.nonfinite]
    if lacking:
        known.add(_measure(prepared, samples, lacking, settings, runtime, workspace))
    return known.of(wanted)


def _measure(
    prepared: PreparedModel,
    samples: Iterable[Mapping[str, Array]],
    wanted: Sequence[str],
    settings: QuantizeSettings,
    runtime: SessionRequest,
    workspace: Workspace,
) -> Ranges:
    """Measure the ranges of these tensors."""
    energies = {name: _Energy() for name in wanted}
    histograms = None if settings.method == "minmax" else _Histograms(settings)
    count = 0
    inside = [name for name in wanted if name not in prepared.inputs]
    # Without optimization every tensor of the model exists, under its own name.
    for count, tensors in capture_in_parts(prepared.saved(), inside, samples, runtime.unfused()):
        workspace.progress(count, 0, "calibrating")
        for name in tensors.keys() & energies:
            energies[name].add(tensors[name])
            if histograms is not None and energies[name].is_finite:
                histograms.add(name, tensors[name])
    finite = {name: energy for name, energy in energies.items() if energy.is_finite and energy.count}
    spans = {} if histograms is None else histograms.spans(finite)
    ranges = {name: energy.range(spans.get(name)) for name, energy in finite.items()}
    return Ranges(ranges, count, frozenset(energies.keys() - ranges.keys()))


@dataclass
class _Energy(Extremes):
    """Extremes and energy of one tensor."""

    energy: float = 0.0

    @property
    def is_finite(self) -> bool:
        return not (self.nans or self.infinities)

    def add(self, piece: Array) -> Array:
        finite = super().add(piece)
        self.energy += float(np.square(finite, dtype=np.float64).sum())
        return finite

    def range(self, span: _Span | None) -> Range:
        low, high, saturated = span or (self.minimum, self.maximum, 0.0)
        # Never wider than the observed values: a Relu can be absorbed into its output's range, which starts at 0.
        low, high = max(low, self.minimum), min(high, self.maximum)
        rms = math.sqrt(self.energy / self.count)
        return Range(float(low), float(high), float(self.minimum), float(self.maximum), rms, saturated)


class _Histograms:
    """Histograms by ONNX Runtime's collector, fed one tensor of one sample at a time."""

    def __init__(self, settings: QuantizeSettings) -> None:
        # Only for this combination are absolute values counted.
        self._absolute = settings.symmetric_activations and settings.method == "percentile"
        self._collector = HistogramCollector(
            settings.method, self._absolute, _BINS[settings.method], 128, settings.percentile, "same"
        )

    def add(self, name: str, values: Array) -> None:
        if values.size:
            with captured_output():
                self._collector.collect({name: np.asarray(values, np.float32)})

    def spans(self, names: Collection[str]) -> dict[str, _Span]:
        """Return tensor -> (low, high, share of elements outside)."""
        for name in self._collector.histogram_dict.keys() - names:
            del self._collector.histogram_dict[name]
        with captured_output():
            results = self._collector.compute_collection_result()
        return {name: self._span(name, *map(float, span[:2])) for name, span in results.items()}

    def _span(self, name: str, low: float, high: float) -> _Span:
        counts, edges = self._collector.histogram_dict[name][:2]
        middles = (edges[:-1] + edges[1:]) / 2
        outside = counts[(middles > high) | (middles < (-high if self._absolute else low))].sum()
        return low, high, float(outside / max(counts.sum(), 1))
