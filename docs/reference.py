"""Reference pages, generated from the code: nothing on them is written by hand twice.

`pages()` returns all of them as Markdown; `hooks.py` hands them to MkDocs. Only ndld_flow is imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, get_args

import click

from ndld_flow import api, plugin, records
from ndld_flow.base import errors
from ndld_flow.base.lazy_names import names_for_checkers
from ndld_flow.base.quantities import QUANTITY, format_setting
from ndld_flow.cli.app import EPILOG, program
from ndld_flow.cli.verbs import import_verb, list_outputs, list_verbs
from ndld_flow.execution import events
from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from ndld_flow.graph.edit.operation import Heading
from ndld_flow.recipe.schema import OWN_INPUTS, DescribedMetric, describe_step, has_own_inputs
from ndld_flow.recipe.step_types import StepType
from ndld_flow.records.document import Document, Record, find_documents
from ndld_flow.records.outcomes import ENDINGS

HELP_WIDTH = 100
"""Characters in a line of a verb's help."""
SELECT = "../operations/select.md"
"""The page on selections, from any page of a step or an operation."""
LONGEST_DEFAULT = 60
"""Characters. A longer default is a mapping, whose settings follow."""

CODES = {
    0: "Success.",
    1: "The run finished, and a check, a gate or a step failed; for a sweep, no point passed.",
    2: "The request is invalid: the recipe, the arguments, the model, or a missing backend.",
    3: "A bug. The message names a log file to send.",
    4: "Inconclusive: nothing failed, but a comparison remained undecided.",
    5: "A worker was killed, by the kernel for its memory or by a crash in native code; another attempt may succeed.",
    130: "Interrupted by Ctrl-C or SIGTERM. Finished work is kept.",
    141: "The reader of the output closed the pipe, as `head` does. The run ends, and never counts as passed.",
}
"""Exit code -> its meaning."""


def pages() -> dict[str, str]:
    """Return path below `docs/` -> Markdown, for every generated page."""
    return {
        "reference/index.md": _index(),
        "reference/recipe.md": _recipe(),
        **{f"reference/steps/{path}": text for path, text in _steps().items()},
        **{f"reference/operations/{path}": text for path, text in _operations().items()},
        "reference/verbs.md": _verbs(),
        "reference/exit-codes.md": _exit_codes(),
        "reference/records.md": _records(),
        "reference/json.md": _outputs(),
        "reference/api.md": _api(),
        "reference/plugin.md": _plugin(),
    }


def slug(heading: str) -> str:
    """Return the file name of a heading of operations."""
    return heading.replace(" ", "-")


def _index() -> str:
    return textwrap.dedent("""\
        # Reference

        These pages are generated from the code when the documentation is built.

        - [Keys of a recipe](recipe.md)
        - [Steps](steps/index.md), with their settings and metrics
        - [Operations of `edit`](operations/index.md)
        - [Verbs of the command line](verbs.md)
        - [Exit codes](exit-codes.md)
        - [Records](records.md): the JSON documents that are written
        - [JSON of verbs](json.md): what `--json` prints
        - [Python API](api.md)
        - [Plugins](plugin.md): what steps and operations of your own import

        The same information without a browser: `ndld-flow steps`, `ndld-flow steps NAME`, `ndld-flow VERB --help`,
        and `ndld-flow schema` for editors.
        """)


# Schemas


def _describe_type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the type of a setting in words."""
    if QUANTITY in schema:
        return str(schema[QUANTITY])
    if "enum" in schema:
        return " or ".join(f"`{_literal(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{_literal(schema['const'])}`"
    if "oneOf" in schema:
        return str(schema.get("title", "any"))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_describe_type(choice, definitions) for choice in schema["anyOf"]))
    if schema.get("$ref", "").endswith("/NodeSelect"):
        return f"[selection]({SELECT})"
    if "$ref" in schema:
        inner = _properties(schema, definitions)
        return f"mapping with {', '.join(f'`{name}`' for name in inner)}" if inner else "any"
    return _describe_plain_type(schema, definitions)


def _describe_plain_type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    kind = str(schema.get("type", "any"))
    if "prefixItems" in schema:
        return f"list of {', '.join(_describe_type(item, definitions) for item in schema['prefixItems'])}"
    if kind == "array":
        return f"list of {_describe_type(schema.get('items', {}), definitions)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_describe_type(schema['additionalProperties'], definitions)}"
    words = {"boolean": "`true` or `false`", "object": "mapping"}
    return words.get(kind, kind)


def _literal(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _properties(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the mapping that a schema refers to."""
    found: dict[str, Any] = definitions.get(schema.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
    return found


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    if QUANTITY in schema:
        return f"default `{format_setting(schema['default'], schema[QUANTITY])}`"
    text = json.dumps(schema["default"])
    return f"default `{text}`" if len(text) <= LONGEST_DEFAULT and text != '""' else ""


def _settings(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a paragraph for each setting of a schema, and of the mappings inside it."""
    owner = schema if "properties" in schema else definitions.get(schema.get("$ref", "").rpartition("/")[2], {})
    for name, inner in owner.get("properties", {}).items():
        nested = _properties(inner, definitions) if "default" in inner else {}
        described = "mapping" if nested else _describe_type(inner, definitions)
        required = "required" if name in owner.get("required", ()) else ""
        about = ", ".join(filter(None, (described, required, _default(inner))))
        yield f"`{prefix}{name}`\n:   *{about}*{_body(inner.get('description', ''), '    ')}"
        if nested and prefix.count(".") < 2:
            yield from _settings(inner, definitions, f"{prefix}{name}.")


def _body(text: str, indent: str) -> str:
    return f"\n\n{textwrap.indent(text, indent)}\n" if text else "\n"


def _settings_section(schema: Mapping[str, Any], lead: Sequence[str] = ()) -> str:
    found = [*lead, *_settings(schema, schema.get("$defs", {}))]
    return "\n".join(found) if found else "It has no settings.\n"


def _prose(text: str) -> str:
    """Return a docstring as Markdown: indented examples become blocks of YAML."""
    return re.sub(r"(?m)^(?: {4}.*\n?(?:\n(?= {4}))?)+", _fence, text.replace("``", "`"))


def _fence(match: re.Match[str]) -> str:
    return f"```yaml\n{textwrap.dedent(match[0]).rstrip()}\n```\n"


# Recipe, steps, operations


def _recipe() -> str:
    schema = api.schema()
    definitions = schema["$defs"]
    parts = [
        "# Keys of a recipe\n",
        "`ndld-flow schema` writes these as a JSON Schema, with which editors complete recipes.\n",
    ]
    for name, inner in schema["properties"].items():
        about = _about_key(name, inner, definitions) + (", required" if name in schema["required"] else "")
        parts.append(f"## `{name}` {{ #{name} }}\n\n*{about}*{_body(inner.get('description', ''), '')}")
        parts += [_settings_of(choice, definitions) for choice in _references(inner)]
    return "\n".join(parts)


def _about_key(name: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if name == "steps":
        return "mapping from a step's name to its [settings](steps/index.md)"
    kind = "text or mapping" if name == "model" else _describe_type(schema, definitions)
    return ", ".join(filter(None, (kind, _default(schema))))


def _references(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the references to mappings in the schema of a key, but not those to steps."""
    inner = [schema, *schema.get("anyOf", []), schema.get("additionalProperties", {})]
    inner += [each for part in inner if isinstance(part, dict) for each in part.get("anyOf", [])]
    found = {each["$ref"]: each for each in inner if isinstance(each, dict) and "$ref" in each}
    return list(found.values())


def _settings_of(reference: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    return "\n".join(_settings(reference, definitions))


def _steps() -> dict[str, str]:
    types = api.steps()
    rows = [f"| [`{found.name}`]({found.name}.md) | {found.cls.kinds()[0].kind} | {found.summary} |" for found in types]
    index = "# Steps\n\nWhat a step reads is another step's result: `from:` names it.\n\n"
    index += "\n".join(["| step | reads | what it does |", "|---|---|---|", *rows, ""])
    return {"index.md": index, **{f"{found.name}.md": _step(found) for found in types}}


def _step(found: StepType) -> str:
    described = describe_step(found)
    kind = described.reads
    about = "*name of a step, default the nearest earlier one*"
    reads = f"`{found.cls.read_key}`\n:   {about}\n\n    What to read ({kind}).\n"
    if has_own_inputs(found.cls):
        text = f"{OWN_INPUTS} See [`inputs`](../recipe.md#inputs)."
        reads += f"\n`inputs`\n:   *mapping, default the recipe's*{_body(text, '    ')}"
    title = f"# {found.name}\n\nReads {kind}, produces {described.makes}; version {described.version}.\n"
    doc = _prose(inspect.getdoc(found.cls) or "")
    more = "\nIts [operations](../operations/index.md) have pages of their own.\n" if found.name == "edit" else ""
    settings = _settings_section(described.settings, [reads])
    return f"{title}\n{doc}\n{more}\n## Settings\n\n{settings}\n## Metrics\n\n{_metrics(described.metrics)}"


def _metrics(metrics: Sequence[DescribedMetric] | None) -> str:
    if metrics is None:
        return "Not declared: known only after a run.\n"
    groups: dict[tuple[str, str], list[str]] = {}
    for each in metrics:
        groups.setdefault((each.unit, each.when), []).append(f"`{each.name}`")
    rows = [f"| {', '.join(names)} | {unit} | {when} |" for (unit, when), names in groups.items()]
    lead = "For gates, sweeps and constraints, as `STEP.METRIC`.\n\n"
    return lead + "\n".join(["| metric | unit | when |", "|---|---|---|", *rows, ""])


def _operations() -> dict[str, str]:
    by_heading: dict[str, list[str]] = {heading: [] for heading in get_args(Heading)}
    for name in operation_names():
        operation = find_operation(name)
        if operation is not None:
            by_heading[operation.heading].append(name)
    filled = {heading: names for heading, names in by_heading.items() if names}
    index = "# Operations of `edit`\n\nHow operations select nodes: [select](select.md).\n"
    for heading, names in filled.items():
        rows = [f"| [`{name}`]({slug(heading)}.md#{name}) | {_summary(find_operation(name))} |" for name in names]
        index += f"\n## {heading.capitalize()}\n\n" + "\n".join(
            ["| operation | what it does |", "|---|---|", *rows, ""]
        )
    texts = {f"{slug(heading)}.md": _heading_page(heading, names) for heading, names in filled.items()}
    return {"index.md": index, "select.md": _select(), **texts}


def _heading_page(heading: str, names: Sequence[str]) -> str:
    return f"# {heading.capitalize()}\n\n" + "\n".join(_operation(name) for name in names)


def _operation(name: str) -> str:
    operation = find_operation(name)
    assert operation is not None
    settings = _settings_section(operation.model_json_schema())
    return f"## {name} {{ #{name} }}\n\n{_operation_doc(name, operation)}\n\n{settings}"


def _operation_doc(name: str, operation: type) -> str:
    paragraphs = (inspect.getdoc(operation) or "").split("\n\n")
    # If only an example follows the first line, `inspect.getdoc` removes its indentation as that of the docstring.
    indented = [textwrap.indent(text, "    ") if text.startswith(f"{name}:") else text for text in paragraphs]
    return _prose("\n\n".join(indented) + "\n")


def _select() -> str:
    found = next(each for each in api.steps() if each.name == "edit")
    select = found.cls.parts()["select"]
    doc = _prose((inspect.getdoc(select) or "") + "\n")
    schema = select.model_json_schema()
    settings = schema if "properties" in schema else {"properties": _properties(schema, schema.get("$defs", {}))}
    return f"# select\n\n{doc}\n\n{_settings_section({**settings, '$defs': schema.get('$defs', {})})}"


def _summary(cls: type | None) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


# Verbs, exit codes


def _verbs() -> str:
    parts = ["# Verbs\n", "| verb | what it does |\n|---|---|"]
    parts += [f"| [`{verb}`](#{verb}) | {text} |" for verb, text in list_verbs().items()]
    return "\n".join(parts) + "\n\n" + "\n".join(_verb(verb) for verb in list_verbs())


def _verb(verb: str) -> str:
    context = click.Context(program, info_name="ndld-flow", terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH)
    command = program.get_command(context, verb)
    assert command is not None
    inner = click.Context(command, info_name=verb, parent=context, terminal_width=HELP_WIDTH)
    text = click.unstyle(command.get_help(inner)).replace("Usage: root", "Usage: ndld-flow")
    return f"## {verb} {{ #{verb} }}\n\n```text\n{text}\n```\n"


def _exit_codes() -> str:
    outcomes: dict[int, list[str]] = {}
    for outcome, ending in ENDINGS.items():
        if outcome != "running":
            outcomes.setdefault(ending.exit_code, []).append(outcome)
    assert set(outcomes) <= set(CODES), "an outcome has an exit code without an explanation"
    assert all(f"{code} " in " ".join(EPILOG.split()) for code in CODES), "the program's help lists other codes"
    rows = [f"| {code} | {', '.join(outcomes.get(code, []))} | {text} |" for code, text in CODES.items()]
    head = "# Exit codes\n\nScripts and CI decide by these. A verdict and an exit code never disagree.\n\n"
    text = inspect.getdoc(errors) or ""
    tree = textwrap.dedent(text.partition("::\n\n")[2].partition("\n\n")[0])
    table = "\n".join(["| code | outcome of a run | meaning |", "|---|---|---|", *rows])
    return f"{head}{table}\n\n## Errors of the Python API\n\n```text\n{tree}\n```\n"


# Records


def _records() -> str:
    documents = sorted(find_documents(), key=lambda cls: cls.kind_name())
    lead = (
        "# Records\n\nEvery document is JSON with `document`, its kind, and `format_version`. A document of another "
        "version is refused and left unchanged. Unknown is `null`, never zero. "
        "NaN and infinity are the texts `NaN`, `Infinity` and `-Infinity`.\n\n"
    )
    rows = [
        f"| [`{cls.kind_name()}`](#{slug(cls.kind_name())}) | {cls.known_version()} | "
        f"{f'`{cls.file_name}`' if cls.file_name else ''} | {_summary(cls)} |"
        for cls in documents
    ]
    table = "\n".join(["| document | version | file of a step | |", "|---|---|---|---|", *rows, ""])
    return lead + table + "\n" + "\n".join(map(_document, documents))


def _document(cls: type[Document]) -> str:
    name = cls.kind_name()
    schema = cls.model_json_schema()
    sections = [(cls.__name__, _field_rows(cls, schema, schema.get("$defs", {})))]
    sections += [
        (inner, _field_rows(_record_class(cls, inner), schema["$defs"][inner], schema["$defs"]))
        for inner in schema.get("$defs", {})
        if schema["$defs"][inner].get("properties")
    ]
    text = f"## {name} {{ #{slug(name)} }}\n\n{_prose(inspect.getdoc(cls) or '')}\n"
    for part, rows in sections:
        heading = "" if part == cls.__name__ else f"\n### {name}: {part} {{ #{slug(name)}-{part.lower()} }}\n"
        text += f"{heading}\n| field | type | |\n|---|---|---|\n{rows}\n"
    return text


def _field_rows(cls: type | None, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    notes = _field_notes(cls) if cls is not None else {}
    rows = []
    for name, field in schema.get("properties", {}).items():
        text = " ".join((field.get("description") or notes.get(name, "")).split())
        rows.append(f"| `{name}` | {_record_type(field, definitions)} | {text} |".replace("\\|", "|"))
    return "\n".join(rows)


def _record_type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the type of a record's field; a record inside it by the name of its class."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name if definitions.get(name, {}).get("properties") else _describe_type(definitions[name], definitions)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_record_type(choice, definitions) for choice in schema["anyOf"]))
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_record_type(schema['items'], definitions)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_record_type(schema['additionalProperties'], definitions)}"
    return _describe_type(schema, definitions)


def _record_class(document: type, name: str) -> type | None:
    """Return the class of a record inside a document, by the name that its schema uses."""
    modules: list[ModuleType | None] = [inspect.getmodule(document)]
    modules += [
        importlib.import_module(f"{records.__name__}.{each.name}") for each in pkgutil.iter_modules(records.__path__)
    ]
    return next((found for module in modules if inspect.isclass(found := getattr(module, name, None))), None)


@functools.cache
def _field_notes(cls: type) -> dict[str, str]:
    """Return field -> the string that follows it in the source, for a class and its bases."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("ndld_flow."):
            notes |= _notes_in_source(textwrap.dedent(inspect.getsource(base)))
    return notes


def _notes_in_source(source: str) -> dict[str, str]:
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(note, ast.Expr):
            found[field.target.id] = str(ast.literal_eval(note.value))
    return found


# JSON of verbs

_OUTPUTS_LEAD = """\
# JSON of verbs

With `--json` a verb prints JSON on standard output and nothing else. `run` prints one event per line while it works;
the other verbs print one value at the end. `ndld-flow schema --verb VERB` prints the JSON Schema, which
`api.schema(verb="VERB")` returns.

A verb that ends with an error prints a line with `"event": "error"`, described [below](#failure), as the last line.
The text for people on standard error and the [exit code](exit-codes.md) are the same as without `--json`. An
interrupted verb (130) and one whose reader has gone (141) print none. A check, a gate or a comparison that fails is a
result, not an error.

Programs ignore fields that they do not know: a later release may add some. The version of an output rises when a
field is removed or renamed, or changes its meaning. NaN and infinity are the texts `NaN`, `Infinity` and `-Infinity`.

"""


def _outputs() -> str:
    in_documents = {name for cls in find_documents() for name in _definitions(cls.model_json_schema())}
    documents = {cls.__name__: cls.kind_name() for cls in find_documents()}
    rows, sections = [], []
    for verb, output in list_outputs().items():
        schema = _without_nan(api.schema(verb=verb))
        definitions = schema["$defs"]
        version = "that of the document" if output.version is None else output.version
        rows.append(f"| [`{verb}`](#{verb}) | {version} | {output.summary} |")
        links = [
            f"[`{documents[name]}`](records.md#{slug(documents[name])})" for name in documents if name in definitions
        ]
        text = f"## {verb} {{ #{verb} }}\n\n{output.summary}\n"
        text += f"\nThe fields of {', '.join(links)} are among the records.\n" if links else ""
        own = {name for name in definitions if name not in in_documents | {"Failure", "Problem"}}
        sections.append(text + "".join(_output_part(verb, name, definitions) for name in sorted(own)))
    failure = _without_nan(api.schema(verb="run"))["$defs"]
    sections.append(
        "## Failure { #failure }\n\nThe last line of every verb that ends with an error.\n"
        + "".join(_output_part("failure", name, failure) for name in ("Failure", "Problem"))
    )
    table = "\n".join(["| verb | version | output |", "|---|---|---|", *rows, ""])
    return _OUTPUTS_LEAD + table + "\n" + "\n".join(sections)


def _definitions(schema: Mapping[str, Any]) -> set[str]:
    return {str(schema["title"]), *schema.get("$defs", {})}


def _output_part(verb: str, name: str, definitions: Mapping[str, Any]) -> str:
    """Return the table of the fields of one mapping in an output."""
    schema = definitions[name]
    if not schema.get("properties"):
        return ""
    rows = [
        f"| `{field}` | {_record_type(inner, definitions)} | {' '.join(inner.get('description', '').split())} |"
        for field, inner in schema["properties"].items()
    ]
    heading = f"\n### {verb}: {name} {{ #{verb}-{name.lower()} }}\n\n{_prose(schema.get('description', ''))}\n"
    return heading + "\n".join(["", "| field | type | |", "|---|---|---|", *rows, ""])


def _without_nan(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema in which a number is a number: the page states once that NaN and infinities are texts."""
    if isinstance(schema, list):
        return [_without_nan(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _without_nan(value) for name, value in schema.items()}
    nan = {"enum": ["NaN", "Infinity", "-Infinity"]}
    if nan in inner.get("anyOf", []):
        inner["anyOf"] = [each for each in inner["anyOf"] if each != nan]
    return inner


# The Python API


def _api() -> str:
    modules = [*map(import_verb, list_verbs()), api]
    functions = [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and hasattr(value, "__wrapped__")
    ]
    lead = _without_example(inspect.getdoc(api) or "")
    results = [_result(events.RunFinished), _result(events.SweepFinished)]
    return f"# Python API\n\n{lead}\n\n" + "\n".join([*map(_function, functions), *results])


def _plugin() -> str:
    lead = """\
# Plugins

A step, an operation, a check or a runtime of your own imports one module, `ndld_flow.plugin`; [own
step](../how-to/own-step.md) shows a step, and [contributing](../../CONTRIBUTING.md#adding-a-step) an example of each
kind. These names are [stable](../about/stability.md). Each is imported when it is first used.

"""
    rows = []
    for name, module in names_for_checkers(plugin.__name__).items():
        source = importlib.import_module(module)
        value = getattr(source, name)
        documented = inspect.isclass(value) or str(getattr(value, "__module__", "")).startswith("ndld_flow.")
        text = (inspect.getdoc(value) or "") if documented else _note_of(source, name)
        first = " ".join(text.partition("\n\n")[0].split())
        rows.append(f"| `{name}` | {first.replace('|', '/')} |")
    return lead + "\n".join(["| name | |", "|---|---|", *rows, ""])


def _note_of(module: ModuleType, name: str) -> str:
    """Return the string below a name in a module's source."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, note in itertools.pairwise(body):
        targets = getattr(statement, "targets", []) or [getattr(statement, "target", None)]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if name in names and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            return str(note.value.value)
    return ""


def _without_example(text: str) -> str:
    """Return a module's docstring with its literal block as Python."""
    before, _, rest = text.partition("\n::\n\n")
    block = re.match(r"(?: {4}.*\n|\n)+", rest)
    if block is None:
        return text
    return f"{before}\n```python\n{textwrap.dedent(block[0]).strip()}\n```\n\n{rest[block.end() :]}"


def _function(function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    arguments = [_argument(parameter) for parameter in parameters]
    keyword = next((i for i, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None:
        arguments.insert(keyword, "*")
    lines = "".join(f"    {argument},\n" for argument in arguments)
    shown = f"def {function.__name__}(\n{lines}) -> {signature.return_annotation}"
    doc = (inspect.getdoc(function) or "").replace("``", "`")
    return f"## {function.__name__} {{ #{function.__name__} }}\n\n```python\n{shown}\n```\n\n{doc}\n"


def _argument(parameter: inspect.Parameter) -> str:
    default = "..." if callable(parameter.default) else repr(parameter.default)
    return f"{parameter.name}: {parameter.annotation}" + (
        "" if parameter.default is parameter.empty else f" = {default}"
    )


def _result(cls: type[Record]) -> str:
    schema = cls.model_json_schema()
    rows = _field_rows(cls, schema, schema.get("$defs", {}))
    name = cls.__name__
    return f"## {name} {{ #{name.lower()} }}\n\n| attribute | type | |\n|---|---|---|\n{rows}\n"
