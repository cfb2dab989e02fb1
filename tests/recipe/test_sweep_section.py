"""A recipe's `sweep:`: every form of an axis, overrides that sweep, and every mistake reported with its place."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RecipeError
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.overrides import AxisError, read_axis
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.resolved import resolve_recipe, write_yaml
from ndld_flow.recipe.schema import describe_recipes
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.sweep_search.search import Saturation
from ndld_flow.sweep_search.space import Choices, Numbers
from tests.support.message_files import CheckMessage
from tests.support.recipes import load_recipe
from tests.support.toys import RECIPE, STAMP


@pytest.fixture
def folder(in_folder: Path) -> Path:
    (in_folder / "steps").mkdir()
    (in_folder / "steps" / "stamp.py").write_text(STAMP)
    return in_folder


def load(folder: Path, sweep: str, *overrides: str, multirun: tuple[str, ...] = (), recipe: str = RECIPE) -> Sweep:
    result = load_any(folder, sweep, *overrides, multirun=multirun, recipe=recipe)
    assert isinstance(result, Sweep)
    return result


def load_any(
    folder: Path, sweep: str, *overrides: str, multirun: tuple[str, ...] = (), recipe: str = RECIPE
) -> Recipe | Sweep:
    (folder / "toy.yaml").write_text(recipe + sweep)
    return load_sweep(folder / "toy.yaml", [*overrides, *multirun], multirun=bool(multirun), trust=True)


def mistakes(folder: Path, sweep: str, *overrides: str, multirun: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_any(folder, sweep, *overrides, multirun=multirun)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


WHOLE = """\
sweep:
  over:
    first.seconds: [1, 2]
    steps.second.word: "basic,'a,b',64 MiB"
    aside.seconds: {from: 1, to: 9, step: 2}
    variant:
      plain: {second.from: first}
      other: {second.from: source, first.word: q}
  method: tpe
  points: 40
  time: 20 min
  seed: 3
  exclude: [{first.seconds: 2, variant: [plain]}, {steps.aside.seconds: [3, 5]}]
  minimize: [second.length, 2 * first.length]
  maximize: aside.length
  subject_to: ["second.length >= 2"]
  saturation: {gain: 2 %, along: second.word}
  timeout: {first: 10 min}
needs: {second: {gpus: 1, device: A100}}
"""


def test_a_section_becomes_a_space_and_a_search(folder: Path) -> None:
    sweep = load(folder, WHOLE)
    assert sweep.space.axes == (
        Choices("first.seconds", (1, 2)),
        Choices("steps.second.word", ("basic", "a,b", "64 MiB")),
        Numbers("aside.seconds", 1, 9, 2, integer=True),
        Choices("variant", ("plain", "other")),
    )
    assert [axis.keys for axis in sweep.axes] == [
        ("steps.first.seconds",),
        ("steps.second.word",),
        ("steps.aside.seconds",),
        ("steps.second.from", "steps.first.word"),
    ]
    assert sweep.space.exclude == ({"first.seconds": (2,), "variant": ("plain",)}, {"aside.seconds": (3, 5)})
    assert (sweep.options.method, sweep.options.points, sweep.options.seed) == ("tpe", 40, 3)
    assert sweep.options.directions == ("minimize", "minimize", "maximize")
    assert sweep.options.saturation == Saturation(0.02, 2, "steps.second.word")
    assert [objective.text for objective in sweep.objectives] == ["second.length", "2 * first.length", "aside.length"]
    assert [gate.text for gate in sweep.constraints] == ["second.length >= 2"]
    assert sweep.section.time == 20 * 60e3
    assert sweep.section.timeout_ms("first") == 600e3
    assert sweep.section.timeout_ms("second") is None
    assert sweep.base.file.needs["second"].gpus == 1


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("1,2,4", Choices("k", (1, 2, 4))),
        ("a, 'b,c' ,null,true,1.5", Choices("k", ("a", "b,c", None, True, 1.5))),
        ("[1,2],[],{a: {b: 'c'}}", Choices("k", ([1, 2], [], {"a": {"b": "c"}}))),
        ("choice(a)", Choices("k", ("a",))),
        ("sort(3,1,2)", Choices("k", (1, 2, 3))),
        ("range(1,9,2)", Numbers("k", 1, 7, 2, integer=True)),
        ("range(9,1,-2)", Numbers("k", 3, 9, 2, integer=True)),
        ("range(4)", Numbers("k", 0, 3, 1, integer=True)),
        ("range(0.1,1,0.3)", Numbers("k", 0.1, 0.7, 0.3)),
        ("range(0,1,0.1)", Numbers("k", 0, 0.9, 0.1)),
        ("range(0,1000000000)", Numbers("k", 0, 999_999_999, 1, integer=True)),
        ("interval(0.1,2)", Numbers("k", 0.1, 2.0)),
        ("int(interval(1,8))", Numbers("k", 1, 8, integer=True)),
        ("tag(log,interval(1,100))", Numbers("k", 1.0, 100.0, log=True)),
    ],
)
def test_axes_as_text_use_the_grammar_of_hydra(text: str, axis: Choices | Numbers) -> None:
    assert read_axis("k", text) == axis


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "glob(*)",
        "shuffle(1,2)",
        "range(1,1)",
        "range(1,9,0)",
        "range(0,9,0.000000001)",
        "range(0,1e400)",
        "interval(5,1)",
        "interval(0,inf)",
        "tag(log,interval(0,1))",
        "tag(fun,choice(1,2))",
        "1,",
        "[" * 1000,
        "str(range(1,4))",
    ],
)
def test_text_that_is_no_axis_is_refused(text: str, check_message: CheckMessage) -> None:
    with pytest.raises(AxisError) as caught:
        read_axis("k", text)
    check_message(caught.value)


@settings(deadline=None, max_examples=20)
@given(st.text(st.sampled_from("range(choice)interval,1.2'\"[]{}:a \\$-e"), max_size=30))
def test_the_grammar_raises_only_its_own_error_on_any_text(text: str) -> None:
    try:
        axis = read_axis("k", text)
    except AxisError:
        return
    assert isinstance(axis, Choices | Numbers)


def test_axes_on_the_command_line_replace_and_add(folder: Path) -> None:
    sweep = load(
        folder,
        WHOLE.replace("aside.seconds: [3, 5]", "aside.seconds: 5"),
        multirun=("steps.first.seconds=2,3", "+second.seconds=range(0,2)", "sweep.points=7", "steps.first.passed=true"),
    )
    assert sweep.space.axes[0] == Choices("first.seconds", (2, 3)), "the recipe's axis, with other values"
    assert [axis.name for axis in sweep.axes[1:]] == ["steps.second.word", "aside.seconds", "variant", "second.seconds"]
    assert sweep.options.points == 7
    alone = load(folder, WHOLE, "~sweep", multirun=("steps.first.seconds=2,3",))
    assert alone.space.axes == (Choices("steps.first.seconds", (2, 3)),)
    assert alone.options.method == "grid"
    plain = load(folder, "", multirun=("first.seconds=2,3", "sweep.minimize=second.length"))
    assert plain.options.directions == ("minimize",)


PICKED = """\
sweep:
  over:
    first.seconds: [1, 2]
    aside.seconds: {from: 1, to: 9}
    variant: {plain: {second.from: first}, other: {second.from: source}}
  exclude: [{first.seconds: 2, variant: plain}, {variant: [other], first.seconds: [1, 2], aside.seconds: 3}]
"""


@pytest.mark.representatives("False-overrides3-axes3-2", "False-overrides8-axes8-0")
@pytest.mark.parametrize(
    ("multirun", "overrides", "axes", "start"),
    [
        (True, ["variant=plain,other", "first.seconds=2,3"], {"first.seconds": (2, 3)}, 0),
        (True, ["variant=other"], {"variant": ("other",)}, 0),
        (False, ["variant=plain"], {"variant": ("plain",)}, 0),
        (False, ["steps.first.seconds=2"], {"first.seconds": (2,)}, 2),
        (False, ["first.seconds=7", "first.seconds=2"], {"first.seconds": (2,)}, 2),
        (True, ["first.seconds=7", "first.seconds=2,3"], {"first.seconds": (2, 3)}, 7),
        (True, ["first.seconds=2,3", "first.seconds=7"], {"first.seconds": (7,)}, 7),
        (False, ["sweep.over.first.seconds=[4, 5]"], {"first.seconds": (4, 5)}, 0),
        (False, ["sweep.over.steps.first.seconds=4,5"], {"first.seconds": (4, 5)}, 0),
        (False, ["sweep.over.second.word=[p]"], {"second.word": ("p",)}, 0),
        (False, ["~sweep.over.aside.seconds"], {"aside.seconds": None}, 0),
        (False, ["sweep.over.variant.third={second.word: z}"], {"variant": ("plain", "other", "third")}, 0),
    ],
)  # fmt: skip
def test_an_axis_of_the_recipe_is_changed_on_the_command_line(
    folder: Path, multirun: bool, overrides: list[str], axes: dict[str, Any], start: float
) -> None:
    (folder / "toy.yaml").write_text(RECIPE + PICKED)
    if overrides[0].startswith("~"):
        (folder / "toy.yaml").write_text(RECIPE + PICKED.replace(", aside.seconds: 3", ""))
    sweep = load_sweep(folder / "toy.yaml", overrides, multirun=multirun, trust=True)
    assert isinstance(sweep, Sweep)
    result = {axis.name: axis.values for axis in sweep.space.axes if isinstance(axis, Choices)}
    usual = {"first.seconds": (1, 2), "variant": ("plain", "other")}
    assert result == {name: values for name, values in (usual | axes).items() if values}
    assert sweep.base.steps[0].settings["seconds"] == start
    if "aside.seconds" not in axes:
        assert Numbers("aside.seconds", 1, 9, integer=True) in sweep.space.axes
    (folder / "again.yaml").write_text(write_yaml(sweep.resolve({"source": "0" * 64}), "resolved"))
    again = load_sweep(folder / "again.yaml", trust=True)
    assert isinstance(again, Sweep)
    assert again.space == sweep.space


@pytest.mark.parametrize(
    "override",
    [
        "variant=plian",
        "variant=range(1,3)",
        "~sweep.over.frist.seconds",
        "sweep.over.aside.seconds.to=0",
        "sweep.over.first.seconds=3",
        "sweep.over.first.seconds=[",
        "sweep.over.first={seconds: [1, 2]}",
        "hydra.sweeper.n_jobs=2",
        "hydra/sweeper=optuna",
        "seconds=1,2",
    ],
)
def test_an_invalid_change_of_an_axis_is_reported(folder: Path, override: str, check_message: CheckMessage) -> None:
    texts = mistakes(folder, PICKED, multirun=(override,))
    check_message("\n".join(texts))
    assert all(problem.startswith(f'override "{override}"') for problem in texts), texts


def test_presets_of_sweeps_do_not_prevent_a_run_without_one(folder: Path) -> None:
    (folder / "configs/sweep").mkdir(parents=True)
    (folder / "configs/sweep/pace.yaml").write_text("over: {first.seconds: [1, 2]}\n")
    assert isinstance(load_any(folder, PICKED, "~sweep"), Recipe)
    swept = load(folder, "", recipe="defaults: [{sweep: pace}, _self_]\n" + RECIPE)
    assert [axis.name for axis in swept.axes] == ["first.seconds"]


def test_names_cannot_inject_lines(folder: Path) -> None:
    [result] = mistakes(folder, 'sweep: {over: {"first\\n.\\e[31mx": [1]}}\n')
    assert result.isprintable() or result.count("\n") == 1


def test_without_a_sweep_it_is_a_recipe(folder: Path) -> None:
    for item in (
        load_any(folder, ""),
        load_any(folder, WHOLE, "~sweep"),
        load_any(folder, "sweep: null\n"),
        load_any(folder, "", multirun=("steps.first.word=z",)),
    ):
        assert isinstance(item, Recipe)
        assert item.file.sweep is None
    assert isinstance(item, Recipe)
    assert item.steps[0].settings["word"] == "z"


def test_a_sweep_does_not_change_the_recipe(folder: Path) -> None:
    alone = load_any(folder, "")
    swept = load_any(folder, WHOLE, "~sweep", "~needs")
    assert isinstance(alone, Recipe)
    assert isinstance(swept, Recipe)
    digests = {"source": "0" * 64}
    assert resolve_recipe(alone, digests) == resolve_recipe(swept, digests)


def test_a_resolved_sweep_is_the_same_sweep(folder: Path) -> None:
    sweep = load(folder, WHOLE, multirun=("aside.word=x,'y,z'",))
    resolved = resolve_recipe(sweep.base, {"source": "0" * 64})
    again = load(folder, "", recipe=write_yaml(resolved, "resolved"))
    assert again.section == sweep.section
    assert again.space == sweep.space
    point: dict[str, Any] = {
        "first.seconds": 1,
        "steps.second.word": "a,b",
        "aside.seconds": 3,
        "variant": "plain",
        "aside.word": "x",
    }
    assert again.point(point).steps == sweep.point(point).steps
    assert "sweep" not in resolve_recipe(sweep.point(point), {"source": "0" * 64})


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_all_mistakes_are_reported_together(folder: Path) -> None:
    sweep = """\
sweep:
  over:
    frist.word: [a]
    first.wrod: [a, b]
    first.seconds: [1, slow, 1]
    second.seconds: {from: 3, to: 1}
    aside.word: basic
    name: [a, b]
    variant:
      a: {second.passed: yes, aside.passed: 3}
      b: {second.passed: 1}
  points: 0
  minimise: first.length
  exclude: [{second.word: 3, frist.word: a, fyrst: 2}]
"""
    for mistake, (where, fact) in zip(
        mistakes(folder, sweep),
        (
            ("toy.yaml:12: sweep.over.frist.word: ", 'did you mean "first"?'),
            ("toy.yaml:13: sweep.over.first.wrod: ", 'did you mean "word"?'),
            ("toy.yaml:14: sweep.over.first.seconds.2: ", "1 is given twice"),
            ("toy.yaml:14: sweep.over.first.seconds.1: ", "a number, found 'slow'"),
            ("toy.yaml:15: sweep.over.second.seconds: ", "`from` (3) is larger than `to` (1)"),
            ("toy.yaml:16: sweep.over.aside.word: ", "write `1,2,4`, `choice(a,b)`, `range(1,9,2)`"),
            ("toy.yaml:17: sweep.over.name: ", "varies model, models, inputs, runtime, steps, gates"),
            ("toy.yaml:19: sweep.over.variant.a.aside.passed: ", "true or false, found 3"),
            ("toy.yaml:20: sweep.over.variant.b.second.passed: ", "write true"),
            ("toy.yaml:21: sweep.points: ", "at least 1, found 0"),
            ("toy.yaml:22: sweep.minimise: ", 'did you mean "minimize"?'),
            ("toy.yaml:23: sweep.exclude.0.second.word: ", 'did you mean "second.seconds"?'),
            ("toy.yaml:23: sweep.exclude.0.fyrst: ", "first.wrod, frist.word, name, second.seconds, variant"),
        ),
        strict=True,
    ):
        assert mistake.startswith(where) and fact in mistake


GOOD = (
    "sweep:\n  over: {first.seconds: [1, 2], second.seconds: {from: 0, to: 1, step: 0.5}}\n  minimize: second.length\n"
)


@pytest.mark.representatives("[1, 2]-'3'", "[1, 2]-{}")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("first.seconds:", "frist.seconds:"),
        ("first.seconds:", "steps.frist.seconds:"),
        ("first.seconds:", "first.secnds:"),
        ("first.seconds: [1, 2]", "name: [a, b]"),
        ("first.seconds: [1, 2]", "sweep.points: [1, 2]"),
        ("first.seconds: [1, 2]", "steps: [{}]"),
        ("[1, 2]", "[1, two]"),
        ("[1, 2]", "'1,two'"),
        ("[1, 2]", "[1, 1.0]"),
        ("[1, 2]", "[]"),
        ("[1, 2]", "{}"),
        ("[1, 2]", "3"),
        ("[1, 2]", "'3'"),
        ("step: 0.5", "step: 0.5, log: true"),
        ("step: 0.5", "log: true"),
        ("to: 1", "to: -1"),
        ("to: 1", "to: 64 MiB"),
        ("to: 1", "to: .inf"),
        ("step: 0.5", "step: 1.0e-300"),
        ("to: 1, step: 0.5", "to: 1.5"),
        ("second.seconds:", "first:"),
        ("second.seconds:", "steps.first.seconds:"),
        ("[1, 2]", "{a: {second.word: x}, b: {second.sec: 1}}"),
        ("[1, 2]", "{a: {second.word: x}, b: {secnd.word: 1}}"),
        ("[1, 2]", "{a: {second: {}, second.word: x}}"),
        ("second.length", "secnd.length"),
        ("second.length", "second"),
        ("second.length", "2"),
        ("minimize:", "subject_to:"),
        ("minimize:", "minimise:"),
        ("minimize:", "exclude: [{first.secnds: 1}]\n  minimize:"),
        ("minimize:", "exclude: [{first.seconds: 3}]\n  minimize:"),
        ("minimize:", "exclude: [{}]\n  minimize:"),
        ("minimize:", "exclude: [{first.seconds: [1, 2]}]\n  minimize:"),
        ("minimize:", "saturation: {along: second}\n  minimize:"),
        ("minimize: second.length", "saturation: {gain: 1 %}"),
        ("minimize: second.length", "method: tpe"),
        ("minimize: second.length", "method: gird"),
        ("second.length", "[second.length, first.length]\n  method: hill_climb"),
        ("to: 1, step: 0.5}}", "to: 1.5}}\n  method: random"),
        ("to: 1, step: 0.5}}", "to: 10000000, step: 0.5}}"),
        ("minimize:", "points: 0\n  minimize:"),
        ("minimize:", "timeout: {frist: 1 s}\n  minimize:"),
        ("minimize:", "timeout: 0\n  minimize:"),
        ("minimize:", "timeout: 5 px\n  minimize:"),
        ("minimize:", "minimize: second.length\nneeds: {frist: {gpus: 1}}\n#"),
        ("minimize:", "minimize: second.length\nneeds: {first: {gpu: 1}}\n#"),
        ("minimize:", "needs: {first: {gpus: 1}}\n  minimize:"),
        (GOOD.splitlines()[1], "  together: 2"),
        ("sweep:", "sweep: 3\nswoop:"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(folder: Path, old: str, new: str, check_message: CheckMessage) -> None:
    assert old in GOOD
    texts = mistakes(folder, GOOD.replace(old, new, 1))
    check_message("\n".join(texts))
    assert all(problem.startswith("toy.yaml:1") for problem in texts), texts


@pytest.mark.parametrize(
    ("overrides", "multirun"),
    [
        (("steps.first.word=a,b",), ()),
        (("steps.first.seconds=range(1,4)",), ()),
        ((), ("steps.first.seconds=1,two",)),
        ((), ("frist.seconds=1,2",)),
        ((), ("steps.first.word=glob(*)",)),
        ((), ("pace@steps.first=slow,fast",)),
        ((), ("sweep.minimize=a.b,c.d",)),
        ((), ("sweep.points=none",)),
        ((), ("steps.first.word=(a",)),
    ],
)
def test_a_wrong_override_is_quoted(
    folder: Path, overrides: tuple[str, ...], multirun: tuple[str, ...], check_message: CheckMessage
) -> None:
    texts = mistakes(folder, GOOD, *overrides, multirun=multirun)
    check_message("\n".join(texts))


SHAPES = """\
inputs: {x: {min: [1], opt: [2], max: [4]}}
sweep: {over: {inputs.x.opt: [[2], [6]]}}
"""


def test_a_value_is_checked_together_with_the_other_axes(folder: Path) -> None:
    wider = "inputs.x.max=[8],[9]"
    assert load(folder, SHAPES, multirun=(wider,)).space.axes[0] == Choices("inputs.x.opt", ([2], [6]))
    texts = mistakes(folder, SHAPES.replace("[6]", "[9]"), multirun=(wider,))
    (mistake,) = texts
    assert mistake.startswith("toy.yaml:11: sweep.over.inputs.x.opt.1: ") and "min <= opt <= max" in mistake


def test_a_point_knows_the_origin_of_its_values(folder: Path, check_message: CheckMessage) -> None:
    sweep = load(folder, SHAPES, multirun=("inputs.x.max=[8],[5]",))
    with pytest.raises(RecipeError) as caught:
        sweep.point({"inputs.x.opt": [6], "inputs.x.max": [5]})
    check_message(caught.value)


def test_mistakes_of_the_recipe_are_reported_once_for_all_values(folder: Path) -> None:
    (folder / "toy.yaml").write_text(RECIPE.replace("word: b", "wrod: b") + GOOD.replace("[1, 2]", "[1, x]"))
    with pytest.raises(RecipeError) as caught:
        load_sweep(folder / "toy.yaml", trust=True)
    assert [problem.path for problem in caught.value.problems] == ["steps.second.wrod", "sweep.over.first.seconds.1"]


def test_code_of_a_point_needs_trust_too(folder: Path, check_message: CheckMessage) -> None:
    (folder / "toy.yaml").write_text(RECIPE + GOOD)
    with pytest.raises(RecipeError) as caught:
        load_sweep(folder / "toy.yaml")
    check_message(caught.value)


@pytest.mark.representatives("deep key", "huge number")
@pytest.mark.parametrize(
    "over",
    [
        "first.seconds: {from: 0, to: 1000000000}, second.seconds: {from: 0, to: 1000000000}",
        "first.seconds: 'range(0,1000000000)'",
        f"first.seconds: {list(range(1001))}",
        f"first.word: '{','.join(map(str, range(8000)))}'",
        "first.word: " + "[" * 5000 + "]" * 5000,
        "first.seconds: {from: 0, to: 1" + "0" * 5000 + "}",
        "first.seconds.a.b.c.d: [1]",
        "first." + "x." * 400 + "y: [1]",
    ],
    ids=["billions", "range", "long list", "long text", "deep", "huge number", "below a number", "deep key"],
)
def test_a_hostile_sweep_costs_little(folder: Path, over: str, check_message: CheckMessage) -> None:
    begin = time.process_time()
    check_message("\n".join(mistakes(folder, f"sweep: {{over: {{{over}}}}}\n")))
    assert time.process_time() - begin < 30, "not a matter of speed: the space was walked through"


# --- schema ----------------------------------------------------------------------------------------------------------


@pytest.mark.representatives("values3-True", "values0-True", "values6-False")
@pytest.mark.parametrize(
    ("values", "valid"),
    [
        ([1, 2], True),
        ("1,2", True),
        ({"from": 1, "to": 2}, True),
        ({"from": 1, "to": 2, "log": True}, True),
        ({"a": {"steps.x.y": 1}, "b": {}}, True),
        ({"from": 1}, False),
        ({"from": 1, "to": 2, "by": 1}, False),
        ([], False),
        (3, False),
    ],
)
def test_editors_know_every_form_of_an_axis(values: Any, valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(describe_recipes([kind for kind in [StepTypes().find("lint")] if kind]))
    recipe = {"model": "m", "steps": {"lint": {}}, "sweep": {"over": {"lint.fail_on": values}, "time": "20 min"}}
    assert validator.is_valid(recipe) is valid


def test_the_whole_section_is_in_the_schema() -> None:
    schema = describe_recipes([])
    validator = jsonschema.Draft202012Validator({**schema["$defs"]["SweepSection"], "$defs": schema["$defs"]})
    section = yaml.safe_load(WHOLE)["sweep"]
    assert not list(validator.iter_errors(section))
    assert all(entry.get("description") for entry in schema["$defs"]["SweepSection"]["properties"].values())
    assert list(validator.iter_errors({**json.loads(json.dumps(section)), "minimise": "x"}))


def test_a_single_run_of_a_swept_recipe_loads(folder: Path) -> None:
    (folder / "toy.yaml").write_text(RECIPE + WHOLE)
    assert load_recipe(folder / "toy.yaml", trust=True).file.sweep is not None
