"""Writer of int8 models with some nodes kept, for the precision search; writes as `quantize` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ndld_flow.models.files import load_model
from ndld_flow.models.node_selection import nodes_named
from ndld_flow.models.tensors import Array
from ndld_flow.precision.constraints.search_result import find_kept_nodes, first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision_search.int8_evidence import NO_ERROR, Int8Error, Spread
from ndld_flow.precision_search.reducers import searched_nodes
from ndld_flow.quantize.calibration import calibrate
from ndld_flow.quantize.int8_errors import int8_errors, write_copies
from ndld_flow.quantize.prepared_model import QuantizableNode, prepare_model
from ndld_flow.quantize.quantized_model import write_quantized
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.samples.sample_feeds import Samples


class Int8Reducer:
    """Calibrates once; keeps nodes in addition to `keep` (names and globs) and those that the settings exclude.

    Raises `ModelError` for a model that cannot be read or run, `RequestError` for a name that fits no node.
    """

    def __init__(
        self, source: Path, settings: QuantizeSettings, keep: Sequence[str], samples: Samples, scratch: Path
    ) -> None:
        self._source = source
        self._settings = settings
        self._prepared = prepare_model(source, scratch / "prepared.onnx", settings)
        fed = ({name: feed.values for name, feed in sample.feeds.items()} for sample in samples)
        self._ranges = calibrate(self._prepared, fed, settings, scratch)
        model = load_model(source)
        prepare(model, source)
        self.nodes = searched_nodes(model)
        kept = nodes_named(model, keep, "keep").items()
        kept_by_name = {first_output(node): f"keep {pattern!r}" for pattern, nodes in kept for node in nodes}
        infinite = dict.fromkeys(self._ranges.with_nonfinite(self._prepared), "NaN or infinity on the samples")
        self._kept = {**kept_by_name, **infinite}
        able = {node.output for node in self._prepared.chosen()}
        changing = {node.output for node in self._prepared.chosen(self._kept)}
        self.candidates = tuple(node.position for node in self.nodes if node.output in changing)
        self.always_kept: Mapping[int, str] = {
            node.position: self._kept.get(node.output, "its inputs are kept")
            for node in self.nodes
            if node.output in able - changing
        }

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        return settings_of(self._settings)

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model with the nodes `kept` unquantised."""
        self._write({node.output for node in self.nodes if node.position in kept}, target)

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as `quantize` with `found_by` does."""
        model = load_model(self._source)
        prepare(model, self._source)
        self._write({first_output(node) for node in find_kept_nodes(model, search)}, target)

    def int8_errors(
        self, samples: Collection[Mapping[str, Array]], settings: SessionSettings, scratch: Path
    ) -> Mapping[str, Int8Error]:
        """Return first output of a node -> its own error; empty for the integer operators of `mode: dynamic`."""
        quantized = scratch / "all_int8.onnx"
        self.write(frozenset(), quantized)
        nodes = self._prepared.chosen(self._kept)
        copies = write_copies(self._prepared.path, nodes, quantized, scratch / "copies.onnx")
        errors = int8_errors(copies, samples, settings)
        # A node without a copy was fused into the one before it, whose error includes its rounding.
        if not errors:
            return {}
        return {node.output: replace(errors.get(node.output, NO_ERROR), inputs=self._inputs(node)) for node in nodes}

    def _inputs(self, node: QuantizableNode) -> tuple[Spread, ...]:
        """Return the spreads of the model inputs that a node reads."""
        ranges = {name: self._ranges.tensors[name] for name in node.reads if name in self._prepared.inputs}
        return tuple(Spread(name, spread.minimum, spread.maximum, spread.rms) for name, spread in ranges.items())

    def _write(self, outputs: set[str], target: Path) -> None:
        write_quantized(self._prepared, target, self._ranges, self._settings, outputs.union(self._kept))


def settings_of(settings: QuantizeSettings) -> dict[str, bool | int | float | str]:
    """Return the settings that a step which uses the search's result must share."""
    return {
        "mode": settings.mode,
        "target": settings.target,
        "method": settings.method,
        "activations": settings.activation_type,
        "weights": settings.weights,
        "per_channel": settings.per_channel,
        "reduce_range": settings.reduces_range,
        "symmetric": settings.symmetric_activations,
        "min_intensity": settings.least_intensity,
    }
