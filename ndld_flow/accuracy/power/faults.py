"""Faults that may be planted in a model: wrong weights, and nodes with a wrong operator or attribute.

They are what conversions and exporters get wrong: a tensor that is scaled, transposed or missing, channels in another
order, another epsilon, another mode of Resize, padding at the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.models.input_uses import SAME_VALUES
from ndld_flow.models.tensors import Array

DOMAIN = "ai.onnx.ml"
_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "TreeEnsembleClassifier": ("nodes_values", "class_weights"),
    "TreeEnsemble": ("nodes_splits", "leaf_weights"),
    "TreeEnsembleRegressor": ("nodes_values", "target_weights"),
    "LinearClassifier": ("coefficients", "intercepts"),
    "LinearRegressor": ("coefficients", "intercepts"),
    "SVMClassifier": ("coefficients", "rho"),
    "SVMRegressor": ("coefficients", "rho"),
    "Scaler": ("offset", "scale"),
}
"""Operator -> attributes with weights."""
_OF_DOUBLES = "_as_tensor"
"""End of the names of these attributes in ensembles of doubles."""
_LISTS = (ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS)
_TENTH = 10
_MOST_COPIED = 2_000_000
"""Limit on the elements that all wrong copies of a node's largest attribute may have together."""


def wrong_attributes(node: ir.Node) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kinds of faults of a node, each with its wrong attributes."""
    largest = max((len(values_of(each)) for each in node.attributes.values()), default=1)
    yield from islice(_wrong_attributes(node), _MOST_COPIED // max(largest, 1))


def values_of(attribute: ir.Attr) -> Sequence[Any]:
    """Return the elements of an attribute that is a list or a tensor; none of others."""
    if attribute.type == ir.AttributeType.TENSOR:
        elements: Sequence[Any] = attribute.as_tensor().numpy().reshape(-1).tolist()
        return elements
    return attribute.value if attribute.type in _LISTS else ()


def _wrong_attributes(node: ir.Node) -> Iterator[tuple[str, dict[str, Any]]]:
    for known in _WEIGHTS.get(node.op_type, ()):
        name = known if known in node.attributes else f"{known}{_OF_DOUBLES}"
        right = list(values_of(node.attributes[name])) if name in node.attributes else []
        if not any(right):
            continue
        yield f"{name} scaled by 1.1", {name: _like(node, name, [1.1 * value for value in right])}
        if right[::-1] != right:
            yield f"{name} reversed", {name: _like(node, name, right[::-1])}
        first = max(range(len(right)), key=lambda i: abs(right[i])) % _TENTH
        wrong = [0.0 if i % _TENTH == first else value for i, value in enumerate(right)]
        yield f"a tenth of {name} zeroed", {name: _like(node, name, wrong)}
    modes = values_of(node.attributes["nodes_modes"]) if "nodes_modes" in node.attributes else ()
    for at_most, less in (("BRANCH_LEQ", "BRANCH_LT"), (0, 1)):  # `TreeEnsemble` has numbers
        if at_most in modes:
            wrong_modes = [less if mode == at_most else mode for mode in modes]
            yield "< for <=", {"nodes_modes": _like(node, "nodes_modes", wrong_modes)}


def _like(node: ir.Node, name: str, values: Sequence[Any]) -> Any:  # noqa: ANN401 - a list or a tensor
    """Return values of an attribute in the form that it has."""
    attribute = node.attributes[name]
    if attribute.type != ir.AttributeType.TENSOR:
        return values
    return ir.tensor(np.array(values, attribute.as_tensor().numpy().dtype))


_NUMBERS = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
    ir.DataType.INT8,
    ir.DataType.UINT8,
)
"""Types of weights. Other integers are mostly sizes and indices, where a fault ends the run."""
_NO_WEIGHTS: Mapping[str, frozenset[int]] = {
    "Clip": frozenset((1, 2)),
    "Pad": frozenset((2,)),
    "Pow": frozenset((1,)),
    "Resize": frozenset((1, 2)),
    "Upsample": frozenset((1,)),
    "DequantizeLinear": frozenset((2,)),
    "QuantizeLinear": frozenset((2,)),
    "Range": frozenset((0, 1, 2)),
    "NonMaxSuppression": frozenset((3, 4)),
    "Dropout": frozenset((1,)),
}
"""Operator -> inputs that are settings rather than weights."""
_SIZES: Mapping[str, frozenset[int]] = {
    "CenterCropPad": frozenset((1,)),
    "ConstantOfShape": frozenset((0,)),
    "Expand": frozenset((1,)),
    "Loop": frozenset((0, 1)),
    "NonMaxSuppression": frozenset((2,)),
    "OneHot": frozenset((1,)),
    "Pad": frozenset((1,)),
    "Range": frozenset((0, 1, 2)),
    "Reshape": frozenset((1,)),
    "Resize": frozenset((2, 3)),
    "Slice": frozenset((1, 2, 3, 4)),
    "Split": frozenset((1,)),
    "Tile": frozenset((1,)),
    "TopK": frozenset((1,)),
    "Upsample": frozenset((1,)),
}
"""Operator -> inputs that are sizes: a fault in what computes them may ask for any amount of memory."""
_SIZE_ARITHMETIC = frozenset(
    (
        *SAME_VALUES,
        "Add",
        "Ceil",
        "Clip",
        "Concat",
        "Div",
        "Floor",
        "Gather",
        "Max",
        "Min",
        "Mul",
        "Pow",
        "Round",
        "Slice",
    )
) | {"Sqrt", "Sub", "Where"}
_EPSILON = 1e-3
"""Scalars up to this that are added keep a divisor from 0; another one changes nothing on any input."""
_LEAST_CHANGE = 1e-6
"""A fault that changes its tensor less than this, relative to the largest value, is none."""
_TRIES = 6


@dataclass(frozen=True)
class WeightSite:
    """A weight that may be wrong."""

    weight: ir.Value
    reader: ir.Node
    axis: int
    """The axis of output channels, or of the rows of a table."""
    is_table: bool


@dataclass(frozen=True)
class WeightFault:
    """A wrong weight."""

    site: WeightSite
    kind: str
    first: int
    second: int
    """Indices along the axis of the site: the faulty channel or row, and the one that it is swapped with."""

    @property
    def node(self) -> ir.Node:
        return self.site.reader

    def value(self) -> Array:
        """Return the wrong weight."""
        assert self.site.weight.const_value is not None
        wrong = np.array(self.site.weight.const_value.numpy())
        first, second = self.at(self.first), self.at(self.second)
        match self.kind:
            case "scaled by 1.1":
                wrong *= wrong.dtype.type(1.1)
            case "zeroed":
                wrong[...] = 0
            case "reversed":
                wrong[...] = np.flip(wrong, self.site.axis).copy()
            case "one channel zeroed" | "one row zeroed":
                wrong[first] = 0
            case "one channel negated":
                wrong[first] = -wrong[first]
            case "one channel scaled by 1.5":
                wrong[first] *= wrong.dtype.type(1.5)
            case _:
                wrong[first], wrong[second] = wrong[second].copy(), wrong[first].copy()
        return wrong

    def at(self, index: int) -> tuple[slice | int, ...]:
        """Return the place of a channel or row in the weight."""
        return (*[slice(None)] * self.site.axis, index)


_OF_SCALARS = ("scaled by 1.1", "zeroed")
_OF_TABLES = ("zeroed", "one row zeroed", "two rows swapped")
_OF_WEIGHTS = (
    *_OF_SCALARS,
    "reversed",
    "one channel zeroed",
    "one channel negated",
    "one channel scaled by 1.5",
    "two channels swapped",
)
"""Kinds of faults of scalars, of tables and of other weights."""


def weight_sites(model: ir.Model) -> list[WeightSite]:
    """Return the weights of a model and its bodies, each once for every operator that reads it."""
    sites, seen = [], set()
    of_sizes = _nodes_of_sizes(model)
    for node in model.graph.all_nodes():
        if node.op_type in SAME_VALUES or node in of_sizes:
            continue
        for position, value in enumerate(node.inputs):
            weight = None if value is None or position in _NO_WEIGHTS.get(node.op_type, ()) else _origin(value)
            if weight is None or (node.op_type, weight) in seen or _is_epsilon(weight, node):
                continue
            seen.add((node.op_type, weight))
            assert weight.const_value is not None
            shape = tuple(weight.const_value.shape.numpy())
            is_table = node.op_type == "Gather" and position == 0 and len(shape) > 1
            axis = _channel_axis(node, position, shape) if shape else 0
            sites.append(WeightSite(weight, node, axis, is_table))
    return sites


def _origin(value: ir.Value) -> ir.Value | None:
    """Return the initializer whose values a tensor has; None for others, and for those that are no weights."""
    while (node := value.producer()) is not None:
        if node.op_type not in SAME_VALUES or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    tensor = value.const_value
    if not value.is_initializer() or tensor is None or tensor.dtype not in _NUMBERS or not tensor.size:
        return None
    return value


def _is_epsilon(weight: ir.Value, reader: ir.Node) -> bool:
    tensor = weight.const_value
    assert tensor is not None
    return reader.op_type in ("Add", "Max") and tensor.size == 1 and abs(float(tensor.numpy().item())) <= _EPSILON


def _nodes_of_sizes(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that compute sizes, numbers of steps, or whether a loop goes on."""
    waiting = [
        value
        for node in model.graph.all_nodes()
        for position in _SIZES.get(node.op_type, ())
        if position < len(node.inputs)
        for value in [node.inputs[position]]
    ]
    for node in model.graph.all_nodes():
        if node.op_type == "Loop" and "body" in node.attributes:
            waiting.append(node.attributes["body"].as_graph().outputs[0])
    found: set[ir.Node] = set()
    while waiting:
        value = waiting.pop()
        producer = None if value is None else value.producer()
        if producer is not None and producer not in found and producer.op_type in _SIZE_ARITHMETIC:
            found.add(producer)
            waiting += producer.inputs
    return found


def _channel_axis(node: ir.Node, position: int, shape: tuple[int, ...]) -> int:
    attributes = node.attributes
    if node.op_type in ("Conv", "ConvInteger", "QLinearConv"):
        return 0
    if node.op_type == "ConvTranspose":
        return min(1, len(shape) - 1)
    if node.op_type == "Gemm" and position == 1:
        return 0 if attributes.get_int("transB", 0) else len(shape) - 1
    if node.op_type in ("LSTM", "GRU", "RNN"):
        return min(1, len(shape) - 1)
    if node.op_type == "Gather":
        return attributes.get_int("axis", 0) % len(shape)
    if node.op_type in ("Add", "Mul", "Sub", "Div", "PRelu"):
        return int(np.argmax(shape))
    return len(shape) - 1


def draw_weight_fault(site: WeightSite, stream: np.random.Generator) -> WeightFault | None:
    """Draw a fault that changes the weight; None if several draws change nothing."""
    tensor = site.weight.const_value
    assert tensor is not None
    right = np.array(tensor.numpy())
    size = right.shape[site.axis] if right.shape else 1
    is_byte = right.dtype.itemsize == 1 and right.dtype.kind in "iu"
    kinds: tuple[str, ...] = _OF_TABLES if site.is_table else _OF_SCALARS if size == 1 else _OF_WEIGHTS
    kinds = tuple(kind for kind in kinds if not (is_byte and "scaled" in kind))
    for _ in range(_TRIES):
        first, second = stream.integers(size), stream.integers(size)
        fault = WeightFault(site, kinds[int(stream.integers(len(kinds)))], int(first), int(second))
        part = fault.at(fault.first) if "one " in fault.kind or "two " in fault.kind else ...
        if _differs(right[part], fault.value()[part]):
            return fault
    return None


def _differs(right: Array, wrong: Array) -> bool:
    with np.errstate(all="ignore"):
        before, after = (np.nan_to_num(np.asarray(array).astype(np.float64)) for array in (right, wrong))
        change, largest = float(np.abs(after - before).max()), float(np.abs(before).max())
    return change > _LEAST_CHANGE * max(largest, 1e-30)


@dataclass(frozen=True)
class NodeFault:
    """A node with a wrong operator or attribute."""

    node: ir.Node
    kind: str
    op_type: str
    attributes: Mapping[str, Any]
    """Attribute -> its wrong value; None removes it."""

    def wrong_attributes(self) -> list[ir.Attr]:
        """Return all attributes of the wrong node."""
        kept = [attribute for name, attribute in self.node.attributes.items() if name not in self.attributes]
        given = {name: value for name, value in self.attributes.items() if value is not None}
        return [*kept, *(ir.convenience.convert_attribute(name, value) for name, value in given.items())]


def node_faults(model: ir.Model) -> list[NodeFault]:
    """Return every wrong twin of a node of the model and its bodies."""
    faults: list[NodeFault] = []
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            faults += [NodeFault(node, kind, node.op_type, wrong) for kind, wrong in wrong_attributes(node)]
        elif node.domain in ("", "ai.onnx") and len(node.outputs) == 1:
            faults += _twins(node)
    return faults


_TWINS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LeakyRelu": ("Relu", {"alpha": None}),
    "ReduceMean": ("ReduceMax", {}),
    "Relu": ("LeakyRelu", {"alpha": 0.1}),
    "Sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "Tanh": ("Softsign", {}),
}
"""Operator -> one that is similar, and its attributes."""


def _twins(node: ir.Node) -> Iterator[NodeFault]:
    if node.op_type in _TWINS:
        op_type, attributes = _TWINS[node.op_type]
        yield NodeFault(node, f"{op_type} in its place", op_type, attributes)
    elif node.op_type.endswith("Normalization") and "epsilon" in node.attributes:
        epsilon = max(100 * node.attributes.get_float("epsilon", 0.0), 1e-3)
        yield NodeFault(node, f"epsilon of {epsilon:g}", node.op_type, {"epsilon": epsilon})
    elif node.op_type in _OF_AN_AXIS:
        yield from _other_axis(node)
    elif node.op_type == "Resize":
        yield from _other_resize(node)
    elif node.op_type in ("Conv", "MaxPool", "AveragePool"):
        yield from _other_window(node)


_OF_AN_AXIS = ("Softmax", "LogSoftmax")


def needs_shapes(model: ir.Model) -> bool:
    """Return whether shapes must be inferred to find all wrong twins; that takes as long as all the rest."""
    return any(node.op_type in _OF_AN_AXIS and _shape_of(node) is None for node in model.graph.all_nodes())


def _shape_of(node: ir.Node) -> ir.Shape | None:
    shape, value = node.outputs[0].shape, node.inputs[0]
    return shape if shape is not None or value is None else value.shape


def _other_axis(node: ir.Node) -> Iterator[NodeFault]:
    shape = _shape_of(node)
    if shape is not None and len(shape) > 1:
        axis = node.attributes.get_int("axis", -1) % len(shape)
        other = axis - 1 if axis else 1
        yield NodeFault(node, f"axis {other}", node.op_type, {"axis": other})


def _other_resize(node: ir.Node) -> Iterator[NodeFault]:
    given = node.attributes
    mode = given.get_string("coordinate_transformation_mode", "half_pixel")
    other = "half_pixel" if mode == "asymmetric" else "asymmetric"
    yield NodeFault(node, f"coordinates {other}", "Resize", {"coordinate_transformation_mode": other})
    if given.get_string("mode", "nearest") == "nearest":
        rounding = "floor" if given.get_string("nearest_mode", "round_prefer_floor") == "ceil" else "ceil"
        yield NodeFault(node, f"rounding {rounding}", "Resize", {"nearest_mode": rounding})
    else:
        changes = {"mode": "nearest", "nearest_mode": "floor", "cubic_coeff_a": None}
        yield NodeFault(node, "mode nearest", "Resize", changes)


def _other_window(node: ir.Node) -> Iterator[NodeFault]:
    given = node.attributes
    pads = list(given.get_ints("pads", ()))
    begins = len(pads) // 2
    for axis in range(begins):
        if any(pads[axis::begins]):
            source, target = (axis, axis + begins) if pads[axis] else (axis + begins, axis)
            shifted = [pad - (i == source) + (i == target) for i, pad in enumerate(pads)]
            yield NodeFault(node, "padding shifted by one", node.op_type, {"pads": shifted})
            break
    if node.op_type == "AveragePool" and any(pads):
        counted = 1 - given.get_int("count_include_pad", 0)
        yield NodeFault(node, f"count_include_pad {counted}", "AveragePool", {"count_include_pad": counted})
    if node.op_type == "MaxPool":
        kept = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode")
        dropped = {name: None for name in given if name not in kept}
        yield NodeFault(node, "AveragePool in its place", "AveragePool", dropped)


Fault = WeightFault | NodeFault


def draw_faults(model: ir.Model, count: int, seed: int) -> list[Fault]:
    """Draw different faults, three of weights for each one of a node; every weight once before any twice.

    Any number of the first of them is a fair sample, so that they may be tried one by one until the time is over.
    """
    stream = np.random.default_rng(seed)
    twins = node_faults(model)
    weights, nodes = _drawn_weights(weight_sites(model), stream), _drawn_nodes(twins, stream)
    faults: list[Fault] = []
    while len(faults) < count:
        first, second = (nodes, weights) if len(faults) % 4 == 3 else (weights, nodes)
        fault = next(first, None) or next(second, None)
        if fault is None:
            break
        faults.append(fault)
    return faults


def _drawn_weights(sites: list[WeightSite], stream: np.random.Generator) -> Iterator[Fault]:
    """Yield different faults of all sites in random order, again and again; end after a round without a new one."""
    known: set[WeightFault] = set()
    before = -1
    while len(known) > before:
        before = len(known)
        for i in stream.permutation(len(sites)):
            fault = draw_weight_fault(sites[i], stream)
            if fault is not None and fault not in known:
                known.add(fault)
                yield fault


def _drawn_nodes(twins: list[NodeFault], stream: np.random.Generator) -> Iterator[Fault]:
    """Yield faults of nodes in random order: one of each node, but all of those that have weights as attributes."""
    wrong: set[ir.Node] = set()
    for i in stream.permutation(len(twins)):
        if twins[i].node.domain == DOMAIN or twins[i].node not in wrong:
            wrong.add(twins[i].node)
            yield twins[i]
