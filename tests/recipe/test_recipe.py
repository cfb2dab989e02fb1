"""Recipes: composed, checked, and every mistake reported with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.recipe.config_files import compose_plain, find_folders
from ndld_flow.recipe.load import compose_recipe
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.yaml_file import MAX_DIGITS, parse_yaml, read_yaml
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe
from tests.support.toys import RECIPE, STAMP


@pytest.fixture
def folder(in_folder: Path) -> Path:
    (in_folder / "steps").mkdir()
    (in_folder / "steps" / "stamp.py").write_text(STAMP)
    return in_folder


def load(folder: Path, text: str = RECIPE, *overrides: str, name: str = "toy.yaml") -> Recipe:
    (folder / name).write_text(text)
    return load_recipe(folder / name, overrides, trust=True)


def mistakes(folder: Path, text: str = RECIPE, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(folder, text, *overrides)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


WORDS = """\
model: model.onnx
steps:
  on: {step: sanitize}
  no: {step: convert_fp16, from: "on"}
  off: {step: check_accuracy, reference: "on", candidate: "no", power: off, thresholds: {off: 0.5, on: 0.5}}
"""


@pytest.mark.parametrize("extra", ["", "defaults: [precision: off, _self_]\n", "name: ${oc.select:seed,n}\n"])
def test_words_that_yaml_reads_as_true_or_false_stay_words(extra: str, folder: Path) -> None:
    """As keys, and in `defaults:`, whether or not Hydra composes the recipe."""
    make_cnn(folder / "model.onnx")
    preset = folder / "configs" / "precision" / "off.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ngates: []\n")
    *_, check = load(folder, f"{extra}{WORDS}").steps
    assert (check.name, check.reads) == ("off", {"candidate": "no", "reference": "on"})
    assert (check.settings["power"], check.settings["thresholds"]) == ("off", {"off": 0.5, "on": 0.5})

    preset.write_text("# @package _global_\nsteps: {no: {step: lint}}\n")
    if "defaults" in extra:
        assert "configs/precision/off.yaml" in mistakes(folder, f"{extra}{WORDS}")[0]
    wrong = mistakes(folder, WORDS.replace('"no"', "no"))
    assert wrong
    assert all("quotes" in mistake for mistake in wrong), "as a value it is false"


def test_five_mistakes_are_five_located_messages(folder: Path) -> None:
    text = """\
modell: model.onnx
model: model.onnx
steps_from: [steps/stamp.py]
steps:
  first: {step: stamp, wrod: a}
  second:
    step: stamp
    from: frist
    seconds: "2"
  third: {step: stmap}
gates: ["second.length ~ 2"]
"""
    found = mistakes(folder, text)
    for mistake, (where, fact) in zip(
        found,
        (
            ("toy.yaml:1: modell: ", 'did you mean "model"?'),
            ("toy.yaml:5: steps.first.wrod: ", 'did you mean "word"?'),
            ("toy.yaml:8: steps.second.from: ", 'did you mean "first"?'),
            ("toy.yaml:9: steps.second.seconds: ", "a number, found '2'"),
            ("toy.yaml:10: steps.third.step: ", 'did you mean "stamp"?'),
            ("toy.yaml:11: gates.0: ", "'second.length ~ 2'"),
        ),
        strict=True,
    ):
        assert mistake.startswith(where) and fact in mistake


def test_a_step_that_is_missing_is_reported_once(folder: Path, check_message: CheckMessage) -> None:
    text = "model: model.onnx\nsteps: {agree: {step: check_accuracy, reference: sorce, candidate: source}}\n"
    (found,) = mistakes(folder, text)
    check_message(found)


@pytest.mark.representatives("change16", "change17", "change11")
@pytest.mark.parametrize(
    "change",
    [
        ("first: {step: stamp, word: a}", "first: {step: stamp, word: yes}"),
        ("first: {step: stamp, word: a}", "2nd: {step: stamp}"),
        ("first: {step: stamp, word: a}", "first: [stamp]"),
        ("model: model.onnx", "model: {source: https://x.org/m.onnx}"),
        ("model: model.onnx", "model: {source: m.onnx, sha256: abc}"),
        ("from: source", "from: nowhere"),
        ("steps:", "inputs: {x: {data: [1]}}\nsteps:"),
        ("steps:", "inputs: {x: {range: [1]}}\nsteps:"),
        ("steps:", "inputs: {x: {shape: [1, a]}}\nsteps:"),
        ("name: toy", "name: ../toy"),
        ("steps:", "inputs: {x: {shape: [1], opt: [1]}}\nsteps:"),
        ("steps:", "inputs: {x: {min: [2], max: [1]}}\nsteps:"),
        ("name: toy", "name: toy\nname: toy2"),
        ("name: toy", "name: 'toy"),
        ("name: toy", "name: !!python/object:os.system {}"),
        ("name: toy", "_target_: os.system"),
        ("word: b", "word: '${nowhere}'"),
        ("[second.length >= 2]", "[first >= 2]"),
        ("[second.length >= 2]", "[2 >= 1]"),
        ("[second.length >= 2]", "[\"__import__('os') >= second.length\"]"),
    ],
)
def test_a_mistake_is_explained(folder: Path, change: tuple[str, str], check_message: CheckMessage) -> None:
    assert RECIPE.replace(*change) != RECIPE
    texts = mistakes(folder, RECIPE.replace(*change))
    check_message("\n".join(texts))
    assert all(problem.startswith("toy.yaml:") for problem in texts), texts


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB + RECIPE,
        "model: m.onnx\nsteps: " + "[" * 20_000 + "]" * 20_000,
        "model: m.onnx\nsteps: &all {first: *all}",
        "model: m.onnx\nsteps: {a: &a0 [x]" + "".join(f", a{i}: &a{i} [*a{i - 1}]" for i in range(1, 200)) + "}",
    ],
    ids=["billions", "deep", "itself", "deep by aliases"],
)
def test_yaml_with_exploding_aliases_is_refused_quickly(folder: Path, text: str) -> None:
    assert any(word in mistakes(folder, text)[0] for word in ("alias", "nested"))


def test_a_preset_with_exploding_aliases_is_refused_too(folder: Path) -> None:
    (folder / "configs/pace").mkdir(parents=True)
    (folder / "configs/pace/slow.yaml").write_text(BOMB)
    text = RECIPE.replace("name: toy", "name: toy\ndefaults: [{pace@steps.second: slow}, _self_]")
    assert "alias" in mistakes(folder, text)[0]
    assert "alias" in mistakes(folder, RECIPE, "+pace@steps.second=slow")[0]
    (folder / "configs/pace/calm.yaml").write_text("seconds: 2\n")
    calm = load(folder, text.replace("slow", "calm"))
    assert calm.steps[1].settings["seconds"] == 2.0, "what is not used does no harm"


def test_a_missing_recipe_names_the_near_ones(folder: Path, check_message: CheckMessage) -> None:
    (folder / "toy.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder / "tyo.yaml")
    check_message(caught.value)


@pytest.mark.representatives("profiling@steps.first=quick-profiling", 'steps.first.wrod=x-did you mean "word"?')
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps.first.word", "write KEY=VALUE without spaces"),
        ("steps.first.wrod=x", 'did you mean "word"?'),
        ("~steps.nowhere", "steps.nowhere"),
        ("first.word=x", "did you mean `steps.first`?"),
        ("profiling@steps.first=quick", "profiling"),
    ],
)
def test_a_wrong_override_is_quoted(folder: Path, override: str, message: str) -> None:
    texts = mistakes(folder, RECIPE, override)
    assert any(problem.startswith('override "') and message in problem for problem in texts), texts


def test_overrides_set_add_and_remove(folder: Path) -> None:
    recipe = load(folder, RECIPE, "steps.first.seconds=3", "~steps.second", "+steps.last.step=stamp", "~gates")
    assert [step.name for step in recipe.steps] == ["first", "aside", "last"]
    assert recipe.steps[0].settings["seconds"] == 3.0
    assert recipe.steps[2].reads == {"from": "aside"}


def test_any_file_name_is_accepted(folder: Path) -> None:
    recipe = load(folder, RECIPE.replace("name: toy\n", ""), name="my recipe=v1.2.yaml")
    assert recipe.name == "my-recipe-v1.2"


def test_presets_fill_in_steps_without_changing_their_order(folder: Path) -> None:
    (folder / "configs/pace").mkdir(parents=True)
    (folder / "configs/pace/slow.yaml").write_text("seconds: 9\n")
    (folder / "configs/pace/fast.yaml").write_text("seconds: 1\n")
    text = RECIPE.replace("name: toy", "name: toy\ndefaults: [{pace@steps.second: slow}, _self_]")
    assert [step.name for step in load(folder, text).steps] == ["first", "second", "aside"]
    assert load(folder, text).steps[1].settings["seconds"] == 9.0
    assert load(folder, text, "pace@steps.second=fast").steps[1].settings["seconds"] == 1.0
    assert any("pace/swift" in problem for problem in mistakes(folder, text.replace("slow", "swift")))


def test_presets_are_found_in_a_folder_of_any_name(folder: Path) -> None:
    odd = folder / "it's, a [weird] {folder}=x"
    (odd / "configs/pace").mkdir(parents=True)
    (odd / "configs/pace/slow.yaml").write_text("seconds: 9\n")
    (odd / "steps").mkdir()
    (odd / "steps" / "stamp.py").write_text(STAMP)
    text = RECIPE.replace("name: toy", "name: toy\ndefaults: [{pace@steps.second: slow}, _self_]")
    assert load(odd, text).steps[1].settings["seconds"] == 9.0


def test_a_recipe_builds_on_another(folder: Path) -> None:
    (folder / "base.yaml").write_text(RECIPE)
    recipe = load(folder, "defaults: [base, _self_]\nname: more\nsteps: {second: {word: z}, last: {step: stamp}}\n")
    assert [step.name for step in recipe.steps] == ["first", "second", "aside", "last"]
    assert recipe.steps[1].settings["word"] == "z"


def test_interpolation_reaches_other_settings(folder: Path) -> None:
    recipe = load(folder, RECIPE.replace("word: b", "word: 'not ${steps.first.word}'"))
    assert recipe.steps[1].settings["word"] == "not a"


@pytest.mark.parametrize("written", ["${oc.env:TOY_WORD,none}", "${oc.${steps.second.word}:TOY_WORD,none}"])
def test_the_environment_is_read_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """Also by a resolver whose name is computed."""
    path = folder / "toy.yaml"
    path.write_text(RECIPE.replace("word: a", f"word: '{written}'").replace("word: b", "word: env"))

    def word() -> object:
        return compose_recipe(path, [], trust=True).values["steps"]["first"]["word"]

    monkeypatch.delenv("TOY_WORD", raising=False)
    assert word() == "none"
    for value in ("one", "two"):
        monkeypatch.setenv("TOY_WORD", value)
        assert word() == value


def test_a_preset_in_a_folder_below_is_read_each_time(folder: Path) -> None:
    (folder / "presets").mkdir()
    path = folder / "toy.yaml"
    path.write_text("defaults: [presets/fast, _self_]\n" + RECIPE.replace("word: a", "seconds: 0"))
    for value in ("one", "two"):
        (folder / "presets" / "fast.yaml").write_text(f"# @package _global_\nsteps: {{first: {{word: {value}}}}}\n")
        assert compose_recipe(path, []).values["steps"]["first"]["word"] == value


@settings(deadline=None)
@given(st.text(max_size=200))
def test_the_loader_raises_only_its_own_errors_on_any_text(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as aside:
        path = Path(aside) / "any.yaml"
        path.write_text(text, encoding="utf-8", errors="replace")
        with pytest.raises(RecipeError):
            load_recipe(path)


@pytest.mark.parametrize("value", ["7", "9" * MAX_DIGITS, f"'{'9' * (MAX_DIGITS + 1)}'", "a" * (2 * MAX_DIGITS)])
def test_whole_numbers_have_at_most_a_hundred_digits_and_texts_any_length(tmp_path: Path, value: str) -> None:
    assert parse_yaml(tmp_path / "r.yaml", f"key: {value}\n").values == {"key": parse_scalar(value)}


def parse_scalar(value: str) -> int | str:
    return int(value) if value.isdigit() else value.strip("'")


def test_a_whole_number_of_more_digits_is_refused_with_its_line(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_yaml(tmp_path / "r.yaml", f"key: {'9' * (MAX_DIGITS + 1)}\n")
    check_message(caught.value)


def test_terms_of_other_tools_are_understood(folder: Path) -> None:
    text = """\
model: model.onnx
steps:
  fp16: {keep_io_types: true}
  small: {step: Int8}
  speed: {step: profile, iterations: 5, intra_op_num_threads: 2}
"""
    hints = "\n".join(mistakes(folder, text))
    for hint in ("`convert_fp16`? Give the step that name", '"quantize"?', '"passes"?', '"threads"?'):
        assert f"did you mean {hint}" in hints


def test_a_list_of_steps_shows_how_a_mapping_is_written(folder: Path, check_message: CheckMessage) -> None:
    (mistake,) = mistakes(folder, "model: model.onnx\nsteps:\n  - lint: {}\n")
    check_message(mistake)


def test_a_model_instead_of_a_recipe_is_refused_with_a_hint_at_init(folder: Path, check_message: CheckMessage) -> None:
    (folder / "my model.onnx").write_bytes(b"\x08\x08" * 2**20)
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder / "my model.onnx")
    check_message(caught.value)


SCALARS = (
    *("1", "-2", "+3", "0x1f", "0o17", "017", "1_000", "1e3", "1E-3", "1.5", "1.", ".5", ".5e+3", ".inf", "-.INF"),
    *(".nan", "yes", "No", "on", "OFF", "true", "False", "~", "null", "''", "text", "'1'", "2026-11-28", "12:30"),
    *("1:30.5", "2001-12-14t21:59:43.10-05:00", "1,2", "0b11", "1e", "e3", "1__0"),
)


def test_a_recipe_without_hydras_grammar_means_what_hydra_composes(folder: Path) -> None:
    """Hydra is left out where nothing is left to compose: that must not change a value."""
    lines = [f"  k{index}: {text}" for index, text in enumerate(SCALARS)]
    rest = "list: [1, {x: 2}, [3e0]]\n1: one\nlong: |-\n  a\n  b\nbase: &base {x: [1]}\nmore: {<<: *base, y: *base}\n"
    text = "\n".join(["a:", *lines, rest])
    path = folder / "plain.yaml"
    path.write_text(text)
    plain = compose_recipe(path).values
    path.write_text(text + "unused: '${list}'\n")
    composed = compose_recipe(path).values
    composed.pop("unused")
    assert repr(plain) == repr(composed)
    plain["more"]["y"]["x"].append(2)
    assert plain["base"] == {"x": [1]}


DEFAULTS = (
    "[]", "[_self_]", "[speed: quick]", "[speed@steps.base: quick, _self_]", "[_self_, speed@steps.base: quick]",
    "[speed@steps.base: quick, speed@steps.late: quick]", "[speed@steps.base: quick, speed@steps.base.deep: slow-one]",
    "[_self_, speed@name: quick]", "[speed@steps: empty, speed@other: empty]",
)  # fmt: skip


@pytest.mark.parametrize("defaults", DEFAULTS)
def test_plain_defaults_mean_what_hydra_composes(folder: Path, defaults: str) -> None:
    """A recipe whose `defaults:` only choose presets has the same values, in the same order, with and without Hydra."""
    presets = {
        "quick": "runs: 3\nstable: 0 %\ndeep: {kept: 1, changed: [1]}\nown: null\n",
        "slow-one": "runs: 30\n",
        "empty": "# nothing\n",
    }
    (folder / "configs/speed").mkdir(parents=True)
    for name, text in presets.items():
        (folder / f"configs/speed/{name}.yaml").write_text(text)
    path = folder / "plain.yaml"
    own = "steps: {late: 5, base: {step: profile, deep: {changed: [2], new: {}}, own: {a: 1}}}\n"
    text = f"name: first\ndefaults: {defaults}\n{own}"
    path.write_text(text)
    assert compose_plain(read_yaml(path), find_folders(path)) is not None
    plain = compose_recipe(path).values
    path.write_text(text + "unused: '${name}'\n")
    composed = compose_recipe(path).values
    composed.pop("unused")
    assert repr(plain) == repr(composed)


@pytest.mark.parametrize(
    "text",
    [
        "defaults: null\n",
        "defaults: [other]\n",
        "defaults: [speed: nothing]\n",
        "defaults: [speed: [quick]]\n",
        "defaults: [speed: null]\n",
        "defaults: [optional speed: quick]\n",
        "defaults: [override speed: quick]\n",
        "defaults: [speed@_global_: quick]\n",
        "defaults: [speed: quick, speed: quick]\n",
        "defaults: [_self_, _self_]\n",
        "defaults: [speed: nested]\n",
        "defaults: [speed: packaged]\n",
        "a: '${b}'\n",
        "a: ???\n",
        "defaults: [speed@a: quick]\na: [1]\n",
    ],
)
def test_everything_else_is_composed_by_hydra(folder: Path, text: str) -> None:
    (folder / "configs/speed").mkdir(parents=True)
    (folder / "configs/speed/quick.yaml").write_text("runs: 3\n")
    (folder / "configs/speed/nested.yaml").write_text("defaults: [quick]\n")
    (folder / "configs/speed/packaged.yaml").write_text("# @package _global_\nruns: 3\n")
    path = folder / "plain.yaml"
    path.write_text(text)
    assert compose_plain(read_yaml(path), find_folders(path)) is None


def test_a_missing_name_of_a_step_is_one_mistake(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "name: c\nmodel: model.onnx\nsteps: {c: {step: compare_profiles}}\n")
    assert sum("steps.c.base" in problem for problem in found) == 1
    assert not any("Undefined" in problem for problem in found)


def test_one_misspelt_step_is_one_problem(in_folder: Path) -> None:
    steps = "steps:\n  sanitise: {}\n  half: {step: convert_fp16, from: sanitize}\ngates: [sanitize.nodes <= 3]\n"
    recipe = in_folder / "r.yaml"
    recipe.write_text(f"name: t\nmodel: m.onnx\n{steps}")
    with pytest.raises(RecipeError) as error:
        load_recipe(recipe)
    assert [(problem.path, problem.line) for problem in error.value.problems] == [("steps.sanitise", 4)]
    recipe.write_text(f"name: t\nmodel: m.onnx\n{steps.replace('from: sanitize', 'from: elsewhere')}")
    with pytest.raises(RecipeError) as error:
        load_recipe(recipe)
    assert [problem.path for problem in error.value.problems] == ["steps.sanitise", "steps.half.from"]


@pytest.mark.parametrize(
    ("line", "folder"),
    [("steps_from: [missing.py]", "inner"), ("defaults: [missing]", "inner"), ("model: missing.onnx", ".")],
)
def test_a_missing_file_is_reported_with_the_folder_of_relative_paths(in_folder: Path, line: str, folder: str) -> None:
    (in_folder / "inner").mkdir()
    recipe = in_folder / "inner" / "r.yaml"
    model = "" if "model" in line else "model: m.onnx\n"
    make_cnn(in_folder / "m.onnx")
    recipe.write_text(f"name: t\n{model}{line}\nsteps: {{sanitize: {{}}}}\n")
    with pytest.raises(RequestError) as error:
        api.plan(recipe, trust=True)
    assert str((in_folder / folder).resolve()) in str(error.value)
