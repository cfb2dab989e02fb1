"""A model in whose one session every chosen fault can be switched on.

Each fault would need a model, and a session of its own. Instead, wrong weights are fed to initializers that are inputs
of the graph too, and a node with a wrong twin becomes an `If` on an input (mutant schemata: Untch, Offutt and Harrold,
1993). Outputs differ from those of the plain model by rounding only, because fewer nodes are fused and folded; without
a fault, the planted model is its own reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, LiftSubgraphInitializersToMainGraphPass

from ndld_flow.accuracy.power.faults import Fault, NodeFault, WeightFault, draw_faults, needs_shapes
from ndld_flow.accuracy.power.reached import Watched, find_leaves, find_watched
from ndld_flow.models.files import load_model, proto_with_external_data
from ndld_flow.models.nodes import UniqueNames, add_initializer, inline_functions
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model


@dataclass(frozen=True)
class PlantedModel:
    """An open model with faults that are switched on by further inputs."""

    session: OnnxruntimeSession
    outputs: tuple[str, ...]
    faults: tuple[Fault, ...]
    switches: Mapping[int, str]
    """Number of a fault of a node -> the input that switches it on."""
    watched: Sequence[Watched]
    not_watched: tuple[str, ...]
    """`rows of table`, of a table that only a body reads."""

    def feeds_of(self, number: int) -> dict[str, Array]:
        """Return the values that switch a fault on."""
        fault = self.faults[number]
        if isinstance(fault, WeightFault):
            return {str(fault.site.weight.name): fault.value()}
        return {self.switches[number]: np.array(True)}


def plant(path: Path, settings: SessionSettings, count: int, seed: int) -> PlantedModel:
    """Open a model with up to `count` faults, drawn by `seed`.

    Raises `ModelError` if it cannot be read, has functions that cannot be inlined, or is refused by ONNX Runtime.
    """
    model = load_model(path)
    outputs = tuple(str(value.name) for value in model.graph.outputs)
    inline_functions(model, path)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    LiftSubgraphInitializersToMainGraphPass()(model)
    if needs_shapes(model):
        infer_shapes(model)
    faults = draw_faults(model, count, seed)
    watched, inside = find_watched(model)
    names = UniqueNames(model)
    watched += find_leaves(model, names)
    inputs = set(model.graph.inputs)
    for fault in faults:
        if isinstance(fault, WeightFault) and fault.site.weight not in inputs:
            inputs.add(fault.site.weight)
            model.graph.inputs.append(fault.site.weight)
    twins: dict[ir.Node, dict[int, NodeFault]] = {}
    for i, fault in enumerate(faults):
        if isinstance(fault, NodeFault):
            twins.setdefault(fault.node, {})[i] = fault
    switches = {
        i: switch
        for node, of_node in twins.items()
        for i, switch in zip(of_node, _plant_twins(model, node, [*of_node.values()], names), strict=True)
    }
    # The tensors of the main graph become outputs, unless they are inputs or outputs already.
    known = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    values = {value.name: value for node in model.graph for value in node.outputs}
    further = dict.fromkeys(each.tensor for each in watched if each.tensor not in known)
    model.graph.outputs.extend(values[name] for name in further)
    model.ir_version = max(model.ir_version or 0, 4)  # the first in which initializers need not be inputs
    changed = proto_with_external_data(model, path).SerializeToString()
    session = open_model(path, settings, changed)
    return PlantedModel(session, outputs, tuple(faults), switches, watched, tuple(inside))


def _plant_twins(model: ir.Model, node: ir.Node, faults: Sequence[NodeFault], names: UniqueNames) -> list[str]:
    """Replace a node by an `If` between it and its wrong twins; return the names of the inputs that choose these."""
    switches = []
    for _ in faults:
        switch = add_initializer(model.graph, ir.tensor(np.array(False), name=names.value("wrong")))
        model.graph.inputs.append(switch)
        switches.append(switch)
    chosen = _copy(node, node.op_type, list(node.attributes.values()), names)
    for switch, fault in zip(switches, faults, strict=True):
        twin = _copy(node, fault.op_type, fault.wrong_attributes(), names)
        chosen = _choice(switch, twin, chosen, names)
    node.prepend(chosen)
    for old, output in zip(node.outputs, chosen.outputs, strict=True):
        output.type, output.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, output, replace_graph_outputs=True)
        if old.name:
            output.name, old.name = old.name, None
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
    return [str(switch.name) for switch in switches]


def _copy(node: ir.Node, op_type: str, attributes: Sequence[ir.Attr], names: UniqueNames) -> ir.Node:
    copied = ir.Node(
        node.domain,
        op_type,
        node.inputs,
        attributes,
        num_outputs=len(node.outputs),
        name=names.node(f"{node.name}_{op_type}"),
    )
    for output, old in zip(copied.outputs, node.outputs, strict=True):
        output.name, output.type = names.value(f"{old.name}_{op_type}"), old.type
    return copied


def _choice(switch: ir.Value, wrong: ir.Node, right: ir.Node, names: UniqueNames) -> ir.Node:
    """Return an `If` between two nodes, each in a branch of its own."""
    branches = (("then_branch", wrong), ("else_branch", right))
    attributes = [
        ir.AttrGraph(name, ir.Graph([], inner.outputs, nodes=[inner], name=names.node("branch")))
        for name, inner in branches
    ]
    chosen = ir.Node("", "If", [switch], attributes, num_outputs=len(right.outputs), name=names.node("If_wrong"))
    for output, inner in zip(chosen.outputs, right.outputs, strict=True):
        output.name, output.type = names.value(f"{inner.name}_chosen"), inner.type
    return chosen
