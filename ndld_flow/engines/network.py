"""The network that TensorRT's parser creates from an ONNX model, tensors that are marked for comparison, and layers.

`model.trt.json` has an engine's layers in the format of TensorRT's engine inspector. If the engine cannot be opened,
they come from the builder's log. A detailed build logs every layer in one line: `Name: ..., LayerType: ..., Inputs: [ {
Name: x, Dimensions: [1,3], Strides: [...], StrideOrder: [...], Datatype: Float, Format: (Linear) ... }], Constants:
[...], Outputs: [...], TacticName: ..., StreamId: 0, Metadata: [ONNX Layer: a][ONNX Layer: b]`. Names come from the
model and may contain anything.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from ndld_flow.accuracy.inside.capture import TensorPlace, tensors_of
from ndld_flow.base.dtype_names import dtype_of_tensorrt
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name, shortened, suggest
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.models.external_files import mentions
from ndld_flow.models.files import read_proto, unname_dims
from ndld_flow.records.build import LayersBasis
from ndld_flow.records.profile import Layer, TensorInfo
from ndld_flow.runtimes.tensorrt.build_log import BuildLog, join_reasons, reason_of
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound
from ndld_flow.runtimes.tensorrt.plugin_libraries import load_plugins

_SHOWN_ERRORS = 5
_NAMED_AS_UNKNOWN = b"\x12\x01?"
"""Field 2 of a dimension, its name, in the bytes of a model: a string of one character."""
_NO_PLUGIN = re.compile(r"plugin not found|plugin creator", re.IGNORECASE)
_NO_REASON = ("", "false")
_INVALID_NODE = re.compile(r"^Invalid Node - \S*\s*")
_NOISE = re.compile(r"\[checkMacros\.cpp::catchCudaError.*")
_ASSERTION = re.compile(r"^Assertion failed: (?P<condition>.*?)(?::\s+(?P<words>[A-Z].*))?$", re.DOTALL)
_QUOTED = re.compile(r'^.* && "(?P<words>[^"]+)"\.?$', re.DOTALL)


@dataclass(frozen=True)
class ParsedNetwork:
    """A builder and its network of a model; the objects of TensorRT's bindings."""

    builder: Bound
    network: Bound
    parser: Bound
    """The parser, which owns the network's weights and must outlive it."""
    parse_s: float

    def inputs(self) -> tuple[Bound, ...]:
        return tuple(self.network.get_input(index) for index in range(self.network.num_inputs))

    def outputs(self) -> tuple[Bound, ...]:
        return tuple(self.network.get_output(index) for index in range(self.network.num_outputs))

    def layers(self) -> Iterator[Bound]:
        return (self.network.get_layer(index) for index in range(self.network.num_layers))


def parse_model(
    trt: Bindings, builder: Bound, model: Path, settings: BuildSettings, creation_flags: int
) -> ParsedNetwork:
    """Parse an ONNX model with external data in its folder. Raises ModelError with all parser errors."""
    network = builder.create_network(creation_flags)
    parser = trt.OnnxParser(network, builder.logger)
    for name in settings.advanced.parser_flags:
        parser.set_flag(getattr(trt.OnnxParserFlag, name))
    if settings.native_instance_norm:
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    elif settings.native_instance_norm is False:
        parser.clear_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    began = time.perf_counter()
    if not _parse(parser, model):
        raise ModelError(_describe_errors(settings.engine_library.backend, trt.__version__, parser))
    return ParsedNetwork(builder, network, parser, time.perf_counter() - began)


def _parse(parser: Bound, model: Path) -> bool:
    """Parse a model, with dimensions named `?` as unnamed ones: TensorRT requires dimensions of one name to be equal.

    The names cannot be changed later: the network's shapes refer to them.
    """
    if mentions(model, _NAMED_AS_UNKNOWN):
        proto = read_proto(model)
        if unname_dims(proto):
            return bool(parser.parse(proto.SerializeToString(), str(model)))
    return bool(parser.parse_from_file(str(model)))


def tensor_info(tensor: Bound) -> TensorInfo:
    """Return the record of an ITensor; -1 for a dynamic dimension."""
    return TensorInfo(name=tensor.name, dtype=dtype_of_tensorrt(tensor.dtype.name), shape=tuple(tensor.shape))


def _describe_errors(backend: EngineBackend, version: str, parser: Bound) -> str:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons: list[str] = []
    for error in errors[:_SHOWN_ERRORS]:
        reason, operator = shortened(_reason(error.desc()), 300), error.node_operator()
        if operator:
            name = error.node_name() or f"number {error.node()}"
            reason = f"node {short_name(name)} ({short_name(operator)}): {reason}"
        reasons.append(reason)
    more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
    what = "; ".join(dict.fromkeys(reasons)) or "it reports no reason"
    return (
        f"{TITLES[backend]} {version} cannot use this model: {what}{more}. "
        "Replace such nodes, load plugins for them (`plugins`), or correct the types with Casts."
    )


def _reason(text: str) -> str:
    if _NO_PLUGIN.search(text):
        return "TensorRT has no such operator, and no plugin of that name is loaded"
    lines = [_NOISE.sub("", line).strip() for line in text.splitlines()]
    reasons = [reason_of(line) for line in lines if not _INVALID_NODE.match(line) and line]
    if all(reason in _NO_REASON for reason in reasons):
        return "TensorRT does not support this operator"
    reason = join_reasons(reasons)
    if assertion := _ASSERTION.match(reason):
        reason = assertion["words"] or assertion["condition"]
    quoted = _QUOTED.match(reason)  # C++: condition && "what it means"
    return quoted["words"] if quoted else reason


_NAMED = 5


def mark_outputs(parsed: ParsedNetwork, model: Path, patterns: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Mark the tensors that patterns of tensors or nodes select as outputs; return their names, and notes.

    Raises as `_select` does.
    """
    if not patterns:
        return (), []
    tensors, notes = _select("mark_outputs", parsed, model, patterns)
    for tensor in tensors.values():
        parsed.network.mark_output(tensor)
    note = (
        f"{counted(len(tensors), 'tensor')} marked as outputs for inspection: layers that compute them are not fused "
        "with those that read them, so that kernels, precisions and rounding may differ from those of the engine "
        "without `mark_outputs`"
    )
    return tuple(tensors), [note, *notes]


def mark_debug_tensors(parsed: ParsedNetwork, model: Path, wanted: Literal["unfused"] | Sequence[str]) -> list[str]:
    """Mark the tensors that remain after fusion, or those that patterns select, as debug tensors; return notes.

    Raises as `_select` does.
    """
    if wanted == "unfused":
        parsed.network.mark_unfused_tensors_as_debug_tensors()
        return []
    if not wanted:
        return []
    tensors, notes = _select("debug_tensors", parsed, model, wanted)
    for tensor in tensors.values():
        parsed.network.mark_debug(tensor)
    note = (
        f"{counted(len(tensors), 'debug tensor')}: TensorRT may fuse their layers differently than without "
        "`debug_tensors`"
    )
    return [note, *notes]


def _select(
    setting: str, parsed: ParsedNetwork, model: Path, patterns: Sequence[str]
) -> tuple[dict[str, Bound], list[str]]:
    """Return the network's tensors that patterns of tensors or nodes select, without its outputs, and notes.

    Tensors of the model that the network lacks are left out, with a note: the parser computes constants and shapes by
    itself. Raises RequestError for a pattern that selects no tensor of the model, and if nothing can be marked.
    """
    known = {tensor.name for tensor in parsed.outputs()}
    places = [place for place in tensors_of(model) if place.can_be_captured and place.op_type != "Constant"]
    selected = set().union(*(_matching(setting, places, pattern) for pattern in patterns))
    chosen = [place.name for place in places if place.name in selected and place.name not in known]
    tensors = {tensor.name: tensor for tensor in _markable(parsed)}
    marked = {name: tensors[name] for name in chosen if name in tensors}
    if not marked:
        raise RequestError(
            f"{setting}: none of the selected tensors can be marked ({_listed(chosen) or 'they are outputs already'}"
            "): TensorRT's network has only those that are neither constants nor shapes. Select others."
        )
    left_out = [name for name in chosen if name not in tensors]
    if not left_out:
        return marked, []
    verb = "is" if len(left_out) == 1 else "are"
    note = (
        f"{counted(len(left_out), 'selected tensor')} {verb} not in TensorRT's network, which folds constants and "
        f"shapes: {_listed(left_out)}"
    )
    return marked, [note]


def _matching(setting: str, places: Sequence[TensorPlace], pattern: str) -> set[str]:
    matches = name_matcher(pattern)
    names = {place.name for place in places if matches(place.name) or (place.node and matches(place.node))}
    if not names:
        near = suggest(pattern, [name for place in places for name in (place.name, place.node) if name])
        hint = f"; {near}" if is_plain(pattern) else ""
        raise RequestError(f'{setting}: "{pattern}" matches no tensor and no node of the model{hint}')
    return names


def _markable(parsed: ParsedNetwork) -> Iterator[Bound]:
    """Yield the network's tensors whose values exist once in an inference, on the device."""
    for layer in parsed.layers():
        if layer.type.name != "CONSTANT":
            tensors = (layer.get_output(index) for index in range(layer.num_outputs))
            yield from (tensor for tensor in tensors if tensor is not None and not tensor.is_shape_tensor)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*map(short_name, names[:_NAMED]), *(["..."] if len(names) > _NAMED else [])])


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
    tensors = [
        {
            "Name": tensor.name,
            "IOMode": mode,
            "DataType": tensor.dtype.name.capitalize(),
            "Dimensions": list(tensor.shape),
        }
        for mode, tensors in (("Input", parsed.inputs()), ("Output", parsed.outputs()))
        for tensor in tensors
    ]
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
