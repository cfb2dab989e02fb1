"""Plugins as decorated functions in Python, as in `tensorrt.plugin`: `@register`, then `@impl` or `@aot_impl`.

An ID is `namespace::name`, and is registered with the process once. TensorRT-RTX 1.7 has the folder, and not the module
behind it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..bindings import IS_RTX
from ..plugins import get_plugin_registry

if IS_RTX:
    raise ModuleNotFoundError("No module named 'tensorrt_rtx_bindings.plugin'", name="tensorrt_rtx_bindings.plugin")

Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTES = (int, float, str, bool, bytes)
_DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32", "INT64": "int64"}


@dataclass(frozen=True)
class TensorDesc:
    """The type and the shape of a tensor."""

    dtype: Any = None
    shape: tuple[int, ...] = ()

    @property
    def shape_expr(self) -> tuple[int, ...]:
        return self.shape

    def like(self) -> TensorDesc:
        return TensorDesc(self.dtype, self.shape)


@dataclass(frozen=True)
class Tensor(TensorDesc):
    """A tensor in memory."""

    data_ptr: int = 0


@dataclass
class KernelLaunchParams:
    """The sizes of a launch."""

    grid_x: int = 1
    grid_y: int = 1
    grid_z: int = 1
    block_x: int = 1
    block_y: int = 1
    block_z: int = 1
    shared_mem: int = 0


class SymInt32(int):
    """An argument of a kernel."""


class SymIntExprs:
    """Integers that a compiled kernel gets between inputs and outputs."""

    def __init__(self, count: int) -> None:
        self._values: list[Any] = [None] * count

    def __setitem__(self, index: int, value: Any) -> None:
        self._values[index] = value


@dataclass
class _Definition:
    plugin_id: str
    register: Callable[..., Any]
    tensors: tuple[str, ...]
    attributes: dict[str, type]
    impl: Callable[..., Any] | None = None
    aot_impl: Callable[..., Any] | None = None


QDP_REGISTRY: dict[str, _Definition] = {}


@dataclass
class Plugin:
    """A plugin of one node."""

    definition: _Definition
    inputs: tuple[TensorDesc, ...]
    attributes: dict[str, Any]
    compiled: bool

    @property
    def plugin_id(self) -> str:
        return self.definition.plugin_id

    def compile(self) -> str:
        """Return the name of the kernel, which the builder compiles into the engine."""
        function = self.definition.aot_impl
        assert function is not None
        name, kernel, launch, _ = function(*self.inputs, *_chosen(function, self.attributes), self.outputs(), 0)
        assert isinstance(kernel, bytes | str)
        assert isinstance(launch, KernelLaunchParams)
        return str(name)

    def outputs(self) -> tuple[TensorDesc, ...]:
        found = self.definition.register(*self.inputs, **self.attributes)
        return found if isinstance(found, tuple) else (found,)


@dataclass
class _Creator:
    name: str
    plugin_namespace: str
    plugin_version: str = "1"
    field_names: Sequence[str] = field(default_factory=tuple)

    def create_for(self, node: Any, inputs: Sequence[Any], request: str) -> Plugin:
        definition = QDP_REGISTRY[f"{self.plugin_namespace}::{self.name}"]
        descriptions = tuple(TensorDesc(_DTYPES[tensor._type], tuple(tensor._dims)) for tensor in inputs)
        return Plugin(definition, descriptions, attributes_of(node, definition), _is_compiled(definition, request))


def attributes_of(node: Any, definition: _Definition) -> dict[str, Any]:
    """Return the attributes of an ONNX node that a plugin declares."""
    import onnx

    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: kind(given[name]) for name, kind in definition.attributes.items() if name in given}


def _is_compiled(definition: _Definition, request: str) -> bool:
    both, known = (definition.aot_impl, definition.impl), definition.plugin_id
    if request.startswith("STRICT"):
        wanted = both[0] if request == "STRICT_AOT" else both[1]
        if wanted is None:
            raise ValueError(f"{request[-3:]} implementation requested, but not defined for '{known}'.")
        return request == "STRICT_AOT"
    if None not in both:
        if request == "UNKNOWN":
            raise ValueError(
                f"Plugin '{known}' has both AOT and JIT implementations. "
                "NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS or "
                "NetworkDefinitionCreationFlag.PREFER_JIT_PYTHON_PLUGINS should be specified."
            )
        return request == "PREFER_AOT"
    if both == (None, None):
        raise ValueError(f"Plugin '{known}' does not have either a AOT or JIT implementation.")
    return both[0] is not None


def register(plugin_id: str, lazy_register: bool = False) -> Callable[[Function], Function]:
    """Describe the outputs of a plugin. All annotations are needed, and tensors come before attributes."""

    def decorate(function: Function) -> Function:
        namespace, name = _new_name(plugin_id)
        hints = {name: given.annotation for name, given in inspect.signature(function).parameters.items()}
        tensors = tuple(name for name, hint in hints.items() if hint is TensorDesc)
        attributes = {name: hint for name, hint in hints.items() if hint is not TensorDesc}
        for parameter, hint in attributes.items():
            if hint not in _ATTRIBUTES:
                raise ValueError(f"Attribute '{parameter}' type annotation '{hint}' is not one of the supported types")
        if inspect.signature(function).return_annotation is inspect.Signature.empty:
            raise ValueError(f"No return annotation found for register function {function.__name__}")
        QDP_REGISTRY[plugin_id] = _Definition(plugin_id, function, tensors, attributes)
        if not lazy_register:
            get_plugin_registry().register_creator(_Creator(name, namespace), namespace)
        return function

    return decorate


def _new_name(plugin_id: str) -> tuple[str, str]:
    namespace, name = plugin_id.split("::")
    if "." in plugin_id:
        raise ValueError(f"Provided namespace {namespace} or name {name} cannot have any '.'")
    if namespace in ("", "trt", "tensorrt", "std"):
        raise ValueError(f"Provided namespace {namespace} is a reserved namespace")
    if plugin_id in QDP_REGISTRY:
        raise ValueError(f"'_Op' already has a defintion for '{name}'")
    return namespace, name


def impl(plugin_id: str) -> Callable[[Function], Function]:
    """Define the computation in Python, which is called back whenever the engine runs."""

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        _check_names(definition, function, "outputs, stream")
        definition.impl = function
        return function

    return decorate


def aot_impl(plugin_id: str) -> Callable[[Function], Function]:
    """Define a function that returns a compiled kernel, which becomes a part of the engine."""

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        _check_names(definition, function, "outputs, tactic")
        if inspect.signature(function).return_annotation is inspect.Signature.empty:
            raise ValueError("No return annotation found for aot_impl function.")
        definition.aot_impl = function
        return function

    return decorate


def _registered(plugin_id: str) -> _Definition:
    if plugin_id not in QDP_REGISTRY:
        raise ValueError(
            f"Plugin {plugin_id} is not registered. Did you register it with tensorrt.plugin.register API?"
        )
    return QDP_REGISTRY[plugin_id]


def _check_names(definition: _Definition, function: Callable[..., Any], last: str) -> None:
    """Refuse arguments that are not those of the registered function, of whose attributes some may be left out."""
    given = inspect.signature(function).parameters
    attributes = [name for name in definition.attributes if name in given]
    expected = ", ".join([*definition.tensors, *attributes, last])
    if ", ".join(given) not in (expected, f"{expected}, tactic"):
        raise ValueError(f"Signature of '{function.__name__}' does not match the expected schema: ({expected})")


def _chosen(function: Callable[..., Any], attributes: dict[str, Any]) -> list[Any]:
    return [value for name, value in attributes.items() if name in inspect.signature(function).parameters]


def call_back(plugin_id: str, node: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run the Python of a plugin on arrays in host memory, the stand-in's device memory; return its outputs."""
    import numpy

    definition = _registered(plugin_id)
    attributes, function = attributes_of(node, definition), definition.impl
    assert function is not None
    given = [numpy.ascontiguousarray(values) for values in inputs]
    described = [TensorDesc(str(values.dtype), values.shape) for values in given]
    plugin = Plugin(definition, tuple(described), attributes, compiled=False)
    made = [numpy.empty(output.shape, output.dtype) for output in plugin.outputs()]
    tensors = [Tensor(str(item.dtype), item.shape, item.ctypes.data) for item in (*given, *made)]
    outputs = tuple(tensors[len(given) :])
    function(*tensors[: len(given)], *_chosen(function, attributes), outputs, stream=0)
    return tuple(made)
