"""The contract of every verb. Verbs are discovered, so that a new one is tested without a change here."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

from ndld_flow import api
from ndld_flow.base import errors
from ndld_flow.cli.verbs import import_verb, list_outputs, list_verbs
from tests.support.command_line import ndld_flow

every_verb = pytest.mark.parametrize("verb", list_verbs())
every_verb_with_json = pytest.mark.parametrize("verb", list_outputs())
FEW = 90
"""Characters of a summary, which stands in one line of the help."""


def command_of(verb: str) -> click.Command:
    command = import_verb(verb).command
    assert isinstance(command, click.Command)
    return command


def functions_of(verb: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of the Python API that the file of a verb has."""
    module = import_verb(verb)
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and hasattr(value, "__wrapped__")
    }


@every_verb
def test_a_verb_begins_with_a_sentence_that_is_its_summary(verb: str, tmp_path: Path) -> None:
    summary, _, rest = (import_verb(verb).__doc__ or "").partition("\n")
    assert summary == list_verbs()[verb] and summary.endswith(".") and len(summary) <= FEW
    assert not rest.split("\n")[0], "an empty line follows"
    done = ndld_flow(verb, "--help", cwd=tmp_path)
    assert done.returncode == 0 and " ".join(summary.split()) in " ".join(done.stdout.split())


@every_verb
def test_the_command_of_a_verb_is_documented(verb: str) -> None:
    command = command_of(verb)
    assert command.name == verb
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert not [option.opts for option in options if not option.help and not isinstance(option.type, click.Choice)]
    assert any("--json" in option.opts for option in options) == (verb in list_outputs())


@every_verb
def test_the_functions_of_a_verb_are_documented_typed_and_in_the_api(verb: str) -> None:
    functions = functions_of(verb)
    assert functions
    for name, function in functions.items():
        assert inspect.getdoc(function), name
        assert name in dir(api) and getattr(api, name) is function, "`api.py` imports it for checkers of types"
        returned = inspect.signature(function).return_annotation
        assert returned and ("Any" not in returned or name == "schema"), name  # which is JSON


@every_verb
def test_the_options_of_a_function_are_its_parameters(verb: str) -> None:
    for name, function in functions_of(verb).items():
        declared = {parameter.name for parameter in getattr(function, "__click_params__", ())}
        assert declared <= {*inspect.signature(function).parameters}, name


@every_verb_with_json
def test_a_wrong_request_prints_one_error_that_the_schema_describes(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("no folder")
    words = ["no/where" for parameter in command_of(verb).params if isinstance(parameter, click.Argument)]
    schema = api.schema(verb=verb)
    jsonschema.Draft202012Validator.check_schema(schema)
    known = jsonschema.Draft202012Validator(schema)
    for arguments in (words or ["--outputs", "file.txt"], ["--no-such-option"]):
        done = ndld_flow(verb, *arguments, "--json", cwd=tmp_path)
        failure = json.loads(done.stdout)
        known.validate(failure)
        assert (failure["event"], failure["exit_code"], done.returncode) == ("error", 2, 2)
        assert failure["message"].split(":")[0] in done.stderr
        kind = getattr(errors, failure["kind"], click.UsageError)
        assert issubclass(kind, errors.NdldFlowError | click.UsageError)
    others: tuple[Any, ...] = (None, [None], {"event": "said"}, "text", {}, [{}], 3)
    for other in others:
        assert not known.is_valid(other), other
