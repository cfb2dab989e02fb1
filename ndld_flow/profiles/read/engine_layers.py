"""Read TensorRT layers from `trtexec --exportLayerInfo` and the engine inspector: types, tensors, tactics, ONNX nodes.

`{"Layers": [...], "Bindings": [names]}` in TensorRT 8 to 10; since 11 `"I/O Tensors": [{Name, IOMode, DataType, ...}]`
replaces the bindings, and `Format/Datatype` of a tensor is split in two. Without detailed profiling verbosity, layers
are only names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ndld_flow.base.dtype_names import dtype_of_tensorrt, without_dtype
from ndld_flow.profiles.read.layer_work import elements, work_of
from ndld_flow.profiles.read.sources import objects_in, parse_json, read_whole, shape_of, text_of, whole_of
from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES, multiplies_matrices
from ndld_flow.records.profile import Layer, LayerRole, LayerWeight, TensorInfo

_WINDOW = {"Kernel": "kernel_shape", "Stride": "strides", "Dilation": "dilations"}
"""The inspector's name -> ONNX's name."""


def _sizes(entry: Mapping[str, object]) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of a layer's constants, `{"Count": 9408}` or `{"Dimensions": [64, 3, 7, 7]}`."""
    for name in ("Weights", "ConvWeights"):
        constant = entry.get(name)
        count = whole_of(constant.get("Count")) if isinstance(constant, dict) else None
        if count is not None and count > 0:
            yield (count,)
    for constant in objects_in(entry.get("Constants")):
        shape = shape_of(constant.get("Dimensions"))
        if shape is not None and elements(shape):
            yield shape


def _window(entry: Mapping[str, object]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the window of a convolution by ONNX's names of its parts; empty for other layers."""
    attributes: list[tuple[str, tuple[int, ...]]] = []
    for name, attribute in _WINDOW.items():
        part = shape_of(entry.get(name, entry.get(f"Conv{name}")))
        if part is not None:
            attributes.append((attribute, part))
    groups = whole_of(entry.get("Groups", entry.get("ConvGroups")))
    if attributes and groups is not None:
        attributes.append(("group", (groups,)))
    return tuple(attributes)


_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\s,;]*(?:\[|\Z))", re.DOTALL)
_FOREIGN = re.compile(r"\{ForeignNode\[(.*?)\]\}", re.DOTALL)
_POINTWISE = re.compile(r"PWN\(|\)")
_JOINS = re.compile(r" \+ |, | \|\| ")
_OWN = re.compile(
    r"\(Unnamed Layer|\{ForeignNode|__my[el]|"
    r"(?:un)?squeeze_(?:before|after|node)_|reshape_(?:before|after)_|copied_|onnx::|shuffle_between_|"
    r"(?:Host|Shape|Device)\w*To\w+|[^^]*\^bb\^"
)
"""Prefixes of names that TensorRT or an exporter generates; no node's name starts with them."""
_WEIGHT = re.compile(r".*\.(?:weight|bias)(?:_scale|_zero_point)?", re.DOTALL)
"""Quantized weights appear in a layer's name next to its nodes."""
_COPY = "Reformatting CopyNode "
_MYELIN_END = re.compile(r"_myl\d+_\d+\Z")
"""Suffix by which Myelin numbers its kernels."""
_MAX_NODES = 2_000


def nodes_of_metadata(metadata: str) -> tuple[str, ...]:
    """Return the nodes listed in an engine's metadata, each once.

    With detailed profiling verbosity the engine lists them: `[ONNX Layer: Conv_0]`, separated by the characters 1e
    and 1f.
    """
    return _each_once(match[1] for match in _METADATA.finditer(metadata))


def nodes_of_name(name: str) -> tuple[str, ...]:
    """Return the nodes that a layer's name is composed of; none for layers that TensorRT inserted.

    Examples are `Conv_0 + Relu_1`, `PWN(Sigmoid_3, Mul_4)`, `A || B`, and `{ForeignNode[first...last]}`, which names
    the first and the last node.
    """
    if name.startswith(_COPY):
        return ()
    name = _MYELIN_END.sub("", name)
    ends = [end for foreign in _FOREIGN.finditer(name) for end in foreign[1].split("...", 1)]
    others = _FOREIGN.sub("", name)
    if "PWN(" in name:
        others = _POINTWISE.sub(" + ", others)
    return _each_once([*ends, *_JOINS.split(others)])


def _each_once(names: Iterable[str]) -> tuple[str, ...]:
    unique: dict[str, None] = {}
    for name in names:
        plain = name.strip(" +,\x1e\x1f")
        if plain and not (_OWN.match(plain) or _WEIGHT.fullmatch(plain)) and len(unique) < _MAX_NODES:
            unique[plain] = None
    return tuple(unique)


_CODE = re.compile(r"\((?:k)?(\w+)\)")
_CODES = {"nhwc": "hwc", "nchw": "linear"}
"""TensorRT-RTX's name -> name in `TensorFormat`."""
_WIDE = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
_VECTORIZED = re.compile(rf"({'|'.join(_WIDE)}) wide channel vectorized")
_MULTIPLE = re.compile(r"channel % (\d+)")
_LONGEST = 40
_LONGEST_TOLD = 200


@lru_cache(maxsize=4096)
def format_of_tensorrt(text: str) -> str:
    """Return a tensor's memory format by the names of TensorRT's enum `TensorFormat`: `linear`, `chw32`, `hwc8`.

    The inspector writes it as prose that includes the type: `Row major linear FP32`, or `Channel major FP16 format
    where channel % 8 == 0`. Unknown words are kept without the type; the result is empty for a bare type.
    """
    lowered = " ".join(text[:_LONGEST_TOLD].lower().split())
    code = _CODE.search(lowered)
    if code:
        return _CODES.get(code[1], code[1])[:_LONGEST]
    space = "d" if "3 spatial dimensions" in lowered else ""
    wide = _VECTORIZED.search(lowered)
    if wide:
        return f"c{space}hw{_WIDE[wide[1]]}"
    if "channel major" in lowered:
        multiple = _MULTIPLE.search(lowered)
        return f"{space}hwc{multiple[1] if multiple else ''}"
    if "linear" in lowered:
        return "linear"
    return without_dtype(lowered).removesuffix("format").strip(" ,.:")[:_LONGEST]


_NO_TACTIC = ("0x0", "0x0000000000000000")
_COPIES = ("hosttodevice", "devicetohost", "shapehosttodevice", "devicetoshapehost", "memcpy")
_CONTROL = ("loop", "conditional", "conditioninput", "conditionoutput", "conditionaloutput", "triplimit", "recurrence")


@dataclass(frozen=True)
class EngineInfo:
    """An engine's layers in order, and its bindings."""

    layers: tuple[Layer, ...]
    """Without times."""
    bindings: tuple[str, ...]
    """Names of inputs and outputs, if the export does not distinguish them."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    is_detailed: bool
    """False if layers are only names."""
    unreadable: int


def read_engine_info(path: Path) -> EngineInfo:
    """Read an export. Raises RequestError if the file cannot be read, ValueError if it is not JSON."""
    value = parse_json(read_whole(path))
    document = value if isinstance(value, dict) else {}
    listed = document.get("Layers")
    entries = listed if isinstance(listed, list) else []
    layers = [
        layer.model_copy(update={"index": index}) for index, layer in enumerate(filter(None, map(_layer, entries)))
    ]
    bound = list(objects_in(document.get("I/O Tensors")))
    names = document.get("Bindings")
    return EngineInfo(
        layers=tuple(layers),
        bindings=tuple(name for name in map(text_of, names if isinstance(names, list) else []) if name),
        inputs=_bound(bound, "input"),
        outputs=_bound(bound, "output"),
        is_detailed=any(text_of(entry.get("LayerType")) for entry in objects_in(entries)),
        unreadable=len(entries) - len(layers),
    )


def bare_layer(name: str) -> Layer:
    """Return a layer with only a name."""
    return _layer_of({"Name": name})


def split_bindings(info: EngineInfo) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Return the engine's inputs and outputs, completed with information from its layers.

    A binding is an output if a layer writes it, otherwise an input if one reads it. `I/O Tensors` take precedence.
    """
    read = _first_of(tensor for layer in info.layers for tensor in layer.inputs)
    written = _first_of(tensor for layer in info.layers for tensor in layer.outputs)
    inputs = tuple(read[name] for name in info.bindings if name in read and name not in written)
    outputs = tuple(written[name] for name in info.bindings if name in written)
    return (
        tuple(_with_dims(tensor, read) for tensor in info.inputs) or inputs,
        tuple(_with_dims(tensor, written) for tensor in info.outputs) or outputs,
    )


def _first_of(tensors: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    firsts: dict[str, TensorInfo] = {}
    for tensor in tensors:
        firsts.setdefault(tensor.name, tensor)
    return firsts


def _with_dims(bound: TensorInfo, known: Mapping[str, TensorInfo]) -> TensorInfo:
    """Return a bound tensor with known dimensions. The inspector writes -1 for dynamic ones; the layers have the actual
    value.
    """
    layer = known.get(bound.name)
    return bound if layer is None or -1 not in bound.shape else bound.model_copy(update={"shape": layer.shape})


def _bound(entries: Iterable[Mapping[str, object]], mode: str) -> tuple[TensorInfo, ...]:
    return tuple(_tensor(entry) for entry in entries if text_of(entry.get("IOMode")).lower() == mode)


def _layer(entry: object) -> Layer | None:
    entry = {"Name": entry} if isinstance(entry, str) else entry
    return _layer_of(entry) if isinstance(entry, dict) and text_of(entry.get("Name")) else None


def _layer_of(entry: Mapping[str, object]) -> Layer:
    name, kind = text_of(entry["Name"]), text_of(entry.get("LayerType"))
    inputs = tuple(map(_tensor, objects_in(entry.get("Inputs"))))
    outputs = tuple(map(_tensor, objects_in(entry.get("Outputs"))))
    nodes = nodes_of_metadata(text_of(entry.get("Metadata"))) or nodes_of_name(name)
    role = _role(name, kind, text_of(entry.get("Origin")))
    if role == "compute" and not nodes and _changes_layout(inputs, outputs):
        role = "reformat"  # like Myelin's `__myl_Tran_myl0_42`, which TensorRT-RTX compiles
    tactic, tactic_value = text_of(entry.get("TacticName")), text_of(entry.get("TacticValue"))
    return Layer(
        index=0,
        name=name,
        type=kind or ("Reformat" if role == "reformat" else "unknown"),
        samples_ms=(),
        inputs=inputs,
        outputs=outputs,
        role=role,
        tactic=tactic or ("" if tactic_value in _NO_TACTIC else tactic_value),
        stream=whole_of(entry.get("StreamId")),
        onnx_nodes=() if role == "reformat" else nodes,
        **vars(work_of(entry, inputs, outputs)),
        weights_dtype=_weights_dtype(entry),
        groups=_groups(entry, inputs),
        weights=tuple(LayerWeight(shape=shape) for shape in _sizes(entry)),
        attributes=_window(entry),
        activation=_activation(entry),
    ).with_arithmetic()


def _activation(entry: Mapping[str, object]) -> str:
    """Return the fused activation, `relu`; empty for none. `HasReLU` is set where an older release lists no other."""
    listed = text_of(entry.get("Activation", entry.get("ConvActivation"))).lower()
    if listed in ("", "none") and entry.get("HasReLU", entry.get("ConvHasReLU")) == 1:
        return "relu"
    return "" if listed == "none" else listed


def _weights_dtype(entry: Mapping[str, object]) -> str:
    """Return the type of `Weights`, or of the largest of TensorRT-RTX's `Constants` that is not a vector of scales."""
    weights = entry.get("Weights", entry.get("ConvWeights"))
    if isinstance(weights, dict):
        return dtype_of_tensorrt(text_of(weights.get("Type")))
    if not multiplies_matrices(text_of(entry.get("LayerType")), text_of(entry.get("Name"))):
        return ""
    listed = [_tensor(constant) for constant in objects_in(entry.get("Constants"))]
    matrices = [constant for constant in listed if sum(dim > 1 for dim in constant.shape) > 1]
    return max(matrices, key=lambda constant: elements(constant.shape) or 0).dtype if matrices else ""


def _groups(entry: Mapping[str, object], inputs: tuple[TensorInfo, ...]) -> int | None:
    """Return the number of groups, as listed or derived from TensorRT-RTX's filter [output channels, group channels,
    ...].
    """
    listed = whole_of(entry.get("Groups", entry.get("ConvGroups")))
    if listed is not None or text_of(entry.get("LayerType")) != "correlation":
        return listed
    constants = (shape_of(constant.get("Dimensions")) or () for constant in objects_in(entry.get("Constants")))
    filters = max((shape for shape in constants if len(shape) > 3), key=lambda shape: elements(shape) or 0, default=())
    source = inputs[0].shape if inputs else ()
    if len(source) < 2 or not filters or filters[1] < 1 or source[1] < 1:
        return None
    return source[1] // filters[1] if source[1] % filters[1] == 0 else None


def _role(name: str, kind: str = "", origin: str = "") -> LayerRole:
    """Return the role of a layer. QuantizeLinear and DequantizeLinear run as reformats, but come from the model."""
    lowered = kind.lower()
    if origin.upper() == "QDQ" or kind in QUANTIZING_TYPES:
        return "quantize"
    if lowered == "cast":
        return "cast"
    if lowered in ("reformat", "reformatter") or name.startswith("Reformatting CopyNode "):
        return "reformat"
    if lowered in _COPIES:
        return "copy"
    if lowered in ("wait", "signal"):
        return "sync"
    return "control" if lowered in _CONTROL else "compute"


def _changes_layout(inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> bool:
    """Return whether a layer writes its only input in another format."""
    if len(inputs) != 1 or len(outputs) != 1:
        return False
    before, after = inputs[0], outputs[0]
    return before.shape == after.shape and "" not in (before.format, after.format) and before.format != after.format


_TYPE_KEYS = ("Format/Datatype", "DataType", "Datatype", "Type", "Format")
"""Keys of a tensor's type, in the order of preference; releases differ."""


def _tensor(entry: Mapping[str, object]) -> TensorInfo:
    type_text = next((text_of(entry[key]) for key in _TYPE_KEYS if entry.get(key)), "")
    return TensorInfo(
        name=text_of(entry.get("Name")),
        dtype=dtype_of_tensorrt(type_text),
        shape=shape_of(entry.get("Dimensions")) or (),
        format=format_of_tensorrt(text_of(entry.get("Format/Datatype")) or text_of(entry.get("Format"))),
    )
