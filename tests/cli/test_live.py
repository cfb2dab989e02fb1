"""The live display, in a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models import make_cnn
from tests.support.toys import RECIPE, make_toy

pty = pytest.importorskip("pty", reason="pseudo-terminals are a Unix thing")


def run_in_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and all that a terminal of 100 columns was sent."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ndld_flow", *arguments],
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    sent = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other side has closed
            break
        if not part:
            break
        sent += part
    os.close(master)
    return process.wait(timeout=60), sent.decode()


def plain(text: str) -> str:
    """Return the lines of the screen without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_shows_progress_and_a_line_for_each_step(in_folder: Path) -> None:
    make_toy(in_folder, RECIPE.replace("word: a", "word: a, seconds: 0.6"))
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust")
    screen = plain(sent)
    assert code == 0, screen
    assert "stamping" in screen, "what the step is doing"
    assert "━" in screen, "a bar"
    for name in ("first", "second", "aside"):
        assert re.search(rf"✓ {name} +\d+\.\d\d s  stamped", screen)
    assert screen.index("✓ first") < screen.index("PASSED toy") < screen.index("report outputs/runs/toy/")
    assert sent.count("\x1b[?25l") == sent.count("\x1b[?25h"), "the cursor is given back"


@pytest.mark.thorough
def test_a_second_run_in_a_terminal_reports_nothing_to_do(in_folder: Path) -> None:
    make_toy(in_folder).run()
    code, sent = run_in_terminal(in_folder, "run", "toy.yaml", "--trust")
    assert code == 0
    assert "= first" in plain(sent)
    assert "nothing to do: run toy/" in plain(sent)


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
