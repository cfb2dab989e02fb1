"""Measuring steps that take turns: done together, reused together, measured again together."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.cli.plain import PlainLines
from ndld_flow.execution.devices import find_shared_folder, name_machine
from ndld_flow.execution.events import Event, StepWaits
from ndld_flow.records.run_record import RunRecord
from ndld_flow.store.locks import FileLock, LockNote
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_tfm
from tests.support.toys import Toy, make_toy, outcomes, started

WEIGH = '''
"""A toy that measures: it takes turns and tells with whom."""

from pathlib import Path
import os

from ndld_flow.plugin import Context, Onnx, Result, Reuse, Step, Turn


class Stamp(Step[Onnx, Onnx]):
    """Weigh a model, or stamp it."""

    reuse = Reuse.THIS_MACHINE
    takes_turns = True

    word: str = "x"
    device_name: str = "scales"
    fails: bool = False

    @property
    def device(self):
        return self.device_name

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        return self.run_together([Turn(self, source, out, context)])[0]

    @classmethod
    def run_together(cls, turns):
        names = "+".join(turn.context.name for turn in turns)
        with open(os.environ.get("TOY_LOG", os.devnull), "a") as log:
            log.write(f"{names}\\n")
        results = []
        for turn in turns:
            if turn.step.fails:
                turn.context.log.info("about to fail")
                from ndld_flow.base.errors import ModelError
                raise ModelError(f"{turn.out / 'model.onnx'} is too heavy")
            (turn.out / "model.onnx").write_bytes(turn.source.path.read_bytes())
            turn.context.log.info("weighed with %s", names)
            results.append(Result(f"weighed {turn.step.word} with {names}"))
        return results
'''

RECIPE = """
name: toy
model: model.onnx
steps_from: [steps/stamp.py, steps/dye.py]
steps:
  base: {step: stamp, from: source}
  dyed: {step: dye, from: source}
  speed: {step: stamp, from: dyed}
"""

DYE = '''
"""Changes a model."""

from pathlib import Path

from ndld_flow.plugin import Context, Onnx, Result, Step


class Dye(Step[Onnx, Onnx]):
    """Dye a model."""

    colour: str = "red"
    passed: bool = True
    stops_run = True

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx
        model = onnx.load(source.path)
        model.doc_string = self.colour
        onnx.save(model, out / Onnx.main)
        return Result(f"dyed {self.colour}", passed=self.passed)
'''


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    (in_folder / ".log").mkdir()  # a hidden folder is in no key
    monkeypatch.setenv("TOY_LOG", str(in_folder / ".log" / "log.txt"))
    (in_folder / "steps").mkdir()
    (in_folder / "steps" / "dye.py").write_text(DYE)
    return make_toy(in_folder).write(RECIPE, WEIGH)


def sessions(toy: Toy) -> list[str]:
    log = toy.folder / ".log" / "log.txt"
    return log.read_text().split() if log.exists() else []


def test_measuring_steps_wait_for_each_other_and_are_reported_in_recipe_order(toy: Toy) -> None:
    done, events = toy.run()
    assert started(events) == ["dyed", "base", "speed"]
    assert sessions(toy) == ["base+speed"]
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    assert [step.name for step in run.steps] == ["base", "dyed", "speed"]
    base, _, speed = (step.record for step in run.steps)
    assert base is not None
    assert speed is not None
    assert base.started_at == speed.started_at
    assert base.ended_at == speed.ended_at
    assert base.started_at <= base.ended_at
    assert "weighed with base+speed" in (Path(done.folder) / "speed" / "log.txt").read_text()


def test_steps_measured_in_turns_are_reused_together(toy: Toy) -> None:
    toy.run()
    assert set(toy.plan().values()) == {("reused", "")}
    done, _ = toy.run()
    assert done.nothing_to_do
    assert sessions(toy) == ["base+speed"]


def test_a_change_on_one_side_measures_both_again(toy: Toy) -> None:
    toy.run()
    plan = toy.plan("steps.dyed.colour=blue")
    assert plan["base"] == ("measured in turns", "with speed")
    assert plan["speed"][0] == "input changed"
    _, events = toy.run("steps.dyed.colour=blue")
    assert started(events) == ["dyed", "base", "speed"]
    assert sessions(toy) == ["base+speed"] * 2
    assert toy.plan()["base"] == ("reused", "")  # the first session is still there


def test_a_changed_setting_of_one_is_the_reason_of_the_other(toy: Toy) -> None:
    toy.run()
    plan = toy.plan("steps.speed.word=z")
    assert plan["speed"] == ("settings changed", "word x -> z")
    assert plan["base"][0] == "measured in turns"


def test_a_lost_half_measures_both_again(toy: Toy) -> None:
    done, _ = toy.run()
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    record = run.steps[2].record
    assert record is not None
    (toy.folder / "outputs" / "store" / "records" / record.key[:2] / f"{record.key}.json").unlink()
    assert toy.plan()["base"] == ("measured in turns", "with speed")
    toy.run()
    assert sessions(toy) == ["base+speed"] * 2


def test_profiles_of_two_measurement_sessions_are_measured_again(toy: Toy) -> None:
    done, _ = toy.run()
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    record = run.steps[2].record
    assert record is not None
    earlier = record.model_copy(update={"started_at": record.started_at - timedelta(hours=1)})
    Store(toy.folder / "outputs" / "store").write_record(earlier)
    assert toy.plan()["base"] == ("measured in turns", "with speed")
    assert toy.plan()["speed"] == ("measured in turns", "with base")


def test_steps_that_take_turns_share_the_time(toy: Toy) -> None:
    done, _ = toy.run()
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    base, _, speed = run.steps
    assert base.record is not None
    assert speed.record is not None
    assert base.record.wall_s == speed.record.wall_s
    assert base.wall_s == speed.wall_s >= base.record.wall_s
    assert sum(step.wall_s for step in run.steps) <= run.wall_s


def test_forcing_one_measures_both_again(toy: Toy) -> None:
    toy.run()
    _, events = toy.run(force=["speed"])
    assert started(events) == ["base", "speed"]


def test_other_devices_and_other_depths_are_measured_apart(toy: Toy) -> None:
    toy.run("steps.speed.device_name=gpu-0")
    assert sessions(toy) == ["base", "speed"]
    toy.run("steps.speed.from=base", "steps.speed.word=y")  # what reads a measurement cannot take turns with it
    assert sessions(toy) == ["base", "speed", "speed"]


def test_two_equal_measurements_are_two(toy: Toy) -> None:
    _, events = toy.run("steps.speed.from=source")
    assert sessions(toy) == ["base+speed"]
    assert started(events) == ["dyed", "base", "speed"]
    assert set(toy.plan("steps.speed.from=source").values()) == {("reused", "")}


def test_a_stopped_run_measures_nothing(toy: Toy) -> None:
    done, events = toy.run("steps.dyed.passed=false")
    assert not done.passed
    assert outcomes(events) == {"dyed": "failed", "base": "skipped", "speed": "skipped"}
    assert sessions(toy) == []


def test_an_error_names_all_steps_of_the_session_and_keeps_nothing(toy: Toy, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        toy.run("steps.speed.fails=true")
    check_message(caught.value)
    assert toy.plan("steps.speed.fails=true")["base"][0] == "new"


@pytest.mark.thorough
def test_runs_at_the_same_time_measure_once(toy: Toy) -> None:
    command = [sys.executable, "-m", "ndld_flow", "run", str(toy.recipe), "--trust"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(4)]
    deadline = time.monotonic() + 120
    for run in runs:
        assert run.wait(max(1.0, deadline - time.monotonic())) == 0, run.communicate()[0]
        if run.stdout is not None:
            run.stdout.close()
    assert sessions(toy) == ["base+speed"]
    assert len(api.runs(outputs=toy.folder / "outputs")) >= 1


def test_another_model_is_measured_in_turns_with_the_recipes_own(toy: Toy) -> None:
    make_tfm(toy.folder / "shipped.onnx")
    models = RECIPE.replace("model: model.onnx", "model: model.onnx\nmodels: {shipped: shipped.onnx}")
    toy.write(models.replace("base: {step: stamp, from: source}", "base: {step: stamp, from: shipped}"), WEIGH)
    done, _ = toy.run()
    folder = Path(done.folder)
    assert (folder / "base" / "model.onnx").read_bytes() == (toy.folder / "shipped.onnx").read_bytes()
    run = RunRecord.model_validate_json((folder / "run.json").read_text())
    assert run.models["shipped"].location == "shipped.onnx"
    assert set(toy.plan().values()) == {("reused", "")}
    again = api.run(folder / "recipe.yaml", outputs=toy.folder / "outputs", trust=True)  # pins both by digest
    assert again.nothing_to_do
    make_cnn(toy.folder / "shipped.onnx")
    assert toy.plan()["base"][0] == "input changed"
    with pytest.raises(RequestError, match=r"blake3"):
        api.run(folder / "recipe.yaml", outputs=toy.folder / "outputs", trust=True)


def test_a_step_without_from_reads_the_recipes_own_model(toy: Toy) -> None:
    make_tfm(toy.folder / "shipped.onnx")
    head = "model: model.onnx\nmodels: {shipped: shipped.onnx}\nsteps_from: [steps/dye.py]\n"
    toy.write(f"{head}steps:\n  dyed: {{step: dye}}\n", WEIGH)
    done, _ = toy.run()
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    assert run.steps[0].record is not None
    assert run.steps[0].record.parents == {"from": "source"}


def test_models_have_names_of_their_own(toy: Toy, check_message: CheckMessage) -> None:
    toy.write(RECIPE.replace("model: model.onnx", "model: model.onnx\nmodels: {base: a.onnx, 'a b': b.onnx}"), WEIGH)
    with pytest.raises(RecipeError) as caught:
        toy.plan()
    text = str(caught.value)
    check_message(text)


def test_a_step_reports_waiting_for_its_device(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    folder = find_shared_folder()
    assert folder is not None
    lock = FileLock(folder / f"ndld_flow-{name_machine()}-scales.lock", 0o666)
    lock.acquire(0)
    lock.write_note(LockNote.of_this_process("step speed of other", run_pid=1))
    waits: list[str] = []
    waited: list[datetime] = []

    lines = PlainLines()

    def listen(event: Event) -> None:
        lines(event)
        if isinstance(event, StepWaits):
            waits.append(event.waits_for)
            waited.append(datetime.now(UTC))
            lock.release()

    done = api.run(toy.recipe, outputs=toy.folder / "outputs", trust=True, listener=listen)
    assert len(waits) == 1
    assert re.fullmatch(r"scales\b.* speed of other \(user \S+, pid \d+\) .*[\d:]{8}", waits[0])
    assert f"waits for {waits[0]}" in capsys.readouterr().out  # without a terminal, too
    run = RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text())
    assert run.steps[0].record is not None
    assert run.steps[0].record.started_at > waited[0], "the work begins when the device is held"
