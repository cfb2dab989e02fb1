"""Weights that nodes read directly: neither through an Identity, nor as a state that a Loop or Scan never changes.

Converters from TensorFlow pass the weights of a recurrent layer to its Loop as states. Only as constants can they be
quantized there.
"""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.models.op_signatures import is_op


def read_weights_directly(model: ir.Model) -> None:
    """Let all nodes read constants under their own names, in place."""
    for node in list(model.graph.all_nodes()):  # an outer Loop comes before those in its body
        if is_op(node, "Identity") and _is_constant(node.inputs[0]) and not node.outputs[0].is_graph_output():
            assert node.inputs[0] is not None and node.graph is not None
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
            node.graph.remove(node, safe=True)
        elif is_op(node, "Loop"):
            _drop_constant_states(node, len(node.inputs) - 2, before_input=2, before_output=1)
        elif is_op(node, "Scan"):
            count = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
            _drop_constant_states(node, count, before_input=0, before_output=0)


def _is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is a constant, directly or through a Transpose, which `quantize` computes."""
    producer = value.producer() if value is not None else None
    if value is not None and producer is not None and is_op(producer, "Transpose"):
        value = producer.inputs[0]
    return value is not None and value.const_value is not None


def _drop_constant_states(node: ir.Node, count: int, before_input: int, before_output: int) -> None:
    """Let the body of a Loop or Scan read the constants among its states, if it returns them as they are.

    `before_input` and `before_output` are the numbers of the body's inputs and outputs before the states.
    """
    if "body" not in node.attributes:
        return
    body = node.attributes["body"].as_graph()
    has_all = len(node.outputs) >= count and len(body.outputs) >= before_output + count
    if len(body.inputs) != len(node.inputs) or not has_all:  # Scan of opset 8 has the lengths of its sequences first
        return
    dropped = []
    for index in range(count):
        state, returned = body.inputs[before_input + index], body.outputs[before_output + index]
        is_read_outside = node.outputs[index].is_graph_output() or any(
            value is state for value in body.outputs if value is not returned
        )
        if _is_constant(node.inputs[before_input + index]) and _source(returned) is state and not is_read_outside:
            dropped.append(index)
    for index in reversed(dropped):
        weight = node.inputs[before_input + index]
        assert weight is not None
        body.outputs.pop(before_output + index)
        inner = body.inputs.pop(before_input + index)
        ir.convenience.replace_all_uses_with([inner, node.outputs[index]], [weight, weight])
    if dropped:
        _without(node, {before_input + index for index in dropped}, set(dropped))


def _source(value: ir.Value) -> ir.Value:
    """Return what Identity nodes copy to a value."""
    producer = value.producer()
    while producer is not None and is_op(producer, "Identity") and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def _without(node: ir.Node, inputs: set[int], outputs: set[int]) -> None:
    """Replace a node by one without some inputs and outputs, which nothing reads."""
    assert node.graph is not None
    kept = [value for index, value in enumerate(node.outputs) if index not in outputs]
    made = [ir.Value(type=value.type, shape=value.shape) for value in kept]
    body = node.attributes.pop("body")
    smaller = ir.Node(
        node.domain,
        node.op_type,
        [value for index, value in enumerate(node.inputs) if index not in inputs],
        [body, *node.attributes.values()],
        outputs=made,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )
    node.append(smaller)
    names = [value.name for value in kept]
    ir.convenience.replace_all_uses_with(kept, made, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    for value, name in zip(made, names, strict=True):
        value.name = name
