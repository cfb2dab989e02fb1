"""Steps as commands: the settings are the options, and a recipe with the step is written and run."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from ndld_flow.cli.step_command import find_step_command
from ndld_flow.cli.verbs import changing_steps
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.records.document import read_document
from ndld_flow.records.run_record import ExportRecord
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Engine, Onnx
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

RECIPE = Path("outputs/recipes/convert_fp16-model.yaml")


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_cnn(tmp_path / "model.onnx")
    return tmp_path


def test_the_names_are_those_of_all_steps_that_change_a_model() -> None:
    """As their files say, which are not imported: `--help` lists them."""
    kinds = {kind.name: kind.cls.kinds() for kind in StepTypes()}
    assert changing_steps() == sorted(
        name for name, (reads, makes) in kinds.items() if reads is Onnx and makes in (Onnx, Engine)
    )


def test_every_setting_of_every_step_is_an_option_or_in_conflict_with_one() -> None:
    for name in changing_steps():
        command, kind = find_step_command(name), StepTypes().find(name)
        assert command is not None and kind is not None
        words = {word for parameter in command.params for word in parameter.opts}
        settings = kind.cls.model_json_schema()["properties"]
        unread = {name for name, read in kind.cls.marked(Reads).items() if read.kind is not Onnx}
        assert {f"--{setting.replace('_', '-')}" for setting in settings if setting not in unread} <= words, name


def test_the_help_shows_the_values_to_choose_from(tmp_path: Path) -> None:
    assert "--mode static|dynamic|weight_only" in ndld_flow("quantize", "--help", cwd=tmp_path).stdout
    assert "{...}" not in ndld_flow("convert_fp16", "--help", cwd=tmp_path).stdout


def test_a_step_runs_as_a_recipe_that_can_go_on(in_folder: Path) -> None:
    options = ("--keep-io", "false", "block.op_types=[Softmax]")
    done = ndld_flow("convert_fp16", "model.onnx", "-o", "half.onnx", *options, cwd=in_folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"recipe {RECIPE}"
    assert onnx.load(in_folder / "half.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    [step] = load_recipe(RECIPE).steps
    block = step.settings["block"]
    assert step.settings["keep_io"] is False
    assert isinstance(block, dict) and block["op_types"] == ["Softmax"]
    again = ndld_flow("run", str(RECIPE), cwd=in_folder)
    assert again.stdout.startswith("nothing to do") or "reused" in again.stdout, "the same keys"
    assert read_document(ExportRecord, in_folder / "half.onnx.json").step == "convert_fp16"


def test_lists_are_repeated_or_written_as_lists(in_folder: Path) -> None:
    words = ("--op-types", "MatMul", "--op-types", "[Conv, Gemm]", "--no-per-channel", "--write", "q.yaml")
    assert ndld_flow("quantize", "model.onnx", *words, cwd=in_folder).returncode == 0
    assert not Path("outputs/runs").exists()
    recipe = load_recipe(Path("q.yaml"))
    assert recipe.steps[0].settings["op_types"] == ["MatMul", "Conv", "Gemm"]
    assert recipe.steps[0].settings["per_channel"] is False
    assert recipe.file.inputs["x"].run_shape is not None, "as a trial found it"


def test_a_model_is_checked_against_another(in_folder: Path) -> None:
    make_cnn(in_folder / "other.onnx")
    done = ndld_flow("check_accuracy", "model.onnx", "--reference", "other.onnx", "--power", "off", cwd=in_folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "within" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("convert_fp16", "model.onnx", "--keep-io", "3"), "--keep-io: expected true or false"),
        (("convert_fp16", "model.onnx", "--block", "{op_type: [Relu]}"), "block.op_type: there is no setting"),
        (("convert_fp16", "model.onnx", "block.op_types"), "block.op_types: write SETTING=VALUE"),
        (("convert_fp16", "model.onnx", "keep_io.x=1", "--keep-io", "true"), "keep_io.x=1"),
        (("convert_fp16", "model.onnx", "--block", "{op_types: [Relu"), "--block: this is not YAML"),
        (("convert_fp16", "model.onnx", "--keepio", "true"), "--keepio"),
        (("convert_fp16", "nowhere.onnx"), "nowhere.onnx"),
        (("edit", "model.onnx"), "--operations: `operations` is missing"),
        (("compare_profiles", "model.onnx"), "use it in a recipe"),
        (("simplify", "model.onnx"), "did you mean `sanitize`?"),
        (("fix_shapes", "model.onnx", "--shape", "x=axb"), "--shape"),
    ],
)
def test_errors_name_the_option(arguments: tuple[str, ...], named: str, in_folder: Path) -> None:
    done = ndld_flow(*arguments, cwd=in_folder)
    assert done.returncode == 2, done.stdout
    assert named in done.stderr
    assert not RECIPE.exists() or "nowhere" in named


def test_programs_get_the_events_of_the_run(in_folder: Path) -> None:
    done = ndld_flow("sanitize", "model.onnx", "-o", "clean.onnx", "--json", cwd=in_folder)
    assert json.loads(done.stdout.splitlines()[-1])["exported"] == ["clean.onnx"]
