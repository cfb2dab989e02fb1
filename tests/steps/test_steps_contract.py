"""What every step must keep. Steps are discovered: a new one is tested here without a line being written."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from pydantic import BaseModel, ValidationError

import ndld_flow
from ndld_flow import api
from ndld_flow.base.declared_metrics import Returns, find_metric
from ndld_flow.base.settings import describe_settings, fields_of, synonyms_of
from ndld_flow.recipe.schema import describe_recipes
from ndld_flow.recipe.step_types import StepType
from ndld_flow.records.run_record import RunRecord, StepRecord
from ndld_flow.step import Reads, Reuse, Step
from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Artifact, Onnx
from tests.support.models import make_cnn

TYPES = {step.name: step for step in api.steps()}
INPUTS = {"x": {"shape": [1, 3, 16, 16]}}
"""Of the model the steps are tested on."""

every_step = pytest.mark.parametrize("found", TYPES.values(), ids=TYPES)


def required(step_type: StepType) -> list[str]:
    reads = step_type.cls.marked(Reads)
    return [name for name, info in fields_of(step_type.cls).items() if info.is_required() and name not in reads]


def least_settings(step_type: StepType) -> dict[str, Any]:
    """What a recipe must say at least: which step to read, for settings without a default.

    A step that works as long as a budget lasts gets a small one.
    """
    fields = fields_of(step_type.cls)
    reads = {name: "before" for name in step_type.cls.marked(Reads) if fields[name].is_required()}
    return reads | ({"budget": 1000.0} if "budget" in fields else {})


def with_least_settings(step_type: StepType) -> Step[Any, Any]:
    return step_type.cls.model_validate_json(json.dumps(least_settings(step_type)))


def recipe_for(step_type: StepType) -> dict[str, Any]:
    """A recipe whose last step is the one to test, after a step that makes what it reads."""
    steps: dict[str, Any] = {}
    reads = step_type.cls.kinds()[0]
    if reads is not Onnx:
        maker = next(name for name, other in TYPES.items() if other.cls.kinds()[1] is reads)
        steps["before"] = {"step": maker, **least_settings(TYPES[maker])}
    steps["tested"] = {"step": step_type.name, **least_settings(step_type)}
    return {"name": "contract", "model": "model.onnx", "inputs": INPUTS, "steps": steps}


def run(step_type: StepType, folder: Path, outputs: str) -> RunRecord:
    make_cnn(folder / "model.onnx")
    (folder / "recipe.yaml").write_text(json.dumps(recipe_for(step_type)))
    done = api.run(folder / "recipe.yaml", outputs=folder / outputs)
    return RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())


def check_metrics(step_type: StepType, settings: Step[Any, Any], step: StepRecord) -> None:
    """What a step returned is what it declares, in the units that it declares."""
    declared = step_type.cls.returns
    assert declared is not None, "built-in steps declare their metrics"
    for name, metric in step.metrics.items():
        known = find_metric(name, settings, declared)
        assert isinstance(known, Returns), f"{name}: {known}"
        assert metric.unit == known.unit, name
    certain = {item.name for item in declared if item.given is None and not item.when and "{" not in item.name}
    assert certain <= step.metrics.keys()


def test_there_are_steps() -> None:
    assert {"lint", "sanitize", "convert_fp16", "check_accuracy", "profile", "fix_shapes"} <= set(TYPES)


def test_no_step_asks_which_settings_were_given_when_it_runs() -> None:
    """They travel with all values: in another process, each counts as given. Validators may ask, and these methods,
    which are called when a recipe is read."""
    asking = {
        function.name
        for path in (Path(ndld_flow.__file__).parent / "steps").glob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and "model_fields_set" in ast.unparse(function)
        if not any("validator" in ast.unparse(decorator) for decorator in function.decorator_list)
    }
    assert asking == {"for_engine", "after"}


def test_listing_steps_imports_nothing_heavy() -> None:
    heavy = "{'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'polygraphy', 'tensorrt', 'pandas', 'matplotlib', 'hydra'}"
    code = f"import sys; from ndld_flow import api; api.steps(); assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@every_step
def test_the_header_names_the_kinds_read_and_written(found: StepType) -> None:
    reads, makes = found.cls.kinds()
    assert issubclass(reads, Artifact)
    assert issubclass(makes, Artifact)
    assert found.cls.run is not Step.run
    assert isinstance(found.cls.reuse, Reuse)
    assert isinstance(found.cls.version, int)


@pytest.mark.representatives("quantize", "sanitize", "fix_shapes")
@every_step
def test_it_is_documented(found: StepType) -> None:
    assert found.summary.endswith("."), "the docstring's first line is a sentence"
    assert len(found.summary) < 100
    assert found.cls.__doc__ != Step.__doc__
    for model in models_of(found.cls):
        undescribed = set(model.model_fields) - set(describe_settings(model))
        assert not undescribed, f"{model.__name__}: {undescribed} need docstrings: they become the help and the schema"


def models_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    from ndld_flow.recipe.validate import models_in

    yield model
    for info in model.model_fields.values():
        for inner in models_in(info.annotation):
            yield from models_of(inner)


@every_step
def test_settings_are_strict_and_frozen(found: StepType) -> None:
    assert found.cls.model_config["frozen"] and found.cls.model_config["strict"]
    with pytest.raises(ValidationError):
        found.cls.model_validate_json('{"a_setting_that_no_step_has": 1}')


@every_step
def test_settings_survive_being_written_and_read(found: StepType) -> None:
    if required(found):
        pytest.skip(f"has no default for {required(found)}")
    step = with_least_settings(found)
    assert found.cls.model_validate_json(step.model_dump_json()) == step


@pytest.mark.representatives("edit", "fix_shapes", "convert_fp16")
@every_step
def test_its_help_names_every_setting(found: StepType) -> None:
    from ndld_flow.cli.explain_step import explain_step

    page = click.unstyle(explain_step(found))
    for name in fields_of(found.cls):
        assert f"{name}:" in page


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(describe_recipes(TYPES.values()))


def test_the_schema_is_valid_json_schema(validator: jsonschema.Draft202012Validator) -> None:
    jsonschema.Draft202012Validator.check_schema(validator.schema)


@every_step
def test_the_schema_agrees_with_validation(found: StepType, validator: jsonschema.Draft202012Validator) -> None:
    recipe = {
        "model": "m.onnx",
        "steps": {"a": {"step": found.name, **least_settings(found)}, found.name: least_settings(found)},
    }
    if not required(found):
        assert not list(validator.iter_errors(recipe))
        full = with_least_settings(found).model_dump(mode="json")
        recipe["steps"] = {found.name: full}
        assert not list(validator.iter_errors(recipe))
    recipe["steps"] = {"a": {"step": found.name, "a_setting_that_no_step_has": 1}}
    assert list(validator.iter_errors(recipe))


@pytest.mark.representatives("resnet50", "edit_fuse", "edit_camera")
@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent.parent / "pipelines").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_schema_knows_how_recipes_are_written(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    assert not list(validator.iter_errors(yaml.safe_load(path.read_text())))


@pytest.mark.representatives("profile", "run_tool")
@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found, id=name, marks=pytest.mark.thorough if name in ("compare_profiles", "build_engine") else ())
        for name, found in TYPES.items()
    ],
)
def test_it_runs_by_default_keeps_its_input_and_pure_steps_repeat_their_bytes(found: StepType, in_folder: Path) -> None:
    if required(found):
        pytest.skip(f"has no default for {required(found)}")
    if lacks := with_least_settings(found).foresee().lacks:
        pytest.skip(lacks[0])
    record = run(found, in_folder, "one")
    before = digest_file(make_cnn(in_folder / "again.onnx"))
    assert digest_file(in_folder / "model.onnx") == before
    step = record.steps[-1].record
    assert step is not None
    check_metrics(found, with_least_settings(found), step)
    assert step.summary
    assert "\n" not in step.summary
    assert step.artifact.kind == found.cls.kinds()[1].kind
    if found.cls.kinds() == (Onnx, Onnx):
        assert step.change is not None, "a model-changing step says what it changed"
    if found.cls.reuse is Reuse.ANYWHERE:
        again = run(found, in_folder, "two").steps[-1].record
        assert again is not None
        assert again.artifact == step.artifact


@every_step
def test_words_of_other_tools_lead_to_settings_and_steps_that_exist(found: StepType) -> None:
    fields = fields_of(found.cls)
    for word, setting in synonyms_of(found.cls).items():
        assert setting.partition(".")[0] in fields, setting
        assert word not in fields, "a word for a setting that exists"
    for word in found.cls.also_called:
        assert re.fullmatch(r"[a-z0-9]+", word)
        owners = [name for name, other in TYPES.items() if word in other.cls.also_called]
        assert (owners, word in TYPES) == ([found.name], False)
