"""`model.trt.json`: an engine's layers in the format of TensorRT's engine inspector.

If the engine cannot be opened, the layers come from the builder's log. A detailed build logs every layer in one line:
`Name: ..., LayerType: ..., Inputs: [ { Name: x, Dimensions: [1,3], Strides: [...], StrideOrder: [...], Datatype: Float,
Format: (Linear) ... }], Constants: [...], Outputs: [...], TacticName: ..., StreamId: 0, Metadata: [ONNX Layer: a][ONNX
Layer: b]`. Names come from the model and may contain anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.records.build import LayersBasis
from ndld_flow.records.profile import Layer
from ndld_flow.runtimes.tensorrt.build_log import BuildLog
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound
from ndld_flow.runtimes.tensorrt.plugin_libraries import load_plugins

Entry = dict[str, JsonValue]

_TENSOR_END = r"Dimensions: \[[-\d,]*\], "
_BEGIN = re.compile(rf"^Name: (?=.*?, LayerType: \w+, Inputs: \[(?:\]| \{{ Name: .*?, {_TENSOR_END}))", re.M | re.S)
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<type>\w+), Inputs: \[(?P<inputs>.*?)\], Constants: \[(?P<constants>.*?)\], "
    r"Outputs: \[(?P<outputs>.*?)\], TacticName: (?P<tactic>[^,]*), StreamId: (?P<stream>-?\d+)(?P<more>.*?), "
    r"Metadata: (?P<metadata>.*)",
    re.DOTALL,
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[-\d,]*)\](?:, Strides: \[(?P<strides>[-\d,]*)\], "
    r"StrideOrder: \[[-\d,]*\])?, Datatype: (?P<dtype>\w+), Format: (?P<format>.*?) \}",
    re.DOTALL,
)
_REST = re.compile(r"\n\s*\n(?:I/O Tensors|Bindings|Engine Metadata):.*", re.DOTALL)


def read_compiled_layers(message: str) -> list[Entry]:
    """Return the layers in the order they run, with the keys of the engine inspector's JSON."""
    text = _REST.sub("", message)
    starts = [match.start() for match in _BEGIN.finditer(text)]
    lines = (text[start:end].rstrip("\n") for start, end in pairwise([*starts, len(text)]))
    return [
        {
            "Name": match["name"],
            "LayerType": match["type"],
            "Inputs": list(_listed_tensors(match["inputs"])),
            "Constants": list(_listed_tensors(match["constants"])),
            "Outputs": list(_listed_tensors(match["outputs"])),
            "TacticName": match["tactic"],
            "StreamId": int(match["stream"]),
            "Metadata": match["metadata"],
        }
        for match in map(_LAYER.fullmatch, lines)
        if match is not None
    ]


def _listed_tensors(text: str) -> Iterator[Entry]:
    for match in _TENSOR.finditer(text):
        yield {
            "Name": match["name"],
            "Dimensions": _numbers(match["dims"]),
            "Strides": _numbers(match["strides"] or ""),
            "Datatype": match["dtype"],
            "Format": match["format"],
        }


def _numbers(text: str) -> list[JsonValue]:
    return [int(number) for number in text.split(",") if number]


def describe_layers(
    trt: Bindings, engine: Bound, log: BuildLog, parsed: ParsedNetwork, plugins: Sequence[Path]
) -> tuple[str, LayersBasis]:
    """Return the JSON and the source of its layers.

    The source is the engine if it can be opened, else the builder's log, else the network as it was parsed. `plugins`
    are the libraries that the engine needs and does not contain.
    """
    log.is_listening = False  # if the engine cannot be opened, the build has not failed
    inspected = _inspect(trt, engine, parsed.builder.logger, plugins)
    if inspected:
        return inspected, "engine inspector"
    tensors = _bound_tensors(parsed)
    compiled = read_compiled_layers(log.layers)
    if compiled:
        return _document(compiled, tensors), "build log"
    return _document([_network_layer(layer) for layer in parsed.layers()], tensors), "network as parsed"


def doubt_precisions(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers of a parsed network without the precisions that compiling may change.

    A layer after a DequantizeLinear reads floats here; the engine may fuse the two and multiply integers.
    """
    dequantized = {tensor.name for layer in layers if layer.type == "Dequantize" for tensor in layer.outputs}
    unknown = {"precision": "", "precision_basis": "reads a DequantizeLinear: the network is not compiled yet"}
    return tuple(
        layer.model_copy(update=unknown) if dequantized & {tensor.name for tensor in layer.inputs} else layer
        for layer in layers
    )


def _inspect(trt: Bindings, engine: Bound, logger: Bound, plugins: Sequence[Path]) -> str:
    """Return the engine inspector's output; empty if the engine cannot be opened (no GPU, or another one)."""
    runtime = trt.Runtime(logger)  # a process has one runtime logger: TensorRT warns about another, and does not use it
    runtime.engine_host_code_allowed = True  # this process has just built it
    load_plugins(trt, logger, runtime, plugins)  # the builder's registry is another
    opened = runtime.deserialize_cuda_engine(engine)
    if opened is None:
        return ""
    text: str = opened.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    try:
        has_layers = bool(json.loads(text, strict=False).get("Layers"))
    except (ValueError, AttributeError):
        has_layers = '"Layers"' in text  # names are not always escaped; the reader tolerates that
    return text if has_layers else ""


def _document(layers: list[Entry], tensors: list[Entry]) -> str:
    document: dict[str, object] = {"Layers": layers, "I/O Tensors": tensors}
    return json.dumps(document) + "\n"


def _bound_tensors(parsed: ParsedNetwork) -> list[Entry]:
    return [
        {
            "Name": tensor.name,
            "IOMode": mode,
            "DataType": tensor.dtype.name.capitalize(),
            "Dimensions": list(tensor.shape),
        }
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
    entries: list[JsonValue] = []
    for tensor in tensors:
        if tensor is None:  # an absent optional input
            continue
        try:
            shape = list(tensor.shape)
        except ValueError:  # the rank is not known before the network is built
            shape = []
        entries.append({"Name": tensor.name, "Dimensions": shape, "Datatype": tensor.dtype.name.capitalize()})
    return entries
