"""The live display, in a real pseudo-terminal."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ndld_flow.cli.live import LiveDisplay, draw_variants
from ndld_flow.execution.events import (
    PointFinished,
    RaceStage,
    RunStarted,
    StepFinished,
    StepStarted,
    StepWaits,
    SweepStarted,
    VariantProgressed,
    VariantTried,
)
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import VariantOutcome
from tests.support.models import make_cnn
from tests.support.optimization_samples import variant
from tests.support.terminal import plain, run_in_terminal, screen_of
from tests.support.toys import RECIPE, make_toy


def test_a_terminal_shows_progress_and_a_line_for_each_step(in_folder: Path) -> None:
    make_toy(in_folder, RECIPE.replace("word: a", "word: a, seconds: 0.6"))
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust")
    screen = plain(sent)
    assert code == 0, screen
    assert "stamping" in screen, "what the step is doing"
    assert "━" in screen, "a bar"
    for name in ("first", "second", "aside"):
        assert re.search(rf"✓ {name} +\d+\.\d\d s  stamped", screen)
    assert screen.index("✓ first") < screen.index("PASSED toy") < screen.index("report     outputs/runs/toy/")
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h"), "the cursor is given back"


@pytest.mark.thorough
def test_a_second_run_in_a_terminal_reports_nothing_to_do(in_folder: Path) -> None:
    make_toy(in_folder).run()
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust")
    assert code == 0
    assert "= first" in plain(sent)
    assert "run toy/" in plain(sent)


def test_an_error_in_a_terminal_restores_the_cursor(in_folder: Path) -> None:
    make_toy(in_folder)
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust", "model=nowhere.onnx")
    assert code == 2
    assert "error: model nowhere.onnx" in plain(sent)
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h")


@pytest.mark.thorough
def test_steps_that_take_turns_have_a_bar_each(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    settings = "step: profile, from: source, runs: 2, passes: 4, duration: 0, warmup: 300, layer_passes: 0, stable: 0 %"
    (in_folder / "pair.yaml").write_text(f"model: model.onnx\nsteps:\n  a: {{{settings}}}\n  b: {{{settings}}}\n")
    code, sent = run_in_terminal(in_folder, "run", "pair.yaml")
    screen = plain(sent)
    assert code == 0, screen
    frames = re.split(r"\r(?!\n)", screen)
    assert any({"a", "b"} <= set(re.findall(r"^. ([ab]) ", frame, re.MULTILINE)) for frame in frames), screen
    for name in "ab":
        assert re.search(rf"✓ {name} +\d+\.\d\d s  median", screen)


SLOW = RECIPE.replace("word: b", "word: b, seconds: 60")


@pytest.mark.thorough
def test_the_line_below_the_steps_counts_them_and_knows_the_remaining_time(in_folder: Path) -> None:
    make_toy(in_folder, RECIPE.replace("word: b", "word: b, seconds: 1.5"))
    _, first = run_in_terminal(in_folder, "run", "toy.yaml", "--trust")
    assert re.search(r"step 2 of 3 · 0:0\d:\d\d · .*unknown", plain(first))
    _, again = run_in_terminal(in_folder, "run", "toy.yaml", "--trust", "--force", "second")
    assert re.search(r"step 2 of 3 · 0:0\d:\d\d · about \d+ s", plain(again))
    assert not re.search(r"step 2 of 3 · [\d:]+ · .*unknown", plain(again))


def test_a_sweep_shows_the_remaining_time_at_its_pace_so_far() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)

    def finish(number: int) -> None:
        display(PointFinished(number=number, values={}, outcome="passed", reason="", objectives={}))

    def shown() -> str:
        console.file = io.StringIO()
        display.refresh()
        return plain(console.file.getvalue())

    with LiveDisplay(console) as display:
        display(SweepStarted(recipe="r", method="grid", point_count=40))
        finish(1)
        assert "pace" not in shown(), "the results of this point were stored"
        display(StepStarted(name="a#2", step="stamp", reason="new", detail=""))
        assert "pace" not in shown()
        time.sleep(0.2)
        finish(2)
        assert re.search(r"at this pace about \d+ (s|min) .*left", shown())
        for number in range(3, 41):
            finish(number)
        assert "pace" not in shown()


def finished(name: str, **changed: Any) -> StepFinished:
    values = {"step": "profile", "outcome": "done", "reason": "new", "detail": "", "summary": "", "metrics": {}}
    return StepFinished(**{"name": name, "wall_s": 1.0, **values, **changed})


def test_variants_are_a_table_whose_leader_is_marked() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=12)

    def shown() -> list[str]:
        console.file = io.StringIO()
        display.refresh()
        return [line.rstrip() for line in plain(console.file.getvalue()).splitlines() if line.strip()]

    def try_(name: str, outcome: VariantOutcome, *ratios: float, leads: bool = False) -> None:
        metrics = {"cosine": Metric(value=0.9995)}
        display(VariantTried(variant=variant(name, outcome, *ratios, metrics=metrics), leads=leads))

    with LiveDisplay(console) as display:
        display(StepWaits(name="the race", waits_for="cpu 0-1, held by another"))
        waiting = next(line for line in shown() if "waits for cpu 0-1" in line)
        assert re.search(r"the race .* 0:00:\d\d +waits", waiting)
        try_("first", "not proved", 0.8, 0.7, 0.9, leads=True)
        assert not any("waits" in line for line in shown()), "it runs"
        try_("wrong <b>[red]", "not right", 0.2, 0.1, 0.3)
        try_("second", "not proved", 0.5, 0.4, 0.6, leads=True)
        try_("slow", "not the best", 0.9, 0.8, 1.0)
        head, *rows = shown()
        assert head.split() == ["variant", "vs", "source", "accuracy"]
        assert [row.split()[:2] for row in rows[:4]] == [
            ["▸", "second"], ["first", "1.25x"], ["slow", "1.11x"], ["wrong", "<b>[red]"]
        ]  # fmt: skip
        assert "2.00x" in rows[0] and "cosine 0.9995" in rows[0] and "the best so far" in rows[0]
        assert "in the race" in rows[1]
        for number in range(30):
            try_(f"more {number}", "failed")
        table = shown()
        assert len(table) <= 12
        assert table[1].startswith("▸ second")
        assert any(re.fullmatch(r"  and \d+ more", line) for line in table)


def test_a_race_shows_the_variant_at_work_and_the_rest_of_the_budget() -> None:
    """For minutes it showed `deciding the gates and writing the report`, then more variants than were tried."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)

    def shown() -> str:
        console.file = io.StringIO()
        display.refresh()
        return plain(console.file.getvalue())

    def work(name: str, doing: RaceStage) -> str:
        display(VariantProgressed(variant=name, doing=doing, left_s=170))
        return shown()

    with LiveDisplay(console) as display:
        display(RunStarted(recipe="source", steps=("base",)))
        display(finished("base"))
        assert re.search(r"(?m)\S the race .* building INT8$", work("INT8", "building"))
        assert "3 min left" in shown() and "report" not in shown()
        display(VariantTried(variant=variant("INT8", "not right")))
        display(VariantTried(variant=variant("INT8 of all layers", "cannot win")))
        display(VariantTried(variant=variant("clean", "not tried")))
        assert "measuring clean" in work("clean", "measuring")
        assert "1 variant tried" in shown()
        assert "the race" not in work("", "ended")


@pytest.mark.parametrize("height", [-5, 1, 2, 3, 5, 40])
def test_a_table_of_variants_fits_its_height(height: int) -> None:
    events = [VariantTried(variant=variant(f"v{number}", "not the best")) for number in range(9)]
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_variants(events, 80, height))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= max(height, 2)
    assert len(lines) == 10 or "more" in lines[-1]


@pytest.mark.parametrize("columns", [50, 80, 100])
def test_long_names_leave_spinner_bar_and_clock_whole(columns: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=columns)
    name = "source in OpenVINO at the default precision"
    with LiveDisplay(console) as display:
        display(VariantTried(variant=variant(name, "not right on held-out data", 0.5, 0.4, 0.6)))
        display(VariantProgressed(variant=name, doing="measuring", left_s=50))
        console.file = io.StringIO()
        display.refresh()
        lines = plain(console.file.getvalue()).replace("\r", "").splitlines()
    assert all(cell_len(line) <= columns for line in lines)
    row = next(line for line in lines if "the race" in line)
    assert re.fullmatch(rf"\S the race +━{{{20 if columns >= 80 else 10}}} 0:00:00 measuring.*…", row.rstrip()) or (
        row.rstrip().endswith(name)
    )
    if columns == 80:
        assert any(line.startswith(f"  {name[:20]}") for line in lines)


def test_a_reused_step_whose_end_was_printed_is_not_printed_again() -> None:
    sent = io.StringIO()
    with LiveDisplay(Console(file=sent, force_terminal=True, width=100)) as display:
        for outcome, summary in (
            ("done", "9 nodes"),
            ("reused", "9 nodes"),
            ("reused", "8 nodes"),
            ("done", "9 nodes"),
        ):
            display(RunStarted(recipe="proof", steps=("clean",)))
            display(finished("clean", outcome=outcome, summary=summary))
    assert [line.split()[0] for line in screen_of(sent.getvalue(), 100)] == ["✓", "=", "✓"]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 30)])
def test_lines_above_a_drawing_that_changes_its_height_stay(columns: int, rows: int) -> None:
    """The thread that draws wrote a lower drawing between a line and its own: two lines were erased, two stayed."""
    sent = io.StringIO()

    class Slow(Console):
        """It writes what the main thread prints 50 ms later."""

        def _write_buffer(self) -> None:
            if threading.current_thread() is threading.main_thread() and self._buffer:
                turn = threading.Thread(target=display.refresh)
                turn.start()
                turn.join(0.05)
            super()._write_buffer()

    display = LiveDisplay(Slow(file=sent, force_terminal=True, width=columns, height=rows, highlight=False))
    with display:
        for number in range(12):
            display(VariantTried(variant=variant(f"v{number}", "not the best")))
        display(RunStarted(recipe="proof", steps=("held",)))
        for number in range(3):
            display(StepStarted(name="held", step="profile", reason="new", detail=""))
            display.refresh()
            display(finished("held", summary=f"{number:060} {number:040}"))
    pairs = ([f"✓ held    1.00 s  {number:060}", f"{'':18}{number:040}"] for number in range(3))
    assert screen_of(sent.getvalue(), columns, rows) == [line for pair in pairs for line in pair]


@pytest.mark.parametrize("columns", [60, pytest.param(200, marks=pytest.mark.thorough)])
def test_lines_fit_the_terminal(in_folder: Path, columns: int) -> None:
    sentence = "a long summary of many words that describes what the step has found in this model"
    make_toy(in_folder, RECIPE.replace("word: b", f"word: {sentence}"))
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust", columns=columns)
    screen = screen_of(sent, columns)
    assert code == 0
    start = next(index for index, line in enumerate(screen) if line.startswith("✓ second"))
    shown = " ".join(line.strip() for line in screen[start:] if line.strip())
    assert sentence in shown, "words are neither broken nor left out"
    assert columns < 100 or sentence in screen[start]


def test_ctrl_c_leaves_no_bar_behind(in_folder: Path) -> None:
    make_toy(in_folder, SLOW)
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust", interrupt_at="step 2 of 3")
    screen = screen_of(sent, 100)
    assert code == 130, screen
    assert not any("━" in line or "remaining time" in line for line in screen), screen
    assert screen[-1].startswith("interrupted; ")
    assert any(line.startswith("INTERRUPTED toy/") for line in screen)
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h"), "the cursor is given back"


def test_a_quiet_run_prints_the_verdict_and_the_result(in_folder: Path) -> None:
    make_toy(in_folder)
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust", "-q", "-o", "result.onnx")
    screen = screen_of(sent, 100)
    assert (code, len(screen)) == (0, 2), screen
    verdict, result = screen
    assert verdict.startswith("PASSED toy in ")
    assert result.startswith("result     result.onnx (")


@pytest.mark.thorough
def test_a_verbose_run_prints_the_log_of_each_step(in_folder: Path) -> None:
    make_toy(in_folder)
    _, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust", "--verbose")
    screen = screen_of(sent, 100)
    assert screen.index("  first: stamped a") < next(i for i, line in enumerate(screen) if line.startswith("✓ first"))
