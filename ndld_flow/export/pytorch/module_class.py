"""The classes of the written module, one for each scope, and their text: equal code is written once."""

from __future__ import annotations

import ast
import contextlib
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir

from ndld_flow.base.text import short_name
from ndld_flow.export.pytorch.call import (
    NEWEST_OPSET,
    Call,
    Piece,
    Several,
    Slot,
    Unsupported,
    is_constant,
    is_weight,
    literal,
    torch_dtype,
)
from ndld_flow.export.pytorch.emitters import EMITTERS
from ndld_flow.models.element_types import FLOATS
from ndld_flow.models.nodes import constant_tensor, free_name, is_used, node_label, read_values

_DEEPEST = 32
_LONGEST = 4096
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter writes the scopes of a node."""


@dataclass(frozen=True)
class Scope:
    """Nodes that form one module, and scopes inside it, in an order in which they can run."""

    name: str
    parts: tuple[ir.Node | Scope, ...]

    def nodes(self) -> Iterator[ir.Node]:
        for part in self.parts:
            if isinstance(part, Scope):
                yield from part.nodes()
            else:
                yield part


def scope_tree(graph: ir.Graph) -> Scope:
    """Return the main graph's nodes as a tree of scopes; constants are left out, and scopes of one node dissolved."""
    nodes = [node for node in graph if not is_constant(node.outputs[0] if node.outputs else None)]
    return Scope("", _parts([(node, scopes_of_node(node)) for node in nodes]))


def scopes_of_node(node: ir.Node) -> tuple[str, ...]:
    """Return the names of a node's scopes, the outermost first: `/layer1/layer1.0/conv1/Conv` -> three of them."""
    listed = node.metadata_props.get(_SCOPES, "")
    if listed and len(listed) < _LONGEST:
        try:
            names = ast.literal_eval(listed)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            names = []
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(name for name in names[:-1] if name)[:_DEEPEST]
    return tuple(part for part in (node.name or "").split("/")[:-1] if part)[:_DEEPEST]


_Scoped = tuple[ir.Node, tuple[str, ...]]


def _parts(nodes: Sequence[_Scoped]) -> tuple[ir.Node | Scope, ...]:
    groups = _acyclic_groups(nodes)
    parts: list[ir.Node | Scope] = []
    for name, group in groups:
        if not name:
            parts += [node for node, _ in group]
        elif len(group) == 1:
            parts.append(group[0][0])
        else:
            inner = _parts([(node, scopes[1:]) for node, scopes in group])
            # A scope whose only part is another one adds nothing but a level.
            only = inner[0] if len(inner) == 1 else None
            parts.append(Scope(f"{name}/{only.name}", only.parts) if isinstance(only, Scope) else Scope(name, inner))
    return tuple(parts)


def _acyclic_groups(nodes: Sequence[_Scoped]) -> list[tuple[str, list[_Scoped]]]:
    """Group nodes by their outermost scope; a scope that others interrupt becomes several groups."""
    keys = [scopes[0] if scopes else "" for _, scopes in nodes]
    units = [key or number for number, key in enumerate(keys)]
    runs = [0] * len(nodes)
    for number in range(1, len(nodes)):
        runs[number] = runs[number - 1] + (units[number] != units[number - 1])
    tangled = _in_cycles(nodes, units)
    labels = [(unit, runs[number] if unit in tangled else 0) for number, unit in enumerate(units)]
    groups: dict[object, list[int]] = {}
    for number, label in enumerate(labels):
        groups.setdefault(label, []).append(number)
    order = _sorted_groups(nodes, labels)
    return [(keys[groups[label][0]], [nodes[number] for number in groups[label]]) for label in order]


def _edges(nodes: Sequence[_Scoped], labels: Sequence[object]) -> dict[object, set[object]]:
    """Return group -> groups whose values it reads."""
    place = {node: labels[number] for number, (node, _) in enumerate(nodes)}
    edges: dict[object, set[object]] = {label: set() for label in labels}
    for number, (node, _) in enumerate(nodes):
        for value in read_values(node):
            producer = value.producer()
            if producer is not None and producer in place and place[producer] != labels[number]:
                edges[labels[number]].add(place[producer])
    return edges


def _in_cycles(nodes: Sequence[_Scoped], labels: Sequence[object]) -> set[object]:
    """Return the groups that both read from each other, directly or through others: what is left when groups that
    read nothing, and then groups that nothing reads, are removed one after the other.
    """
    edges = _edges(nodes, labels)
    for _ in range(2):
        edges = _without_sources(edges)
        reversed_edges: dict[object, set[object]] = {label: set() for label in edges}
        for label, read in edges.items():
            for each in read:
                reversed_edges[each].add(label)
        edges = reversed_edges
    return set(edges)


def _without_sources(edges: Mapping[object, set[object]]) -> dict[object, set[object]]:
    """Return the groups without those that read nothing that is left, one after the other."""
    sorter = TopologicalSorter(edges)
    with contextlib.suppress(CycleError):  # up to a cycle, it sorts all the same
        sorter.prepare()
    free = set[object]()
    while ready := sorter.get_ready():
        free.update(ready)
        sorter.done(*ready)
    return {label: read - free for label, read in edges.items() if label not in free}


def _sorted_groups(nodes: Sequence[_Scoped], labels: Sequence[object]) -> list[object]:
    """Return the groups so that each follows those that it reads, otherwise in the order of their first node."""
    edges = _edges(nodes, labels)
    first = {label: number for number, label in reversed(list(enumerate(labels)))}
    done: dict[object, None] = {}
    waiting = sorted(edges, key=lambda label: first[label], reverse=True)
    while waiting:
        label = waiting[-1]
        missing = [each for each in edges[label] if each not in done]
        if label in done or not missing:
            waiting.pop()
            done[label] = None
        else:
            waiting += sorted(missing, key=lambda each: first[each], reverse=True)
    return list(done)


def short_scope_name(name: str) -> str:
    """Return the last part of a scope's name: `0` for `layer1.0`, `attention` for `encoder/attention`."""
    return re.split(r"[./]", name.rstrip("./"))[-1]


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
        is_shared = value.is_graph_output() or self._is_read_outside(value, self._inside)
        if tensor is None or (self.scope.name and is_shared):
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
        computed = [value for node in scope.nodes() for value in node.outputs]
        outputs = [value for value in computed if value.is_graph_output() or self._is_read_outside(value, inside)]
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
            op = "::".join(map(short_name, filter(None, (node.domain, node.op_type))))
            self._shared.refusals.append(Refusal(op, node_label(node), str(reason)))
            self._names |= dict.fromkeys(node.outputs, "None")

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
        if not value.name or not is_used(value):
            return "_" if len(node.outputs) > 1 else self.variable(node.op_type.lower())
        self._names[value] = name = self.variable(node.op_type.lower())
        return name

    # Weights and names.

    def _add_input(self, value: ir.Value, hint: str) -> str:
        self._names[value] = name = self.variable(hint)
        self.inputs.append(value)
        return name

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


_ROOT = "Model"


@dataclass(frozen=True)
class ClassText:
    """A class that one or more modules share."""

    name: str
    parameters: tuple[str, ...]
    """Names of the constructor's parameters."""
    parameter_of: dict[int, int]
    """Place of a literal that differs between the modules -> its parameter."""
    example: ModuleClass


class WrittenModule:
    """All classes below a model's root."""

    def __init__(self, root: ModuleClass) -> None:
        self._root = root
        self._keys: dict[int, str] = {}
        self._members: dict[str, list[ModuleClass]] = {}
        for module in _all_modules(root):
            self._members.setdefault(self._key(module), []).append(module)
        taken = {_ROOT}
        self._classes = {key: self._class(members, taken) for key, members in self._members.items()}

    @property
    def class_count(self) -> int:
        return len(self._classes)

    @property
    def module_count(self) -> int:
        return sum(map(len, self._members.values()))

    def text(self) -> str:
        """Return the classes, each after those that it uses."""
        return "\n\n\n".join(self._class_text(text) for text in self._classes.values())

    def weights(self) -> dict[str, ir.Value | None]:
        """Return key of the state dict -> constant of the model; None for what only PyTorch has."""
        return dict(_weights_of(self._root, ""))

    def _key(self, module: ModuleClass) -> str:
        """Return the code of a class without its literals."""
        if id(module) not in self._keys:
            init = [
                [
                    ("slot", module.slots[piece].hint)
                    if isinstance(piece, int)
                    else ("child", piece.attribute, self._key(piece.of))
                    if isinstance(piece, Child)
                    else piece
                    for piece in statement
                ]
                for statement in module.init
            ]
            forward = [module.lines, module.returned, [module.expression(value) for value in module.inputs]]
            self._keys[id(module)] = repr((init, forward, module is self._root))
        return self._keys[id(module)]

    def _class(self, members: Sequence[ModuleClass], taken: set[str]) -> ClassText:
        first = members[0]
        columns = [tuple(member.slots[index].value for member in members) for index in range(len(first.slots))]
        parameters: dict[str, int] = {}
        names: list[str] = []
        parameter_of: dict[int, int] = {}
        taken_names = {"self"}
        for index, column in enumerate(columns):
            if len(set(map(repr, column))) == 1:
                continue
            if repr(column) not in parameters:
                parameters[repr(column)] = len(names)
                names.append(safe_name(first.slots[index].hint, taken_names, "size"))
            parameter_of[index] = parameters[repr(column)]
        name = _ROOT if first is self._root else safe_name(_class_name(first.scope.name), taken, "Block")
        return ClassText(name, tuple(names), parameter_of, first)

    def _class_text(self, text: ClassText) -> str:
        module = text.example
        arguments = "".join(f", {name}: int" for name in text.parameters)
        lines = [f"class {text.name}(nn.Module):", f"    def __init__(self{arguments}) -> None:"]
        lines.append("        super().__init__()")
        lines += ["        " + "".join(self._piece(text, piece) for piece in statement) for statement in module.init]
        inputs = "".join(f", {module.expression(value)}: Tensor" for value in module.inputs)
        several = len(module.returned) != 1
        result = "tuple[Tensor, ...]" if several else "Tensor"
        lines += ["", f"    def forward(self{inputs}) -> {result}:"]
        lines += [f"        {line}" for line in module.lines]
        returned = ", ".join(module.returned)
        lines.append(f"        return {returned}" if returned else "        return ()")
        return "\n".join(lines)

    def _piece(self, text: ClassText, piece: object) -> str:
        if isinstance(piece, int):
            return self._slot(text, piece)
        if not isinstance(piece, Child):
            return str(piece)
        inner = self._classes[self._key(piece.of)]
        places = {parameter: place for place, parameter in reversed(list(inner.parameter_of.items()))}
        arguments = (self._slot(text, piece.first_slot + places[number]) for number in range(len(inner.parameters)))
        return f"{inner.name}({', '.join(arguments)})"

    def _slot(self, text: ClassText, place: int) -> str:
        if place in text.parameter_of:
            return text.parameters[text.parameter_of[place]]
        value = text.example.slots[place].value
        return repr(value) if isinstance(value, tuple) else literal(value)


def _all_modules(module: ModuleClass) -> Iterator[ModuleClass]:
    for child in module.children:
        yield from _all_modules(child.of)
    yield module


def _weights_of(module: ModuleClass, prefix: str) -> Iterator[tuple[str, ir.Value | None]]:
    for weight in module.weights:
        yield f"{prefix}{weight.key}", weight.value
    for child in module.children:
        yield from _weights_of(child.of, f"{prefix}{child.attribute}.")


def _class_name(scope: str) -> str:
    """Return `Layer` for `layer.0`, `SelfAttention` for `self_attention`."""
    parts = [part for part in re.split(r"[./]", scope) if re.search("[A-Za-z]", part)]
    words = re.split(r"[^A-Za-z0-9]+", parts[-1] if parts else short_scope_name(scope))
    return "".join(word[:1].upper() + word[1:] for word in words).rstrip("0123456789")
