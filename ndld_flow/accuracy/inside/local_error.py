"""The error of each single node at reduced precision: a twin of each node gets the reference's exact values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import BUDGET_BYTES, capture_part, in_parts, tensor_bytes, tensors_of
from ndld_flow.accuracy.inside.layer_meters import LayerAgreement, RangeMeter
from ndld_flow.models.element_types import Signature, has_subgraphs, infer_types, is_op, signature_of, tensor_of
from ndld_flow.models.files import load_model, proto_with_external_data, save_model
from ndld_flow.models.lazy_tensors import FORMATS, Loss, RoundedTensor, SparseInitializer
from ndld_flow.models.nodes import FLOATING, UniqueNames, add_initializer, fixed_tensor
from ndld_flow.models.tensors import Array
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision.type_groups import CONTROL_FLOW, MOVES
from ndld_flow.records.accuracy import TensorRange
from ndld_flow.runtimes.protocol import SessionRequest

_FP32 = tensor_of(ir.DataType.FLOAT)
_WITHOUT_TWIN = (
    *MOVES,
    *CONTROL_FLOW,
    "Bernoulli",
    "Cast",
    "CastLike",
    "Constant",
    "ConstantOfShape",
    "EyeLike",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
"""Operators that compute nothing, or are random."""
_STORED_BYTES = 2**20
"""Size in bytes above which weights are not stored a second time, but rounded when the model runs."""


@dataclass(frozen=True)
class Twin:
    """A node and its twin."""

    node: ir.Node
    outputs: Mapping[str, str]
    """The node's fp32 outputs -> the twin's."""
    inputs: tuple[str, ...]
    """Inputs of the node that are rounded for the twin, except weights."""
    weights: tuple[RoundedTensor, ...]

    def losses(self) -> tuple[Loss, ...]:
        """Return the loss of each weight; reads the weights that were not stored a second time."""
        for weight in self.weights:
            if not weight.loss.largest:
                for _ in weight.pieces():
                    pass
        return tuple(weight.loss for weight in self.weights)

    @property
    def rounded_bytes(self) -> int:
        """Return the bytes of its weights that are rounded when the model runs: all are held in fp32 at once."""
        return sum(weight.source.nbytes for weight in self.weights if weight.source.nbytes > _STORED_BYTES)


class _TwinMaker:
    def __init__(self, model: ir.Model, dtype: ir.DataType) -> None:
        self._graph = model.graph
        self._opsets = model.opset_imports
        self._dtype = dtype
        self._types = infer_types(model)
        self._names = UniqueNames(model)
        self._rounded: dict[ir.Value, ir.Value] = {}
        self._weights: dict[ir.Value, RoundedTensor] = {}

    def twin(self, node: ir.Node) -> Twin | None:
        """Append a node's twin to the graph, or return None if it cannot have one."""
        signature = signature_of(node, self._opsets)
        if signature is None or is_op(node, *_WITHOUT_TWIN) or has_subgraphs(node):
            return None
        reduced_outputs = list(self._reducible(node.outputs, signature.outputs, signature))
        if not any(reduced_outputs):
            return None
        read = list(self._reducible(node.inputs, signature.inputs, signature))
        inputs = [self._round(value) if reduced else value for value, reduced in zip(node.inputs, read, strict=True)]
        outputs = self._copy(node, inputs)
        pairs = [
            (value, twin)
            for value, twin, reduced in zip(node.outputs, outputs, reduced_outputs, strict=True)
            if reduced
        ]
        rounded = dict.fromkeys(value for value, reduced in zip(node.inputs, read, strict=True) if value and reduced)
        return Twin(
            node,
            {value.name or "": self._round_trip(twin).name or "" for value, twin in pairs},
            tuple(value.name or "" for value in rounded if fixed_tensor(value) is None),
            tuple(self._weights[value] for value in rounded if value in self._weights),
        )

    def _reducible(
        self, values: Sequence[ir.Value | None], variables: Sequence[str], signature: Signature
    ) -> Iterator[bool]:
        """Yield for each port of a node whether it is fp32 and may have the reduced type."""
        reduced = tensor_of(self._dtype)
        for index, value in enumerate(values):
            admitted = index < len(variables) and signature.admits(variables[index], reduced)
            yield bool(value is not None and value.name and admitted and self._types.get(value) == _FP32)

    def _round(self, value: ir.Value | None) -> ir.Value | None:
        """Return a value rounded to the reduced precision, in fp32."""
        if value is not None and value not in self._rounded:
            tensor = fixed_tensor(value)
            if tensor is None:
                self._rounded[value] = self._round_trip(value)
            else:
                self._rounded[value] = value if isinstance(tensor, SparseInitializer) else self._weight(value, tensor)
        return None if value is None else self._rounded[value]

    def _weight(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a weight as `convert_fp16` stores it: finite values beyond the range become the largest number."""
        weight = self._weights[value] = RoundedTensor(tensor, self._dtype, value.name or "", lambda name: None)
        if tensor.nbytes <= _STORED_BYTES:
            return self._constant(value, weight.numpy().astype(np.float32))
        largest = np.array(FORMATS[self._dtype].largest, np.float32)
        below = self._add("Min", [value, self._constant(value, largest)], value)
        return self._round_trip(self._add("Max", [below, self._constant(value, -largest)], value))

    def _round_trip(self, value: ir.Value) -> ir.Value:
        to = (ir.AttrInt64("to", dtype.value) for dtype in (self._dtype, ir.DataType.FLOAT))
        return self._add("Cast", [self._add("Cast", [value], value, next(to))], value, next(to))

    def _add(self, op_type: str, inputs: Sequence[ir.Value], like: ir.Value, *attributes: ir.Attr) -> ir.Value:
        output = ir.Value(name=self._names.value(f"{like.name}_{op_type.lower()}"))
        name = self._names.node(output.name or "")
        self._graph.append(ir.Node("", op_type, inputs, attributes, outputs=[output], name=name))
        return output

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        """Append a copy of the node with other inputs."""
        names = (value.name and self._names.value(f"{value.name}_alone") for value in node.outputs)
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            node.attributes,
            outputs=[ir.Value(name=name) for name in names],
            name=self._names.node(f"{node.name or node.op_type}_alone"),
        )
        self._graph.append(copy)
        return copy.outputs

    def _constant(self, like: ir.Value, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> ir.Value:
        return add_initializer(self._graph, ir.Tensor(array, name=self._names.value(f"{like.name}_stored")))


@dataclass(frozen=True)
class LocalError:
    """One node at reduced precision, over all samples."""

    op_type: str
    outputs: tuple[str, ...]
    relative_rms: float
    """rms(c - r) / rms(r) of its worst output and sample, over elements that are finite in both (0 without any); c
    is computed in fp32 from rounded inputs and weights, and rounded."""
    nonfinite: int
    """Elements of its outputs that are NaN or infinite only at reduced precision."""
    output_ranges: tuple[TensorRange, ...]
    """Ranges of the exact outputs in the format: values that overflow or underflow when stored."""
    input_ranges: tuple[TensorRange, ...]
    """Ranges of the exact inputs in the format, except weights: values that overflowed earlier."""
    weights: tuple[Loss, ...]
    """Its weights and the loss of each: `clamped`, `vanished`, `largest`."""


def local_errors(
    source: Path, precision: str, samples: Collection[Mapping[str, Array]], settings: SessionRequest, scratch: Path
) -> dict[str, LocalError]:
    """Return first output of a node -> its error at `fp16` or `bf16`, for every fp32 node that can have that type.

    Each node has a reduced copy in one model, which runs once per sample, or more often if not all values fit in
    memory; weights on disk stay there. Inputs and weights are rounded as `convert_fp16` stores them. Nodes that only
    move data, that compute no floats, control flow and nodes in bodies are skipped. The order is that of execution.
    bf16 needs opset 13. Raises `ModelError` if the model cannot be read or run.
    """
    model, path = _prepared(source, scratch)
    dtype = FLOATING[precision]
    maker = _TwinMaker(model, dtype)
    nodes = list(model.graph)  # twins are appended to the graph
    twins = [twin for node in nodes if (twin := maker.twin(node)) is not None]
    measured = _Measured(twins, dtype)
    first = next(iter(samples), None)
    if first is None or not twins:
        return {}
    measured.add_inputs(samples)
    changed = proto_with_external_data(model, path).SerializeToString()
    quick = settings.unfused()
    for part in measured.parts(path, first, quick):
        for arrays in capture_part(path, part, samples, quick, changed):
            measured.add(arrays)
    return {error.outputs[0]: error for error in measured.errors()}


def _prepared(source: Path, scratch: Path) -> tuple[ir.Model, Path]:
    """Return a sorted model without local functions, and the file that holds it."""
    model = load_model(source)
    functions = len(model.functions)
    prepare(model, source)
    if not functions:
        return model, source
    path = scratch / "inlined.onnx"
    save_model(model, path)
    return load_model(path), path


class _Measured:
    """Agreements and ranges of the tensors of a model and of the reduced copies of its nodes."""

    def __init__(self, twins: Sequence[Twin], dtype: ir.DataType) -> None:
        self._twins = twins
        self._agreements = {output: LayerAgreement() for twin in twins for output in twin.outputs}
        self._alone = {output: alone for twin in twins for output, alone in twin.outputs.items()}
        tensors = (name for twin in twins for name in (*twin.inputs, *twin.outputs))
        self._ranges = {name: RangeMeter(name, FORMATS[dtype]) for name in tensors}

    def parts(self, path: Path, feeds: Mapping[str, Array], settings: SessionRequest) -> list[list[str]]:
        """Return groups of tensors to capture at once: those of the model, followed by the copies'."""
        places = [place for place in tensors_of(path) if place.name in self._ranges and place.can_be_captured]
        sizes = tensor_bytes(path, places, feeds, settings)
        rounded = {name: twin.rounded_bytes for twin in self._twins for name in twin.outputs}
        held = {name: size * 2 + rounded[name] if name in self._alone else size for name, size in sizes.items()}
        parts = in_parts(held, BUDGET_BYTES)
        return [[*part, *(self._alone[name] for name in part if name in self._alone)] for part in parts]

    def add_inputs(self, samples: Collection[Mapping[str, Array]]) -> None:
        """Add the model's inputs."""
        for feeds in samples:
            for name, array in feeds.items():
                if name in self._ranges:
                    self._ranges[name].add(array)

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Add the tensors of one sample."""
        for name, array in arrays.items():
            if name in self._ranges:
                self._ranges[name].add(array)
            if name in self._alone:
                self._agreements[name].add(array, arrays[self._alone[name]])

    def errors(self) -> Iterator[LocalError]:
        """Yield the error of each node."""
        ranges = {name: meter.range() for name, meter in self._ranges.items()}
        for twin in self._twins:
            agreements = [self._agreements[name] for name in twin.outputs]
            yield LocalError(
                op_type=twin.node.op_type,
                outputs=tuple(value.name for value in twin.node.outputs if value.name),
                relative_rms=max(agreement.metrics().get("relative_rms", 0.0) for agreement in agreements),
                nonfinite=sum(agreement.nonfinite for agreement in agreements),
                output_ranges=tuple(ranges[name] for name in twin.outputs),
                input_ranges=tuple(ranges[name] for name in twin.inputs),
                weights=twin.losses(),
            )
