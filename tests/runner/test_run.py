"""The runner, with deterministic toy steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from ndld_flow import api
from ndld_flow.base.errors import ModelError, OutputsError, RequestError
from ndld_flow.execution.events import Event, Notice, RunFinished, StepProgressed
from ndld_flow.records.run_folder import OPTIMIZATION_RECORD
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_ext
from tests.support.models_run import write_model
from tests.support.toys import RECIPE, STAMP, make_toy, outcomes, started
from tests.support.typed_api import run_once


def objects(folder: Path) -> list[Path]:
    return sorted((folder / "outputs" / "store" / "objects").glob("*/*"))


def test_a_run_computes_every_step_in_order_and_reads_the_input_of_from(in_folder: Path) -> None:
    done, events = make_toy(in_folder).run()
    assert done.passed
    assert started(events) == ["first", "second", "aside"]
    folder = Path(done.folder)
    stamps = {name: onnx.load(folder / name / "model.onnx").doc_string for name in ("first", "second", "aside")}
    assert stamps == {"first": "a\n", "second": "a\nb\n", "aside": "c\n"}
    assert any(isinstance(event, StepProgressed) and event.total == 10 for event in events)


def test_a_run_folder_holds_the_files_for_its_user(in_folder: Path) -> None:
    done, _ = make_toy(in_folder).run()
    folder = Path(done.folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "report.html", "run.json", "recipe.yaml", "command.txt", "log.txt", "summary.md",
        "first", "second", "aside",
    }  # fmt: skip
    assert "stamped a" in (folder / "first" / "log.txt").read_text()
    assert (in_folder / "outputs/runs/toy/latest").resolve() == folder.resolve()
    run = RunRecord.model_validate_json((folder / "run.json").read_text())
    assert [step.name for step in run.steps] == ["first", "second", "aside"]
    assert run.gates[0].left == 4


def test_a_second_run_does_nothing_and_names_the_first(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    first, _ = toy.run()
    again, events = toy.run()
    assert again.nothing_to_do
    assert again.folder == first.folder
    assert started(events) == []
    assert len(api.runs(outputs=in_folder / "outputs")) == 1


def test_the_page_of_an_optimization_is_not_replaced(in_folder: Path) -> None:
    """A second search overwrote the table of the first, whose best variant it had no time to try."""
    toy = make_toy(in_folder)
    first, _ = toy.run()
    (Path(first.folder) / OPTIMIZATION_RECORD).write_text("{}")
    again, events = toy.run()
    assert again.folder != first.folder and not again.nothing_to_do
    assert started(events) == [], "all results are reused"


def test_two_recipes_of_one_name_are_a_warning(in_folder: Path) -> None:
    """Their runs would be one history."""
    toy = make_toy(in_folder)
    toy.run()
    other = shutil.copy(toy.recipe, in_folder / "other.yaml")
    for recipe, count in ((toy.recipe, 0), (other, 1)):
        events: list[Event] = []
        run_once(recipe, ["steps.aside.word=d"], outputs=in_folder / "outputs", trust=True, listener=events.append)
        warnings = [event.text for event in events if isinstance(event, Notice) and event.warning]
        assert len([text for text in warnings if "toy.yaml" in text and "other.yaml" in text]) == count


def test_a_changed_setting_reruns_that_step_and_what_depends_on_it(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    toy.run()
    plan = toy.plan("steps.first.word=z")
    assert plan["first"] == ("settings changed", "word a -> z")
    assert plan["second"][0] == "input changed"
    assert plan["aside"] == ("reused", "")
    _, events = toy.run("steps.first.word=z")
    assert started(events) == ["first", "second"]
    assert outcomes(events)["aside"] == "reused"


def test_a_changed_nested_setting_is_named_by_its_path(in_folder: Path) -> None:
    nested = STAMP.replace('word: str = "x"', 'how: Inks = Inks()\n    """How."""\n    word: str = "x"').replace(
        "class Stamp", "class Inks(BaseModel):\n    red: int = 0\n    blue: int = 0\n\n\nclass Stamp"
    )
    toy = make_toy(in_folder).write(RECIPE, nested.replace("import os", "import os\nfrom pydantic import BaseModel"))
    toy.run()
    assert toy.plan("steps.first.how.blue=2")["first"] == ("settings changed", "how.blue 0 -> 2")


def test_a_step_with_an_unchanged_result_reruns_no_later_step(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    toy.run()
    _, events = toy.run("steps.first.seconds=0.001")  # another setting, the same model
    assert started(events) == ["first"]
    assert outcomes(events)["second"] == "reused"


def test_results_of_an_earlier_setting_are_reused(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    toy.run()
    toy.run("steps.first.word=z")
    back, events = toy.run()
    assert started(events) == []
    assert not back.nothing_to_do  # the latest run said something else, so there is a new one


def test_a_changed_byte_of_external_data_reruns_all(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    make_ext(in_folder / "model.onnx")
    toy.run()
    data = next(path for path in in_folder.glob("model*") if path.suffix != ".onnx")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert {name: reason for name, (reason, _) in toy.plan().items()} == {
        "first": "input changed",
        "second": "input changed",
        "aside": "input changed",
    }
    _, events = toy.run()
    assert started(events) == ["first", "second", "aside"]


def test_a_changed_byte_is_found_in_a_large_file_with_a_restored_time(in_folder: Path) -> None:
    import os

    store = Store(in_folder / "store")
    large = in_folder / "large"
    large.write_bytes(bytes(17 * 2**20))
    stat = large.stat()
    os.utime(large, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10**10))
    before = store.digests.digest(large)
    with large.open("r+b") as file:
        file.seek(10**6)
        file.write(b"x")
    os.utime(large, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10**10))
    assert store.digests.digest(large) != before


def test_a_step_version_and_a_library_version_are_part_of_the_key(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy(in_folder)
    toy.run()
    monkeypatch.setattr("ndld_flow.step.read_version", lambda library: "99.9")
    assert toy.plan()["first"][0] == "tool version"
    assert "99.9" in toy.plan()["first"][1]
    monkeypatch.undo()
    monkeypatch.chdir(in_folder)
    toy.write(RECIPE, STAMP.replace('libraries = ("onnx",)', 'libraries = ("onnx",)\n    version = 2'))
    assert toy.plan()["first"][0] == "step version"


def test_editing_the_file_of_a_step_reruns_it(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    toy.run()
    toy.write(RECIPE, STAMP.replace('"\\n"', '"!\\n"'))
    done, events = toy.run()
    assert started(events) == ["first", "second", "aside"]
    assert onnx.load(Path(done.folder) / "first" / "model.onnx").doc_string == "a!\n"


@pytest.mark.parametrize("change", ["truncate", "edit", "remove"])
def test_a_damaged_artifact_is_set_aside_and_rebuilt(in_folder: Path, change: str) -> None:
    toy = make_toy(in_folder)
    done, _ = toy.run()
    good = (Path(done.folder) / "first" / "model.onnx").read_bytes()
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    assert run.steps[0].record is not None
    stored = Store(in_folder / "outputs/store").object_folder(run.steps[0].record.artifact.digest) / "model.onnx"
    stored.chmod(0o644)
    if change == "truncate":
        stored.write_bytes(good[:-10])
    elif change == "edit":
        stored.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    else:
        stored.unlink()
    assert toy.plan()["first"][0] == "artifact damaged"
    again, events = toy.run()
    assert started(events) == ["first"]
    assert stored.read_bytes() == good
    assert again.passed


def test_forced_steps_run_again(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder)
    toy.run()
    _, events = toy.run(force=["first"])
    assert started(events) == ["first"]
    with pytest.raises(RequestError) as caught:
        toy.run(force=["frist"])
    check_message(caught.value)


def test_a_failed_gate_fails_the_run_and_writes_the_report(in_folder: Path) -> None:
    toy = make_toy(in_folder, RECIPE.replace(">= 2", ">= 200"))
    done, _ = toy.run()
    assert not done.passed
    assert Path(done.report).is_file()
    again, _ = toy.run()
    assert again.nothing_to_do
    assert not again.passed  # nothing to do is no reason to forget that the answer was no


def test_a_gate_on_a_missing_metric_names_the_available_ones(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder, RECIPE.replace("second.length", "second.lenght"))
    with pytest.raises(RequestError) as caught:
        toy.run()
    check_message(caught.value)


def test_other_steps_continue_after_a_step_fails(in_folder: Path) -> None:
    toy = make_toy(in_folder, RECIPE.replace("word: a", "word: a, passed: false"))
    done, events = toy.run()
    assert not done.passed
    assert outcomes(events) == {"first": "failed", "second": "done", "aside": "done"}


def test_a_step_that_stops_the_run_skips_later_steps(in_folder: Path) -> None:
    toy = make_toy(in_folder, RECIPE.replace("word: a", "word: a, passed: false"))
    toy.write(toy.recipe.read_text(), STAMP.replace("libraries =", "stops_run = True\n    libraries ="))
    done, events = toy.run()
    assert outcomes(events) == {"first": "failed", "second": "skipped", "aside": "skipped"}
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    assert run.steps[1].reason == "first failed"


def test_the_run_folder_repeats_itself(in_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    toy = make_toy(in_folder)
    done, _ = toy.run()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)
        again = api.run(Path(done.folder) / "recipe.yaml", outputs=elsewhere / "outputs", trust=True)
        assert again.passed
        same = api.run(Path(done.folder) / "recipe.yaml", outputs=in_folder / "outputs", trust=True)
    assert same.nothing_to_do
    first, second = (onnx.load(Path(run.folder) / "second" / "model.onnx") for run in (done, again))
    assert first == second


def test_a_resolved_recipe_refuses_another_model(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder)
    done, _ = toy.run()
    make_ext(in_folder / "model.onnx")
    with pytest.raises(RequestError) as caught:
        api.run(Path(done.folder) / "recipe.yaml", outputs=in_folder / "outputs", trust=True)
    check_message(caught.value)


def test_artifacts_in_the_store_and_in_the_run_folder_are_separate_files(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    done, _ = toy.run()
    opened = Path(done.folder) / "first" / "model.onnx"
    opened.chmod(0o644)
    opened.write_bytes(b"a person's edit")
    assert toy.plan()["first"][0] == "reused"


def test_a_step_that_writes_nothing_is_reported(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder)
    toy.write(RECIPE, STAMP.replace("onnx.save(model, out / Onnx.main)", "pass"))
    with pytest.raises(RequestError) as caught:
        toy.run()
    check_message(caught.value)
    assert objects(in_folder) == []


def test_a_step_that_raises_leaves_no_incomplete_files(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    toy.write(RECIPE, STAMP.replace("context.log.info", "raise ZeroDivisionError\n        context.log.info"))
    with pytest.raises(ZeroDivisionError):
        toy.run()
    assert objects(in_folder) == []
    assert list((in_folder / "outputs/store/building").iterdir()) == []


def test_a_missing_model_is_reported_with_similar_names(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder, RECIPE.replace("model.onnx", "modle.onnx"))
    with pytest.raises(ModelError) as caught:
        toy.run()
    check_message(caught.value)


def test_an_outputs_folder_that_cannot_be_created_is_an_error(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    (in_folder / "outputs").write_text("a file")
    with pytest.raises(OutputsError, match="--outputs"):
        toy.run()


def test_code_of_a_recipe_needs_trust(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    (in_folder / "steps" / "stamp.py").write_text("raise SystemExit('must not run')")
    with pytest.raises(RequestError, match="--trust"):
        api.run(toy.recipe, outputs=in_folder / "outputs")


def test_records_list_the_parts_of_the_key(in_folder: Path) -> None:
    done, _ = make_toy(in_folder).run()
    record = json.loads((Path(done.folder) / "second" / "record.json").read_text())
    assert record["parts"]["settings"] == {"word": "b", "seconds": 0.0, "passed": True}
    assert record["parents"] == {"from": "first"}
    assert record["change"]["before"] == record["change"]["after"], "a doc string changes no node"
    assert record["parts"]["libraries"] == {"onnx": onnx.__version__}


def test_a_reused_run_imports_nothing_heavy(in_folder: Path) -> None:
    """Nor does it read the documents of steps: the run's record says what its results are."""
    make_toy(in_folder)
    first = api.run("toy.yaml", trust=True, output="result.onnx")
    assert isinstance(first, RunFinished)
    heavy = {"onnx", "onnx_ir", "onnxruntime", "numpy", "pandas", "matplotlib", "hydra", "omegaconf", "jinja2"}
    heavy |= {"ndld_flow.report.verdict", "ndld_flow.records.profile", "ndld_flow.records.accuracy"}
    code = (
        "import sys; from ndld_flow import api; done = api.run('toy.yaml', trust=True, output='result.onnx');"
        f"assert done.nothing_to_do; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules);"
        f"assert done.shipped == {first.shipped}; own = [name for name in sys.modules if name.startswith('ndld_flow')];"
        f"assert len(own) <= 128, len(own)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=in_folder, check=True)


def test_a_plan_of_new_work_imports_no_records_of_finished_work(in_folder: Path) -> None:
    """Each of these, or a module that it needs, takes a twentieth of the time of a plan."""
    make_cnn(in_folder / "cnn.onnx")
    steps: dict[str, object] = {name: {} for name in ("lint", "sanitize", "convert_fp16", "profile")}
    steps["base"] = {"step": "profile", "from": "source"}
    steps["decide"] = {"step": "compare_profiles", "from": "profile", "base": "base", "gates": ["latency.min <= 5 ms"]}
    recipe = {"model": "cnn.onnx", "steps": steps}
    api.plan(recipe)  # the first one reads the model
    unneeded = [
        "logging",
        "ndld_flow.cli.app",
        "ndld_flow.recipe.schema",
        "ndld_flow.profiles.compare.comparison",
        "ndld_flow.records.comparison",
        "ndld_flow.records.model_diff",
        "ndld_flow.records.profile",
        "ndld_flow.records.run_record",
        "ndld_flow.execution.events",
        "ndld_flow.runner.run_record",
    ]
    code = (
        "import sys; from ndld_flow import api\n"
        f"assert not any(decision.reused for decision in api.plan({recipe}))\n"
        f"found = set({unneeded}) & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], cwd=in_folder, check=True)


def test_runs_of_one_second_are_ordered_by_their_end(in_folder: Path) -> None:
    outputs = Outputs(in_folder / "outputs")
    toy = make_toy(in_folder)
    toy.run()
    ordered = next(outputs.folders())
    second = ordered.name.partition("-")[0]
    for age, end in enumerate("cab", 1):  # names do not show the order within a second; the listed run comes first
        shutil.copytree(ordered, ordered.parent / f"{second}-{end}00000")
        os.utime(ordered.parent / f"{second}-{end}00000" / "run.json", ns=(age, age))
    assert [folder.name[-6] for folder in outputs.folders()] == [ordered.name[-6], "c", "a", "b"]


def test_errors_name_the_step_whose_model_fails_and_no_path_of_the_store(
    in_folder: Path, check_message: CheckMessage
) -> None:
    graph = "g (float[n,3] x) => (float[m] y) <int64[1] s = {9}> { a = Neg(x) b = Neg(a) y = Reshape(b, s) }"
    write_model(in_folder / "model.onnx", graph)
    quick = "runs: 1, passes: 1, duration: 0, stable: 0 %, warmup: 0, warmup_passes: 0, layer_passes: 0"
    (in_folder / "r.yaml").write_text(
        f"model: model.onnx\nsteps: {{sanitize: {{}}, speed: {{step: profile, {quick}}}}}\n"
    )
    with pytest.raises(RequestError) as raised:
        api.run("r.yaml")
    check_message(raised.value)
    assert "objects" not in str(raised.value)


def test_two_recipes_of_one_name_get_a_warning(in_folder: Path) -> None:
    """Not a run again, by whatever path, nor one of the copy that each run's folder has."""
    toy = make_toy(in_folder)

    def warnings(recipe: Path | str) -> list[str]:
        events: list[Event] = []
        run_once(recipe, outputs=toy.folder / "outputs", trust=True, listener=events.append)
        return [event.text for event in events if isinstance(event, Notice) and event.warning]

    (toy.folder / "sub").mkdir()
    other = toy.folder / "sub/other.yaml"
    other.write_text(toy.recipe.read_text().replace("steps/stamp.py", str(toy.folder / "steps/stamp.py")))
    assert warnings(toy.recipe) == []
    assert warnings("sub/../toy.yaml") == []
    copy = next(toy.folder.glob("outputs/runs/toy/2*")) / "recipe.yaml"
    assert warnings(copy) == []
    [warning] = warnings(other)
    assert "toy.yaml" in warning and "sub/other.yaml" in warning
    toy.recipe.unlink()
    assert warnings(other) == [], "it was renamed"
