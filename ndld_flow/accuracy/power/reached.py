"""The parts of a model that samples reach: rows of tables, branches, classes of outputs, leaves of trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.power.faults import DOMAIN, values_of
from ndld_flow.models.input_uses import SAME_VALUES
from ndld_flow.models.nodes import UniqueNames
from ndld_flow.models.tensors import Array
from ndld_flow.records.power import PartsReached

_LAST_AXIS_FROM = 13
"""Opset from which Softmax has one axis; before, it joined all axes from that one on."""
_KEEPS_AXES = ("Cast", "Identity")
_MOST_NAMED = 10
_CLASSIFIERS = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_MOST_LEAVES = 2**24
"""Float32 counts so far."""


@dataclass
class Watched:
    """A part of a model, and what samples reach of it."""

    tensor: str
    """The tensor whose values show it."""
    reached: set[object] = field(default_factory=set, init=False)

    def add(self, values: Array) -> None:
        """Add what one sample reaches."""
        self.reached.update(np.unique(values).tolist())


@dataclass
class Table(Watched):
    """A table whose rows an operator looks up; the tensor holds their numbers."""

    name: str
    rows: int

    def add(self, values: Array) -> None:
        super().add(values % self.rows)


@dataclass
class Branching(Watched):
    """An If; the tensor is its condition."""

    node: str

    def add(self, values: Array) -> None:
        self.reached.add(bool(np.all(values)))


@dataclass
class Forest(Watched):
    """An ensemble of trees; the tensor holds the numbers of the leaves."""

    node: str
    leaves: int

    def record(self) -> PartsReached:
        return PartsReached(parts="leaves", of=self.node, reached=len(self.reached), count=self.leaves)


@dataclass
class ClassOutput(Watched):
    """An output of classes."""

    axis: int | None
    """The axis along which classes are scored; None if the values are classes."""
    classes: Sequence[object] = ()
    """Labels of the classes; empty for the length of the axis."""

    def add(self, values: Array) -> None:
        if self.axis is None:
            super().add(values)
        elif values.size and values.ndim > 1:
            if len(self.classes) < values.shape[self.axis]:
                self.classes = range(values.shape[self.axis])
            best = np.argmax(values, self.axis)
            self.reached.update(self.classes[index] for index in np.unique(best).tolist())

    def record(self) -> PartsReached:
        missing = tuple(str(each) for each in self.classes if each not in self.reached)[:_MOST_NAMED]
        count, reached = len(self.classes), len(self.reached)
        return PartsReached(parts="classes", of=self.tensor, reached=reached, count=count, missing=missing)


def find_watched(model: ir.Model) -> tuple[list[Watched], list[str]]:
    """Return the tables, branches and classes whose tensors show what a run reaches, and those inside bodies.

    Outputs of the model do not show what a run reaches in a body.
    """
    watched: list[Watched] = []
    inside: dict[str, None] = {}
    for node in model.graph.all_nodes():
        read: tuple[Table | Branching | None, ...] = (_table(node), _branching(node))
        for found in read:
            if found is not None and node.graph is not model.graph:
                inside[f"rows of {found.name}" if isinstance(found, Table) else f"branches of {found.node}"] = None
            elif found is not None and found not in watched:
                watched.append(found)
    opset = model.opset_imports.get("", 1)
    watched += [found for value in model.graph.outputs for found in _class_output(value, opset)]
    return watched, list(inside)


def _table(node: ir.Node) -> Table | None:
    """Return the table whose rows a node looks up at run time."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
        return None
    table, indices = node.inputs
    if table is None or indices is None or indices.is_initializer() or not _is_constant(table):
        return None
    if table.shape is None or len(table.shape) < 2 or not isinstance(table.shape[0], int):
        return None
    return Table(str(indices.name), str(table.name), table.shape[0])


def _is_constant(value: ir.Value) -> bool:
    """Return whether a tensor has the values of a weight, quantized or not."""
    while (node := value.producer()) is not None and node.op_type in (*SAME_VALUES, "DequantizeLinear"):
        if node.inputs[0] is None:
            return False
        value = node.inputs[0]
    return value.is_initializer()


def _branching(node: ir.Node) -> Branching | None:
    condition = node.inputs[0] if node.op_type == "If" else None
    if condition is None or condition.is_initializer():
        return None
    return Branching(str(condition.name), str(node.name or node.outputs[0].name))


def _class_output(value: ir.Value, opset: int) -> Iterator[ClassOutput]:
    name, source, keeps_axes = str(value.name), value, True
    while (node := source.producer()) is not None and node.op_type in SAME_VALUES and node.inputs[0] is not None:
        keeps_axes = keeps_axes and node.op_type in _KEEPS_AXES
        source = node.inputs[0]
    if node is None:
        return
    if node.op_type in ("Softmax", "LogSoftmax") and keeps_axes and opset >= _LAST_AXIS_FROM:
        yield ClassOutput(name, node.attributes.get_int("axis", -1))
    elif node.op_type == "ArgMax" and node.inputs[0] is not None:
        shape, axis = node.inputs[0].shape, node.attributes.get_int("axis", 0)
        count = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        if isinstance(count, int):
            yield ClassOutput(name, None, range(count))
    elif node.op_type in _CLASSIFIERS:
        labels = [node.attributes[each].value for each in node.attributes if each.startswith("classlabels")]
        classes = max(labels, key=len, default=())
        is_label = source is node.outputs[0]
        if classes and keeps_axes and (is_label or not node.outputs[0].is_graph_output()):
            yield ClassOutput(name, None if is_label else -1, classes)


def find_leaves(model: ir.Model, names: UniqueNames) -> list[Watched]:
    """Add copies of the ensembles of the main graph, whose outputs are the numbers of the leaves that they reach.

    The runtime walks the trees: a copy has one output for each.
    """
    return [forest for node in list(model.graph) for forest in _forest(node, names)]


def _forest(node: ir.Node, names: UniqueNames) -> Iterator[Forest]:
    if node.domain != DOMAIN or node.inputs[0] is None or node.inputs[0].dtype not in _FLOATS:
        return
    if node.op_type == "TreeEnsemble":
        op_type, leaves, numbered = node.op_type, *_numbered_leaves(node)
    elif node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
        op_type, leaves, numbered = "TreeEnsembleRegressor", *_numbered_ends(node)
    else:
        return
    if 0 < leaves < _MOST_LEAVES:
        of_nodes = [name for name in node.attributes if name.startswith(("nodes_", "tree_roots", "membership_values"))]
        kept = [node.attributes[name] for name in of_nodes if name not in numbered]
        added = [ir.convenience.convert_attribute(name, value) for name, value in numbered.items()]
        name = names.node(f"{node.name}_leaves")
        copied = ir.Node(DOMAIN, op_type, [node.inputs[0]], [*kept, *added], num_outputs=1, name=name)
        dtype = node.inputs[0].dtype if op_type == "TreeEnsemble" else ir.DataType.FLOAT
        copied.outputs[0].name, copied.outputs[0].type = names.value(name), ir.TensorType(dtype)
        node.append(copied)
        yield Forest(copied.outputs[0].name, str(node.name or node.outputs[0].name), leaves)


def _numbered_ends(node: ir.Node) -> tuple[int, dict[str, Any]]:
    """Return the number of leaves of an ensemble of nodes, and attributes that make each a target of its tree."""
    places = zip(
        node.attributes.get_ints("nodes_treeids", ()),
        node.attributes.get_ints("nodes_nodeids", ()),
        node.attributes.get_strings("nodes_modes", ()),
        strict=True,
    )
    ends = [(tree, place) for tree, place, mode in places if mode == "LEAF"]
    trees = {tree: number for number, tree in enumerate(dict.fromkeys(tree for tree, _ in ends))}
    numbers = np.arange(len(ends))
    is_double = "nodes_values_as_tensor" in node.attributes
    return len(ends), {
        "n_targets": len(trees),
        "target_treeids": [tree for tree, _ in ends],
        "target_nodeids": [place for _, place in ends],
        "target_ids": [trees[tree] for tree, _ in ends],
        **(
            {"target_weights_as_tensor": ir.tensor(numbers.astype(np.float64))}
            if is_double
            else {"target_weights": numbers.astype(float).tolist()}
        ),
    }


def _numbered_leaves(node: ir.Node) -> tuple[int, dict[str, Any]]:
    """Return the number of leaves of a `TreeEnsemble`, and attributes that make each a target of its tree."""
    ints = node.attributes.get_ints
    ways = [(ints(f"nodes_{way}nodeids", ()), ints(f"nodes_{way}leafs", ())) for way in ("true", "false")]
    leaves, roots = len(values_of(node.attributes["leaf_weights"])), ints("tree_roots", ())
    trees = [0] * leaves
    for tree, root in enumerate(roots):
        waiting, known = [root], set[int]()
        while waiting:
            place = waiting.pop()
            known.add(place)
            for targets, are_leaves in ways:
                if are_leaves[place]:
                    trees[targets[place]] = tree
                elif targets[place] not in known:
                    waiting.append(targets[place])
    weights = node.attributes["leaf_weights"].as_tensor()
    numbers = ir.tensor(np.arange(leaves, dtype=weights.dtype.numpy()))
    return leaves, {"n_targets": len(roots), "leaf_targetids": trees, "leaf_weights": numbers}
