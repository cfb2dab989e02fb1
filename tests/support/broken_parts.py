"""Models with a broken part, which no check may pass without a remark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ndld_flow.models.tensors import Array

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def broken_parts(path: Path, first: Mapping[str, Array]) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models with a destroyed weight, an ignored input, a dead or stale output, and outputs that are swapped.

    `first` are the outputs of the first sample.
    """
    load = partial(onnx.load, path)
    yield from _destroyed(load())
    for value in _inputs(load()):
        if value.type.tensor_type.elem_type not in (TensorProto.BOOL, TensorProto.STRING):
            yield f"{value.name} ignored", _with_input(load(), value.name)
    outputs = list(load().graph.output)
    for value in outputs:
        if value.type.tensor_type.elem_type in _FLOATS:
            yield f"{value.name} dead", _with_outputs(load(), {value.name: ("Sub", [f"right {value.name}"] * 2)})
        model = load()
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(first[value.name]), "stale value"))
        yield f"{value.name} stale", _with_outputs(model, {value.name: ("Identity", ["stale value"])})
    for item, other in combinations([value.name for value in outputs], 2):
        swapped = {item: ("Identity", [f"right {other}"]), other: ("Identity", [f"right {item}"])}
        yield f"{item} and {other} swapped", _with_outputs(load(), swapped)


def _destroyed(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the model with its largest weight in reverse order."""
    for weight in sorted(model.graph.initializer, key=lambda initializer: -math.prod(initializer.dims)):
        values = numpy_helper.to_array(weight)
        reverse = values.reshape(-1)[::-1].reshape(values.shape)
        if weight.data_type in _FLOATS and not np.array_equal(values, reverse):
            weight.CopyFrom(numpy_helper.from_array(reverse, weight.name))
            yield f"{weight.name} destroyed", model
            return


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    known = {initializer.name for initializer in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in known]


def _renamed(model: onnx.ModelProto, old: str, new: str, *, written: bool) -> None:
    for node in _all_nodes(model.graph):
        names = [node.input, *([node.output] if written else [])]
        for item in names:
            for i, name in enumerate(item):
                if name == old:
                    item[i] = new


def _all_nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)


def _with_input(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model in which zeros replace an input."""
    _renamed(model, name, f"ignored {name}", written=False)
    model.graph.node.insert(0, helper.make_node("Sub", [name, name], [f"ignored {name}"]))
    return model


def _with_outputs(model: onnx.ModelProto, wrong: Mapping[str, tuple[str, list[str]]]) -> onnx.ModelProto:
    """Return a model in which nodes with these operators and inputs compute outputs.

    The right ones, which they may read, are named `right y`.
    """
    for name in wrong:
        _renamed(model, name, f"right {name}", written=True)
    for name, (op_type, inputs) in wrong.items():
        model.graph.node.append(helper.make_node(op_type, inputs, [name]))
    return model
