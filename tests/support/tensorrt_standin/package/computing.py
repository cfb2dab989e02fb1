"""The values of an engine's outputs: its model in ONNX Runtime, each layer's result rounded to the type it computes in.

Only where STANDIN_COMPUTES is 1: most tests time passes, and need no values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .bindings import IS_STRONG_ONLY
from .plan import MAGIC, unpacked

_FLOAT, _HALF, _BF16 = 1, 10, 16
_CASTS = {"HALF": _HALF, "BF16": _BF16}
_MOST_INT8 = 127.0


def weights_in(data: bytes) -> dict[str, bytes]:
    """Return the weights that a serialized engine contains."""
    start = len(MAGIC) + 8
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    found = {}
    # In the order of the model's constants, which JSON's sorted keys are not.
    head = json.loads(data[start:end])
    for name in head["weights_order"]:
        size = head["weights_kept"][name]
        found[name] = data[end : end + size]
        end += size
    return found


def debug_tensors_of(engine: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the debug tensors of an engine: name in the model, name for the listener, and type.

    Those that are marked as unfused have internal names, which the engine inspector has too: releases that compile
    everything in one piece add to the model's.
    """
    debug = engine["debug"]
    outputs = {tensor["name"] for tensor in engine["tensors"] if tensor["mode"] == "OUTPUT"}
    found = []
    for at, layer in enumerate(engine["layers"]):
        for tensor in layer["outputs"]:
            name = tensor["name"]
            if name.startswith("Reformatted "):
                continue
            if name in debug["marked"]:
                found.append((name, name, tensor["type"]))
            elif debug["unfused"] and name not in outputs:
                found.append((name, f"{name}.1_{at}_myl0" if IS_STRONG_ONLY else name, tensor["type"]))
    return found


class Computing:
    """An engine's model, ready to run."""

    def __init__(self, engine: dict[str, Any], weights: Mapping[str, bytes]) -> None:
        import onnx
        import onnxruntime

        proto = onnx.load_model_from_string(unpacked(engine["model"]))
        self._outputs = [tensor["name"] for tensor in engine["tensors"] if tensor["mode"] == "OUTPUT"]
        inside = {name for name, _, _ in debug_tensors_of(engine)}
        self._outputs += [name for node in proto.graph.node for name in node.output if name in inside]
        self._inputs = {info.name: info.type.tensor_type.elem_type for info in proto.graph.input}
        _set_weights(proto, weights)
        _round_layers(proto, engine)
        known = {info.name: info for info in proto.graph.output}
        del proto.graph.output[:]
        proto.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in self._outputs)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        if any("::" in operator for operator in engine["operators"]):
            self._session = _calling_back(proto, engine["operators"])
            return
        self._session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return output -> values; inputs of another type are cast to the model's."""
        import onnx

        typed = {
            name: values.astype(onnx.helper.tensor_dtype_to_np_dtype(self._inputs[name]))
            for name, values in feeds.items()
        }
        return dict(zip(self._outputs, self._session.run(self._outputs, typed), strict=True))


def _calling_back(proto: Any, operators: Sequence[str]) -> Any:
    """Return the model in ONNX's reference implementation, whose plugins are those of this process in Python."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    from .plugin import call_back

    def kind_for(plugin_id: str, domain: str) -> Any:
        class Called(OpRun):
            op_domain = domain

            def _run(self, *inputs: Any, **_: Any) -> Any:
                return call_back(plugin_id, self.onnx_node, inputs)

        Called.__name__ = plugin_id.rpartition("::")[2]
        return Called

    names = {operator.rpartition("::")[2]: operator for operator in operators if "::" in operator}
    used = {(names[node.op_type], node.domain) for node in proto.graph.node if node.op_type in names}
    return ReferenceEvaluator(proto, new_ops=[kind_for(*item) for item in sorted(used)])


def _set_weights(proto: Any, weights: Mapping[str, bytes]) -> None:
    """Give the model its weights: large ones are inputs of the stored model."""
    import numpy
    import onnx

    kinds = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in proto.graph.initializer}
    for info in proto.graph.input:
        if info.name in weights:
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            kinds[info.name] = (info.type.tensor_type.elem_type, shape)
    inputs = [info for info in proto.graph.input if info.name not in weights]
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in weights]
    del proto.graph.input[:], proto.graph.initializer[:]
    proto.graph.input.extend(inputs)
    proto.graph.initializer.extend(kept)
    for name, data in weights.items():
        if name in kinds:
            kind, shape = kinds[name]
            values = numpy.frombuffer(data, onnx.helper.tensor_dtype_to_np_dtype(kind)).reshape(shape)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))


def _round_layers(proto: Any, engine: dict[str, Any]) -> None:
    """Round the results of layers in FP16, BF16 and INT8, as a GPU stores them."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(proto).graph
    floats = {
        info.name for info in (*inferred.value_info, *inferred.output) if info.type.tensor_type.elem_type == _FLOAT
    }
    helper, graph = onnx.helper, proto.graph
    types = {tensor["name"]: layer["type"] for layer in engine["layers"] for tensor in layer["outputs"]}
    added = []
    for node in graph.node:
        for index, name in enumerate(node.output):
            kind = types.get(name, "FLOAT")
            exact = f"{name}__exact"
            if name not in floats or (kind not in _CASTS and (kind != "INT8" or name not in engine["ranges"])):
                continue
            node.output[index] = exact
            if kind in _CASTS:
                added += [
                    helper.make_node("Cast", [exact], [f"{name}__stored"], to=_CASTS[kind]),
                    helper.make_node("Cast", [f"{name}__stored"], [name], to=_FLOAT),
                ]
                continue
            scale, zero = f"{name}__scale", f"{name}__zero"
            graph.initializer.append(helper.make_tensor(scale, _FLOAT, [], [engine["ranges"][name] / _MOST_INT8]))
            graph.initializer.append(helper.make_tensor(zero, onnx.TensorProto.INT8, [], [0]))
            added += [
                helper.make_node("QuantizeLinear", [exact, scale, zero], [f"{name}__stored"]),
                helper.make_node("DequantizeLinear", [f"{name}__stored", scale, zero], [name]),
            ]
    graph.node.extend(added)
    _sort(graph)


def _sort(graph: Any) -> None:
    """Order nodes so that each comes after those that compute what it reads; bodies read values of the graph too."""
    waiting, ordered = list(graph.node), []
    makers = {name for node in waiting for name in node.output if name}
    made: set[str] = set()
    while waiting:
        ready = [node for node in waiting if all(name in made or name not in makers for name in _reads(node))]
        assert ready, "a circle"
        ordered += ready
        made |= {name for node in ready for name in node.output}
        waiting = [node for node in waiting if not any(node is item for item in ready)]
    del graph.node[:]
    graph.node.extend(ordered)


def _reads(node: Any) -> list[str]:
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            inner = {name for node in body.node for name in node.output}
            found += [name for node in body.node for name in _reads(node) if name not in inner]
            found += [output.name for output in body.output if output.name not in inner]
    return found
