"""Local functions: names, lookup, attributes, calls, and inlining.

Inlining does not use onnx_ir's InlinePass, which renames an input of the model that a function passes through to an
output, and removes all inlined functions. Here the model's inputs, outputs and most names stay the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import onnx
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, UnknownNameError, check_known
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.names import Nesting, names_of
from ndld_flow.graph.edit.node_groups import Renaming, copy_nodes, deep_nodes, replace_uses
from ndld_flow.graph.edit.schemas import Imports, Schemas, check_inputs
from ndld_flow.models.element_types import GRAPHS, functions_by_graph, is_known_op, schema_of
from ndld_flow.models.files import all_graphs
from ndld_flow.models.nodes import free_name, function_address, graph_of, identifier, node_label, remove_node

IR_OF_FUNCTIONS = 8
"""The first IR version with local functions."""
IR_OF_DEFAULTS = 9
"""The first IR version whose functions can have attributes with defaults."""

_DOMAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CHECKS: dict[ir.AttributeType, type | tuple[type, ...]] = {
    ir.AttributeType.INT: int,
    ir.AttributeType.FLOAT: (int, float),
    ir.AttributeType.STRING: str,
}
_OF_ELEMENT = {
    ir.AttributeType.INTS: ir.AttributeType.INT,
    ir.AttributeType.FLOATS: ir.AttributeType.FLOAT,
    ir.AttributeType.STRINGS: ir.AttributeType.STRING,
}
_LARGEST_FLOAT = 3.4028235e38
_SCHEMA_TYPES = {getattr(onnx.defs.OpSchema.AttrType, kind.name): kind for kind in (*_CHECKS, *_OF_ELEMENT)}


class FunctionName(NamedTuple):
    """Domain and name of a function."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}"


def new_function_name(model: ir.Model, text: str) -> FunctionName:
    """Parse `domain::Name`. Raises `RequestError` for another form, and for the name of an operator."""
    domain, _, name = text.partition("::")
    if not _DOMAIN.fullmatch(domain) or not _IDENTIFIER.fullmatch(name):
        raise RequestError(
            f"{text!r} is not a function name: write `domain::Name`, such as `model::Layer`, of letters, digits and `_`"
        )
    if (domain, name, "") in model.functions:
        raise RequestError(f"there is already a function {text!r} in this model; choose another name")
    if domain in ("ai.onnx", "ai.onnx.ml") or is_known_op(name, domain):
        raise RequestError(f"{text!r} is or may become an operator of ONNX; choose another domain, such as `model`")
    return FunctionName(domain, name)


def find_functions(model: ir.Model, patterns: Sequence[str], allow_empty: bool = False) -> list[ir.Function]:
    """Return the functions whose `domain::Name` or name alone matches one of the patterns, in the model's order.

    Raises `RequestError` with the nearest name for a pattern that fits none, unless that is allowed.
    """
    chosen: set[tuple[str, str, str]] = set()
    addresses = {function.identifier(): function_address(function) for function in model.functions.values()}
    for pattern in patterns:
        fits = name_matcher(pattern)
        matching = {key for key, address in addresses.items() if fits(address) or fits(key[1])}
        if not matching and not allow_empty:
            raise UnknownNameError(f"this model has no local function {pattern!r}", pattern, addresses.values())
        chosen |= matching
    return [function for key, function in model.functions.items() if key in chosen]


def find_function(model: ir.Model, name: str) -> ir.Function:
    """Return the function of a name. Raises `RequestError` if there is none, or several."""
    functions = find_functions(model, [name])
    if len(functions) > 1:
        raise RequestError(f"{name!r} is ambiguous: {', '.join(map(function_address, functions))}")
    return functions[0]


def drop_unused_domains(model: ir.Model) -> None:
    """Remove imports of domains that no node and no function of the model uses, except the default domain."""
    used = {"", "ai.onnx", *(function.domain for function in model.functions.values())}
    used |= {node.domain for graph in all_graphs(model) for node in graph}
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain in set(imports) - used:
            del imports[domain]


def callees_first(functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> list[ir.Function]:
    """Return functions after those that they call. Raises `graphlib.CycleError` for recursive ones."""
    calls = {
        key: [called for node in deep_nodes(function.graph) if (called := node.op_identifier()) in functions]
        for key, function in functions.items()
    }
    return [functions[key] for key in TopologicalSorter(calls).static_order()]


def attribute_types(function: ir.Function) -> dict[str, ir.AttributeType]:
    """Return attribute of the function -> type, where a default or a reference determines it."""
    types = {attr.name: attr.type for attr in function.attributes.values() if attr.value is not None}
    for node in deep_nodes(function.graph):
        for attr in node.attributes.values():
            if attr.is_ref():
                types.setdefault(attr.ref_attr_name or "", attr.type)
    return types


def typed_attribute(name: str, value: JsonValue, kind: ir.AttributeType | None) -> ir.Attr:
    """Return a recipe's value as an attribute of a type, or of the type that it suggests; booleans are 1 or 0.

    Raises `RequestError` for a value that the type cannot hold.
    """
    plain = [_without_bool(each) for each in value] if isinstance(value, list) else _without_bool(value)
    kind = kind or _kind_of(plain)
    if kind is None or not _fits(plain, kind):
        wanted = "a number, a string or a list of these" if kind is None else f"of type {kind.name}"
        raise RequestError(f"{value!r} cannot be the value of attribute {name!r}, which is {wanted}")
    return ir.convenience.convert_attribute(name, plain, kind)  # type: ignore[arg-type]


def set_attributes(
    edited: EditedModel,
    function: ir.Function,
    defaults: Mapping[str, JsonValue],
    references: Mapping[str, Mapping[str, str]],
) -> int:
    """Set attributes of a function with defaults (None: without), and let nodes of its body refer to them.

    Attributes that only `references` names get the node's own value as default. Returns the number of references.
    Raises `RequestError` for unknown nodes and attributes, and for values and types that do not fit.
    """
    if "" in (*defaults, *(wanted for places in references.values() for wanted in places.values())):
        raise RequestError("the name of an attribute must not be empty")
    nodes = {node_label(node): node for node in deep_nodes(function.graph)}
    check_known(references, nodes, "there is no node", f" in {function_address(function)}", "it has no nodes")
    asked = [(nodes[label], name, wanted) for label, places in references.items() for name, wanted in places.items()]
    known = _types_asked(function, defaults, asked)
    for name, value in defaults.items():
        kind = known.get(name)
        if value is None:
            function.attributes[name] = ir.Attr(name, kind or ir.AttributeType.UNDEFINED, None)
        else:
            function.attributes[name] = typed_attribute(name, value, kind)
    for node, name, wanted in asked:
        own = node.attributes.get(name)
        if wanted not in function.attributes:
            value = None if own is None or own.is_ref() else own.value
            function.attributes[wanted] = ir.Attr(wanted, known[wanted], value)
        node.attributes[name] = ir.RefAttr(name, wanted, known[wanted])
    if any(attribute.value is not None for attribute in function.attributes.values()):
        edited.raise_ir_version(IR_OF_DEFAULTS)
    return len(asked)


def _types_asked(
    function: ir.Function, defaults: Mapping[str, JsonValue], asked: Sequence[tuple[ir.Node, str, str]]
) -> dict[str, ir.AttributeType]:
    """Return attribute of the function -> type, including the new references."""
    known = attribute_types(function)
    for node, name, wanted in asked:
        kind = _type_at(function, node, name) or known.get(wanted) or _kind_of(_without_bool(defaults.get(wanted)))
        if kind is None:
            raise RequestError(f"the type of {wanted!r} is unknown: give it a default with `attributes`")
        if known.setdefault(wanted, kind) != kind:
            label = node_label(node)
            raise RequestError(f"{wanted!r} is {known[wanted].name}, but {name!r} of {label!r} is {kind.name}")
    return known


def _type_at(function: ir.Function, node: ir.Node, name: str) -> ir.AttributeType | None:
    """Return the type of a node's attribute: its current one, or that of the operator's schema."""
    if name in node.attributes:
        return node.attributes[name].type
    schema = schema_of(node.op_type, function.opset_imports.get(node.domain, 1), node.domain)
    if schema is None:
        return None
    check_known([name], schema.attributes, f"{node.op_type} has no attribute")
    return _SCHEMA_TYPES.get(schema.attributes[name].type)


def _without_bool(value: JsonValue) -> JsonValue:
    return int(value) if isinstance(value, bool) else value


def _kind_of(value: JsonValue) -> ir.AttributeType | None:
    if isinstance(value, list):
        inner = [_kind_of(each) for each in value]
        kinds = {kind for kind in inner if kind is not None}
        numbers = {ir.AttributeType.INT, ir.AttributeType.FLOAT}
        if kinds == numbers:
            return ir.AttributeType.FLOATS
        return next((many for many, single in _OF_ELEMENT.items() if kinds == {single}), None)
    return next((kind for kind, types in _CHECKS.items() if isinstance(value, types)), None)


def _fits(value: JsonValue, kind: ir.AttributeType) -> bool:
    if kind in _OF_ELEMENT:
        return isinstance(value, list) and all(_fits(each, _OF_ELEMENT[kind]) for each in value)
    if kind not in _CHECKS or not isinstance(value, _CHECKS[kind]):
        return False
    if kind == ir.AttributeType.INT:  # stored in 64 bits, other numbers as fp32
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return not isinstance(value, int | float) or not math.isfinite(value) or abs(value) <= _LARGEST_FLOAT


@dataclass(frozen=True)
class Call:
    """A call to add."""

    inputs: Sequence[str]
    """Names of the input tensors; empty for an omitted input."""
    outputs: Sequence[str]
    """Names of the outputs; generated where there are none."""
    attributes: Mapping[str, JsonValue]
    name: str


def calls_of(model: ir.Model, function: ir.Function) -> list[ir.Node]:
    """Return the nodes that call a function, anywhere in the model."""
    return [node for graph in all_graphs(model) for node in graph if node.op_identifier() == function.identifier()]


def add_call(edited: EditedModel, function: ir.Function, call: Call, scope: str) -> ir.Node:
    """Add a node that calls a function to a graph. Raises `RequestError` for a call that does not fit the function."""
    graph, address = edited.graph(scope), function_address(function)
    home = functions_by_graph(edited.model).get(graph)
    if home is not None and function.identifier() in _callers_of(edited.model, home):
        raise RequestError(f"a call of {address} in {scope!r} would be recursive, which ONNX does not allow")
    for what, given, own in (("inputs", call.inputs, function.inputs), ("outputs", call.outputs, function.outputs)):
        if len(given) > len(own):
            names = ", ".join(value.name or "" for value in own)
            raise RequestError(f"{address} has the {what} ({names}); {len(given)} are given")
    nesting = Nesting(edited.model)
    inputs = [nesting.value(name, graph) if name else None for name in call.inputs]
    check_inputs(Schemas(edited.model).of_function(function), inputs)
    taken = edited.names()
    for new in filter(None, (*call.outputs, call.name)):
        if new in taken:
            raise RequestError(f"there is already a node or tensor {new!r} in this model; choose another name")
        taken.add(new)
    wishes = zip(call.outputs or [""] * len(function.outputs), function.outputs, strict=False)
    outputs = [name or edited.fresh_name(f"{function.name}_{value.name}") for name, value in wishes]
    node = ir.Node(
        function.domain,
        function.name,
        inputs,
        list(_attributes(function, call.attributes)),
        overload=function.overload,
        outputs=[ir.Value(name=name) for name in outputs],
        name=call.name or edited.fresh_name(function.name),
    )
    graph.append(node)
    graph.sort()
    Imports(edited.model).add(graph, {function.domain: 1})
    return node


def remove_functions(edited: EditedModel, functions: Sequence[ir.Function], leave_calls: bool) -> int:
    """Remove functions and return the number of calls that are left as custom operators.

    Raises `RequestError` for a function that is called, unless `leave_calls`.
    """
    gone = {function.graph for function in functions}
    inner = {graph for function in functions for graph in function.subgraphs()}
    left = 0
    for function in functions:
        calls = [node for node in calls_of(edited.model, function) if node.graph not in gone | inner]
        if calls and not leave_calls:
            raise RequestError(
                f"{function_address(function)} is called by {node_label(calls[0])!r}: inline it, or keep its calls as "
                "custom operators with `leave_calls: true`"
            )
        left += len(calls)
    for function in functions:
        del edited.model.functions[function.identifier()]
    drop_unused_domains(edited.model)
    return left


def rename_functions(edited: EditedModel, functions: Sequence[ir.Function], to: str) -> int:
    """Rename functions and their calls; returns the number of calls.

    Raises `RequestError` if two functions would get the same name.
    """
    model, count = edited.model, 0
    for function in functions:
        calls = calls_of(model, function)
        del model.functions[function.identifier()]
        # not `str.format`, with which a recipe could read attributes of objects and pad to a gigabyte
        filled = to.replace("{domain}", function.domain).replace("{name}", function.name)
        if set("{}") & set(filled):
            raise RequestError(f"`to`: {to!r} may contain `{{domain}}` and `{{name}}`, but no other braces")
        name = new_function_name(model, filled)
        for call in calls:
            call.domain, call.op_type = name
            Imports(model).add(call.graph, {name.domain: 1})
        function.domain, function.name = name
        model.functions[function.identifier()] = function
        count += len(calls)
    drop_unused_domains(model)
    return count


def _callers_of(model: ir.Model, function: ir.Function) -> set[ir.OperatorIdentifier]:
    """Return a function and its direct and indirect callers."""
    callers, grown = set[ir.OperatorIdentifier](), {function.identifier()}
    while grown > callers:
        callers = grown
        grown = callers | {
            key
            for key, each in model.functions.items()
            if any(node.op_identifier() in callers for node in deep_nodes(each.graph))
        }
    return callers


def _attributes(function: ir.Function, given: Mapping[str, JsonValue]) -> Iterator[ir.Attr]:
    types = attribute_types(function)
    check_known(given, function.attributes, f"{function_address(function)} has no attribute")
    for name, value in given.items():
        yield typed_attribute(name, value, types.get(name))


def inline_functions(edited: EditedModel, functions: Sequence[ir.Function], keep: bool) -> int:
    """Inline functions at their calls, also in other functions; returns the number of calls.

    They are removed afterwards, unless `keep`. Raises `RequestError` if they call each other in a cycle, require
    another version of an operator set than the caller has, or get a graph as an attribute.
    """
    model = edited.model
    chosen = {function.identifier(): function for function in functions}
    kept = [graph for graph in all_graphs(model) if keep or graph not in {f.graph for f in functions}]
    inlining = _Inlining(model, chosen, set().union(*names_of(kept)))
    for function in _in_order(chosen):
        inlining.calls_in(function.graph)
    calls = sum(
        inlining.calls_in(graph)
        for graph in (model.graph, *(f.graph for key, f in model.functions.items() if key not in chosen))
    )
    if not keep:
        for key in chosen:
            del model.functions[key]
        drop_unused_domains(model)
    return calls


def _in_order(chosen: dict[ir.OperatorIdentifier, ir.Function]) -> list[ir.Function]:
    try:
        return callees_first(chosen)
    except CycleError as error:
        cycle = " -> ".join(function_address(chosen[key]) for key in error.args[1])
        raise RequestError(f"functions that call each other in a cycle cannot be inlined: {cycle}") from None


class _Inlining:
    def __init__(self, model: ir.Model, chosen: dict[ir.OperatorIdentifier, ir.Function], taken: set[str]) -> None:
        self._chosen = chosen
        self._taken = taken
        self._renaming = Renaming(taken, taken)
        self._imports = Imports(model)
        self._graphs = list(all_graphs(model))

    def calls_in(self, graph: ir.Graph) -> int:
        """Inline the calls in a graph and its subgraphs; the calls in the bodies of chosen functions must already be
        inlined."""
        calls = [node for node in deep_nodes(graph) if node.op_identifier() in self._chosen]
        for call in calls:
            self._inline(call, self._chosen[call.op_identifier()])
        return len(calls)

    def _inline(self, call: ir.Node, function: ir.Function) -> None:
        graph = graph_of(call)
        self._check(call, function)
        given = (*call.inputs, *[None] * len(function.inputs))
        read = dict(zip(function.inputs, given, strict=False))
        defaults = {name: attr for name, attr in function.attributes.items() if attr.value is not None}
        copies = copy_nodes(function.graph, read, {**defaults, **call.attributes})
        self._renaming.rename(copies.nodes)
        self._renaming.reserve(self._taken)
        for node in deep_nodes(copies.nodes):
            node.metadata_props.update({**call.metadata_props, **node.metadata_props})
            for value in node.outputs:
                value.shape = None  # the function may have been exported for other shapes
        graph.insert_before(call, copies.nodes)
        for old, inner in zip(call.outputs, function.outputs, strict=False):
            new = copies.values.get(inner) or self._copied(call, function, read.get(inner), old)
            replace_uses(old, new, set(), self._graphs)
        remove_node(call)
        self._imports.add(graph, function.opset_imports)

    def _copied(self, call: ir.Node, function: ir.Function, value: ir.Value | None, old: ir.Value) -> ir.Value:
        """Return a separate output for an input that a function returns unchanged."""
        if value is None:
            raise RequestError(
                f"{node_label(call)!r} omits an input that {function_address(function)} returns as "
                f"{old.name!r}: it cannot be inlined"
            )
        name = free_name(identifier(f"{old.name or 'copy'}_Identity"), self._taken)
        node = ir.node("Identity", [value], name=name)
        node.outputs[0].name = free_name(f"{name}_output", self._taken)
        assert isinstance(call.graph, ir.Graph)
        call.graph.insert_before(call, node)
        return node.outputs[0]

    def _check(self, call: ir.Node, function: ir.Function) -> None:
        address, where = function_address(function), node_label(call)
        if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
            raise RequestError(f"{where!r} has more inputs or outputs than {address}, which it calls")
        if any(attribute.type in GRAPHS for attribute in call.attributes.values()):
            raise RequestError(f"{where!r} passes a graph to {address} as an attribute: it cannot be inlined")
        theirs = self._imports.of(call.graph)
        for domain in dict.fromkeys(node.domain for node in deep_nodes(function.graph)):
            version = function.opset_imports.get(domain)
            if version is not None and theirs.get(domain, version) != version:
                raise RequestError(
                    f"{address} is written for opset {version} of {domain or 'ai.onnx'} and called by {where!r} at "
                    f"opset {theirs[domain]}: convert the model's opset first"
                )
