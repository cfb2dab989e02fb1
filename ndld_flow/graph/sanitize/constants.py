"""Constants as initializers, and initializers of old models no longer as inputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Edits

_FIRST_IR_WITH_FREE_INITIALIZERS = 4


def detach_initializers_from_inputs(edits: Edits) -> None:
    """Remove initializers from the inputs, where models before IR version 4 had to list them."""
    model = edits.model
    if model.ir_version is None or model.ir_version >= _FIRST_IR_WITH_FREE_INITIALIZERS:
        return
    kept = [value for value in model.graph.inputs if not value.is_initializer()]
    if len(kept) != len(model.graph.inputs):
        model.graph.inputs[:] = kept
    model.ir_version = _FIRST_IR_WITH_FREE_INITIALIZERS


def lift_constants(edits: Edits) -> None:
    """Constant() -> initializer of the same name, unless it is a graph output"""
    for graph in edits.model.graphs():
        for node in tuple(graph):
            if node.op_type == "Constant" and node.domain == "" and not node.outputs[0].is_graph_output():
                tensor = _constant_tensor(node)
                if tensor is not None:
                    edits.set_constant(node.outputs[0], tensor)
                    edits.done["constants made initializers"] += 1


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    if len(node.attributes) != 1:
        return None
    attribute = next(iter(node.attributes.values()))
    if attribute.is_ref():
        return None
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name == "value":
        return attribute.as_tensor()
    if attribute.name in dtypes:
        return ir.Tensor(np.array(attribute.value, dtype=dtypes[attribute.name]))
    return None
