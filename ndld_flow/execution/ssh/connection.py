"""A connection to a target: one `ssh`, over which the first program, and then the node, answers lines.

OpenSSH does all of the cryptography: keys, agents, prompts for passwords, `~/.ssh/config` with ProxyJump, ProxyCommand
and ControlMaster work as in a terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ndld_flow.base.errors import BackendError
from ndld_flow.base.prompts import asking
from ndld_flow.base.quantities import size
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.execution.messages import NO_ANSWER, Alive
from ndld_flow.execution.ssh.messages import ALIVE_EVERY_S, CHUNK_BYTES, FIRST_REPLY, REPLY, FirstReply, Reply
from ndld_flow.processes.lines import MAX_LINE_BYTES, Line
from ndld_flow.recipe.targets import Target

T = TypeVar("T")

SSH_VARIABLE = "NDLD_FLOW_SSH"
"""Command to use instead of `ssh`, such as `ssh -F my_config`."""
# An existing master (ControlMaster) is used, and none is started, which would outlive this process.
_OPTIONS = (
    *("-T", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    *("-o", "ControlMaster=no"),
)
_NO_PYTHON = 94
_END_S = 5.0
_LAST_BYTES = 4096
# The loader reads the first program from standard input without a buffer, as the rest is for others.
_LOADER = (
    "import os,sys;r=lambda s:s if len(s)=={size} else r(s+(os.read(0,{size}-len(s)) or sys.exit(3)));exec(r(bytes()))"
)
# One line, and no single quotes: csh reads it too.
_SCRIPT = (
    "for p in python3 python3.14 python3.13 python3.12 python3.11 /usr/local/bin/python3; do "
    'if "$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then exec "$p" -c "{loader}"; fi; '
    "done; "
    'echo "Python: $(python3 -V 2>&1)" >&2; exit {code}'
)


class ConnectionLostError(Exception):
    """The connection ended before the answer; the text is the reason."""


class Connection:
    """A connection that has been opened, or is being opened by the first program."""

    def __init__(self, target: Target, label: str) -> None:
        self._label = label
        program = Path(__file__).with_name("bootstrap.py").read_bytes()
        loader = _LOADER.format(size=len(program))
        script = _SCRIPT.format(loader=loader, code=_NO_PYTHON)
        ssh = shlex.split(os.environ.get(SSH_VARIABLE, "")) or ["ssh"]
        self._asking = contextlib.ExitStack()
        """Closed when `ssh` has asked all that it may ask."""
        batch = () if _may_ask() else ("-o", "BatchMode=yes")
        command = f"exec sh -c {shlex.quote(script)}"
        with contextlib.ExitStack() as opened:
            if not batch:
                opened.enter_context(self._asking).enter_context(asking())
            try:
                self._process = subprocess.Popen(
                    [*ssh, *_OPTIONS, *batch, *target.destination, command],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )  # fmt: skip
            except OSError as error:
                raise BackendError(f"{label}: {ssh[0]} cannot be started: {error.strerror}. Install OpenSSH.") from None
            opened.pop_all()
        self._printed = b""
        """The end of what `ssh`, and the target through it, have written to standard error, which may have none."""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._has_node = False
        """True if the node has started: then what it prints is not `ssh`'s."""
        try:
            self._write(program)
        except BaseException:
            self.release()
            raise

    def request(self, values: Mapping[str, Any], data: Iterable[bytes] = ()) -> None:
        """Send a request to the first program, and the bytes that belong to it."""
        self._write(json.dumps(values).encode() + b"\n", data)

    def receive(self) -> FirstReply:
        """Return the next message of the first program, or of the node that it has become.

        Other lines, such as a shell's greeting, are skipped. Raises ConnectionLostError, and BackendError for a
        message that the first program does not send.
        """
        while not (line := self._read_line()).startswith(b'{"kind": "'):
            pass
        self._asking.close()
        return self._understand(FIRST_REPLY.validate_json, line)

    def stay_alive(self) -> None:
        """Let the node, which has started, know that this process runs, from now on."""
        self._has_node = True
        threading.Thread(target=self._send_life, daemon=True).start()

    def send(self, line: Line, data: Iterable[bytes] = ()) -> None:
        """Send a message to the node, and the bytes that belong to it. Raises ConnectionLostError."""
        self._write(line.to_line().encode(), data)

    def reply(self) -> Reply:
        """Return the node's next message. Raises ConnectionLostError, and BackendError for what is no message."""
        return self._understand(REPLY.validate_json, self._read_line())

    def _understand(self, read: Callable[[bytes], T], line: bytes) -> T:
        try:
            return read(line)
        except Exception:  # pydantic passes on whatever a validator raises
            raise self.refuse(NO_ANSWER) from None

    def refuse(self, why: str) -> BackendError:
        """Close the connection, since what follows cannot be understood either; return the error to raise."""
        self.close()
        return BackendError(f"{self._label}: {why}. Nothing of it was kept; check that machine.")

    def read(self, at_most: int) -> bytes:
        """Return some of the bytes that follow a message. Raises ConnectionLostError."""
        assert isinstance(self._process.stdout, io.BufferedReader)
        data = self._process.stdout.read1(min(at_most, CHUNK_BYTES))
        if not data:
            raise ConnectionLostError(self._explain())
        return data

    def close(self) -> None:
        """End the connection, and with it the node and all that it started. Any thread may call this."""
        self._closed.set()
        self._asking.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def release(self) -> None:
        """Close the connection and its files. Only the thread that uses the connection may call this."""
        self.close()
        for file in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                file.close()  # type: ignore[union-attr]

    def _listen(self) -> None:
        """Keep the end of standard error until it closes."""
        assert isinstance(self._process.stderr, io.BufferedReader)
        with self._process.stderr as source:
            while chunk := source.read1(CHUNK_BYTES):
                self._printed = (self._printed + chunk)[-_LAST_BYTES:]

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        line: bytes = self._process.stdout.readline(MAX_LINE_BYTES)
        if len(line) == MAX_LINE_BYTES:
            raise self.refuse(f"it sent a message of more than {size(MAX_LINE_BYTES)}")
        if not line.endswith(b"\n"):
            raise ConnectionLostError(self._explain())
        return line

    def _write(self, data: bytes, more: Iterable[bytes] = ()) -> None:
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(data)
                for chunk in more:
                    self._process.stdin.write(chunk)
                self._process.stdin.flush()
        except (OSError, ValueError):
            raise ConnectionLostError(self._explain()) from None

    def _send_life(self) -> None:
        with contextlib.suppress(ConnectionLostError):
            while not self._closed.wait(ALIVE_EVERY_S):
                self._write(Alive().to_line().encode())

    def _explain(self) -> str:
        """Return why the connection has ended. Raises BackendError if another attempt would end in the same way."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.close()
            return "the target closed it"
        if self._closed.is_set():
            return "it was closed here"
        self._listening.join(_END_S)  # a program that `ssh` has started may keep it open
        printed = visible_text(self._printed.decode(errors="replace"))
        explanation = "" if self._has_node else explain_failure(printed, code)
        if explanation:
            raise BackendError(f"{self._label}: {explanation}")
        lines = [line.strip() for line in printed.split("\n") if line.strip()]
        return shortened(" / ".join(lines[-3:]), 300) or f"ssh ended with code {code}"


def _may_ask() -> bool:
    """Return whether somebody can answer `ssh`: at the terminal, or by the program that SSH_ASKPASS names."""
    if sys.stdin is not None and sys.stdin.isatty():
        return True
    forced = os.environ.get("SSH_ASKPASS_REQUIRE", "") in ("force", "prefer")
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return bool(os.environ.get("SSH_ASKPASS")) and (forced or has_display)


_CHANGED = (
    "its host key has changed: either the machine was installed anew, or someone stands between. Compare the key with "
    "the machine's owner, then remove the old one with `ssh-keygen -R HOST` and connect once with `ssh`."
)
_FAILURES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .*has changed", lambda _: _CHANGED),
    (
        r"No .*host key is known for (\S+)|Host key verification failed",
        lambda found: (
            f"{f'the host key of {found[1]}' if found[1] else 'its host key'} is unknown. Connect once with `ssh`, "
            "compare the key's fingerprint with the machine's owner, and accept it."
        ),
    ),
    (
        r"Permission denied \(([^)]*)\)|Too many authentication failures",
        lambda found: (
            f"it accepts none of the offered keys or passwords ({found[1] or 'too many were offered'}). Try "
            "`ssh` in a terminal, and name the key in ~/.ssh/config (`IdentityFile`) or load it with `ssh-add`."
        ),
    ),
    (
        r"Could not resolve hostname ([^:]*)",
        lambda found: f"there is no host {found[1]!r}: check the name, or its `Host` in ~/.ssh/config.",
    ),
    (
        r"is not recognized as|CommandNotFoundException|The system cannot find the path",
        lambda _: "it is a Windows machine. Targets run Linux on x86-64 or aarch64; use WSL's SSH server there.",
    ),
    (r"Bad configuration option: (.*)|(.*): no such identity", lambda found: f"ssh: {found[0]}."),
)


def explain_failure(printed: str, code: int) -> str:
    """Return why `ssh` failed and what to do, for reasons that another attempt does not change; else nothing."""
    if code == _NO_PYTHON:
        version = re.search(r"Python: Python (\S+)", printed)
        there = f"only Python {version[1]}" if version else "no Python"
        return (
            f"it has {there}, and ndld-flow needs 3.11 or later there: install one (Debian, Ubuntu: `sudo apt install "
            "python3.11 python3.11-venv`), or name the Python of an environment with `python:`."
        )
    if code == 127:
        return "it has no POSIX shell `sh`. Targets run Linux on x86-64 or aarch64."
    for pattern, explain in _FAILURES:
        found = re.search(pattern, printed)
        if found:
            return explain(found)
    return ""
