"""A step as a command: its settings are options, or overrides as those of `run`, and a recipe with this step runs."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import JsonValue

from ndld_flow.base.errors import RecipeError
from ndld_flow.base.places import change_value
from ndld_flow.base.text import shell_word
from ndld_flow.cli.explain_step import format_default, format_type
from ndld_flow.cli.options import (
    NamedPath,
    data_option,
    json_option,
    loudness_options,
    outputs_option,
    refuse_missing,
    shapes_option,
)
from ndld_flow.recipe.step_types import StepType, StepTypes
from ndld_flow.recipe.write_recipe import StepRecipe, parse_shape, settings_as_options
from ndld_flow.recipe.yaml_file import parse_yaml
from ndld_flow.store.kinds import Engine, Onnx

_EXPORTED = {Onnx: "FILE.onnx", Engine: "FILE.engine"}
_RECIPES = "recipes"
_VALUE = re.compile(r"[\[{\"'].*|true|false|null|[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.DOTALL | re.IGNORECASE)
"""A value that is read as YAML. Any other text, such as `5 %` or `*/conv`, is taken as it is."""


class StepCommand(click.Command):
    """A command whose help lists the settings of the step before the options that all steps have."""

    settings: Mapping[str, str] = {}
    """Parameter -> the setting of the step."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is not None:
                rows[parameter.name in self.settings].append(row)
        for heading, chosen in (("Settings", rows[True]), ("Options", rows[False])):
            if chosen:
                with formatter.section(heading):
                    formatter.write_dl(chosen)


def find_step_command(name: str) -> click.Command | None:
    """Return the command of a step; None if there is no step of this name that reads a model."""
    kind = StepTypes().find(name)
    return _make_command(kind) if kind is not None and kind.cls.kinds()[0] is Onnx else None


def _make_command(kind: StepType) -> click.Command:
    common = click.Command(kind.name)
    file = _EXPORTED.get(kind.cls.kinds()[1])
    inputs = (data_option, shapes_option) if kind.cls.may_read_inputs() else ()
    output = (
        click.option("--output", "-o", type=NamedPath(path_type=Path), metavar=file, help="Write the result there."),
    )
    for decorate in (
        click.option(
            "--write",
            type=NamedPath(path_type=Path),
            metavar="RECIPE.yaml",
            help="Write the recipe to this file, and run nothing.",
        ),
        *inputs,
        *(output if file is not None else ()),
        *(json_option, loudness_options, outputs_option),
    ):
        decorate(common)
    # A setting named as an option of all steps is an override. The step's own settings come first.
    taken = {text for parameter in common.params for text in parameter.opts}
    found = {name: schema for name, schema in settings_as_options(kind.cls).items() if _option_name(name) not in taken}
    schemas = dict(sorted(found.items(), key=lambda each: each[0] not in kind.cls.__annotations__))
    definitions = kind.cls.model_json_schema().get("$defs", {})
    names = {f"setting_{setting}": setting for setting in schemas}
    options = [_option(name, setting, schemas[setting], definitions) for name, setting in names.items()]
    command = StepCommand(
        kind.name,
        params=[
            click.Argument(["model"], metavar="MODEL.onnx"),
            click.Argument(["overrides"], nargs=-1, metavar="[SETTING=VALUE]..."),
            *options,
            *common.params,
        ],
        callback=lambda **values: _run(kind, names, values),
        help=f"{_unwrapped(kind)}\n\nA setting may also be given as SETTING=VALUE, one inside another as A.B=VALUE. "
        f"`ndld-flow steps {kind.name}` explains these, and the metrics.",
        short_help=kind.summary,
    )
    command.settings = names
    return command


def _unwrapped(kind: StepType) -> str:
    """Return the step's docstring, whose indented examples click must leave as they are."""
    import inspect

    paragraphs = (inspect.getdoc(kind.cls) or "").split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith("    ") else part for part in paragraphs)


def _option_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _option(name: str, setting: str, schema: dict[str, Any], definitions: dict[str, Any]) -> click.Option:
    default = format_default(schema).replace("{...}", "those of its settings")
    text = f"{schema.get('description', '')} [{default if default == 'required' else f'default: {default}'}]"
    if schema.get("type") == "boolean":
        word = _option_name(setting)
        return click.Option([f"{word}/--no-{word[2:]}", name], default=None, help=text)
    metavar = format_type(schema, definitions).replace('"', "").replace(" | ", "|").removesuffix("|null")
    return click.Option(
        [_option_name(setting), name],
        multiple=schema.get("type") == "array",
        metavar=metavar if len(metavar) <= 40 and " " not in metavar else "VALUE",
        help=text,
    )


def _run(kind: StepType, names: Mapping[str, str], values: dict[str, Any]) -> int:
    refuse_missing([values["model"]], values.get("data", ()))
    from ndld_flow.cli.progress import choose_listener
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.runs.cache_settings import CacheChoice
    from ndld_flow.sweep.run_request import run_request

    settings = dict(_given(kind, names, values))
    for text in values["overrides"]:
        settings = _override(settings, text)
    refuse_missing([given for given in settings.values() if isinstance(given, str) and given.endswith(".onnx")])
    step = StepRecipe(
        kind, values["model"], settings, dict(map(parse_shape, values.get("shapes", ()))), values.get("data", ())
    )
    outputs, loudness, as_json = values["outputs"], values["loudness"], values["as_json"]
    path = values["write"] or outputs / _RECIPES / f"{step.name}.yaml"
    with _naming_options(kind, path):
        step.write(path)
    if values["write"] is not None:
        click.echo(f"{path}\nRun it with: ndld-flow run {shell_word(path)}")
        return 0
    command = ("ndld-flow", *sys.argv[1:])
    with choose_listener(as_json=as_json, loudness=loudness) as listener, _naming_options(kind, path):
        # The user has typed the name of whatever code the settings name, as for `profile`.
        request = request_recipe(
            path, outputs=outputs, trust=True, output=values.get("output"), cache=CacheChoice(), command=command
        )
        finished = run_request(request, listener)
    if not as_json:
        if kind.name in finished.artifacts and values.get("output") is None:
            click.echo(f"result {finished.artifacts[kind.name]}")
        click.echo(f"recipe {path}")
    return finished.exit_code


@contextlib.contextmanager
def _naming_options(kind: StepType, path: Path) -> Iterator[None]:
    """Name the options where a recipe's error names the settings; the recipe is then removed."""
    try:
        yield
    except RecipeError as error:
        path.unlink(missing_ok=True)
        prefix = f"steps.{kind.name}."
        problems = [
            replace(problem, where=f"ndld-flow {kind.name}", path=_name_option(problem.path.removeprefix(prefix)))
            if problem.path.startswith(prefix)
            else problem
            for problem in error.problems
        ]
        raise RecipeError(problems) from None


def _name_option(setting: str) -> str:
    name, _, inner = setting.partition(".")
    return setting if inner and not inner.isdigit() else _option_name(name)


def _given(kind: StepType, names: Mapping[str, str], values: Mapping[str, Any]) -> Iterator[tuple[str, JsonValue]]:
    """Yield the settings whose options were given, with their values."""
    schemas = settings_as_options(kind.cls)
    for parameter, setting in names.items():
        value, schema = values[parameter], schemas[setting]
        if value is None or value == ():
            continue
        word = _option_name(setting)
        if isinstance(value, tuple):  # repeated, or as a list
            items = schema.get("items", {})
            parts = [_read_value(text, word, {} if text.startswith("[") else items) for text in value]
            yield setting, [item for part in parts for item in (part if isinstance(part, list) else [part])]
        else:
            yield setting, value if isinstance(value, bool) else _read_value(value, word, schema)


def _override(settings: dict[str, JsonValue], text: str) -> dict[str, JsonValue]:
    """Return settings with `setting=value` or, inside a setting, `a.b=value`. Raises UsageError for another form."""
    place, equals, value = text.partition("=")
    words = place.split(".")
    if not equals or not all(words):
        raise click.UsageError(f"{text}: write SETTING=VALUE, such as block.op_types=[Softmax].")
    try:
        return {**change_value(settings, words, _read_value(value, place, {}))}
    except ValueError as error:
        raise click.UsageError(f"{text}: {error}.") from None


def _read_value(text: str, option: str, schema: Mapping[str, Any]) -> JsonValue:
    """Return a value as a recipe would have it. What takes only text is not read as YAML. Raises UsageError."""
    if schema.get("type") == "string" or not _VALUE.fullmatch(text):
        return text
    try:
        value: JsonValue = parse_yaml(Path(option), f"value: {text}").values["value"]
    except RecipeError as error:
        raise click.UsageError(f"{option}: {error.problems[0].what}; {error.problems[0].hint}.") from None
    return value
