"""Compare each node of custom operators, as a library computes it, with the operator's reference on the same inputs.

The model runs once with the library, and the values that each node read and wrote are taken from that run. The
reference computes its outputs from exactly these inputs, so that errors of one node do not reach the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.parser import ParseError, parse_function

from ndld_flow.accuracy.accuracy_record import Criteria
from ndld_flow.accuracy.agreement import Agreement, find_yardstick
from ndld_flow.accuracy.inside.capture import capture_part
from ndld_flow.accuracy.model_comparison import ComparedOutput, storable
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import one_paragraph, suggest
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.models.files import all_graphs, load_model, read_proto
from ndld_flow.models.nodes import op_name
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import OutputAgreement
from ndld_flow.runtimes.custom_operators import PYTHON, CustomOperator
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

Feeds = Mapping[str, Array]
Reference = Callable[[onnx.NodeProto, Sequence[Array | None]], Sequence[Array]]
"""Computes a node's outputs from its inputs; None for an omitted input."""


@dataclass(frozen=True)
class OperatorChecks:
    """The agreement of every checked node's outputs, and what was not checked."""

    node_count: int
    outputs: tuple[OutputAgreement, ...]
    notes: tuple[str, ...]


def operator_name(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def check_operators(
    model: Path,
    operators: Mapping[str, CustomOperator],
    samples: Iterable[tuple[str, Feeds]],
    settings: OnnxruntimeRequest,
    criteria: Criteria,
    scratch: Path,
) -> OperatorChecks:
    """Run a model, and compare every node of the operators that have a reference.

    `samples` are labels and inputs; `settings` load the libraries. Raises `RequestError` if no node is checked or a
    reference fails, and `ModelError` or `BackendError` as `open_model`.
    """
    proto = read_proto(model)
    nodes = _find_nodes(proto, operators)
    references = {name: _load(name, operators[name], scratch) for name in dict.fromkeys(map(operator_name, nodes))}
    known = _known_values(model, nodes)
    computed = {name for node in proto.graph.node for name in node.output}
    wanted = list(dict.fromkeys(name for node in nodes for name in (*node.input, *node.output) if name in computed))
    results = [_NodeResults(node) for node in nodes]
    held = list(samples)
    for (label, feeds), tensors in zip(
        held, capture_part(model, wanted, (feeds for _, feeds in held), settings), strict=True
    ):
        values = {**known, **feeds, **tensors}
        for result in results:
            result.add(label, values, references[operator_name(result.node)])
    compared = [output for result in results for output in result.compare(criteria)]
    notes = [*_unchecked(model, nodes, operators)]
    flat = [output.name for output in compared if output.agreement.is_weak_evidence]
    if flat:
        notes.append(f"the reference is constant in {', '.join(flat)}, so agreement there is weak evidence")
    return OperatorChecks(len(nodes), tuple(map(criteria.judge, compared)), tuple(notes))


def _find_nodes(proto: onnx.ModelProto, operators: Mapping[str, CustomOperator]) -> list[onnx.NodeProto]:
    """Return the nodes of the main graph whose operator has a reference."""
    checked = {name for name, operator in operators.items() if operator.reference is not None}
    if not checked:
        raise RequestError("no custom operator has a `reference`, so there is nothing to check: add one")
    nodes = [node for node in proto.graph.node if operator_name(node) in checked]
    if not nodes:
        present = sorted({operator_name(node) for node in proto.graph.node})
        hint = suggest(sorted(checked)[0], present)
        raise RequestError(f"the model has no node of {', '.join(sorted(checked))} in its main graph; {hint}")
    return nodes


def _unchecked(path: Path, nodes: Sequence[onnx.NodeProto], operators: Mapping[str, CustomOperator]) -> Iterator[str]:
    """Yield a sentence for everything that was not checked."""
    model = load_model(path)
    inner = Counter(op_name(node) for graph in all_graphs(model) if graph is not model.graph for node in graph)
    main = {op_name(node) for node in model.graph}
    checked = {operator_name(node) for node in nodes}
    for name, operator in operators.items():
        if operator.reference is None:
            yield f"{name} was not checked: it has no reference"
        elif name not in main:
            yield f"{name} was not checked: the model's main graph has no such node"
        if inner[name]:
            yield f"{counted(inner[name], 'node')} of {name} in subgraphs and functions were not checked"
        if operator.plugin is not None:
            yield f"the TensorRT plugin of {name} was not checked: only engines load it"
        if name in checked and operator.library is None:
            yield f"{name} has no library here: ONNX Runtime itself, or a library of another operator, computed it"


def _known_values(model: Path, nodes: Sequence[onnx.NodeProto]) -> dict[str, Array]:
    """Return the initializers that nodes read."""
    read = {name for node in nodes for name in node.input}
    held = load_model(model).graph.initializers
    return {
        name: np.asarray(value.const_value.numpy())
        for name, value in held.items()
        if name in read and value.const_value is not None
    }


@dataclass
class _NodeResults:
    """The outputs of one node and of its reference, sample by sample."""

    node: onnx.NodeProto
    labels: list[str] = field(default_factory=list)
    computed: list[list[Array]] = field(default_factory=list)
    expected: list[list[Array]] = field(default_factory=list)

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.node.output if name]

    def add(self, label: str, values: Feeds, reference: Reference) -> None:
        missing = [name for name in (*self.node.input, *self.outputs) if name and name not in values]
        if missing:
            raise ModelError(f"{self.title(missing[0])}: this tensor has no values that can be compared")
        inputs = [values[name] if name else None for name in self.node.input]
        expected = [storable(np.asarray(array)) for array in reference(self.node, inputs)]
        if len(expected) != len(self.outputs):
            raise RequestError(
                f"the reference of {operator_name(self.node)} returned {len(expected)} arrays for a node with "
                f"{len(self.outputs)} outputs"
            )
        self.labels.append(label)
        self.computed.append([values[name] for name in self.outputs])
        self.expected.append(expected)

    def title(self, output: str) -> str:
        return f"{output} of {operator_name(self.node)}"

    def compare(self, criteria: Criteria) -> Iterator[ComparedOutput]:
        """Yield the comparison of each output over all samples."""
        for index, name in enumerate(self.outputs):
            title = self.title(name)
            values = [arrays[index] for arrays in self.expected]
            yardstick = find_yardstick(lambda values=values: iter(values))  # type: ignore[misc]
            agreement = Agreement(criteria.measuring(title), yardstick)
            output = ComparedOutput((title, title), agreement, yardstick=yardstick)
            for label, computed, expected in zip(self.labels, self.computed, values, strict=True):
                output.add(label, {title: expected}, {title: computed[index]}, {})
            yield output


# --- References ------------------------------------------------------------------------------------------------------


def _load(name: str, operator: CustomOperator, scratch: Path) -> Reference:
    assert operator.reference is not None
    if operator.reference.suffix == PYTHON:
        return _numpy_reference(name, operator.reference)
    return _function_reference(name, operator.reference, scratch)


def _numpy_reference(name: str, path: Path) -> Reference:
    """Return the numpy function of a trusted file; attributes are passed by name."""
    function = getattr(load_user_module(path), name.rpartition("::")[2], None)
    if not callable(function):
        raise RequestError(f"{path}: it defines no function {name.rpartition('::')[2]!r}, the reference of {name}")

    def compute(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Sequence[Array]:
        # Copies: a function that changes its input must not change what others read.
        arrays = [None if array is None else np.array(array) for array in inputs]
        with locating_errors(path):
            result = function(*arrays, **_attributes(node))
        return list(result) if isinstance(result, tuple | list) else [result]

    return compute


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _function_reference(name: str, path: Path, scratch: Path) -> Reference:
    """Return a local function of ONNX, which ONNX Runtime runs without the library."""
    function = _read_function(name, path)

    def compute(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Sequence[Array]:
        given = {f"input_{index}": array for index, array in enumerate(inputs) if array is not None}
        model = _model_of(node, function, given)
        file = scratch / "operator_reference.onnx"
        file.write_bytes(model.SerializeToString())
        binding = OnnxruntimeRequest(optimization="disabled").open(file).bind(given)
        binding.run()
        outputs = binding.outputs()
        return [np.asarray(outputs[output.name]) for output in model.graph.output]

    return compute


def _model_of(node: onnx.NodeProto, function: onnx.FunctionProto, given: Feeds) -> onnx.ModelProto:
    """Return a model of one node, and of the function that defines it."""
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[:], alone.output[:]
    alone.input.extend(f"input_{index}" if f"input_{index}" in given else "" for index in range(len(node.input)))
    outputs = [f"output_{index}" if name else "" for index, name in enumerate(node.output)]
    alone.output.extend(outputs)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        for name, array in given.items()
    ]
    graph = helper.make_graph(
        [alone], "reference", inputs, [onnx.ValueInfoProto(name=each) for each in outputs if each]
    )
    imports = {entry.domain: entry.version for entry in function.opset_import} | {node.domain: 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets)
    model.ir_version = max(8, helper.find_min_ir_version_for([each for each in opsets if each.domain == ""]))
    return model


def _read_function(name: str, path: Path) -> onnx.FunctionProto:
    """Return the local function of an operator, from a model or from text."""
    domain, _, op_type = name.rpartition("::")
    try:
        if path.suffix == ".onnx":
            functions: list[onnx.FunctionProto] = list(read_proto(path).functions)
        else:
            functions = [parse_function(path.read_text(encoding="utf-8"))]
    except (OSError, UnicodeDecodeError, ParseError) as error:
        raise RequestError(f"{path}: the reference of {name} cannot be read: {one_paragraph(error)}") from None
    for function in functions:
        if (function.domain, function.name) == (domain, op_type):
            return function
    found = [f"{function.domain}::{function.name}" for function in functions]
    raise RequestError(f"{path}: it has no function {name}; {suggest(name, found) or 'it has none'}")
