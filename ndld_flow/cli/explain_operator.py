"""Operators as a list, and as reference pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

import click

from ndld_flow.base.quantities import count, counted
from ndld_flow.base.text import visible_name
from ndld_flow.cli.terminal import hanging, text_width
from ndld_flow.drawing.graph import TITLES
from ndld_flow.models.op_reference import (
    DEFAULT_DOMAIN,
    ListedOperator,
    OperatorVersion,
    Port,
    body_of,
    has_contrib,
    history_of,
    types_text,
)

_BREAK = re.compile(r" *<br */?>")
"""The HTML line breaks that the descriptions of some operators have in Markdown."""
_NO_CONTRIB = "This ONNX Runtime was built without the schemas of com.microsoft, so its own operators are not listed."


def list_operators(operators: Sequence[ListedOperator]) -> str:
    """Return one line for each operator, grouped by family."""
    if not operators:
        return "no operator matches"
    names = [_full_name(operator) for operator in operators]
    width = min(max(map(len, names)), 48)
    uses = sum(operator.uses for operator in operators)
    listed = counted(len(operators), "operator")
    lines = [f"{counted(uses, 'node')} of {listed}" if uses else listed]
    for family, members in groupby(operators, key=lambda operator: operator.family):
        lines += ["", click.style(TITLES[family], bold=True)]
        lines += [_line(operator, width) for operator in members]
    return "\n".join(lines if has_contrib() else [*lines, "", _NO_CONTRIB])


def _line(operator: ListedOperator, width: int) -> str:
    text = operator.note or (operator.version.summary if operator.version else "")
    start = f"  {_full_name(operator):<{width}}  "
    if operator.uses:
        if operator.operator is None or operator.version is None:
            version_used = ""
        else:
            newest, used = operator.operator.newest.since_version, operator.version.since_version
            version_used = f"version {used}" if newest == used else f"version {used}, newest {newest}"
        start += f"{count(operator.uses):>6}  {version_used:<22}"
    elif operator.version is None:
        start += " " * 10
    else:
        since = "deprecated" if operator.version.deprecated else f"since {operator.version.since_version}"
        start += f"{since:<10}"
    return f"{start}  {textwrap.shorten(text, max(text_width() - len(start), 30), placeholder='…')}".rstrip()


def _full_name(operator: ListedOperator) -> str:
    return visible_name(f"{operator.domain}::{operator.name}" if operator.domain else operator.name)


def explain_operators(operators: Sequence[ListedOperator]) -> str:
    """Return the page of the first operator, and the other domains that have its name."""
    if not operators:
        return "no operator matches"
    lines = list(_page(operators[0]))
    others = [_full_name(operator) for operator in operators[1:]]
    if others:
        lines += ["", f"Also: {', '.join(others)}"]
    return "\n".join(lines)


def _page(operator: ListedOperator) -> Iterator[str]:
    version = operator.version
    if operator.operator is None or version is None:
        yield f"{click.style(_full_name(operator), bold=True)}  {operator.note}"
        return
    facts = [TITLES[operator.family], f"of {version.domain or DEFAULT_DOMAIN}", f"version {version.since_version}"]
    facts.append(f"introduced in opset {operator.operator.versions[0].since_version}")
    facts += ["deprecated"] if version.deprecated else []
    facts += [f"{count(operator.uses)} nodes"] if operator.uses else []
    yield f"{click.style(_full_name(operator), bold=True)}  {', '.join(facts)}"
    yield from ("", *(hanging("", line) for line in _BREAK.sub("", version.doc or "(not documented)").splitlines()))
    yield from _ports("Inputs", version.inputs)
    yield from _ports("Outputs", version.outputs)
    title = click.style("Attributes", bold=True)
    yield from ("", title if version.attributes else f"{title}  none")
    for attribute in version.attributes:
        default = (
            "required" if attribute.required else "none" if attribute.default is None else _default(attribute.default)
        )
        yield f"  {click.style(attribute.name, bold=True)}: {attribute.type} = {default}"
        yield from _wrapped(attribute.description, "      ")
    if version.variables:
        yield from ("", click.style("Types", bold=True))
    for name, types in version.variables.items():
        yield from _wrapped(f"{name}: {types_text(types)}", "      ", "  ")
    yield from _body(version)
    assert operator.operator is not None and operator.version is not None
    yield from ("", click.style("Versions", bold=True))
    for entry in history_of(operator.operator):
        shown = ">" if entry.since_version == operator.version.since_version else " "
        yield from _wrapped("; ".join(entry.changes), "          ", f"  {shown} {entry.since_version:>3}   ")


def _ports(title: str, ports: Sequence[Port]) -> Iterator[str]:
    yield from ("", click.style(title, bold=True) if ports else f"{click.style(title, bold=True)}  none")
    for port in ports:
        kind = "" if port.kind == "required" else f", {port.kind}"
        if port.kind == "variadic":
            kind += f", {port.least} or more" + ("" if port.alike else " of any types")
        variable = types_text([port.variable]) if "(" in port.variable else port.variable
        yield f"  {click.style(port.name, bold=True)}: {variable}{kind}"
        yield from _wrapped(port.description, "      ")


def _default(value: object) -> str:
    return f"[{', '.join(map(_default, value))}]" if isinstance(value, tuple) else repr(value).replace("'", '"')


def _body(version: OperatorVersion) -> Iterator[str]:
    if not version.is_function:
        return
    body = body_of(version)
    title = click.style("Definition in other operators", bold=True)
    if body is None:
        yield from ("", title, "  the body depends on the attributes, types and shapes of each node")
        return
    example = " (with its attributes at their defaults, on floats)" if body.is_example else ""
    yield from ("", f"{title}{example}", *(f"  {line}" for line in body.text.strip().splitlines()))


def _wrapped(text: str, indent: str, first: str | None = None) -> list[str]:
    start = indent if first is None else first
    return textwrap.wrap(_BREAK.sub("", text), text_width(), initial_indent=start, subsequent_indent=indent)
