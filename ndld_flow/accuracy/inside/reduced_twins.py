"""A model with a twin beside each node: the same node at reduced precision, fed what the node itself is fed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ndld_flow.models.control_flow_ties import CONTROL_FLOW
from ndld_flow.models.element_types import infer_types, subgraphs_of, tensor_of
from ndld_flow.models.float_tensors import FORMATS, Loss, RoundedTensor
from ndld_flow.models.op_signatures import Signature, is_op, signature_of
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.type_groups import MOVES, constant_tensor
from ndld_flow.models.unique_names import UniqueNames

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
"""Operators that compute nothing, or something else each time."""
_STORED_BYTES = 2**20
"""Larger weights are not stored a second time: they are rounded when the model runs."""


@dataclass(frozen=True)
class Twin:
    """A node and its twin."""

    node: ir.Node
    position: int
    """Of the node, in the order of execution."""
    outputs: Mapping[str, str]
    """The node's fp32 outputs -> the twin's."""
    inputs: tuple[str, ...]
    """What the node reads that is rounded for the twin, weights excepted."""
    weights: tuple[RoundedTensor, ...]

    def losses(self) -> tuple[Loss, ...]:
        """What its weights lose. Reads those that were not stored a second time."""
        for weight in self.weights:
            if not weight.loss.largest:
                for _ in weight.pieces():
                    pass
        return tuple(weight.loss for weight in self.weights)


def rounded_bytes(twin: Twin) -> int:
    """Of its weights that are rounded when the model runs: ONNX Runtime holds all of them, in fp32, at once."""
    large = (weight for weight in twin.weights if weight.source.nbytes > _STORED_BYTES)
    return sum(weight.source.nbytes for weight in large)


def add_twins(model: ir.Model, dtype: ir.DataType) -> list[Twin]:
    """Give each node of the main graph that can be of a precision its twin, in place; in the order of the nodes."""
    maker = _TwinMaker(model, dtype)
    nodes = list(enumerate(model.graph.all_nodes()))
    made = (maker.twin(node, position) for position, node in nodes if node.graph is model.graph)
    return [twin for twin in made if twin is not None]


class _TwinMaker:
    def __init__(self, model: ir.Model, dtype: ir.DataType) -> None:
        self._graph = model.graph
        self._opsets = model.opset_imports
        self._dtype = dtype
        self._types = infer_types(model)
        self._names = UniqueNames(model)
        self._rounded: dict[ir.Value, ir.Value] = {}
        self._weights: dict[ir.Value, RoundedTensor] = {}

    def twin(self, node: ir.Node, position: int) -> Twin | None:
        """Append a node's twin to the graph; None where it cannot have one."""
        signature = signature_of(node, self._opsets)
        if signature is None or is_op(node, *_WITHOUT_TWIN) or any(subgraphs_of(node)):
            return None
        made = list(self._reducible(node.outputs, signature.outputs, signature))
        if not any(made):
            return None
        read = list(self._reducible(node.inputs, signature.inputs, signature))
        inputs = [self._round(value) if reduced else value for value, reduced in zip(node.inputs, read, strict=True)]
        outputs = self._copy(node, inputs)
        pairs = [(value, twin) for value, twin, reduced in zip(node.outputs, outputs, made, strict=True) if reduced]
        rounded = dict.fromkeys(value for value, reduced in zip(node.inputs, read, strict=True) if value and reduced)
        return Twin(
            node,
            position,
            {value.name or "": self._there_and_back(twin).name or "" for value, twin in pairs},
            tuple(value.name or "" for value in rounded if constant_tensor(value) is None),
            tuple(self._weights[value] for value in rounded if value in self._weights),
        )

    def _reducible(
        self, values: Sequence[ir.Value | None], variables: Sequence[str], signature: Signature
    ) -> Iterator[bool]:
        """Which of a node's ports are fp32 and may have the reduced type."""
        reduced = tensor_of(self._dtype)
        for index, value in enumerate(values):
            admitted = index < len(variables) and signature.admits(variables[index], reduced)
            yield bool(value is not None and value.name and admitted and self._types.get(value) == _FP32)

    def _round(self, value: ir.Value | None) -> ir.Value | None:
        """A value as the reduced precision stores it, in fp32."""
        if value is not None and value not in self._rounded:
            tensor = constant_tensor(value)
            if tensor is None:
                self._rounded[value] = self._there_and_back(value)
            else:
                self._rounded[value] = value if isinstance(tensor, SparseInitializer) else self._weight(value, tensor)
        return None if value is None else self._rounded[value]

    def _weight(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """As `convert_fp16` stores it: finite values beyond the range become the largest number."""
        weight = self._weights[value] = RoundedTensor(tensor, self._dtype, value.name or "", lambda name: None)
        if tensor.nbytes <= _STORED_BYTES:
            return self._constant(value, weight.numpy().astype(np.float32))
        largest = np.array(FORMATS[self._dtype].largest, np.float32)
        below = self._add("Min", [value, self._constant(value, largest)], value)
        return self._there_and_back(self._add("Max", [below, self._constant(value, -largest)], value))

    def _there_and_back(self, value: ir.Value) -> ir.Value:
        to = (ir.AttrInt64("to", dtype.value) for dtype in (self._dtype, ir.DataType.FLOAT))
        return self._add("Cast", [self._add("Cast", [value], value, next(to))], value, next(to))

    def _add(self, op_type: str, inputs: Sequence[ir.Value], like: ir.Value, *attributes: ir.Attr) -> ir.Value:
        output = ir.Value(name=self._names.value(f"{like.name}_{op_type.lower()}"))
        name = self._names.node(output.name or "")
        self._graph.append(ir.Node("", op_type, inputs, attributes, outputs=[output], name=name))
        return output

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        """The same node once more, reading other inputs."""
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
        name = self._names.value(f"{like.name}_stored")
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT))
        value.const_value = ir.Tensor(array, name=name)
        self._graph.register_initializer(value)
        return value
