"""The text of `model.py`: classes with equal code written once, and the state dict's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.export.pytorch.call import literal
from ndld_flow.export.pytorch.module_class import Child, ModuleClass, safe_name
from ndld_flow.export.pytorch.scope_tree import short_scope_name

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
        columns = [tuple(member.slots[place].value for member in members) for place in range(len(first.slots))]
        parameters: dict[tuple[str, str], int] = {}
        names: list[str] = []
        parameter_of: dict[int, int] = {}
        taken_names = {"self"}
        for place, column in enumerate(columns):
            if len({repr(value) for value in column}) == 1:
                continue
            values = repr(column)
            key = (values, "")
            if key not in parameters:
                parameters[key] = len(names)
                names.append(safe_name(first.slots[place].hint, taken_names, "size"))
            parameter_of[place] = parameters[key]
        name = _ROOT if first is self._root else safe_name(_class_name(first.scope.name), taken, "Block")
        return ClassText(name, tuple(names), parameter_of, first)

    def _class_text(self, text: ClassText) -> str:
        module = text.example
        arguments = "".join(f", {name}: int" for name in text.parameters)
        lines = [f"class {text.name}(nn.Module):", f"    def __init__(self{arguments}) -> None:"]
        lines.append("        super().__init__()")
        lines += [f"        {self._statement(text, statement)}" for statement in module.init]
        inputs = "".join(f", {module.expression(value)}: Tensor" for value in module.inputs)
        several = len(module.returned) != 1
        result = "tuple[Tensor, ...]" if several else "Tensor"
        lines += ["", f"    def forward(self{inputs}) -> {result}:"]
        lines += [f"        {line}" for line in module.lines]
        returned = ", ".join(module.returned)
        lines.append(f"        return {returned}" if returned else "        return ()")
        return "\n".join(lines)

    def _statement(self, text: ClassText, statement: Sequence[object]) -> str:
        return "".join(self._piece(text, piece) for piece in statement)

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
