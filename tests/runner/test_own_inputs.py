"""Inputs of single steps: models with other inputs than the source, mistakes found before anything runs, keys."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from jsonschema import ValidationError as SchemaError

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.base.settings import describe_settings
from ndld_flow.execution.events import Event, Notice, RunFailed
from ndld_flow.execution.keys import describe_key, make_key
from ndld_flow.inputs import InputSpec, shape_override
from ndld_flow.recipe.schema import describe_recipes
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models_run import write_model
from tests.support.recipes import load_recipe
from tests.support.toys import Toy, outcomes, started
from tests.support.typed_api import run_once

GRAPH = "g (float[n, 4] x) => (float[n, 4] y) { middle = Relu(x) y = Sigmoid(middle) }"
CUT = """
name: halves
model: model.onnx
inputs: {x: {shape: [2, 4]}}
steps:
  whole: {step: check_accuracy, candidate: source}
  tail: {step: edit, from: source, operations: [extract: {inputs: [middle], outputs: [y]}]}
  half: {step: check_accuracy, reference: tail, candidate: tail, inputs: {middle: {data: middle.npy}}}
"""


@pytest.fixture
def toy(in_folder: Path) -> Toy:
    write_model(in_folder / "model.onnx", GRAPH)
    np.save(in_folder / "middle.npy", np.ones((3, 4), np.float32))
    return Toy(in_folder).write(CUT)


def described(toy: Toy, step: str) -> str:
    (path,) = (toy.folder / "outputs/runs").glob(f"*/latest/{step}/accuracy.json")
    return str(json.loads(path.read_text())["inputs"])


def mistakes(toy: Toy, recipe: str) -> str:
    toy.write(recipe)
    with pytest.raises(RecipeError) as error:
        load_recipe(toy.recipe)
    return str(error.value)


def key(toy: Toy, recipe: str) -> str:
    toy.write(recipe)
    loaded = load_recipe(toy.recipe)
    step = loaded.steps[-1]
    reads = dict.fromkeys(step.reads, "ab" * 32)
    return make_key(describe_key(step, reads, loaded.file.inputs, Store(toy.folder / "store")))


def test_half_of_a_model_runs_on_inputs_of_its_own(toy: Toy) -> None:
    _, events = toy.run()
    assert outcomes(events) == {"whole": "done", "tail": "done", "half": "done"}
    assert "random uniform" in described(toy, "whole")
    assert "middle.npy, float32 3x4" in described(toy, "half")
    np.save("middle.npy", np.zeros((3, 4), np.float32))
    assert {name for name, (reason, _) in toy.plan().items() if reason != "reused"} == {"half"}


def test_own_inputs_are_written_to_the_recipe_of_the_run(toy: Toy) -> None:
    toy.run()
    resolved = next((toy.folder / "outputs/runs").glob("*/latest/recipe.yaml"))
    half = load_recipe(resolved).steps[-1]
    assert half.inputs is not None
    assert half.inputs["middle"].data == str(toy.folder / "middle.npy")


def test_profile_finds_sizes_that_the_model_accepts(toy: Toy) -> None:
    """With 1 for each, as a recipe has without them, no window fits."""
    write_model(
        Path("free.onnx"), "g (float[n, 3, h, w] x) => (float[] y) { y = AveragePool<kernel_shape = [5, 5]>(x) }"
    )
    events: list[Event] = []
    profiled = api.profile(
        "free.onnx", ["runs=1", "passes=1", "layer_passes=0", "duration=0", "stable=0"], listener=events.append
    )
    (shape,) = [item.shape for item in profiled.profile.inputs]
    assert shape[1] == 3
    assert min(shape[2:]) >= 5
    assert "x".join(map(str, shape)) in next(event.text for event in events if isinstance(event, Notice))


def test_own_inputs_are_overridden_by_their_place(toy: Toy) -> None:
    short = toy.recipe.read_text().replace("{middle: {data: middle.npy}}", "{middle: middle.npy}")
    assert load_recipe(toy.write(short).recipe).steps == load_recipe(toy.write(CUT).recipe).steps
    (half,) = load_recipe(toy.recipe, ["steps.half.inputs.middle.data=zeros"]).steps[2:]
    assert half.inputs is not None
    assert half.inputs["middle"].data == "zeros"


def test_equal_inputs_give_equal_keys_wherever_they_are_written(toy: Toy) -> None:
    head, step = "name: a\nmodel: model.onnx\n", "steps: {profile: {%s}}\n"
    own = "inputs: {x: {shape: [2, 4], data: %s}}"
    shared = key(toy, head + own % "ones" + "\n" + step % "")
    assert key(toy, head + step % (own % "ones")) == shared
    assert key(toy, head + step % (own % "zeros")) != shared
    both = f"{head}inputs: {{x: {{shape: [3, 4]}}}}\nsteps: {{lint: {{}}, profile: {{from: source, {own % 'ones'}}}}}\n"
    assert key(toy, both) == shared


def test_an_input_that_no_step_reads_is_a_mistake(toy: Toy, check_message: CheckMessage) -> None:
    text = mistakes(
        toy, "name: a\nmodel: model.onnx\ninputs: {x: {}}\nsteps: {profile: {inputs: {x: {data: zeros}}}}\n"
    )
    check_message(text)
    load_recipe(toy.write("name: a\nmodel: model.onnx\ninputs: {x: {}}\nsteps: {sanitize: {}}\n").recipe)


def test_steps_that_read_no_inputs_have_none(toy: Toy, check_message: CheckMessage) -> None:
    head = "name: a\nmodel: model.onnx\n"
    check_message(mistakes(toy, f"{head}steps: {{sanitize: {{inputs: {{x: {{}}}}}}}}\n"))
    check_message(mistakes(toy, f"{head}steps: {{quantize: {{mode: dynamic, inputs: {{x: {{}}}}}}}}\n"))
    load_recipe(toy.write(f"{head}steps: {{profile: {{inputs: {{}}}}}}\n").recipe)


def test_mistakes_in_own_inputs_are_reported_with_their_place(toy: Toy, check_message: CheckMessage) -> None:
    text = mistakes(toy, "name: a\nmodel: model.onnx\nsteps: {profile: {inputs: {x: {resise: crop}}}}\n")
    check_message(text)
    check_message(mistakes(toy, "name: a\nmodel: model.onnx\nsteps: {profile: {inputs: 3}}\n"))


@pytest.mark.parametrize(
    "recipe",
    [
        "inputs: {X: {}}\nsteps: {half: {step: convert_fp16}, check: {step: check_accuracy, candidate: half}}",
        "steps: {half: {step: convert_fp16}, speed: {step: profile, inputs: {y: {}}}}",
    ],
)
def test_unknown_inputs_are_found_before_anything_runs(toy: Toy, recipe: str, check_message: CheckMessage) -> None:
    toy.write(f"name: a\nmodel: model.onnx\n{recipe}\n")
    events: list[Event] = []
    with pytest.raises(RequestError) as error:
        run_once(toy.recipe, outputs=toy.folder / "outputs", listener=events.append)
    check_message(error.value)
    assert started(events) == []


@pytest.mark.parametrize(
    ("inputs", "line", "path"),
    [
        ("x: {shape: [2, 5]}", 4, "inputs.x"),
        ("x: {shape: [2, 4, 1]}", 4, "inputs.x"),
        ("x: {min: [1, 4], opt: [2, 4], max: [3, 5]}", 4, "inputs.x"),
        ("x: {data: wide.npy}", 4, "inputs.x"),
        ("x: {data: whole.npy}", 4, "inputs.x"),
        ("z: {shape: [2, 4]}", 4, "inputs.z"),
    ],
)
def test_inputs_that_the_model_does_not_accept_are_found_by_a_plan(toy: Toy, inputs: str, line: int, path: str) -> None:
    np.save(toy.folder / "wide.npy", np.ones((3, 5), np.float32))
    np.save(toy.folder / "whole.npy", np.ones((3, 4), np.int64))
    toy.write(f"name: a\nmodel: model.onnx\ninputs:\n  {inputs}\nsteps: {{sanitize: {{}}, profile: {{}}}}\n")
    for verb in api.plan, api.run:
        with pytest.raises(RecipeError) as error:
            verb(toy.recipe, outputs=toy.folder / "outputs")
        (problem,) = error.value.problems
        assert (problem.path, problem.line) == (path, line)
    with pytest.raises(RecipeError) as error:
        api.plan(toy.recipe, ["~inputs", "+inputs.x.shape=[2,9]"], outputs=toy.folder / "outputs")
    assert error.value.problems[0].where.startswith("override")


def test_inputs_that_points_of_a_sweep_do_not_accept_are_found_by_a_plan(toy: Toy) -> None:
    sweep = "sweep:\n  over:\n    inputs.x.shape: [[2, 4], [2, 9]]\n"
    toy.write(f"name: a\nmodel: model.onnx\ninputs: {{x: {{}}}}\nsteps: {{profile: {{}}}}\n{sweep}")
    for verb in api.plan, api.run:
        with pytest.raises(RecipeError) as error:
            verb(toy.recipe, outputs=toy.folder / "outputs")
        (problem,) = error.value.problems
        assert (problem.path, problem.line) == ("inputs.x", 7)


@pytest.mark.parametrize(
    "inputs",
    [
        "x: {shape: [2, 4]}",
        "x: {data: items.npy}",  # three samples
        "x: {data: doubles.npy}",
        "x: {data: middle.npy}",
        "x: {data: 0.5}",
    ],
)
def test_inputs_that_the_model_accepts_are_planned(toy: Toy, inputs: str) -> None:
    np.save(toy.folder / "items.npy", np.ones((3, 2, 4), np.float32))
    np.save(toy.folder / "doubles.npy", np.ones((3, 4)))
    toy.write(f"name: a\nmodel: model.onnx\ninputs:\n  {inputs}\nsteps: {{sanitize: {{}}, profile: {{}}}}\n")
    assert api.plan(toy.recipe, outputs=toy.folder / "outputs")


def test_inputs_of_a_model_that_another_step_makes_are_not_judged_by_the_source(toy: Toy) -> None:
    edit = "e: {step: edit, operations: [set_input_shape: {input: x, shape: [2, 4]}]}"
    toy.write(f"name: a\nmodel: model.onnx\ninputs: {{x: {{shape: [2, 9]}}}}\nsteps: {{{edit}, profile: {{}}}}\n")
    try:
        api.plan(toy.recipe, outputs=toy.folder / "outputs")
    except RecipeError as error:
        assert all(not problem.path.startswith("inputs") for problem in error.problems)


@pytest.mark.parametrize(
    "axes",
    [
        "{inputs.X.shape: [[1, 4], [2, 4]], steps.half.keep_io: [true, false]}",
        "{model: [missing.onnx, model.onnx], steps.half.keep_io: [true, false]}",
        "{steps.half.keep_io: [true, false]}",
    ],
)
def test_unknown_inputs_of_points_are_found_before_anything_runs(toy: Toy, axes: str) -> None:
    steps = "half: {step: convert_fp16}, check: {step: check_accuracy, candidate: half}"
    given = "{x: {}}" if "X" in axes else "{x: {}, X: {}}"
    own = "speed: {step: profile, inputs: {y: {}}}"
    toy.write(f"name: a\nmodel: model.onnx\ninputs: {given}\nsteps: {{{steps}, {own}}}\nsweep: {{over: {axes}}}\n")
    events: list[Event] = []
    with pytest.raises(RequestError) as error:
        api.run(toy.recipe, outputs=toy.folder / "outputs", listener=events.append)
    assert isinstance(error.value, RecipeError)
    assert [problem.path for problem in error.value.problems] == ["inputs.X", "steps.speed.inputs.y"]
    assert started(events) == []


def test_inputs_of_an_edited_model_are_checked_when_it_exists(toy: Toy) -> None:
    toy.write(CUT.replace("inputs: {middle: {data: middle.npy}}", "inputs: {midle: {}}"))
    with pytest.raises(RecipeError) as error:
        toy.run()
    (problem,) = error.value.problems
    assert problem.line == 1 + CUT.partition("inputs: {middle")[0].count("\n")
    assert problem.path.endswith("inputs.midle")
    assert "middle" in problem.hint
    assert error.value.step


def test_a_shape_that_an_edited_model_does_not_accept_is_reported_with_its_line(toy: Toy) -> None:
    toy.write(CUT.replace("inputs: {middle: {data: middle.npy}}", "inputs: {middle: {shape: [1, 2, 3, 4, 5]}}"))
    with pytest.raises(RecipeError) as error:
        toy.run()
    (problem,) = error.value.problems
    assert problem.line == 1 + CUT.partition("inputs: {middle")[0].count("\n")
    assert problem.path.endswith("inputs.middle")


def test_inputs_have_no_patterns_and_their_help_shows_none(toy: Toy) -> None:
    toy.write('name: a\nmodel: model.onnx\ninputs: {"x*": {from: "y*"}}\nsteps: {speed: {step: profile, steps: 3}}\n')
    with pytest.raises(RecipeError) as error:
        api.plan(toy.recipe, outputs=toy.folder / "outputs")
    assert [problem.path for problem in error.value.problems] == ["inputs.x*"]
    assert "*" not in (describe_settings(InputSpec)["fed_from"])


def test_a_recipe_that_is_refused_before_anything_is_computed_leaves_no_run(toy: Toy) -> None:
    toy.write("name: a\nmodel: model.onnx\ninputs: {X: {}}\nsteps: {sanitize: {}, speed: {step: profile}}\n")
    events: list[Event] = []
    with pytest.raises(RecipeError):
        run_once(toy.recipe, outputs=toy.folder / "outputs", listener=events.append)
    assert not any(isinstance(event, RunFailed) for event in events)
    assert not list((toy.folder / "outputs/runs").glob("*"))


def test_an_override_in_an_error_sets_the_inputs_that_the_failing_step_reads(
    toy: Toy, check_message: CheckMessage
) -> None:
    weights = f"<float[4,3,3,3] w = {{{','.join(['0.1'] * 108)}}}>"
    write_model(
        toy.folder / "model.onnx", f"g (float[n,3,h,w_] x) => (float[n,4,a,b] y) {weights} {{ y = Conv(x, w) }}"
    )
    toy.write(
        "name: a\nmodel: model.onnx\nsteps: {agree: {step: check_accuracy, candidate: source, inputs: {x: {}}}}\n"
    )
    with pytest.raises(RequestError) as error:
        toy.run()
    check_message(error.value)
    (override,) = re.findall(r"'(steps\.agree\.inputs\.x\.shape=[^']*)'", error.value.message)
    assert outcomes(toy.run(override)[1]) == {"agree": "done"}


@pytest.mark.representatives("-onnx::Gather_0", "steps.speed.-input.1")
@pytest.mark.parametrize("name", ["x", "input.1", "onnx::Gather_0", "a/b c\\d"])
@pytest.mark.parametrize("place", ["", "steps.speed."])
def test_the_override_of_a_shape_works_for_every_name(toy: Toy, name: str, place: str) -> None:
    toy.write("name: a\nmodel: model.onnx\nsteps: {speed: {step: profile}}\n")
    (override,) = shlex.split(shape_override(name, "[1,4]"))
    recipe = load_recipe(toy.recipe, [place + override])
    inputs = recipe.steps[0].inputs if place else recipe.file.inputs
    assert inputs is not None
    assert {name: spec.shape for name, spec in inputs.items()} == {name: (1, 4)}


def test_messages_of_a_repeating_step_name_all_owners_of_its_inputs(toy: Toy) -> None:
    speeds = "a: {step: profile, inputs: {x: {}}}, b: {step: profile, from: source, inputs: {x: {}}}"
    toy.write(f"name: a\nmodel: model.onnx\nsteps: {{{speeds}, c: {{step: compare_profiles, base: a, from: b}}}}\n")
    compared = load_recipe(toy.recipe).steps[2]
    assert compared.locate_inputs("the recipe's `inputs:`, try 'inputs.x.shape=[1]' on 'inputs.onnx'") == (
        "`steps.a.inputs:` and `steps.b.inputs:`, try 'steps.a.inputs.x.shape=[1]' 'steps.b.inputs.x.shape=[1]' "
        "on 'inputs.onnx'"
    )


@pytest.mark.thorough
def test_the_schema_allows_inputs_of_steps_that_read_any() -> None:
    schema = Draft202012Validator(describe_recipes(StepTypes()))
    step = {"step": "profile", "inputs": {"x": "random", "y": {"data": 1, "resize": "crop"}}}
    schema.validate({"model": "m.onnx", "inputs": {"x": 1}, "steps": {"speed": step}})
    for wrong in ({"step": "sanitize", "inputs": {}}, {"step": "profile", "inputs": {"x": {"resize": "fill"}}}):
        with pytest.raises(SchemaError):
            schema.validate({"model": "m.onnx", "steps": {"speed": wrong}})


def test_shapes_that_a_step_sets_need_not_be_those_of_the_model(toy: Toy) -> None:
    steps = "steps: {fixed: {step: fix_shapes}, speed: {step: profile, from: fixed}}"
    toy.write(f"name: a\nmodel: model.onnx\ninputs: {{x: {{shape: [2, 9]}}}}\n{steps}\n")
    assert api.plan(toy.recipe, outputs=toy.folder / "outputs")
    toy.write(f"name: a\nmodel: model.onnx\ninputs: {{z: {{shape: [2, 9]}}}}\n{steps}\n")
    with pytest.raises(RecipeError):
        api.plan(toy.recipe, outputs=toy.folder / "outputs")
