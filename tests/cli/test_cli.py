"""The command line: its output and exit codes, in real processes where that matters."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from ndld_flow import __version__, api
from ndld_flow.cli.verbs import list_verbs
from ndld_flow.execution.events import RunFinished
from ndld_flow.machine.host import describe_machine
from ndld_flow.runs import collect_garbage
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.process_runs import ProcessRun
from tests.support.recipes import load_recipe
from tests.support.toys import RECIPE, STAMP, make_toy, outcomes
from tests.support.worker_toys import wait_until


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`ndld-flow` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ndld_flow", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def refused(*arguments: str, cwd: Path) -> str:
    """The one paragraph of a wrong request."""
    done = ndld_flow(*arguments, cwd=cwd)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr


def test_help_imports_nothing(tmp_path: Path) -> None:
    done = start("--help", cwd=tmp_path)
    assert done.returncode == 0
    for verb, text in list_verbs().items():
        assert verb in done.stdout
        assert text in done.stdout
    assert "init --example quickstart" in done.stdout
    code = (
        "import sys; sys.argv = ['ndld-flow', '--help']\n"
        "from ndld_flow.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'hydra', 'json', 'numpy', 'pydantic', 'rich', 'yaml'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_fits_the_terminal_and_reports_a_full_disk(tmp_path: Path, check_message: CheckMessage) -> None:
    whole = start("--help", cwd=tmp_path).stdout
    assert start("-h", cwd=tmp_path).stdout == whole
    narrow = start("--help", cwd=tmp_path, COLUMNS="60").stdout
    assert narrow.split() == whole.split() and max(map(len, narrow.splitlines())) <= 60
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(
            [sys.executable, "-m", "ndld_flow", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert failed.returncode == 2 and "Traceback" not in failed.stderr
    check_message(failed.stderr)


def test_version(tmp_path: Path) -> None:
    assert start("--version", cwd=tmp_path).stdout == f"ndld-flow {__version__}\n"


@pytest.mark.representatives("arguments8", "arguments9", "arguments3")
@pytest.mark.parametrize(
    "arguments",
    [
        ["rnu"],
        ["run"],
        ["run", "--frce"],
        ["run", "nowhere.yaml"],
        ["plan", "toy.yaml"],
        ["report", "nowhere"],
        ["tag", "latest", "x"],
        ["steps", "sanitise"],
        ["init", "nowhere.onnx"],
        ["run", "toy.yaml", "--trust", "--force", "frist"],
        ["run", "toy.yaml", "--trust", "model=text.onnx"],
        ["run", "toy.yaml", "--trust", "model=empty.onnx"],
    ],
)
def test_a_wrong_request_is_one_paragraph_and_exit_code_2(
    in_folder: Path, arguments: list[str], check_message: CheckMessage
) -> None:
    make_toy(in_folder)
    (in_folder / "text.onnx").write_text("this is not a model")
    (in_folder / "empty.onnx").write_bytes(b"")
    check_message(refused(*arguments, cwd=in_folder))


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "nowhere.onnx"],
        ["optimize", "model.onnx", "--data", "x=nowhere/"],
        ["init", "nowhere.onnx"],
        ["profile", "nowhere.onnx"],
        ["compare", "model.onnx", "nowhere.onnx"],
        ["check_accuracy", "model.onnx", "--reference", "nowhere.onnx"],
        ["compare", "model.onnx", "model.onnx", "--data", "nowhere/"],
        ["compare", "model.onnx", "other.onnx", "--gate", "nowhere <= 1"],
        ["compare", "model.onnx", "other.onnx", "--runtime", "nowhere"],
        ["draw", "nowhere.onnx"],
        ["init", "model.onnx", "--shape", "nowhere=1"],
        ["inspect", "text.onnx"],
        ["inspect", "model.onnx", "--node", "nowhere"],
        ["inspect", "model.onnx", "--op-type", "Conv", "--near", "nowhere"],
        ["optimize", "model.onnx", "--data", "nowhere=text.onnx/"],
        ["profile", "model.onnx", "backend=nowhere"],
        ["profile", "model.onnx", "inputs.nowhere.shape=[1]"],
        ["profile", "text.onnx"],
        ["quantize", "model.onnx", "--data", "nowhere/"],
        ["quantize", "model.onnx", "method=nowhere"],
        ["run", "wrong.yaml"],
        ["run", "wrong.yaml", "model=text.onnx"],
        ["run", "right.yaml", "inputs.x.data=nowhere.png"],
    ],
)
def test_wrong_input_is_reported_before_libraries_are_imported(in_folder: Path, arguments: list[str]) -> None:
    """Importing these takes a second; `text.onnx` is no model."""
    for name in ("model.onnx", "other.onnx"):
        make_cnn(in_folder / name)
    (in_folder / "text.onnx").write_text("nowhere in this text is a model")
    for name, given in (("right", "x: {data: random}"), ("wrong", "nowhere: {}")):
        text = f"model: model.onnx\ninputs: {{{given}}}\nsteps: {{speed: {{step: profile}}}}\n"
        (in_folder / f"{name}.yaml").write_text(text)
    if "model.onnx" not in arguments[1:2] or arguments[0] == "profile":
        start("plan", "right.yaml", cwd=in_folder)  # a model that a recipe names is loaded once, when it is new
    done = start(*arguments, cwd=in_folder, PYTHONPROFILEIMPORTTIME="1")
    message = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    assert done.returncode == 2 and ("nowhere" in message or "text.onnx: " in message)
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "click" in imported and not {"onnx", "onnx_ir", "onnxruntime", "sympy"} & imported


@pytest.mark.parametrize(
    "arguments",
    [
        ["ops", "nowhere"],
        ["optimize", "model.onnx", "--data", "nowhere.npy"],
        ["init", "model.onnx", "--data", "x=nowhere.npy"],
        ["profile", "model.onnx", "backend=tensorrt", "release=1.2.3"],
        ["profile", "model.onnx", "provider_library=nowhere.so"],
    ],
)
def test_wrong_values_and_missing_libraries_are_reported_before_a_model_is_loaded(
    in_folder: Path, arguments: list[str]
) -> None:
    """Such a run leaves no folder, whose report would take as long as the answer."""
    make_cnn(in_folder / "model.onnx")
    np.save("nowhere.npy", np.zeros((2, 1, 3, 8, 8), np.int64))
    done = start(*arguments, cwd=in_folder, PYTHONPROFILEIMPORTTIME="1")
    message = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    assert done.returncode == 2 and ("nowhere" in message or "release" in message)
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "click" in imported and not {"onnx_ir", "sympy", "jinja2"} & imported
    assert not Path("outputs/runs").exists()


BUILT_IN = """
name: built-in
model: model.onnx
steps:
  lint: {polygraphy: never}
  sanitize: {}
  half: {step: convert_fp16}
  agree: {step: check_accuracy}
  speed: {step: profile, passes: 2, duration: 0, runs: 1, stable: 0}
"""


@pytest.fixture
def built_in(in_folder: Path) -> Path:
    """A recipe of real steps, a good model, and models that are broken in several ways."""
    (in_folder / "recipe.yaml").write_text(BUILT_IN)
    good = make_cnn(in_folder / "model.onnx").read_bytes()
    (in_folder / "truncated.onnx").write_bytes(good[: len(good) // 2])
    versions = {"ir_version": 8, "opset_imports": [helper.make_opsetid("", 17)]}
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="odd_one")
    x, y = (helper.make_tensor_value_info(name, 1, [1]) for name in "xy")
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), **versions), in_folder / "unknown_op.onnx")
    return in_folder


@pytest.mark.representatives("arguments9", "arguments5")
@pytest.mark.parametrize(
    "arguments",
    [
        ["model=truncated.onnx"],
        ["model=unknown_op.onnx", "~steps.lint"],
        ["model=unknown_op.onnx", "~steps.lint", "~steps.sanitize", "~steps.half"],
        ["steps.speed.provider=cpuu"],
        ["steps.speed.provider=cuda"],
        ["+inputs.unknown={shape: [1, 3, 16, 16]}"],
        ["+inputs.x={shape: [1, 3, 17, 16]}"],
        ["+inputs.x={data: nowhere.npy}"],
        ["steps.half.block.nodes=[nothing*]"],
        ["model={source: model.onnx, sha256: " + "0" * 64 + "}"],
    ],
)
def test_errors_of_built_in_steps_are_one_paragraph(
    built_in: Path, arguments: list[str], check_message: CheckMessage
) -> None:
    if "cuda" in arguments[0] and describe_machine().gpus:
        pytest.skip("there is a GPU here, so CUDA may well load")
    error = refused("run", "recipe.yaml", *arguments, cwd=built_in)
    check_message(error)
    paragraphs = [line for line in error.strip().splitlines() if not line.startswith(" ")]  # hints are indented
    assert len(paragraphs) == 1, error


def test_a_model_that_fails_lint_exits_with_1_and_a_report(built_in: Path) -> None:
    done = ndld_flow("run", "recipe.yaml", "model=unknown_op.onnx", cwd=built_in)
    assert done.returncode == 1
    assert "lint: failed" in done.stdout
    assert "sanitize: skipped, lint failed" in done.stdout
    assert (built_in / done.stdout.splitlines()[-1].removeprefix("report ")).is_file()


def test_plain_output_of_a_first_and_a_second_run(in_folder: Path) -> None:
    make_toy(in_folder)
    code, out, err = ProcessRun("run", "toy.yaml", "--trust", cwd=in_folder, env={}).finish(60)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "step 1 of 3" in lines[0] and " first: stamp " in lines[0] and lines[0].endswith(", new")
    assert "first: done in" in lines[1]
    assert lines[-1].startswith("report outputs/runs/toy/")
    assert Path(in_folder / lines[-1].removeprefix("report ")).is_file()
    second = ndld_flow("run", "toy.yaml", "--trust", cwd=in_folder)
    assert second.returncode == 0
    assert "nothing to do" in second.stdout
    plan = ndld_flow("plan", "toy.yaml", "--trust", cwd=in_folder)
    assert plan.stdout.splitlines()[-1] == "nothing to do"


def test_json_events_are_one_per_line(in_folder: Path) -> None:
    make_toy(in_folder)
    done = ndld_flow("run", "toy.yaml", "--trust", "--json", cwd=in_folder)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "run_started"
    assert events[-1]["event"] == "run_finished"
    assert events[-1]["passed"] is True
    assert {event["name"] for event in events if event["event"] == "step_finished"} == {"first", "second", "aside"}
    plan = json.loads(ndld_flow("plan", "toy.yaml", "--trust", "--json", cwd=in_folder).stdout)
    assert [row["reason"] for row in plan] == ["reused"] * 3


def test_a_refused_run_is_an_event_too(in_folder: Path) -> None:
    make_toy(in_folder)
    done = ndld_flow("run", "toy.yaml", "--trust", "--json", "model=nowhere.onnx", cwd=in_folder)
    event = json.loads(done.stdout.splitlines()[-1])
    assert (event["event"], event["exit_code"], done.returncode) == ("error", 2, 2)
    assert "nowhere.onnx" in event["message"]
    assert event["step"] == ""


def test_a_failed_gate_is_exit_code_1(in_folder: Path) -> None:
    make_toy(in_folder, RECIPE.replace(">= 2", ">= 200"))
    assert ndld_flow("run", "toy.yaml", "--trust", cwd=in_folder).returncode == 1
    assert ndld_flow("run", "toy.yaml", "--trust", cwd=in_folder).returncode == 1


def test_a_bug_is_two_lines_and_a_file(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    step = (in_folder / "steps" / "stamp.py").read_text()
    (in_folder / "steps" / "stamp.py").write_text(step.replace("context.log.info", "1 / 0\n        context.log.info"))
    run = ProcessRun("run", str(toy.recipe), "--trust", cwd=in_folder, env={"TMPDIR": str(in_folder)})
    code, _, err = run.finish(60)
    assert code == 3
    assert err.startswith("bug: ZeroDivisionError")
    assert "Traceback" not in err
    assert "ZeroDivisionError" in next(in_folder.glob("ndld-flow-bug-*.txt")).read_text()
    with pytest.raises(ZeroDivisionError):
        ndld_flow("--debug", "run", str(toy.recipe), "--trust", cwd=in_folder)


def test_runs_tags_reports_verify_and_gc(in_folder: Path) -> None:
    make_toy(in_folder)
    for word in "abc":
        ndld_flow("run", "toy.yaml", "--trust", f"steps.first.word={word}", cwd=in_folder)
    runs = json.loads(ndld_flow("runs", "--json", cwd=in_folder).stdout)
    assert len(runs) == 3
    oldest = runs[-1]["run"]
    short = oldest.rpartition("-")[2]
    assert ndld_flow("tag", short, "first-one", cwd=in_folder).stdout == f"first-one -> {oldest}\n"
    report = in_folder / ndld_flow("report", "first-one", cwd=in_folder).stdout.strip()
    assert report.is_file()
    assert "[first-one]" in ndld_flow("runs", "toy", cwd=in_folder).stdout

    dry = json.loads(ndld_flow("gc", "--keep", "1", "--dry-run", "--json", cwd=in_folder).stdout)
    assert (len(dry["runs"]), len(dry["objects"])) == (1, 2)
    assert len(json.loads(ndld_flow("runs", "--json", cwd=in_folder).stdout)) == 3
    ndld_flow("gc", "--keep", "1", cwd=in_folder)
    kept = json.loads(ndld_flow("runs", "--json", cwd=in_folder).stdout)
    assert [run["run"] for run in kept] == [runs[0]["run"], oldest]
    again = ndld_flow("run", "toy.yaml", "--trust", "steps.first.word=c", cwd=in_folder)
    assert "nothing to do" in again.stdout, "gc keeps what kept runs need"

    assert "all artifacts match" in ndld_flow("verify", cwd=in_folder).stdout
    stored = next((in_folder / "outputs/store/objects").glob("*/*/model.onnx"))
    stored.chmod(0o644)
    stored.write_bytes(b"x")
    assert ndld_flow("verify", cwd=in_folder).returncode == 1
    assert ndld_flow("verify", cwd=in_folder).returncode == 0, "it was set aside"


def test_gc_keeps_what_an_active_run_uses(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    (in_folder / "later").mkdir()
    (in_folder / "later" / "wait.py").write_text(WAIT)
    toy.run()  # the run at work reuses `first` of it
    recipe = toy.recipe.read_text().replace("steps_from: [", "steps_from: [later/wait.py, ")
    (in_folder / "waiting.yaml").write_text(recipe.replace("gates:", "  wait: {from: first}\ngates:"))
    running = ProcessRun("run", "waiting.yaml", "--trust", cwd=in_folder, env={})
    try:
        wait_until((in_folder / "begun").exists)
        dry = json.loads(ndld_flow("gc", "--keep", "0", "--dry-run", "--json", cwd=in_folder).stdout)
        done = ndld_flow("gc", "--keep", "0", cwd=in_folder)
    finally:
        (in_folder / "end").touch()
    code, out, _ = running.finish(120)
    assert done.returncode == 0, done
    assert (dry["runs_at_work"], len(dry["runs"]), dry["objects"]) == (1, 1, [])
    assert code == 0, out
    assert "first: reused" in out
    assert "all artifacts match" in ndld_flow("verify", cwd=in_folder).stdout
    assert "nothing to do" in ndld_flow("run", "waiting.yaml", "--trust", cwd=in_folder).stdout
    assert not list((in_folder / "outputs/store/locks").glob("*.uses"))


def test_a_run_during_gc_keeps_its_results(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy(in_folder)
    shutil.rmtree(Path(toy.run()[0].folder))  # no run needs the results any more, and the next finds them
    found = collect_garbage._remove_records
    during: list[RunFinished] = []

    def run_first(*arguments: Any, **options: Any) -> int:
        during.append(toy.run()[0])
        return found(*arguments, **options)

    monkeypatch.setattr(collect_garbage, "_remove_records", run_first)
    freed = api.gc(outputs=in_folder / "outputs")
    assert len(freed.in_use) == 3
    monkeypatch.setattr(collect_garbage, "_remove_records", found)
    again, events = toy.run()
    assert again.nothing_to_do
    assert set(outcomes(events).values()) == {"reused"}
    shutil.rmtree(Path(again.folder))
    assert len(api.gc(outputs=in_folder / "outputs").objects) == 3


WAIT = """
import time
from pathlib import Path
from ndld_flow.plugin import Context, Onnx, Result, Step

class Wait(Step[Onnx, Onnx]):
    \"\"\"Copy a model when told to.\"\"\"
    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        Path("begun").touch()
        while not Path("end").exists():
            time.sleep(0.02)
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        return Result("copied")
"""


def test_user_defined_steps_have_help_and_schema(in_folder: Path) -> None:
    make_toy(in_folder)
    page = ndld_flow("steps", "stamp", "--from", "steps/stamp.py", cwd=in_folder).stdout
    assert "Stamp a model with a word." in page
    assert 'word: string = "x"' in page
    schema = json.loads(ndld_flow("schema", "--from", "steps/stamp.py", cwd=in_folder).stdout)
    assert "word" in schema["$defs"]["step_stamp"]["properties"]


@pytest.mark.thorough
def test_doctor_reports_what_works(tmp_path: Path) -> None:
    done = start("doctor", "--json", cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["onnxruntime cpu"]["state"] == "ok"
    assert checks["onnx"]["state"] == "ok"


@pytest.mark.thorough
def test_init_does_not_ask_for_inputs_that_have_initializers(in_folder: Path) -> None:
    old = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    assert len(onnx.load(old).graph.input) > 1, "before IR 4 every initializer was an input too"
    api.init(old, "old.yaml")
    assert list(load_recipe(Path("old.yaml")).file.inputs) == ["gpu_0/data_0"]


def test_init_writes_a_recipe_that_runs_unchanged(in_folder: Path, check_message: CheckMessage) -> None:
    make_cnn(in_folder / "my model.onnx")
    done = ndld_flow("init", "my model.onnx", cwd=in_folder)
    assert done.returncode == 0, done
    assert "exists" not in done.stderr
    assert done.stdout.splitlines()[-1] == "Run it with: ndld-flow run 'my model.yaml' -o my-model.clean.onnx"
    check_message(refused("init", "my model.onnx", cwd=in_folder))
    quick = ("steps.base.budget=300ms", "steps.speed.budget=300ms")
    run = ndld_flow("run", "my model.yaml", *quick, cwd=in_folder)
    assert run.returncode == 0, run
    assert "agree" in run.stdout


def test_a_step_as_json_has_its_metrics_if_it_declares_them(in_folder: Path) -> None:
    described = json.loads(ndld_flow("steps", "lint", "--json", cwd=in_folder).stdout)
    assert {"name": "errors", "unit": "", "when": ""} in described["metrics"]
    (in_folder / "steps").mkdir()
    (in_folder / "steps" / "stamp.py").write_text(STAMP)
    described = json.loads(ndld_flow("steps", "stamp", "--from", "steps/stamp.py", "--json", cwd=in_folder).stdout)
    assert described["metrics"] is None, "unknown, which is not none"
