"""The ONNX parser: a layer for each node, with the node's name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bindings import Bound, expect, has_bit, member
from .logs import Log, open_log
from .network import ILayer, ITensor, ParsedModel
from .onnx_layers import LAYER_OF_OP, SHAPE_OPERANDS, TYPE_OF_ELEMENT, UNSUPPORTED

_SMALL = 1024
_NO_PLUGIN = 'creator && "Plugin not found, are the plugin name, version, and namespace correct?"'


class ParserError(Bound):
    """Why a node, or a model, could not be parsed."""

    def _begin(self, *arguments: Any) -> None:
        self._code, self._desc, self._func, self._node, self._node_name, self._operator = arguments

    def code(self) -> Any:
        return member("ErrorCode", self._code)

    def desc(self) -> str:
        return str(self._desc)

    def file(self) -> str:
        return "onnxOpCheckers.cpp"

    def line(self) -> int:
        return 998

    def func(self) -> str:
        return str(self._func)

    def node(self) -> int:
        return int(self._node)

    def node_name(self) -> str:
        return str(self._node_name)

    def node_operator(self) -> str:
        return str(self._operator)

    def local_function_stack(self) -> list[str]:
        return []

    def local_function_stack_size(self) -> int:
        return 0

    def __str__(self) -> str:
        where = f"In node {self._node} with name: {self._node_name} and operator: {self._operator} "
        return f"{where if self._operator else ''}({self._func}): {self._code}: {self._desc}"


class OnnxParser(Bound):
    """Reads ONNX models into a network."""

    def __init__(self, network: Any, logger: Any) -> None:
        self._network = expect("INetworkDefinition", network, "network")
        self._log = open_log(logger)
        self._errors: list[ParserError] = []
        self._flags = 1 << int(member("OnnxParserFlag", "NATIVE_INSTANCENORM"))

    @property
    def flags(self) -> int:
        return int(self._flags)

    @flags.setter
    def flags(self, value: int) -> None:
        self._flags = expect(int, value, "flags")

    def set_flag(self, flag: Any) -> None:
        self._flags |= 1 << int(expect("OnnxParserFlag", flag, "flag"))

    def clear_flag(self, flag: Any) -> None:
        self._flags &= ~(1 << int(expect("OnnxParserFlag", flag, "flag")))

    def get_flag(self, flag: Any) -> bool:
        return has_bit(self._flags, expect("OnnxParserFlag", flag, "flag"))

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[expect(int, index, "index")]

    def clear_errors(self) -> None:
        self._errors.clear()

    def parse_from_file(self, model: str) -> bool:
        file = Path(expect(str, model, "model"))
        if not file.is_file():
            return self._fail(
                "INVALID_VALUE",
                f"Assertion failed: stat(onnxModelFile, &sb) == 0 && S_ISREG(sb.st_mode): Input file cannot be found, "
                f"or is not a regular file: {file}",
                "parseFromFile",
            )
        self._log.say("INFO", f"Input filename:   {file}")
        return self._parse(file.read_bytes(), file.parent)

    def parse(self, model: Any, path: str | None = None) -> bool:
        return self._parse(bytes(model), Path(path).parent if path else None)

    def supports_model_v2(self, model: Any, path: str | None = None) -> bool:
        loaded = self._load(bytes(model), Path(path).parent if path else None)
        return loaded is not None and not any(map(self._is_unknown, loaded.graph.node))

    def supports_operator(self, op_name: str) -> bool:
        return op_name not in UNSUPPORTED

    @property
    def num_subgraphs(self) -> int:
        return 1

    def is_subgraph_supported(self, index: int) -> bool:
        return not self._errors

    def get_used_vc_plugin_libraries(self) -> list[str]:
        return []

    def set_builder_config(self, builder_config: Any) -> bool:
        expect("IBuilderConfig", builder_config, "builder_config")
        return True

    def _fail(self, code: str, desc: str, func: str, node: tuple[int, str, str] = (-1, "", "")) -> bool:
        error = ParserError._make(code, desc, func, *node)
        self._errors.append(error)
        self._log.say("ERROR", str(error))
        return False

    def _load(self, data: bytes, folder: Path | None) -> Any:
        """The model with its weights and types; None, and an error, where it cannot be read."""
        import onnx
        import onnx.inliner

        problem = "Assertion failed: model->ParseFromCodedStream(&codedInput): Failed to parse the ONNX model."
        try:
            model = onnx.load_model_from_string(data)
            if not model.graph.node and not model.graph.output:
                raise ValueError("no graph")
        except Exception:  # protobuf raises what it likes
            self._fail("MODEL_DESERIALIZE_FAILED", problem, "deserializeOnnxModel")
            return None
        try:
            if folder:
                onnx.load_external_data_for_model(model, str(folder))
        except Exception as error:
            self._fail("INVALID_GRAPH", f"Failed to import initializer: {error}", "parseExternalWeights")
            return None
        return onnx.inliner.inline_local_functions(model) if model.functions else model

    def _parse(self, data: bytes, folder: Path | None) -> bool:
        model = self._load(data, folder)
        if model is None:
            return False
        for at, node in enumerate(model.graph.node):
            if self._is_unknown(node):
                return self._fail(
                    "INVALID_NODE", _NO_PLUGIN, "checkFallbackPluginImporter", (at, node.name, node.op_type)
                )
        try:
            NetworkFiller(self._network, model, self._log).fill()
        except ValueError as error:  # of a creator in Python; the bindings print it and go on
            print(error, file=sys.stderr)
            return self._fail("UNSUPPORTED_NODE", "Assertion failed: plugin", "importFallbackPluginImporter")
        return True

    def _is_unknown(self, node: Any) -> bool:
        if not is_custom(node):
            return node.op_type in UNSUPPORTED
        registry = self._network.builder.get_plugin_registry()
        return not any(registry._has(f"{namespace}::{node.op_type}") for namespace in namespaces_of(node))


class NetworkFiller:
    """Puts a model into a network."""

    def __init__(self, network: Any, model: Any, log: Log) -> None:
        import onnx

        self.network, self.model, self.log = network, model, log
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # what cannot be inferred stays unknown
            inferred = model
        graph = inferred.graph
        self.known = {info.name: info.type.tensor_type for info in (*graph.value_info, *graph.input, *graph.output)}
        self.weights = {tensor.name: tensor for tensor in constants_of(model)}
        self.tensors: dict[str, Any] = {}

    def fill(self) -> None:
        for info in self.model.graph.input:
            if info.name not in self.weights:
                self._tensor(info.name)._is_input = True
                self.network._inputs.append(self.tensors[info.name])
        for node in self.model.graph.node:
            if node.output[0] not in self.weights:
                self._add_layer(node)
        for info in self.model.graph.output:
            self.network._outputs.append(self._tensor(info.name))
        self.network._name = self.model.graph.name or "Unnamed Network 0"
        self.network._model = self._parsed()

    def _add_layer(self, node: Any) -> None:
        inputs = [self._tensor(name) for name in node.input if name and name not in self.weights]
        outputs = [self._tensor(name) for name in node.output if name]
        kind = "PLUGIN_V3" if is_custom(node) else LAYER_OF_OP.get(node.op_type, "UNARY")
        layer = ILayer._make(self.network, node.name or f"node_of_{node.output[0]}", kind, inputs, outputs)
        layer._metadata = f"[ONNX Layer: {layer._name}]"
        layer._op = node.op_type
        registry = self.network.builder.get_plugin_registry()
        creator = registry._creator(node.op_type, *namespaces_of(node)) if is_custom(node) else None
        if creator is not None:
            layer._plugin = creator.create_for(node, inputs, self._request(node))
        layer._weights = tuple(name for name in node.input if name in self.weights)
        for index in SHAPE_OPERANDS.get(node.op_type, ()):
            if index < len(node.input) and node.input[index] in self.tensors:
                tensor = self.tensors[node.input[index]]
                tensor._is_shape = tensor._type in ("INT32", "INT64") and len(tensor._dims) <= 1
        self.log.say("VERBOSE", f"Parsing node: {layer._name} [{node.op_type}]")
        self.network._layers.append(layer)

    def _request(self, node: Any) -> str:
        """Return the kind of implementation that is asked for: the node's attribute `aot` goes before the flags."""
        strict = next((bool(attribute.i) for attribute in node.attribute if attribute.name == "aot"), None)
        if strict is not None:
            return "STRICT_AOT" if strict else "STRICT_JIT"
        flags = (f"PREFER_{text}_PYTHON_PLUGINS" for text in ("AOT", "JIT"))
        members = (member("NetworkDefinitionCreationFlag", flag) for flag in flags)
        preferred = [member.name for member in members if member is not None and self.network.get_flag(member)]
        return preferred[0].removesuffix("_PYTHON_PLUGINS") if preferred else "UNKNOWN"

    def _tensor(self, name: str) -> Any:
        if name not in self.tensors:
            known = self.known.get(name)
            dims = tuple(_size(dim) for dim in known.shape.dim) if known is not None else ()
            element = known.elem_type if known is not None else 1
            if element == 11:
                self.log.say("WARNING", f"Tensor {name}: DOUBLE is cast down to FLOAT.")
            self.tensors[name] = ITensor._make(self.network, name, TYPE_OF_ELEMENT.get(element, "FLOAT"), dims)
        return self.tensors[name]

    def _parsed(self) -> ParsedModel:
        """Large weights become inputs: shapes can be inferred without their values."""
        import onnx

        bare = onnx.ModelProto()
        bare.CopyFrom(self.model)
        del bare.graph.initializer[:]
        computed = [node for node in bare.graph.node if node.output[0] not in self.weights]
        del bare.graph.node[:]
        bare.graph.node.extend(computed)
        for tensor in self.weights.values():
            if volume_of(tensor) <= _SMALL:
                bare.graph.initializer.append(tensor)
            elif tensor.name not in {info.name for info in bare.graph.input}:
                bare.graph.input.append(
                    onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                )
        return ParsedModel(bare.SerializeToString(), weights_of(self.model))


def is_custom(node: Any) -> bool:
    import onnx

    return node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type)


def namespaces_of(node: Any) -> tuple[str, ...]:
    """Where a node's plugin is looked for: in the namespace of its attribute, then in that of its domain."""
    named = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "plugin_namespace"), "")
    return (named, node.domain)


def weights_of(model: Any) -> dict[str, bytes]:
    """Constant -> its values."""
    import onnx

    return {tensor.name: onnx.numpy_helper.to_array(tensor).tobytes() for tensor in constants_of(model)}


def constants_of(model: Any) -> Iterator[Any]:
    """Initializers, and what Constant nodes hold as a tensor."""
    import onnx

    yield from model.graph.initializer
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            held = onnx.TensorProto()
            held.CopyFrom(node.attribute[0].t)
            held.name = node.output[0]
            yield held


def volume_of(tensor: Any) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count


def _size(dim: Any) -> int:
    return int(dim.dim_value) if dim.HasField("dim_value") else -1
