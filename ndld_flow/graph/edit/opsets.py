"""Conversion of a model between opsets, one version at a time.

Only nodes whose operator differs between the two versions are converted. Most new versions of an operator accept more
types, or get an attribute whose default is the former behaviour: such nodes are kept. The others are converted by
onnx's version converter, which supports most conversions to newer versions and few to older ones. A conversion that
would change the meaning is rejected.

The converter reads whole models, loads their weights and loses subgraphs, functions, sparse tensors and metadata.
Therefore it gets a model of one node: the node's inputs become inputs of known type and shape, and small constants are
included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import prune_values
from ndld_flow.graph.edit.schemas import Imports
from ndld_flow.models.element_types import schema_of, signature_of, type_name
from ndld_flow.models.files import oldest_ir_version, reject_unknown_opset
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import free_name, identifier, node_label, scopes_of
from ndld_flow.models.shape_inference import infer_shapes

_MODERN = 7
"""Before this opset, broadcasting was set by attributes: only the converter can convert such operators."""
_FIRST_OF_VALUE_INPUTS = 11
_VALUE_INPUTS = {"Clip": 1, "Pad": 2}
"""Operator -> the first of its inputs that were attributes before that opset and have the type of its first input."""
_NEGATIVE_AXES = 11
"""The opset that introduced negative axes."""
_OTHER_MEANING = {
    ("DFT", 20): "its axis was counted differently",
    ("GridSample", 20): "its modes had other names",
    ("GroupNormalization", 21): "scale and bias were per group, not per channel",
    ("Hardmax", 13): "it flattened its input",
    ("LogSoftmax", 13): "it flattened its input",
    ("Resize", 11): "it had other inputs",
    ("RoiAlign", 16): "it aligned pixels differently",
    ("Softmax", 13): "it flattened its input",
}
"""Operator and the version that changed its meaning without changing its form -> its previous meaning."""
_FLATTENING = ("Hardmax", "LogSoftmax", "Softmax")
_READ_BYTES = 2**16
"""Adapters read axes, shapes, scales and paddings; of larger constants they get only type and shape."""
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""The converter does not support subgraphs; all versions of these operators but Scan's first are the same."""
_MOST_LISTED = 3


class CannotConvertError(RequestError):
    """There is no such node in the other opset, or no conversion to it."""


def convert_proto(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """Convert a small model in place to another opset. Raises `CannotConvertError` with the reason."""
    source = model.opset_import[0].version
    step = 1 if target > source else -1
    for opset in range(source, target, step):
        model = _take_step(model, opset, opset + step)
    return model


def _take_step(model: onnx.ModelProto, old: int, new: int) -> onnx.ModelProto:
    """Return the model in the opset after or before its own."""
    changed = [node for node in model.graph.node if _version(node, old) != _version(node, new)]
    for node in changed if new < old else ():
        _prepare_for_older(node, model.graph, new)
    if all(_is_unchanged(node, old, new) for node in changed):
        for node in changed:
            _keep(node, old, new)
        model.opset_import[0].version = new
        return model
    try:
        converted = onnx.version_converter.convert_version(model, new)
        return _with_typed_values(converted) if new == _FIRST_OF_VALUE_INPUTS else converted
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError, IndexError) as error:
        # Attributes that the new opset lacks, and whose values are not their defaults.
        newer = [
            f"its attribute {given.name} was introduced in opset {old}"
            for node in changed
            for given in node.attribute
            if new < old and not (given.name in _schema(node, new).attributes or _is_default(given, _schema(node, old)))
        ]
        raise CannotConvertError("; ".join(newer) or f"at opset {new}, {_reason(error)}") from None


def _with_typed_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a converted model whose new inputs have the type of the first one; the converter always writes floats."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    for node in model.graph.node:
        values = node.input[_VALUE_INPUTS.get(node.op_type, len(node.input)) :]
        wanted = types.get(node.input[0], onnx.TensorProto.FLOAT) if values else 0
        for constant in (maker for maker in model.graph.node if set(maker.output) & set(values)):
            tensor = constant.attribute[0].t
            array = numpy_helper.to_array(tensor).astype(onnx.helper.tensor_dtype_to_np_dtype(wanted))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def _reason(error: Exception) -> str:
    """Return the converter's message without the file and line of its C++ source."""
    text = one_paragraph(error)
    if "No initializer or constant input" in text:
        return "one of its inputs would become an attribute, but is not a constant"
    if "No Adapter" in text:
        return "onnx has no converter for it"
    return (text.rpartition("failed: ")[2] if "Assertion" in text else text).rstrip(". ")


def _schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema:
    schema = schema_of(node.op_type, opset)
    if schema is None:
        raise CannotConvertError(f"there is no {node.op_type} in opset {opset}")
    return schema


def _version(node: onnx.NodeProto, opset: int) -> int:
    return int(_schema(node, opset).since_version)


def _prepare_for_older(node: onnx.NodeProto, graph: onnx.GraphProto, opset: int) -> None:
    """Rewrite the node in the form of the previous opset.

    Raises `CannotConvertError` if its operator had another meaning there.
    """
    before = _OTHER_MEANING.get((node.op_type, _version(node, opset + 1)))
    if node.op_type in _FLATTENING and before is not None:
        # these flattened all axes from their axis on, which is the same for the last axis
        rank = _rank(graph, node.input[0])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
        before = None if rank is not None and axis in (-1, rank - 1) else before
    if before is not None:
        raise CannotConvertError(f"in opset {opset} {before}")
    if opset + 1 == _NEGATIVE_AXES:
        _make_axes_positive(node, graph)
    if node.op_type == "Constant" and opset == 11:
        # A tensor replaces the plain numbers of a Constant.
        given = node.attribute[0]
        kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        if given.name in kinds:
            tensor = numpy_helper.from_array(np.array(_value(given), dtype=kinds[given.name]))
            given.CopyFrom(onnx.helper.make_attribute("value", tensor))
    if node.op_type == "Split" and opset == 17:
        _drop_equal_parts(node, graph)


def _is_unchanged(node: onnx.NodeProto, old: int, new: int) -> bool:
    """Return whether the node has the same meaning in the new opset without changes."""
    before, after = _schema(node, old), _schema(node, new)
    counts = after.min_input <= len(node.input) <= after.max_input and len(node.output) <= after.max_output
    known = all(given.name in after.attributes or _is_default(given, before) for given in node.attribute)
    version = (node.op_type, _version(node, new))
    # other meanings in older opsets are rejected before
    same = new < old or (version not in _OTHER_MEANING and version != ("Split", 18))
    return min(old, new) >= _MODERN and not after.deprecated and counts and known and same


def _keep(node: onnx.NodeProto, old: int, new: int) -> None:
    before, after = _schema(node, old), _schema(node, new)
    for index in reversed(range(len(node.attribute))):
        if node.attribute[index].name not in after.attributes:
            del node.attribute[index]
    given = {attribute.name for attribute in node.attribute}
    for name in before.attributes.keys() & after.attributes.keys() - given:
        default = before.attributes[name].default_value
        if default.type and _value(default) != _value(after.attributes[name].default_value):
            node.attribute.append(default)


def _is_default(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    """Return whether an attribute has its default value."""
    if attribute.name == "dilations":
        return all(step == 1 for step in attribute.ints)
    if attribute.name not in schema.attributes:
        return False
    default = schema.attributes[attribute.name].default_value
    return bool(default.type) and _value(default) == _value(attribute)


def _value(attribute: onnx.AttributeProto) -> object:
    return onnx.helper.get_attribute_value(attribute) if attribute.type else None


def _make_axes_positive(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Count axes from 0 instead of from the end. Raises `CannotConvertError` if the rank is unknown."""
    for attribute in node.attribute:
        if attribute.name not in ("axis", "axes") or min([attribute.i, *attribute.ints]) >= 0:
            continue
        rank = _rank(graph, node.output[0] if node.op_type in ("Unsqueeze", "OneHot") else node.input[0])
        if rank is None:
            raise CannotConvertError("its axis counts from the end, and the number of dimensions is unknown")
        attribute.i %= rank
        attribute.ints[:] = [axis % rank for axis in attribute.ints]


def _rank(graph: onnx.GraphProto, name: str) -> int | None:
    dims = _dims(graph, name)
    return None if dims is None else len(dims)


def _dims(graph: onnx.GraphProto, name: str) -> list[int] | None:
    """Return the sizes of a tensor of the model; 0 for unknown ones."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return next((list(tensor.dims) for tensor in graph.initializer if tensor.name == name), None)


def _drop_equal_parts(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Remove `num_outputs` from a Split into equal parts, which the previous opset assumes by default."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    dims = _dims(graph, node.input[0]) or []
    size = dims[axis] if -len(dims) <= axis < len(dims) else 0
    for index in reversed(range(len(node.attribute))):
        if node.attribute[index].name == "num_outputs" and size and size % node.attribute[index].i == 0:
            del node.attribute[index]


@dataclass(frozen=True)
class Adapted:
    """Nodes that replace one node."""

    nodes: list[ir.Node]
    outputs: list[ir.Value]
    """The outputs of the old node, from the new nodes."""

    def heir(self, op_type: str) -> ir.Node:
        """Return the node that corresponds to the old one: the last of its operator, or that of the first output."""
        same = [node for node in self.nodes if node.op_type == op_type]
        return same[-1] if same else next(node for node in self.nodes if self.outputs[0] in node.outputs)

    def drop(self) -> None:
        """Disconnect all inputs: the nodes are not used."""
        for node in self.nodes:
            node.resize_inputs(0)


def must_change(node: ir.Node, source: int, target: int) -> bool:
    """Return whether the node's operator has another version in the other opset.

    Raises `CannotConvertError` if that opset does not have it.
    """
    if node.domain:
        return False
    old, new = _since(node.op_type, source), _since(node.op_type, target)
    if old is None:
        raise CannotConvertError(f"opset {source} does not have this operator")
    if new is None:
        history = onnx.defs.get_all_schemas_with_history()
        versions = (known.since_version for known in history if (known.domain, known.name) == ("", node.op_type))
        raise CannotConvertError(f"it was introduced in opset {min(versions, default=0)}")
    if node.op_type == "Scan" and (old < 9) != (new < 9):
        raise CannotConvertError("Scan was another operator before opset 9")
    if node.op_type in _CONTROL_FLOW:
        _check_types(node, target)
    return old != new and node.op_type not in _CONTROL_FLOW


def adapt_node(node: ir.Node, source: int, target: int) -> Adapted:
    """Return the node in the other opset; the original is unchanged. Raises `CannotConvertError` with the reason."""
    read = list(dict.fromkeys(value for value in node.inputs if value is not None))
    names = {value: f"in_{number}" for number, value in enumerate(read)}
    converted = convert_proto(_alone(node, names, source), target)
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = converted.ir_version, {"": converted.opset_import[0].version}
    try:
        for new in converted.graph.node:
            onnx.checker.check_node(new, context)
    except onnx.checker.ValidationError as error:
        raise CannotConvertError(f"the result would not be valid: {one_paragraph(error)}") from None
    adapted = _adapted(node, converted, {name: value for value, name in names.items()})
    try:
        _restore_references(node, adapted, source, target)
        for new in adapted.nodes:
            _check_types(new, target)
    except CannotConvertError:
        adapted.drop()
        raise
    return adapted


def _restore_references(node: ir.Node, adapted: Adapted, source: int, target: int) -> None:
    """Restore attributes that refer to a function's call, whose values are unknown.

    Raises `CannotConvertError` for one that has another meaning in the other opset.
    """
    for attribute in node.attributes.values():
        if not attribute.is_ref():
            continue
        schemas = [onnx.defs.get_schema(node.op_type, opset, "") for opset in (source, target)]
        defaults = [
            schema.attributes[attribute.name].default_value for schema in schemas if attribute.name in schema.attributes
        ]
        if len(adapted.nodes) > 1 or len(defaults) < 2 or defaults[0] != defaults[1]:
            raise CannotConvertError(
                f"its attribute {attribute.name} is the function's; inline the function first with `inline_functions`"
            )
        adapted.nodes[0].attributes[attribute.name] = attribute


def _check_types(node: ir.Node, opset: int) -> None:
    signature = signature_of(node, {"": opset})
    if signature is None:
        return
    for verb, values, variables in (("take", node.inputs, signature.inputs), ("make", node.outputs, signature.outputs)):
        for value, variable in zip(values, variables, strict=False):
            type_ = None if value is None else type_name(value.type)
            if type_ is not None and not signature.admits(variable, type_):
                raise CannotConvertError(f"in opset {opset} it does not {verb} {type_}")


def _since(op_type: str, opset: int) -> int | None:
    schema = schema_of(op_type, opset)
    return None if schema is None else int(schema.since_version)


def _alone(node: ir.Node, names: dict[ir.Value, str], opset: int) -> onnx.ModelProto:
    """Return a model of this node only."""
    proto = onnx.NodeProto(op_type=node.op_type, name="node")
    proto.input.extend("" if value is None else names[value] for value in node.inputs)
    proto.output.extend(_output_names(node))
    own = (attribute for attribute in node.attributes.values() if not attribute.is_ref())
    proto.attribute.extend(map(ir.serde.serialize_attribute, own))
    graph = onnx.GraphProto(name="alone", node=[proto])
    for value, name in names.items():
        tensor = _small_constant(value)
        if tensor is None:
            graph.input.append(_declared(value, name))
        else:
            graph.initializer.append(
                ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))
            )
    for value, name in zip(node.outputs, proto.output, strict=True):
        if name:
            graph.output.append(_declared(value, name))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def _output_names(node: ir.Node) -> list[str]:
    return [f"out_{number}" if value.name else "" for number, value in enumerate(node.outputs)]


def _small_constant(value: ir.Value) -> ir.TensorProtocol | None:
    # An initializer that is also an input is only a default: conclusions from it would be wrong for another value.
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor if tensor.nbytes <= _READ_BYTES else None


def _declared(value: ir.Value, name: str) -> onnx.ValueInfoProto:
    return ir.serde.serialize_value(ir.Value(name=name, type=value.type, shape=value.shape))


def _adapted(node: ir.Node, converted: onnx.ModelProto, known: dict[str, ir.Value]) -> Adapted:
    """Copy the converter's nodes, connected to the values of the model."""
    values = dict(known)
    nodes: list[ir.Node] = []
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in converted.graph.initializer
        if tensor.name not in known
    ]
    for proto in (*constants, *converted.graph.node):
        inputs = [values[name] if name else None for name in proto.input]
        new = ir.Node(
            proto.domain,
            proto.op_type,
            inputs,
            [ir.serde.deserialize_attribute(attribute) for attribute in proto.attribute],
            num_outputs=len(proto.output),
        )
        values |= dict(zip(proto.output, new.outputs, strict=True))
        nodes.append(new)
    outputs = [values[name] if name else ir.Value() for name in _output_names(node)]
    for old, heir in zip(node.outputs, outputs, strict=True):
        heir.type = old.type
    used = [node for node in nodes if any(value.uses() or value in outputs for value in node.outputs)]
    return Adapted(used, outputs)


def convert_opset(edited: EditedModel, target: int) -> Counter[str]:
    """Convert a model, its subgraphs and local functions to another version of the default domain.

    Returns operator -> number of converted nodes. Raises `RequestError` that names the nodes that cannot be converted;
    the model is unchanged then.
    """
    model = edited.model
    reject_unknown_opset(target)
    infer_shapes(model)
    adapted = _adapt_all(model, target)
    converted = Counter(node.op_type for node in adapted)
    taken = edited.names()
    for node, instead in adapted.items():
        _replace(node, instead, taken)
    model.opset_imports[""] = target
    for function in model.functions.values():
        if "" in function.opset_imports:
            function.opset_imports[""] = target
    model.ir_version = max(model.ir_version or 0, oldest_ir_version(target))
    return converted


def import_domain(edited: EditedModel, domain: str, version: int) -> str:
    """Import a domain, or another version of it, and return a summary. Its nodes stay unchanged."""
    before = edited.model.opset_imports.get(domain)
    edited.model.opset_imports[domain] = version
    for function in edited.model.functions.values():
        if domain in function.opset_imports:
            function.opset_imports[domain] = version
    return f"{domain} {version} imported" if before is None else f"{domain} {before} -> {version}"


def _adapt_all(model: ir.Model, target: int) -> dict[ir.Node, Adapted]:
    adapted: dict[ir.Node, Adapted] = {}
    refused: list[str] = []
    imports = Imports(model)
    for scope, graph in scopes_of(model).items():
        source = imports.of(graph).get("", 1)
        for node in graph:
            try:
                if must_change(node, source, target):
                    adapted[node] = adapt_node(node, source, target)
            except CannotConvertError as error:
                where = f" in {short_name(scope)}" if scope else ""
                refused.append(f"{node.op_type} {short_name(node_label(node))!r}{where}: {error}")
    if refused:
        for instead in adapted.values():
            instead.drop()
        more = f"; and {len(refused) - _MOST_LISTED} more" if len(refused) > _MOST_LISTED else ""
        raise RequestError(
            f"not all nodes can be converted to opset {target}. {'; '.join(refused[:_MOST_LISTED])}{more}"
        )
    return adapted


def _replace(node: ir.Node, instead: Adapted, taken: set[str]) -> None:
    """Insert the new nodes in place of the old one; the one that corresponds to it keeps its name and metadata."""
    graph = node.graph
    assert graph is not None
    read = [value for value in node.inputs if value is not None]
    heir = instead.heir(node.op_type)
    for new in instead.nodes:
        label = node.name or node.op_type
        new.name = node.name if new is heir else free_name(identifier(f"{label}_{new.op_type}"), taken)
        for value in new.outputs:
            if value not in instead.outputs:
                value.name = free_name(identifier(f"{new.name}_out"), taken)
    heir.doc_string = node.doc_string
    heir.metadata_props.update(node.metadata_props)
    heir.meta.update(node.meta)
    for old, new_value in zip(node.outputs, instead.outputs, strict=True):
        new_value.doc_string = old.doc_string
        new_value.metadata_props.update(old.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, node, [node], instead.nodes, node.outputs, instead.outputs)
    prune_values(read)
