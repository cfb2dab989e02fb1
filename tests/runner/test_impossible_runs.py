"""Checks before a run starts: notes and obstacles of steps, code that needs trust, additional inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RecipeError
from ndld_flow.cli.app import program
from ndld_flow.records.key_parts import KeyParts
from tests.support.message_files import CheckMessage
from tests.support.toys import Toy, make_toy, started
from tests.support.typed_api import plan_once

STEP = '''
"""Needs something that a machine may lack."""

import os
from pathlib import Path
from typing import Annotated

from ndld_flow.plugin import Context, DataFile, Foresight, Onnx, Reads, Result, Reuse, RunsCode, Step


class Stamp(Step[Onnx, Onnx]):
    """Copy a model on a machine that has what it takes."""

    release: str = "1.0"
    """Release of the library it takes."""
    also: Annotated[str | None, Reads(Onnx)] = None
    """Another model to read."""
    plugins: Annotated[tuple[Path, ...], DataFile(), RunsCode()] = ()
    """Code to load."""
    everywhere: bool = True
    """Whether the result is independent of this machine."""

    def foresee(self) -> Foresight:
        return Foresight(
            notes=(f"toylib {self.release}: copies",),
            problems=("toylib 2.0 cannot copy; take 1.0",) if self.release == "2.0" else (),
            lacks=("toylib is not here; pip install toylib, or '~steps.NAME'",) if "TOY_LACKS" in os.environ else (),
        )

    def reused_where(self) -> Reuse:
        return Reuse.ANYWHERE if self.everywhere else Reuse.THIS_MACHINE

    def library_versions(self) -> dict[str, str]:
        return {"toylib": self.release}

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx

        model = onnx.load(source.path)
        model.doc_string = context.name
        onnx.save(model, out / Onnx.main)
        context.caches.mkdir(parents=True, exist_ok=True)
        (context.caches / "toy").write_text("kept")
        read = context.artifacts.get("also")
        return Result(f"also read {read.label}" if read else "copied")
'''

RECIPE = """
name: toy
model: model.onnx
steps_from: [steps/stamp.py]
steps:
  first: {step: stamp}
  second: {step: stamp}
"""


@pytest.fixture
def toy(in_folder: Path) -> Toy:
    paths = make_toy(in_folder)
    return paths.write(RECIPE, STEP)


def test_missing_requirements_end_the_run_before_it_starts(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_LACKS", "1")
    with pytest.raises(BackendError) as caught:
        toy.run("steps.second.release='2.0'")
    assert str(caught.value).splitlines() == [
        "step first: toylib is not here; pip install toylib, or '~steps.first'",
        "step second: toylib 2.0 cannot copy; take 1.0",
        "step second: toylib is not here; pip install toylib, or '~steps.second'",
    ]
    assert not list((toy.folder / "outputs/store").glob("records/*/*"))


def test_a_profile_has_only_the_requirements_of_this_machine(in_folder: Path, check_message: CheckMessage) -> None:
    """It is refused before anything is written; a target has what this machine lacks."""
    make_toy(in_folder)
    with pytest.raises(BackendError) as unavailable:
        api.profile("model.onnx", ["provider_library=nowhere.so"])
    check_message(unavailable.value)
    assert not Path("outputs/runs").exists()
    for settings, on in ((["on=nowhere"], ""), ([], "nowhere")):
        with pytest.raises(api.NdldFlowError) as caught:
            api.profile("model.onnx", ["provider_library=nowhere.so", *settings], on=on)
        assert "nowhere.so" not in str(caught.value)


def test_reused_steps_have_no_requirements(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    toy.run()
    monkeypatch.setenv("TOY_LACKS", "1")
    assert toy.run()[0].nothing_to_do
    with pytest.raises(BackendError) as caught:
        toy.run("steps.second.release='1.1'")
    check_message(caught.value)
    assert "step first" not in str(caught.value)


def test_plan_shows_requirements_and_exits_2_for_impossible_runs(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*overrides: str) -> tuple[int, str]:
        done = CliRunner().invoke(program, ["plan", "toy.yaml", "--trust", *overrides], standalone_mode=False)
        return done.return_value, done.output

    assert plan()[0] == 0
    assert "toylib 1.0: copies" in plan()[1]
    code, text = plan("steps.first.release='2.0'", "--json")
    assert code == 2
    first, second = json.loads(text)
    assert first["problems"] == ["toylib 2.0 cannot copy; take 1.0"]
    assert second["notes"] == ["toylib 1.0: copies"]
    monkeypatch.setenv("TOY_LACKS", "1")
    code, text = plan()
    assert code == 0, "planning for another machine is no mistake"
    assert text.count("toylib is not here; pip install toylib") == 2
    assert "'~steps.second'" in text


def test_versions_and_locations_of_a_step_are_in_its_key(toy: Toy) -> None:
    def parts(*overrides: str) -> KeyParts:
        first = plan_once(toy.recipe, overrides, trust=True)[0].parts
        assert first is not None
        return first

    assert parts().libraries["toylib"] == "1.0"
    assert parts("steps.first.release='1.1'").libraries["toylib"] == "1.1"
    assert parts().machine == ""
    assert parts("steps.first.everywhere=false").machine


def test_a_step_may_read_additional_inputs_when_allowed(toy: Toy, check_message: CheckMessage) -> None:
    toy.run("steps.second.also=source")
    done, _ = toy.run("steps.second.also=first")
    record = json.loads((Path(done.folder) / "run.json").read_text())["steps"]
    assert [step["record"]["summary"] for step in record] == ["copied", "also read first"]
    assert record[1]["record"]["parents"] == {"from": "first", "also": "first"}
    with pytest.raises(RecipeError) as caught:
        toy.run("steps.second.also=nobody")
    check_message(caught.value)


def test_contents_of_files_that_a_step_loads_are_in_its_key(in_folder: Path, toy: Toy) -> None:
    (in_folder / "plugin.so").write_bytes(b"one")
    decided = plan_once(toy.recipe, ["steps.first.plugins=[plugin.so]"], trust=True)[0]
    assert decided.parts is not None
    reads = set(decided.parts.reads)
    assert reads == {"from", "plugins.0", "file stamp.py (next to stamp)"}, "its contents count, not its name"
    assert "plugins" not in decided.parts.settings
    (in_folder / "plugin.so").write_bytes(b"two")
    assert plan_once(toy.recipe, ["steps.first.plugins=[plugin.so]"], trust=True)[0].key != decided.key


def test_caches_persist_and_are_shared(toy: Toy) -> None:
    toy.run()
    (toy.folder / "outputs/store/caches/mine").write_text("stays")
    _, events = toy.run("steps.first.release='1.1'")
    assert "first" in started(events)
    assert {path.name for path in (toy.folder / "outputs/store/caches").iterdir()} == {"toy", "mine"}
    gone = CliRunner().invoke(program, ["gc", "--keep", "1"], standalone_mode=False)
    assert gone.exception is None
    assert (toy.folder / "outputs/store/caches/mine").read_text() == "stays"


CODE = """
model: model.onnx
inputs: {x: {shape: [1, 3, 16, 16]}}
steps:
  engine: {step: build_engine, backend: tensorrt_rtx}
"""


@pytest.mark.parametrize(
    ("setting", "names"), [("plugins=[evil.so, worse.so]", "evil.so, worse.so"), ("library=elsewhere", "elsewhere")]
)
def test_code_named_by_a_setting_needs_trust(toy: Toy, setting: str, names: str) -> None:
    recipe = toy.folder / "code.yaml"
    recipe.write_text(CODE)
    for name in ("evil.so", "worse.so"):
        (toy.folder / name).touch()
    with pytest.raises(RecipeError) as caught:
        plan_once(recipe, [f"steps.engine.{setting}"])
    (problem,) = caught.value.problems
    assert problem.path == f"steps.engine.{setting.partition('=')[0]}"
    assert f"recipe names: {names}" in problem.what
    assert "--trust" in problem.hint
    assert plan_once(recipe, [f"steps.engine.{setting}"], trust=True)
    assert plan_once(recipe), "what it does by itself needs no trust"


def test_a_missing_data_file_is_reported_before_the_model_is_fetched(in_folder: Path) -> None:
    source = f"{{source: 'http://127.0.0.1:9/m.onnx', sha256: {'a' * 64}}}"
    recipe = in_folder / "r.yaml"
    recipe.write_text(
        f"name: r\nmodel: {source}\ninputs: {{x: {{data: missing.npy}}}}\nsteps: {{speed: {{step: profile}}}}\n"
    )
    with pytest.raises(RecipeError) as caught:
        api.run(recipe, outputs=in_folder / "outputs")
    (problem,) = caught.value.problems
    assert (problem.path, problem.where) == ("inputs.x", f"{recipe}:3")
