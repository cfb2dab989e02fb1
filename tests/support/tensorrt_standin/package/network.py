"""Networks: tensors, layers, and what holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .bindings import IS_STRONG_ONLY, Bound, Setting, expect, has_bit, member
from .logs import LAST
from .values import Dims

_ALL_FORMATS = 8191
_CREATION = "NetworkDefinitionCreationFlag"


@dataclass
class ParsedModel:
    """The parser's result for the builder: the model's graph without large weights, and its weights."""

    graph: bytes = b""
    weights: dict[str, bytes] = field(default_factory=dict)


class ITensor(Bound):
    """A tensor of a network."""

    allowed_formats = Setting(int, _ALL_FORMATS)
    broadcast_across_batch = Setting(bool, False)
    location = Setting("TensorLocation", "DEVICE")
    name = Setting(str, "")

    def _begin(self, *arguments: Any) -> None:
        self._network, self._name, self._type, self._dims = arguments
        self._range: tuple[float, float] | None = None
        self._is_input = self._is_shape = False

    @property
    def shape(self) -> Any:
        return Dims(self._dims)

    @shape.setter
    def shape(self, value: Sequence[int]) -> None:
        self._dims = tuple(value)

    @property
    def dtype(self) -> Any:
        return member("DataType", self._type)

    @dtype.setter
    def dtype(self, value: Any) -> None:
        if self._network._is_strong:
            LAST[0].error("ITensor::setType: not supported for strongly typed networks", 3)
            return
        self._type = expect("DataType", value, "dtype").name

    @property
    def dynamic_range(self) -> tuple[float, float] | None:
        return self._range

    @dynamic_range.setter
    def dynamic_range(self, value: tuple[float, float]) -> None:
        self._range = (float(value[0]), float(value[1]))

    def set_dynamic_range(self, min: float, max: float) -> bool:
        self._range = (expect(float, min, "min"), expect(float, max, "max"))
        return True

    def reset_dynamic_range(self) -> None:
        self._range = None

    @property
    def is_network_input(self) -> bool:
        return bool(self._is_input)

    @property
    def is_network_output(self) -> bool:
        return self in self._network._outputs

    @property
    def is_shape_tensor(self) -> bool:
        return bool(self._is_shape)

    @property
    def is_execution_tensor(self) -> bool:
        return not self._is_shape

    def get_dimension_name(self, index: int) -> str | None:
        return None

    def set_dimension_name(self, index: int, name: str) -> None:
        expect(str, name, "name")


class ILayer(Bound):
    """A layer of a network. Precisions are there where networks can be weakly typed."""

    name = Setting(str, "")
    metadata = Setting(str, "")
    num_ranks = Setting(int, 1)

    def _begin(self, *arguments: Any) -> None:
        self._network, self._name, self._type, self._inputs, self._outputs = arguments
        self._precision: Any = None
        self._output_types: dict[int, Any] = {}
        self._weights: tuple[str, ...] = ()
        self._op = ""
        self._plugin: Any = None

    @property
    def type(self) -> Any:
        return member("LayerType", self._type) or member("LayerType", "PLUGIN_V3")

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> Any:
        return _at(self._inputs, index, "ILayer::getInput")

    def get_output(self, index: int) -> Any:
        return _at(self._outputs, index, "ILayer::getOutput")

    def set_input(self, index: int, tensor: Any) -> None:
        self._inputs[index] = expect("ITensor", tensor, "tensor")

    @property
    def precision(self) -> Any:
        return self._precision or member("DataType", "FLOAT")

    @precision.setter
    def precision(self, value: Any) -> None:
        expect("DataType", value, "precision")
        if not self._refuses_types("ILayer::setPrecision"):
            self._precision = value

    @property
    def precision_is_set(self) -> bool:
        return self._precision is not None

    def reset_precision(self) -> None:
        self._precision = None

    def set_output_type(self, index: int, dtype: Any) -> None:
        expect("DataType", dtype, "dtype")
        if not self._refuses_types("ILayer::setOutputType"):
            self._output_types[expect(int, index, "index")] = dtype

    def get_output_type(self, index: int) -> Any:
        return self._output_types.get(index, self._outputs[index].dtype)

    def output_type_is_set(self, index: int) -> bool:
        return index in self._output_types

    def reset_output_type(self, index: int) -> None:
        self._output_types.pop(index, None)

    def _refuses_types(self, what: str) -> bool:
        if self._network._is_strong:
            self._network._log.error(f"{what}: not supported for strongly typed networks", 3)
        return bool(self._network._is_strong)


class INetworkDefinition(Bound):
    """Layers in the order they were added."""

    error_recorder = Setting(object)
    name = Setting(str, "Unnamed Network 0")

    def _begin(self, *arguments: Any) -> None:
        self._builder, self._flags, self._log = arguments
        self._is_strong = IS_STRONG_ONLY or has_bit(self._flags, member(_CREATION, "STRONGLY_TYPED"))
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._layers: list[Any] = []
        self._refittable: set[str] = set()
        self._debug: list[Any] = []
        self._unfused = False
        self._model = ParsedModel()

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, at: int) -> Any:
        return self._layers[at]

    @property
    def builder(self) -> Any:
        return self._builder

    @property
    def flags(self) -> int:
        strong = 1 << int(member(_CREATION, "STRONGLY_TYPED"))
        return int(self._flags | strong) if self._is_strong else int(self._flags)

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def has_implicit_batch_dimension(self) -> bool:
        return False

    def get_flag(self, flag: Any) -> bool:
        return has_bit(self.flags, expect(_CREATION, flag, "flag"))

    def get_input(self, index: int) -> Any:
        return _at(self._inputs, index, "INetworkDefinition::getInput")

    def get_output(self, index: int) -> Any:
        return _at(self._outputs, index, "INetworkDefinition::getOutput")

    def get_layer(self, index: int) -> Any:
        return _at(self._layers, index, "INetworkDefinition::getLayer")

    def add_input(self, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        tensor = ITensor._make(self, name, expect("DataType", dtype, "dtype").name, tuple(shape))
        tensor._is_input = True
        self._inputs.append(tensor)
        return tensor

    def add_identity(self, input: Any) -> Any:
        return self._add("IDENTITY", "Identity", input, input.dtype.name)

    def add_cast(self, input: Any, to_type: Any) -> Any:
        return self._add("CAST", "Cast", input, expect("DataType", to_type, "to_type").name)

    def mark_output(self, tensor: Any) -> None:
        self._outputs.append(expect("ITensor", tensor, "tensor"))

    def unmark_output(self, tensor: Any) -> None:
        self._outputs.remove(tensor)

    def mark_debug(self, tensor: Any) -> bool:
        self._debug.append(expect("ITensor", tensor, "tensor"))
        return True

    def unmark_debug(self, tensor: Any) -> bool:
        self._debug.remove(expect("ITensor", tensor, "tensor"))
        return True

    def is_debug_tensor(self, tensor: Any) -> bool:
        """Those that are marked as unfused are not."""
        return expect("ITensor", tensor, "tensor") in self._debug

    def mark_unfused_tensors_as_debug_tensors(self) -> bool:
        self._unfused = True
        return True

    def unmark_unfused_tensors_as_debug_tensors(self) -> bool:
        self._unfused = False
        return True

    def mark_weights_refittable(self, name: str) -> bool:
        self._refittable.add(name)
        return name in self._model.weights

    def unmark_weights_refittable(self, name: str) -> bool:
        self._refittable.discard(name)
        return name in self._model.weights

    def are_weights_marked_refittable(self, name: str) -> bool:
        return name in self._refittable

    def _add(self, kind: str, op: str, tensor: Any, dtype: str) -> Any:
        name = f"(Unnamed Layer* {len(self._layers)}) [{op}]"
        output = ITensor._make(self, f"{name}_output", dtype, tensor._dims)
        layer = ILayer._make(self, name, kind, [tensor], [output])
        layer._op = op
        self._layers.append(layer)
        return layer


def _at(things: Sequence[Any], index: int, what: str) -> Any:
    """One of many; None, and an error in the log, where there is none."""
    if 0 <= expect(int, index, what) < len(things):
        return things[index]
    LAST[0].error(f"{what}: index {index} is not in [0, {len(things)})", 3)
    return None
