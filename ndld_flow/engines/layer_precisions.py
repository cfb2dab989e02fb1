"""Precision constraints on the layers of a weakly typed network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ndld_flow.engines.configuration import DATA_TYPES
from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.profiles.read.engine_layers import nodes_of_metadata
from ndld_flow.records.build import Constraint
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

_FLAGS: Mapping[str, str] = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8", "fp8": "FP8", "int4": "INT4"}
"""Precisions that a builder must be allowed to use, as members of BuilderFlag."""
_NO_LAYER = "no layer of the network comes from this node"
"""The node was folded into others or has no effect: no layer of it could have another precision."""
_FLOATS = ("FLOAT", "HALF", "BF16", "FP8", "FP4")
_INTEGERS = ("INT32", "INT64", "INT8", "INT4", "UINT8", "BOOL")


def allow_precisions(trt: Bindings, config: Bound, precisions: Iterable[str]) -> tuple[str, ...]:
    """Allow the builder the precisions of constraints, which count only where their flags are set; return a note."""
    needed = dict.fromkeys(filter(None, map(_FLAGS.get, precisions)))
    lacking = [name for name in needed if not config.get_flag(getattr(trt.BuilderFlag, name))]
    for name in lacking:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if not lacking:
        return ()
    words = " and ".join(lacking)
    return (f"{words} allowed, as nodes ask for it: the builder may choose it for other layers too",)


def set_layer_precisions(
    trt: Bindings, parsed: ParsedNetwork, constraints: Mapping[str, str]
) -> tuple[Constraint, ...]:
    """Set precision and output types of every layer of a constrained ONNX node, and return the outcome of each
    constraint.

    Constants keep their type, because the layers that use them set the precision, and so do layers that handle shapes.
    """
    layers = _layers_by_node(parsed)
    return tuple(
        Constraint(node=node, precision=precision, outcome=_set(trt, layers[node], precision))
        for node, precision in constraints.items()
    )


def _layers_by_node(parsed: ParsedNetwork) -> Mapping[str, list[Bound]]:
    layers: dict[str, list[Bound]] = defaultdict(list)
    for layer in parsed.layers():
        for node in nodes_of_metadata(layer.metadata or "") or (layer.name,):
            layers[node].append(layer)
    return layers


def _set(trt: Bindings, layers: Sequence[Bound], precision: str) -> str:
    if precision == "none":
        return "no precision asked for"
    if not layers:
        return _NO_LAYER
    wanted = DATA_TYPES[precision]
    count = sum(_set_layer(trt, layer, wanted) for layer in layers)
    if not count:
        return f"ignored: its layers hold nothing that could be {precision}"
    return f"set on {count} layer{'' if count == 1 else 's'}"


def _set_layer(trt: Bindings, layer: Bound, wanted: str) -> bool:
    """Return True when one of its outputs could have that type."""
    first = layer.get_input(0) if layer.num_inputs else None
    if layer.type == trt.LayerType.CONSTANT or (first is not None and first.is_shape_tensor):
        return False
    outputs = [(index, layer.get_output(index)) for index in range(layer.num_outputs)]
    fitting = [
        index for index, tensor in outputs if _can_become(tensor.dtype.name, wanted) and not tensor.is_shape_tensor
    ]
    if fitting:
        layer.precision = getattr(trt.DataType, wanted)
    for index in fitting:
        layer.set_output_type(index, getattr(trt.DataType, wanted))
    return bool(fitting)


def _can_become(own: str, wanted: str) -> bool:
    """Return True for a float that becomes another float or, quantised, INT8, and an integer that becomes another."""
    if wanted == "INT8":
        return own in (*_FLOATS, "INT8")
    return own in (_INTEGERS if wanted in _INTEGERS else _FLOATS)
