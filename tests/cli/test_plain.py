"""Plain lines of events, for logs."""

from __future__ import annotations

import io
import math
import time

import pytest

from ndld_flow.cli.options import Loudness
from ndld_flow.cli.plain import PlainLines
from ndld_flow.cli.progress import choose_listener_beside_result
from ndld_flow.execution.events import (
    Event,
    Notice,
    RaceStage,
    RunStarted,
    StepFinished,
    StepProgressed,
    StepStarted,
    StepWaits,
    SweepStarted,
    VariantProgressed,
    VariantTried,
)
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import Speed
from tests.support.optimization_samples import variant
from tests.support.text_facts import numbers_in


def lines_of(*events: Event, loudness: Loudness = "normal") -> list[str]:
    stream = io.StringIO()
    lines = PlainLines(loudness, stream)
    for event in events:
        lines(event)
    return stream.getvalue().splitlines()


SWEEP = SweepStarted(recipe="r", method="grid", point_count=3)


@pytest.mark.parametrize("loudness", ["quiet", "normal", "verbose"])
@pytest.mark.parametrize("before", [[], [SWEEP]])
def test_the_wait_for_a_device_is_printed_in_every_mode(loudness: Loudness, before: list[Event]) -> None:
    wait = StepWaits(name="speed#2", waits_for="cpu 0-1, held by step speed of other")
    assert lines_of(*before, wait, loudness=loudness)[-1] == f"speed#2: waits for {wait.waits_for}"


def test_each_variant_is_a_line() -> None:
    found = variant("INT8", "not proved", 0.5, 0.48, 0.52, metrics={"cosine": Metric(value=0.9995)}, took_s=2.1)
    best, perhaps = lines_of(VariantTried(variant=found, leads=True), VariantTried(variant=found))
    assert best.startswith("INT8: ") and numbers_in(best) == [2.0, 1.92, 2.08, 0.9995, 2.1]
    assert numbers_in(perhaps) == numbers_in(best) and perhaps != best
    wrong = variant("INT4\x1b[31m\nX", "not right", why="cosine 0.93\non 3 samples")
    (line,) = lines_of(VariantTried(variant=wrong))
    assert "\x1b" not in line
    assert line.endswith("(cosine 0.93 on 3 samples)")
    assert lines_of(VariantTried(variant=found), loudness="quiet") == []
    assert lines_of(VariantTried(variant=variant("INT8 of all layers", "cannot win", why="others show it"))) == []


def test_a_reused_step_whose_end_was_printed_is_not_printed_again() -> None:
    """A proof of `optimize` runs two recipes that begin alike."""
    done = StepFinished(
        name="clean", step="sanitize", outcome="done", reason="new", detail="", summary="9 nodes", wall_s=1, metrics={}
    )
    reused = done.model_copy(update={"outcome": "reused"})
    other = reused.model_copy(update={"summary": "8 nodes"})
    first, second, third = lines_of(done, reused, other, other, done)
    assert first == third and first.endswith("1.00 s: 9 nodes")
    assert second == "clean: reused: 8 nodes"


def test_a_variant_that_left_is_compared_with_the_best_alone() -> None:
    """Its ratio to the source is of other rounds: it was 0.62x as fast as one of 1.19x, and 1.41x as fast itself."""
    left = variant("INT8", "not the best", 0.7, 0.6, 0.8, why="0.62x as fast as clean")
    (line,) = lines_of(VariantTried(variant=left))
    assert "0.62x" in line and "source" not in line


def test_an_impossible_speed_is_left_out() -> None:
    odd = variant("odd", "not the best").model_copy(update={"speed": Speed(ratio=0, low=math.nan, high=1, clock="cpu")})
    assert lines_of(VariantTried(variant=odd)) == ["odd: not the best"]


def test_problems_stay_out_of_a_result_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with choose_listener_beside_result(True) as listener:
        listener(Notice(text="late", warning=True))
        listener(VariantTried(variant=variant("INT8", "not the best")))
    assert capsys.readouterr() == ("", "warning: late\n")


def test_only_warnings_are_printed_in_quiet_mode() -> None:
    notices = Notice(text="a"), Notice(text="b", warning=True)
    assert lines_of(*notices, loudness="quiet") == ["warning: b"]


def test_a_race_prints_what_it_does_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It judged the source on large outputs for a minute and a half without a line."""
    stream = io.StringIO()
    lines = PlainLines("normal", stream)
    stages: list[tuple[float, str, RaceStage]] = [
        (0.0, "source", "building"), (1.0, "source", "judging"), (9.0, "INT8", "building"),
        (22.0, "INT8", "judging"), (30.0, "INT8", "measuring"), (60.0, "", "measuring"), (99.0, "", "ended"),
    ]  # fmt: skip
    for now_s, name, doing in stages:
        monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
        lines(VariantProgressed(variant=name, doing=doing, left_s=9.0))
    printed = [line.removeprefix("the race: ") for line in stream.getvalue().splitlines()]
    assert printed == ["judging source", "judging INT8", "measuring the fastest variants in turns"]


def test_a_long_step_prints_its_progress_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    stream = io.StringIO()
    lines = PlainLines("normal", stream)
    lines(RunStarted(recipe="r", steps=("agree",)))
    lines(StepStarted(name="agree", step="check_accuracy", reason="new", detail=""))
    for now_s in (1.0, 59.0, 60.0, 61.0, 119.0, 121.0):
        lines(StepProgressed(name="agree", done=1, total=8, what=f"running source at {now_s:g} s"))
    assert stream.getvalue().splitlines()[1:] == ["agree: running source at 60 s", "agree: running source at 121 s"]
