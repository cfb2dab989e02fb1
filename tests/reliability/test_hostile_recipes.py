"""Hostile recipes, overrides, sweep sections and arguments: one paragraph and exit code 2."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.recipe.load import load_sweep
from tests.reliability.guarded import guarded
from tests.reliability.hostile_words import as_yaml, changed_recipes, read_pipelines, values, words
from tests.support.models_run import write_model
from tests.support.tally import Tally

MODEL = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
SWEPT = """\
model: m.onnx
steps:
  lint: {}
  clean: {step: sanitize}
  speed: {step: profile, from: clean, passes: 5, threads: 1}
sweep:
  over: {speed.threads: [1, 2], clean.fold: [true, false]}
  minimize: speed.latency.min
"""
LONGEST = 60_000
"""Characters of a message: a recipe may have fifty mistakes."""

quick = settings(max_examples=4, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
long = settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck), print_blob=True)

_CONTROL = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000))} - {"\n", "\t"}


@pytest.fixture(scope="module")
def scene() -> Iterator[Path]:
    """A current directory with a model, a recipe, presets, and files that must not be read."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        root = Path(folder)
        (root / "temp").mkdir()
        (root / "configs" / "group").mkdir(parents=True)
        write_model(root / "m.onnx", MODEL)
        (root / "swept.yaml").write_text(SWEPT)
        (root / "loop.yaml").write_text("defaults: [loop]\n")
        (root / "ring.yaml").write_text("defaults: [gnir]\n")
        (root / "gnir.yaml").write_text("defaults: [ring]\n")
        (root / "configs" / "group" / "plain.yaml").write_text("description: chosen\n")
        (root / "configs" / "group" / "deep.yaml").write_text("a: " + "[" * 5000)
        os.mkfifo(root / "configs" / "group" / "pipe.yaml")
        os.mkfifo(root / "pipe.yaml")
        (root / "zero.yaml").symlink_to("/dev/zero")
        before, tempfile.tempdir = tempfile.tempdir, str(root / "temp")
        try:
            # Hydra reads its own settings anew each time, by PyYAML's slow loader: two thirds of an attack's time.
            with mock.patch.object(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                yield root
        finally:
            tempfile.tempdir = before


def _attempt(root: Path, count: Tally, attack: Callable[[], Any]) -> None:
    """Run one attack: it succeeds or is refused with a message, and nothing outside the outputs changes."""
    count.lost += 1
    with guarded(root / "outputs", root / "temp"):
        try:
            attack()
        except NdldFlowError as error:
            message = str(error)
            assert error.exit_code == 2
            assert message.strip()
            assert not message.strip().endswith(":"), message
            assert len(message) < LONGEST
            assert not _CONTROL & set(message)
            count.refused += 1
        else:
            count.survived += 1
    count.lost -= 1


def _load(root: Path, count: Tally, content: bytes, overrides: tuple[str, ...] = (), multirun: bool = False) -> None:
    path = root / "attack.yaml"
    path.write_bytes(content)
    _attempt(root, count, lambda: load_sweep(path, overrides, multirun=multirun))


def _any_yaml() -> st.SearchStrategy[bytes]:
    pieces = st.sampled_from(
        ("model: m.onnx\n", "steps: {lint: {}}\n", "a: &a [1, *a]\n", "&b b: *b\n", "<<: {a: 1}\n",
        "!!binary aGk=", "? ",
         "- ", "{", "[", "}", "]", ": ", "\t", "\r\n", "\ufeff", "!!python/object/apply:os.system [id]", "!!int ''",
         "!!bool maybe", "!!timestamp x", "!!set {a, b}", "--- a\n--- b\n", "%YAML 9.9\n",
         "%TAG ! tag:x,1:\n---\n", "|\n  a",
         ">", "'", '"\\x00"', '"\\ud800"', "2001-13-45", "1:" * 50 + "1", "0x" + "f" * 6000, "1" * 6000, "#",
         "\x00", "\x85")
    )  # fmt: skip
    text = st.lists(pieces | words | st.text(max_size=10), max_size=12).map("".join)
    encoded = st.tuples(text, st.sampled_from(("utf-8", "utf-16", "utf-32", "latin-1"))).map(
        lambda two: two[0].encode(two[1], "replace")
    )
    return st.binary(max_size=200) | encoded | values.map(lambda value: as_yaml(value).encode("utf-8", "replace"))


def test_any_yaml_is_loaded_or_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    quick(_yaml_attack(scene, tally))()


@pytest.mark.slow
def test_any_yaml_is_loaded_or_refused_for_long(scene: Path, tally: Callable[[str], Tally]) -> None:
    long(_yaml_attack(scene, tally))()


def _yaml_attack(scene: Path, tally: Callable[[str], Tally]) -> Callable[[], None]:
    count = tally("any YAML as a recipe")

    @given(_any_yaml())
    def attack(content: bytes) -> None:
        _load(scene, count, content)

    return attack


def test_changed_recipes_are_loaded_or_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    quick(_recipe_attack(scene, tally))()


@pytest.mark.slow
def test_changed_recipes_are_loaded_or_refused_for_long(scene: Path, tally: Callable[[str], Tally]) -> None:
    long(_recipe_attack(scene, tally))()


def _recipe_attack(scene: Path, tally: Callable[[str], Tally]) -> Callable[[], None]:
    count = tally("changed recipes")
    recipes = [*read_pipelines(), yaml.safe_load(SWEPT)]

    @given(changed_recipes(recipes))
    def attack(recipe: dict[str, Any]) -> None:
        _load(scene, count, as_yaml(recipe).encode("utf-8", "replace"))

    return attack


_KEYS = st.sampled_from((
    "steps.speed.passes", "steps.speed", "steps", "name", "model", "sweep", "sweep.over", "sweep.over.speed.threads",
    "sweep.points", "speed.threads", "group", "group@steps.x", "hydra.run.dir", "hydra/launcher", "steps.__class__",
    "steps.lint.from", "inputs.x.shape", "gates", "gates.0", "defaults", "a.b.c", "steps.a\\.b",
)) | words  # fmt: skip
_overrides = st.lists(
    st.builds(
        lambda sign, key, equals, value: f"{sign}{key}{equals}{value}",
        st.sampled_from(("", "", "+", "++", "~", "~~", "-")),
        _KEYS,
        st.sampled_from(("=", "=", "=", "", "==", " = ")),
        words
        | st.sampled_from(("plain", "deep", "pipe", "[plain,deep]", "{a:1}", "[1", "'a", '"', "1,2", "[1,2],[3]")),
    )
    | words,
    max_size=3,
).map(tuple)


def test_any_overrides_are_applied_or_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    quick(_override_attack(scene, tally))()


@pytest.mark.slow
def test_any_overrides_are_applied_or_refused_for_long(scene: Path, tally: Callable[[str], Tally]) -> None:
    long(_override_attack(scene, tally))()


def _override_attack(scene: Path, tally: Callable[[str], Tally]) -> Callable[[], None]:
    count = tally("any overrides")

    @given(_overrides, st.booleans())
    def attack(overrides: tuple[str, ...], multirun: bool) -> None:
        _load(scene, count, SWEPT.encode(), overrides, multirun)

    return attack


_AXES = st.sampled_from(("speed.threads", "clean.fold", "model", "steps.speed", "speed", "variant", "inputs.x.shape"))
_SETTINGS = (
    "over", "method", "points", "time", "seed", "exclude", "minimize", "maximize", "subject_to", "saturation",
    "together",
    "winners", "timeout", "needs",
)  # fmt: skip
_sections = (
    st.fixed_dictionaries(
        {"over": st.dictionaries(_AXES | words, values, max_size=3)},
        optional={
            name: values | st.sampled_from(("grid", "tpe", "random", "speed.latency.min")) for name in _SETTINGS[1:]
        },
    )
    | st.dictionaries(st.sampled_from(_SETTINGS) | words, values, max_size=4)
    | values
)


def test_any_sweep_section_is_loaded_or_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    quick(_sweep_attack(scene, tally))()


@pytest.mark.slow
def test_any_sweep_section_is_loaded_or_refused_for_long(scene: Path, tally: Callable[[str], Tally]) -> None:
    long(_sweep_attack(scene, tally))()


def _sweep_attack(scene: Path, tally: Callable[[str], Tally]) -> Callable[[], None]:
    count = tally("any sweep section")
    recipe = yaml.safe_load(SWEPT)

    @given(_sections)
    def attack(section: object) -> None:
        text = as_yaml({**recipe, "sweep": section})
        _load(scene, count, text.encode("utf-8", "replace"))

    return attack


_GOOD = "model: m.onnx\nsteps: {lint: {}}\n"
_BOMBS = {
    "deep flow": "a: " + "[" * 200_000,
    "deep block": "- " * 200_000 + "x",
    "large": "a: " + "x" * 3_000_000,
    "values": _GOOD + "description: [" + ",".join("1" * 50_000) + "]\n",
    "aliases": "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
    "texts": _GOOD + "d0: x\n" + "".join(f"d{i}: '${{d{i - 1}}}${{d{i - 1}}}'\n" for i in range(1, 40)),
    "lists": _GOOD + "d0: [x]\n" + "".join(f"d{i}: ['${{d{i - 1}}}', '${{d{i - 1}}}']\n" for i in range(1, 30)),
    "interpolations": _GOOD + "description: " + "${" * 3000 + "a" + "}" * 3000 + "\n",
    "whole number": _GOOD + "description: 0x" + "f" * 6000 + "\n",
    "itself": "defaults: [bomb]\n" + _GOOD,
    "each other": "defaults: [ring]\n" + _GOOD,
    "pipe": "defaults: [group: pipe]\n" + _GOOD,
    "deep preset": "defaults: [group: deep]\n" + _GOOD,
    "device": "defaults: [zero]\n" + _GOOD,
    "long name": "defaults: [" + "x" * 5000 + "]\n" + _GOOD,
}


_SLOW_BOMBS = ("texts", "values", "each other")
"""They take half a second and more, and there is one like each."""


def test_exploding_recipes_are_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    _explode(scene, tally, [name for name in _BOMBS if name not in _SLOW_BOMBS])


@pytest.mark.slow
def test_slowly_exploding_recipes_are_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    _explode(scene, tally, _SLOW_BOMBS)


def _explode(scene: Path, tally: Callable[[str], Tally], names: Iterable[str]) -> None:
    count = tally("bombs")
    for name in names:
        (scene / "bomb.yaml").write_text(_BOMBS[name])
        _attempt(scene, count, lambda: load_sweep(scene / "bomb.yaml"))
    assert count.survived == 0


def test_files_and_text_that_are_no_recipe_or_override_are_refused(scene: Path, tally: Callable[[str], Tally]) -> None:
    count = tally("bombs")
    for name in ("pipe.yaml", "zero.yaml", "configs", "nothing.yaml", "x" * 5000, "m.onnx", "loop.yaml"):
        _attempt(scene, count, partial(load_sweep, scene / name))
    for override in ("description=" + "x" * 100_000, "description=" + "[" * 300, "\udcff=1", "steps.\x1b[2J=1"):
        _attempt(scene, count, partial(load_sweep, scene / "swept.yaml", [override]))
    assert count.survived == 0
