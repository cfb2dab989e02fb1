"""An unchanged command prints its output again without running; where something may have changed, the program runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ndld_flow import cli
from ndld_flow.base import consulted, stamps, user_folders
from ndld_flow.cli import app
from ndld_flow.cli.replay import FOLDER, KEPT
from ndld_flow.machine import reuse
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn

RECIPE = """
name: tiny
model: {source: model.onnx}
inputs: {x: {shape: [1, 3, 16, 16], data: data}}
steps:
  lint: {fail_on: error}
  clean: {step: sanitize, from: source}
  agree: {step: check_accuracy, reference: source}
gates: [agree.cosine >= 0.9]
"""


STEP = '''
"""A step that may foresee by anything what it needs."""

from pathlib import Path
from shutil import copy

from ndld_flow.plugin import Context, Onnx, Result, Step


class Mine(Step[Onnx, Onnx]):
    """Copy a model."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        copy(source.path, out / Onnx.main)
        return Result("copied")
'''


def replay(*arguments: str) -> tuple[int, str, str] | None:
    """Return what `replay_verb` returns, for `ndld-flow run`."""
    return replay_verb("run", *(arguments or ("tiny.yaml",)))


def replay_verb(*arguments: str) -> tuple[int, str, str] | None:
    """Return exit code, output and errors of `ndld-flow` where it replays; None where the program runs."""
    out, err = io.StringIO(), io.StringIO()
    with (
        _without_name_of_test(),
        mock.patch.object(sys, "argv", ["ndld-flow", *arguments]),
        mock.patch.object(app, "main") as program,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            return ended.code, out.getvalue(), err.getvalue()
    program.assert_called_once()
    return None


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program without a replay. It leaves a receipt if it finds all of its results."""
    return run_verb("run", *(arguments or ("tiny.yaml",)))


def run_verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb without a replay; it may leave a receipt."""
    with _without_name_of_test():
        return ndld_flow(*arguments, cwd=Path.cwd())


@contextlib.contextmanager
def _without_name_of_test() -> Iterator[None]:
    """Hide the variable that pytest changes between the phases of a test."""
    with mock.patch.dict(os.environ):
        os.environ.pop("PYTEST_CURRENT_TEST", None)
        yield


def receipts() -> list[Path]:
    return sorted(Path("outputs", FOLDER).glob("*.json"))


def listings() -> list[Path]:
    """Return the receipts of verbs without outputs."""
    return sorted((user_folders.cache_folder() / "commands").glob("*.json"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe that has run once."""
    folder = tmp_path_factory.mktemp("finished")
    make_cnn(folder / "model.onnx")
    (folder / "data").mkdir()
    for number in range(2):
        values = np.random.default_rng(number).standard_normal((1, 3, 16, 16)).astype(np.float32)
        np.save(folder / "data" / f"{number}.npy", values)
    (folder / "data/more").mkdir()
    (folder / "tiny.yaml").write_text(RECIPE)
    done = ndld_flow("run", "tiny.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, the current directory, in which the recipe has run again and left a receipt. All files count as old."""
    monkeypatch.setattr(stamps, "SETTLED_AFTER_S", -60.0)
    folder = tmp_path / "work"
    shutil.copytree(finished, folder, symlinks=True)
    monkeypatch.chdir(folder)
    assert "nothing to do" in run().stdout
    assert len(receipts()) == 1
    return folder


def newest(folder: Path) -> Path:
    return next(path.parent for path in folder.glob("outputs/runs/tiny/*Z-*/run.json"))


def test_an_unchanged_run_prints_the_same_again(folder: Path) -> None:
    ran = run()
    assert replay() == (0, ran.stdout, ran.stderr)
    assert "has all of these results and passed" in ran.stdout
    assert f"report {newest(folder).relative_to(folder)}/report.html" in ran.stdout


def test_a_failed_run_fails_again(folder: Path) -> None:
    change = "gates=['agree.cosine >= 2']"
    assert run("tiny.yaml", change).returncode == 1
    assert replay("tiny.yaml", change) is None, "its folder was written just now"
    again = run("tiny.yaml", change)
    assert replay("tiny.yaml", change) == (1, again.stdout, again.stderr)
    assert "gate failed: agree.cosine >= 2" in again.stdout


def _rewrite(path: Path, *, keep_time: bool = False) -> None:
    """Write a file with other contents of the same size."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    if keep_time:
        os.utime(path, ns=times)


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def _stored(folder: Path, name: str) -> Path:
    return next((folder / "outputs/store/objects").glob(f"*/*/{name}"))


INPUTS_CHANGED: dict[str, Callable[[Path], object]] = {
    "a setting of the recipe": lambda folder: _write(folder / "tiny.yaml", RECIPE.replace("error", "warning")),
    "another recipe in its folder": lambda folder: _write(folder / "other.yaml", RECIPE),
    "a preset near the recipe": lambda folder: _write(folder / "configs/mine.yaml", "a: 1"),
    "the model": lambda folder: _rewrite(folder / "model.onnx"),
    "the model, with its old time": lambda folder: _rewrite(folder / "model.onnx", keep_time=True),
    "a sample": lambda folder: _rewrite(folder / "data/1.npy"),
    "one more sample": lambda folder: shutil.copy(folder / "data/1.npy", folder / "data/2.npy"),
    "a folder of samples that becomes a test set": lambda folder: shutil.copy(
        folder / "data/1.npy", folder / "data/more/input_0.pb"
    ),
    "one sample less": lambda folder: (folder / "data/1.npy").unlink(),
    "a stored result": lambda folder: _rewrite(_stored(folder, "accuracy.json"), keep_time=True),
    "a lost result": lambda folder: _stored(folder, "accuracy.json").unlink(),
    "a lost record": lambda folder: next((folder / "outputs/store/records").glob("*/*.json")).unlink(),
    "the format of the store": lambda folder: _write(folder / "outputs/store/FORMAT", "9\na store of format 9 (new)\n"),
    "a damaged receipt": lambda _: receipts()[0].write_text("{"),
    "an empty receipt": lambda _: receipts()[0].write_text(""),
    "a receipt of another kind": lambda _: receipts()[0].write_text('[{"paths": 3}]'),
    "a receipt nested too deeply": lambda _: receipts()[0].write_text("[" * 100_000),
}
QUICK_FOR_PLAN = ("the model", "one more sample", "a lost result", "a damaged receipt")
"""Changes that the quick tests try with `plan` as well: receipts of both verbs are compared by the same code."""
CHANGES: dict[str, Callable[[Path], object]] = INPUTS_CHANGED | {
    "the record of the run": lambda folder: _rewrite(newest(folder) / "run.json"),
    "a lost report": lambda folder: (newest(folder) / "report.html").unlink(),
    "a file in the folder of the run": lambda folder: _write(newest(folder) / "notes.txt"),
    "a copy of a result": lambda folder: _rewrite(newest(folder) / "clean/model.onnx"),
    "no `latest`": lambda folder: (folder / "outputs/runs/tiny/latest").unlink(),
}


@pytest.mark.representatives("one more sample", "a damaged receipt", "a preset near the recipe")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_after_a_change_the_program_runs(folder: Path, change: Callable[[Path], object]) -> None:
    assert replay() is not None
    change(folder)
    assert replay() is None


def test_the_surroundings_are_part_of_a_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHLVL", "7")
    assert replay() is not None, "every shell sets it anew"
    with monkeypatch.context() as changed:
        changed.setenv("ORT_ANYTHING", "1")
        assert replay() is None
    with monkeypatch.context() as changed:
        changed.setattr(sys, "path", [*sys.path, str(folder)])
        assert replay() is None
    with monkeypatch.context() as changed:
        changed.setattr(reuse, "describe_circumstances", lambda *_, **__: "CPUs: 0-63")
        changed.setattr(reuse, "fingerprint_machine", lambda: "another machine")
        assert replay() is None, "measurements of another machine are not reused"
    assert replay("tiny.yaml", "steps.lint.fail_on=never") is None
    assert replay("./tiny.yaml") is None
    assert replay() is not None
    monkeypatch.chdir(folder.parent)
    assert replay(f"{folder}/tiny.yaml", "--outputs", f"{folder}/outputs") is None


def test_an_installed_package_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = folder / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    run()
    assert replay() is not None
    (packages / "onnx-99.dist-info").mkdir()
    assert replay() is None


def test_changed_code_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = folder / "library.py"
    module.write_text("VALUE = 1\n")
    with monkeypatch.context() as imported:
        imported.setitem(sys.modules, "library", mock.Mock(__file__=str(module)))
        run()
        assert replay() is not None
    module.write_text("VALUE = 2\n")
    assert replay() is None


def test_outputs_are_found_where_options_name_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move("outputs", "elsewhere")
    for option in (["--outputs", "elsewhere"], ["--outputs=elsewhere"]):
        assert replay("tiny.yaml", *option) is None
        ran = run("tiny.yaml", *option)
        assert replay("tiny.yaml", *option) == (0, ran.stdout, "")
    monkeypatch.setenv("NDLD_FLOW_OUTPUTS", "elsewhere")
    ran = run()
    assert replay() == (0, ran.stdout, "")
    assert not Path("outputs").exists()


def test_an_exported_result_must_still_be_there(folder: Path) -> None:
    arguments = ("tiny.yaml", "-o", "result.onnx")
    assert run(*arguments).returncode == 0
    times = (folder / "result.onnx").stat().st_mtime_ns
    assert "result result.onnx" in run(*arguments).stdout
    assert (folder / "result.onnx").stat().st_mtime_ns == times, "an equal result is not written again"
    assert replay(*arguments) is not None
    (folder / "result.onnx").unlink()
    assert replay(*arguments) is None
    run(*arguments)
    assert (folder / "result.onnx").is_file()


@pytest.mark.thorough
def test_the_recipe_of_the_best_point_must_still_be_there(folder: Path) -> None:
    best = folder / "aside/best.yaml"
    best.parent.mkdir()
    sweep = ("-m", "steps.lint.fail_on=error,never", "sweep.maximize=agree.cosine")
    arguments = ("tiny.yaml", *sweep, "--apply", "aside/best.yaml")
    assert run(*arguments).returncode == 0
    best.unlink()
    for _ in range(2):
        assert "nothing to do" in run(*arguments).stdout
        best.unlink()
        assert replay(*arguments) is None
    run(*arguments)
    assert best.is_file()


@pytest.mark.parametrize("option", ["--json", "--trust"])
def test_output_with_times_and_foreign_code_leave_no_receipt(folder: Path, option: str) -> None:
    assert run("tiny.yaml", option).returncode == 0
    assert len(receipts()) == 1
    assert replay("tiny.yaml", option) is None


def test_a_run_that_computes_leaves_no_receipt(folder: Path) -> None:
    assert run("tiny.yaml", "--force", "clean").returncode == 0
    assert len(receipts()) == 1


def test_a_young_file_leaves_no_receipt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts()[0].unlink()
    monkeypatch.setattr(stamps, "SETTLED_AFTER_S", 60.0)
    assert "nothing to do" in run().stdout
    assert not receipts(), "its files may change again within a tick of their times"


def test_a_receipt_holds_no_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "hunter2hunter2")
    for _ in range(2):
        run("tiny.yaml", "description=hunter2hunter2")
    assert replay("tiny.yaml", "description=hunter2hunter2") is not None
    assert not any("hunter2" in path.read_text() for path in receipts())


def test_a_forged_receipt_does_not_control_the_terminal(folder: Path) -> None:
    receipt = json.loads(receipts()[0].read_text())
    receipt["output"] = [["stdout", "\x1b]0;owned\x07::error::forged\n"]]
    receipts()[0].write_text(json.dumps(receipt))
    answer = replay()
    assert answer is not None
    assert "\x1b" not in answer[1]
    assert not answer[1].startswith("::")


def test_old_receipts_are_removed(folder: Path) -> None:
    kept = receipts()[0].parent
    for number in range(KEPT + 5):
        (kept / f"{number:032}.json").write_text("{}")
        os.utime(kept / f"{number:032}.json", (number, number))
    for _ in range(2):
        run("tiny.yaml", "description=another")
    assert len(receipts()) == KEPT
    assert replay("tiny.yaml", "description=another") is not None


# --- plan ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(folder: Path) -> Path:
    """The folder, in which `plan` has left the only receipt."""
    receipts()[0].unlink()
    assert "nothing to do" in run_verb("plan", "tiny.yaml").stdout
    assert len(receipts()) == 1
    return folder


def replay_plan(*arguments: str) -> tuple[int, str, str] | None:
    return replay_verb("plan", *(arguments or ("tiny.yaml",)))


def test_an_unchanged_plan_prints_the_same_again(planned: Path) -> None:
    ran = run_verb("plan", "tiny.yaml")
    assert replay_plan() == (0, ran.stdout, ran.stderr)
    assert ran.stdout.count("= reused") == 3
    assert replay() is None, "each verb has receipts of its own"
    as_json = run_verb("plan", "tiny.yaml", "--json")
    assert replay_plan("tiny.yaml", "--json") == (0, as_json.stdout, "")
    digest = run_verb("plan", "tiny.yaml", "--digest").stdout
    assert digest
    assert replay_plan("tiny.yaml", "--digest") is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=[pytest.mark.thorough] * (name not in QUICK_FOR_PLAN))
        for name, change in INPUTS_CHANGED.items()
    ],
)
def test_after_a_change_the_plan_is_made_again(planned: Path, change: Callable[[Path], object]) -> None:
    assert replay_plan() is not None
    change(planned)
    assert replay_plan() is None


def test_the_machine_is_part_of_a_plan(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay_plan() is not None
    monkeypatch.setattr(reuse, "fingerprint_machine", lambda: "another machine")
    assert replay_plan() is None, "no step's key has the machine, and what steps need may depend on its GPUs"


@pytest.mark.parametrize(
    "arguments",
    [["--force", "clean"], ["steps.lint.fail_on=never"], ["--trust"], ["-m", "steps.lint.fail_on=error,never"]],
)
def test_a_plan_of_work_leaves_no_receipt(planned: Path, arguments: list[str]) -> None:
    assert run_verb("plan", "tiny.yaml", *arguments).returncode == 0
    assert len(receipts()) == 1
    assert replay_plan("tiny.yaml", *arguments) is None


def test_a_missing_result_that_returns_is_noticed(planned: Path) -> None:
    lost = _stored(planned, "accuracy.json").parent
    lost.rename(planned / "aside")
    assert "artifact damaged" in run_verb("plan", "tiny.yaml").stdout
    assert replay_plan() is None, "that a file is missing is seen without opening it, so it is not remembered"
    (planned / "aside").rename(lost)
    assert "nothing to do" in run_verb("plan", "tiny.yaml").stdout


def test_a_plan_that_asks_another_program_leaves_no_receipt(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ndld_flow.steps.sanitize import Sanitize

    foresee = Sanitize.foresee
    monkeypatch.setattr(Sanitize, "foresee", lambda step: subprocess.run(["true"], check=True) and foresee(step))
    receipts()[0].unlink()
    assert "nothing to do" in run_verb("plan", "tiny.yaml").stdout
    assert not receipts()


@pytest.mark.thorough
def test_a_plan_with_a_step_of_another_package_leaves_no_receipt(
    planned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = planned / "site-packages"
    metadata = packages / "more_steps-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: more-steps\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[ndld_flow.steps]\nmine = more_steps:Mine\n")
    (packages / "more_steps.py").write_text(STEP)
    monkeypatch.syspath_prepend(packages)
    for arguments, kept in ((["tiny.yaml"], 2), (["tiny.yaml", "+steps.mine={from: source}"], 2)):
        assert run("tiny.yaml", *arguments[1:]).returncode == 0
        assert "nothing to do" in run_verb("plan", *arguments).stdout
        assert len([path for path in receipts() if "= reused" in path.read_text()]) == kept


def test_a_plan_looks_at_nothing_that_its_receipt_does_not_hold(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No audit event reports the status of a file, so that code which depends on it alone must note the path."""
    asked: set[str] = set()
    receipts()[0].unlink()
    with monkeypatch.context() as patched:
        for name in ("stat", "lstat", "access", "readlink"):
            patched.setattr(os, name, _noting_paths(getattr(os, name), asked))
        run_verb("plan", "tiny.yaml")
    held = {Path(path) for path in json.loads(receipts()[0].read_text())["paths"]}
    above = {parent for path in held for parent in path.parents}
    flux = (planned / "outputs/store", planned / "outputs/.writable", planned / "outputs/runs")
    paths = {Path(path) for path in asked if path.startswith(str(planned))}
    assert planned / "model.onnx" in paths
    absent = {path for path in paths if not path.exists() and path.parent in held}  # its folder would change
    others = paths - held - above - absent
    assert not [path for path in others if not any(path.is_relative_to(each) for each in flux)]
    objects = planned / "outputs/store/objects"
    assert {path for path in paths if path.is_relative_to(objects)} <= held | above, "results are held"


def _noting_paths(function: Callable[..., Any], paths: set[str]) -> Callable[..., Any]:
    """Return a function of `os` that notes the paths that a command asks about."""

    def asking(path: object, *arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if consulted._open is not None and isinstance(path, str | os.PathLike) and caller != consulted.__file__:
            name = os.fspath(path)
            paths.add(os.path.normpath(os.path.join(os.getcwd(), str(name))))  # noqa: PTH109, PTH118
        return function(path, *arguments, **named)

    return asking


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_recipe_that_reads_the_clock_leaves_no_receipt(folder: Path, verb: str) -> None:
    receipts()[0].unlink()
    _write(folder / "tiny.yaml", RECIPE + "description: of ${now:%Y}\n")
    run_verb("run", "tiny.yaml")
    assert "nothing to do" in run_verb(verb, "tiny.yaml").stdout
    assert not receipts(), "next year its description is another one"


# --- verbs that read code and packages -------------------------------------------------------------------------------


LISTINGS = [["schema"], ["schema", "--verb", "plan"], ["steps"], ["steps", "edit", "--json"], ["ops", "Clip"]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile all modules: in a new clone, folders for that would appear in folders that the first command lists."""
    for arguments in LISTINGS:
        ndld_flow(*arguments, cwd=tmp_path_factory.getbasetemp())


@pytest.fixture
def elsewhere(compiled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, with a cache folder of its own. All files count as old."""
    monkeypatch.setattr(stamps, "SETTLED_AFTER_S", -60.0)
    monkeypatch.setattr(user_folders, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.representatives("steps", "schema --verb plan")
@pytest.mark.parametrize("arguments", LISTINGS, ids=" ".join)
def test_an_unchanged_listing_is_printed_again(elsewhere: Path, arguments: list[str]) -> None:
    assert replay_verb(*arguments) is None
    ran = run_verb(*arguments)
    assert ran.returncode == 0
    assert replay_verb(*arguments) == (0, ran.stdout, ran.stderr)
    assert len(listings()) == 1
    assert not list(elsewhere.iterdir()), "it belongs to no project"


def test_an_installed_package_may_have_steps(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = elsewhere / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    run_verb("steps")
    assert replay_verb("steps") is not None
    (packages / "more_steps-1.dist-info").mkdir()
    assert replay_verb("steps") is None


@pytest.mark.thorough
def test_changed_code_changes_what_is_listed(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = elsewhere / "library.py"
    module.write_text("VALUE = 1\n")
    with monkeypatch.context() as imported:
        imported.setitem(sys.modules, "library", mock.Mock(__file__=str(module)))
        run_verb("schema")
        assert replay_verb("schema") is not None
    module.write_text("VALUE = 2\n")
    assert replay_verb("schema") is None


@pytest.mark.thorough
def test_code_and_targets_that_the_user_names_leave_no_receipt(elsewhere: Path) -> None:
    (elsewhere / "mine.py").write_text(STEP)
    for arguments in (["schema", "recipe.json"], ["schema", "--from", "mine.py"], ["steps", "--from", "mine.py"]):
        assert run_verb(*arguments).returncode == 0
        assert replay_verb(*arguments) is None, "the file must be written, and its code may do anything"
    assert not listings()


def test_a_listed_model_must_be_the_same(elsewhere: Path) -> None:
    make_cnn(elsewhere / "model.onnx")
    ran = run_verb("ops", "--model", "model.onnx")
    assert replay_verb("ops", "--model", "model.onnx") == (0, ran.stdout, "")
    make_cnn(elsewhere / "model.onnx")
    assert replay_verb("ops", "--model", "model.onnx") is None


def test_without_a_cache_folder_nothing_is_remembered(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for replacement in (homeless, lambda: elsewhere / "file"):
        (elsewhere / "file").write_text("not a folder")
        monkeypatch.setattr(user_folders, "cache_folder", replacement)
        assert run_verb("steps").returncode == 0
        assert replay_verb("steps") is None


@pytest.mark.thorough
def test_a_replay_imports_nothing_heavy_and_survives_a_closed_pipe(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "work", symlinks=True)
    time.sleep(stamps.SETTLED_AFTER_S + 0.1)
    command = [sys.executable, "-X", "importtime", "-m", "ndld_flow", "run", "tiny.yaml"]
    ran, replayed = (
        subprocess.run(command, cwd=tmp_path / "work", capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert "pydantic" in ran.stderr
    assert not any(library in replayed.stderr for library in ("pydantic", "click", "yaml", "hydra", "numpy"))
    assert replayed.stdout == ran.stdout
    piped = [sys.executable, "-m", "ndld_flow", "run", "tiny.yaml"]
    with subprocess.Popen(piped, cwd=tmp_path / "work", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141
