"""Bounds for changes that keep all values: ten times what rounding alone does to the reference's outputs.

A bound of 5 % passes another mode of Resize (2.7 %) or a gain of 0.96, and a fixed one of 1e-4 refuses an identical
model whose outputs hang on cancellation. So the reference itself shows how far rounding moves its outputs on these
samples: it runs three times with every weight moved by -1, 0 or 1 unit in its last place, and once without the
optimizations of ONNX Runtime, which compute in another order. Of 296 healthy conversions of 26 models that were
measured none was beyond ten times the largest of these errors, and most not beyond once. A gain of 1.03 of one weight
was, in 115 of 120 cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ndld_flow.accuracy.agreement import Agreement, Measuring
from ndld_flow.accuracy.inside.capture import run_each
from ndld_flow.accuracy.model_comparison import ComparedModel, Comparison, ModelPair, storable
from ndld_flow.accuracy.power.faults import weight_sites
from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.text import one_paragraph
from ndld_flow.models.files import load_model, proto_with_external_data
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, open_model
from ndld_flow.samples.sample_feeds import SampleArrays

_TIMES = 10.0
_DRAWS = 3
_FLOOR = 2.0**-23
"""Rounding of float32 relative to 1, below which no error counts."""
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_COMPARING = frozenset(
    ("Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Round", "ScatterElements")
)
"""Operators where a weight may be meant exactly: a limit that is also a value of a table."""

Bounds = Mapping[str, Mapping[str, float]]
"""Output -> metric -> bound."""
Errors = Mapping[str, Mapping[str, float]]
"""Output -> metric -> its value."""


def can_measure(pair: ModelPair) -> bool:
    """Return whether both models run in ONNX Runtime on the CPU, on single samples."""
    sides = (pair.reference, pair.candidate)
    in_place = all(side.request is None and full_name(side.settings.provider) == CPU for side in sides)
    return in_place and pair.sequences is None


def rounding_bounds(pair: ModelPair, comparisons: Sequence[Comparison]) -> tuple[Sequence[Bounds], tuple[str, ...]]:
    """Return the bounds of each output for each comparison, of all samples of the pair or the first ones, and notes.

    They are ten times the largest error by rounding, and at most the default ones, which are those of an output that
    rounding could not be measured on. Without bounds, a note has the reason why the changed reference cannot be made
    or run.
    """
    try:
        errors: list[list[Errors]] = [[] for _ in comparisons]
        for session in _rounded(pair.reference):
            for measured, found in zip(errors, _errors(session, pair, comparisons), strict=True):
                measured.append(found)
        return [_bounds_of(*each) for each in zip(comparisons, errors, strict=True)], ()
    except Exception as error:  # a model of 2 GB in memory cannot be written; the check goes on by the default bounds
        reason = one_paragraph(str(error) or type(error).__name__)
        return [{}] * len(comparisons), (
            f"judged by the default bounds, since rounding could not be measured: {reason}",
        )


def _bounds_of(compared: Comparison, errors: Sequence[Errors]) -> Bounds:
    usual = {output.name: Tolerance().bounds(output.yardstick.kind) for output in compared.outputs}
    largest: dict[str, dict[str, float]] = {}
    for measured in errors:
        for name, metrics in measured.items():
            known = largest.setdefault(name, {})
            for metric in usual[name].keys() & metrics.keys():
                known[metric] = max(known.get(metric, 0.0), metrics[metric])
    return {
        name: {
            metric: min(bound, _TIMES * max(largest.get(name, {}).get(metric, bound), _FLOOR))
            for metric, bound in bounds.items()
        }
        for name, bounds in usual.items()
    }


def _rounded(reference: ComparedModel) -> Iterator[OnnxruntimeSession]:
    """Yield the reference without optimizations, and with moved weights, one after another."""
    yield open_model(reference.to_run, replace(reference.settings, optimization="disabled"))
    model = load_model(reference.to_run)
    LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=1)(model)
    sites = weight_sites(model)
    exact = {site.weight for site in sites if site.reader.op_type in _COMPARING}
    rounded = [site.weight for site in sites if site.weight not in exact and _is_rounded(site.weight.const_value)]
    right = {weight: np.array(weight.const_value.numpy()) for weight in rounded if weight.const_value is not None}
    for seed in range(_DRAWS):
        stream = np.random.default_rng(seed)
        for weight, values in right.items():
            weight.const_value = ir.tensor(_moved(values, stream), name=weight.name)
        changed = proto_with_external_data(model, reference.to_run).SerializeToString()
        yield open_model(reference.to_run, reference.settings, changed)


def _is_rounded(tensor: ir.TensorProtocol | None) -> bool:
    """Return whether a weight may have been rounded: integers and 0.5 have not, nor has a tensor of nothing else."""
    if tensor is None or tensor.dtype not in _FLOATS:
        return False
    values = tensor.numpy()
    return bool(np.any(np.isfinite(values) & (2 * values != np.round(2 * values))))


def _moved(values: Array, stream: np.random.Generator) -> Array:
    """Return values that are each off by -1, 0 or 1 unit in the last place."""
    steps = stream.integers(-1, 2, values.shape).astype(values.dtype)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(values), values + steps * np.spacing(np.abs(values)), values).astype(values.dtype)


def _errors(session: OnnxruntimeSession, pair: ModelPair, comparisons: Sequence[Comparison]) -> list[Errors]:
    """Return the metrics of each output against the reference's, on the samples of each comparison."""
    agreements = [
        {output.name: Agreement(Measuring(), output.yardstick) for output in compared.outputs if not output.wrong}
        for compared in comparisons
    ]
    for i, computed in enumerate(run_each(session, SampleArrays(pair.complete_samples))):
        for compared, by_output in zip(comparisons, agreements, strict=True):
            right = compared.kept_reference[i] if i < len(compared.samples) else {}
            for name, agreement in by_output.items():
                r, c = agreement.yardstick.pair(name, right, computed)
                if r is not None and c is not None and r.shape == c.shape:
                    agreement.add(r, storable(c))
    return [{name: agreement.metrics() for name, agreement in by_output.items()} for by_output in agreements]
