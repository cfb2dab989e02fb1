"""Every started run leaves a folder: record, log, recipe, and a report with the reason of a failure."""

from __future__ import annotations

import errno
import html
import json
import signal
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import KilledError, ModelError, OutputsError, RequestError
from ndld_flow.execution.events import Event, PointFinished, RunFailed
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runs.outputs import Outputs
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.process_runs import ProcessRun
from tests.support.toys import Toy, make_toy
from tests.support.worker_toys import wait_until

FALTER = '''
"""Fails in every way."""

from pathlib import Path
import os
import signal
import time

from ndld_flow.base.errors import ModelError
from ndld_flow.plugin import Context, Onnx, Result, Step


class Falter(Step[Onnx, Onnx]):
    """Do something, or fail."""

    act: str = ""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        for number in range(1000):
            context.log.info("line %s", number)
        context.log.info("\\x1b[31mred <script>alert(1)</script>")
        if self.act == "refuse":
            raise ModelError("this model is no <b>good</b> \\x1b[31m")
        if self.act == "bug":
            raise ZeroDivisionError("of the step")
        if self.act == "memory":
            raise MemoryError
        if self.act == "interrupt":
            raise KeyboardInterrupt
        if self.act == "killed":
            os.write(1, b"not UTF-8: \\xff\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act == "sleep":
            Path("asleep").touch()
            time.sleep(600)
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        return Result("well")
'''
RECIPE = """
name: toy
model: model.onnx
steps_from: [steps/stamp.py, steps/falter.py]
steps:
  first: {step: stamp, word: a}
  weak: {step: falter}
  last: {step: stamp, word: b}
gates: [first.length >= 1, last.length >= 1]
"""


def make(folder: Path) -> Toy:
    (folder / "steps").mkdir(exist_ok=True)
    (folder / "steps" / "falter.py").write_text(FALTER)
    return make_toy(folder, RECIPE)


def run(toy: Toy, act: str, raises: type[BaseException]) -> RunRecord:
    with pytest.raises(raises):
        toy.run(f"steps.weak.act={act}")
    return read_run_record(latest(toy))


def latest(toy: Toy) -> Path:
    return (toy.folder / "outputs/runs/toy/latest").resolve()


def test_a_gate_without_its_metric_does_not_hide_the_error_of_a_later_step(in_folder: Path) -> None:
    toy = make(in_folder)
    toy.recipe.write_text(RECIPE.replace("last.length >= 1", "first.absent >= 1"))
    record = run(toy, "refuse", ModelError)
    assert record.failure is not None
    assert "step weak: this model" in record.failure.message
    assert [gate.gate for gate in record.gates] == ["first.length >= 1"]


def test_an_error_carries_the_name_of_its_step(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make(in_folder)
    with pytest.raises(ModelError) as caught:
        toy.run("steps.weak.act=refuse")
    assert (caught.value.step, caught.value.message) == ("weak", "this model is no <b>good</b> ")
    check_message(caught.value)
    done = ndld_flow("run", "toy.yaml", "--trust", "--json", "steps.weak.act=refuse", cwd=in_folder)
    event = json.loads(done.stdout.splitlines()[-1])
    assert (event["event"], event["step"]) == ("error", "weak")
    assert event["message"].startswith("step weak: this model")


@pytest.mark.parametrize(
    ("act", "raises", "outcome", "code", "message"),
    [
        ("refuse", ModelError, "error", 2, "step weak: this model is no <b>good</b> "),
        ("bug", ZeroDivisionError, "bug", 3, "ZeroDivisionError: of the step"),
        ("memory", KilledError, "killed", 5, "step weak: "),
        ("interrupt", KeyboardInterrupt, "interrupted", 130, "interrupted while weak"),
    ],
)
def test_an_error_leaves_a_folder_with_the_reason(
    act: str, raises: type[BaseException], outcome: str, code: int, message: str, in_folder: Path
) -> None:
    toy = make(in_folder)
    record = run(toy, act, raises)
    folder = latest(toy)
    assert (record.outcome, record.passed) == (outcome, False)
    assert record.failure is not None
    assert (record.failure.steps, record.failure.exit_code) == (("weak",), code)
    assert record.failure.message.startswith(message)
    assert [(step.name, step.outcome) for step in record.steps] == [
        ("first", "done"),
        ("weak", "interrupted" if act == "interrupt" else "failed"),
        ("last", "skipped"),
    ]
    assert [gate.gate for gate in record.gates] == ["first.length >= 1"]
    assert record.failure.log_lines["weak"][-2:] == ("line 999", "red <script>alert(1)</script>")
    assert (folder / "first/model.onnx").is_file()
    assert "act: " in (folder / "recipe.yaml").read_text()
    log = (folder / "log.txt").read_text()
    assert record.failure.message in log
    assert "line 999" in log
    assert ("Traceback" in log) == (act == "bug")
    page = (folder / "report.html").read_text()
    opening = page[page.index("<h1") : page.index('class="glance"')]
    assert html.escape(message) in opening
    assert "line 999" in opening
    assert "line 900" not in opening
    assert "first" in opening
    assert "<script>alert" not in page
    assert "\x1b" not in page


@pytest.mark.thorough
def test_a_killed_worker_leaves_its_last_lines(in_folder: Path, isolated_steps: None) -> None:
    toy = make(in_folder)
    record = run(toy, "killed", KilledError)
    assert record.outcome == "killed"
    assert record.failure is not None
    assert record.failure.log_lines["weak"][-1] == "red <script>alert(1)</script>"
    assert "not UTF-8: \N{REPLACEMENT CHARACTER}" in record.failure.message


def test_failed_runs_are_listed_and_every_verb_opens_them(in_folder: Path) -> None:
    toy = make(in_folder)
    toy.run()
    record = run(toy, "refuse", ModelError)
    listed = api.runs()
    assert [(item.outcome, item.failed_in) for item in listed] == [("error", ("weak",)), ("passed", ())]
    shown = ndld_flow("runs", cwd=in_folder)
    assert "ERROR in weak" in shown.stdout
    assert api.report("toy") == latest(toy) / "report.html"
    assert api.verify().all_well
    assert api.gc(dry_run=True).runs == ()
    (latest(toy) / "report.html").unlink()
    api.report(record.id)
    assert "this model is no" in (latest(toy) / "report.html").read_text()


@pytest.mark.thorough
def test_a_name_refers_neither_to_a_failed_run_nor_to_an_older_one(
    in_folder: Path, check_message: CheckMessage
) -> None:
    toy = make(in_folder)
    done, _ = toy.run()
    record = run(toy, "refuse", ModelError)
    for verb in (["compare", "toy"], ["tag", "toy", "base"], ["diff", "toy:first", "toy:last"]):
        ran = ndld_flow(*verb, cwd=in_folder)
        assert ran.returncode == 2
        check_message(ran.stderr)
    assert api.tag(record.id, "kept").name == record.id, "an id means what it says"
    assert ndld_flow("diff", f"{record.id}:first", f"{record.id}:source", cwd=in_folder).returncode == 0
    assert Outputs(in_folder / "outputs").latest("toy") == Path(done.folder).resolve()
    again, _ = toy.run()
    assert again.nothing_to_do
    assert again.run == done.run


@pytest.mark.thorough
def test_failures_do_not_displace_results(in_folder: Path) -> None:
    toy = make(in_folder)
    done, _ = toy.run()
    failed = [run(toy, "refuse", ModelError).id for _ in range(3)]
    freed = api.gc(keep=1)
    assert freed.runs == tuple(f"toy/{item}" for item in failed[:2])
    assert [run.run for run in api.runs()] == [f"toy/{failed[2]}", done.run]


def test_an_error_before_the_first_step_leaves_a_folder_too(in_folder: Path) -> None:
    recipe = (
        "name: toy\nmodel: model.onnx\nsteps:\n  first: {step: check_accuracy, candidate: source, data: {x: no.npy}}\n"
    )
    toy = make_toy(in_folder, recipe)
    with pytest.raises(RequestError) as caught:
        toy.run()
    record = read_run_record(latest(toy))
    assert record.outcome == "error"
    assert record.failure is not None
    assert record.failure.message == str(caught.value)
    assert "No step finished" in (latest(toy) / "report.html").read_text()


def test_when_the_report_cannot_be_written_the_first_error_is_reported(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make(in_folder)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ndld_flow.report.run_page.draw_documents", refuse)
    events: list[object] = []
    with pytest.raises(ModelError):
        api.run(toy.recipe, ["steps.weak.act=refuse"], trust=True, listener=events.append)
    assert any("failure cannot be written" in getattr(event, "text", "") for event in events)
    record = read_run_record(latest(toy))
    assert record.outcome == "error", "what is small comes first"
    assert not any(isinstance(event, RunFailed) for event in events)


def test_a_full_disk_at_the_end_of_a_good_run_is_a_failure(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make(in_folder)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ndld_flow.report.run_page.draw_documents", refuse)
    with pytest.raises(OutputsError):
        toy.run()
    record = read_run_record(latest(toy))
    assert record.outcome == "error"
    assert record.failure is not None
    assert record.failure.steps == ()
    monkeypatch.undo()
    monkeypatch.chdir(in_folder)
    done, _ = toy.run()
    assert done.passed
    assert not done.nothing_to_do, "a failure is no equal run"


@pytest.mark.thorough
def test_a_killed_program_leaves_an_interrupted_run(in_folder: Path) -> None:
    toy = make(in_folder)
    arguments = ("run", "toy.yaml", "steps.weak.act=sleep", "--trust")
    process = ProcessRun(*arguments, cwd=in_folder, env={"NDLD_FLOW_IN_PROCESS": "1"})
    wait_until((in_folder / "asleep").exists)
    assert [run.outcome for run in api.runs()] == ["running"]
    assert api.report("toy") if (latest(toy) / "report.html").exists() else True
    process.send_signal(signal.SIGKILL)
    process.finish(60)
    (listed,) = api.runs()
    assert listed.outcome == "interrupted"
    page = api.report("toy").read_text()
    assert "Interrupted" in page
    assert "next run: <bdi>first</bdi>" in page
    assert "weak" in page
    assert api.verify().all_well
    assert ndld_flow("compare", "toy", cwd=in_folder).returncode == 2
    done, _ = toy.run()
    assert done.passed
    api.gc(keep=0)
    assert api.runs() == []


@pytest.mark.parametrize("which", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_ctrl_c_leaves_an_interrupted_run(which: signal.Signals, in_folder: Path) -> None:
    make(in_folder)
    arguments = ("run", "toy.yaml", "steps.weak.act=sleep", "--trust")
    process = ProcessRun(*arguments, cwd=in_folder, env={"NDLD_FLOW_IN_PROCESS": "0"})
    wait_until((in_folder / "asleep").exists)
    process.send_signal(which)
    code, out, _ = process.finish(60)
    assert code == 130
    assert "INTERRUPTED toy/" in out
    (listed,) = api.runs()
    assert (listed.outcome, listed.failed_in) == ("interrupted", ("weak",))
    assert "line 999" in (Path(listed.folder) / "report.html").read_text()


def test_the_terminal_names_each_failed_gate(in_folder: Path) -> None:
    toy = make(in_folder)
    toy.write(RECIPE.replace("first.length >= 1", "first.length >= 5").replace("last.length >= 1", "last.length < 3"))
    ran = ndld_flow("run", "toy.yaml", "--trust", cwd=in_folder)
    assert ran.returncode == 1
    assert ": gate first.length >= 5: measured 2, limit 5\n" in ran.stdout
    assert "last.length < 3: measured 4, limit 3" in ran.stdout
    listed = ndld_flow("runs", cwd=in_folder)
    assert "FAILED: gate first.length >= 5: measured 2" in listed.stdout
    again = ndld_flow("run", "toy.yaml", "--trust", cwd=in_folder)
    assert again.returncode == 1
    assert "FAILED: gate first.length >= 5: measured 2" in again.stdout
    assert "last.length < 3: measured 4, limit 3" in again.stdout


def test_json_names_the_report_of_a_failure(in_folder: Path) -> None:
    make(in_folder)
    ran = ndld_flow("run", "toy.yaml", "steps.weak.act=refuse", "--trust", "--json", cwd=in_folder)
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    (failed,) = [event for event in events if event["event"] == "run_failed"]
    assert Path(failed["report"]).is_file()
    assert failed["steps"] == ["weak"]
    assert failed["exit_code"] == ran.returncode == 2


def test_an_interrupted_sweep_leaves_a_run_folder(in_folder: Path) -> None:
    make(in_folder)
    text = RECIPE.replace("gates:", "sweep: {over: {first.word: [a, b]}, minimize: last.length}\ngates:")
    Path("sweep.yaml").write_text(text)

    def interrupt(event: Event) -> None:
        if isinstance(event, PointFinished):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.sweep("sweep.yaml", trust=True, listener=interrupt)
    folder = Path("outputs/runs/toy/latest")
    assert read_run_record(folder).outcome == "interrupted"
    assert (folder / "report.html").is_file()
