"""Secrets that a recipe reads with `${oc.env:NAME}` are written and printed nowhere, however short they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.execution.messages import TaskOrder
from ndld_flow.store import hidden_credentials
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_credentials
from tests.reliability.packed_bytes import spoken
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.toys import make_toy

TALKS = """
import shutil, warnings
from datetime import timedelta
from pathlib import Path
from ndld_flow.base.errors import RequestError
from ndld_flow.plugin import Context, Onnx, Result, Step
from ndld_flow.base.settings import Settings

class Inner(Settings):
    word: str | int = ""
    \"""A word.\"""

class Talks(Step[Onnx, Onnx]):
    \"""Tells its settings by every way that a step has.\"""
    word: str = ""
    \"""A secret.\"""
    changed: str = ""
    \"""One that is checked into another form.\"""
    inner: Inner = Inner()
    \"""One inside a mapping.\"""
    words: tuple[str | float, ...] = ()
    \"""Several.\"""
    file: Path | None = None
    \"""A path.\"""
    speed: float | str = 1.0
    \"""A number.\"""
    fails: bool = False
    \"""Whether it fails.\"""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        for text in (self.word, f"at {self.inner.word!r}", *map(str, self.words), str(self.speed), str(self.file)):
            context.log.info("from %s", text)
            context.progress(0, 0, text)
            warnings.warn(text)
        if self.fails:
            raise RequestError(f"{self.word} is bad, as {self.inner} and {self.words} are")
        shutil.copy(source.path, out / "model.onnx")
        return Result(f"read {self.word}, {self.inner.word} and {self.speed}")
"""

RECIPE = """
defaults: [preset, _self_]
model: model.onnx
steps_from: [talks.py]
steps:
  talks:
    word: ${oc.env:TOY_TOKEN}
    changed: a${oc.env:TOY_TOKEN, none}b
    words: ['${oc.env:${oc.env:TOY_NAME}}', "${.0}", "${oc.decode:${steps.talks.word}}"]
    speed: ${oc.decode:${steps.talks.word}}
  other: {step: talks, inner: "${steps.talks.inner}", word: plain}
"""


@pytest.fixture(params=["hunter2", "4711", "keys/my.pem", pytest.param("0.50", marks=pytest.mark.thorough)])
def secret(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A secret in the environment, with a recipe that reads it in many ways."""
    value: str = request.param
    if "/" in value:
        path = tmp_path / value
        path.parent.mkdir()
        path.write_text("contents")
        value = str(path)
    monkeypatch.setattr(hidden_credentials, "_READ", {})
    monkeypatch.setenv("TOY_TOKEN", value)
    monkeypatch.setenv("TOY_NAME", "TOY_TOKEN")
    (tmp_path / "talks.py").write_text(TALKS)
    (tmp_path / "preset.yaml").write_text("steps: {talks: {inner: {word: '${oc.env:TOY_TOKEN}'}}}\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    make_cnn(tmp_path / "model.onnx")
    return value


def tells(secret: str, data: bytes) -> bool:
    """Whether a text has the secret as a word; digests and times may contain a short one by chance."""
    pattern = rb"(?<![0-9a-z.])" + re.escape(secret.encode()) + rb"(?![0-9a-z])"
    return any(re.search(pattern, piece, re.IGNORECASE) for piece in spoken(data))


def told(secret: str, folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and tells(secret, path.read_bytes())]


def test_a_secret_that_a_recipe_reads_is_told_nowhere(
    tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = "steps.talks.file='${oc.env:TOY_TOKEN}'"
    sweep = "steps.other.word='${oc.env:TOY_TOKEN}',b"
    for arguments, code in (
        (["run", "recipe.yaml"], 0),
        (["run", "recipe.yaml", over, "--json"], 0),
        (["plan", "recipe.yaml", "steps.talks.word=x"], 0),
        (["plan", "recipe.yaml", "--force", "talks", "--json"], 0),
        (["run", "recipe.yaml", "-m", sweep, "--jobs", "1"], 0),
        (["plan", "recipe.yaml", "-m", sweep, "--json"], 0),
        (["run", "recipe.yaml", "steps.talks.fails=true", over], 2),
        (["run", "recipe.yaml", "steps.talks.fails=true", "--json"], 2),
        (["run", "recipe.yaml", "steps.talks.fails='${oc.env:TOY_TOKEN}'"], 2),
        (["run", "recipe.yaml", "description='${oc.env:TOY_TOKEN}'"], 2),
        (["runs", "--json"], 0),
        (["report", "recipe"], 0),
        (["verify"], 0),
    ):
        monkeypatch.setattr(hidden_credentials, "_READ", {})  # each command is a process of its own
        trust = ["--trust"] if arguments[0] in ("run", "plan") else []
        done = ndld_flow(*arguments, *trust, cwd=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        assert not tells(secret, (done.stdout + done.stderr).encode()), (arguments, done.stdout + done.stderr)
    assert told(secret, tmp_path / "outputs") == []
    written = yaml.safe_load(
        sorted((tmp_path / "outputs/runs/recipe").glob("2*"))[0].joinpath("recipe.yaml").read_text()
    )
    assert written["steps"]["talks"]["word"] == "${oc.env:TOY_TOKEN}"
    assert written["steps"]["talks"]["speed"] == "${oc.decode:${steps.talks.word}}"
    assert written["steps"]["other"]["word"] == "plain"


def test_another_secret_is_another_result(tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ndld_flow("run", "recipe.yaml", "--trust", cwd=tmp_path).returncode == 0
    first = sorted((tmp_path / "outputs/runs/recipe").glob("2*"))[0] / "recipe.yaml"
    assert api.run(first, outputs=tmp_path / "outputs", trust=True).nothing_to_do
    monkeypatch.setenv("TOY_TOKEN", "another-one")
    assert not api.run(first, outputs=tmp_path / "outputs", trust=True).nothing_to_do


@pytest.mark.parametrize(
    "override",
    [
        "name='${oc.env:TOY_TOKEN}'",
        "steps.talks.step='${oc.env:TOY_TOKEN}'",
        "steps.talks.from='${oc.env:TOY_TOKEN}'",
        "steps.talks.inputs.x.data='${oc.env:TOY_TOKEN}'",
        "inputs.x.data='${steps.talks.word}'",
        "model.source='${oc.env:TOY_TOKEN}'",
        "+gates=['talks.wall < ${oc.env:TOY_TOKEN}']",
        "sweep.minimize='${oc.env:TOY_TOKEN}'",
    ],
)
def test_secrets_are_refused_where_they_could_not_be_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setattr(hidden_credentials, "_READ", {})
    monkeypatch.setenv("TOY_TOKEN", "talks")
    toy = make_toy(tmp_path)
    toy.recipe.write_text("model: model.onnx\nsteps_from: [talks.py]\nsteps: {talks: {word: '${oc.env:TOY_TOKEN}'}}\n")
    (tmp_path / "talks.py").write_text(TALKS)
    with pytest.raises(RecipeError) as refused:
        api.plan(toy.recipe, [override], outputs=tmp_path / "outputs", trust=True)
    key = override.partition("=")[0].lstrip("+").removesuffix(".source")
    assert {problem.path.startswith(key) for problem in refused.value.problems} == {True}, refused.value


def test_short_secrets_are_hidden_as_words_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_credentials, "_READ", {})
    text = "at 47 of 4711 with 47-a"
    assert hide_credentials(text) == text
    hidden_credentials.remember_secrets({"47": "PIN_TOKEN"})
    assert hide_credentials(text) == "at ***PIN_TOKEN*** of 4711 with ***PIN_TOKEN***-a"
    assert hide_all_credentials([47, 4711, True, {"47": 0.47}]) == [
        "***PIN_TOKEN***",
        4711,
        True,
        {"***PIN_TOKEN***": 0.47},
    ]
    assert "secrets" in TaskOrder.model_fields  # a worker hides what its driver read
