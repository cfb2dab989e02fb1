"""Points written into a recipe's text: values change, and everything else is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RecipeError
from ndld_flow.recipe.apply_point import CannotEditError, apply_point, remove_key, set_value
from ndld_flow.recipe.load import compose_recipe
from ndld_flow.recipe.validate import expand_shorthands
from tests.support.message_files import CheckMessage

TEXT = """\
# Heading of the file.

name: toy   # a name
model: model.onnx

inputs:
  x: {shape: [1, 3]}   # batch first

steps:
  first:            # all begins here
    step: stamp
    word: "a"       # the word
    # what follows is long
    seconds: 1

  # about second
  second: {step: stamp, word: b}
  third:
  block:
    step: stamp
    settings:       # several
      - one: 1
        two: [a,
              b]    # two lines
      - "three"
    text: |
      one
      two

# How to sweep it.
sweep:
  over:
    first.word: [a, b]   # two words
  # nothing is minimized

gates: [second.length >= 2]
"""
PLAIN = TEXT.partition("# How")[0] + "gates: [second.length >= 2]\n"


def apply(folder: Path, text: str, changes: dict[str, Any], *overrides: str) -> str:
    (folder / "toy.yaml").write_text(text, newline="")
    return apply_point(folder / "toy.yaml", changes, overrides)


def test_the_sweep_is_removed_with_its_comments_and_nothing_else(tmp_path: Path) -> None:
    assert apply(tmp_path, TEXT, {}) == PLAIN


@pytest.mark.representatives("changes2--", 'changes8-- "three"-- {k: true}', "changes4-word: b}-word: b, seconds: 0.5}")
@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({"steps.first.word": "b c"}, 'word: "a"       #', "word: b c       #"),
        ({"steps.first.word": "yes"}, 'word: "a"       #', "word: 'yes'       #"),
        ({"steps.first.word": "a"}, "", ""),
        ({"steps.first.from": "source"}, "    seconds: 1\n", "    seconds: 1\n    from: source\n"),
        ({"steps.second.seconds": 0.5}, "word: b}", "word: b, seconds: 0.5}"),
        ({"steps.third.deep.er": [1, {"a": None}]}, "  third:\n", "  third: {deep: {er: [1, {a: null}]}}\n"),
        ({"steps.block.settings.0.two": []}, "[a,\n              b]    #", "[]    #"),
        ({"steps.block.settings.0": 7}, "one: 1\n        two: [a,\n              b]    #", "7    #"),
        ({"steps.block.settings.1": {"k": True}}, '- "three"', "- {k: true}"),
        (
            {"steps.block.settings": [2]},
            "settings:       # several\n      - one: 1\n        two: [a,\n              b]    # two lines\n"
            '      - "three"\n',
            "settings: [2]       # several\n",
        ),
        ({"steps.block.text": "x\ny"}, "|\n      one\n      two\n", '"x\\ny"\n'),
        ({"steps.block.more": 1}, "      two\n\n", "      two\n    more: 1\n\n"),
        ({"inputs.x.shape": [4, 3], "inputs.y.data": "ones"}, "x: {shape: [1, 3]}   # batch first\n",
         "x: {shape: [4, 3]}   # batch first\n  y: {data: ones}\n"),
        ({"model": "new:20"}, "model: model.onnx", "model: 'new:20'"),
        ({"gates.0": "second.length >= 3"}, "[second.length >= 2]", "['second.length >= 3']"),
        ({"models.old": {"source": "m.onnx"}}, "gates: [second.length >= 2]\n",
         "gates: [second.length >= 2]\nmodels: {old: {source: m.onnx}}\n"),
    ],
)  # fmt: skip
def test_a_value_is_written_in_place(tmp_path: Path, changes: dict[str, Any], old: str, new: str) -> None:
    assert old in PLAIN
    assert apply(tmp_path, TEXT, changes) == PLAIN.replace(old, new, 1)


def test_overrides_of_the_command_line_are_written_too(tmp_path: Path) -> None:
    result = apply(
        tmp_path, TEXT, {"steps.first.word": "z"}, "steps.first.seconds=3", "~steps.second", "+steps.last.step=q"
    )
    assert result == (
        PLAIN.replace('"a"', "z")
        .replace("seconds: 1", "seconds: 3")
        .replace("  # about second\n  second: {step: stamp, word: b}\n", "")
        .replace("      two\n\n", "      two\n  last: {step: q}\n\n")
    )


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("sweep: {over: {a.b: [1]}}\nmodel: m\nsteps: {a: {}}\n", "model: m\nsteps: {a: {}}\n"),
        ("# heading\nsweep:\n  over: {}\n\nmodel: m\nsteps: {a: }\n", "# heading\n\nmodel: m\nsteps: {a: }\n"),
        ("model: m\nsteps: {a: {}}\n\n# to sweep\nsweep:\n  over: {}\n  # end\n", "model: m\nsteps: {a: {}}\n"),
        ("{model: m, sweep: {over: {}}, steps: {a: {}}}", "{model: m, steps: {a: {}}}"),
        ("{model: m, steps: {a: {}}, sweep: {}}", "{model: m, steps: {a: {}}}"),
        ("\ufeffmodel: m\nsweep: {}\nsteps: {a: {}}\n", "model: m\nsteps: {a: {}}\n"),
        ("model: m\r\nsweep: {}\r\nsteps: {a: {}}\r\n", "model: m\r\nsteps: {a: {}}\r\n"),
        ("model: m\nsteps:\n  a:\n  # of a step\nsweep: {}", "model: m\nsteps:\n  a:\n  # of a step\n"),
    ],
)
def test_a_sweep_is_removed_at_any_position(tmp_path: Path, text: str, left: str) -> None:
    assert apply(tmp_path, text, {}) == left


def test_settings_of_presets_are_written_into_the_recipes_own_steps(tmp_path: Path) -> None:
    (tmp_path / "configs/pace").mkdir(parents=True)
    (tmp_path / "configs/pace/slow.yaml").write_text("seconds: 9\nword: w\n")
    text = "defaults: [{pace@steps.a: slow}, _self_]\nmodel: m\nsteps:\n  a: {step: stamp}  # a\n"
    assert apply(tmp_path, text, {"steps.a.seconds": 1}) == text.replace("stamp}", "stamp, seconds: 1}")
    assert apply(tmp_path, text, {"steps.a.seconds": 9}) == text, "the preset says so already"
    base = "defaults: [toy0, _self_]\nname: more\n"
    (tmp_path / "toy0.yaml").write_text(text + "sweep: {over: {a.seconds: [1, 2]}}\n")
    result = apply(tmp_path, base, {"steps.a.seconds": 2})
    assert result == base + "steps: {a: {seconds: 2}}\nsweep: null\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model: m\nsteps:\n  b: &b {step: s, word: x}\n  a: *b\n", "alias"),
        ("model: m\nsteps:\n  b: &b {step: s, word: x}\n  a: {<<: *b, step: t}\n  c: *b\n", ""),
        ("model: m\nsteps:\n  c: {word: x}\n  a: '${steps.c}'\n", "is not in the text"),
        ("defaults: [_self_, {pace@steps.a: slow}]\nmodel: m\nsteps: {a: {step: stamp}}\n", "presets"),
        ("model: m\nsweep: &s {over: {}}\nsteps: {a: {word: b, other: *s}}\n", "an alias elsewhere"),
    ],
)
def test_a_recipe_that_cannot_be_edited_in_place_is_rewritten(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "configs/pace").mkdir(parents=True)
    (tmp_path / "configs/pace/slow.yaml").write_text("word: w\n")
    result = apply(tmp_path, text, {"steps.a.word": "q"})
    (tmp_path / "found.yaml").write_text(result)
    values = compose_recipe(tmp_path / "found.yaml").values
    assert values["steps"]["a"]["word"] == "q"
    assert "sweep" not in values
    if why:
        assert result.startswith('# toy.yaml with steps.a.word: "q"\n# toy.yaml ')
        assert why in result


def test_a_change_without_a_place_is_an_error(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        apply(tmp_path, TEXT, {"steps.block.settings.7": 1})
    check_message(caught.value)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-99, 10**6) | st.floats(-1e6, 1e6) | TEXTS.filter(lambda t: "$" not in t)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=2),
    max_leaves=5,
)
COMMENTS = ("# heading", "  # of a step")
KEYS = ["inputs.x.shape", "steps.a.u", "steps.a.v", "steps.b.u", "steps.b.deep.er", "steps.c", "steps.c2.u", "model"]


@st.composite
def recipes(draw: st.DrawFn) -> str:
    """A recipe's text in some mix of layouts, with comments."""

    def entry(value: object, indent: int, flow: bool) -> str:
        text = yaml.dump(value, default_flow_style=flow, allow_unicode=True, width=draw(st.sampled_from([20, 200])))
        text = text.removesuffix("\n").removesuffix("\n...")
        if flow or not isinstance(value, dict | list) or not value:
            return (
                " "
                + text.replace("\n", "\n" + " " * (indent + 2))
                + draw(st.sampled_from(["", "  # note", " "]))
                + "\n"
            )
        inner = "".join(" " * indent + line + "\n" for line in text.split("\n"))
        return draw(st.sampled_from(["", "   # why"])) + "\n" + inner

    comment = st.sampled_from(["", "", "# said\n", "\n", "\n# said\n\n"])
    parts = ["# heading\n\n", draw(comment), "model: m.onnx\n"]
    if draw(st.booleans()):
        parts += ["inputs:\n  x:" + entry({"shape": draw(VALUES)}, 4, draw(st.booleans())), draw(comment)]
    steps = ["steps:\n"]
    for name in ("a", "b", "c"):
        value = {"step": "stamp"} | draw(st.dictionaries(st.sampled_from("uvw"), VALUES, max_size=3))
        steps += [
            draw(st.sampled_from(["", "  # of a step\n", "\n"])),
            f"  {name}:",
            entry(value, 4, draw(st.booleans())),
        ]
    sweep = [
        draw(comment),
        "sweep:",
        entry({"over": {"a.u": draw(st.lists(VALUES, min_size=1, max_size=3))}}, 2, draw(st.booleans())),
    ]
    groups = [steps, sweep]
    if draw(st.booleans()):
        groups.reverse()
    return "".join([*parts, *groups[0], *groups[1], draw(comment)])


@settings(deadline=None, max_examples=20)
@given(recipes(), st.sampled_from(KEYS), VALUES)
def test_setting_one_value_keeps_the_rest(text: str, key: str, value: Any) -> None:
    words = key.split(".")
    wanted = changed(yaml.safe_load(text), words, value)
    try:
        result = set_value(text, words, value)
    except CannotEditError:
        assert wanted is None
        return
    assert yaml.safe_load(result) == wanted
    assert [line for line in text.splitlines() if line in COMMENTS] == [
        line for line in result.splitlines() if line in COMMENTS
    ]
    for name in {"a", "b", "c"} - {words[1] if words[0] == "steps" else ""}:
        assert lines_of(text, name) == lines_of(result, name)


@settings(deadline=None, max_examples=20)
@given(recipes())
def test_a_sweep_is_cut_out_of_any_layout(text: str) -> None:
    wanted = {key: value for key, value in yaml.safe_load(text).items() if key != "sweep"}
    result = remove_key(text, ["sweep"])
    assert yaml.safe_load(result) == wanted
    assert result.startswith("# heading\n\n")
    lines = iter(text.splitlines())
    assert all(line in lines for line in result.splitlines()), "what is left stood there, in this order"
    for name in ("a", "b", "c"):
        assert lines_of(text, name) == lines_of(result, name)


@settings(deadline=None, max_examples=4)
@given(recipes(), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_the_text_composes_to_the_same_recipe_as_the_overrides(text: str, changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as aside:
        path = Path(aside) / "toy.yaml"
        path.write_text(text, encoding="utf-8", newline="")
        wanted: Any = compose_recipe(path, ["~sweep"]).values
        for key, value in changes.items():
            wanted = changed(wanted, key.split("."), value)
        if wanted is None:
            with pytest.raises(RecipeError):
                apply_point(path, changes)
            return
        path.write_text(apply_point(path, changes), encoding="utf-8", newline="")
        values = compose_recipe(path).values
    assert expand_shorthands(values) == expand_shorthands(wanted)


def changed(values: Any, words: Sequence[str], value: object) -> Any:
    """Values with one changed; None where the way leads through what is no mapping."""
    if not words:
        return value
    if values is not None and not isinstance(values, dict):
        return None
    key = next(
        (".".join(words[:n]) for n in range(len(words), 0, -1) if ".".join(words[:n]) in (values or {})), words[0]
    )
    rest = words[key.count(".") + 1 :]
    inner = changed((values or {}).get(key), rest, value)
    return None if inner is None and rest else {**(values or {}), key: inner}


def lines_of(text: str, step: str) -> list[str]:
    """Return the lines of a step, up to the next line with less indentation."""
    lines = text.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(f"  {step}:"))
    end = next((at for at in range(begin + 1, len(lines)) if not lines[at].startswith("    ")), len(lines))
    return lines[begin:end]
