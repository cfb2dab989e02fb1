"""`model.trt.json`: an engine's layers in the format of TensorRT's engine inspector."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from ndld_flow.engines.compiled_layers import Entry, read_compiled_layers
from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.records.build import LayersBasis
from ndld_flow.records.profile import Layer
from ndld_flow.runtimes.tensorrt.build_log import BuildLog
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound


def describe_layers(trt: Bindings, engine: Bound, log: BuildLog, parsed: ParsedNetwork) -> tuple[str, LayersBasis]:
    """The JSON, and where its layers are known from: the engine where it can be opened, else the builder's log, else
    the network as it was parsed.
    """
    log.is_listening = False  # failing to open the engine is no failure of the build
    inspected = _inspect(trt, engine, parsed.builder.logger)
    if inspected:
        return inspected, "engine inspector"
    tensors = _bound_tensors(parsed)
    compiled = read_compiled_layers(log.layers)
    if compiled:
        return _document(compiled, tensors), "build log"
    return _document([_network_layer(layer) for layer in parsed.layers()], tensors), "network as parsed"


def doubt_precisions(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers of a parsed network without the precisions that compiling may change.

    A layer that reads what a DequantizeLinear writes reads floats here; the engine may fuse both and multiply integers.
    """
    dequantized = {tensor.name for layer in layers if layer.type == "Dequantize" for tensor in layer.outputs}
    unknown = {"precision": "", "precision_basis": "reads a DequantizeLinear: the network is not compiled yet"}
    return tuple(
        layer.model_copy(update=unknown) if dequantized & {tensor.name for tensor in layer.inputs} else layer
        for layer in layers
    )


def _inspect(trt: Bindings, engine: Bound, logger: Bound) -> str:
    """Return the engine inspector's output; empty where the engine cannot be opened (no GPU, or another one)."""
    runtime = trt.Runtime(logger)  # a process has one: TensorRT warns of another, and does not use it
    runtime.engine_host_code_allowed = True  # it was built here, a moment ago
    opened = runtime.deserialize_cuda_engine(engine)
    if opened is None:
        return ""
    told: str = opened.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return told if _has_layers(told) else ""


def _has_layers(text: str) -> bool:
    try:
        return bool(json.loads(text, strict=False).get("Layers"))
    except (ValueError, AttributeError):
        return '"Layers"' in text  # names are not always escaped; the reader tolerates that


def _document(layers: list[Entry], tensors: list[Entry]) -> str:
    document: dict[str, object] = {"Layers": layers, "I/O Tensors": tensors}
    return json.dumps(document) + "\n"


def _bound_tensors(parsed: ParsedNetwork) -> list[Entry]:
    return [
        {"Name": tensor.name, "IOMode": mode, "DataType": _spoken(tensor.dtype.name), "Dimensions": list(tensor.shape)}
        for mode, tensors in (("Input", parsed.inputs()), ("Output", parsed.outputs()))
        for tensor in tensors
    ]


def _network_layer(layer: Bound) -> Entry:
    return {
        "Name": layer.name,
        "LayerType": "".join(word.capitalize() for word in layer.type.name.split("_")),
        "Inputs": _tensors(layer.get_input(index) for index in range(layer.num_inputs)),
        "Outputs": _tensors(layer.get_output(index) for index in range(layer.num_outputs)),
        "Metadata": layer.metadata or "",
    }


def _tensors(tensors: Bound) -> list[JsonValue]:
    return [
        {"Name": tensor.name, "Dimensions": _shape(tensor), "Datatype": _spoken(tensor.dtype.name)}
        for tensor in tensors
        if tensor is not None  # an optional input that is left out
    ]


def _shape(tensor: Bound) -> list[JsonValue]:
    try:
        return list(tensor.shape)
    except ValueError:  # the rank is not known before the network is built
        return []


def _spoken(dtype: str) -> str:
    return dtype.capitalize()
