"""Operators of an edited model, from the schemas of ONNX and ONNX Runtime and from the model's functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.base.text import suggest
from ndld_flow.models.changed_model import looks_like_plugin
from ndld_flow.models.element_types import functions_by_graph, type_name
from ndld_flow.models.files import MAX_OPSET
from ndld_flow.models.op_reference import AttributeReference, OperatorVersion, Port, PortKind, operators

_FURTHEST = 1000
"""Maximum number of omitted inputs before a new one, so that a wrong index cannot exhaust the memory."""
_OF_ONNX = frozenset(("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"))


class Imports:
    """Opset imports of each graph: a function has its own, which hold for its subgraphs too."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._own = functions_by_graph(model)

    def of(self, graph: object) -> dict[str, int]:
        """Return domain -> version, for reading only."""
        return self._own[graph].opset_imports if graph in self._own else self._model.opset_imports

    def add(self, graph: object, domains: Mapping[str, int]) -> None:
        """Import domains into the model and, for a graph in a function, into the function, unless they are imported."""
        for imports in (self.of(graph), self._model.opset_imports):
            for domain, version in domains.items():
                imports.setdefault(domain, version)


class Schemas:
    """Operators by graph of a model: a function may import other opsets."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._imports = Imports(model)

    def opset(self, graph: object, domain: str) -> int:
        """Return the version of a domain in a graph; the newest if it is not imported yet."""
        imported = self._imports.of(graph).get(domain) or self._model.opset_imports.get(domain)
        if imported is None:
            versions = (known.newest.since_version for (where, _), known in operators().items() if where == domain)
            imported = min(max(versions, default=1), MAX_OPSET)
        return imported

    def import_domain(self, graph: object, domain: str) -> None:
        """Import a domain into the model, and into the function that a graph belongs to."""
        self._imports.add(graph, {domain: self.opset(graph, domain)})

    def of(self, node: ir.Node) -> OperatorVersion | None:
        """Return a node's operator; None for an unknown one."""
        function = self._model.functions.get(node.op_identifier())
        if function is not None:
            return self.of_function(function)
        known = operators().get((node.domain, node.op_type))
        return None if known is None else known.at(self.opset(node.graph, node.domain))

    def find(self, graph: ir.Graph, op_type: str, domain: str, attributes: Iterable[str]) -> OperatorVersion | None:
        """Return the operator for a new node; None in a custom domain, and for a plugin of TensorRT.

        Raises `RequestError` for one that neither ONNX nor ONNX Runtime has, or that this opset lacks.
        """
        function = self._model.functions.get((domain, op_type, ""))
        if function is not None:
            return self.of_function(function)
        if not domain and looks_like_plugin(op_type, attributes):
            return None
        known = operators().get((domain, op_type))
        if known is None:
            names = [name for where, name in operators() if where == domain]
            if not names and domain not in _OF_ONNX:
                return None
            other = [each.full_name for (_, name), each in operators().items() if name == op_type]
            hint = f"there is {', '.join(other)}" if other else suggest(op_type, names)
            raise RequestError(f"there is no operator {op_type!r} in the domain {domain or 'ai.onnx'!r}; {hint}")
        opset = self.opset(graph, domain)
        version = known.at(opset)
        if version is None:
            oldest = known.versions[0].since_version
            raise RequestError(
                f"{op_type} was introduced in opset {oldest} of {domain or 'ai.onnx'}; the model has {opset}"
            )
        if version.deprecated:
            raise RequestError(f"{op_type} is no longer an operator in opset {opset} of {domain or 'ai.onnx'}")
        return version

    def of_function(self, function: ir.Function) -> OperatorVersion:
        """Return a local function as an operator."""
        inputs = (_port(value, "required" if self._is_needed(value) else "optional") for value in function.inputs)
        outputs = (_port(value, "optional") for value in function.outputs)
        attributes = (
            AttributeReference(name, "", attribute.type.name.lower(), attribute.value is None, None)
            for name, attribute in function.attributes.items()
        )
        return OperatorVersion(
            function.name, function.domain, 1, "", tuple(inputs), tuple(outputs), tuple(attributes),
            deprecated=False, is_function=True,
        )  # fmt: skip

    def _is_needed(self, value: ir.Value) -> bool:
        """Return whether a node that reads the tensor requires it."""
        readers = ((self.of(use.node), use.idx) for use in value.uses())
        return any(operator is not None and _is_required(port_at(operator, index)) for operator, index in readers)


def declared_attribute(operator: OperatorVersion, name: str) -> AttributeReference:
    """Return an operator's attribute. Raises `RequestError` with the nearest name."""
    known = {attribute.name: attribute for attribute in operator.attributes}
    check_known([name], known, f"{operator.name} has no attribute")
    return known[name]


def check_attributes_complete(operator: OperatorVersion, given: Iterable[str]) -> None:
    """Raise `RequestError` for missing required attributes."""
    required = (attribute.name for attribute in operator.attributes if attribute.required)
    missing = [name for name in required if name not in set(given)]
    if missing:
        raise RequestError(f"{operator.name} requires the attribute {', '.join(map(repr, missing))}")


def port_index(operator: OperatorVersion | None, which: int | str, count: int) -> int:
    """Return the index of an input; the name of a variadic input means another one after the existing `count`.

    Raises `RequestError` for a name or a number that the operator does not have.
    """
    if isinstance(which, int):
        if which < 0 or (operator is not None and which >= _most(operator.inputs)):
            most = "" if operator is None else f"; {operator.name} takes {_shown(operator.inputs)}"
            raise RequestError(f"there is no input {which}{most}")
        if which > count + _FURTHEST:
            raise RequestError(f"input {which} is far beyond the last one, which is {count - 1}")
        return which
    if operator is None:
        raise RequestError(f"the names of this operator's inputs are unknown; give an index instead of {which!r}")
    names = [port.name for port in operator.inputs]
    check_known([which], names, f"{operator.name} has no input")
    index = names.index(which)
    return max(index, count) if operator.inputs[index].kind == "variadic" else index


def port_at(operator: OperatorVersion, index: int) -> Port:
    """Return the formal input at an index: a variadic last one repeats."""
    return operator.inputs[min(index, len(operator.inputs) - 1)]


def check_inputs(operator: OperatorVersion, inputs: Sequence[ir.Value | None]) -> None:
    """Raise `RequestError` for too few or too many inputs, and for a type that the operator does not accept."""
    least = max((i + 1 for i, port in enumerate(operator.inputs) if _is_required(port)), default=0)
    least += sum(port.least - 1 for port in operator.inputs if port.kind == "variadic" and port.least > 0)
    if len(inputs) > _most(operator.inputs):
        raise RequestError(f"{operator.name} takes {_shown(operator.inputs)}; {len(inputs)} inputs are given")
    inputs = [*inputs, *[None] * (least - len(inputs))]
    bound: dict[str, tuple[str, str]] = {}
    for index, value in enumerate(inputs):
        port = port_at(operator, index)
        if value is None and _is_required(port):
            raise RequestError(f"{operator.name} requires its input `{port.name}` (index {index})")
        if value is not None:
            _check_type(operator, port, value, bound)


def check_outputs(operator: OperatorVersion, count: int) -> int:
    """Return the required number of outputs of a node that has `count`. Raises `RequestError` for too many."""
    if count > _most(operator.outputs):
        raise RequestError(f"{operator.name} produces {_shown(operator.outputs)}; {count} outputs are given")
    return max(count, max((i + 1 for i, port in enumerate(operator.outputs) if _is_required(port)), default=0))


def _check_type(operator: OperatorVersion, port: Port, value: ir.Value, bound: dict[str, tuple[str, str]]) -> None:
    """Check only types that are certain: the recorded type of a node's output may be older than an edit."""
    certain = value.const_value.dtype if value.const_value is not None else None
    recorded = type_name(ir.TensorType(certain)) if certain is not None else type_name(value.type)
    if recorded is None or (certain is None and value.producer() is not None):
        return
    if port.types and recorded not in port.types:
        raise RequestError(
            f"{operator.name} does not accept {recorded} ({value.name!r}) for its input `{port.name}`; "
            f"it accepts {', '.join(port.types)}"
        )
    name, first = bound.setdefault(port.variable, (value.name or "", recorded))
    if port.types and first != recorded and port.alike:
        raise RequestError(
            f"{operator.name} requires {name!r} ({first}) and {value.name!r} ({recorded}) to have the same type"
        )


def _is_required(port: Port) -> bool:
    return port.kind == "required" or (port.kind == "variadic" and port.least > 0)


def _most(ports: Sequence[Port]) -> float:
    return float("inf") if any(port.kind == "variadic" for port in ports) else len(ports)


def _shown(ports: Sequence[Port]) -> str:
    marks = {"required": "", "optional": "?", "variadic": "..."}
    return f"({', '.join(port.name + marks[port.kind] for port in ports)})"


def _port(value: ir.Value, kind: PortKind) -> Port:
    return Port(value.name or "", "", "any", (), kind)
