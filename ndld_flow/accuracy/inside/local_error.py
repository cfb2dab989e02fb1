"""What every node alone does wrong at reduced precision: each is fed the reference's exact values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import BUDGET_BYTES, capture_part
from ndld_flow.accuracy.inside.layer_agreement import LayerAgreement
from ndld_flow.accuracy.inside.ranges import RangeMeter
from ndld_flow.accuracy.inside.reduced_twins import Twin, add_twins, rounded_bytes
from ndld_flow.accuracy.inside.tensor_places import in_parts, tensor_bytes, tensors_of
from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import load_model, proto_in_place, save_model
from ndld_flow.models.float_tensors import FORMATS, Loss
from ndld_flow.models.node_precision import FLOATING
from ndld_flow.models.tensors import Array
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.records.divergence import TensorRange
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

_FIRST_OPSET_OF_BF16 = 13


@dataclass(frozen=True)
class LocalError:
    """One node at reduced precision, over all samples."""

    node: str
    op_type: str
    position: int
    """In the order of execution, once local functions are inlined."""
    outputs: tuple[str, ...]
    relative_rms: float
    """rms(c - r) / rms(r) of its worst output and sample, over what is finite in both (0 where nothing is); c is
    computed from rounded inputs and weights, in fp32, and rounded."""
    nonfinite: int
    """Elements of its outputs that are NaN or infinite only at reduced precision."""
    output_ranges: tuple[TensorRange, ...]
    """The exact outputs against the format: what overflows or vanishes when they are stored."""
    input_ranges: tuple[TensorRange, ...]
    """The exact inputs against the format, weights excepted: what has overflowed before."""
    weights: tuple[Loss, ...]
    """Its weights and what each loses: `clamped`, `vanished`, `largest`."""


def local_errors(
    source: Path, precision: str, samples: Collection[Mapping[str, Array]], settings: SessionSettings, scratch: Path
) -> dict[str, LocalError]:
    """First output of a node -> what it does wrong at `fp16` or `bf16`, for every fp32 node that can be of it.

    Each node has a twin in one model, which is run once for a sample, or more often where not all values fit in memory;
    weights on disk stay there. Inputs and weights are rounded as `convert_fp16` stores them. Nodes that only move data,
    that make no floats, control flow and nodes in bodies are left out. In the order of execution. Raises `RequestError`
    for bf16 before opset 13, `ModelError` when the model cannot be read or run.
    """
    model, path = _prepared(source, scratch)
    dtype = FLOATING[precision]
    opset = model.opset_imports.get("", _FIRST_OPSET_OF_BF16)
    if dtype == ir.DataType.BFLOAT16 and opset < _FIRST_OPSET_OF_BF16:
        raise RequestError(
            f"{source}: bf16 needs opset {_FIRST_OPSET_OF_BF16} or later, and the model has {opset}. Convert it first "
            "(step edit, operation set_opset)."
        )
    twins = add_twins(model, dtype)
    measured = _Measured(twins, dtype)
    first = next(iter(samples), None)
    if first is None or not twins:
        return {}
    measured.add_inputs(samples)
    changed = proto_in_place(model, path).SerializeToString()
    quick = replace(settings, optimization="disabled")
    for part in measured.parts(path, first, quick):
        for arrays in capture_part(path, part, samples, quick, changed):
            measured.add(arrays)
    return {error.outputs[0]: error for error in measured.errors()}


def _prepared(source: Path, scratch: Path) -> tuple[ir.Model, Path]:
    """A model without local functions, its nodes in order; and the file it is in."""
    model = load_model(source)
    functions = len(model.functions)
    prepare(model, source)
    if not functions:
        return model, source
    path = scratch / "inlined.onnx"
    save_model(model, path)
    return load_model(path), path


class _Measured:
    """What is known of the tensors of a model and of the twins of its nodes."""

    def __init__(self, twins: Sequence[Twin], dtype: ir.DataType) -> None:
        self._twins = twins
        self._agreements = {output: LayerAgreement() for twin in twins for output in twin.outputs}
        self._alone = {output: alone for twin in twins for output, alone in twin.outputs.items()}
        tensors = (name for twin in twins for name in (*twin.inputs, *twin.outputs))
        self._ranges = {name: RangeMeter(name, FORMATS[dtype]) for name in tensors}

    def parts(self, path: Path, feeds: Mapping[str, Array], settings: SessionSettings) -> list[list[str]]:
        """Tensors to be had at once: those of the model, and behind each the twin's."""
        places = [place for place in tensors_of(path) if place.name in self._ranges and place.can_be_captured]
        sizes = tensor_bytes(path, places, feeds, settings)
        rounded = {name: rounded_bytes(twin) for twin in self._twins for name in twin.outputs}
        held = {name: size * 2 + rounded[name] if name in self._alone else size for name, size in sizes.items()}
        parts = in_parts(held, BUDGET_BYTES)
        return [[*part, *(self._alone[name] for name in part if name in self._alone)] for part in parts]

    def add_inputs(self, samples: Collection[Mapping[str, Array]]) -> None:
        """Take in what the model is fed."""
        for feeds in samples:
            for name, array in feeds.items():
                if name in self._ranges:
                    self._ranges[name].add(array)

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Take in what one sample came to."""
        for name, array in arrays.items():
            if name in self._ranges:
                self._ranges[name].add(array)
            if name in self._alone:
                self._agreements[name].add(array, arrays[self._alone[name]])

    def errors(self) -> Iterator[LocalError]:
        """One for each node."""
        ranges = {name: meter.range() for name, meter in self._ranges.items()}
        for twin in self._twins:
            agreements = [self._agreements[name] for name in twin.outputs]
            yield LocalError(
                node=twin.node.name or "",
                op_type=twin.node.op_type,
                position=twin.position,
                outputs=tuple(value.name for value in twin.node.outputs if value.name),
                relative_rms=max(agreement.metrics().get("relative_rms", 0.0) for agreement in agreements),
                nonfinite=sum(agreement.nonfinite for agreement in agreements),
                output_ranges=tuple(ranges[name] for name in twin.outputs),
                input_ranges=tuple(ranges[name] for name in twin.inputs),
                weights=twin.losses(),
            )
