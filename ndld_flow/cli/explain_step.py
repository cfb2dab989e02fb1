"""The reference page of a step, generated from its class."""

from __future__ import annotations

import inspect
import json
import textwrap
from typing import Any, get_args

import click
from pydantic import BaseModel

from ndld_flow.base.quantities import QUANTITY, format_setting
from ndld_flow.cli.terminal import text_width
from ndld_flow.graph.edit.operation import Heading, Operation
from ndld_flow.recipe.schema import OWN_INPUTS, has_own_inputs
from ndld_flow.recipe.step_types import StepType

WORDS = {"boolean": "true | false", "object": "mapping"}
LONGEST_DEFAULT = 60
"""Characters. A longer default is a mapping, whose settings are listed below it."""


def explain_step(step: StepType) -> str:
    """Return a page for people: the purpose of the step, and every setting with type, default and meaning."""
    reads, makes = step.cls.kinds()
    lines = [
        click.style(step.name, bold=True) + f"  reads {reads.kind}, produces {makes.kind}  (version {step.version})",
        "",
        *_wrap(_doc(step.cls), ""),
        "",
        "Settings",
        *_setting(
            step.cls.read_key, "step name", "nearest earlier step", f"The step whose result to read ({reads.kind})."
        ),
        *(
            _setting("inputs", "mapping", "the recipe's", f"{OWN_INPUTS} `ndld-flow steps inputs` explains them.")
            if has_own_inputs(step.cls)
            else ()
        ),
        *_all_settings(step.cls),
    ]
    return "\n".join([*lines, *_list_metrics(step), *_list_parts(step)])


def _list_metrics(step: StepType) -> list[str]:
    """Return lines on the metrics for gates and sweeps; those with the same unit and condition share one."""
    heading = "Metrics, for gates and sweeps as STEP.METRIC"
    if step.cls.returns is None:
        return ["", heading, "  not declared; known only after a run"]
    groups: dict[tuple[str, str], list[str]] = {}
    for each in step.cls.returns:
        groups.setdefault((each.unit, each.when), []).append(each.name)
    lines = ["", heading]
    for (unit, when), names in groups.items():
        condition = f"   when {when}" if when else ""
        text = f"{', '.join(names)}{f'  [{unit}]' if unit else ''}{condition}"
        lines += textwrap.wrap(
            text, text_width(), initial_indent="  ", subsequent_indent="      ", break_long_words=False
        )
    return lines


def explain_part(name: str, part: type[BaseModel]) -> str:
    """Return a page on a part of a step's settings, such as an operation."""
    # If only an example follows the first line, `inspect.getdoc` removes its indentation as that of the docstring.
    paragraphs = [
        textwrap.indent(paragraph, "    ") if paragraph.startswith(f"{name}:") else paragraph
        for paragraph in _doc(part).split("\n\n")
    ]
    doc = _wrap("\n\n".join(paragraphs), "")
    return "\n".join([click.style(name, bold=True), "", *doc, "", "Settings", *_all_settings(part)])


def _list_parts(step: StepType) -> list[str]:
    """Return lines on the parts that its settings name, operations under their headings."""
    parts = step.cls.parts()
    if not parts:
        return []
    width = max(map(len, parts))
    names_by_heading: dict[str, list[str]] = {"": [], **{heading: [] for heading in get_args(Heading)}}
    for part_name, part in parts.items():
        names_by_heading.setdefault(part.heading if issubclass(part, Operation) else "", []).append(part_name)
    headings = {heading: sorted(names) for heading, names in names_by_heading.items() if names}
    lines = ["", f"Each is explained by `ndld-flow steps {step.name}.NAME`"]
    for heading, names in headings.items():
        lines += ["", f"  {click.style(heading, bold=True)}"] if heading else [""]
        for name in names:
            summary = _doc(parts[name]).partition("\n")[0]
            start, indent = f"    {name:<{width}}  ", " " * (width + 6)
            lines += textwrap.wrap(summary, text_width(), initial_indent=start, subsequent_indent=indent)
    return lines


def _doc(model: type[BaseModel]) -> str:
    return inspect.getdoc(model) or ""


def _all_settings(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    settings = schema.get("properties") or _inner(schema, definitions)  # a recursive model is only a reference
    return [line for name, inner in settings.items() for line in _settings(name, inner, definitions)]


def _settings(name: str, schema: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    """Return the lines of a setting, followed by those of its nested settings."""
    default = format_default(schema)
    inner = _inner(schema, definitions)
    kind = "mapping" if inner else format_type(schema, definitions)
    lines = _setting(name, kind, default, schema.get("description", ""))
    for inner_name, inner_schema in inner.items():
        lines += _settings(f"{name}.{inner_name}", inner_schema, definitions)
    return lines


def format_default(schema: dict[str, Any]) -> str:
    """Return a setting's default as a recipe writes it, or `required`."""
    if "default" not in schema:
        return "required"
    default = schema["default"]
    if QUANTITY in schema:
        return format_setting(default, schema[QUANTITY])
    text = json.dumps(default)
    return text if len(text) <= LONGEST_DEFAULT else "{...}"


def _inner(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the mapping that a schema refers to, or of its default if it allows other types."""
    if isinstance(schema.get("default"), dict) and "anyOf" in schema:
        return next(filter(None, (_inner(choice, definitions) for choice in schema["anyOf"])), {})
    settings: dict[str, Any] = definitions.get(schema.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
    return settings


def _setting(name: str, kind: str, default: str, text: str) -> list[str]:
    return [f"  {click.style(name, bold=True)}: {kind} = {default}", *_wrap(text, "      ")]


def format_type(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return a setting's type for people: `true | false`, `list of string`."""
    if QUANTITY in schema:
        return str(schema[QUANTITY])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "discriminator" in schema:
        choice = schema["discriminator"]  # a key chooses one of several classes of settings
        return str(schema.get("title") or f"{{{choice['propertyName']}: {' | '.join(choice['mapping'])}, ...}}")
    if "anyOf" in schema or "oneOf" in schema:
        choices = schema.get("anyOf") or schema["oneOf"]
        return " | ".join(dict.fromkeys(format_type(choice, definitions) for choice in choices))
    if "$ref" in schema:
        return f"{{{', '.join(_inner(schema, definitions))}}}".replace("{}", "any")
    return _format_plain_type(schema, definitions)


def _format_plain_type(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    kind = schema.get("type", "any")
    if "prefixItems" in schema:
        return f"[{', '.join(format_type(item, definitions) for item in schema['prefixItems'])}]"
    if kind == "array":
        return f"list of {format_type(schema.get('items', {}), definitions)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {format_type(schema['additionalProperties'], definitions)}"
    return WORDS.get(str(kind), str(kind))


def _wrap(text: str, indent: str) -> list[str]:
    """Fill paragraphs to the width of a terminal, separated by empty lines; indented examples stay as they are."""
    lines: list[str] = []
    for part in text.split("\n\n") if text else ():
        lines += [""] if lines else []
        if part.startswith("    "):
            lines += [f"{indent}{line}" for line in part.splitlines()]
        else:
            lines += textwrap.wrap(
                " ".join(part.split()), text_width(), initial_indent=indent, subsequent_indent=indent
            )
    return lines
