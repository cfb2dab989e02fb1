"""Verbs that read a model end with a message when native code crashes, and on signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tally import Tally
from tests.support.worker_toys import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a verb is watched where processes can fork")
VERB = """
import os, signal, sys, time
from ndld_flow.cli import app

def act(*_, **__):
    print(os.getpid(), flush=True)
    {act}

app.program.main = act
sys.argv = ["ndld-flow", "{verb}", "model.onnx"]
app.main()
"""


def begin(act: str, verb: str = "inspect") -> subprocess.Popen[str]:
    """A verb that acts so instead of reading a model."""
    command = [sys.executable, "-c", VERB.format(act=act, verb=verb)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.representatives("draw", "inspect")
@pytest.mark.usefixtures("isolated_steps")
@pytest.mark.parametrize("verb", ["inspect", "diff", "draw", "init", "ops", "plan"])
def test_a_crash_in_native_code_is_reported(verb: str, tally: Callable[[str], Tally]) -> None:
    count = tally("native crash of a verb")
    process = begin("os.kill(os.getpid(), signal.SIGSEGV)", verb)
    _, result = process.communicate(timeout=60)
    assert process.returncode == 5
    assert f"{verb}: the process that read" in result
    assert result.count("\n") == 1
    count.refused += 1


@pytest.mark.usefixtures("isolated_steps")
def test_the_exit_code_is_forwarded() -> None:
    process = begin("sys.exit(4)")
    process.communicate(timeout=60)
    assert process.returncode == 4


@pytest.mark.usefixtures("isolated_steps")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ending_the_parent_ends_the_verb(number: signal.Signals, code: int) -> None:
    process = begin("time.sleep(600)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert child != process.pid
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    wait_until(lambda: not _lives(child))


def _lives(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_single_process_has_no_parent_watcher() -> None:
    process = begin("sys.exit(0)")
    result, _ = process.communicate(timeout=60)
    assert int(result) == process.pid
