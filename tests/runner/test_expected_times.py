"""Expected durations of steps: from comparable work of earlier runs, and unknown otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from ndld_flow.execution.events import Event, StepStarted
from ndld_flow.records.run_folder import RUN_RECORD
from tests.support.toys import RECIPE, Toy, make_toy

TIMED = RECIPE.replace("word: b}", "word: b, seconds: 0.3}")


@pytest.fixture
def toy(in_folder: Path) -> Toy:
    return make_toy(in_folder, TIMED)


def expected(events: list[Event]) -> dict[str, tuple[float | None, float | None]]:
    """Step -> expected seconds of the step, and of all steps from it on."""
    starts = (event for event in events if isinstance(event, StepStarted))
    return {event.name: (event.expected_s, event.remaining_s) for event in starts}


def test_a_first_run_expects_nothing(toy: Toy) -> None:
    _, events = toy.run()
    assert expected(events) == dict.fromkeys(("first", "second", "aside"), (None, None))


def test_repeated_work_is_expected_to_take_as_long(toy: Toy) -> None:
    toy.run()
    _, events = toy.run(force=["second", "aside"])
    times = expected(events)
    second, aside = times["second"], times["aside"]
    assert second[0] is not None and second[0] >= 0.3
    assert aside[0] is not None and second[1] == pytest.approx(second[0] + aside[0])
    assert aside[1] == aside[0], "what has finished is not counted"


def test_steps_that_are_reused_take_no_time(toy: Toy) -> None:
    toy.run()
    _, events = toy.run(force=["aside"])
    assert expected(events) == {"aside": (times := expected(events)["aside"])}
    assert times[0] == times[1]


def test_other_settings_are_other_work(toy: Toy) -> None:
    toy.run()
    _, events = toy.run("steps.aside.word=d", force=["second"])
    times = expected(events)
    assert times["aside"] == (None, None)
    assert times["second"][0] is not None
    assert times["second"][1] is None, "a later step is unknown"


def test_a_larger_model_is_other_work(toy: Toy, in_folder: Path) -> None:
    toy.run()
    model = onnx.load(in_folder / "model.onnx")
    model.doc_string = "long " * model.ByteSize()
    onnx.save(model, in_folder / "model.onnx")
    _, events = toy.run()
    assert expected(events) == dict.fromkeys(("first", "second", "aside"), (None, None))


def test_times_of_another_machine_do_not_count(toy: Toy, in_folder: Path) -> None:
    finished, _ = toy.run()
    record = Path(finished.folder) / RUN_RECORD
    written = json.loads(record.read_text())
    written["machine"]["cpu"] = "another"
    record.write_text(json.dumps(written))
    _, events = toy.run(force=["aside"])
    assert expected(events) == {"aside": (None, None)}


def test_an_older_run_is_read_if_the_latest_does_not_have_the_work(toy: Toy) -> None:
    toy.run()
    toy.run("steps.aside.word=d")
    _, events = toy.run(force=["aside"])
    assert expected(events)["aside"][0] is not None
