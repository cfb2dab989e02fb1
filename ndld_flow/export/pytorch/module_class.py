"""One class of the written module: its constructor, its `forward`, its weights and the modules inside it."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.base.text import short_name
from ndld_flow.export.pytorch.call import (
    FLOATS,
    NEWEST_OPSET,
    Call,
    Piece,
    Several,
    Slot,
    Unsupported,
    constant_tensor,
    is_weight,
    torch_dtype,
)
from ndld_flow.export.pytorch.emitters import EMITTERS
from ndld_flow.export.pytorch.scope_tree import Scope, short_scope_name
from ndld_flow.models.scopes import node_label
from ndld_flow.models.unique_names import free_name

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_RESERVED = {"self", "torch", "nn", "Tensor", "Path", "load_file", "F", "float", "int", "bool", "range", "ops"}
_OF_MODULES = {
    "add_module", "apply", "bfloat16", "bias", "buffers", "call_super_init", "children", "compile", "cpu", "cuda",
    "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer", "get_parameter", "get_submodule",
    "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers", "named_children", "named_modules",
    "named_parameters", "parameters", "register_buffer", "register_module", "register_parameter", "requires_grad_",
    "set_submodule", "share_memory", "state_dict", "to", "to_empty", "train", "training", "type", "xpu", "zero_grad",
    "T_destination", "get_extra_state", "set_extra_state", "register_forward_hook", "register_forward_pre_hook",
}  # fmt: skip
"""Attributes of `nn.Module`, which a weight or a module must not replace."""


@dataclass(frozen=True)
class Refusal:
    """A node that cannot be written."""

    op: str
    node: str
    reason: str


@dataclass(frozen=True)
class Weight:
    """A tensor of the state dict, by its key within a module."""

    key: str
    value: ir.Value | None
    """The constant it holds; None for a counter of batches that PyTorch adds and ONNX does not have."""


@dataclass
class Child:
    """A module inside a class."""

    attribute: str
    of: ModuleClass
    first_slot: int
    """Place of its first literal among those of the class around it."""


@dataclass
class Shared:
    """The context that all classes of a module have in common."""

    opset: int
    owners: Mapping[ir.Graph, ir.Node]
    """Subgraph -> the node that has it."""
    constants: frozenset[str]
    """Names of the source's constants: weights can be brought back into these."""
    refusals: list[Refusal] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    """Names of functions of `onnx_operators.py` that are called."""


def safe_name(wish: str, taken: set[str], otherwise: str) -> str:
    """Return a free identifier like `wish`: ASCII letters, digits and `_` only, whatever the model's names hold."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", wish).strip("_")
    match = _WORD.fullmatch(text)
    name = text if match else otherwise
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _RESERVED:
        name = f"{name}_1"
    return free_name(name, taken)


class ModuleClass:
    """A class while it is written; it implements what emitters need of a `Writer`."""

    def __init__(
        self, scope: Scope, shared: Shared, outputs: Sequence[ir.Value], inputs: Sequence[ir.Value] = ()
    ) -> None:
        self.scope, self._shared = scope, shared
        self.init: list[list[Piece | int | Child]] = []
        """Statements of the constructor: text, and places in `slots`."""
        self.slots: list[Slot] = []
        self.lines: list[str] = []
        self.weights: list[Weight] = []
        self.children: list[Child] = []
        self.inputs: list[ir.Value] = []
        """Values that `forward` gets, in the order of its arguments."""
        self.outputs = list(outputs)
        self._inside = set(scope.nodes())
        self._names: dict[ir.Value, str] = {}
        self._variables, self._attributes, self._depth = set(_RESERVED), set(_OF_MODULES), 0
        self._current: ir.Node | None = None
        for value in inputs:
            self._add_input(value, value.name or "x")
        for part in scope.parts:
            if isinstance(part, Scope):
                self._emit_scope(part)
            else:
                self._emit(part)
        self.returned = [self.expression(value) for value in self.outputs]

    # What emitters call.

    def expression(self, value: ir.Value) -> str:
        """Return the variable or attribute that holds a value; constants become weights when they are first read."""
        if value in self._names:
            return self._names[value]
        tensor = constant_tensor(value)
        if tensor is None or self._read_elsewhere(value):
            return self._add_input(value, "x")
        return self._add_constant(value, tensor)

    def add_module(self, hint: str, pieces: Sequence[Piece], weights: dict[str, ir.Value], extra: Sequence[str]) -> str:
        """Construct a module in `__init__` and return `self.name`."""
        assert self._current is not None
        attribute = safe_name(self._module_hint(weights) or hint, self._attributes, self._op_hint())
        hinted = [Slot(f"{attribute}_{each.hint}", each.value) if isinstance(each, Slot) else each for each in pieces]
        self._construct([f"self.{attribute} = ", *hinted])
        self.weights += [Weight(f"{attribute}.{name}", value) for name, value in weights.items()]
        self.weights += [Weight(f"{attribute}.{name}", None) for name in extra]
        return f"self.{attribute}"

    def use(self, function: str) -> str:
        self._shared.functions.add(function)
        return f"ops.{function}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def variable(self, hint: str) -> str:
        return safe_name(hint, self._variables, "x")

    @contextlib.contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def bind(self, value: ir.Value, name: str) -> None:
        self._names[value] = name

    def emit_graph(self, graph: ir.Graph) -> list[str]:
        """Write the nodes of a branch or a loop's body; returns the expressions of its outputs."""
        self._inside.update(graph)
        for node in graph:
            self._emit(node)
        return [self.expression(value) for value in graph.outputs]

    # How the statements come to be.

    def _emit_scope(self, scope: Scope) -> None:
        inside = set(scope.nodes())
        made = [value for node in scope.nodes() for value in node.outputs]
        outputs = [value for value in made if value.is_graph_output() or self._is_read_outside(value, inside)]
        module = ModuleClass(scope, self._shared, outputs)
        short = short_scope_name(scope.name)
        attribute = safe_name(short if short[:1].isalpha() else f"block_{short}", self._attributes, "block")
        child = Child(attribute, module, len(self.slots))
        self.slots += module.slots
        self.children.append(child)
        self.init.append([f"self.{attribute} = ", child])
        called = f"self.{attribute}({', '.join(self.expression(value) for value in module.inputs)})"
        if not outputs:
            return
        names = [self.variable(attribute) for _ in outputs]
        self.line(f"{', '.join(names)} = {called}")
        self._names.update(zip(outputs, names, strict=True))

    def _emit(self, node: ir.Node) -> None:
        if node.op_type == "Constant" and not node.domain:
            return
        self._current = node
        call = Call(node, self._shared.opset, self)
        try:
            self._write(call)
        except Unsupported as reason:
            self._refuse(node, str(reason))

    def _write(self, call: Call) -> None:
        node, entry = call.node, EMITTERS.get(call.node.op_type) if not call.node.domain else None
        if entry is None:
            raise Unsupported("")
        if not entry.since <= call.version <= NEWEST_OPSET:
            raise Unsupported(f"version {call.version} of the operator")
        _refuse_types(node)
        emitted = entry.emit(call)
        ignored = sorted(set(node.attributes) - call.read)
        if ignored:
            raise Unsupported(", ".join(f"attribute `{name[:40]}`" for name in ignored[:5]))
        if emitted is None:
            return
        names = [self._output_name(node, value) for value in node.outputs]
        expression = emitted
        if isinstance(emitted, Several):
            names += ["_"] * (emitted.count - len(names))
            expression = emitted.expression
            if len(names) == 1:
                names[0] += ","
        self.line(f"{', '.join(names)} = {expression}")

    def _output_name(self, node: ir.Node, value: ir.Value) -> str:
        if not value.name or not (value.uses() or value.is_graph_output()):
            return "_" if len(node.outputs) > 1 else self.variable(node.op_type.lower())
        self._names[value] = name = self.variable(node.op_type.lower())
        return name

    def _refuse(self, node: ir.Node, reason: str) -> None:
        op = "::".join(map(short_name, filter(None, (node.domain, node.op_type))))
        self._shared.refusals.append(Refusal(op, node_label(node), reason))
        for value in node.outputs:
            self._names[value] = "None"

    # Weights and names.

    def _add_input(self, value: ir.Value, hint: str) -> str:
        self._names[value] = name = self.variable(hint)
        self.inputs.append(value)
        return name

    def _read_elsewhere(self, value: ir.Value) -> bool:
        return self.scope.name != "" and (value.is_graph_output() or self._is_read_outside(value, self._inside))

    def _is_read_outside(self, value: ir.Value, inside: set[ir.Node]) -> bool:
        """Return whether another node reads a value; nodes of subgraphs belong to the node that has these."""
        return any(self._outermost(use.node, inside) not in inside for use in value.uses())

    def _outermost(self, node: ir.Node, inside: set[ir.Node]) -> ir.Node:
        while node not in inside and node.graph in self._shared.owners:
            node = self._shared.owners[node.graph]  # type: ignore[index]
        return node

    def _add_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> str:
        dtype, shape = torch_dtype(tensor.dtype), [int(dim) for dim in tensor.shape.numpy()]
        attribute = safe_name(self._weight_hint(value), self._attributes, f"{self._op_hint()}_value")
        sizes: list[Piece] = []
        for size in shape:
            sizes += [Slot(f"{attribute}_size", size), ", "]
        text = "" if dtype == "torch.float32" else f", dtype={dtype}"
        trained = tensor.dtype in FLOATS and is_weight(value) and bool(shape) and value.name in self._shared.constants
        start = f"self.{attribute} = nn.Parameter(" if trained else f'self.register_buffer("{attribute}", '
        self._construct([start, "torch.zeros((", *sizes[:-1], "," if len(shape) == 1 else "", f"){text}))"])
        self.weights.append(Weight(attribute, value))
        self._names[value] = f"self.{attribute}"
        return self._names[value]

    def _construct(self, pieces: Sequence[Piece]) -> None:
        statement: list[Piece | int | Child] = []
        for piece in pieces:
            if isinstance(piece, Slot):
                statement.append(len(self.slots))
                self.slots.append(piece)
            else:
                statement.append(piece)
        self.init.append(statement)

    def _op_hint(self) -> str:
        return self._current.op_type.lower() if self._current is not None else "value"

    def _weight_hint(self, value: ir.Value) -> str:
        """Return a name for a tensor: the last part of a dotted name, or the whole name outside of scopes."""
        name = value.name or ""
        if not is_weight(value) or "::" in name:
            return f"{self._op_hint()}_{'weight' if is_weight(value) else 'value'}"
        last = short_scope_name(name)
        if not _WORD.fullmatch(last):
            return f"{self._op_hint()}_weight" if self.scope.name else name
        return last if self.scope.name else name

    def _module_hint(self, weights: dict[str, ir.Value]) -> str:
        """Return a name for a module: `conv1` of the weight `layer1.0.conv1.weight`, or the scope of its node."""
        weight = weights.get("weight")
        name = weight.name if weight is not None and is_weight(weight) else ""
        if name and name.endswith((".weight", "/weight")):
            path = name[: -len(".weight")]
            return short_scope_name(path) if self.scope.name or _WORD.fullmatch(path) else path
        node = self._current.name if self._current is not None else ""
        scopes = [part for part in (node or "").split("/")[:-1] if part]
        return short_scope_name(scopes[-1]) if scopes and scopes[-1] not in self.scope.name.split("/") else ""


def _refuse_types(node: ir.Node) -> None:
    """Raise `Unsupported` for a node that computes with a type for which PyTorch has no arithmetic."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and isinstance(value.type, ir.TensorType):
            torch_dtype(value.dtype)
