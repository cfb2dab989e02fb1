"""Patterns and replacements as people write them, in ONNX's text form: `(x) => (y) { s = Sigmoid(x) y = Mul(x, s) }`.

`axis = $axis` is an attribute that may be anything, and is what the replacement's `$axis` becomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph, suggest
from ndld_flow.graph.edit.constant_tensors import constant_of
from ndld_flow.models.node_details import is_constant
from ndld_flow.models.scopes import own_subgraphs

_HEADER = '<ir_version: 8, opset_import: []> m () => () {} <domain: "rule", opset_import: ["" : 1]> Rule\n'
"""The parser ignores text after a single function, but not after a function in a model."""
_VARIABLE = re.compile(r"=\s*\$([A-Za-z_]\w*)")
_PLACE = re.compile(r"line: (\d+)")


@dataclass(frozen=True)
class RuleText:
    """The pattern or the replacement of a rule."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]
    """The nodes; a pattern's are without its constants."""

    def input(self, name: str, setting: str) -> ir.Value:
        """Return the input of a name. Raises `RequestError` with the nearest one."""
        known = {value.name or "": value for value in self.inputs}
        if name not in known:
            raise RequestError(f"`{setting}`: {name!r} is no input of the pattern; {suggest(name, known)}")
        return known[name]

    def variables(self) -> dict[str, list[tuple[ir.Node, str]]]:
        """Return variable -> the nodes and attributes that refer to it."""
        found: dict[str, list[tuple[ir.Node, str]]] = {}
        for node in self.nodes:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    found.setdefault(attribute.ref_attr_name or "", []).append((node, attribute.name))
        return found


def parse_pattern(text: str) -> RuleText:
    """Parse a pattern. Its constants become tensors without a producer, one for each use.

    Raises `RequestError` for text that cannot be read, and for patterns that could match nothing or anything.
    """
    side = _parse(text, "pattern")
    constants = {node.outputs[0]: node for node in side.nodes if is_constant(node)}
    nodes = tuple(node for node in side.nodes if not is_constant(node))
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value in constants:
                tensor = constant_of(constants[value])
                if tensor is None:
                    raise RequestError(f"`pattern`: constant {value.name!r} has no value")
                node.replace_input_with(index, ir.Value(name=value.name, const_value=tensor))
        if any(True for _ in own_subgraphs(node)):
            raise RequestError(f"`pattern`: {node.op_type} has a subgraph, which a pattern cannot have")
    _check_ends(side, nodes)
    return RuleText(side.inputs, side.outputs, nodes)


def _check_ends(side: RuleText, nodes: Sequence[ir.Node]) -> None:
    """Check that the pattern's nodes read all of its inputs and produce all of its outputs."""
    read = {value for node in nodes for value in node.inputs}
    for value in side.inputs:
        if value not in read:
            raise RequestError(f"`pattern`: input {value.name!r} is read by none of its nodes")
    made = {value for node in nodes for value in node.outputs}
    for value in side.outputs:
        if value not in made:
            raise RequestError(f"`pattern`: output {value.name!r} is produced by none of its nodes")


def parse_replacement(text: str, pattern: RuleText) -> RuleText:
    """Parse a replacement. Raises `RequestError` for text that cannot be parsed or does not fit the pattern."""
    side = _parse(text, "replacement")
    for value in side.inputs:
        pattern.input(value.name or "", "replacement")
    if len(side.outputs) != len(pattern.outputs):
        raise RequestError(f"`replacement` has {len(side.outputs)} outputs, and `pattern` has {len(pattern.outputs)}")
    known = pattern.variables()
    for name in side.variables():
        if name not in known:
            hint = suggest(name, known) or "it has no such variables"
            raise RequestError(f"`replacement`: ${name} is not in the pattern; {hint}")
    return side


def _parse(text: str, setting: str) -> RuleText:
    if not text.strip():
        raise RequestError(f"`{setting}` is empty: write `(inputs) => (outputs) {{ nodes }}`")
    try:
        (proto,) = onnx.parser.parse_model(_HEADER + _VARIABLE.sub(r'= "$\1"', text.strip())).functions
    except onnx.parser.ParseError as error:
        raise RequestError(f"`{setting}` cannot be parsed: {_reason(error)}") from None
    except ValueError:
        raise RequestError(f"`{setting}` has more than one `(inputs) => (outputs) {{ nodes }}`") from None
    _check_names(proto, setting)
    function = ir.serde.deserialize_function(proto)
    for node in function:
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.STRING and attribute.as_string().startswith("$"):
                variable = attribute.as_string()[1:]
                node.attributes[attribute.name] = ir.RefAttr(attribute.name, variable, ir.AttributeType.UNDEFINED)
    return RuleText(tuple(function.inputs), tuple(function.outputs), tuple(function))


def _check_names(proto: onnx.FunctionProto, setting: str) -> None:
    known = set(proto.input)
    for what, names in (("input", proto.input), ("output", proto.output)):
        twice = next((name for name in names if list(names).count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"`{setting}`: {what} {twice!r} is listed twice")
    for node in proto.node:
        _check_known(node.input, known, setting)
        for name in node.output:
            if name in known:
                raise RequestError(f"`{setting}`: {name!r} is defined twice")
            known.add(name)
    _check_known(proto.output, known, setting)


def _check_known(names: Iterable[str], known: set[str], setting: str) -> None:
    for name in names:
        if name and name not in known:
            raise RequestError(f"`{setting}`: {name!r} is neither an input nor defined before; {suggest(name, known)}")


def _reason(error: Exception) -> str:
    """Return the parser's reason with its position in the recipe's text, without the line of the header."""
    told = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
    place, lines = _PLACE.search(told), told.splitlines()
    where = f"line {int(place[1]) - 1}: " if place else ""
    return f"{where}{one_paragraph(lines[-1])} (near `{one_paragraph(lines[-2].removeprefix('Error context:'))}`)"
