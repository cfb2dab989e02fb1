"""The contract of every operation of the step `edit`. Operations are discovered, not listed."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from ndld_flow.base.settings import describe_settings
from ndld_flow.cli.explain_step import explain_part
from ndld_flow.graph.edit.catalogue import entry_type, find_operation, operation_names
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.recipe.validate import models_in
from ndld_flow.steps.edit import Edit
from tests.support.command_line import ndld_flow
from tests.support.editing_fixtures import edit

every_operation = pytest.mark.parametrize("word", operation_names())


def operation_of(word: str) -> type[Operation]:
    operation = find_operation(word)
    assert operation is not None
    return operation


def nested_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    result: set[type[BaseModel]] = set()
    waiting = [model]
    while waiting:
        model = waiting.pop()
        if model not in result:
            result.add(model)
            waiting += [inner for info in model.model_fields.values() for inner in models_in(info.annotation)]
    return result


def examples_of(word: str) -> list[object]:
    """The settings in the docstring's examples: paragraphs that are YAML with the operation's word as the key."""
    paragraphs = (operation_of(word).__doc__ or "").split("\n\n")
    shown = [text for text in paragraphs if text.strip().startswith((f"{word}:", f"- {word}"))]
    loaded = [yaml.safe_load(text) for text in shown]
    return [entry for item in loaded for entry in (item if isinstance(item, list) else [item])]


def test_operations_are_discovered() -> None:
    assert {"rename_nodes", "add_node", "remove_nodes", "extract", "set_attributes"} <= set(operation_names())


def test_reading_a_recipe_imports_only_the_files_of_the_operations_it_uses() -> None:
    code = (
        "import sys; from ndld_flow.steps.edit import Edit\n"
        'Edit.model_validate_json(\'{"operations": [{"rename_nodes": {"select": "a", "to": "b"}}]}\')\n'
        "used = [name for name in sys.modules if name.startswith('ndld_flow.graph.edit.operations.')]\n"
        "assert used == ['ndld_flow.graph.edit.operations.nodes'], used\n"
        "assert not {'onnx', 'onnx_ir', 'numpy', 'onnxscript', 'onnxruntime'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_operation_imports_a_heavy_library_before_it_runs() -> None:
    code = (
        "import sys; from ndld_flow.steps.edit import Edit; Edit.model_json_schema()\n"
        "assert not {'onnx', 'onnx_ir', 'numpy', 'onnxscript', 'onnxruntime'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.representatives("name_all", "add_node", "set_opset")
@every_operation
def test_every_operation_is_documented(word: str) -> None:
    operation = operation_of(word)
    summary = (inspect.getdoc(operation) or "").partition("\n")[0]
    assert summary.endswith("."), "the docstring's first line is a sentence"
    assert len(summary) < 110
    for model in nested_models(operation):
        undescribed = set(model.model_fields) - set(describe_settings(model))
        assert not undescribed, f"{model.__name__}: {undescribed} need docstrings: they become the help and the schema"


@pytest.mark.representatives("cut", "rewire", "connect")
@every_operation
def test_examples_give_the_documented_results(word: str) -> None:
    examples = examples_of(word)
    assert examples, f"the docstring of {word} shows no example that begins with `{word}:`"
    for example in examples:
        entry = Edit.model_validate({"operations": (example,)}).operations[0]
        assert entry.name == word


@every_operation
def test_nothing_selected_is_an_error_by_default(word: str) -> None:
    field = operation_of(word).model_fields.get("allow_empty")
    assert field is None or field.default is False


@every_operation
def test_settings_are_strict_and_frozen(word: str) -> None:
    operation = operation_of(word)
    assert operation.model_config["frozen"] and operation.model_config["strict"]
    with pytest.raises(ValidationError):
        entry_type(word).model_validate({word: {"a_setting_that_no_operation_has": 1}})


@pytest.mark.representatives("cut", "assert", "extract")
@every_operation
def test_settings_survive_serialization(word: str) -> None:
    for example in examples_of(word):
        step = Edit.model_validate({"operations": (example,)})
        assert Edit.model_validate_json(step.model_dump_json()) == step


def test_the_schema_accepts_exactly_the_valid_settings() -> None:
    def takes(*operations: object) -> bool:
        result = validator.is_valid({"operations": list(operations)})
        assert result or not is_sound(list(operations)), f"refused, and sound: {operations}"
        return result

    validator = jsonschema.Draft202012Validator(Edit.model_json_schema())
    assert takes("remove_noops") and takes({"remove_noops": None}) and takes({"remove_noops": {}})
    for word in operation_names():
        assert takes(*examples_of(word))
        assert not takes({word: {"a_setting_that_no_operation_has": 1}})
    assert not takes("insert_node") and not takes({"insert_node": None})
    assert not takes("remove_nops") and not takes({"remove_nops": {}})
    assert not takes({"remove_noops": {}, "name_all": {}}) and not takes({}) and not takes()


def is_sound(operations: list[object]) -> bool:
    try:
        Edit.model_validate_json(json.dumps({"operations": operations}))
    except ValidationError:
        return False
    return True


@pytest.mark.representatives("assert", "set_shapes", "wrap_in_if")
@every_operation
def test_help_names_every_setting(word: str) -> None:
    page = click.unstyle(explain_part(word, operation_of(word)))
    for name in operation_of(word).model_fields:
        assert f"  {name}:" in page


TOY = '''
from ndld_flow.graph.edit.operation import Operation

class Sign(Operation):
    """Sign the model."""
    name: str = "me"
    """Whose name."""
    def apply(self, edited):
        edited.model.doc_string = self.name
        return "signed"
'''


def test_a_package_offers_its_operations_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_operations.py").write_text(TOY)
    info = tmp_path / "toy_operations-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-operations\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("[ndld_flow.operations]\nsign = toy_operations:Sign\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for cached in (operation_names, find_operation):
        cached.cache_clear()
    try:
        step = Edit.model_validate_json('{"operations": [{"sign": {"name": "Ada"}}]}')
        version = step.library_versions()["operation sign"]
        assert version.startswith("1 toy-operations 2.1 ")  # of code that is not installed, a digest too
        assert edit("g (float[1] x) => (float[1] y) { y = Relu(x) }", {"sign": {}}).doc_string == "me"
    finally:
        for cached in (operation_names, find_operation):
            cached.cache_clear()


def test_the_help_of_edit_has_no_heading_without_operations(tmp_path: Path) -> None:
    text = ndld_flow("steps", "edit", cwd=tmp_path).stdout.partition("explained by")[2]
    sections = text.strip().split("\n\n")[2:]  # after those without heading
    assert len(sections) > 3
    for section in sections:
        heading, *operations = section.splitlines()
        assert operations
        assert re.match(r"  \S", heading)
