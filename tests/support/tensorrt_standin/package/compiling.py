"""From a network's layers to those of an engine: types are chosen, activations fused, reformats put in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .bindings import IS_STRONG_ONLY
from .timing import key_of

_NOT_COMPILED = ("CONSTANT",)
_HEAVY = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM")
_RETYPED = ("FLOAT", "HALF", "BF16")
"""Types of tensors that weak typing may change."""
_JOIN = "\x1f" if IS_STRONG_ONLY else "\x1e"
_TYPE_WORDS = {"FLOAT": "FP32", "HALF": "FP16", "BF16": "BF16", "INT8": "Int8"}
_SPLIT_WORDS = {"FLOAT": "Float", "HALF": "Half", "BF16": "BFloat16"}
_KIND_WORDS = {"CONVOLUTION": "CaskConvolution", "MATRIX_MULTIPLY": "CaskGemmMatrixMultiply", "POOLING": "CaskPooling"}


@dataclass
class CompiledTensor:
    name: str
    dims: list[int]
    type: str


@dataclass
class CompiledLayer:
    """One layer of an engine."""

    name: str
    kind: str
    inputs: list[CompiledTensor]
    outputs: list[CompiledTensor]
    type: str
    """What it computes in."""
    metadata: str = ""
    weights: list[str] = field(default_factory=list)
    tactic: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Compiler:
    """Compiles a network under a configuration. `refused` says what cannot be done."""

    def __init__(self, network: Any, config: Any) -> None:
        self.network, self.config = network, config
        self.refused = ""
        self.held: dict[str, str] = {}
        """Tensor -> the type it has in the engine."""
        self.layers: list[CompiledLayer] = []

    def compile(self) -> list[CompiledLayer]:
        fused: set[int] = set()
        kept = [layer for layer in self.network._layers if layer._type not in _NOT_COMPILED]
        for at, layer in enumerate(kept):
            if id(layer) in fused:
                continue
            parts = [layer, *self._fused_into(layer, kept[at + 1 : at + 2])]
            fused.update(map(id, parts))
            self._compile(parts)
        self._reformat_outputs()
        if IS_STRONG_ONLY:
            for at, compiled in enumerate(self.layers):
                compiled.name = f"__myl_{''.join(_words(compiled))}_myl0_{at}"
        for compiled in self.layers:
            compiled.tactic = f"standin_{compiled.kind.lower()}_{compiled.type.lower()}_0x{key_of(compiled.name)[:16]}"
        return self.layers

    def _fused_into(self, layer: Any, following: list[Any]) -> list[Any]:
        """An activation that only this layer feeds runs within it."""
        return [
            other
            for other in following
            if layer._type in _HEAVY
            and other._type == "ACTIVATION"
            and other._inputs[:1] == layer._outputs[:1]
            and layer._outputs[0] not in (*self.network._outputs, *self.network._debug)
            and self._type(other) == self._type(layer)
            and sum(layer._outputs[0] in reader._inputs for reader in self.network._layers) == 1
        ]

    def _compile(self, parts: list[Any]) -> None:
        computes_in = self._type(parts[0])
        name = " + ".join(part._name for part in parts)
        inputs = [self._as(tensor, computes_in, at, name) for at, tensor in enumerate(parts[0]._inputs)]
        outputs = []
        for index, tensor in enumerate(parts[-1]._outputs):
            asked = parts[-1]._output_types.get(index)
            held = asked.name if asked is not None else computes_in if tensor._type in _RETYPED else tensor._type
            self.held[tensor._name] = tensor._type if self.network._is_strong else held
            outputs.append(CompiledTensor(tensor._name, list(tensor._dims), self.held[tensor._name]))
        metadata = _JOIN.join(part._metadata for part in parts if part._metadata)
        weights = [weight for part in parts for weight in part._weights]
        self.layers.append(CompiledLayer(name, parts[0]._type, inputs, outputs, computes_in, metadata, weights))

    def _as(self, tensor: Any, wanted: str, at: int, reader: str) -> CompiledTensor:
        """A tensor in the type a layer reads; a reformat goes before it where it has another."""
        held = self.held.setdefault(tensor._name, tensor._type)
        if self.network._is_strong or tensor._type not in _RETYPED or held == wanted:
            return CompiledTensor(tensor._name, list(tensor._dims), held)
        source = CompiledTensor(tensor._name, list(tensor._dims), held)
        target = CompiledTensor(f"Reformatted Input Tensor {at} to {reader}", list(tensor._dims), wanted)
        name = f"Reformatting CopyNode for Input Tensor {at} to {reader}"
        self.layers.append(CompiledLayer(name, "Reformat", [source], [target], wanted))
        return target

    def _reformat_outputs(self) -> None:
        for tensor in self.network._outputs:
            held = self.held.get(tensor._name, tensor._type)
            if held != tensor._type and not self.network._is_strong:
                source = CompiledTensor(f"Reformatted Output Tensor 0 to {tensor._name}", list(tensor._dims), held)
                target = CompiledTensor(tensor._name, list(tensor._dims), tensor._type)
                for layer in self.layers:
                    layer.inputs = [source if item.name == tensor._name else item for item in layer.inputs]
                    layer.outputs = [source if output.name == tensor._name else output for output in layer.outputs]
                name = f"Reformatting CopyNode for Output Tensor 0 to {tensor._name}"
                self.layers.append(CompiledLayer(name, "Reformat", [source], [target], tensor._type))

    def _type(self, layer: Any) -> str:
        own = next((tensor._type for tensor in layer._outputs), "FLOAT")
        if self.network._is_strong or own not in _RETYPED:
            return own
        if layer._precision is not None and self._constrains():
            return self._constrained(layer)
        return self._fastest(layer, own)

    def _constrains(self) -> bool:
        return bool(self.config._has("OBEY_PRECISION_CONSTRAINTS") or self.config._has("PREFER_PRECISION_CONSTRAINTS"))

    def _constrained(self, layer: Any) -> str:
        wanted = str(layer._precision.name)
        flag = {"HALF": "FP16"}.get(wanted, wanted)
        if wanted == "FLOAT" or self.config._has(flag):
            return wanted
        if self.config._has("OBEY_PRECISION_CONSTRAINTS"):
            self.refused = f"{layer._name}: precision {wanted} is set, and BuilderFlag {flag} is not"
        return "FLOAT"

    def _fastest(self, layer: Any, own: str) -> str:
        for flag, name, only_heavy in (
            ("FP8", "FP8", True),
            ("INT8", "INT8", True),
            ("FP16", "HALF", False),
            ("BF16", "BF16", False),
        ):
            if self.config._has(flag) and (layer._type in _HEAVY or not only_heavy):
                return name
        return own


def told_layer(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the detailed description of a layer by the engine inspector."""
    return {
        "Name": layer["name"],
        "LayerType": _KIND_WORDS.get(layer["kind"], layer["kind"].capitalize()) if not IS_STRONG_ONLY else "kgen",
        "Inputs": [_told_tensor(tensor) for tensor in layer["inputs"]],
        "Outputs": [_told_tensor(tensor) for tensor in layer["outputs"]],
        "TacticName": layer["tactic"],
        "StreamId": 0,
        "Metadata": layer["metadata"],
    }


def told_log(engine: dict[str, Any]) -> str:
    """The layers as the log of a detailed build tells them, and after them what the engine is bound to."""
    lines = [told_line(layer) for layer in engine["layers"]]
    if not IS_STRONG_ONLY:
        return "\n".join(["Layers:", *lines, "", "Bindings:", *(tensor["name"] for tensor in engine["tensors"])])
    bound = [f" {_pairs(told)}, Location: Device" for told in map(told_binding, engine["tensors"])]
    return "\n".join(["Layers:", *lines, "", "I/O Tensors:", *bound, "", "Engine Metadata:", " Multi-Device: Disabled"])


def told_line(layer: dict[str, Any]) -> str:
    """A layer as a line of the build's log."""
    told = told_layer(layer)
    if IS_STRONG_ONLY:
        told = {key: told[key] for key in ("Name", "LayerType", "Inputs")} | {"Constants": []} | told
    return _pairs({key: _listed(value) if isinstance(value, list) else value for key, value in told.items()})


def told_binding(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an input or output by releases since 11."""
    return {
        "Name": tensor["name"],
        "IOMode": tensor["mode"].capitalize(),
        "DataType": tensor["type"].capitalize(),
        "Dimensions": tensor["dims"],
    }


def _listed(tensors: list[dict[str, Any]]) -> str:
    shown = ", ".join(f"{{ {_pairs(tensor)} }}" for tensor in tensors)
    return f"[ {shown}]" if shown else "[]"


def _pairs(told: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}: {str(value).replace(' ', '') if isinstance(value, list) else value}" for key, value in told.items()
    )


def _told_tensor(tensor: dict[str, Any]) -> dict[str, Any]:
    name, dims, words = tensor["name"], tensor["dims"], _SPLIT_WORDS if IS_STRONG_ONLY else _TYPE_WORDS
    word = words.get(tensor["type"], tensor["type"].capitalize())
    if IS_STRONG_ONLY:
        return {"Name": name, "Dimensions": dims, "Datatype": word, "Format": "(Linear) Row major linear format"}
    form = f"Row major linear {word} format"
    return {"Name": name, "Location": "Device", "Dimensions": dims, "Format/Datatype": form}


def _words(layer: CompiledLayer) -> list[str]:
    return [part.capitalize() for part in layer.kind.split("_")]
