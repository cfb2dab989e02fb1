"""Results are handed over: the model or the engine that a run made, where the user wants it, with its origin."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import onnx
import onnxruntime
import pytest

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError, RecipeError, RequestError
from ndld_flow.execution.events import RunFinished
from ndld_flow.records.document import read_document
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import ExportRecord
from ndld_flow.runner.export import Export, export_results
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_ext


@pytest.fixture
def recipe(in_folder: Path) -> Path:
    make_cnn(in_folder / "model.onnx")
    return write(in_folder)


def write(folder: Path, export: str = "", gate: str = "sanitize.nodes >= 1") -> Path:
    path = folder / "r.yaml"
    path.write_text(
        "name: r\nmodel: model.onnx\nsteps: {sanitize: {}, half: {step: convert_fp16}}\n" + f"gates: [{gate}]\n{export}"
    )
    return path


def run(recipe: Path, **options: object) -> RunFinished:
    finished = api.run(recipe, **options)  # type: ignore[arg-type]
    assert isinstance(finished, RunFinished)
    return finished


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_last_model_is_written_with_its_record(recipe: Path, in_folder: Path) -> None:
    finished = run(recipe, output="out/faster.onnx")
    assert finished.exported == ("out/faster.onnx",)
    onnx.checker.check_model(onnx.load(in_folder / "out/faster.onnx"))
    record = read_document(ExportRecord, in_folder / "out/faster.onnx.json")
    data = (in_folder / "out/faster.onnx").read_bytes()
    assert record.sha256 == {"faster.onnx": digest(in_folder / "out/faster.onnx")}
    assert (record.step, record.run, record.source) == ("half", finished.run, "model.onnx")
    assert data == Path(finished.artifacts["half"]).read_bytes()
    assert record.metrics["half.nodes"].value > 0


def test_a_run_that_reuses_everything_writes_its_result_too(recipe: Path, in_folder: Path) -> None:
    run(recipe)
    finished = run(recipe, output="faster.onnx")
    assert finished.nothing_to_do
    assert (in_folder / "faster.onnx").is_file()
    first = (in_folder / "faster.onnx").read_bytes()
    assert run(recipe, output="faster.onnx").exported == ("faster.onnx",), "what an export wrote may be replaced"
    assert (in_folder / "faster.onnx").read_bytes() == first


def test_a_recipe_names_what_to_write(recipe: Path, in_folder: Path) -> None:
    write(in_folder, "export: {dist/clean.onnx: sanitize, dist/half.onnx: half}\n")
    assert run(recipe).exported == ("dist/clean.onnx", "dist/half.onnx")
    assert len(list((in_folder / "dist").iterdir())) == 4


def test_a_folder_gets_the_model_under_the_recipes_name(recipe: Path, in_folder: Path) -> None:
    assert run(recipe, output="dist").exported == ("dist/r.onnx",)


def test_a_run_that_fails_writes_nothing(recipe: Path, in_folder: Path) -> None:
    write(in_folder, gate="sanitize.nodes <= 0")
    done = ndld_flow("run", "r.yaml", "-o", "faster.onnx", cwd=in_folder)
    assert done.returncode == 1
    assert "did not pass, so" in done.stdout + done.stderr
    assert not (in_folder / "faster.onnx").exists()


def test_the_path_is_the_last_line(recipe: Path, in_folder: Path) -> None:
    done = ndld_flow("run", "r.yaml", "-o", "faster.onnx", cwd=in_folder)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("result faster.onnx (")
    assert "not proven faster" in last, "nothing was measured"


@pytest.mark.parametrize("there", ["foreign", "changed"])
def test_a_file_of_the_user_is_never_replaced(
    there: str, recipe: Path, in_folder: Path, check_message: CheckMessage
) -> None:
    target = in_folder / "mine.onnx"
    if there == "changed":
        run(recipe, output="mine.onnx")
    target.write_bytes(b"mine")
    with pytest.raises(RequestError) as caught:
        run(recipe, output="mine.onnx")
    check_message(caught.value)
    assert target.read_bytes() == b"mine"


def test_the_source_cannot_be_replaced(recipe: Path, in_folder: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        run(recipe, output="model.onnx")
    check_message(caught.value)


def locations(model: Path) -> set[str]:
    graph = onnx.load(model, load_external_data=False).graph
    return {entry.value for each in graph.initializer for entry in each.external_data if entry.key == "location"}


def check_loads(model: Path) -> None:
    """Raise an error unless both libraries load a model with its weights."""
    onnx.checker.check_model(onnx.load(model))
    onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_external_data_are_named_after_the_model(in_folder: Path) -> None:
    make_ext(in_folder / "model.onnx")
    first, second = (run(write(in_folder), output=f"out/{name}.onnx") for name in ("big", "bigger"))
    assert (first.exported, second.exported) == (("out/big.onnx",), ("out/bigger.onnx",))
    assert first.shipped[0].startswith("weights in big.onnx.data, "), first.shipped
    names = [f"{name}.onnx{end}" for name in ("big", "bigger") for end in ("", ".data", ".json")]
    assert sorted(path.name for path in (in_folder / "out").iterdir()) == sorted(names)
    for name in ("big.onnx", "bigger.onnx"):
        assert locations(in_folder / "out" / name) == {f"{name}.data"}
        record = read_document(ExportRecord, in_folder / f"out/{name}.json")
        assert record.sha256 == {file: digest(in_folder / "out" / file) for file in (name, f"{name}.data")}
        check_loads(in_folder / "out" / name)
    assert locations(Path(first.artifacts["half"])) == {"model.onnx.data"}, "the stored result stays as it is"


def test_several_data_files_are_numbered_and_those_of_earlier_results_removed(in_folder: Path) -> None:
    make_ext(in_folder / "model.onnx")
    make_cnn(in_folder / "cnn.onnx")
    part = "{step: edit, operations: [{externalize_weights: {select: w_1, file: extra.bin}}]}"
    for model, step, data in (
        ("model.onnx", part, {"x.onnx.data", "x.onnx.data.1"}),
        ("model.onnx", "{step: sanitize}", {"x.onnx.data"}),
        ("cnn.onnx", "{step: sanitize}", set[str]()),
    ):
        text = f"name: r\nmodel: {model}\nsteps: {{one: {step}}}\nexport: {{out/x.onnx: one}}\n"
        (in_folder / "r.yaml").write_text(text)
        finished = run(in_folder / "r.yaml")
        assert {path.name for path in (in_folder / "out").iterdir()} == {"x.onnx", "x.onnx.json", *data}
        assert locations(in_folder / "out/x.onnx") == data
        assert onnx.load(in_folder / "out/x.onnx") == onnx.load(finished.artifacts["one"])
        check_loads(in_folder / "out/x.onnx")


def test_the_source_is_exported_under_another_name(in_folder: Path) -> None:
    make_ext(in_folder / "model.onnx")
    before = (in_folder / "model.onnx").read_bytes()
    folder = Path(run(write(in_folder)).folder)
    assert export_results([Export("source", Path("s.onnx"))], read_run_record(folder), folder) == [
        ("s.onnx", "s.onnx.data")
    ]
    assert (in_folder / "s.onnx.data").read_bytes() == (in_folder / "model.onnx.bin").read_bytes()
    assert (in_folder / "model.onnx").read_bytes() == before
    check_loads(in_folder / "s.onnx")


def test_no_model_is_seen_with_the_weights_of_another(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_ext(in_folder / "model.onnx")
    run(write(in_folder), output="out/big.onnx")
    model, seen, replace = in_folder / "out/big.onnx", list[tuple[str, bool]](), Path.replace

    def replace_and_look(aside: Path, target: Path) -> Path:
        if target.name.startswith("big."):
            seen.append((target.name, model.exists()))
        return replace(aside, target)

    (in_folder / "model.onnx.bin").unlink()
    make_ext(in_folder / "model.onnx", width=128)
    monkeypatch.setattr(Path, "replace", replace_and_look)
    run(write(in_folder), output="out/big.onnx")
    assert seen == [("big.onnx.data", False), ("big.onnx", False), ("big.onnx.json", True)]


@pytest.mark.parametrize("file", ["big.onnx", "big.onnx.data", "big.onnx.data.1", "big.onnx.json"])
def test_no_file_of_the_user_is_replaced_and_nothing_runs(
    file: str, in_folder: Path, check_message: CheckMessage
) -> None:
    make_ext(in_folder / "model.onnx")
    (in_folder / file).write_bytes(b"mine")
    (in_folder / "big.onnx.database").write_bytes(b"mine, and no target")
    with pytest.raises(RequestError) as caught:
        run(write(in_folder), output="big.onnx")
    check_message(caught.value)
    assert (in_folder / file).read_bytes() == b"mine"
    assert not [*(in_folder / "outputs/runs").glob("*")]
    (in_folder / file).unlink()
    run(write(in_folder), output="big.onnx")
    assert (in_folder / "big.onnx.database").exists()


@pytest.mark.parametrize(
    "output",
    ["engine.plan", "model.txt"],
)
def test_what_no_step_makes_is_refused_before_anything_runs(
    output: str, recipe: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        run(recipe, output=output)
    check_message(caught.value)
    assert not list(Path("outputs/runs").glob("*")) if Path("outputs/runs").exists() else True


@pytest.mark.representatives("{x.onnx: 1}", "[x.onnx]", "{x.onnx: hlaf}")
@pytest.mark.parametrize(
    "export",
    [
        "{../x.onnx: half}",
        "{/tmp/x.onnx: half}",
        "{x.onnx: hlaf}",
        "{x.onnx: 1}",
        "[x.onnx]",
    ],
)
def test_wrong_exports_are_problems_of_the_recipe(
    export: str, recipe: Path, in_folder: Path, check_message: CheckMessage
) -> None:
    write(in_folder, f"export: {export}\n")
    with pytest.raises(RecipeError) as caught:
        run(recipe)
    check_message(caught.value)


def test_a_sweep_has_no_single_result(recipe: Path, check_message: CheckMessage) -> None:
    with pytest.raises(NdldFlowError) as caught:
        api.run(recipe, ["steps.half.keep_io=true,false"], multirun=True, output="x.onnx")
    check_message(caught.value)


def test_programs_get_the_paths_as_json(recipe: Path, in_folder: Path) -> None:
    done = ndld_flow("run", "r.yaml", "-o", "faster.onnx", "--json", cwd=in_folder)
    assert json.loads(done.stdout.splitlines()[-1])["exported"] == ["faster.onnx"]
