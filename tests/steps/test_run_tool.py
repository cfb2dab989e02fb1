"""The step `run_tool`: real programs, with and without manners."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import BackendError, KilledError, ModelError, RecipeError, RequestError
from ndld_flow.processes.launch import Program, run_program
from ndld_flow.records.run_record import RunRecord
from ndld_flow.steps.run_tool import RunTool
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_ext
from tests.support.models_run import Ran, run_step
from tests.support.typed_api import plan_once

RENAME = """
import sys, onnx
model = onnx.load(sys.argv[1], load_external_data=False)
model.graph.name = "by the tool"
print("renamed", flush=True)
onnx.save(model, sys.argv[2])
"""
SLEEPS = """
import os, signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
grandchild.stdout.readline()
open(sys.argv[1], "w").write(f"{os.getpid()} {grandchild.pid}")
print("waiting", flush=True)
time.sleep(600)
"""


def script(folder: Path, text: str, name: str = "tool.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return str(folder / name)


def use(folder: Path, text: str, *arguments: str, model: Path | None = None, **settings: Any) -> Ran:
    """Run a Python program as a step on a small model."""
    given = (arguments or ("$Model", "$Output")) if not settings.get("in_place") else ("$Model",)
    command = [sys.executable, script(folder, text), *given]
    inputs = settings.pop("inputs", None)
    source = model or make_cnn(folder / "source.onnx")
    return run_step(RunTool, source, folder / "step", {"command": command, **settings}, inputs)


def is_alive(pid: int) -> bool:
    """A zombie that nobody has waited for is no longer alive."""
    status = Path(f"/proc/{pid}/stat")
    if not status.parent.parent.joinpath("self").exists():
        return subprocess.run(["kill", "-0", str(pid)], check=False).returncode == 0
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_program_writes_a_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ran = use(tmp_path, RENAME)
    assert onnx.load(ran.out / "model.onnx").graph.name == "by the tool"
    assert ran.result.summary.startswith("python")
    assert ran.result.change is not None
    assert "renamed" in caplog.messages
    assert ran.told[-1] == (0, 0, "renamed")


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    text = RENAME + "\nassert sys.argv[3:] == ['a b; rm -rf $HOME', '*', '$Model'], sys.argv[3:]"
    use(tmp_path, text, "$Model", "$Output", "a b; rm -rf $$HOME", "*", "$$Model")


def test_external_data_is_moved_along_and_the_rest_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    text = """
        import os, sys, onnx
        model = onnx.load(sys.argv[1])
        onnx.save(model, sys.argv[2], save_as_external_data=True, location="weights.bin", size_threshold=0)
        open(os.path.join(os.path.dirname(sys.argv[2]), "notes.txt"), "w").write("left")
    """
    ran = use(tmp_path, text, model=make_ext(tmp_path / "ext.onnx"))
    assert {path.name for path in ran.out.iterdir()} == {"model.onnx", "weights.bin"}
    onnx.checker.check_model(str(ran.out / "model.onnx"))
    assert "notes.txt is not kept" in str(caplog.messages)


def test_a_defect_of_the_source_is_not_blamed_on_the_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = make_cnn(tmp_path / "source.onnx")
    model = onnx.load(source)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, source)
    ran = use(tmp_path, RENAME, model=source)
    assert onnx.load(ran.out / "model.onnx").graph.name == "by the tool"
    assert "output 'y'" in caplog.text


def test_in_place_the_program_gets_a_copy_of_all_files(tmp_path: Path) -> None:
    source = make_ext(tmp_path / "ext.onnx")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("ext*")}
    text = """
        import sys, onnx
        model = onnx.load(sys.argv[1], load_external_data=False)
        model.graph.name = "changed"
        onnx.save(model, sys.argv[1])
    """
    ran = use(tmp_path, text, model=source, in_place=True)
    assert onnx.load(ran.out / "model.onnx").graph.name == "changed"
    assert {path.name: path.read_bytes() for path in tmp_path.glob("ext*")} == before


def test_a_program_that_changes_its_input_is_an_error(tmp_path: Path, check_message: CheckMessage) -> None:
    text = RENAME + "\nonnx.save(model, sys.argv[1])"
    with pytest.raises(RequestError) as caught:
        use(tmp_path, text)
    check_message(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print('one'); print('two'); raise SystemExit(7)", RequestError),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", KilledError),
        ("pass", ModelError),
        ("import sys; open(sys.argv[2], 'w').write('no')", ModelError),
        (
            "import sys, onnx; m = onnx.load(sys.argv[1]); m.graph.node[0].op_type = 'No'; onnx.save(m, sys.argv[2])",
            ModelError,
        ),
        (
            """
            import sys, onnx
            m = onnx.load(sys.argv[1])
            t = m.graph.initializer[0]
            t.ClearField("raw_data")
            t.data_location = 1
            t.external_data.add(key="location", value="../weights.bin")
            onnx.save(m, sys.argv[2])
            """,
            ModelError,
        ),
    ],
)
def test_errors_are_one_paragraph(
    tmp_path: Path, text: str, error: type[Exception], check_message: CheckMessage
) -> None:
    with pytest.raises(error) as refused:
        use(tmp_path, text)
    check_message(refused.value)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "step" / "out").iterdir())


def test_a_missing_program_is_foreseen_and_an_error(tmp_path: Path, check_message: CheckMessage) -> None:
    step = RunTool.model_validate_json('{"command": ["no-such-program", "$Model", "$Output"]}')
    (lack,) = step.foresee().lacks
    assert "'no-such-program'" in lack and "PATH" in lack
    with pytest.raises(BackendError) as caught:
        run_step(RunTool, make_cnn(tmp_path / "m.onnx"), tmp_path / "s", {"command": ["no-such-program", "$Output"]})
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"command": ["t", "$Modell", "$Output"]},
        {"command": ["t", "$Model"]},
        {"command": ["t", "$Output"], "in_place": True},
        {"command": ["t", "$File{a.py}", "$Output"], "files": ["b.py"]},
        {"command": ["t", "$Shape{x}", "$Output"]},
        {"command": []},
        {"command": ["t", "$Output"], "timeout": 0},
    ],
)
def test_mistakes_are_reported_before_anything_runs(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        RunTool.model_validate_json(json.dumps(settings))
    check_message(caught.value)


def test_the_python_of_ndld_flow_is_a_program(tmp_path: Path) -> None:
    """Also where it is not on the search path, as when an environment is not activated."""
    text = RENAME + "\nimport sys; assert sys.executable == sys.argv[3], sys.executable"
    command = ["$Python", script(tmp_path, text), "$Model", "$Output", sys.executable]
    ran = run_step(RunTool, make_cnn(tmp_path / "source.onnx"), tmp_path / "step", {"command": command})
    assert ran.result.passed
    assert RunTool(command=tuple(command)).library_versions()["python"] == platform.python_version()


def test_little_of_our_environment_is_passed_and_no_secret_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, check_message: CheckMessage
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    monkeypatch.setenv("OTHER", "unseen")
    text = RENAME + "\nimport os; print(sorted(os.environ)); print(os.environ['TOKEN'], os.environ['MODE'])"
    ran = use(tmp_path, text, environment={"TOKEN": None, "MODE": "to $Scratch"})
    result = "\n".join(caplog.messages)
    assert "'OTHER'" not in result
    assert "'PATH'" in result
    assert "s3cr3t" not in result
    assert f"$TOKEN to {ran.scratch / 'scratch'}" in result
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(RequestError) as refused:
        use(other, "import os; raise SystemExit(os.environ['TOKEN'])", environment={"TOKEN": None})
    assert "s3cr3t" not in str(refused.value)
    check_message(refused.value)


def test_inputs_and_files_are_passed(tmp_path: Path, check_message: CheckMessage) -> None:
    (tmp_path / "settings.json").write_text("{}")
    text = (
        RENAME
        + """
import numpy
values = numpy.load(sys.argv[3])
assert values.shape == (2, 3, 16, 16) and (values == 3).all(), values.shape
assert open(sys.argv[4]).read() == "{}"
"""
    )
    use(
        tmp_path,
        text,
        "$Model",
        "$Output",
        "$Input{x}",
        "$File{settings.json}",
        files=[str(tmp_path / "settings.json")],
        inputs={"x": {"shape": [2, 3, 16, 16], "data": 3}},
    )
    (tmp_path / "again").mkdir()
    with pytest.raises(RequestError) as caught:
        use(tmp_path / "again", RENAME, "$Model", "$Output", "$Input{q}")
    check_message(caught.value)


def test_a_program_waits_when_its_output_is_not_read(tmp_path: Path) -> None:
    floods = "import sys; [print('x' * 999) for _ in range(20_000)]; open(sys.argv[1], 'w').close()"
    finished = tmp_path / "finished"
    program = Program([sys.executable, "-c", floods, str(finished)], dict(os.environ), timeout_s=60)
    heard: list[bool] = []

    def report(_: str) -> None:
        if not heard:
            time.sleep(1)
        heard.append(finished.exists())

    run_program(program, report)
    assert len(heard) == 20_000 and not heard[0] and finished.exists()


def test_secrets_of_several_lines_and_at_the_end_of_long_ones_are_hidden() -> None:
    result = "import os; print('-' * 1990 + os.environ['KEY'].splitlines()[0]); print(os.environ['KEY'])"
    key = "first-part-of-it\nother\tpart"
    program = Program([sys.executable, "-c", result], {**os.environ, "KEY": key}, 60, secrets={"KEY": key})
    heard: list[str] = []
    run_program(program, heard.append)
    assert heard[0].startswith("-" * 1900) and heard[1:] == ["$KEY", "$KEY"]
    assert not any(part in line for line in heard for part in ("first", "other", "part"))


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("link", ["os.symlink", "os.link"])
def test_a_model_that_has_another_name_elsewhere_is_copied(tmp_path: Path, link: str) -> None:
    result = tmp_path / "made.onnx"
    text = f"""
        import os, shutil, sys
        shutil.copy(sys.argv[1], {str(result)!r})
        {link}({str(result)!r}, sys.argv[2])
    """
    ran = use(tmp_path, text)
    result.write_bytes(b"")
    kept = ran.out / "model.onnx"
    assert not kept.is_symlink() and kept.read_bytes() == (tmp_path / "source.onnx").read_bytes()


def test_data_with_the_name_of_the_record_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    text = """
        import onnx, sys
        onnx.save(onnx.load(sys.argv[1]), sys.argv[2], save_as_external_data=True, location="Record.json",
                  size_threshold=0)
    """
    with pytest.raises(ModelError) as caught:
        use(tmp_path, text)
    check_message(caught.value)


def test_a_program_may_even_remove_its_folder(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        use(tmp_path, "import os, shutil, sys; shutil.rmtree(os.path.dirname(sys.argv[2]))")
    check_message(caught.value)


def test_lines_are_reported_at_once_with_any_line_end(tmp_path: Path) -> None:
    text = RENAME.replace(
        "print(", "print('10 %\\r20 %\\r\\n\\x1b[31mred\\x1b[0m\\n' + 'x' * 5000, '\\xff', flush=True); print("
    )
    lines = [line for _, _, line in use(tmp_path, text).told][1:]
    assert lines[:3] == ["10 %", "20 %", "red"]
    assert len(lines[3]) == 2000
    assert lines[-1] == "renamed"


@pytest.mark.skipif(os.name == "nt", reason="process groups are POSIX")
def test_a_timeout_ends_it_and_what_it_started(tmp_path: Path, check_message: CheckMessage) -> None:
    start = time.monotonic()
    with pytest.raises(RequestError) as caught:
        use(tmp_path, SLEEPS, str(tmp_path / "pids"), "$Output", timeout="3 s")
    check_message(caught.value)
    assert time.monotonic() - start < 60
    assert_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_processes_that_a_program_leaves_are_ended(tmp_path: Path) -> None:
    text = (
        RENAME
        + """
import subprocess
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[3], "w").write(str(left.pid))
"""
    )
    start = time.monotonic()
    use(tmp_path, text, "$Model", "$Output", str(tmp_path / "pid"))
    assert time.monotonic() - start < 60
    assert_gone([int((tmp_path / "pid").read_text())])


# --- in a recipe -----------------------------------------------------------------------------------------------------


def write_recipe(folder: Path, text: str = RENAME, **settings: object) -> Path:
    make_cnn(folder / "model.onnx")
    script(folder, text)
    arguments = settings.pop("arguments", ["$Model", "$Output"])
    step = {"step": "run_tool", "command": [sys.executable, "tool.py", *arguments], **settings}  # type: ignore[misc]
    (folder / "recipe.yaml").write_text(json.dumps({"model": "model.onnx", "steps": {"tool": step}}))
    return folder / "recipe.yaml"


def reason(recipe: Path) -> str:
    return plan_once(recipe, trust=True)[0].reason.text


def test_it_runs_only_with_trust_and_again_only_when_the_script_changed(
    in_folder: Path, check_message: CheckMessage
) -> None:
    recipe = write_recipe(in_folder)
    with pytest.raises(RecipeError) as caught:
        api.run(recipe)
    check_message(caught.value)
    done = api.run(recipe, trust=True)
    record = RunRecord.model_validate_json(Path(done.folder, "run.json").read_text()).steps[0].record
    assert record is not None
    assert "renamed" in record.log
    assert reason(recipe) == "reused"
    script(in_folder, RENAME.replace("by the tool", "by another"))
    plan = plan_once(recipe, trust=True)[0]
    assert plan.reason.text == "tool version"
    assert "tool.py" in plan.detail


def test_nondeterministic_programs_are_never_reused(in_folder: Path) -> None:
    recipe = write_recipe(in_folder, deterministic=False)
    api.run(recipe, trust=True)
    assert reason(recipe) == "never reused"


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="process groups are POSIX")
def test_ctrl_c_ends_the_program_and_what_it_started(in_folder: Path) -> None:
    pids = in_folder / "pids"
    recipe = write_recipe(in_folder, SLEEPS, arguments=[str(pids), "$Output"])
    process = subprocess.Popen(
        [sys.executable, "-m", "ndld_flow", "run", str(recipe), "--trust"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (pids.exists() and pids.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert_gone([int(pid) for pid in pids.read_text().split()])
