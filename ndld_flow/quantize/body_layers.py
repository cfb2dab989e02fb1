"""Layers in bodies of If, Loop and Scan, which are in the main graph while ONNX Runtime's quantizer runs.

It reaches the main graph only. With `mode: dynamic` the nodes that replace a layer depend on its inputs alone, so the
layer may be anywhere meanwhile: it reads inputs of the model in place of the body's tensors, and `Identity` nodes in
the body keep the names of what it reads and computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.models.unique_names import UniqueNames


@dataclass
class BodyLayers:
    """Layers that moved to the main graph of a model."""

    inputs: dict[tuple[ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)
    """Tensor and the body that reads it -> the input of the model that replaces it."""
    constants: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Constant of a body -> its copy in the main graph."""
    before: list[str] = field(default_factory=list)
    """Names of the nodes that read these tensors, in the order of the inputs."""
    after: list[str] = field(default_factory=list)
    """Names of the nodes that read the outputs of the layers."""

    def move(self, node: ir.Node, main: ir.Graph, names: UniqueNames) -> None:
        """Move a layer from its body to the main graph."""
        body = node.graph
        assert isinstance(body, ir.Graph)
        for index, value in enumerate(node.inputs):
            if value is None or (value.const_value is not None and value.graph is main):
                continue
            moved = self._constant(value, main, names) if value.const_value is not None else None
            node.replace_input_with(index, moved or self._input(value, node, main, names))
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                self._replace_output(value, node, names)
        body.remove(node)
        main.append(node)

    def _constant(self, value: ir.Value, main: ir.Graph, names: UniqueNames) -> ir.Value:
        if value not in self.constants:
            copy = ir.Value(name=names.value(f"{value.name}_main"), type=value.type, shape=value.shape)
            copy.const_value = value.const_value
            main.register_initializer(copy)
            self.constants[value] = copy
        return self.constants[value]

    def _input(self, value: ir.Value, node: ir.Node, main: ir.Graph, names: UniqueNames) -> ir.Value:
        body = node.graph
        assert isinstance(body, ir.Graph)
        if (value, body) not in self.inputs:
            name = names.node(f"{node.name}_reads")
            node.prepend(ir.Node("", "Identity", [value], name=name))
            self.before.append(name)
            made = ir.Value(name=names.value(name), type=value.type, shape=value.shape)
            main.inputs.append(made)
            self.inputs[value, body] = made
        return self.inputs[value, body]

    def _replace_output(self, value: ir.Value, node: ir.Node, names: UniqueNames) -> None:
        """Give the readers of a layer's output the output of a node of the body, which gets its name."""
        inner = ir.Value(type=value.type, shape=value.shape)
        ir.convenience.replace_all_uses_with(value, inner, replace_graph_outputs=True)
        name = names.node(f"{node.name}_computes")
        node.append(ir.Node("", "Identity", [value], outputs=[inner], name=name))
        self.after.append(name)
        inner.name, value.name = value.name, names.value(name)

    def put_back(self, model: ir.Model) -> None:
        """Move the nodes that replaced the layers to the bodies in which the layers were."""
        nodes = {node.name: node for node in model.graph.all_nodes()}
        inputs = {value.name: value for value in model.graph.inputs}
        for read, name in zip(self.inputs.values(), self.before, strict=True):
            made, reader = inputs[read.name], nodes[name]
            body = reader.graph
            assert isinstance(body, ir.Graph)
            moved = _readers(made, model.graph)
            model.graph.remove(moved)
            body.extend(moved)
            tensor = reader.inputs[0]
            assert tensor is not None
            ir.convenience.replace_all_uses_with(made, tensor)
            model.graph.inputs.remove(made)
            body.remove(reader, safe=True)
        for name in self.after:
            node = nodes[name]
            value, inner = node.inputs[0], node.outputs[0]
            assert value is not None and isinstance(node.graph, ir.Graph)
            ir.convenience.replace_all_uses_with(inner, value, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)
            value.name = inner.name


def _readers(value: ir.Value, main: ir.Graph) -> list[ir.Node]:
    """Return the nodes of the main graph that depend on a value."""
    found: dict[ir.Node, None] = {}
    waiting = [value]
    while waiting:
        for node, _ in waiting.pop().uses():
            if node.graph is main and node not in found:
                found[node] = None
                waiting += node.outputs
    return list(found)
