"""The command line run in this process: its output, without the seconds that starting a program takes."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from ndld_flow.cli.app import main


def ndld_flow(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `ndld-flow` with these arguments; its output is a pipe for it."""
    command = ["ndld-flow", *arguments]
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            contextlib.chdir(cwd),
            mock.patch.object(sys, "argv", command),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(code, int)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
